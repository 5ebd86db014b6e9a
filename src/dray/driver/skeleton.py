"""`dray driver new`: a working driver to start from, with its test.

The files are text with the driver's name filled in. They are complete: the driver
runs, and the test passes as it is.
"""

from __future__ import annotations

import re
from pathlib import Path

from dray.driver.contract import DriverError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")

_DRIVER = '''\
"""The DRA driver @NAME@.

Run it on a node:   python @MODULE@.py --node-name NODE [--kubelet-dir DIR] [--cdi-dir DIR]
Check it:           dray driver check --kubeconfig FILE --command "python @MODULE@.py ..."
"""

import argparse
from pathlib import Path

from dray.api.resource import Device, DeviceAttribute
from dray.driver import ClaimRequest, DriverError, Pool, PreparedClaim, PreparedDevice, Settings, run


class @CLASS@:
    """Replace the four made-up devices by those that your hardware has."""

    name = "@NAME@"

    def discover(self) -> list[Pool]:
        """Return which devices there are, best first. Called at start and every minute."""
        devices = [
            Device(
                name=f"device-{index}",
                attributes={
                    "model": DeviceAttribute(string="example"),
                    "index": DeviceAttribute(int_value=index),
                },
            )
            for index in range(4)
        ]
        return [Pool(devices=devices)]

    def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Make the devices usable and say what a container needs. May be called again after a crash."""
        prepared = []
        for device in claim.devices:
            for config in device.configs:
                if unknown := set(config.parameters) - {"apiVersion", "kind", "mode"}:
                    raise DriverError(f"unknown parameters: {', '.join(sorted(unknown))}")
            number = device.device.rpartition("-")[2]
            prepared.append(PreparedDevice.of(device, env={f"EXAMPLE_DEVICE_{number}": device.device}))
        return prepared

    def unprepare(self, claim: PreparedClaim) -> None:
        """Undo `prepare`; must succeed when there is nothing to undo."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--node-name", default="")
    parser.add_argument("--kubelet-dir", type=Path, default=Path("/var/lib/kubelet"))
    parser.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"))
    parser.add_argument("--kubeconfig")
    args = parser.parse_args()
    settings = Settings(node_name=args.node_name, kubelet_dir=args.kubelet_dir, cdi_dir=args.cdi_dir)
    raise SystemExit(run(@CLASS@(), kubeconfig=args.kubeconfig, settings=settings))
'''

_TEST = '''\
"""What @NAME@ promises, without a cluster."""

from @MODULE@ import @CLASS@

from dray.api.resource import ResourceClaim
from dray.driver import AllocatedDevice, ClaimRequest, PreparedClaim


def request(*devices: str) -> ClaimRequest:
    """A claim that was given these devices."""
    allocated = [AllocatedDevice(request="req", pool="node", device=device) for device in devices]
    return ClaimRequest("default", "claim", "uid", allocated, ResourceClaim())


def test_devices_have_unique_names() -> None:
    names = [device.name for pool in @CLASS@().discover() for device in pool.devices]
    assert names
    assert len(set(names)) == len(names)


def test_a_container_learns_its_devices() -> None:
    (prepared,) = @CLASS@().prepare(request("device-2"))
    assert prepared.edits.env == ["EXAMPLE_DEVICE_2=device-2"]


def test_preparing_again_gives_the_same_answer() -> None:
    driver = @CLASS@()
    assert driver.prepare(request("device-0", "device-1")) == driver.prepare(request("device-0", "device-1"))


def test_unprepare_succeeds_with_nothing_to_undo() -> None:
    @CLASS@().unprepare(PreparedClaim("default", "claim", "uid", []))
'''


def checked_name(name: str) -> str:
    """Return the name of a driver; raises DriverError for one that Kubernetes would refuse."""
    if not _NAME.match(name) or len(name) > 63 or "." not in name:
        raise DriverError(f"{name!r} is not a driver name; it is a domain of yours, like gpu.example.com")
    return name


def write_skeleton(name: str, folder: Path) -> list[Path]:
    """Write the driver and its test; refuse names that Kubernetes would, and files that are there already."""
    checked_name(name)
    module = re.sub(r"[^a-z0-9]+", "_", name.partition(".")[0]).strip("_") + "_driver"
    if module[0].isdigit():
        module = f"dra_{module}"
    words = {
        "@NAME@": name,
        "@MODULE@": module,
        "@CLASS@": "".join(part.capitalize() for part in module.split("_")),
    }
    written = []
    for path, text in ((folder / f"{module}.py", _DRIVER), (folder / f"test_{module}.py", _TEST)):
        if path.exists():
            raise DriverError(f"{path} is there already; choose another directory")
        for word, value in words.items():
            text = text.replace(word, value)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written
