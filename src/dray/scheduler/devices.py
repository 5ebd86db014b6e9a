"""Where claims fit, remembering where they did not.

A thin layer over the allocator's `Allocator`. Taking a device can only make things
worse for others, so a refusal stays true until something is *freed* or published on
that node. For each equivalence class of claims (equal specs) we keep the set of nodes known to
refuse them; an event clears the bits of just those nodes it can help. The last free
device of 5,000 nodes is then found by asking one node, not 5,000.

Invariant: a bit in a refusal set means `Allocator.plan` would refuse that node now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from dray.allocator import AllocationError, Allocator, NodePlans, PendingWork, Plan, Policy, Undo
from dray.api.caching import BoundedMap
from dray.api.core import Node
from dray.api.resource import (
    AllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceTaintRule,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from dray.scheduler.state import ClusterState, NodeState

_encode = msgspec.json.Encoder(order="deterministic").encode
_MAX_KINDS = 64

Pool = tuple[str, str]  # driver, pool name


def claims_equivalence_key(claims: Sequence[ResourceClaim]) -> bytes:
    """Return a key that is equal for claims which ask for the same."""
    return b"\n".join(_encode(claim.spec) for claim in claims)


@dataclass(slots=True, eq=False)
class _Refusals:
    nodes: int = 0  # bit set of nodes known to refuse


@dataclass(slots=True, eq=False)
class _Reach:
    """Which nodes a pool's devices can serve: named ones, or possibly any."""

    node_by_slice: dict[str, str | None] = field(default_factory=dict)

    @property
    def nodes(self) -> set[str] | None:
        names = set(self.node_by_slice.values())
        return None if None in names else {name for name in names if name is not None}


class Reservation:
    """An allocation that is being written; end it with exactly one of the two."""

    __slots__ = ("_devices", "_undo", "allocation")

    def __init__(self, devices: Devices, allocation: AllocationResult, undo: Undo) -> None:
        self._devices, self.allocation, self._undo = devices, allocation, undo

    def settle(self, allocation: AllocationResult) -> bool:
        """The claim came back allocated: its own reservation stands in. Returns whether it is the expected one."""
        if allocation.devices.results == self.allocation.devices.results:
            self._undo()
            return True
        self.cancel()
        return False

    def cancel(self) -> None:
        """The plan was thrown away: the devices are free again."""
        self._undo()
        self._devices.freed(self.allocation)


