"""Why, in one line, no node takes a pod: the counts per reason, the most common first.

    0/500 nodes: 480 have no device that matches "…productName == 'H200'" (found "H100");
    20 have all 8 matching devices in use (e.g. by default/train-7)

Each node is counted once, under the first rule that it fails, in the order in which
the rules are applied; so the counts add up to the number of nodes. Details that differ
from node to node (who holds a device) do not split a count: one of them is the example.

Who has created the pod reads the line, so holders in other namespaces are named by namespace only.

Explaining devices is hundreds of times more work than refusing them, so of many nodes only
an even sample is explained and the counts are projected; such counts carry a `~`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from dray.allocator import SHARED_WITH, Explanation, Reason, RequestReasons
from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.scheduler.claims import PodClaims, refusal_of_allocation
from dray.scheduler.devices import Devices
from dray.scheduler.inter_pod_affinity import InterPodAffinity
from dray.scheduler.shape import PodShape
from dray.scheduler.state import ClusterState, NodeState
from dray.scheduler.topology_spread import TopologySpread
from dray.scheduler.volume_matching import volumes_of
from dray.scheduler.volumes import VolumeState

_MAX_REASONS = 6  # parts of the line; the rest is summed up
_MAX_LENGTH = 1000  # of the whole line; events are cut at 1024
_MAX_EXPRESSION = 160
_MAX_EXPLAINED = 24  # nodes whose devices are looked at one by one

# Words that follow the number of nodes: many, one.
_VERBS = (("{have}", "have", "has"), ("{do}", "do", "does"), ("{are}", "are", "is"))


class Rules(Protocol):
    """By what nodes are judged; the placer has all of it."""

    state: ClusterState
    devices: Devices
    affinity: InterPodAffinity
    spread: TopologySpread
    volumes: VolumeState


class Tally:
    """Counts nodes per reason, with one example of what differs between them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}
        self._estimates: set[str] = set()

    def add(self, reason: str, example: str = "", count: int = 1, *, is_estimate: bool = False) -> None:
        """Count nodes under a reason; verbs are written {have}, {do}, {are}."""
        self._counts[reason] = self._counts.get(reason, 0) + count
        if is_estimate:
            self._estimates.add(reason)
        if example:
            self._examples.setdefault(reason, example)

    def line(self, n_nodes: int) -> str:
        """Join the counts into the line."""
        order = sorted(self._counts.items(), key=lambda item: -item[1])
        parts = [self._part(reason, count) for reason, count in order[:_MAX_REASONS]]
        rest = sum(count for _, count in order[_MAX_REASONS:])
        if rest:
            parts.append(f"{rest} for other reasons")
        line = f"0/{n_nodes} nodes: " + "; ".join(parts)
        return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 1] + "…"

    def _part(self, reason: str, count: int) -> str:
        text = reason
        for token, many, one in _VERBS:
            text = text.replace(token, one if count == 1 else many)
        example = self._examples.get(reason)
        about = "~" if reason in self._estimates else ""
        return f"{about}{count} {text}" + (f" ({'' if count == 1 else 'e.g. '}{example})" if example else "")


