"""The alternatives of one pod, when what it asks for depends on the node.

Most pods have one alternative: their shape and their claims, anywhere. A pod with extended resources has one for each kind
of node, because a device plugin serves it on some and devices, through a claim, on the others (see `extended`). They are
tried in their order; the first that leads to a node is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dray.api.core import ContainerExtendedResourceRequest, Pod
from dray.scheduler.claims import PodClaims
from dray.scheduler.outcomes import Placement, Unplaceable
from dray.scheduler.placing import Placer
from dray.scheduler.queue import QueueingHint
from dray.scheduler.shape import PodShape


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """What the pod demands on some of the nodes."""

    shape: PodShape
    claims: PodClaims
    nodes: int | None = None  # a set; None means: all
    mappings: tuple[ContainerExtendedResourceRequest, ...] = ()  # of the claim for extended resources


def place_by_alternatives(
    placer: Placer,
    pod: Pod,
    alternatives: Sequence[Alternative],
    adapt: Callable[[PodClaims], PodClaims] = lambda claims: claims,
) -> tuple[Alternative, Placement] | Unplaceable:
    """Place the pod by the first alternative that works; `adapt` says what has become of its claims meanwhile."""
    refusals: list[Unplaceable] = []
    for alternative in alternatives:
        answer = placer.place(pod, alternative.shape, adapt(alternative.claims), within=alternative.nodes)
        if isinstance(answer, Placement):
            return alternative, answer
        refusals.append(answer)
    if len(refusals) == 1:
        return refusals[0]
    if not refusals:
        return Unplaceable(frozenset({QueueingHint.NODES}), lambda: "0/0 nodes: the cluster has no nodes")
    return Unplaceable(
        frozenset().union(*(each.hints for each in refusals)),
        lambda: "; ".join(each.explain() for each in refusals),
        stages=refusals[-1].stages,
        is_fatal=all(each.is_fatal for each in refusals),
        gave_up=any(each.gave_up for each in refusals),
    )
