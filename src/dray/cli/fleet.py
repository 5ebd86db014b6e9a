"""`dray fleet`: take devices out of use and back, device by device, and validate them."""

from __future__ import annotations

import argparse
import asyncio
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.api.wording import plural
from dray.cli.arguments import add_flags, did_you_mean, seconds, whole_number
from dray.cli.fleet_repartition import configure_repartition, run_repartition
from dray.cli.fleet_rollout import add_probe_flags, configure_rollout, list_rollouts, run_rollout
from dray.cli.output import CommandError, add_output_flag, emit, say, table

if TYPE_CHECKING:
    from dray.client import Client
    from dray.workbench.fleet.targets import Target
    from dray.workbench.fleet.validation import DeviceReport, Expected
    from dray.workbench.inventory import Inventory

_TARGET_HELP = "a NODE, a pool as DRIVER/POOL, or a device as DRIVER/POOL/DEVICE"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="validate devices with claims that disturb no running pod")
    check.add_argument("targets", nargs="*", metavar="TARGET", help=f"{_TARGET_HELP} (default: all devices)")
    check.add_argument("--driver", metavar="NAME", help="only devices of this driver")
    check.add_argument("--profile", metavar="NAME", help="compare attributes with this hardware profile")
    check.add_argument("--driver-version", metavar="VERSION", help="expect this attribute driverVersion")
    check.add_argument(
        "--at-once", type=whole_number(1, 500), default=16, metavar="N", help="probes at once (default: 16)"
    )
    check.add_argument("--junit", type=Path, metavar="FILE", help="also write JUnit XML to this file")
    check.add_argument(
        "--timeout",
        type=seconds(1, 3600),
        default=120.0,
        metavar="SECONDS",
        help="for one probe (default: 120)",
    )
    add_probe_flags(check)
    drain = actions.add_parser("drain", help="taint devices and move the pods that use them, within budgets")
    drain.add_argument("target", metavar="TARGET", help=_TARGET_HELP)
    drain.add_argument("--reason", required=True, metavar="TEXT", help="why; it is stored with the taint")
    drain.add_argument("--preview", action="store_true", help="only list the pods that would be evicted")
    drain.add_argument("--force", action="store_true", help="also evict pods that no controller recreates")
    drain.add_argument(
        "--no-execute", action="store_true", help="delete the pods at once, without asking disruption budgets"
    )
    drain.add_argument(
        "--timeout", type=seconds(1), default=600.0, metavar="SECONDS", help="how long to wait (default: 600)"
    )
    undrain = actions.add_parser(
        "undrain", help="end a drain: remove its taint, so that devices are allocated again"
    )
    undrain.add_argument("target", nargs="?", metavar="TARGET", help="as it was drained")
    undrain.add_argument("--everything", action="store_true", help="end all drains")
    listing = actions.add_parser("drains", help="list what is drained, why, and who still uses it")
    rollout = actions.add_parser(
        "rollout", help="replace a driver node by node, validate, roll back on failures"
    )
    rollouts = actions.add_parser("rollouts", help="list rollouts of drivers and how far they are")
    configure_rollout(rollout)
    repartition = actions.add_parser(
        "repartition", help="change the partitions (MIG) of idle GPUs to what waiting pods need"
    )
    repartition.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"{_TARGET_HELP} (default: all GPUs)"
    )
    configure_repartition(repartition)
    for command in (check, drain, undrain, listing, rollout, rollouts, repartition):
        add_output_flag(command)
        add_flags(command, "--kubeconfig", "--context")


def run(args: argparse.Namespace) -> int:
    """Run one action; exit code 1 when a device failed or a drain did not end."""
    from dray.cli.sources import connect

    work = {
        "check": _check,
        "drain": _drain,
        "undrain": _undrain,
        "drains": _drains,
        "rollout": run_rollout,
        "rollouts": list_rollouts,
        "repartition": _repartition,
    }[args.action]
    if args.action == "undrain" and bool(args.target) == bool(args.everything):
        raise CommandError("no target was given", "name one of `dray fleet drains`, or give --everything")

    async def act() -> int:
        async with connect(args.kubeconfig, args.context) as client:
            return await work(args, client)

    return asyncio.run(act())


