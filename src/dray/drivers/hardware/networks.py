"""Devices of kubernetes-sigs/dranet (`dra.net`, August 2026): physical interfaces, virtual functions, virtual links.

An interface with a PCI address is named after it, another one after itself. An RDMA device without interface (EFA of AWS,
InfiniBand of virtual machines) has neither name nor addresses. What a cloud tells of an interface stands
in attributes with the cloud's own prefix (`gce.dra.net/block`); a profile gives them as `cloud`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping

from dray.api.resource import Device, DeviceAttribute
from dray.api.well_known import PCI_BUS_ID
from dray.drivers import driver_names
from dray.drivers.hardware.attributes import Attributes, Entry, number, place_attributes, text, truth
from dray.drivers.hardware.pools import PoolModel

MAX_CLOUD_ATTRIBUTES = 8  # of one interface, so that a device stays within its 32 attributes
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CLOUD_NAME = re.compile(r"(gce|azure|oke|alibaba|aws)\.dra\.net/[A-Za-z][A-Za-z0-9]{0,31}")


def interfaces(entry: Entry, node: str) -> PoolModel:
    """Model `dra.net`: one device per network interface."""
    devices = []
    for index, nic in enumerate(entry["nics"]):
        attributes = _attributes(entry, nic, f"{node}/{index}")
        devices.append(Device(name=_device_name(nic), attributes=attributes))
    return PoolModel(driver_names.NETWORK, node, tuple(devices), (), node)


def _device_name(nic: Entry) -> str:
    """Return the device's name.

    >>> _device_name({"netdev": "eth1", "pci": "0000:05:00.0"}), _device_name({"netdev": "net_0"})
    ('pci-0000-05-00-0', 'net-nzsxixzq')
    """
    if "pci" in nic:
        return f"pci-{nic['pci']}".replace(":", "-").replace(".", "-").lower()
    name = str(nic["netdev"])
    if _DNS_LABEL.fullmatch(name):
        return name
    return f"net-{base64.b32encode(name.encode()).decode().rstrip('=').lower()}"


def _attributes(entry: Entry, nic: Entry, identity: str) -> Attributes:
    is_virtual = bool(nic.get("virtual", False))
    if is_virtual and "pci" in nic:
        raise ValueError(f"{nic['netdev']}: a virtual interface has no PCI address")
    if "netdev" not in nic and not ("pci" in nic and "rdma" in nic):
        raise ValueError("a device without netdev has pci and rdma")
    own: dict[str, str | int | bool] = {"rdma": "rdma" in nic}
    if "netdev" in nic:
        own |= _link_attributes(entry, nic, identity, is_virtual=is_virtual)
    if "rdma" in nic:
        own["rdmaDevice"] = str(nic["rdma"])
    if not is_virtual:
        told = {**entry, **nic}
        own["pciVendor"] = str(told.get("vendor", "Mellanox Technologies"))
        own["pciDevice"] = str(told.get("product", "MT2910 Family [ConnectX-7]"))
        if "subsystem" in told:
            own["pciSubsystem"] = str(told["subsystem"])
    if "pci" in nic:
        own["pciAddress"] = str(nic["pci"])
    if "numa" in nic:
        own["numaNode"] = int(nic["numa"])
    place = place_attributes(nic)
    place.pop(PCI_BUS_ID, None)  # dranet has an attribute of its own for it
    attributes = {f"{driver_names.NETWORK}/{name}": _typed(value) for name, value in own.items()} | place
    return attributes | _cloud_attributes({**(entry.get("cloud") or {}), **(nic.get("cloud") or {})})


def _link_attributes(
    entry: Entry, nic: Entry, identity: str, *, is_virtual: bool
) -> dict[str, str | int | bool]:
    """Return what the kernel says of an interface; RDMA devices without one lack all of it."""
    digest = hashlib.sha256(identity.encode()).digest()[:5]
    own: dict[str, str | int | bool] = {
        "ifName": str(nic["netdev"]),
        "mac": ":".join(f"{byte:02x}" for byte in (0x02, *digest)),
        "mtu": int(nic.get("mtu", 1500 if is_virtual else 4096)),
        "state": str(nic.get("state", "up")),
        "type": str(nic.get("type", "dummy" if is_virtual else "device")),
        "alias": str(nic.get("alias", "")),
        "ebpf": bool(nic.get("ebpf", False)),
        "encapsulation": "ether" if is_virtual else str(entry.get("encapsulation", "infiniband")),
        "virtual": is_virtual,
        "sriov": "sriov_vfs" in nic,
    }
    own |= {family: str(nic[family]) for family in ("ipv4", "ipv6") if family in nic}
    if "sriov_vfs" in nic:
        own["sriovVfs"] = int(nic["sriov_vfs"])
    if nic.get("is_vf"):
        own["isSriovVf"] = True  # the driver tells it only where it is so
    return own


def _cloud_attributes(told: Mapping[str, object]) -> Attributes:
    if len(told) > MAX_CLOUD_ATTRIBUTES:
        raise ValueError(f"cloud: more than {MAX_CLOUD_ATTRIBUTES} attributes")
    for name in told:
        if not _CLOUD_NAME.fullmatch(str(name)):
            raise ValueError(f"cloud: {name!r} is not an attribute of a cloud, such as gce.dra.net/block")
    return {
        str(name): _typed(value if isinstance(value, bool | int) else str(value))
        for name, value in told.items()
    }


def _typed(value: str | int | bool) -> DeviceAttribute:
    if isinstance(value, bool):
        return truth(value)
    return number(value) if isinstance(value, int) else text(value)