def explain_refusal(
    rules: Rules, pod: Pod, shape: PodShape, claims: PodClaims, within: int | None = None
) -> str:
    """Return the line; walks over all nodes (or those of a set)."""
    state = rules.state
    if not state.nodes:
        return "0/0 nodes: the cluster has no nodes"
    volumes = volumes_of(rules.volumes, pod, shape)
    if volumes is not None and volumes.problem:
        return f"0/{len(state.nodes)} nodes: {volumes.problem}"
    judges = (rules.affinity.refusal(pod, shape), rules.spread.refusal(pod, shape))
    tally = Tally()
    left = n_nodes = 0
    free_ports = state.with_free_ports(shape.ports) if shape.ports else state.all_nodes
    for node in state.in_set(state.all_nodes if within is None else within & state.all_nodes):
        n_nodes += 1
        reason = state.static_refusal(pod, node) or _first_reason(node, shape, free_ports)
        if reason is None and volumes is not None:
            reason = volumes.refusal(node)
        reason = reason or _refusal_of_claims(claims, node)
        reason = reason or next((found for judge in judges if (found := judge(node))), None)
        if reason is None:
            left |= node.bit
        else:
            tally.add(reason)
    if left and claims.pending:
        names = [node.name for node in state.in_set(left)]
        step = max(1, -(-len(names) // _MAX_EXPLAINED))
        sample = names[::step]
        add_device_reasons(
            tally,
            rules.devices.allocator.explain(claims.pending, sample),
            len(sample),
            len(names),
            pod.metadata.namespace,
        )
    return tally.line(n_nodes)


def _first_reason(node: NodeState, shape: PodShape, free_ports: int) -> str | None:
    short = node.shortages(shape.requests)
    if short:
        return "{have} too many pods" if short[0] == "pods" else f"{{have}} insufficient {', '.join(short)}"
    if not node.bit & free_ports:
        return "{have} a host port of the pod in use"
    return None


def _refusal_of_claims(claims: PodClaims, node: NodeState) -> str | None:
    for claim in claims.allocated:
        refusal = refusal_of_allocation(claim, node.node)
        if refusal is not None:
            return refusal
    return None


def explain_devices(
    devices: Devices, claims: Sequence[ResourceClaim], node: NodeState, namespace: str
) -> str:
    """Return why one node has no devices for these claims, as words that follow its name."""
    tally = Tally()
    add_device_reasons(tally, devices.allocator.explain(claims, [node.name]), 1, 1, namespace)
    return tally.line(1).removeprefix("0/1 nodes: 1 ")


def add_device_reasons(
    tally: Tally, explanation: Explanation, n_sample: int, n_nodes: int, namespace: str
) -> None:
    """Count nodes per device reason, projecting from the nodes that were explained to all of them."""
    # The error under the name "" is that of every node.
    found = [
        ("{have} a problem", error, 1 if node else n_sample) for node, error in explanation.errors.items()
    ]
    for nodes, requests in explanation.reasons:
        without_error = sum(node not in explanation.errors for node in nodes)
        if without_error:
            found.append((*_reason_and_example(requests, namespace), without_error))
    seen = projected = 0
    for reason, example, count in found:
        seen += count
        # Rounding the running sum keeps the total exact.
        share = seen * n_nodes // n_sample - projected
        projected += share
        tally.add(reason, example, share, is_estimate=n_sample < n_nodes)


def _reason_and_example(requests: tuple[RequestReasons, ...], namespace: str) -> tuple[str, str]:
    """Describe the request that is furthest from being met: what all such nodes share, and an example."""
    if not requests:
        return "{have} devices, but not for all claims together", ""
    worst = min(requests, key=lambda each: (each.usable >= (each.wanted or 1), each.usable))
    where = f" for request {worst.request}" if len(requests) > 1 else ""
    unmatched = [reason for reason in worst.reasons if reason.cause == "selector"]
    matching = worst.devices - sum(reason.devices for reason in unmatched)
    if not worst.devices:
        return f"{{have}} no devices{where}", ""
    if not matching:
        expression, found = _selector(unmatched)
        return f'{{have}} no device{where} that matches "{expression}"', found
    wanted = worst.wanted or matching
    if worst.usable >= wanted:
        return f"{{have}} enough devices{where}, but not together", _others(worst.reasons, namespace)[1]
    what, example = _others((reason for reason in worst.reasons if reason.cause != "selector"), namespace)
    devices = "device" if matching == 1 else "devices"
    if not what:
        return f"{{have}} only {matching} matching {devices} of the {wanted} wanted{where}", ""
    short = "" if matching >= wanted else f" (of the {wanted} wanted)"
    if worst.usable:
        return (
            f"{{have}} only {worst.usable} of {matching} matching {devices}{short}{where} free: the others are {what}",
            example,
        )
    all_of = "the only" if matching == 1 else f"all {matching}"
    return f"{{have}} {all_of} matching {devices}{short}{where} {what}", example


def _selector(reasons: list[Reason]) -> tuple[str, str]:
    """Split a selector's detail into the expression and what was found instead."""
    # Devices of another class were never meant; the class speaks only where it alone refuses.
    most = max(reasons, key=lambda each: (not each.detail.startswith("class "), each.devices))
    text, _, found = most.detail.partition("; found: ")
    expression = text.removeprefix("request: ").removeprefix("class: ")
    if len(expression) > _MAX_EXPRESSION:
        expression = expression[: _MAX_EXPRESSION - 1] + "…"
    return expression, f"found: {found}" if found else ""


def _others(reasons: Iterable[Reason], namespace: str) -> tuple[str, str]:
    """Name the causes, and give the first detail as the example."""
    words = {
        "in-use": "in use",
        "taint": "tainted",
        "counters": "short of counters",
        "capacity": "short of capacity",
        "constraint": "against a constraint",
        "node": "not for this node",
        "operations": "in need of node operations",
        "groups": "incompatible with those in use",
        "conditions": "subject to binding conditions",
        "error": "in error",
    }
    found = list(reasons)
    example = next((_detail(each, namespace) for each in found if each.detail), "")
    if example and found and found[0].cause == "in-use":
        example = f"by {example}"
    return " or ".join(dict.fromkeys(words.get(each.cause, each.cause) for each in found)), example


def _detail(reason: Reason, namespace: str) -> str:
    """Return a reason's detail with the holders as users of a namespace may know them: others without their names."""
    start = SHARED_WITH if reason.cause == "capacity" and reason.detail.startswith(SHARED_WITH) else ""
    if reason.cause != "in-use" and not start:
        return reason.detail
    owners = reason.detail.removeprefix(start).split(", ")
    return start + ", ".join(dict.fromkeys(public_name(owner, namespace) for owner in owners))


def public_name(key: str, namespace: str) -> str:
    """Return `namespace/name` of a holder as users of a namespace may know it: of others only the namespace.

    >>> public_name("ann/train-7", "ann"), public_name("ann/train-7", "bob")
    ('ann/train-7', 'ann')
    """
    return key if key.startswith(f"{namespace}/") else key.partition("/")[0]
