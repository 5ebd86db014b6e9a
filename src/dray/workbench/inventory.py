"""Who holds what: every published device with its users, for tables, trees and maps.

A device of a partitionable GPU (a MIG placement) is shown only when it is in use or
when somebody asks for all of them: the free ones are alternatives, not hardware.
Utilisation of a shared device is the largest share of any of its capacities.

Whether a free partition could still be taken is the allocator's question: the pools are given to its own
inventory and ledger, which count the published `sharedCounters` and what devices in use draw from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from dray.allocator import Allocator
from dray.api.quantity import parse_quantity
from dray.api.resource import Device, DeviceAttribute, DeviceTaint, ResourceClaim, ResourceSlice
from dray.api.times import parse_time
from dray.api.tolerations import BLOCKING_EFFECTS
from dray.client import key_of
from dray.devices import (
    DeviceId,
    PoolId,
    device_id_of,
    newest_generation,
    pool_id_of,
    rule_selects,
    slices_by_pool,
)
from dray.sim.other_users import HELD_UNTIL
from dray.sim.snapshot import Snapshot
from dray.workbench.jobs import moment_text


@dataclass(slots=True)
class Use:
    """One claim on a device."""

    claim: str  # namespace/name
    pods: list[str]
    request: str
    is_admin: bool = False
    share: str | None = None
    consumed: dict[str, str] = field(default_factory=dict)
    until: str | None = None  # of another user, of whom only this is known; empty: without a time limit

    @property
    def owner(self) -> str:
        """Return the claim; of another user, whose claims are not known by name, the namespace."""
        return self.claim if self.until is None else self.claim.partition("/")[0]

    def __str__(self) -> str:
        """Return who holds it: the claim with its pods; of another user the namespace and until when."""
        if self.until is not None:
            end = (
                f"until {moment_text(parse_time(self.until).timestamp())}" if self.until else "no time limit"
            )
            return f"{self.owner} ({end})"
        pods = f" ({','.join(self.pods)})" if self.pods else ""
        return f"{'admin: ' if self.is_admin else ''}{self.claim}{pods}"


@dataclass(slots=True)
class DeviceRow:
    """One device and who holds it."""

    driver: str
    pool: str
    node: str  # empty means: not bound to one node
    device: Device
    uses: list[Use] = field(default_factory=list)
    taints: list[DeviceTaint] = field(default_factory=list)
    blocked_by: str = ""  # a partition of the same hardware that is in use

    @property
    def key(self) -> DeviceId:
        """Return the identity of the device."""
        return DeviceId(self.driver, self.pool, self.device.name)

    @property
    def holders(self) -> list[Use]:
        """Return the users that count: not those with admin access."""
        return [use for use in self.uses if not use.is_admin]

    @property
    def is_partition(self) -> bool:
        """Return whether the device is a part of something larger that is published too."""
        return bool(self.device.consumes_counters) and self.attribute("type") == "mig"

    @property
    def state(self) -> str:
        """Return one word: free, used, shared, blocked, tainted."""
        if self.holders:
            return "shared" if self.device.allow_multiple_allocations else "used"
        if any(taint.effect in BLOCKING_EFFECTS for taint in self.taints):
            return "tainted"
        return "blocked" if self.blocked_by else "free"

    @property
    def utilisation(self) -> float:
        """Return how much of the device is given out, 0 to 1."""
        if not self.holders:
            return 0.0
        if not self.device.allow_multiple_allocations:
            return 1.0
        shares = [0.0]
        for name, capacity in (self.device.capacity or {}).items():
            total = parse_quantity(capacity.value).as_approximate_float()
            used = sum(
                parse_quantity(use.consumed.get(name, "0")).as_approximate_float() for use in self.holders
            )
            shares.append(used / total if total else 0.0)
        return min(1.0, max(shares))

    def attribute(self, name: str) -> str:
        """Return an attribute as text, by bare or qualified name; empty when there is none."""
        attributes = self.device.attributes or {}
        for key in (name, f"{self.driver}/{name}"):
            if key in attributes:
                return attribute_text(attributes[key])
        return ""

    @property
    def model(self) -> str:
        """Return what people call the device."""
        for name in ("productName", "model", "accelerator", "dra.net/pciDevice", "PFName"):
            found = self.attribute(name)
            if found:
                profile = self.attribute("profile")
                return f"{found} {profile}".strip() if profile else found
        numa = self.attribute("dra.cpu/numaNodeID")
        return f"NUMA {numa}" if numa else ""

    @property
    def short_name(self) -> str:
        """Return what to write into a box: people know an interface by its name, not by its PCI address."""
        return self.attribute("dra.net/ifName") or self.device.name


def attribute_text(attribute: DeviceAttribute) -> str:
    """Return the value of an attribute as people write it."""
    if attribute.bool_value is not None:
        return "true" if attribute.bool_value else "false"
    for value in (attribute.string, attribute.int_value, attribute.version):
        if value is not None:
            return str(value)
    for values in (attribute.strings, attribute.ints, attribute.versions, attribute.bools):
        if values is not None:
            return ",".join(map(str, values))
    return ""


@dataclass(slots=True)
class PoolRow:
    """One pool, counted."""

    driver: str
    pool: str
    node: str
    generation: int
    slices: int
    expected_slices: int
    devices: list[DeviceRow]

    @property
    def is_complete(self) -> bool:
        """Return whether all slices of the pool are published."""
        return self.slices == self.expected_slices

    @property
    def countable(self) -> list[DeviceRow]:
        """Return the devices that stand for hardware: partitions only when the whole is not published."""
        return [row for row in self.devices if not row.is_partition]


class Inventory:
    """All devices of a snapshot, with their users."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.pools = list(_pools(snapshot.slices))
        self.devices: dict[DeviceId, DeviceRow] = {
            row.key: row for pool in self.pools for row in pool.devices
        }
        self.lost: list[tuple[DeviceId, Use]] = []  # allocated devices that are no longer published
        self._apply_rules()
        for claim in snapshot.claims:
            self._add_use(claim)
        self._rows_by_claim: dict[str, list[DeviceRow]] = {}
        for row in self.devices.values():
            for claim_key in dict.fromkeys(use.claim for use in row.uses):
                self._rows_by_claim.setdefault(claim_key, []).append(row)
        self._mark_blocked()

    def _apply_rules(self) -> None:
        for rule in self.snapshot.taint_rules:
            for row in self.devices.values():
                if rule_selects(rule, *row.key):
                    row.taints.append(rule.spec.taint)

    def _add_use(self, claim: ResourceClaim) -> None:
        if claim.status.allocation is None:
            return
        pods = [user.name for user in claim.status.reserved_for]
        for result in claim.status.allocation.devices.results:
            consumed = {name: str(amount) for name, amount in (result.consumed_capacity or {}).items()}
            use = Use(
                key_of(claim.metadata),
                pods,
                result.request,
                bool(result.admin_access),
                result.share_id,
                consumed,
                (claim.metadata.annotations or {}).get(HELD_UNTIL),
            )
            device = device_id_of(result)
            row = self.devices.get(device)
            if row is None:
                self.lost.append((device, use))
            else:
                row.uses.append(use)

    def _mark_blocked(self) -> None:
        """Mark free devices for which published counters no longer suffice, as the allocator counts them."""
        drawn = {
            PoolId(pool.driver, pool.pool): pool
            for pool in self.pools
            if any(row.holders and row.device.consumes_counters for row in pool.devices)
        }
        if not drawn:
            return
        allocator = _allocator(self.snapshot, drawn)
        with_groups = "DRADeviceCompatibilityGroups" in self.snapshot.features
        for pool_id, pool in drawn.items():
            # What is left of a pool is the same on every node; a node sees only its own devices.
            nodes = {row.node for row in pool.devices if row.node} or set(allocator.nodes) or {""}
            for view in (view for node in nodes for view in allocator.view(node).pools if view.id == pool_id):
                for bit, facts in enumerate(view.devices):
                    row = self.devices.get(DeviceId(*pool_id, facts.name))
                    if (
                        row is not None
                        and not row.holders
                        and view.shortage(bit, with_groups=with_groups) is not None
                    ):
                        row.blocked_by = _devices_in_the_way(row, pool)

    def by_node(self) -> dict[str, list[PoolRow]]:
        """Return the pools by node; those of no single node under the empty name."""
        found: dict[str, list[PoolRow]] = {node.metadata.name: [] for node in self.snapshot.nodes}
        for pool in self.pools:
            found.setdefault(pool.node, []).append(pool)
        return found

    def of_claim(self, key: str) -> list[DeviceRow]:
        """Return the devices that a claim holds."""
        return self._rows_by_claim.get(key, [])


