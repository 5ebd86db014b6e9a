"""Values of modelled attributes: the typed forms, identities that stay, and where a device sits."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

from dray.api.resource import DeviceAttribute
from dray.api.well_known import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT

Entry = Mapping[str, Any]
Attributes = dict[str, DeviceAttribute]


def stable_uuid(*parts: object) -> str:
    """Return the same UUID for the same parts: a simulated device keeps its identity over restarts."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def text(value: str) -> DeviceAttribute:
    """Return a string attribute."""
    return DeviceAttribute(string=value)


def number(value: int) -> DeviceAttribute:
    """Return an int attribute."""
    return DeviceAttribute(int_value=value)


def truth(value: bool) -> DeviceAttribute:
    """Return a bool attribute."""
    return DeviceAttribute(bool_value=value)


def version(value: str) -> DeviceAttribute:
    """Return a version attribute."""
    return DeviceAttribute(version=value)


def place_attributes(entry: Entry) -> Attributes:
    """Return the standard attributes that say where a device sits, as far as the entry knows."""
    attributes: Attributes = {}
    if "pci" in entry:
        attributes[PCI_BUS_ID] = text(str(entry["pci"]))
    if "root" in entry:
        attributes[PCIE_ROOT] = text(str(entry["root"]))
    if "numa" in entry:
        attributes[NUMA_NODE] = number(int(entry["numa"]))
    return attributes
