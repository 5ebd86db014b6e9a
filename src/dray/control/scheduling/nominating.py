"""Which nodes are kept for pods that wait: in the snapshot, and in the status of the pods.

A nomination begins with an eviction, or with a status that somebody else has written: a former leader, or a tool that prepares a node. It ends when the pod is
bound or gone, when an attempt fails and nobody is being evicted for it, or when a more important pod gets the node; then the status is cleared, and pods that
kept off the node are tried again.

Our own nominations are known before the server tells of them, so the status of such a pod is not asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from dray.api.core import Pod
from dray.client import STRATEGIC_PATCH, Client, ClientError
from dray.client import resources as kinds
from dray.scheduler import Hint, Nomination, Preemption, QueueingHint

log = logging.getLogger("dray.scheduler")


class Nominator:
    """Keeps the nominations of a snapshot."""

    def __init__(
        self, client: Client, nominated: dict[str, Nomination], wake: Callable[[Hint], None]
    ) -> None:
        self._client = client
        self._nominated = nominated
        self._wake = wake
        self._own: set[str] = set()  # uids of pods for which we evict

    def see(self, pod: Pod) -> None:
        """Take over what the status of a pod says that waits."""
        uid, name = pod.metadata.uid, pod.status.nominated_node_name
        if uid in self._own:
            return
        if name:
            self._nominated[uid] = Nomination(pod, name)
        else:
            self.end(pod)

    def begin(self, plan: Preemption) -> list[Pod]:
        """Keep the nodes of a plan for its pods; return those who lose their nodes by that."""
        nodes = {node: preemptor.spec.priority or 0 for preemptor, node in plan.nominations}
        losers = [
            each.pod
            for each in self._nominated.values()
            if each.node in nodes and each.priority < nodes[each.node]
        ]
        for loser in losers:
            self.end(loser)
        for preemptor, node in plan.nominations:
            self._own.add(preemptor.metadata.uid)
            self._nominated[preemptor.metadata.uid] = Nomination(preemptor, node)
        return losers

    def end(self, pod: Pod) -> bool:
        """Keep the node no longer; return whether one was kept."""
        self._own.discard(pod.metadata.uid)
        if self._nominated.pop(pod.metadata.uid, None) is None:
            return False
        self._wake(QueueingHint.RESOURCES)
        return True

    async def tell(self, nominations: Iterable[tuple[Pod, str | None]]) -> None:
        """Write on pods which node is kept for them, or that none is."""
        for pod, node in nominations:
            path = kinds.PODS.path(pod.metadata.namespace, pod.metadata.name, "status")
            body: dict[str, Any] = {
                "metadata": {"uid": pod.metadata.uid},
                "status": {"nominatedNodeName": node},
            }
            try:
                await self._client.call("PATCH", path, body, content_type=STRATEGIC_PATCH, view=None)
            except ClientError as error:
                log.info("cannot nominate %s for %s: %s", node or "no node", pod.metadata.name, error)
