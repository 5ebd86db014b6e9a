"""Network interfaces from sysfs: what there is, where it sits, what it can do.

The loopback, the interface of the default route (the node's own way out) and
interfaces that belong to a bridge or bond are never offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dray.api.resource import Device, DeviceAttribute
from dray.api.well_known import PCI_BUS_ID
from dray.drivers import driver_names
from dray.drivers.hardware.attributes import number, text, truth
from dray.drivers.sysfs import PciPlace, pci_place, read_int, read_text

PREFIX = driver_names.NETWORK
MAX_TEXT = 64  # an attribute's string may not be longer
_TYPES = {"1": "ether", "32": "infiniband", "772": "loopback"}


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface of the host."""

    name: str
    mac: str
    mtu: int
    state: str
    encapsulation: str
    is_virtual: bool
    rdma_device: str
    sriov_vfs: int  # how many virtual functions are switched on; -1: it has none to give
    is_vf: bool
    vendor: str
    product: str
    place: PciPlace
    alias: str = ""

    @property
    def device_name(self) -> str:
        """Return the name it is offered under: after its PCI address, else after itself.

        A name the kernel allows but Kubernetes does not is written with dashes.
        """
        if self.place.address is not None:
            return "pci-" + self.place.address.replace(":", "-").replace(".", "-")
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") or "if"


def find_interfaces(sysfs: Path, routes: Path = Path("/proc/net/route")) -> list[Interface]:
    """Return the interfaces that may be offered, by name."""
    uplinks = default_route_interfaces(routes)
    found = []
    for folder in sorted((sysfs / "class/net").glob("*")):
        if folder.name in uplinks or (folder / "master").exists() or not (folder / "ifindex").exists():
            continue
        encapsulation = _TYPES.get(read_text(folder / "type") or "", "unknown")
        if encapsulation == "loopback" or folder.name == "lo":
            continue
        device = folder / "device"
        rdma = sorted(path.name for path in (device / "infiniband").glob("*"))
        total = read_int(device / "sriov_totalvfs")
        found.append(
            Interface(
                name=folder.name,
                mac=read_text(folder / "address") or "",
                mtu=read_int(folder / "mtu") or 0,
                state=read_text(folder / "operstate") or "unknown",
                encapsulation=encapsulation,
                is_virtual=not device.exists(),
                rdma_device=rdma[0] if rdma else "",
                sriov_vfs=-1 if not total else read_int(device / "sriov_numvfs") or 0,
                is_vf=(device / "physfn").exists(),
                vendor=read_text(device / "vendor") or "",
                product=read_text(device / "device") or "",
                place=pci_place(device) if device.exists() else PciPlace(),
                alias=read_text(folder / "ifalias") or "",
            )
        )
    return found


def default_route_interfaces(routes: Path) -> set[str]:
    """Return the interfaces that the node's default routes use."""
    lines = (read_text(routes) or "").splitlines()[1:]
    rows = (line.split() for line in lines)
    return {row[0] for row in rows if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000"}


def device_of(interface: Interface, addresses: Mapping[str, list[str]]) -> Device:
    """Return the interface as a device; `addresses` has the IPs by interface name."""
    attributes: dict[str, DeviceAttribute] = {
        f"{PREFIX}/ifName": text(interface.name),
        f"{PREFIX}/mac": text(interface.mac[:MAX_TEXT]),
        f"{PREFIX}/mtu": number(interface.mtu),
        f"{PREFIX}/state": text(interface.state),
        f"{PREFIX}/encapsulation": text(interface.encapsulation),
        f"{PREFIX}/virtual": truth(interface.is_virtual),
        f"{PREFIX}/rdma": truth(bool(interface.rdma_device)),
        f"{PREFIX}/sriov": truth(interface.sriov_vfs >= 0),
        f"{PREFIX}/alias": text(interface.alias[:MAX_TEXT]),
        **interface.place.attributes(),
    }
    attributes.pop(PCI_BUS_ID, None)  # dranet has an attribute of its own for it
    if interface.is_vf:
        attributes[f"{PREFIX}/isSriovVf"] = truth(True)
    optional = {
        "rdmaDevice": interface.rdma_device,
        "pciVendor": interface.vendor,
        "pciDevice": interface.product,
        "pciAddress": interface.place.address or "",
        "ipv4": _joined(address for address in addresses.get(interface.name, []) if ":" not in address),
        "ipv6": _joined(address for address in addresses.get(interface.name, []) if ":" in address),
    }
    attributes |= {f"{PREFIX}/{name}": text(value) for name, value in optional.items() if value}
    if interface.sriov_vfs >= 0:
        attributes[f"{PREFIX}/sriovVfs"] = number(interface.sriov_vfs)
    if interface.place.numa_node is not None:
        attributes[f"{PREFIX}/numaNode"] = number(interface.place.numa_node)
    return Device(name=interface.device_name, attributes=attributes)


def _joined(addresses: Iterable[str]) -> str:
    """Join addresses with commas, leaving out those that no longer fit."""
    listing = ""
    for address in addresses:
        longer = f"{listing},{address}" if listing else address
        if len(longer) > MAX_TEXT:
            break
        listing = longer
    return listing
