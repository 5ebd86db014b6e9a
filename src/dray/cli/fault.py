"""`dray fault`: make a simulated device of a running `dray up` fail, or repair it.

The simulated drivers read their faults from a file in the node's folder (see `dray.drivers.faults`); this command
changes that file. The consequences (the taint, the eviction, the pod that moves) are the system's own work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dray.api.resource import DeviceTaint
from dray.api.validation.formats import label_key, label_value
from dray.cli.arguments import add_flags, did_you_mean, seconds
from dray.cli.output import CommandError, add_output_flag, emit, say, table
from dray.cli.which_system import running_state

if TYPE_CHECKING:
    from dray.drivers.faults import DeviceFault

# kind -> the flags that it understands
KINDS: dict[str, frozenset[str]] = {
    "unhealthy": frozenset({"message"}),
    "unknown": frozenset({"message"}),
    "taint": frozenset({"key", "value", "effect", "message"}),
    "vanish": frozenset(),
    "slow": frozenset({"seconds"}),
    "fail": frozenset({"message"}),
    "clear": frozenset(),
}
EFFECTS = ("NoSchedule", "NoExecute", "None")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("node", nargs="?", metavar="NODE", help="the simulated node; without it the faults are listed")
    add("device", nargs="?", metavar="DEVICE", help="its device; `all` with clear")
    add(
        "kind",
        nargs="?",
        choices=tuple(KINDS),
        help="unhealthy or unknown: report this health; taint: add a taint; vanish: remove it from the slice; slow: "
        "preparing takes --seconds; fail: preparing fails; clear: repair it",
    )
    add("--message", metavar="TEXT", help="unhealthy, unknown, taint, fail: what the driver reports")
    add("--key", metavar="KEY", help="taint: its key (default: DRIVER/broken)")
    add("--value", metavar="VALUE", help="taint: its value")
    add("--effect", choices=EFFECTS, help="taint: its effect (default: NoExecute)")
    add("--seconds", type=seconds(0, 3600), metavar="SECONDS", help="slow: how long (default: 5)")
    add("--driver", metavar="NAME", help="the driver, if several have a device of this name")
    add_flags(parser, "--data")
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Change or list faults; exit code 2 for bad input."""
    _check_flags(args)
    data = Path(running_state(args.data)["data"])
    if args.node is None:
        return _list(data, args.output)
    nodes = _folders(data / "nodes")
    if args.node not in nodes:
        raise CommandError(
            f"there is no node {args.node!r} in {data}", did_you_mean(args.node, nodes, "nodes")
        )
    _apply(args, data, nodes[args.node])
    return 0