async def _inventory(client: Client) -> Inventory:
    from dray.cli.sources import warn_of_forbidden
    from dray.sim.snapshot import capture
    from dray.workbench.inventory import Inventory

    snapshot = await capture(client)
    warn_of_forbidden(snapshot)
    return Inventory(snapshot)


def _resolve(text: str, inventory: Inventory) -> Target:
    from dray.workbench.fleet.targets import TargetError, resolve

    try:
        return resolve(text, inventory)
    except TargetError as error:
        raise CommandError(str(error), did_you_mean(text, error.known, "known")) from error


async def _repartition(args: argparse.Namespace, client: Client) -> int:
    inventory = await _inventory(client)
    rows = chain(*(_resolve(text, inventory).rows for text in args.targets))
    only = frozenset(row.key for row in rows) if args.targets else None
    return await run_repartition(args, client, inventory.snapshot, only)


# --- drain --------------------------------------------------------------------------


async def _drain(args: argparse.Namespace, client: Client) -> int:
    from dray.client import NotFound
    from dray.workbench.fleet.draining import DrainRefused, drain, plan_drain

    inventory = await _inventory(client)
    target = _resolve(args.target, inventory)
    plan = plan_drain(inventory.snapshot, target)
    if args.preview:
        _print_holders(args, plan)
        return 0
    for claim in plan.idle_claims:
        say(f"claim {claim} keeps its devices although no pod uses it: delete it when it is not needed")
    try:
        result = await drain(
            client,
            target,
            args.reason,
            seconds=args.timeout,
            report=say,
            force=args.force,
            no_execute=args.no_execute,
        )
    except NotFound as error:
        raise CommandError(
            "the API server has no DeviceTaintRules", "switch on the feature gate DRADeviceTaintRules", code=1
        ) from error
    except DrainRefused as error:
        raise CommandError(str(error), error.hint, code=1) from error
    if args.output != "table":
        emit(
            {
                "target": target.name,
                "drained": result.is_done,
                "evicted": result.evicted,
                "left": result.left,
            },
            args.output,
        )
    elif result.is_done:
        say(
            f"{target.name} is drained: {plural(len(target.rows), 'device')}, {plural(len(result.evicted), 'pod')} moved"
        )
    if not result.is_done:
        say(f"{target.name} is tainted, but not drained after {args.timeout:.0f} s")
        say(f"hint: run the command again to go on, or `dray fleet undrain {target.name}` to give up")
    return 0 if result.is_done else 1


def _print_holders(args: argparse.Namespace, plan: Any) -> None:
    rows = [{"pod": each.key, "devices": list(each.devices), "bare": each.is_bare} for each in plan.holders]
    if args.output != "table":
        emit({"target": plan.target.name, "pods": rows, "idleClaims": list(plan.idle_claims)}, args.output)
        return
    if rows:
        table(
            ["POD", "DEVICES", "MADE AGAIN"],
            [[row["pod"], ",".join(row["devices"]), "no" if row["bare"] else "yes"] for row in rows],
        )
    say(f"{plural(len(rows), 'pod')} would have to go; nothing was changed")


async def _undrain(args: argparse.Namespace, client: Client) -> int:
    from dray.workbench.fleet.draining import drains, undrain

    found = await drains(client)
    names = sorted({each.target for each in found})
    if not args.everything and args.target not in names:
        raise CommandError(
            f"{args.target} is not drained", did_you_mean(args.target, names, "drained"), code=1
        )
    ended = names if args.everything else [args.target]
    for name in ended:
        await undrain(client, name)
    if args.output != "table":
        emit({"undrained": ended}, args.output)
    else:
        say(f"back in use: {', '.join(ended) or 'nothing was drained'}")
    return 0