def _pools(slices: Iterable[ResourceSlice]) -> Iterator[PoolRow]:
    for (driver, pool), members in sorted(slices_by_pool(slices).items()):
        current = sorted(newest_generation(members), key=lambda found: found.metadata.name)
        generation = current[0].spec.pool.generation
        nodes = {found.spec.node_name or "" for found in current}
        node = nodes.pop() if len(nodes) == 1 else ""
        rows = [
            DeviceRow(driver, pool, device.node_name or node, device, taints=list(device.taints))
            for found in current
            for device in found.spec.devices
        ]
        yield PoolRow(
            driver, pool, node, generation, len(current), current[0].spec.pool.resource_slice_count, rows
        )


def _allocator(snapshot: Snapshot, pools: Collection[PoolId]) -> Allocator:
    """Return the allocator's view of some pools, with what claims hold of them."""
    allocator = Allocator(snapshot.features, new_share_id=str)
    for node in snapshot.nodes:
        allocator.set_node(node)
    for found in snapshot.slices:
        if pool_id_of(found) in pools:
            allocator.set_slice(found)
    for claim in snapshot.claims:
        allocation = claim.status.allocation
        if allocation is not None and any((r.driver, r.pool) in pools for r in allocation.devices.results):
            allocator.take(key_of(claim.metadata), allocation)
    return allocator


def _devices_in_the_way(row: DeviceRow, pool: PoolRow) -> str:
    """Return the devices in use that draw from the counters of a blocked one."""
    wanted = {consumption.counter_set for consumption in row.device.consumes_counters}
    names = [
        other.device.name
        for other in pool.devices
        if other.holders and any(c.counter_set in wanted for c in other.device.consumes_counters)
    ]
    return ",".join(names) or "an overdrawn pool"


def requested_class(claim: ResourceClaim | None, result_request: str) -> str:
    """Return the class of `request` or `request/subrequest`; empty when the claim is not known."""
    name, _, subrequest = result_request.partition("/")
    for request in claim.spec.devices.requests if claim is not None else ():
        if request.name == name:
            if request.exactly is not None:
                return request.exactly.device_class_name
            return next(
                (sub.device_class_name for sub in request.first_available if sub.name == subrequest), ""
            )
    return ""
