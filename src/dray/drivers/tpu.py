"""`tpu.google.com`: TPU chips from /dev and sysfs, published and handed out as Google's driver does.

Chips appear as /dev/accel<N> (v4 and earlier) or as VFIO groups, /dev/vfio/<number> (v5 and later); a device has the
name of its node. The generation comes from the PCI ids; what only the cloud knows (type and topology of the slice that
this host is part of) comes from the TPU environment of the machine: /etc/tpu/tpu-env, /etc/tpu-env, or the variables
TPU_ACCELERATOR_TYPE and TPU_TOPOLOGY. Without them the host is taken for a whole TPU.

All chips of a host go to one claim: their links are one unit, and libtpu of two programs would compete for them.
A claim for a part of them is refused (`tpu_topology.partial_claim`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dray.api.resource import Device, DeviceAttribute
from dray.driver import (
    HEALTHY,
    UNHEALTHY,
    ClaimRequest,
    ContainerEdits,
    DeviceHealth,
    DeviceNode,
    DriverError,
    Pool,
    PreparedClaim,
    PreparedDevice,
)
from dray.drivers import driver_names
from dray.drivers.hardware.attributes import number, stable_uuid, text
from dray.drivers.sysfs import read_text
from dray.drivers.tpu_topology import (
    accelerator_of,
    common_variables,
    generation_of,
    partial_claim,
    topology_of_host,
)

NAME = driver_names.TPU
GOOGLE = "0x1ae0"
# PCI device id -> type, as far as the id says it; another form of the same chip comes from the environment
TYPES: dict[str, str] = {
    "0x0027": "tpu-v3-device",
    "0x005e": "tpu-v4-podslice",
    "0x0062": "tpu-v5p-slice",
    "0x0063": "tpu-v5-lite-podslice",
    "0x006f": "tpu-v6e-slice",
}
ENVIRONMENT_FILES = (Path("/etc/tpu/tpu-env"), Path("/etc/tpu-env"))
_WORKER_VARIABLES = ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")  # of a slice of several hosts
_TYPE_NAMES = ("TPU_ACCELERATOR_TYPE", "ACCELERATOR_TYPE", "TYPE")
_TOPOLOGY_NAMES = ("TPU_TOPOLOGY", "TOPOLOGY")
PROBE_PERIOD = 10.0


@dataclass(frozen=True, slots=True)
class Chip:
    """One TPU chip of this host."""

    name: str  # accel0, or the number of the VFIO group
    index: int
    node: str  # path of its device node, under the dev root
    accelerator: str  # the type that its PCI ids say; empty for one that is not known


def find_chips(sysfs: Path, dev: Path) -> list[Chip]:
    """Return the chips in the order of their names, which is that of their indexes."""
    chips: list[Chip] = []
    for folder in sorted((sysfs / "class/accel").glob("accel[0-9]*"), key=lambda path: path.name):
        device = folder / "device"
        if read_text(device / "vendor") == GOOGLE:
            accelerator = TYPES.get(read_text(device / "device") or "", "")
            chips.append(Chip(folder.name, len(chips), f"/dev/{folder.name}", accelerator))
    if chips:
        return chips
    accelerator_by_group: dict[str, str] = {}
    for function in sorted((sysfs / "bus/pci/devices").glob("*")):
        if read_text(function / "vendor") != GOOGLE or not (function / "iommu_group").exists():
            continue
        known = TYPES.get(read_text(function / "device") or "")
        group = (function / "iommu_group").resolve().name
        # Google's network and storage functions may be VFIO groups, too.
        if known is not None and (dev / "vfio" / group).exists():
            accelerator_by_group[group] = known
    return [
        Chip(group, index, f"/dev/vfio/{group}", accelerator_by_group[group])
        for index, group in enumerate(sorted(accelerator_by_group))
    ]


def read_environment(*paths: Path) -> dict[str, str]:
    """Read the machine's TPU environment: KEY=value or KEY: 'value' lines, then the process environment."""
    found: dict[str, str] = {}
    for path in reversed(paths or ENVIRONMENT_FILES):
        for line in (read_text(path) or "").splitlines():
            key, separator, value = (
                line.partition("=")
                if "=" in line.split(":", 1)[0] or ":" not in line
                else line.partition(":")
            )
            if separator:
                found[key.strip()] = value.strip().strip("'\"")
    for key in (*_TYPE_NAMES[:1], *_TOPOLOGY_NAMES[:1], *_WORKER_VARIABLES):
        if key in os.environ:
            found[key] = os.environ[key]
    return found


