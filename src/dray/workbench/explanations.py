"""Why a pod or claim has no devices, or why it got these: lines for people, and the reasons as data."""

from __future__ import annotations

from typing import Any

from dray.allocator import AllocationError, Explanation
from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.client import key_of
from dray.devices import device_id_of
from dray.scheduler import NotReady, PodClaims, Unplaceable, shape_of
from dray.sim.cluster import OfflineCluster
from dray.sim.snapshot import Snapshot
from dray.workbench.changes import Change, smallest_changes
from dray.workbench.inventory import Inventory
from dray.workbench.refusals import key_hints, nearest_lines, refusal_lines, some_nodes

Report = dict[str, Any]  # kind, name, state, fits, lines (for people), reasons, perhaps nodes and changes


def _report(kind: str, key: str, state: str, lines: list[str], *, fits: bool = False, **more: Any) -> Report:
    return {"kind": kind, "name": key, "state": state, "fits": fits, "lines": lines, "reasons": [], **more}


def explain_claim(cluster: OfflineCluster, claim: ResourceClaim) -> Report:
    """Return why a claim is not allocated, or why it got its devices."""
    key = key_of(claim.metadata)
    if claim.status.allocation is not None:
        lines = [f"claim {key} is allocated:", *_allocation_lines(cluster.snapshot, claim)]
        return _report("claim", key, "allocated", lines, fits=True)
    hidden = _hidden(cluster.snapshot)
    if hidden:
        return _report("claim", key, "pending", [f"claim {key} is not allocated; {hidden}"])
    return _explain_fit(cluster, "claim", key, [claim])


def _allocation_lines(snapshot: Snapshot, claim: ResourceClaim) -> list[str]:
    inventory = Inventory(snapshot)
    allocation = claim.status.allocation
    assert allocation is not None
    lines = []
    for result in allocation.devices.results:
        row = inventory.devices.get(device_id_of(result))
        model = f" ({row.model})" if row is not None and row.model else ""
        where = f" on node {row.node}" if row is not None and row.node else ""
        gone = " — no longer published!" if row is None and not snapshot.hides("resourceslices") else ""
        share = f", share {result.share_id}" if result.share_id else ""
        lines.append(
            f"  request {result.request}: {result.driver}/{result.pool}/{result.device}{model}{where}{share}{gone}"
        )
        for amount in (result.consumed_capacity or {}).items():
            lines.append(f"    takes {amount[1]} of {amount[0]}")
    lines += _why_these(snapshot, claim)
    users = [f"{user.resource[:-1] or 'consumer'} {user.name}" for user in claim.status.reserved_for]
    lines.append(f"  reserved for {', '.join(users)}" if users else "  reserved for nobody yet")
    return lines


def _why_these(snapshot: Snapshot, claim: ResourceClaim) -> list[str]:
    """Return which alternatives were passed over: first-available choices, and what ties the devices."""
    lines = []
    allocation = claim.status.allocation
    assert allocation is not None
    chosen = {result.request for result in allocation.devices.results}
    for request in claim.spec.devices.requests:
        for position, sub in enumerate(request.first_available):
            if f"{request.name}/{sub.name}" in chosen and position:
                passed = ", ".join(entry.name for entry in request.first_available[:position])
                lines.append(
                    f"  request {request.name}: alternative {sub.name} was taken; {passed} did not fit at that time"
                )
    for constraint in claim.spec.devices.constraints:
        scope = ", ".join(constraint.requests) or "all requests"
        if constraint.match_attribute:
            lines.append(f"  the devices of {scope} share one value of {constraint.match_attribute}")
        elif constraint.distinct_attribute:
            lines.append(f"  the devices of {scope} all differ in {constraint.distinct_attribute}")
    return lines


def explain_pod(cluster: OfflineCluster, pod: Pod) -> Report:
    """Return why a pod is not bound, or which devices it has."""
    key = key_of(pod.metadata)
    claims = cluster.claims_of(pod)
    if pod.spec.node_name:
        lines = [f"pod {key} runs on node {pod.spec.node_name} ({pod.status.phase or 'phase unknown'})"]
        for claim in claims.all if not isinstance(claims, NotReady) else ():
            if claim.status.allocation is not None:
                lines += [f"claim {key_of(claim.metadata)}:", *_allocation_lines(cluster.snapshot, claim)]
        return _report("pod", key, "bound", lines, fits=True)
    if isinstance(claims, NotReady):
        names = [entry.resource_claim_template_name for entry in pod.spec.resource_claims]
        namespace = pod.metadata.namespace
        lines = [f"pod {key} is waiting: {claims.message}"]
        lines += [
            f"  there is no ResourceClaimTemplate {name} in namespace {namespace}"
            for name in names
            if name and f"{namespace}/{name}" not in cluster.templates
        ]
        return _report("pod", key, "waiting", lines)
    hidden = _hidden(cluster.snapshot)
    if hidden:
        said = next((each.message for each in pod.status.conditions if each.type == "PodScheduled"), "")
        words = [f"  its scheduler says: {said}"] if said else []
        return _report("pod", key, "pending", [f"pod {key} is not bound; {hidden}", *words])
    answer = cluster.decide(pod)
    if isinstance(answer, list):
        return _explain_gang(cluster, pod) or _explain_fitting(key, answer[0].placement.node)
    assert isinstance(answer, Unplaceable)  # its claims are ready
    found = _explain_fit(cluster, "pod", key, list(claims.pending)) if claims.pending else None
    if found is None or found["fits"]:
        lines = [f"pod {key} cannot be placed: {answer.explain()}"]
        if found is not None:
            lines.append("  its claims alone would fit: other requirements of the pod prevent it")
    else:
        lines = [f"pod {key} cannot be placed: no node has the devices", *found["lines"][1:]]
        other = _other_obstacles(cluster, pod, claims, answer)
        if other:
            lines.append(f"besides devices: {other}")
    return {"changes": [], **(found or {}), **_report("pod", key, "unplaceable", lines),
            "reasons": found["reasons"] if found else []}  # fmt: skip


