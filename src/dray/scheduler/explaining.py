"""Say in one line why no node takes a pod: the counts per reason, the most common first.

    0/500 nodes: 480 have no device that matches …, 20 lack cpu

Each node is counted once, under the first rule that it fails, in the order in which
the rules are applied; so the counts add up to the number of nodes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dray.allocator import Explanation, RequestReasons
from dray.api.core import Pod
from dray.scheduler.claims import PodClaims
from dray.scheduler.selecting import matches_node
from dray.scheduler.shape import PodShape
from dray.scheduler.state import NodeState, static_refusal

if TYPE_CHECKING:
    from dray.scheduler.placing import Placer

_MAX_REASONS = 6  # parts of the line; the rest is summed up
_MAX_LENGTH = 1000  # of the whole line; events are cut at 1024


def explain_refusal(placer: Placer, pod: Pod, shape: PodShape, claims: PodClaims) -> str:
    """Return the line; walks over all nodes."""
    state = placer.state
    if not state.nodes:
        return "0/0 nodes: the cluster has no nodes"
    judge = placer.neighbours.refusal(pod, shape)
    reasons: Counter[str] = Counter()
    left = 0
    free_ports = state.with_free_ports(shape.ports) if shape.ports else state.all_nodes
    for node in state.nodes.values():
        reason = _first_reason(node, pod, shape, claims, free_ports) or judge(node)
        if reason is None:
            left |= node.bit
        else:
            reasons[reason] += 1
    if left and claims.pending:
        names = [node.name for node in state.in_set(left)]
        reasons.update(device_reasons(placer.devices.world.explain(claims.pending, names)))
    return summary(len(state.nodes), reasons)


def _first_reason(
    node: NodeState, pod: Pod, shape: PodShape, claims: PodClaims, free_ports: int
) -> str | None:
    refusal = static_refusal(pod, node)
    if refusal is not None:
        return refusal
    short = node.shortages(shape.requests)
    if short:
        return "too many pods on the node" if short[0] == "pods" else f"insufficient {', '.join(short)}"
    if not node.bit & free_ports:
        return "a host port is in use"
    for claim in claims.allocated:
        allocation = claim.status.allocation
        if allocation is not None and not matches_node(allocation.node_selector, node.name, node.labels):
            name = f"{claim.metadata.namespace}/{claim.metadata.name}"
            return f"claim {name} is allocated elsewhere"
    return None


def device_reasons(explanation: Explanation) -> Counter[str]:
    """Count nodes per device reason."""
    found: Counter[str] = Counter()
    for error in explanation.errors.values():
        found[error] += 1
    for nodes, requests in explanation.reasons:
        found[_worst_request(requests)] += len(nodes)
    return found


def _worst_request(requests: tuple[RequestReasons, ...]) -> str:
    """Describe the request that is furthest from being met."""
    if not requests:
        return "cannot allocate all claims"
    worst = min(requests, key=lambda each: (each.usable >= (each.wanted or 1), each.usable))
    if not worst.devices:
        return f"no devices for request {worst.request} of claim {worst.claim}"
    wanted = f"{worst.wanted or 'all'} wanted, {worst.usable} of {worst.devices} devices usable"
    why = ", ".join(_reason(reason.cause, reason.detail, reason.devices) for reason in worst.reasons[:3])
    hint = f" (hint: {worst.relaxation})" if worst.relaxation else ""
    return f"request {worst.request}: {wanted}" + (f": {why}" if why else "") + hint


def _reason(cause: str, detail: str, devices: int) -> str:
    words = {
        "selector": "do not match",
        "in-use": "in use by" if detail else "in use",
        "taint": "have the taint",
        "counters": "exceed the counter",
        "capacity": "lack capacity",
        "constraint": "break the constraint",
        "node": "are not for this node",
        "operations": "need node operations",
        "groups": "are incompatible with devices in use",
        "conditions": "have binding conditions",
        "error": "failed",
    }.get(cause, cause)
    return f"{devices} {words} {detail}".rstrip()


def summary(n_nodes: int, reasons: Counter[str]) -> str:
    """Join the counts into the line."""
    parts = [f"{count} {_plural(reason)}" for reason, count in reasons.most_common(_MAX_REASONS)]
    rest = sum(reasons.values()) - sum(count for _, count in reasons.most_common(_MAX_REASONS))
    if rest:
        parts.append(f"{rest} for other reasons")
    line = f"0/{n_nodes} nodes: " + "; ".join(parts)
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 1] + "…"


def _plural(reason: str) -> str:
    return reason
