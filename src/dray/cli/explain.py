"""`dray explain`: why a pod or claim has no devices, or why it got these."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any

from dray.allocator import AllocationError, Explanation
from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.cli.output import CommandError, add_output_flag, emit
from dray.cli.sources import add_source_flags, load_source
from dray.client import key_of
from dray.devices import device_id_of
from dray.scheduler import NotReady, Placement, PodClaims, Unplaceable, shape_of
from dray.sim.changes import Change, smallest_changes
from dray.sim.cluster import OfflineCluster
from dray.sim.inventory import Inventory
from dray.sim.snapshot import Snapshot, SnapshotError, load_snapshot
from dray.sim.stories import key_hints, nearest_lines, refusal_lines, some_nodes


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("what", choices=("pod", "claim"), help="what to explain")
    parser.add_argument("name", help="its name")
    parser.add_argument("-n", "--namespace", default="default", help="its namespace (default: default)")
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE",
        help="manifests to add: explain before applying",
    )
    add_output_flag(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Explain; exit code 0 when it fits or is placed, 1 when it does not, 2 for bad input."""
    snapshot = load_source(args, offline=bool(args.filename) and not args.kubeconfig)
    try:
        snapshot = snapshot.merged(load_snapshot([Path(name) for name in args.filename]))
    except SnapshotError as error:
        raise CommandError(str(error)) from error
    story = explain(snapshot, args.what, f"{args.namespace}/{args.name}")
    if args.output == "table":
        print("\n".join(story["lines"]))
    else:
        emit(story, args.output)
    return 0 if story["fits"] else 1


def explain(snapshot: Snapshot, what: str, key: str) -> dict[str, Any]:
    """Return the story of a pod or claim: state, lines for people, and the reasons as data."""
    cluster = OfflineCluster(snapshot)
    if what == "claim":
        claim = cluster.claims.get(key)
        if claim is None:
            raise CommandError(f"there is no claim {key}", _nearest(key, cluster.claims))
        return _claim_story(cluster, snapshot, claim)
    pod = cluster.pods.get(key)
    if pod is None:
        raise CommandError(f"there is no pod {key}", _nearest(key, cluster.pods))
    return _pod_story(cluster, snapshot, pod)