def _hidden(snapshot: Snapshot) -> str:
    """Return why the reasons cannot be found out; "" when they can."""
    names = {"resourceslices": "devices", "nodes": "nodes", "deviceclasses": "device classes"}
    hidden = [name for resource, name in names.items() if snapshot.hides(resource)]
    return f"you may not list {' and '.join(hidden)}, so the reasons are not known" if hidden else ""


def _explain_fitting(key: str, node: str, with_others: str = "") -> Report:
    lines = [f"pod {key} is not bound yet; it would fit now{with_others}, for example on node {node}"]
    return _report("pod", key, "fits", lines, fits=True)


def _explain_gang(cluster: OfflineCluster, pod: Pod) -> Report | None:
    """Explain a pod that fits alone, but starts with its gang or not at all; None: it is in no gang."""
    key, gang = key_of(pod.metadata), cluster.gang_of(pod)
    if gang is None:
        return None
    answer = cluster.decide_pod(pod, {key})
    if isinstance(answer, list):
        node = next((each.placement.node for each in answer if each.pod.metadata.uid == pod.metadata.uid), "")
        others = f" with the other pods of its group {key_of(gang.metadata)}" if len(answer) > 1 else ""
        return _explain_fitting(key, node, others)
    assert isinstance(answer, NotReady | Unplaceable)  # bound pods are explained elsewhere
    reason = answer.message if isinstance(answer, NotReady) else answer.explain()
    lines = [
        f"pod {key} cannot start: {reason}",
        "  it would fit alone, but its group starts together or not at all",
    ]
    return _report("pod", key, "waiting", lines)


def _other_obstacles(cluster: OfflineCluster, pod: Pod, claims: PodClaims, answer: Unplaceable) -> str:
    """Say what, other than devices, keeps the pod from nodes."""
    possible = cluster.placer.narrow(pod, shape_of(pod), claims).nodes.bit_count()
    return answer.explain() if possible < len(cluster.state.nodes) else ""


def _explain_fit(cluster: OfflineCluster, kind: str, key: str, claims: list[ResourceClaim]) -> Report:
    snapshot = cluster.snapshot
    try:
        explanation = cluster.explain_claims(claims)
    except AllocationError as error:
        lines = [f"{kind} {key} cannot be allocated on any node: {error}"]
        lines += [
            f"  {line}" for line in (*key_hints(str(error), snapshot), *nearest_lines(claims, snapshot))
        ]
        return _report(kind, key, "error", lines)
    fits = bool(explanation.fits)
    changes: list[Change] = []
    if fits:
        lines = [f"{kind} {key} is not allocated; it would fit on {some_nodes(explanation.fits)}"]
    else:
        lines = [f"{kind} {key} does not fit anywhere"]
        lines += [f"  {line}" for line in refusal_lines(explanation, claims, snapshot)]
        changes = smallest_changes(cluster, claims)
        lines += _change_lines(changes)
    return _report(
        kind,
        key,
        "fits" if fits else "unsatisfiable",
        lines,
        fits=fits,
        reasons=_reasons_data(explanation),
        nodes=list(explanation.fits),
        changes=[{"change": change.text, "nodes": list(change.nodes)} for change in changes],
    )


def _change_lines(changes: list[Change]) -> list[str]:
    if not changes:
        return [
            "no single change would make it fit: ask for less, or add hardware (`dray whatif --add-node PROFILE`)"
        ]
    lines = ["it would fit after any one of these:"]
    return lines + [f"  - {change.text}: {some_nodes(change.nodes)}" for change in changes]


def _reasons_data(explanation: Explanation) -> list[dict[str, Any]]:
    return [
        {
            "nodes": list(nodes),
            "requests": [
                {
                    "claim": entry.claim,
                    "request": entry.request,
                    "wanted": entry.wanted or "all",
                    "devices": entry.devices,
                    "usable": entry.usable,
                    "reasons": [
                        {"cause": r.cause, "detail": r.detail, "devices": r.devices} for r in entry.reasons
                    ],
                    "hint": entry.relaxation or None,
                }
                for entry in requests
            ],
        }
        for nodes, requests in explanation.reasons
    ]
