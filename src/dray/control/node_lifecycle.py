"""Nodes: a silent one is marked and tainted, its pods are evicted; pods of lost nodes are cleaned up.

A node shows that it works by renewing its Lease. When no renewal is seen for the
grace period its Ready condition becomes Unknown and the taint `unreachable`
(NoExecute) is put on it; a Ready node loses the taints `not-ready` and
`unreachable`. Pods leave after the tolerationSeconds of their toleration for the
taint (by default 300, set at admission); deleting them releases their claims.

The grace period is counted in seconds during which the API server answered, asked
every `period`; see `node_health`. Before a node is marked or a pod is evicted, the
lease or the node is read again from the server: a cache may be late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dray.api.core import Lease, Node, Pod, Taint
from dray.api.media_types import STRATEGIC_PATCH
from dray.api.times import format_time, parse_time
from dray.api.tolerations import tolerates
from dray.api.well_known import (
    NOT_READY_KEY,
    REGION_LABEL,
    TERMINAL_PHASES,
    UNREACHABLE_KEY,
    UNSCHEDULABLE_KEY,
    ZONE_LABEL,
)
from dray.client import ClientError, Conflict, NotFound, key_of
from dray.client.resources import LEASES, NODES, PODS
from dray.control.node_leases import Disruption, NodeState, NoExecute, ServerAvailability
from dray.control.reconcile_loop import (
    Caches,
    Clock,
    Controller,
    ignoring_absence,
    steady_now,
    wait_until,
)
from dray.host.clock import utc_now

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
LEASE_NAMESPACE = "kube-node-lease"
LOST_NODE_GRACE = 10.0  # seconds; a node must be gone this long before its pods are
_LATE = 0.75  # part of the grace period; leases are renewed every fifth of it
MONITOR = "monitor"  # the key of the round that looks at the server and at all nodes
_ZONE_LABELS = (REGION_LABEL, ZONE_LABEL)

log = logging.getLogger("dray.control")


@dataclass(frozen=True, slots=True)
class NodeMonitoring:
    """How patient the controller is; the defaults are kube-controller-manager's."""

    grace: float = 50.0  # seconds without a renewed lease after which a node has failed
    period: float = 5.0  # seconds between two looks at the server

    @property
    def longest_step(self) -> float:
        """Longest time between two answers of the server that still counts as uninterrupted."""
        return 2 * self.period

    @property
    def settling(self) -> float:
        """Seconds after an interruption during which no pod is evicted: nodes must get a chance to report."""
        return 3 * self.period


def wanted_taints(node: Node, ready: str, no_execute: NoExecute = NoExecute.ADD) -> list[Taint]:
    """Return the lifecycle taints a node should carry, given its Ready status."""
    taints = []
    if ready != "True":
        key = UNREACHABLE_KEY if ready == "Unknown" else NOT_READY_KEY
        taints.append(Taint(key=key, effect="NoSchedule"))
        # A node that goes from not-ready to unreachable keeps being evicted.
        is_evicting = any(
            taint.key in (UNREACHABLE_KEY, NOT_READY_KEY) and taint.effect == "NoExecute"
            for taint in node.spec.taints
        )
        if no_execute is NoExecute.ADD or (no_execute is NoExecute.KEEP and is_evicting):
            taints.append(Taint(key=key, effect="NoExecute"))
    if node.spec.unschedulable:
        taints.append(Taint(key=UNSCHEDULABLE_KEY, effect="NoSchedule"))
    return taints


def merged_taints(
    node: Node, ready: str, now: datetime, no_execute: NoExecute = NoExecute.ADD
) -> list[dict[str, Any]] | None:
    """Return the node's taints with the lifecycle ones corrected, or None when they are right already."""
    ours = {NOT_READY_KEY, UNREACHABLE_KEY, UNSCHEDULABLE_KEY}
    wanted = {(taint.key, taint.effect) for taint in wanted_taints(node, ready, no_execute)}
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
            entry["timeAdded"] = format_time(now)
        merged.append(entry)
    return merged