def _nearest(key: str, known: dict[str, Any]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else "give its namespace with -n"


def _claim_story(cluster: OfflineCluster, snapshot: Snapshot, claim: ResourceClaim) -> dict[str, Any]:
    key = key_of(claim.metadata)
    if claim.status.allocation is not None:
        lines = [f"claim {key} is allocated:", *_allocation_lines(snapshot, claim)]
        return {
            "kind": "claim",
            "name": key,
            "state": "allocated",
            "fits": True,
            "lines": lines,
            "reasons": [],
        }
    return _fit_story(cluster, "claim", key, [claim], snapshot)


def _allocation_lines(snapshot: Snapshot, claim: ResourceClaim) -> list[str]:
    inventory = Inventory(snapshot)
    allocation = claim.status.allocation
    assert allocation is not None
    lines = []
    for result in allocation.devices.results:
        row = inventory.devices.get(device_id_of(result))
        model = f" ({row.model})" if row is not None and row.model else ""
        where = f" on node {row.node}" if row is not None and row.node else ""
        gone = " — no longer published!" if row is None else ""
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
    """Say which alternatives were passed over: first-available choices, and what ties the devices."""
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


def _pod_story(cluster: OfflineCluster, snapshot: Snapshot, pod: Pod) -> dict[str, Any]:
    key = key_of(pod.metadata)
    claims = cluster.claims_of(pod)
    if pod.spec.node_name:
        lines = [f"pod {key} runs on node {pod.spec.node_name} ({pod.status.phase or 'phase unknown'})"]
        for claim in claims.all if not isinstance(claims, NotReady) else ():
            if claim.status.allocation is not None:
                lines += [f"claim {key_of(claim.metadata)}:", *_allocation_lines(snapshot, claim)]
        return {"kind": "pod", "name": key, "state": "bound", "fits": True, "lines": lines, "reasons": []}
    if isinstance(claims, NotReady):
        templates = [
            entry.resource_claim_template_name
            for entry in pod.spec.resource_claims
            if entry.resource_claim_template_name
        ]
        absent = [name for name in templates if f"{pod.metadata.namespace}/{name}" not in cluster.templates]
        lines = [f"pod {key} waits: {claims.message}"]
        lines += [
            f"  ResourceClaimTemplate {name} does not exist in namespace {pod.metadata.namespace}"
            for name in absent
        ]
        return {"kind": "pod", "name": key, "state": "waiting", "fits": False, "lines": lines, "reasons": []}
    answer = cluster.decide(pod, claims)
    if isinstance(answer, Placement):
        return _gang_story(cluster, pod) or _fitting_story(key, answer.node)
    story = _fit_story(cluster, "pod", key, list(claims.pending), snapshot) if claims.pending else None
    if story is None or story["fits"]:
        lines = [f"pod {key} cannot be placed: {answer.explain()}"]
        if story is not None:
            lines.append("  its claims alone would fit: the pod's other needs stand in the way")
    else:
        lines = [f"pod {key} cannot be placed: no node has the devices", *story["lines"][1:]]
        other = _other_obstacles(cluster, pod, claims, answer)
        if other:
            lines.append(f"besides devices: {other}")
    reasons = story["reasons"] if story else []
    return {
        "kind": "pod",
        "name": key,
        "state": "unplaceable",
        "fits": False,
        "lines": lines,
        "reasons": reasons,
        "changes": story.get("changes", []) if story else [],
    }


def _fitting_story(key: str, node: str, with_others: str = "") -> dict[str, Any]:
    lines = [f"pod {key} is not bound yet; it would fit now{with_others}, for example on node {node}"]
    return {"kind": "pod", "name": key, "state": "fits", "fits": True, "lines": lines, "reasons": []}


def _gang_story(cluster: OfflineCluster, pod: Pod) -> dict[str, Any] | None:
    """Return the story of a pod that fits alone, but starts with its gang or not at all; None: it is in no gang."""
    key, gang = key_of(pod.metadata), cluster.gang_of(pod)
    if gang is None:
        return None
    answer = cluster.decide_pod(pod, {key})
    if isinstance(answer, list):
        node = next((each.placement.node for each in answer if each.pod.metadata.uid == pod.metadata.uid), "")
        others = f" with the other pods of its group {key_of(gang.metadata)}" if len(answer) > 1 else ""
        return _fitting_story(key, node, others)
    assert isinstance(answer, NotReady | Unplaceable)  # a bound pod has another story
    reason = answer.message if isinstance(answer, NotReady) else answer.explain()
    lines = [
        f"pod {key} cannot start: {reason}",
        "  it would fit alone, but its group starts together or not at all",
    ]
    return {"kind": "pod", "name": key, "state": "waiting", "fits": False, "lines": lines, "reasons": []}


def _other_obstacles(cluster: OfflineCluster, pod: Pod, claims: PodClaims, answer: Unplaceable) -> str:
    """Say what, other than devices, keeps the pod from nodes."""
    possible = cluster.placer.narrow(pod, shape_of(pod), claims).nodes.bit_count()
    return answer.explain() if possible < len(cluster.state.nodes) else ""


def _fit_story(
    cluster: OfflineCluster, kind: str, key: str, claims: list[ResourceClaim], snapshot: Snapshot
) -> dict[str, Any]:
    try:
        explanation = cluster.explain_claims(claims)
    except AllocationError as error:
        lines = [f"{kind} {key} cannot be allocated on any node: {error}"]
        lines += [
            f"  {line}" for line in (*key_hints(str(error), snapshot), *nearest_lines(claims, snapshot))
        ]
        return {"kind": kind, "name": key, "state": "error", "fits": False, "lines": lines, "reasons": []}
    fits = bool(explanation.fits)
    changes: list[Change] = []
    if fits:
        lines = [f"{kind} {key} is not allocated; it would fit on {some_nodes(explanation.fits)}"]
    else:
        lines = [f"{kind} {key} does not fit anywhere"]
        lines += [f"  {line}" for line in refusal_lines(explanation, claims, snapshot)]
        changes = smallest_changes(cluster, claims)
        lines += _change_lines(changes)
    return {
        "kind": kind,
        "name": key,
        "state": "fits" if fits else "unsatisfiable",
        "fits": fits,
        "lines": lines,
        "reasons": _reasons_data(explanation),
        "nodes": list(explanation.fits),
        "changes": [{"change": change.text, "nodes": list(change.nodes)} for change in changes],
    }


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
