"""Nodes that are kept for pods that wait: being freed for them by preemption, or named by somebody else in their status.

A pod tries the node for which it is nominated first. The others keep off such a node if the nominated pod is at least as important, unless there is room for
both: then what the nominated pods need counts as taken. Devices are not set aside, so where both have claims the node stays closed. Members of one group do
not keep each other away, and a gang gives way to more important pods only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from dray.api.core import Pod
from dray.scheduler.group_keys import group_key
from dray.scheduler.state import ClusterState


@dataclass(frozen=True, slots=True)
class Nomination:
    """A pod that waits, and the node that is kept for it."""

    pod: Pod
    node: str

    @property
    def priority(self) -> int:
        """Return the priority of the pod."""
        return self.pod.spec.priority or 0


Nominations = Mapping[str, Nomination]  # by pod uid


def node_of(nominated: Nominations, state: ClusterState, pod: Pod) -> int:
    """Return the node for which the pod is nominated, as a set; empty when there is none."""
    own = nominated.get(pod.metadata.uid)
    known = state.nodes.get(own.node) if own is not None else None
    return known.bit if known is not None else 0


def kept_from(nominated: Nominations, state: ClusterState, pod: Pod) -> int:
    """Return the nodes that are kept for others, from whom this pod must not take them."""
    nodes = 0
    for each in nominated.values():
        known = state.nodes.get(each.node)
        if known is not None and _gives_way(pod, each):
            nodes |= known.bit
    return nodes


def _gives_way(pod: Pod, nomination: Nomination) -> bool:
    if nomination.pod.metadata.uid == pod.metadata.uid:
        return False
    priority, group = pod.spec.priority or 0, group_key(pod)
    if nomination.priority != priority:
        return nomination.priority > priority
    return not group


def has_claims(pod: Pod) -> bool:
    """Return whether the pod may need devices: it has claims, or resources that devices may provide."""
    return bool(pod.spec.resource_claims) or any(
        "/" in name
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for name in container.resources.requests or {}
    )


def closed_for(nominated: Nominations, state: ClusterState, pod: Pod) -> int:
    """Return the nodes that the pod cannot share with those for whom they are kept: both may need devices."""
    if not has_claims(pod):
        return 0
    nodes = 0
    for each in nominated.values():
        known = state.nodes.get(each.node)
        if known is not None and _gives_way(pod, each) and has_claims(each.pod):
            nodes |= known.bit
    return nodes


@contextmanager
def counted(nominated: Nominations, state: ClusterState, pod: Pod, node: str) -> Iterator[None]:
    """Let the pods for which the node is kept count as if they ran on it."""
    there = [each.pod for each in nominated.values() if each.node == node and _gives_way(pod, each)]
    assumed = [state.assume(each, node) for each in there if each.metadata.uid not in state.pods]
    try:
        yield
    finally:
        for use in reversed(assumed):
            state.forget(use.uid)