class Devices:
    """The device side of placing: hardware, reservations, plans."""

    def __init__(self, allocator: Allocator, state: ClusterState) -> None:
        self.allocator = allocator
        self._state = state
        self._refusals: BoundedMap[bytes, _Refusals] = BoundedMap(_MAX_KINDS)
        self._reach: dict[Pool, _Reach] = {}
        self._pool_by_slice: dict[str, Pool] = {}
        self.gave_up = (
            False  # whether the last question was cut short on some node: for lack of time, not of devices
        )
        self.asked = 0  # nodes for which the allocator was asked; for tests of work done

    # --- what there is --------------------------------------------------------

    def set_slice(self, resource_slice: ResourceSlice) -> None:
        """Publish devices; the nodes of the pool may fit again."""
        self.allocator.set_slice(resource_slice)
        name, spec = resource_slice.metadata.name, resource_slice.spec
        pool = (spec.driver, spec.pool.name)
        before = self._pool_by_slice.get(name)
        if before is not None and before != pool:
            self.delete_slice(name)
            self.allocator.set_slice(resource_slice)
        self._pool_by_slice[name] = pool
        self._reach.setdefault(pool, _Reach()).node_by_slice[name] = spec.node_name or None
        self._forget_refusals(pool)

    def delete_slice(self, name: str) -> None:
        """Remove the devices of a slice. A pool can become whole by losing an obsolete slice, so nodes may fit again."""
        self.allocator.delete_slice(name)
        pool = self._pool_by_slice.pop(name, None)
        if pool is not None:
            self._forget_refusals(pool)
            reach = self._reach[pool]
            reach.node_by_slice.pop(name, None)
            if not reach.node_by_slice:
                del self._reach[pool]

    def set_class(self, device_class: DeviceClass) -> None:
        """Offer a class."""
        self.allocator.set_class(device_class)
        self.forget_all_refusals()

    def delete_class(self, name: str) -> None:
        """Remove a class."""
        self.allocator.delete_class(name)
        self.forget_all_refusals()

    def set_taint_rule(self, rule: DeviceTaintRule) -> None:
        """Taint devices (or other ones than before)."""
        self.allocator.set_taint_rule(rule)
        self.forget_all_refusals()

    def delete_taint_rule(self, name: str) -> None:
        """Take a taint away."""
        self.allocator.delete_taint_rule(name)
        self.forget_all_refusals()

    def set_node(self, node: Node) -> None:
        """Know a node; call after ClusterState.set_node."""
        self.allocator.set_node(node)
        self._forget_refusals_on(node.metadata.name)

    def delete_node(self, name: str) -> None:
        """Forget a node; call before ClusterState.delete_node, because its bit is given to another."""
        self.allocator.delete_node(name)
        self._forget_refusals_on(name)

    # --- what is in use -------------------------------------------------------

    def set_claim(self, claim: ResourceClaim, before: ResourceClaim | None) -> bool:
        """Enter what the claim holds; return whether devices were freed."""
        self.allocator.set_claim(claim)
        old = before.status.allocation if before is not None else None
        if old is None or old == claim.status.allocation:
            return False
        self.freed(old)
        return True

    def delete_claim(self, claim: ResourceClaim) -> bool:
        """Unbook a claim; return whether devices were freed."""
        self.allocator.delete_claim(claim.metadata.uid)
        if claim.status.allocation is None:
            return False
        self.freed(claim.status.allocation)
        return True

    def take(self, owner: str, allocation: AllocationResult) -> Reservation:
        """Reserve an allocation that is being written, until it is confirmed or cancelled; `owner` is the holder's name."""
        return Reservation(self, allocation, self.allocator.take(owner, allocation))

    def freed(self, allocation: AllocationResult) -> None:
        """Expect the nodes that these devices serve to fit again."""
        for pool in {(result.driver, result.pool) for result in allocation.devices.results}:
            self._forget_refusals(pool)

    # --- forgetting refusals --------------------------------------------------

    def _forget_refusals(self, pool: Pool) -> None:
        reach = self._reach.get(pool)
        nodes = reach.nodes if reach is not None else set()
        if nodes is None:
            self.forget_all_refusals()
            return
        bits = 0
        for name in nodes:
            known = self._state.nodes.get(name)
            if known is not None:
                bits |= known.bit
        self._clear(bits)

    def _forget_refusals_on(self, node: str) -> None:
        known = self._state.nodes.get(node)
        if known is not None:
            self._clear(known.bit)

    def _clear(self, bits: int) -> None:
        for refusals in self._refusals.values():
            refusals.nodes &= ~bits

    def forget_all_refusals(self) -> None:
        """Forget all refusals."""
        self._refusals.clear()

    # --- questions ------------------------------------------------------------

    def refusing(self, kind: bytes) -> int:
        """Return the nodes known to refuse claims of this kind."""
        found = self._refusals.get(kind)
        return found.nodes if found else 0

    def plans(
        self,
        claims: Sequence[ResourceClaim],
        kind: bytes,
        nodes: int,
        start: int,
        *,
        first: int,
        policy: Policy | None = None,
    ) -> tuple[Plan, ...]:
        """Plan the claims on up to `first` nodes of the set; refusals are remembered.

        Raises AllocationError where no node can help.
        """
        refusals = self._refusals.use(kind)
        if refusals is None:
            refusals = self._refusals[kind] = _Refusals()
        candidates = nodes & ~refusals.nodes
        self.gave_up = False
        if not candidates:
            return ()
        answer: NodePlans = self.allocator.plan_nodes(
            claims, self._names(candidates, start), first=first, policy=policy
        )
        refused = 0
        for name in answer.refusals:  # names only: the refusals themselves are made when looked at
            refused |= self._state.nodes[name].bit
        for name in answer.gave_up:
            refused &= ~self._state.nodes[name].bit
        refusals.nodes |= refused
        self.gave_up = bool(answer.gave_up)
        return answer.plans

    def warm(self, names: Sequence[str], device_classes: Sequence[str]) -> None:
        """Let the allocator take in the devices of some nodes before a pod has to wait for that."""
        for device_class in device_classes:
            exactly = ExactDeviceRequest(
                device_class_name=device_class, allocation_mode="ExactCount", count=1
            )
            spec = ResourceClaimSpec(
                devices=DeviceClaim(requests=[DeviceRequest(name="warm", exactly=exactly)])
            )
            try:
                self.allocator.plan_nodes([ResourceClaim(spec=spec)], names)
            except (AllocationError, PendingWork):
                continue  # a broken class is reported to those who use it, and a slow one waits for them

    def _names(self, nodes: int, start: int) -> Iterator[str]:
        node: NodeState
        for node in self._state.in_set(nodes, start):
            self.asked += 1
            yield node.name
