"""`dray fault`: break a simulated device of a running `dray up`, and heal it again.

The simulated drivers read their faults from a file beside the node (see
`dray.drivers.faults`); this command finds the file and changes it. What follows (the
taint, the eviction, the pod that moves) is the system's own doing.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
from pathlib import Path
from typing import Any

import msgspec

from dray.cli.arguments import seconds
from dray.cli.output import CommandError, add_output_flag, emit, say, table
from dray.cli.up import current_data

KINDS = ("unhealthy", "unknown", "taint", "vanish", "slow", "fail", "clear")
EFFECTS = ("NoSchedule", "NoExecute", "None")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("node", nargs="?", metavar="NODE", help="the simulated node; none: list the faults")
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="its device; `all` with clear")
    parser.add_argument(
        "kind",
        nargs="?",
        choices=KINDS,
        help="unhealthy, unknown: its health; taint: with --key; vanish: it leaves the slice; slow: preparing takes "
        "--seconds; fail: preparing fails; clear: heal it",
    )
    parser.add_argument("--message", default="", help="what the driver says about it")
    parser.add_argument("--key", default="", metavar="KEY", help="taint: its key (default: DRIVER/broken)")
    parser.add_argument("--value", default="", metavar="VALUE", help="taint: its value")
    parser.add_argument(
        "--effect", choices=EFFECTS, default="NoExecute", help="taint: its effect (default: NoExecute)"
    )
    parser.add_argument(
        "--seconds", type=seconds(0, 3600), default=5.0, metavar="N", help="slow: how long (default: 5)"
    )
    parser.add_argument("--driver", default="", help="the driver, where several have a device of this name")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the system (default: the latest started)"
    )
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Change or list faults; exit code 2 for bad input."""
    data = _running(current_data(args.data))
    if args.node is None:
        return _list(data, args.output)
    if args.device is None or args.kind is None:
        raise CommandError(
            f"what shall happen to {args.device or args.node}?",
            f"dray fault {args.node} DEVICE {{{','.join(KINDS)}}}; `dray get devices {args.node}` lists devices",
        )
    folder = data / "nodes" / args.node
    if not folder.is_dir():
        known = sorted(path.name for path in (data / "nodes").glob("*") if path.is_dir())
        near = difflib.get_close_matches(args.node, known, n=1)
        raise CommandError(
            f"there is no node {args.node!r} in {data}",
            f"did you mean {near[0]}?" if near else f"nodes: {', '.join(known) or 'none'}",
        )
    _apply(args, data, folder)
    return 0


def _running(data: Path) -> Path:
    from dray.sim.running_system import is_running, read_state

    state = read_state(data)
    if state is None or not is_running(state):
        raise CommandError(
            f"no system runs in {data}", "`dray up --sim dgx-h100` starts one; --data names its folder"
        )
    return data


def _apply(args: argparse.Namespace, data: Path, folder: Path) -> None:
    from dray.drivers.faults import FaultFile

    if args.kind == "clear" and args.device == "all":
        for path in (folder / "faults").glob("*.yaml"):
            path.unlink()
        say(f"all devices of {args.node} are well")
        return
    driver = args.driver or _driver_of(data, args.node, args.device, folder)
    path = folder / "faults" / f"{driver}.yaml"
    try:
        FaultFile(path).change(args.device, _fault(args, driver))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    say(
        f"{driver}/{args.node}/{args.device} is well"
        if args.kind == "clear"
        else f"{driver}/{args.node}/{args.device}: {args.kind}; heal it with `dray fault {args.node} {args.device} clear`"
    )


def _fault(args: argparse.Namespace, driver: str) -> Any:
    from dray.api.resource import DeviceTaint
    from dray.drivers.faults import DeviceFault

    match args.kind:
        case "unhealthy":
            return DeviceFault(health="Unhealthy", message=args.message or "broken on purpose")
        case "unknown":
            return DeviceFault(health="Unknown", message=args.message)
        case "taint":
            key = args.key or f"{driver}/broken"
            return DeviceFault(
                taint=DeviceTaint(key=key, value=args.value, effect=args.effect), message=args.message
            )
        case "vanish":
            return DeviceFault(vanish=True)
        case "slow":
            return DeviceFault(prepare_seconds=args.seconds)
        case "fail":
            return DeviceFault(prepare_error=args.message or "broken on purpose")
    return None


def _driver_of(data: Path, node: str, device: str, folder: Path) -> str:
    """Return the driver whose device is meant: from the slices, or from the faults of one that vanished."""
    from dray.drivers.faults import FaultFile

    names = asyncio.run(_published(data, node))
    owners = sorted({driver for driver, name in names if name == device})
    if not owners:
        owners = [
            path.stem
            for path in sorted((folder / "faults").glob("*.yaml"))
            if device in FaultFile(path).read().devices
        ]
    if not owners:
        known = sorted({name for _, name in names})
        near = difflib.get_close_matches(device, known, n=3, cutoff=0.4) or known[:5]
        raise CommandError(
            f"node {node} has no device {device!r}",
            f"nearest: {', '.join(near)}" if near else f"node {node} publishes nothing",
        )
    if len(owners) > 1:
        raise CommandError(f"{device} is a device of {' and of '.join(owners)}", f"add --driver {owners[0]}")
    return owners[0]


async def _published(data: Path, node: str) -> list[tuple[str, str]]:
    from dray.client import Client, ClientError
    from dray.sim.inventory import Inventory
    from dray.sim.snapshot import SnapshotError, capture

    try:
        async with Client.connect(data / "admin.kubeconfig") as client:
            inventory = Inventory(await capture(client))
    except (ClientError, SnapshotError) as error:
        raise CommandError(
            f"the devices cannot be listed: {error}", "name the driver with --driver"
        ) from error
    return [(row.driver, row.device.name) for row in inventory.devices.values() if row.node == node]


def _list(data: Path, output: str) -> int:
    from dray.drivers.faults import FaultFile

    rows: list[dict[str, Any]] = []
    for path in sorted((data / "nodes").glob("*/faults/*.yaml")):
        for device, fault in FaultFile(path).read().devices.items():
            rows.append(
                {
                    "node": path.parent.parent.name,
                    "driver": path.stem,
                    "device": device,
                    "fault": msgspec.to_builtins(fault),
                }
            )
    if output != "table":
        emit(rows, output)
    elif rows:
        table(
            ["NODE", "DRIVER", "DEVICE", "FAULT"],
            [
                [
                    row["node"],
                    row["driver"],
                    row["device"],
                    ", ".join(f"{k}={v}" for k, v in row["fault"].items()),
                ]
                for row in rows
            ],
        )
    else:
        say("all devices are well")
    return 0
