"""Nodes: a silent one is marked, tainted, and its pods are let go; pods of lost nodes are cleaned up.

A node says it is alive by renewing its Lease. When the lease is older than the
grace period its Ready condition becomes Unknown and the taint `unreachable`
(NoExecute) is put on it; a Ready node loses the taints `not-ready` and
`unreachable`. Pods leave after the tolerationSeconds of their toleration for the
taint (by default 300, set at admission); deleting them releases their claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from dray.api.core import Node, Pod, Taint
from dray.api.meta import ObjectMeta, View
from dray.client import Conflict, NotFound, key_of
from dray.client.resources import LEASES, NODES, PODS
from dray.control.reconciling import (
    Caches,
    Clock,
    Controller,
    ignoring_absence,
    parse_rfc3339,
    rfc3339,
    steady_now,
    utc_now,
    wait_until,
)
from dray.scheduler.selecting import tolerates

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
GRACE = timedelta(seconds=40)
LOST_NODE_GRACE = 10.0  # seconds; a node must be gone this long before its pods are


class LeaseSpec(View, frozen=True):
    """When the holder was last heard of."""

    renew_time: str | None = None


class Lease(View, frozen=True):
    """A heartbeat."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


def wanted_taints(node: Node, ready: str) -> list[Taint]:
    """Return the lifecycle taints a node should carry, given its Ready status."""
    taints = []
    if ready == "Unknown":
        taints += [Taint(key=UNREACHABLE, effect=effect) for effect in ("NoSchedule", "NoExecute")]
    elif ready != "True":
        taints += [Taint(key=NOT_READY, effect=effect) for effect in ("NoSchedule", "NoExecute")]
    if node.spec.unschedulable:
        taints.append(Taint(key=UNSCHEDULABLE, effect="NoSchedule"))
    return taints


def merged_taints(node: Node, ready: str, now: datetime) -> list[dict[str, Any]] | None:
    """Return the node's taints with the lifecycle ones corrected, or None when they are right already."""
    ours = {NOT_READY, UNREACHABLE, UNSCHEDULABLE}
    wanted = {(taint.key, taint.effect) for taint in wanted_taints(node, ready)}
    have = {(taint.key, taint.effect) for taint in node.spec.taints if taint.key in ours}
    if wanted == have:
        return None
    merged: list[dict[str, Any]] = []
    for taint in node.spec.taints:
        if taint.key not in ours or (taint.key, taint.effect) in wanted:
            entry: dict[str, Any] = {"key": taint.key, "effect": taint.effect}
            if taint.value:
                entry["value"] = taint.value
            if taint.time_added:
                entry["timeAdded"] = taint.time_added
            merged.append(entry)
    for key, effect in sorted(wanted - have):
        entry = {"key": key, "effect": effect}
        if effect == "NoExecute":
            entry["timeAdded"] = rfc3339(now)
        merged.append(entry)
    return merged


def pod_departure(pod: Pod, taints: Iterable[Taint], now: datetime) -> datetime | None:
    """Return when the pod must leave a node with these NoExecute taints; None: it may stay."""
    earliest: datetime | None = None
    for taint in taints:
        if taint.effect != "NoExecute":
            continue
        added = parse_rfc3339(taint.time_added) if taint.time_added else now
        matching = [toleration for toleration in pod.spec.tolerations if tolerates(toleration, taint)]
        if not matching:
            at = added
        else:
            limits = [
                toleration.toleration_seconds
                for toleration in matching
                if toleration.toleration_seconds is not None
            ]
            if not limits:
                continue
            at = added + timedelta(seconds=max(0, min(limits)))
        earliest = at if earliest is None else min(earliest, at)
    return earliest


