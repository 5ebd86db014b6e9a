"""`dray explain`: why a pod or claim has no devices, or why it got these."""

from __future__ import annotations

import argparse
import asyncio

from dray.cli.arguments import add_flags, did_you_mean
from dray.cli.manifests import valid_objects
from dray.cli.output import CommandError, add_output_flag, emit
from dray.cli.queue_reports import report_lines
from dray.cli.sources import add_source_flags, connect, load_source
from dray.sim.cluster import OfflineCluster
from dray.sim.other_users import fetch_report
from dray.sim.snapshot import Snapshot
from dray.workbench.explanations import Report, explain_claim, explain_pod


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("what", choices=("pod", "claim"), help="what to explain")
    parser.add_argument("name", metavar="NAME", help="its name")
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE",
        help="add these manifests first; repeatable",
    )
    add_flags(parser, "--namespace")
    add_output_flag(parser, "text")
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Explain; exit code 0 when it fits or is placed, 1 when it does not, 2 for bad input."""
    objects = valid_objects(args.filename)
    snapshot = load_source(args, offline=bool(args.filename) and not args.kubeconfig)
    args.namespace = args.namespace or snapshot.own_namespace
    added = Snapshot(default_namespace=args.namespace)
    for obj in objects:
        added.add(obj)
    report = explain(snapshot.merged(added), args.what, f"{args.namespace}/{args.name}")
    if args.what == "pod" and report["state"] != "bound" and not args.filename and not args.against:
        report["lines"] += asyncio.run(_queue_lines(args))
    if args.output == "text":
        print("\n".join(report["lines"]))
    else:
        emit(report, args.output)
    return 0 if report["fits"] else 1


async def _queue_lines(args: argparse.Namespace) -> list[str]:
    """Return what the scheduler tells of a waiting pod's place in the queue."""
    from dray.client import ClientError
    from dray.client.resources import PODS

    try:
        async with connect(args.kubeconfig, args.context) as client:
            pod = await client.get(PODS, args.name, args.namespace)
            return report_lines(await fetch_report(client), pod["metadata"]["uid"], args.namespace)
    except ClientError:
        return []  # what could be explained was explained


def explain(snapshot: Snapshot, what: str, key: str) -> Report:
    """Return the explanation of a pod or claim; raises CommandError when there is none of this name."""
    cluster = OfflineCluster(snapshot)
    known = cluster.claims if what == "claim" else cluster.pods
    if key not in known:
        raise CommandError(
            f"there is no {what} {key}", did_you_mean(key, known) or "-n names another namespace"
        )
    if what == "claim":
        return explain_claim(cluster, cluster.claims[key])
    return explain_pod(cluster, cluster.pods[key])
