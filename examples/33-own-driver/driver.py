"""A driver in one page: three lamps that are not there.

python examples/33-own-driver/driver.py --node-name NODE --kubelet-dir DIR --cdi-dir DIR
"""

import argparse
from pathlib import Path

from dray.api.resource import Device, DeviceAttribute
from dray.driver import Pool, PreparedDevice, Settings, run

COLOURS = ("red", "green", "green")


class Lamps:
    """Three lamps, of which two are green."""

    name = "lamps.example.com"

    def discover(self):
        """Say what there is."""
        return [
            Pool(
                [
                    Device(name=f"lamp-{n}", attributes={"colour": DeviceAttribute(string=colour)})
                    for n, colour in enumerate(COLOURS)
                ],
                name="lamps",
            )
        ]

    def prepare(self, claim):
        """Say what a container needs to use the lamps."""
        return [PreparedDevice.of(device, env={"LAMP": device.device}) for device in claim.devices]

    def unprepare(self, claim):
        """Switch nothing off: these lamps are not there."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--node-name")
    parser.add_argument("--kubelet-dir", type=Path, default=Path("/var/lib/kubelet"))
    parser.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"))
    args = parser.parse_args()
    settings = Settings(node_name=args.node_name, kubelet_dir=args.kubelet_dir, cdi_dir=args.cdi_dir)
    raise SystemExit(run(Lamps(), settings=settings))
