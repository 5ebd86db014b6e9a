"""The world as the allocator sees it: hardware, classes, nodes, and what is in use.

A `World` is fed with objects as they change and asked for plans. It is not thread
safe and owned by one loop. (Signatures first; the bodies follow module by module.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dray.allocator.answers import Explanation, NodePlans, Plan, Undo, Unsatisfied
from dray.allocator.policies import Policy
from dray.api.core import Node
from dray.api.features import Features
from dray.api.resource import AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice

DEFAULT_BUDGET = 200_000  # search steps per node


class World:
    """Incremental inventory and one ledger; answers plans; owned by one loop, not thread safe."""

    def __init__(
        self, features: Features | None = None, *, new_share_id: Callable[[], str] | None = None
    ) -> None:
        """Start empty. `features` None means the defaults of v1.37.

        `new_share_id` makes the ids of shares of multi-allocatable devices; a world without
        one numbers them deterministically (good for tests and what-if, not for a cluster).
        """
        raise NotImplementedError

    # --- what there is ---------------------------------------------------------

    def set_slice(self, resource_slice: ResourceSlice) -> None:
        """Add or replace a ResourceSlice (by name)."""
        raise NotImplementedError

    def delete_slice(self, name: str) -> None:
        """Forget a ResourceSlice; unknown names are ignored."""
        raise NotImplementedError

    def set_class(self, device_class: DeviceClass) -> None:
        """Add or replace a DeviceClass."""
        raise NotImplementedError

    def delete_class(self, name: str) -> None:
        """Forget a DeviceClass."""
        raise NotImplementedError

    def set_taint_rule(self, rule: DeviceTaintRule) -> None:
        """Add or replace a DeviceTaintRule; its taint joins those in the slices."""
        raise NotImplementedError

    def delete_taint_rule(self, name: str) -> None:
        """Forget a DeviceTaintRule."""
        raise NotImplementedError

    def set_node(self, node: Node) -> None:
        """Add or replace a Node (name, labels, declared features)."""
        raise NotImplementedError

    def delete_node(self, name: str) -> None:
        """Forget a Node."""
        raise NotImplementedError

    # --- what is in use --------------------------------------------------------

    def set_claim(self, claim: ResourceClaim) -> None:
        """Book the allocation in the claim's status (keyed by uid); no-op when it did not change."""
        raise NotImplementedError

    def delete_claim(self, uid: str) -> None:
        """Unbook a claim."""
        raise NotImplementedError

    def take(self, owner: str, allocation: AllocationResult) -> Undo:
        """Book an in-flight allocation until the returned undo is called (calling twice is harmless).

        When the claim comes back allocated through `set_claim` under the uid `owner`, both
        bookings stand until the undo is called: confirm by `set_claim` first, then undo.
        """
        raise NotImplementedError

    # --- questions -------------------------------------------------------------

    def plan(
        self,
        node: str,
        claims: Sequence[ResourceClaim],
        *,
        budget: int = DEFAULT_BUDGET,
        policy: Policy | None = None,
    ) -> Plan | Unsatisfied:
        """Allocate all claims on one node, or none.

        Raises AllocationError where no node can help; never for lack of devices. The
        claims' own status is not looked at: pass only claims without an allocation.
        """
        raise NotImplementedError

    def plan_nodes(
        self,
        claims: Sequence[ResourceClaim],
        nodes: Iterable[str] | None = None,
        *,
        first: int | None = None,
        budget: int = DEFAULT_BUDGET,
        policy: Policy | None = None,
    ) -> NodePlans:
        """Allocate on each of many nodes (None: all known), equal nodes sharing one search.

        With `first`, stop after so many feasible nodes. Raises AllocationError as `plan`.
        """
        raise NotImplementedError

    def explain(self, claims: Sequence[ResourceClaim], nodes: Iterable[str] | None = None) -> Explanation:
        """Say where the claims fit and, per request, why not elsewhere; never raises AllocationError."""
        raise NotImplementedError