class NodeLifecycle(Controller):
    """Watches heartbeats, keeps conditions and taints true, evicts pods from lost nodes."""

    name = "node-lifecycle"

    def __init__(
        self,
        caches: Caches,
        clock: Clock = utc_now,
        grace: timedelta = GRACE,
        lost_node_grace: float = LOST_NODE_GRACE,
    ) -> None:
        super().__init__(caches, clock)
        self.grace = grace
        self.lost_node_grace = lost_node_grace
        self.nodes = caches.of(NODES, Node)
        self.leases = caches.of(LEASES, Lease)
        self.pods = caches.of(PODS, Pod)
        self._pods_by_node: dict[str, set[str]] = {}
        # Steady seconds, so that a wall clock that jumps kills no nodes.
        self._heard: dict[str, float] = {}  # node -> when *we* last saw a new heartbeat
        self._missing_since: dict[str, float] = {}

    def watch(self) -> None:
        """Look at nodes when they, their leases or their pods change."""
        self.nodes.add_handler(self._node_changed)
        self.leases.add_handler(self._lease_changed)
        self.pods.add_handler(self._pod_changed)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        changed = new or old
        assert changed is not None
        name = changed.metadata.name
        if new is None:
            self._heard.pop(name, None)
        elif old is None:
            self._heard.setdefault(name, steady_now())
        self.enqueue(f"node:{name}")

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is None or new.metadata.namespace != "kube-node-lease":
            return
        # Our own clock counts, so that a node whose clock is wrong is not taken for dead.
        if old is None or old.spec.renew_time != new.spec.renew_time:
            self._heard[new.metadata.name] = steady_now()
            node = self.nodes.get(new.metadata.name)
            if node is not None and _ready(node) == "Unknown":
                self.enqueue(f"node:{new.metadata.name}")

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if (
            old is not None
            and old.spec.node_name
            and (new is None or new.spec.node_name != old.spec.node_name)
        ):
            self._pods_by_node.get(old.spec.node_name, set()).discard(key_of(old.metadata))
        if new is not None and new.spec.node_name:
            self._pods_by_node.setdefault(new.spec.node_name, set()).add(key_of(new.metadata))
            if old is None or old.spec.node_name != new.spec.node_name or new.metadata.deletion_timestamp:
                self.enqueue(f"pod:{key_of(new.metadata)}")
        elif new is not None and new.metadata.deletion_timestamp is not None:
            self.enqueue(f"pod:{key_of(new.metadata)}")

    async def reconcile(self, key: str) -> float | None:
        """Look at one node or pod."""
        kind, _, name = key.partition(":")
        return await (self._sync_node(name) if kind == "node" else self._sync_pod(name))

    async def _sync_node(self, name: str) -> float | None:
        node = self.nodes.get(name)
        if node is None:
            for pod_key in list(self._pods_by_node.get(name, ())):
                self.enqueue(f"pod:{pod_key}")
            return None
        now = self.clock()
        quiet = steady_now() - self._heard.setdefault(name, steady_now())
        grace = self.grace.total_seconds()
        ready = _ready(node)
        silent = quiet > grace
        if silent and ready != "Unknown":
            await self._mark_unknown(node, now)
            ready = "Unknown"
        taints = merged_taints(node, ready, now)
        if taints is not None:
            patch = {
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "spec": {"taints": taints or None},
            }
            await ignoring_absence(self.client.patch(NODES, name, patch))
        for pod_key in list(self._pods_by_node.get(name, ())):
            if any(taint.effect == "NoExecute" for taint in node.spec.taints):
                self.enqueue(f"pod:{pod_key}")
        return max(1.0, grace - quiet) if not silent else 5.0

    async def _mark_unknown(self, node: Node, now: datetime) -> None:
        conditions = [
            {
                "type": condition,
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "The node agent stopped posting heartbeats.",
                "lastTransitionTime": rfc3339(now),
            }
            for condition in ("Ready",)
        ]
        patch = {"status": {"conditions": conditions}}
        await ignoring_absence(
            self.client.patch(
                NODES,
                node.metadata.name,
                patch,
                kind="application/strategic-merge-patch+json",
                subresource="status",
            )
        )

    async def _sync_pod(self, key: str) -> float | None:
        pod = self.pods.get(key)
        if pod is None:
            return None
        now = self.clock()
        if not pod.spec.node_name:
            if pod.metadata.deletion_timestamp is not None:
                await self._delete(pod, grace=0)  # never started: nobody else will finish it
            return None
        node = self.nodes.get(pod.spec.node_name)
        if node is None:
            missing = steady_now() - self._missing_since.setdefault(pod.spec.node_name, steady_now())
            if missing < self.lost_node_grace:
                return self.lost_node_grace - missing
            if await ignoring_absence(self.client.get(NODES, pod.spec.node_name, view=Node)) is None:
                await self._fail(pod, "PodGC: node no longer exists")
                await self._delete(pod, grace=0)
            return None
        self._missing_since.pop(pod.spec.node_name, None)
        if pod.metadata.deletion_timestamp is not None:
            if any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints) and _ready(node) != "True":
                await self._delete(pod, grace=0)
            return None
        departure = pod_departure(pod, node.spec.taints, now)
        if departure is None:
            return None
        if departure > now:
            return wait_until(departure, now)
        await self._fail(
            pod, f"Taint manager: deleting because of a taint on node {pod.spec.node_name}", phase=None
        )
        await self._delete(pod)
        return None

    async def _fail(self, pod: Pod, message: str, phase: str | None = "Failed") -> None:
        if pod.status.phase in ("Succeeded", "Failed"):
            return
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByPodGC" if phase else "DeletionByTaintManager",
            "message": message,
            "lastTransitionTime": rfc3339(self.clock()),
        }
        status: dict[str, Any] = {"conditions": [condition]}
        if phase:
            status["phase"] = phase
        meta = pod.metadata
        await ignoring_absence(
            self.client.patch(
                PODS,
                meta.name,
                {"metadata": {"uid": meta.uid}, "status": status},
                meta.namespace,
                kind="application/strategic-merge-patch+json",
                subresource="status",
            )
        )

    async def _delete(self, pod: Pod, grace: int | None = None) -> None:
        try:
            await self.client.delete(
                PODS, pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid, grace_seconds=grace
            )
        except (NotFound, Conflict):
            pass


def _ready(node: Node) -> str:
    return next((condition.status for condition in node.status.conditions if condition.type == "Ready"), "")
