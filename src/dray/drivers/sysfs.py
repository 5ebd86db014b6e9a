"""Reading /sys: small text files under a root that tests replace by a folder of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dray.api.resource import DeviceAttribute
from dray.api.well_known import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT
from dray.drivers.hardware.attributes import number, text

_PCI_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_PCI_ROOT = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")


def read_text(path: Path) -> str | None:
    """Return the stripped content of a file, or None where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Return a decimal or 0x number from a file, or None."""
    found = read_text(path)
    try:
        return int(found, 0) if found else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class PciPlace:
    """Where a PCI function sits."""

    address: str | None = None  # 0000:1b:00.0
    root: str | None = None  # pci0000:15
    numa_node: int | None = None  # None when the firmware does not say

    def attributes(self) -> dict[str, DeviceAttribute]:
        """Return the standard attributes; a fact that is not known is left out."""
        found: dict[str, DeviceAttribute] = {}
        if self.address is not None:
            found[PCI_BUS_ID] = text(self.address)
        if self.root is not None:
            found[PCIE_ROOT] = text(self.root)
        if self.numa_node is not None:
            found[NUMA_NODE] = number(self.numa_node)
        return found


def pci_place(device: Path) -> PciPlace:
    """Find the PCI function behind a sysfs device directory (which is usually a link)."""
    try:
        resolved = device.resolve(strict=True)
    except OSError:
        return PciPlace()
    address = root = None
    for part in resolved.parts:
        if _PCI_ROOT.match(part):
            root = part
        elif _PCI_ADDRESS.match(part):
            address = part  # the last one is the function itself; the ones before are bridges
    numa = read_int(resolved / "numa_node")
    return PciPlace(address, root, numa if numa is not None and numa >= 0 else None)
