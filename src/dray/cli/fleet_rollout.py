"""`dray fleet rollout`: replace a driver node by node; `dray fleet rollouts` lists what was begun."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from dray.api.wording import plural
from dray.cli.arguments import add_flags, did_you_mean, seconds, whole_number
from dray.cli.output import CommandError, emit, say, table

if TYPE_CHECKING:
    from dray.api.driver_rollouts import DriverRollout, DriverRolloutSpec
    from dray.client import Client
    from dray.sim.snapshot import Snapshot
    from dray.workbench.fleet.targets import Target

_MAX_NODES = 5000
_START_FLAGS = ("driver", "to", "daemonset")


def configure_rollout(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `dray fleet rollout`."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a rollout to go on with (default: begin a new one)"
    )
    parser.add_argument("--driver", metavar="NAME", help="whose devices: gpu.nvidia.com")
    parser.add_argument("--to", metavar="VERSION", help="version to reach")
    parser.add_argument(
        "--daemonset",
        metavar="NAMESPACE/NAME",
        type=_namespaced,
        help="the DaemonSet whose pods are the driver",
    )
    parser.add_argument("--image", default="", metavar="IMAGE", help="image of that version")
    parser.add_argument(
        "--container", default="", metavar="NAME", help="whose image changes (default: the first container)"
    )
    parser.add_argument(
        "--running-pods",
        choices=("wait", "evict", "keep"),
        default="wait",
        help="what becomes of pods that use the devices: wait for their end (default), evict within budgets, keep",
    )
    for flag, value, low, text in (
        ("--max-unavailable", 1, 1, "nodes at a time"),
        ("--canary", 1, 0, "nodes that go first"),
        ("--max-failures", 1, 1, "failed nodes that end the rollout"),
    ):
        parser.add_argument(
            flag,
            type=whole_number(low, _MAX_NODES),
            default=value,
            metavar="N",
            help=f"{text} (default: {value})",
        )
    parser.add_argument("--pause", action="store_true", help="stop after the canaries until it is continued")
    parser.add_argument("--no-rollback", action="store_true", help="leave nodes as they are after failures")
    parser.add_argument(
        "--expect-published-version",
        action="store_true",
        help="devices must publish the version as their attribute driverVersion",
    )
    parser.add_argument("--abort", action="store_true", help="roll the rollout NAME back")
    parser.add_argument(
        "--step-timeout",
        type=seconds(1, 604800),
        default=600.0,
        metavar="SECONDS",
        help="for one step of one node, waiting for pods included (default: 600)",
    )
    add_probe_flags(parser, image_flag="--probe-image")


def add_probe_flags(parser: argparse.ArgumentParser, image_flag: str = "--image") -> None:
    """Declare what the pods are like that validate devices; a rollout has another `--image`."""
    parser.add_argument(
        image_flag,
        dest="probe_image",
        default="busybox",
        metavar="IMAGE",
        help="image of the probe (default: busybox)",
    )
    parser.add_argument(
        "--probe", metavar="COMMAND", help="shell command of the probe (default: print the environment)"
    )
    parser.add_argument("--scheduler", default="", metavar="NAME", help="scheduler of the probe's pods")
    add_flags(parser, "--namespace", default="dray-fleet",
              help="namespace of the probes (default: dray-fleet, which is made)")  # fmt: skip


def _namespaced(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return namespace, name


async def run_rollout(args: argparse.Namespace, client: Client) -> int:
    """Begin or continue a rollout and follow it; exit code 1 when it did not reach its version."""
    from dray.client import NotFound
    from dray.workbench.fleet.rollout import (
        ROLLOUTS,
        RolloutDriver,
        RolloutRefused,
        create_rollout,
        install_definition,
    )

    if args.abort and not args.name:
        raise CommandError("--abort needs the NAME of a rollout", "`dray fleet rollouts` lists them")
    missing = [f"--{flag}" for flag in _START_FLAGS if not getattr(args, flag)]
    if not args.name and missing:
        raise CommandError(
            f"a new rollout needs {', '.join(missing)}", "or give the NAME of one to go on with"
        )
    try:
        await install_definition(client)
        name = args.name or await _new(args, client)
        if args.name:
            change = {"abort": True} if args.abort else {"pauseAfterCanary": False, "paused": False}
            try:
                await client.patch(ROLLOUTS, name, {"spec": change})
            except NotFound:
                known = [each["metadata"]["name"] for each in (await client.list(ROLLOUTS)).items]
                raise CommandError(
                    f"there is no rollout {name}", did_you_mean(name, known, "known"), code=1
                ) from None
        else:
            await create_rollout(client, name, _spec(args))
    except RolloutRefused as error:
        raise CommandError(str(error), error.hint, code=1) from error
    say(f"rollout {name}: Ctrl-C only stops following; `dray fleet rollout {name}` goes on")

    async def validate(snapshot: Snapshot, target: Target) -> list[str]:
        return await _validate(args, client, name, snapshot, target)

    rollout = await RolloutDriver(client, name, validate, report=say).run()
    return _finish(args, name, rollout)


async def _new(args: argparse.Namespace, client: Client) -> str:
    """Return the name of a new rollout; one that was ended before does not stand in the way."""
    from dray.workbench.fleet.rollout import ROLLOUTS

    base = re.sub(r"[^a-z0-9]+", "-", f"{args.driver}-{args.to}".lower()).strip("-")[:200]
    taken = {each["metadata"]["name"] for each in (await client.list(ROLLOUTS)).items}
    number = 1
    while f"{base}-{number}" in taken:
        number += 1
    return f"{base}-{number}"


def _spec(args: argparse.Namespace) -> DriverRolloutSpec:
    from dray.api.driver_rollouts import DaemonSetReference, DriverRolloutSpec, DriverTemplate

    namespace, name = args.daemonset
    return DriverRolloutSpec(
        driver=args.driver,
        daemon_set=DaemonSetReference(namespace=namespace, name=name, container=args.container),
        to=DriverTemplate(version=args.to, image=args.image),
        pods=args.running_pods.capitalize(),
        max_unavailable=args.max_unavailable,
        canary=args.canary,
        max_failures=args.max_failures,
        roll_back=not args.no_rollback,
        expect_published_version=args.expect_published_version,
        step_seconds=int(args.step_timeout),
        pause_after_canary=args.pause,
    )


async def _validate(
    args: argparse.Namespace, client: Client, name: str, snapshot: Snapshot, target: Target
) -> list[str]:
    """Validate the devices of one node; returns what failed."""
    from dray.workbench.fleet.probing import (
        NamespaceRefused,
        ProbeOptions,
        delete_leftovers,
        prepare_namespace,
    )
    from dray.workbench.fleet.validating import validate
    from dray.workbench.fleet.validation import DEFAULT_COMMAND, Expected, to_check
    from dray.workbench.inventory import Inventory

    node = target.rows[0].node
    labels = {"dray.dev/rollout": name[:63].rstrip("-"), "dray.dev/node": node[:63].rstrip("-.")}
    command = ["sh", "-c", args.probe] if args.probe else DEFAULT_COMMAND
    options = ProbeOptions(
        command,
        args.probe_image,
        args.namespace,
        args.scheduler,
        min(args.step_timeout, 120.0),
        labels=labels,
    )
    try:
        await prepare_namespace(client, args.namespace)
    except NamespaceRefused as error:
        return [str(error)]
    await delete_leftovers(client, args.namespace, labels)
    reports = await validate(
        client, Inventory(snapshot), to_check(target.rows), Expected(), options, lambda _text: None
    )
    return [
        f"{report.device}: {result.name}: {result.evidence}"
        for report in reports
        for result in report.results
        if result.status == "failed"
    ]


def _finish(args: argparse.Namespace, name: str, rollout: DriverRollout) -> int:
    from dray.workbench.fleet.rollout_plan import COMPLETE, FAILED, PAUSED

    status = rollout.status
    failed = [node for node in status.nodes if node.step == FAILED]
    if args.output != "table":
        emit(_row(name, rollout), args.output)
    if status.phase == PAUSED:
        say(f"{name} is paused: {status.message}")
        say(f"hint: `dray fleet rollout {name}` goes on, with --abort it is rolled back")
        return 0
    if failed:
        say(
            f"{plural(len(failed), 'node')} failed and stay tainted: {', '.join(node.name for node in failed)}"
        )
    return 0 if status.phase == COMPLETE and not failed else 1


def _row(name: str, rollout: DriverRollout) -> dict[str, Any]:
    spec, status = rollout.spec, rollout.status
    return {
        "name": name,
        "driver": spec.driver,
        "to": spec.to.version,
        "from": status.previous.version if status.previous else "",
        "phase": status.phase or "Created",
        "message": status.message,
        "nodes": [
            {
                "name": node.name,
                "step": node.step,
                "reverting": node.reverting,
                "message": node.message,
                "evidence": node.evidence,
            }
            for node in status.nodes
        ],
    }


async def list_rollouts(args: argparse.Namespace, client: Client) -> int:
    """List all rollouts."""
    from dray.api.driver_rollouts import DriverRollout
    from dray.client import NotFound
    from dray.workbench.fleet.rollout import ROLLOUTS

    try:
        found = (await client.list(ROLLOUTS, view=DriverRollout)).items
    except NotFound:
        found = []  # nobody has begun one here
    rows = [_row(each.metadata.name, each) for each in found]
    if args.output != "table":
        emit(rows, args.output)
    elif rows:
        steps = ("Updated", "Reverted", "Failed")
        table(
            ["NAME", "DRIVER", "FROM", "TO", "PHASE", "NODES", *(step.upper() for step in steps), "MESSAGE"],
            [
                [
                    row["name"],
                    row["driver"],
                    row["from"] or "-",
                    row["to"],
                    row["phase"],
                    str(len(row["nodes"])),
                    *(str(sum(node["step"] == step for node in row["nodes"])) for step in steps),
                    row["message"],
                ]
                for row in rows
            ],
        )
    else:
        say("there are no rollouts")
    return 0
