"""`dray fleet repartition`: change the partitions of idle GPUs to what waiting pods need."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from dray.api.wording import plural
from dray.cli.arguments import add_flags, did_you_mean, seconds, whole_number
from dray.cli.output import CommandError, emit, say, table

if TYPE_CHECKING:
    from dray.client import Client
    from dray.devices import DeviceId
    from dray.sim.snapshot import Snapshot
    from dray.workbench.fleet.repartition_plan import RepartitionPlan
    from dray.workbench.fleet.repartitioning import Changed

_SHOWN_PODS = 3


def configure_repartition(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `dray fleet repartition`."""
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="NAME",
        help="make only these partitions: 1g.5gb, or whole for undivided GPUs; may be repeated (default: any)",
    )
    parser.add_argument("--most", type=whole_number(1, 100_000), metavar="N", help="change at most N GPUs")
    parser.add_argument(
        "--execute", action="store_true", help="make the changes (default: only show what would be changed)"
    )
    parser.add_argument(
        "--at-once", type=whole_number(1, 500), default=8, metavar="N", help="changes at once (default: 8)"
    )
    parser.add_argument(
        "--timeout",
        type=seconds(1, 3600),
        default=120.0,
        metavar="SECONDS",
        help="for one change (default: 120)",
    )
    parser.add_argument(
        "--image",
        default="busybox",
        metavar="IMAGE",
        help="image of the pods that ask for changes (default: busybox)",
    )
    parser.add_argument("--scheduler", default="", metavar="NAME", help="scheduler of these pods")
    add_flags(parser, "--namespace", default="dray-fleet",
              help="namespace of these pods (default: dray-fleet, which is made)")  # fmt: skip


async def run_repartition(
    args: argparse.Namespace, client: Client, snapshot: Snapshot, only: Collection[DeviceId] | None
) -> int:
    """Show or make the changes; exit code 1 when one failed."""
    from dray.sim.snapshot import capture
    from dray.workbench.fleet.probing import NamespaceRefused, ProbeOptions, prepare_namespace
    from dray.workbench.fleet.repartitioning import COMMAND, change_layouts, finish_leftovers

    _check_profiles(args.profile)
    if not args.execute:
        _print_plan(args, _plan(args, snapshot, only))
        return 0
    try:
        await prepare_namespace(client, args.namespace)
    except NamespaceRefused as error:
        raise CommandError(str(error), "choose another --namespace, or label it") from error
    await finish_leftovers(client, args.namespace, args.timeout, say)
    snapshot = await capture(client)
    plan = _plan(args, snapshot, only)
    options = ProbeOptions(COMMAND, args.image, args.namespace, args.scheduler, args.timeout, args.at_once)
    results = await change_layouts(client, snapshot, plan.changes, options, say)
    failed = [each for each in results if not each.is_done]
    if args.output != "table":
        emit(_document(plan, results), args.output)
    else:
        say(f"{plural(len(results) - len(failed), 'GPU')} changed, {len(failed) or 'none'} failed")
        _say_rest(plan)
    if failed:
        say("hint: a GPU that failed kept its layout or is in between; run the command again to plan anew")
    return 1 if failed else 0


def _check_profiles(names: list[str]) -> None:
    from dray.drivers.hardware import GPU_MODELS
    from dray.drivers.hardware.mig_layouts import WHOLE

    known = sorted({profile.name for model in GPU_MODELS.values() for profile in model.mig_profiles})
    for name in names:
        if name != WHOLE and name not in known:
            raise CommandError(
                f"no GPU has partitions of the profile {name!r}", did_you_mean(name, [WHOLE, *known], "known")
            )


def _plan(args: argparse.Namespace, snapshot: Snapshot, only: Collection[DeviceId] | None) -> RepartitionPlan:
    from dray.workbench.fleet.repartition_plan import RepartitionError, plan_repartition

    try:
        return plan_repartition(snapshot, only=only, allowed=args.profile, most=args.most)
    except RepartitionError as error:
        raise CommandError(str(error), "let the scheduler place some of them first", code=1) from error


def _document(plan: RepartitionPlan, results: list[Changed] | None = None) -> dict[str, Any]:
    """Return a plan, and what became of it, for other programs."""
    done = {each.change.place.text: each for each in results or ()}
    changes = []
    for change in plan.changes:
        entry: dict[str, Any] = {
            "gpu": change.place.text,
            "node": change.place.node,
            "before": [str(each) for each in change.place.gpu.layout],
            "after": [str(each) for each in change.layout],
            "pods": list(change.pods),
        }
        if results is not None:
            result = done[change.place.text]
            entry |= {"changed": result.is_done, "message": result.message}
        changes.append(entry)
    return {
        "changes": changes,
        "kept": [{"gpu": each.place.text, "reason": each.reason} for each in plan.kept],
        "fitting": list(plan.fitting),
        "unserved": [{"pod": each.pod, "reason": each.reason} for each in plan.unserved],
    }


def _print_plan(args: argparse.Namespace, plan: RepartitionPlan) -> None:
    from dray.drivers.hardware.mig_layouts import layout_text

    if args.output != "table":
        emit(_document(plan), args.output)
        return
    if plan.changes:
        rows = [
            [
                change.place.text,
                change.place.node,
                layout_text(change.place.gpu.layout),
                layout_text(change.layout),
                _pods_text(change.pods),
            ]
            for change in plan.changes
        ]
        table(["GPU", "NODE", "NOW", "THEN", "PODS"], rows)
    say(f"{plural(len(plan.changes), 'GPU')} would change; nothing was changed")
    _say_rest(plan)


def _pods_text(pods: Collection[str]) -> str:
    shown = list(pods)[:_SHOWN_PODS]
    more = len(pods) - len(shown)
    return ",".join(shown) + (f" and {more} more" if more else "")


def _say_rest(plan: RepartitionPlan) -> None:
    if plan.fitting:
        say(f"{plural(len(plan.fitting), 'pod')} fit without a change")
    for each in plan.unserved[:_SHOWN_PODS]:
        say(f"{each.pod} waits further: {each.reason}")
    if len(plan.unserved) > _SHOWN_PODS:
        say(f"{len(plan.unserved) - _SHOWN_PODS} more pods wait further; -o json lists them")