def _folders(root: Path) -> dict[str, Path]:
    """Return the folder of each simulated node; those of light nodes are made with their first fault."""
    from dray.local.light_nodes import NAMES_FILE

    found = {path.name: path for path in root.glob("*") if path.is_dir()}
    with contextlib.suppress(OSError):
        found |= {name: root / name for name in (root / NAMES_FILE).read_text("utf-8").split()}
    return found


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags and values that the kind of fault does not understand, before anything is changed."""
    given = {name for name in frozenset().union(*KINDS.values()) if getattr(args, name) is not None}
    if args.node is not None and args.kind is None:
        raise CommandError(
            f"no fault was given for {args.device or args.node}",
            f"dray fault {args.node} DEVICE {{{','.join(KINDS)}}}; `dray get devices {args.node}` lists devices",
        )
    for name in sorted(given - KINDS.get(args.kind or "", frozenset())):
        kinds = [kind for kind, flags in KINDS.items() if name in flags]
        raise CommandError(
            f"--{name} has no meaning for {args.kind or 'the list'}", f"it belongs to {', '.join(kinds)}"
        )
    if args.device == "all" and args.kind != "clear":
        raise CommandError("`all` goes with clear only", "name one device")
    for name, problems in (("key", label_key(args.key) if args.key is not None else []),
                           ("value", label_value(args.value or ""))):  # fmt: skip
        if problems:
            raise CommandError(f"--{name} {getattr(args, name)!r}: {problems[0]}")


def _apply(args: argparse.Namespace, data: Path, folder: Path) -> None:
    from dray.drivers.faults import FaultFile

    if args.kind == "clear" and args.device == "all":
        for path in (folder / "faults").glob("*.yaml"):
            path.unlink()
        say(f"all devices of {args.node} are repaired")
        return
    driver = _driver_of(args, data, folder)
    FaultFile(folder / "faults" / f"{driver}.yaml").change(args.device, _fault(args, driver))
    device = f"{driver}/{args.node}/{args.device}"
    if args.kind == "clear":
        say(f"{device} is repaired")
    else:
        say(f"{device}: {args.kind}; `dray fault {args.node} {args.device} clear` repairs it")


def _fault(args: argparse.Namespace, driver: str) -> DeviceFault | None:
    from dray.drivers.faults import DeviceFault

    message = args.message or ""
    match args.kind:
        case "unhealthy":
            return DeviceFault(health="Unhealthy", message=message or "broken on purpose")
        case "unknown":
            return DeviceFault(health="Unknown", message=message)
        case "taint":
            key, effect = args.key or f"{driver}/broken", args.effect or "NoExecute"
            return DeviceFault(
                taint=DeviceTaint(key=key, value=args.value or "", effect=effect), message=message
            )
        case "vanish":
            return DeviceFault(vanish=True)
        case "slow":
            return DeviceFault(prepare_seconds=5.0 if args.seconds is None else args.seconds)
        case "fail":
            return DeviceFault(prepare_error=message or "broken on purpose")
    return None


def _driver_of(args: argparse.Namespace, data: Path, folder: Path) -> str:
    """Return the driver whose device is meant: from the slices, or from the faults of one that vanished."""
    from dray.drivers.faults import FaultFile

    names = asyncio.run(_published(data, args.node))
    names += [
        (path.stem, device)
        for path in sorted((folder / "faults").glob("*.yaml"))
        for device in FaultFile(path).read().devices
    ]
    drivers = sorted({driver for driver, _ in names})
    if args.driver is not None and args.driver not in drivers:
        raise CommandError(
            f"node {args.node} has no driver {args.driver!r}", did_you_mean(args.driver, drivers, "drivers")
        )
    owners = sorted({driver for driver, name in names if name == args.device})
    if args.driver is not None:
        owners = [driver for driver in owners if driver == args.driver]
    if not owners:
        known = {name for _, name in names}
        raise CommandError(
            f"node {args.node} has no device {args.device!r}", did_you_mean(args.device, known, "devices")
        )
    if len(owners) > 1:
        raise CommandError(
            f"{args.device} is a device of {' and of '.join(owners)}", f"add --driver {owners[0]}"
        )
    return owners[0]


async def _published(data: Path, node: str) -> list[tuple[str, str]]:
    from dray.client import Client
    from dray.sim.snapshot import capture

    async with Client.connect(data / "admin.kubeconfig") as client:
        slices = (await capture(client)).slices
    return [
        (found.spec.driver, device.name) for found in slices for device in found.spec.devices
        if node in (found.spec.node_name, device.node_name)
    ]  # fmt: skip


def _list(data: Path, output: str) -> int:
    from dray.drivers.faults import FaultFile

    rows: list[dict[str, Any]] = [
        {
            "node": path.parent.parent.name,
            "driver": path.stem,
            "device": device,
            "fault": msgspec.to_builtins(fault),
        }
        for path in sorted((data / "nodes").glob("*/faults/*.yaml"))
        for device, fault in FaultFile(path).read().devices.items()
    ]
    if output != "table":
        emit(rows, output)
    elif rows:
        lines = [
            [
                row["node"],
                row["driver"],
                row["device"],
                ", ".join(f"{k}={v}" for k, v in row["fault"].items()),
            ]
            for row in rows
        ]
        table(["NODE", "DRIVER", "DEVICE", "FAULT"], lines)
    else:
        say("there are no faults")
    return 0
