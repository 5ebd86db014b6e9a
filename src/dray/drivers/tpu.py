"""`tpu.google.com`: TPU chips from /dev and sysfs, with the host's topology.

Chips appear as /dev/accel<N> (driver `accel`) or as /dev/vfio/<group>. Generation
and form come from the PCI ids; what only the cloud knows (accelerator type,
topology of the slice this host is part of) comes from the TPU environment of the
machine, by default /etc/tpu-env or the variables TPU_ACCELERATOR_TYPE and
TPU_TOPOLOGY. A workload gets its chips' device nodes and the variables that
libtpu reads.
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
from dray.drivers.sysfs import PciPlace, pci_place, read_text

NAME = driver_names.TPU
GOOGLE = "0x1ae0"
# PCI device id -> (generation, chips' bounds of a full host)
GENERATIONS: dict[str, tuple[str, str]] = {
    "0x005e": ("v4", "2,2,1"),
    "0x0062": ("v5p", "2,2,1"),
    "0x0063": ("v5litepod", "2,4,1"),
    "0x006f": ("v6e", "2,4,1"),
}
PROBE_PERIOD = 10.0


@dataclass(frozen=True, slots=True)
class Chip:
    """One TPU chip of this host."""

    name: str  # accel0, or the vfio group's number with a prefix
    index: int
    node: str  # path of its device node, under the dev root
    generation: str
    bounds: str
    place: PciPlace


def find_chips(sysfs: Path, dev: Path) -> list[Chip]:
    """Return the chips in order of their index."""
    chips = []
    for folder in sorted((sysfs / "class/accel").glob("accel[0-9]*"), key=lambda path: int(path.name[5:])):
        device = folder / "device"
        if read_text(device / "vendor") != GOOGLE:
            continue
        generation, bounds = GENERATIONS.get(read_text(device / "device") or "", ("unknown", "1,1,1"))
        index = int(folder.name[5:])
        chips.append(Chip(folder.name, index, f"/dev/{folder.name}", generation, bounds, pci_place(device)))
    if chips:
        return chips
    for function in sorted((sysfs / "bus/pci/devices").glob("*")):
        if read_text(function / "vendor") != GOOGLE or not (function / "iommu_group").exists():
            continue
        known = GENERATIONS.get(read_text(function / "device") or "")
        group = (function / "iommu_group").resolve().name
        if known is None or not (dev / "vfio" / group).exists():
            continue
        chips.append(Chip(f"vfio{group}", len(chips), f"/dev/vfio/{group}", *known, pci_place(function)))
    return chips


def read_environment(path: Path = Path("/etc/tpu-env")) -> dict[str, str]:
    """Read the machine's TPU environment: KEY=value or KEY: 'value' lines, then the process environment."""
    found: dict[str, str] = {}
    for line in (read_text(path) or "").splitlines():
        key, separator, value = (
            line.partition("=") if "=" in line.split(":", 1)[0] or ":" not in line else line.partition(":")
        )
        if separator:
            found[key.strip()] = value.strip().strip("'\"")
    for key in ("TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"):
        if key in os.environ:
            found[key] = os.environ[key]
    return found


class TpuDriver:
    """Hands out TPU chips."""

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

    def discover(self) -> list[Pool]:
        """Return one device per chip whose device node is there."""
        chips = [chip for chip in self._chips() if self._is_alive(chip)]
        accelerator = self._environment.get("TPU_ACCELERATOR_TYPE", "")
        topology = self._environment.get("TPU_TOPOLOGY", "")
        devices = []
        for chip in chips:
            attributes: dict[str, DeviceAttribute] = {
                "index": number(chip.index),
                "uuid": text(stable_uuid(self._node, "tpu", chip.name)),
                "tpuGen": text(chip.generation),
                "brand": text("Google"),
                "chipCount": number(len(chips)),
            }
            if accelerator:
                attributes["accelerator"] = text(accelerator)
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
        """Give the chips' device nodes and libtpu's variables."""
        by_name = {chip.name: chip for chip in self._chips()}
        chosen = []
        for allocated in claim.devices:
            chip = by_name.get(allocated.device)
            if chip is None or not self._is_alive(chip):
                raise DriverError(f"TPU chip {allocated.device} is not there any more")
            chosen.append((allocated, chip))
        common = self._common([chip for _, chip in chosen], len(by_name))
        prepared = []
        for position, (allocated, chip) in enumerate(chosen):
            host_path = self._dev / chip.node.removeprefix("/dev/")
            nodes = [DeviceNode(path=chip.node, host_path=str(host_path))]
            if chip.node.startswith("/dev/vfio/"):
                nodes.append(DeviceNode(path="/dev/vfio/vfio", host_path=str(self._dev / "vfio/vfio")))
            env = [
                f"TPU_DEVICE_{chip.index}={chip.name}",
                f"TPU_DEVICE_{chip.index}_RESOURCE_CLAIM={claim.uid}",
            ]
            edits = ContainerEdits(env=[*env, *(common if position == 0 else [])], device_nodes=nodes)
            prepared.append(PreparedDevice.of(allocated, edits))
        return prepared

    def _common(self, chips: list[Chip], all_chips: int) -> list[str]:
        indices = ",".join(str(chip.index) for chip in chips)
        env = [f"TPU_VISIBLE_CHIPS={indices}", "TPU_SKIP_MDS_QUERY=true"]
        if len(chips) == all_chips:
            env.append(f"TPU_CHIPS_PER_HOST_BOUNDS={chips[0].bounds}")
            for key in ("TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"):
                if key in self._environment:
                    env.append(f"{key}={self._environment[key]}")
        else:
            # A part of the host computes alone.
            env += [f"TPU_CHIPS_PER_HOST_BOUNDS=1,{len(chips)},1", "TPU_HOST_BOUNDS=1,1,1"]
        return env

    def unprepare(self, claim: PreparedClaim) -> None:
        """Do nothing: a chip keeps no state of its user."""