def pod_departure(pod: Pod, taints: Iterable[Taint], now: datetime) -> datetime | None:
    """Return when the pod must leave a node with these NoExecute taints; None: it may stay."""
    earliest: datetime | None = None
    for taint in taints:
        if taint.effect != "NoExecute":
            continue
        added = parse_time(taint.time_added) if taint.time_added else now
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
        monitoring: NodeMonitoring | None = None,
        lost_node_grace: float = LOST_NODE_GRACE,
    ) -> None:
        super().__init__(caches, clock)
        self.monitoring = monitoring or NodeMonitoring()
        self.availability = ServerAvailability(self.monitoring.longest_step)
        self.lost_node_grace = lost_node_grace
        self.nodes = caches.of(NODES, Node)
        self.leases = caches.of(LEASES, Lease)
        self.pods = caches.of(PODS, Pod)
        self._pods_by_node: dict[str, set[str]] = {}
        self._heard: dict[str, float] = {}  # node -> seconds of availability when a renewal was last seen
        self._disruption = Disruption()
        self._tainted_at: dict[str, float] = {}  # zone -> steady seconds of its last NoExecute taint
        self._missing_since: dict[str, float] = {}

    def watch(self) -> None:
        """Look at nodes when they, their leases or their pods change."""
        self.nodes.add_handler(self._node_changed)
        self.leases.add_handler(self._lease_changed)
        self.pods.add_handler(self._pod_changed)
        self.enqueue(MONITOR)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        changed = new or old
        assert changed is not None
        name = changed.metadata.name
        if new is None:
            self._heard.pop(name, None)
        elif old is None:
            self._heard.setdefault(name, self._available())
        self.enqueue(f"node:{name}")

    def _available(self) -> float:
        return self.availability.seconds(steady_now())

    def _silence(self, name: str) -> float:
        """Return for how long a renewal of the node's lease would have been seen, but was not."""
        available = self._available()
        return available - self._heard.setdefault(name, available)

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is None or new.metadata.namespace != LEASE_NAMESPACE:
            return
        # Our own clock counts, so that a node whose clock is wrong is not taken for dead.
        if old is None or old.spec.renew_time != new.spec.renew_time:
            self._heard[new.metadata.name] = self._available()
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
        """Look at the server, at one node or at one pod."""
        if key == MONITOR:
            return await self._monitor()
        kind, _, name = key.partition(":")
        return await (self._sync_node(name) if kind == "node" else self._sync_pod(name))

    async def _monitor(self) -> float:
        """Note whether the server answers, and how many nodes are healthy."""
        period = self.monitoring.period
        try:
            async with asyncio.timeout(self.monitoring.longest_step):
                await self.client.list_page(LEASES, LEASE_NAMESPACE, limit=1)
        except (ClientError, TimeoutError) as error:
            log.warning("the API server does not answer, no node is judged: %s", error)
            return period
        self.availability.note_answer(steady_now())
        was_total = self._disruption.is_total
        self._disruption = Disruption(
            NodeState(_zone(node), _ready(node) == "True" and not self._is_late(name))
            for name, node in self.nodes.items.items()
        )
        if self._disruption.is_total != was_total:
            log.warning(
                "no node is healthy: no pod is evicted"
                if not was_total
                else "nodes are healthy again: pods may be evicted"
            )
            if was_total:
                # All were silent together; who is still silent now gets the whole grace period.
                self._heard = dict.fromkeys(self._heard, self._available())
            for name in self.nodes.items:
                self.enqueue(f"node:{name}")
        return period

    def _is_late(self, name: str) -> bool:
        """Return whether several renewals are missing: not healthy, when it is counted who is.

        Nodes that stop together renewed their leases at different moments; the first of them must not be
        evicted because the others seem well for some seconds more.
        """
        return self._silence(name) > _LATE * self.monitoring.grace

    def _is_silent(self, name: str) -> bool:
        return self._silence(name) > self.monitoring.grace

    async def _sync_node(self, name: str) -> float | None:
        node = self.nodes.get(name)
        if node is None:
            for pod_key in list(self._pods_by_node.get(name, ())):
                self.enqueue(f"pod:{pod_key}")
            return None
        now = self.clock()
        ready = _ready(node)
        if ready != "Unknown" and self._is_silent(name) and not await self._has_renewed(name):
            await self._mark_unknown(node, now)
            ready = "Unknown"
        zone = _zone(node)
        since_last = steady_now() - self._tainted_at.get(zone, float("-inf"))
        taints = merged_taints(node, ready, now, self._disruption.no_execute(zone, since_last))
        if taints is not None:
            patch = {
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "spec": {"taints": taints or None},
            }
            await ignoring_absence(self.client.patch(NODES, name, patch))
            if any(taint["effect"] == "NoExecute" for taint in taints):
                self._tainted_at[zone] = steady_now()
        for pod_key in list(self._pods_by_node.get(name, ())):
            if any(taint.effect == "NoExecute" for taint in node.spec.taints):
                self.enqueue(f"pod:{pod_key}")
        if ready != "True" or self._is_silent(name):
            return self.monitoring.period
        return max(min(1.0, self.monitoring.period), self.monitoring.grace - self._silence(name))

    async def _has_renewed(self, name: str) -> bool:
        """Read the node's lease from the server: the cache may be late."""
        lease = await ignoring_absence(self.client.get(LEASES, name, LEASE_NAMESPACE, view=Lease))
        cached = self.leases.get(f"{LEASE_NAMESPACE}/{name}")
        if lease is None or (cached is not None and lease.spec.renew_time == cached.spec.renew_time):
            return False
        self._heard[name] = self._available()
        return True

    async def _mark_unknown(self, node: Node, now: datetime) -> None:
        conditions = [
            {
                "type": condition,
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "The node agent stopped posting heartbeats.",
                "lastTransitionTime": format_time(now),
            }
            for condition in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
        ]
        patch = {"status": {"conditions": conditions}}
        await ignoring_absence(
            self.client.patch(
                NODES,
                node.metadata.name,
                patch,
                kind=STRATEGIC_PATCH,
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
        settled = self.availability.uninterrupted(steady_now())
        if settled < self.monitoring.settling:
            return max(self.monitoring.period, self.monitoring.settling - settled)
        fresh = await ignoring_absence(self.client.get(NODES, pod.spec.node_name, view=Node))
        still = pod_departure(pod, fresh.spec.taints, now) if fresh is not None else None
        if still is None or still > now:
            return self.monitoring.period  # the cache is late: look again when it has caught up
        await self._fail(
            pod, f"Taint manager: deleting because of a taint on node {pod.spec.node_name}", phase=None
        )
        await self._delete(pod)
        return None

    async def _fail(self, pod: Pod, message: str, phase: str | None = "Failed") -> None:
        if pod.status.phase in TERMINAL_PHASES:
            return
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByPodGC" if phase else "DeletionByTaintManager",
            "message": message,
            "lastTransitionTime": format_time(self.clock()),
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
                kind=STRATEGIC_PATCH,
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


def _zone(node: Node) -> str:
    labels = node.metadata.labels or {}
    return "/".join(labels.get(label, "") for label in _ZONE_LABELS)