class TpuDriver:
    """Hands out the TPU chips of a host."""

    name = NAME

    def __init__(
        self,
        node: str,
        sysfs: Path = Path("/sys"),
        dev: Path = Path("/dev"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._node = node
        self._sysfs = sysfs
        self._dev = dev
        self._environment = dict(read_environment() if environment is None else environment)

    def _chips(self) -> list[Chip]:
        return find_chips(self._sysfs, self._dev)

    def _of_environment(self, names: Iterable[str]) -> str:
        return next((self._environment[name] for name in names if self._environment.get(name)), "")

    def _type(self, chips: list[Chip]) -> str:
        told = self._of_environment(_TYPE_NAMES)
        return accelerator_of(told) if told else chips[0].accelerator

    def _topology(self, chips: list[Chip]) -> str:
        return self._of_environment(_TOPOLOGY_NAMES) or topology_of_host(len(chips))

    def discover(self) -> list[Pool]:
        """Return one device per chip whose device node is there."""
        found = self._chips()
        if not found:
            return [Pool([])]
        accelerator, topology = self._type(found), self._topology(found)
        devices = []
        for chip in found:
            if not self._is_alive(chip):
                continue
            attributes: dict[str, DeviceAttribute] = {
                "index": number(chip.index),
                # Google's driver makes it from the node's name alone: all chips of a host have the same one.
                "uuid": text(f"tpu-{stable_uuid(self._node, 'tpu')}"),
                "tpuGen": text(generation_of(accelerator)),
                "brand": text("Google"),
                "accelerator": text(accelerator),
                "chipCount": number(len(found)),
            }
            if topology:
                attributes["topology"] = text(topology)
            devices.append(Device(name=chip.name, attributes=attributes))
        return [Pool(devices)]

    def _is_alive(self, chip: Chip) -> bool:
        return (self._dev / chip.node.removeprefix("/dev/")).exists()

    async def health(self) -> AsyncIterator[Iterable[DeviceHealth]]:
        """Probe the device nodes; a chip without one is unhealthy."""
        while True:
            yield [
                DeviceHealth("", chip.name, HEALTHY)
                if self._is_alive(chip)
                else DeviceHealth("", chip.name, UNHEALTHY, f"{chip.node} is gone")
                for chip in self._chips()
            ]
            await asyncio.sleep(PROBE_PERIOD)

    def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Give the chips' device nodes and libtpu's variables; refuse a claim for a part of the chips."""
        chips = self._chips()
        refusal = partial_claim(len(claim.devices), len(chips))
        if refusal:
            raise DriverError(refusal)
        by_name = {chip.name: chip for chip in chips}
        common = [f"{key}={value}" for key, value in self._common(chips).items()]
        prepared = []
        for position, allocated in enumerate(claim.devices):
            chip = by_name.get(allocated.device)
            if chip is None or not self._is_alive(chip):
                raise DriverError(f"TPU chip {allocated.device} is not there any more")
            host_path = self._dev / chip.node.removeprefix("/dev/")
            nodes = [DeviceNode(path=chip.node, host_path=str(host_path))]
            if chip.node.startswith("/dev/vfio/"):
                nodes.append(DeviceNode(path="/dev/vfio/vfio", host_path=str(self._dev / "vfio/vfio")))
            env = [f"TPU_DEVICE_{chip.name}_RESOURCE_CLAIM={claim.uid}"]
            edits = ContainerEdits(env=[*env, *(common if position == 0 else [])], device_nodes=nodes)
            prepared.append(PreparedDevice.of(allocated, edits))
        return prepared

    def _common(self, chips: list[Chip]) -> dict[str, str]:
        """Return the variables of the host; a slice of several hosts also knows which of them this one is."""
        told = {key: self._environment[key] for key in _WORKER_VARIABLES if self._environment.get(key)}
        return common_variables(self._type(chips), self._topology(chips), len(chips), self._node) | told

    def unprepare(self, claim: PreparedClaim) -> None:
        """Do nothing: a chip keeps no state of its user."""
