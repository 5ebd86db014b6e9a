"""What the scheduler sees: informers that feed the pure rooms and wake the queue.

Each handler translates one change on the server into (1) an update of the cluster
state or the devices and (2) the events that may help waiting pods. Handlers run in
the order of the server's changes, and no decision runs in between half an update,
because everything happens in one task's turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dray.allocator import World
from dray.api.core import Namespace, Node, Pod, PodDisruptionBudget, PodGroup
from dray.api.features import Features
from dray.api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceSlice,
)
from dray.client import Client, ClientError, Forbidden, Informer, NotFound, Resource, key_of
from dray.client import resources as kinds
from dray.control.scheduling.rivals import Rivals
from dray.control.scheduling.waiting import BindingWaits
from dray.scheduler import (
    Booking,
    ClusterState,
    Devices,
    ExtendedResources,
    Help,
    Neighbours,
    NotReady,
    SchedulingQueue,
    Wish,
    claim_keys,
    extra_in_status,
    special_owner,
)

log = logging.getLogger("dray.scheduler")

COMPANY_FOR = 60.0  # seconds that we stay careful after another scheduler was seen
MAX_FOREIGN_WISHES = 12  # waiting claims of others to leave room for
FOREIGN_GUESSES = 4  # more of the kind that they allocated last


class Identity(Protocol):
    """What a claim is known by, at one revision; every kind of metadata has it."""

    @property
    def name(self) -> str: ...  # noqa: D102  # as in the API
    @property
    def namespace(self) -> str: ...  # noqa: D102
    @property
    def uid(self) -> str: ...  # noqa: D102
    @property
    def resource_version(self) -> str: ...  # noqa: D102


class Caches:
    """The scheduler's copy of the cluster, and the queue that its changes feed."""

    def __init__(
        self,
        client: Client,
        scheduler_name: str,
        features: Features,
        new_share_id: Callable[[], str],
        waits: BindingWaits,
        is_late: Callable[[], bool] | None = None,  # whether a decision has taken too long
    ) -> None:
        self._client = client
        self.scheduler_name = scheduler_name
        self.is_guarded = False  # `dray guard` judges every allocation: other schedulers need no care
        self.state = ClusterState()
        self.devices = Devices(World(features, new_share_id=new_share_id, is_late=is_late), self.state)
        self.neighbours = Neighbours(self.state, self.namespace_labels)
        self.queue: SchedulingQueue[Pod] = SchedulingQueue()
        self.extended = ExtendedResources()
        self.nominated: dict[
            str, tuple[str, int]
        ] = {}  # pod uid -> (node being cleared for it, its priority)
        self.claims_by_consumer: dict[str, set[str]] = defaultdict(set)  # consumer uid -> claim keys
        self.special_by_pod: dict[str, set[str]] = {}  # pod uid -> keys of claims for its extended resources
        self.bookings: dict[str, Booking] = {}  # claim uid -> allocation in flight
        self.assumed: dict[
            str, str
        ] = {}  # pod uid -> node, from the decision until the server says it is bound
        self.committing: set[str] = set()  # uids of pods whose writes are under way
        self.rivals = Rivals()
        self.waits = waits
        self.elsewhere: dict[
            str, float
        ] = {}  # uids of claims that any other scheduler allocated -> loop time
        self.foreign_claims: set[str] = set()  # of those, what was allocated by schedulers that may not yield
        self.last_foreign = float("-inf")  # loop time of the last such allocation
        self.last_foreign_claim: ResourceClaim | None = None
        self.foreign_pods: dict[str, Pod] = {}  # unbound pods with claims that are not ours to place
        self.waiting_for_claim: dict[str, set[str]] = defaultdict(set)  # claim key -> pod keys
        self.waiting_for_group: dict[str, set[str]] = defaultdict(set)  # group key -> pod keys
        self.on_pod: Callable[[Pod], None] = _ignore  # a pod of ours that may be placed (again)
        self.on_pod_gone: Callable[[Pod], None] = _ignore
        self.on_late_rival: Callable[[str, ResourceClaim], None] = lambda uid, claim: (
            None
        )  # a device given twice
        self.on_wake: Callable[[], None] = _nothing  # some waiting pod may be tried now
        self._seen: dict[str, list[tuple[int, asyncio.Future[bool]]]] = {}  # claim uid -> revision, who waits
        self._left: dict[str, list[asyncio.Future[bool]]] = {}  # pod uid -> who waits for its end

        self.nodes = Informer(client, kinds.NODES, Node)
        self.slices = Informer(client, kinds.SLICES, ResourceSlice)
        self.classes = Informer(client, kinds.DEVICE_CLASSES, DeviceClass)
        self.claims = Informer(client, kinds.CLAIMS, ResourceClaim, keep_raw=True)
        self.pods = Informer(client, kinds.PODS, Pod)
        self.taint_rules = Informer(client, kinds.TAINT_RULES, DeviceTaintRule, optional=True)
        self.budgets = Informer(client, kinds.DISRUPTION_BUDGETS, PodDisruptionBudget, optional=True)
        self.namespaces = Informer(client, kinds.NAMESPACES, Namespace, optional=True)
        self.groups = Informer(client, kinds.POD_GROUPS, PodGroup, optional=True)
        self._in_order: list[Informer[Any]] = [
            self.nodes,
            self.classes,
            self.slices,
            self.taint_rules,
            self.namespaces,
            self.budgets,
            self.groups,
            self.claims,
            self.pods,
        ]

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Fill all caches; hardware first, claims before pods, so that nothing is judged half-known."""
        self.taint_rules.resource = await _served(
            self._client, kinds.TAINT_RULES, "v1", "v1beta2", "v1alpha3"
        )
        self.nodes.add_handler(self._node_changed)
        self.classes.add_handler(self._class_changed)
        self.slices.add_handler(self._slice_changed)
        self.taint_rules.add_handler(self._rule_changed)
        self.groups.add_handler(self._group_changed)
        self.claims.add_handler(self._claim_changed)
        self.pods.add_handler(self._pod_changed)
        for informer in self._in_order:
            tasks.create_task(informer.run(), name=f"informer {informer.resource.plural}")
            await informer.wait_synced()

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Return the labels of a namespace, empty when unknown."""
        found = self.namespaces.get(name)
        return (found.metadata.labels or {}) if found is not None else {}

    def wake(self, wish: Wish) -> None:
        """Tell the queue that something happened that may help, and the loop if it does."""
        if self.queue.wake(wish):
            self.on_wake()

    # --- hardware -------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self.devices.delete_node(old.metadata.name)
            self.state.delete_node(old.metadata.name)
            self.wake(Help.NEIGHBOURS)
            return
        if old is not None and not _node_differs(old, new):
            return  # heartbeats
        self.state.set_node(new)
        self.devices.set_node(new)
        self.wake(Help.NODES)

    def _slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        self.rivals.set_slice(old, new)
        if new is None:
            assert old is not None
            self.devices.delete_slice(old.metadata.name)
        elif old is not None and old.spec == new.spec:
            return
        else:
            self.devices.set_slice(new)
        self.wake(Help.DEVICES)

    def _class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        if new is None:
            assert old is not None
            self.devices.delete_class(old.metadata.name)
            self.extended.delete_class(old.metadata.name)
        else:
            self.devices.set_class(new)
            self.extended.set_class(new)
        self.wake(Help.DEVICES)
        self.wake(Help.NODES)  # what was a resource that no node has may be one that devices provide

    def _rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        if new is None:
            assert old is not None
            self.devices.delete_taint_rule(old.metadata.name)
        elif old is not None and old.spec == new.spec:
            return
        else:
            self.devices.set_taint_rule(new)
        self.wake(Help.DEVICES)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is not None and (old is None or old.spec != new.spec or old.status != new.status):
            self.wake(Help.GROUP)
            for pod_key in self.waiting_for_group.pop(key_of(new.metadata), ()):
                pod = self.pods.get(pod_key)
                if pod is not None:
                    self.on_pod(pod)

    # --- claims ---------------------------------------------------------------

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        self.waits.see(old, new)
        if new is None:
            assert old is not None
            freed = self.devices.delete_claim(old)
            self._note_foreign(old, None)
            self.rivals.set_claim(old, None)
            booking = self.bookings.pop(old.metadata.uid, None)
            if booking is not None:
                booking.cancel()
                freed = True
        else:
            self._note_foreign(old, new)
            freed = self.devices.set_claim(new, old)
            self.rivals.set_claim(old, new)
            if new.status.allocation is not None:
                # The booking in flight and the claim's own would both count: one must go.
                booking = self.bookings.pop(new.metadata.uid, None)
                if booking is not None:
                    freed = freed or not booking.settle(new.status.allocation)
        if freed:
            self.wake(Help.DEVICES)
        claim = new or old
        assert claim is not None
        key = key_of(claim.metadata)
        self._note_consumers(key, old, new)
        self._note_special(key, old, new)
        self._tell_seen(claim, is_gone=new is None)
        self.wake(f"claim:{key}")
        for pod_key in self.waiting_for_claim.pop(key, ()):
            pod = self.pods.get(pod_key)
            if pod is not None:
                self.on_pod(pod)

    def _note_consumers(self, key: str, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        before = old.status.reserved_for if old is not None else []
        after = new.status.reserved_for if new is not None else []
        if before == after:
            return
        for consumer in before:
            keys = self.claims_by_consumer.get(consumer.uid)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self.claims_by_consumer[consumer.uid]
        for consumer in after:
            self.claims_by_consumer[consumer.uid].add(key)

    def _note_special(self, key: str, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        before = special_owner(old) if old is not None else None
        after = special_owner(new) if new is not None else None
        if before == after:
            return
        if before is not None:
            keys = self.special_by_pod[before]
            keys.discard(key)
            if not keys:
                del self.special_by_pod[before]
        if after is not None:
            self.special_by_pod.setdefault(after, set()).add(key)

    def special_claims(self, pod: Pod) -> list[ResourceClaim]:
        """Return the claims that were made for the extended resources of a pod."""
        found = (self.claims.get(key) for key in self.special_by_pod.get(pod.metadata.uid, ()))
        return [claim for claim in found if claim is not None]

    def claims_reserved_for(self, uid: str) -> list[ResourceClaim]:
        """Return the claims that a consumer holds."""
        found = (self.claims.get(key) for key in self.claims_by_consumer.get(uid, ()))
        return [claim for claim in found if claim is not None]

    def rival(self, claim: ResourceClaim, *, later_foreign: bool = False) -> str | None:
        """Return what of the claim's allocation another claim was given first, if anything.

        Call when the informer has seen the claim's own allocation: by then it has seen every
        write that came before, so "no rival" is a fact and not a hope. With `later_foreign`, claims
        of other schedulers count even when they came later: those do not know how to yield.
        """
        return self.rivals.conflict(claim, self.foreign_claims if later_foreign else ())

    def _note_foreign(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Remember claims that other schedulers allocate while we are at work."""
        if new is None or new.status.allocation is None:
            uid = (new or old).metadata.uid  # type: ignore[union-attr]  # one of the two is there
            self.elsewhere.pop(uid, None)
            self.foreign_claims.discard(uid)
            return
        uid, allocation = new.metadata.uid, new.status.allocation
        if old is None or old.status.allocation is not None or uid in self.bookings:
            return
        now = self.elsewhere[uid] = asyncio.get_running_loop().time()
        if self.is_guarded or self._is_by_peer(new):
            return
        self.foreign_claims.add(uid)
        if self.last_foreign == float("-inf"):
            log.warning(
                "another scheduler allocates devices, too (claim %s). If it is not dray's, a device may be given "
                "twice: unlikely, but possible; with `dray guard` and --guarded it is impossible, and faster",
                key_of(new.metadata),
            )
        self.last_foreign = now
        self.last_foreign_claim = new
        for other in self.rivals.others(allocation, uid):
            if other not in self.foreign_claims:
                self.on_late_rival(other, new)

    def _is_by_peer(self, claim: ResourceClaim) -> bool:
        """Whether a claim was allocated by another scheduler of our name: for a pod that is ours to place.

        Such a one follows the same rule as we do. If it came second, it yields: there is no need to wait for it.
        """
        return any(
            pod.spec.scheduler_name == self.scheduler_name
            for consumer in claim.status.reserved_for
            for pod in self.pods_of(consumer, claim.metadata.namespace)
        )

    def pods_of(self, consumer: ResourceClaimConsumerReference, namespace: str) -> list[Pod]:
        """Return the pods that a consumer of a claim stands for: one, or all of a group."""
        if consumer.resource == "pods":
            pod = self.pods.get(f"{namespace}/{consumer.name}")
            return [pod] if pod is not None and pod.metadata.uid == consumer.uid else []
        return [
            pod
            for pod in self.pods.items.values()
            if pod.metadata.namespace == namespace
            and pod.spec.scheduling_group is not None
            and pod.spec.scheduling_group.pod_group_name == consumer.name
        ]

    def seconds_elsewhere(self, claim: ResourceClaim) -> float:
        """How long ago we saw another scheduler allocate the claim; infinite when none did."""
        since = self.elsewhere.get(claim.metadata.uid, float("-inf"))
        return asyncio.get_running_loop().time() - since

    def has_company(self) -> bool:
        """Whether another scheduler is at work on claims, or was lately."""
        return bool(self.foreign_pods) or self.seconds_alone() < COMPANY_FOR

    def seconds_alone(self) -> float:
        """How long ago another scheduler last allocated a claim."""
        return asyncio.get_running_loop().time() - self.last_foreign

    def foreign_wishes(self) -> list[ResourceClaim]:
        """Return claims that other schedulers may be allocating right now, and a few that they may next."""
        found: dict[str, ResourceClaim] = {}
        for pod in self.foreign_pods.values():
            keys = claim_keys(pod)
            for key in () if isinstance(keys, NotReady) else keys:
                claim = self.claims.get(key)
                if claim is not None and claim.status.allocation is None:
                    found[key] = claim
            if len(found) >= MAX_FOREIGN_WISHES:
                break
        guesses = [self.last_foreign_claim] * FOREIGN_GUESSES if self.last_foreign_claim is not None else []
        return [*found.values(), *guesses]

    async def seen(self, meta: Identity, timeout: float) -> bool:
        """Wait until the claim cache has caught up with a write of ours; False when the claim is gone.

        `meta` is the claim as of that write; a namesake does not count.
        """
        known = self.claims.get(f"{meta.namespace}/{meta.name}")
        wanted = int(meta.resource_version)
        if known is not None and known.metadata.uid == meta.uid:
            if int(known.metadata.resource_version) >= wanted:
                return True
        elif self.claims.has_ended(meta.uid):
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._seen.setdefault(meta.uid, []).append((wanted, future))
        async with asyncio.timeout(timeout):
            return await future

    def _tell_seen(self, claim: ResourceClaim, *, is_gone: bool) -> None:
        waiting = self._seen.pop(claim.metadata.uid, None)
        if waiting is None:
            return
        now = int(claim.metadata.resource_version)
        left = []
        for wanted, future in waiting:
            if future.done():
                continue
            if is_gone or now >= wanted:
                future.set_result(not is_gone)
            else:
                left.append((wanted, future))
        if left:
            self._seen[claim.metadata.uid] = left

    # --- pods -----------------------------------------------------------------

    async def something_happened(self, pod: Pod, claim: ResourceClaim, timeout: float) -> bool:
        """Wait until a pod is bound or gone, or a claim of its has changed; False when nothing of that happens."""
        if self.has_left(pod):
            return True
        uid, meta = pod.metadata.uid, claim.metadata
        known = self.claims.get(key_of(meta))
        if known is None or known.metadata.resource_version != meta.resource_version:
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting = self._left.setdefault(uid, [])
        waiting.append(future)
        self._seen.setdefault(meta.uid, []).append((int(meta.resource_version) + 1, future))
        try:
            async with asyncio.timeout(timeout):
                await future
                return True
        except TimeoutError:
            return False  # what is left in `_seen` goes with the claim's next change
        finally:
            waiting.remove(future)
            if not waiting and self._left.get(uid) is waiting:
                del self._left[uid]

    def has_left(self, pod: Pod) -> bool:
        """Whether this very pod is bound or gone, as far as we know."""
        current = self.pods.get(key_of(pod.metadata))
        return current is None or current.metadata.uid != pod.metadata.uid or bool(current.spec.node_name)

    def _tell_left(self, uid: str) -> None:
        for future in self._left.pop(uid, ()):
            if not future.done():
                future.set_result(True)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._note_foreign_pod(old, new)
        if new is None or _is_finished(new):
            pod = new or old
            assert pod is not None
            self._pod_gone(pod)
            return
        if new.spec.node_name:
            self._pod_bound(old, new)
            return
        if new.spec.scheduler_name == self.scheduler_name:
            self.on_pod(new)

    def _note_foreign_pod(self, old: Pod | None, new: Pod | None) -> None:
        if self.is_guarded:
            return
        if new is not None and new.spec.resource_claims and new.spec.scheduler_name != self.scheduler_name:
            if not new.spec.node_name and not new.spec.scheduling_gates and not _is_finished(new):
                self.foreign_pods[key_of(new.metadata)] = new
                return
        pod = new or old
        if pod is not None and self.foreign_pods:
            self.foreign_pods.pop(key_of(pod.metadata), None)

    def _pod_gone(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._tell_left(uid)
        # A pod that is being committed keeps its room until that has ended; `settle` forgets it.
        if uid not in self.committing:
            self.vacate(uid)
        if pod.spec.scheduler_name == self.scheduler_name:
            self.on_pod_gone(pod)

    def vacate(self, uid: str) -> None:
        """Give back the room of a pod."""
        self.assumed.pop(uid, None)
        if self.state.forget(uid) is not None:
            self.wake(Help.ROOM)
            self.wake(Help.NEIGHBOURS)

    def settle(self, pod: Pod, *, is_bound: bool) -> None:
        """A commit has ended; keep the room only of pods that are bound and still there."""
        uid = pod.metadata.uid
        self.committing.discard(uid)
        current = self.pods.get(key_of(pod.metadata))
        is_here = current is not None and current.metadata.uid == uid and not _is_finished(current)
        if not is_here or not (is_bound or (current is not None and current.spec.node_name)):
            self.vacate(uid)

    def _pod_bound(self, old: Pod | None, new: Pod) -> None:
        uid = new.metadata.uid
        known = self.state.pods.get(uid)
        self._tell_left(uid)
        self.assumed.pop(uid, None)
        if known is not None and known.node == new.spec.node_name:
            self.state.refresh(new)
        else:
            self.state.assume(new, new.spec.node_name, extra=extra_in_status(new))
        if old is None or not old.spec.node_name:
            if new.spec.scheduler_name == self.scheduler_name:
                self.on_pod_gone(new)
            self.wake(Help.NEIGHBOURS)


async def _served(client: Client, resource: Resource, *versions: str) -> Resource:
    """Return the resource in the first version that the server has; the first one when it has none."""
    for version in versions:
        while True:
            try:
                await client.list(resource.at(version), limit=1)
                return resource.at(version)
            except (NotFound, Forbidden):
                break
            except ClientError:
                await asyncio.sleep(0.5)  # as everywhere in the caches: a server that is away comes back
    return resource


def _ignore(_: Pod) -> None:
    """Stand in until the loop listens."""


def _nothing() -> None:
    """Stand in until the loop listens."""


def _is_finished(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def _node_differs(old: Node, new: Node) -> bool:
    return (
        old.spec != new.spec
        or old.metadata.labels != new.metadata.labels
        or old.status.allocatable != new.status.allocatable
        or old.status.capacity != new.status.capacity
        or old.status.declared_features != new.status.declared_features
    )
