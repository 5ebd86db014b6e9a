"""Allocation cases as data: inventory, claims and nodes, in one JSON object.

The format is that of the reference vectors: `features`, `node` (or `nodes`), `claims`,
`classes`, `slices`, and bare use as `allocatedDevices`, `allocatedSharedDevices`,
`aggregatedCapacity`. `dray plan` reads it, and so do the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dray.allocator.allocator import Allocator
from dray.api.core import Node
from dray.api.features import KNOWN_GATES, Features
from dray.api.meta import ObjectMeta, View
from dray.api.quantity import parse_quantity
from dray.api.resource import DeviceClass, DeviceTaintRule, QuantityValue, ResourceClaim, ResourceSlice
from dray.devices import DeviceId


class CaseError(ValueError):
    """The case cannot be read; the text says where and why."""


class UsedDevice(View, frozen=True):
    """A device in use, with what is used of it."""

    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed: dict[str, QuantityValue] = {}

    @property
    def id(self) -> DeviceId:
        """Return the identity."""
        return DeviceId(self.driver, self.pool, self.device)


class Case(View, frozen=True):
    """An inventory, what is in use of it, and the claims to allocate."""

    name: str = ""
    features: list[str] | None = None
    node: Node | str | None = None
    nodes: list[Node | str] | None = None
    claims: list[ResourceClaim] | None = None
    classes: list[DeviceClass] | None = None
    slices: list[ResourceSlice] | str | None = None
    taint_rules: list[DeviceTaintRule] | None = None
    allocated_devices: list[UsedDevice] | None = None
    allocated_shared_devices: list[UsedDevice] | None = None
    aggregated_capacity: list[UsedDevice] | None = None
    allocated_claims: list[ResourceClaim] | None = None
    first: int | None = None
    policy: str | None = None

    def all_nodes(self) -> list[Node]:
        """Return the nodes asked about; a bare name is a node without labels."""
        nodes = self.nodes if self.nodes is not None else [self.node] if self.node is not None else []
        return [Node(metadata=ObjectMeta(name=n)) if isinstance(n, str) else n for n in nodes]


def read_case(data: Mapping[str, Any]) -> Case:
    """Read a case from plain data. Raises CaseError.

    No `features` at all means the defaults; null or [] means that no optional gate is on.
    """
    if data.get("features", ()) is None:
        data = {**data, "features": []}
    try:
        return msgspec.convert(data, Case)
    except msgspec.ValidationError as error:
        raise CaseError(str(error)) from error


def features_of(names: list[str] | None) -> Features:
    """Read gates; `A+B` switches both on; None means the defaults of v1.37. Raises CaseError."""
    if names is None:
        return Features.default()
    gates = [gate for name in names for gate in name.split("+")]
    unknown = [gate for gate in gates if gate not in KNOWN_GATES]
    if unknown:
        raise CaseError(f"unknown feature gate {unknown[0]!r}; known: {', '.join(sorted(KNOWN_GATES))}")
    return Features(gates)


def build_allocator(case: Case, *, new_share_id: Callable[[], str] | None = None) -> Allocator:
    """Build the inventory of a case; without `features` the defaults of v1.37 are on. Raises CaseError."""
    allocator = Allocator(features_of(case.features), new_share_id=new_share_id)
    if isinstance(case.slices, str):
        raise CaseError(f'slices must be a list or "same", not {case.slices!r}')
    add_slices(allocator, case)
    add_rest(allocator, case)
    return allocator


def add_slices(allocator: Allocator, case: Case) -> None:
    """Put the hardware of a case into an allocator. Raises CaseError."""
    assert not isinstance(case.slices, str)
    for index, resource_slice in enumerate(case.slices or []):
        name = resource_slice.metadata.name
        try:
            # Names should be unique but need not be in a file; the order decides between equals.
            allocator.set_slice(resource_slice, key=f"{name}\0{index:08}")
        except ValueError as error:
            raise CaseError(f"slice {name!r}: {error}") from error


def add_rest(allocator: Allocator, case: Case) -> Callable[[], None]:
    """Put classes, nodes, rules and use into an allocator; return what undoes the use. Raises CaseError."""
    for device_class in case.classes or []:
        allocator.set_class(device_class)
    for node in case.all_nodes():
        allocator.set_node(node)
    for rule in case.taint_rules or []:
        allocator.set_taint_rule(rule)
    for claim in case.allocated_claims or []:
        allocator.set_claim(claim)
    try:
        return allocator.seed(
            dedicated=[used.id for used in case.allocated_devices or []],
            shares=[(used.id, used.share_id or "") for used in case.allocated_shared_devices or []],
            consumed=[
                (used.id, {name: parse_quantity(value).nanos for name, value in used.consumed.items()})
                for used in case.aggregated_capacity or []
            ],
        )
    except ValueError as error:
        raise CaseError(f"aggregatedCapacity: {error}") from error
