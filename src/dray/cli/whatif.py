"""`dray whatif`: would these pods fit, where, what would be evicted, how many more nodes are needed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dray.allocator import POLICIES, AllocationError, policy_named
from dray.api.core import Pod
from dray.cli.output import CommandError, add_output_flag, emit, plural, table
from dray.cli.sources import add_source_flags, load_source
from dray.client import key_of
from dray.drivers.hardware import Profile, ProfileError
from dray.sim.cluster import OfflineCluster, Outcome
from dray.sim.hardware import parse_hardware
from dray.sim.snapshot import Snapshot, SnapshotError, load_snapshot
from dray.sim.workloads import expand_workloads

MAX_MORE_NODES = 256  # how far to look when asked how many nodes are missing


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="manifests to try: pods, workloads, claims, templates, classes",
    )
    parser.add_argument(
        "--add-node",
        action="append",
        default=[],
        metavar="PROFILE[:N]",
        help="add N nodes with this hardware",
    )
    parser.add_argument(
        "--drain",
        action="append",
        default=[],
        metavar="NODE",
        help="remove this node and place its pods on the others",
    )
    parser.add_argument(
        "--policy",
        default="first-fit",
        choices=sorted(POLICIES),
        help="how to choose among nodes and devices",
    )
    parser.add_argument(
        "--need", metavar="PROFILE", help="say how many more nodes of this hardware would be needed"
    )
    add_output_flag(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Try; exit code 0 when everything fits, 1 when something does not, 2 for bad input."""
    if not args.files and not args.drain:
        raise CommandError("nothing to try", "give manifests, or --drain NODE")
    answer = try_out(args)
    if args.output == "table":
        _print(answer)
    else:
        emit(answer, args.output)
    return 0 if not answer["refused"] else 1


def parse_nodes(texts: list[str]) -> list[tuple[Profile, int]]:
    """Read `PROFILE[:N]`."""
    try:
        return parse_hardware(texts)
    except ProfileError as error:
        raise CommandError(str(error)) from error


def try_out(args: argparse.Namespace) -> dict[str, Any]:
    """Run the experiment and return what happened."""
    extra = parse_nodes(args.add_node)
    base = load_source(args, offline=bool(extra) or bool(args.files and not args.kubeconfig and args.against))
    try:
        wanted = load_snapshot([Path(name) for name in args.files])
        expand_workloads([Path(name) for name in args.files], wanted)
    except SnapshotError as error:
        raise CommandError(str(error), "`dray check` tells more") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CommandError(f"a workload is malformed: {error}", "`dray check` finds the line") from error
    outcome, moved = experiment(base, wanted, extra, args.drain, args.policy)
    answer: dict[str, Any] = {
        "placed": [{"pod": p.pod, "node": p.node, "devices": p.devices} for p in outcome.placed],
        "refused": [{"pod": r.pod, "reason": r.reason} for r in outcome.refused],
        "drained": moved,
        "added": {profile.name: count for profile, count in extra},
    }
    if args.need and outcome.refused:
        answer["needed"] = _needed(base, wanted, extra, args)
    return answer


def experiment(
    base: Snapshot, wanted: Snapshot, extra: list[tuple[Profile, int]], drained: list[str], policy: str
) -> tuple[Outcome, list[str]]:
    """Place the wanted pods (and those of drained nodes) on the base cluster with extra nodes."""
    cluster = OfflineCluster(base.merged(wanted), policy_named(policy) if policy != "first-fit" else None)
    made: dict[str, int] = {}
    for profile, count in extra:
        for _ in range(count):
            number = made[profile.name] = made.get(profile.name, 0) + 1
            cluster.add_hardware(profile, f"new-{profile.name}-{number}")
    known = set(cluster.state.nodes)
    moved: list[Pod] = []
    for name in drained:
        if name not in known:
            raise CommandError(
                f"there is no node {name!r} to drain", f"nodes: {', '.join(sorted(known)[:10]) or 'none'}"
            )
        moved += cluster.remove_node(name)
    if not cluster.state.nodes:
        raise CommandError(
            "the cluster has no nodes", "add some with --add-node PROFILE, or name a cluster with --against"
        )
    new_keys = {key_of(pod.metadata) for pod in wanted.pods}
    pods = [pod for key, pod in cluster.pods.items() if key in new_keys and not pod.spec.node_name]
    moved_keys = [key_of(pod.metadata) for pod in moved]
    pods += [cluster.pods[key] for key in moved_keys if key not in new_keys]
    try:
        return cluster.place(pods), moved_keys
    except AllocationError as error:
        raise CommandError(f"a claim cannot be allocated anywhere: {error}") from error


def _needed(
    base: Snapshot, wanted: Snapshot, extra: list[tuple[Profile, int]], args: argparse.Namespace
) -> dict[str, Any]:
    """Find the smallest number of further nodes of a kind with which everything fits."""
    ((profile, _),) = parse_nodes([args.need])

    def fits(count: int) -> bool:
        outcome, _ = experiment(base, wanted, [*extra, (profile, count)], args.drain, args.policy)
        return not outcome.refused

    low, high = 1, 1
    while not fits(high):
        low, high = high + 1, high * 2
        if high > MAX_MORE_NODES:
            return {"profile": profile.name, "nodes": None, "note": f"not even with {MAX_MORE_NODES} more"}
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return {"profile": profile.name, "nodes": low}


def _print(answer: dict[str, Any]) -> None:
    if answer["drained"]:
        print(f"draining moves {plural(len(answer['drained']), 'pod')}: {', '.join(answer['drained'])}")
    if answer["placed"]:
        rows = []
        for placed in answer["placed"]:
            devices = [device.rpartition("/")[2] for group in placed["devices"].values() for device in group]
            rows.append([placed["pod"], placed["node"], ", ".join(devices) or "-"])
        table(["POD", "NODE", "DEVICES"], rows)
    for refused in answer["refused"]:
        print(f"does not fit: {refused['pod']}: {refused['reason']}")
    total = len(answer["placed"]) + len(answer["refused"])
    print(f"{len(answer['placed'])} of {plural(total, 'pod')} fit")
    needed = answer.get("needed")
    if needed:
        count = needed["nodes"]
        print(
            f"needed: {plural(count, 'more node')} {needed['profile']}"
            if count
            else f"needed: {needed['note']} {needed['profile']}"
        )
