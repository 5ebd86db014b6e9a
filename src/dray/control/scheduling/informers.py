"""The edge of the scheduler: informers that keep its snapshot up to date and wake waiting pods.

Each handler translates one change on the server into (1) an update of the snapshot and (2) the events that may help waiting
pods. Handlers run in the order of the server's changes, and no decision runs in between half an update, because
everything happens in one task's turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dray.api.core import Namespace, Node, Pod, PodDisruptionBudget, PodGroup
from dray.api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceSlice,
)
from dray.api.well_known import TERMINAL_PHASES
from dray.client import Client, Informer, key_of
from dray.client import resources as kinds
from dray.control.scheduling.selecting_informers import SelectingInformers
from dray.control.scheduling.storage_informers import StorageInformers
from dray.control.scheduling.waiting import BindingWaits
from dray.scheduler import ClusterSnapshot, Hint, QueueingHint, SchedulerProfile, SchedulingQueue
from dray.scheduler.volumes import VOLUMES

log = logging.getLogger("dray.scheduler")


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


class Informers:
    """Follows the cluster; feeds the snapshot and the queue."""

    def __init__(
        self,
        client: Client,
        scheduler_name: str,
        profile: SchedulerProfile,
        new_share_id: Callable[[], str],
        waits: BindingWaits,
        is_late: Callable[[], bool] | None = None,  # whether a decision has taken too long
    ) -> None:
        self.scheduler_name = scheduler_name
        self.waits = waits
        self.snapshot = ClusterSnapshot(
            profile,
            new_share_id=new_share_id,
            is_late=is_late,
            namespace_labels=self.namespace_labels,
            seconds_allocated=waits.seconds,
        )
        self.queue: SchedulingQueue[Pod] = SchedulingQueue()
        self.assumed: set[str] = set()  # uids of pods, from the decision until the server says they are bound
        self.committing: set[str] = set()  # uids of pods whose writes are under way
        self.waiting_for_claim: dict[str, set[str]] = defaultdict(set)  # claim key -> pod keys
        self.waiting_for_group: dict[str, set[str]] = defaultdict(set)  # group key -> pod keys
        self.on_pod: Callable[[Pod], None] = _ignore  # a pod of ours that may be placed (again)
        self.on_pod_gone: Callable[[Pod], None] = _ignore
        self.on_group_gone: Callable[[str], None] = lambda _: None  # key of a PodGroup that was deleted
        self.on_bound: Callable[[Pod], None] = _ignore  # a pod of ours that has its node, new or changed
        self.on_any_pod: Callable[[Pod], None] = (
            _ignore  # every pod that is new or changed, whoever schedules it
        )
        self.on_wake: Callable[[], None] = _nothing  # some waiting pod may be tried now
        self._seen: dict[str, list[tuple[int, asyncio.Future[bool]]]] = {}  # claim uid -> revision, who waits

        self.selecting = SelectingInformers(client, self.snapshot.selecting)
        self.storage = StorageInformers(client, self.snapshot.volumes, self.wake)
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
            *self.selecting.in_order,
            self.pods,
        ]

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """List everything; hardware first, claims before pods, so that nothing is judged half-known."""
        self.nodes.add_handler(self._node_changed)
        self.budgets.add_handler(self._budget_changed)
        self.classes.add_handler(self._class_changed)
        self.slices.add_handler(self._slice_changed)
        self.taint_rules.add_handler(self._rule_changed)
        self.groups.add_handler(self._group_changed)
        self.claims.add_handler(self._claim_changed)
        self.pods.add_handler(self._pod_changed)
        self.storage.start(tasks)
        for informer in self._in_order:
            tasks.create_task(informer.run(), name=f"informer {informer.resource.plural}")
            await informer.wait_synced()

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Return the labels of a namespace, empty when unknown."""
        found = self.namespaces.get(name)
        return (found.metadata.labels or {}) if found is not None else {}

    def wake(self, hint: Hint) -> None:
        """Tell the queue that something happened that may help, and the loop if it does."""
        if self.queue.wake(hint):
            self.on_wake()

    # --- hardware -------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self.snapshot.delete_node(old.metadata.name)
            self.wake(QueueingHint.AFFINITY)
            return
        if old is not None and not _node_differs(old, new):
            if old.status.images != new.status.images:
                self.snapshot.set_node(new)  # a preference: no pod waits for it
            return  # else: heartbeats
        self.snapshot.set_node(new)
        self.wake(QueueingHint.NODES)

    def _slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        if new is None:
            assert old is not None
            self.snapshot.delete_slice(old.metadata.name)
        elif old is not None and old.spec == new.spec:
            return
        else:
            self.snapshot.set_slice(new)
        self.wake(QueueingHint.DEVICES)

    def _class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        if new is None:
            assert old is not None
            self.snapshot.delete_class(old.metadata.name)
        else:
            self.snapshot.set_class(new)
        self.wake(QueueingHint.DEVICES)
        self.wake(QueueingHint.NODES)  # what was a resource that no node has may be one that devices provide

    def _rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        if new is None:
            assert old is not None
            self.snapshot.delete_taint_rule(old.metadata.name)
        elif old is not None and old.spec == new.spec:
            return
        else:
            self.snapshot.set_taint_rule(new)
        self.wake(QueueingHint.DEVICES)

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        if new is not None:
            self.snapshot.budgets[key_of(new.metadata)] = new
        elif old is not None:
            self.snapshot.budgets.pop(key_of(old.metadata), None)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None:
            assert old is not None
            self.snapshot.groups.pop(key_of(old.metadata), None)
            self.on_group_gone(key_of(old.metadata))
            return
        self.snapshot.groups[key_of(new.metadata)] = new
        if old is None or old.spec != new.spec or old.status != new.status:
            self.wake(QueueingHint.GROUP)
            for pod_key in self.waiting_for_group.pop(key_of(new.metadata), ()):
                pod = self.pods.get(pod_key)
                if pod is not None:
                    self.on_pod(pod)

    # --- claims ---------------------------------------------------------------

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        self.waits.see(old, new)
        claim = new or old
        assert claim is not None
        key = key_of(claim.metadata)
        if self.snapshot.set_claim(new) if new is not None else self.snapshot.delete_claim(key):
            self.wake(QueueingHint.DEVICES)
        self._notify_seen(claim, is_gone=new is None)
        self.wake(f"claim:{key}")
        for pod_key in self.waiting_for_claim.pop(key, ()):
            pod = self.pods.get(pod_key)
            if pod is not None:
                self.on_pod(pod)

    def conflict(self, claim: ResourceClaim) -> str | None:
        """Return why the claim may not keep its allocation beside earlier ones; None when it may.

        Call when the informer has seen the claim's own allocation: by then it has seen every write that came before.
        """
        return self.snapshot.verifier.conflict(claim)

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

    def _notify_seen(self, claim: ResourceClaim, *, is_gone: bool) -> None:
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

    def has_left(self, pod: Pod) -> bool:
        """Return whether this very pod is bound or gone, as far as we know."""
        current = self.pods.get(key_of(pod.metadata))
        return current is None or current.metadata.uid != pod.metadata.uid or bool(current.spec.node_name)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or is_finished(new):
            pod = new or old
            assert pod is not None
            self._pod_gone(pod)
            return
        self.on_any_pod(new)
        if new.spec.node_name:
            self._pod_bound(old, new)
            return
        if new.spec.scheduler_name == self.scheduler_name:
            self.on_pod(new)

    def _pod_gone(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        # A pod that is being committed keeps its node until that has ended; `settle` forgets it.
        if uid not in self.committing:
            self.vacate(uid)
        if pod.spec.scheduler_name == self.scheduler_name:
            self.on_pod_gone(pod)

    def vacate(self, uid: str) -> None:
        """Release what a pod occupies on its node."""
        self.assumed.discard(uid)
        if self.snapshot.forget_pod(uid):
            self.wake(QueueingHint.RESOURCES)
            self.wake(QueueingHint.AFFINITY)

    def settle(self, pod: Pod, *, is_bound: bool) -> None:
        """A commit has ended; keep on their nodes only pods that are bound and still there."""
        uid = pod.metadata.uid
        self.committing.discard(uid)
        if self.snapshot.volumes.release(uid) and not is_bound:
            self.wake(VOLUMES)
        current = self.pods.get(key_of(pod.metadata))
        is_here = current is not None and current.metadata.uid == uid and not is_finished(current)
        if not is_here or not (is_bound or (current is not None and current.spec.node_name)):
            self.vacate(uid)

    def _pod_bound(self, old: Pod | None, new: Pod) -> None:
        self.assumed.discard(new.metadata.uid)
        if new.spec.scheduler_name == self.scheduler_name:
            self.on_bound(new)
        if self.snapshot.set_bound_pod(new):
            self.wake(QueueingHint.RESOURCES)  # it was resized, and leaves more to others
        if old is None or not old.spec.node_name:
            if new.spec.scheduler_name == self.scheduler_name:
                self.on_pod_gone(new)
            self.wake(QueueingHint.AFFINITY)
        elif old.metadata.labels != new.metadata.labels or (
            old.metadata.deletion_timestamp is None and new.metadata.deletion_timestamp is not None
        ):
            self.wake(
                QueueingHint.AFFINITY
            )  # rules look at labels, and a pod that ends is not spread any more


def _ignore(_: Pod) -> None:
    """Stand in until the loop listens."""


def _nothing() -> None:
    """Stand in until the loop listens."""


def is_finished(pod: Pod) -> bool:
    """Return whether the pod has ended: it holds nothing of its node."""
    return pod.status.phase in TERMINAL_PHASES


def _node_differs(old: Node, new: Node) -> bool:
    return (
        old.spec != new.spec
        or old.metadata.labels != new.metadata.labels
        or old.status.allocatable != new.status.allocatable
        or old.status.capacity != new.status.capacity
        or old.status.declared_features != new.status.declared_features
    )