async def _drains(args: argparse.Namespace, client: Client) -> int:
    from dray.workbench.fleet.draining import drains, plan_drain
    from dray.workbench.fleet.targets import TargetError, resolve

    inventory = await _inventory(client)
    rows = []
    for each in await drains(client):
        try:
            holders = [
                one.key for one in plan_drain(inventory.snapshot, resolve(each.target, inventory)).holders
            ]
        except TargetError:
            holders = []  # its devices are gone; the taint stays for when they return
        row = {
            "target": each.target,
            "effect": each.effect,
            "reason": each.reason,
            "since": each.since,
            "pods": holders,
        }
        if row not in rows:
            rows.append(row)
    if args.output != "table":
        emit(rows, args.output)
    elif rows:
        table(
            ["TARGET", "EFFECT", "SINCE", "PODS", "REASON"],
            [
                [row["target"], row["effect"], row["since"], ",".join(row["pods"]) or "-", row["reason"]]
                for row in rows
            ],
        )
    else:
        say("nothing is drained")
    return 0


# --- check --------------------------------------------------------------------------


async def _check(args: argparse.Namespace, client: Client) -> int:
    from dray.cli.progress import doing
    from dray.workbench.fleet.probing import NamespaceRefused, ProbeOptions, prepare_namespace
    from dray.workbench.fleet.reports import as_junit, as_rows
    from dray.workbench.fleet.validating import validate
    from dray.workbench.fleet.validation import DEFAULT_COMMAND, to_check

    expected = _expected(args)
    inventory = await _inventory(client)
    chosen = [_resolve(text, inventory).rows for text in args.targets] or [tuple(inventory.devices.values())]
    rows = [row for row in to_check(chain(*chosen)) if args.driver in (None, row.driver)]
    if not rows:
        raise CommandError("there are no devices to check", "`dray get devices` lists them", code=1)
    command = ["sh", "-c", args.probe] if args.probe else DEFAULT_COMMAND
    options = ProbeOptions(
        command, args.probe_image, args.namespace, args.scheduler, args.timeout, args.at_once
    )
    try:
        await prepare_namespace(client, args.namespace)
    except NamespaceRefused as error:
        raise CommandError(str(error), "choose another --namespace, or label it") from error
    reports = await validate(client, inventory, rows, expected, options, doing)
    if args.junit:
        args.junit.write_text(as_junit(reports), "utf-8")
    _print_reports(args, reports, as_rows(reports))
    return 0 if all(report.is_ok for report in reports) else 1


def _expected(args: argparse.Namespace) -> Expected:
    from dray.workbench.fleet.validation import Expected

    if not args.profile:
        return Expected(driver_version=args.driver_version or "")
    from dray.drivers.hardware import ProfileError, load_profile, pool_slices, profile_names

    try:
        slices = pool_slices(load_profile(args.profile).pools("node"))
    except ProfileError as error:
        raise CommandError(str(error), did_you_mean(args.profile, profile_names(), "profiles")) from error
    devices = {(each.spec.driver, device.name): device for each in slices for device in each.spec.devices}
    return Expected(devices, args.driver_version or "")


def _print_reports(args: argparse.Namespace, reports: list[DeviceReport], rows: list[dict[str, Any]]) -> None:
    if args.output != "table":
        emit(rows, args.output)
        return
    shown = []
    for report in reports:
        failed = [each for each in report.results if each.status == "failed"]
        skipped = [each for each in report.results if each.name == "probe" and each.status == "skipped"]
        state = "failed" if failed else "not probed" if skipped else "ok"
        evidence = "; ".join(f"{each.name}: {each.evidence}" for each in failed or skipped)
        shown.append(
            [report.node or "-", report.driver, report.device, state, " ".join(evidence.split())[:160]]
        )
    table(["NODE", "DRIVER", "DEVICE", "STATE", "EVIDENCE"], shown)
    failed_count = sum(not report.is_ok for report in reports)
    say(f"{plural(len(reports), 'device')} checked, {failed_count or 'none'} failed")
