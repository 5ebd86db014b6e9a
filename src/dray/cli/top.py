"""`dray top`: devices and claims, live.

On a terminal the screen is drawn anew on every change (a watch tells when, at least
every `--interval` seconds otherwise); elsewhere one picture is printed and that is it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import shutil
import sys
import time
from typing import Any

from dray.cli.arguments import seconds
from dray.cli.get import memory_of, users
from dray.cli.output import add_output_flag, emit, plural, table
from dray.cli.sources import add_source_flags, connect, load_source
from dray.client import ClientError
from dray.sim.inventory import DeviceRow, Inventory
from dray.sim.snapshot import Snapshot, SnapshotError, capture

_CLEAR, _HIDE, _SHOW = "\x1b[H\x1b[J", "\x1b[?25l\x1b[?1049h", "\x1b[?1049l\x1b[?25h"
SORTS = ("use", "node", "name")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--once", action="store_true", help="print once and end (as when not on a terminal)")
    parser.add_argument(
        "--interval",
        type=seconds(0.1, 3600),
        default=2.0,
        metavar="SECONDS",
        help="longest time between two pictures (default: 2)",
    )
    parser.add_argument("--sort", choices=SORTS, default="use", help="order of the devices (default: use)")
    parser.add_argument("-n", "--namespace", help="claims of this namespace only")
    add_output_flag(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Show."""
    live = not args.once and args.output == "table" and not args.against and sys.stdout.isatty()
    if live:
        return asyncio.run(_live(args))
    snapshot = load_source(args)
    if args.output != "table":
        emit(overview(Inventory(snapshot), args.namespace), args.output)
    else:
        sys.stdout.write(picture(snapshot, args.sort, args.namespace))
    return 0


def overview(inventory: Inventory, namespace: str | None) -> dict[str, Any]:
    """Return the numbers: devices by model, and claims by state."""
    return {"models": _models(inventory), "claims": _claims(inventory.snapshot, namespace)}


def _models(inventory: Inventory) -> list[dict[str, Any]]:
    by_model: dict[tuple[str, str], list[DeviceRow]] = {}
    for pool in inventory.pools:
        for row in pool.countable:
            by_model.setdefault((row.driver, row.model or row.driver), []).append(row)
    found = []
    for (driver, model), rows in sorted(by_model.items()):
        states = [row.state for row in rows]
        # Cutting a GPU blocks the whole; the share in use is that of its partitions' holder.
        busy = sum(max(row.utilisation, 1.0 if row.state == "blocked" else 0.0) for row in rows)
        found.append(
            {
                "driver": driver,
                "model": model,
                "devices": len(rows),
                "free": states.count("free"),
                "used": sum(state in ("used", "shared", "blocked") for state in states),
                "tainted": states.count("tainted"),
                "utilisation": round(busy / len(rows), 4),
            }
        )
    return found


def _claims(snapshot: Snapshot, namespace: str | None) -> dict[str, int]:
    counts = {"reserved": 0, "allocated": 0, "pending": 0}
    for claim in snapshot.claims:
        if namespace in (None, claim.metadata.namespace):
            state = "pending"
            if claim.status.allocation is not None:
                state = "reserved" if claim.status.reserved_for else "allocated"
            counts[state] += 1
    return counts


def picture(snapshot: Snapshot, sort: str, namespace: str | None, lines: int = 0) -> str:
    """Return the screen as text; `lines` is its height, 0 means: as long as it needs."""
    inventory = Inventory(snapshot)
    out = io.StringIO()
    claims = _claims(snapshot, namespace)
    running = sum(pod.status.phase == "Running" for pod in snapshot.pods)
    out.write(
        f"{plural(len(snapshot.nodes), 'node')}, {plural(len(snapshot.pods), 'pod')} ({running} running), "
        f"claims: {', '.join(f'{count} {state}' for state, count in claims.items())}\n\n"
    )
    models = _models(inventory)
    if models:
        table(
            ["MODEL", "DRIVER", "FREE", "USED", "TAINTED", "TOTAL", "USE"],
            [
                [
                    m["model"],
                    m["driver"],
                    m["free"],
                    m["used"],
                    m["tainted"],
                    m["devices"],
                    bar(m["utilisation"]),
                ]
                for m in models
            ],
            out=out,
        )
        out.write("\n")
    rows = [
        row
        for row in inventory.devices.values()
        if row.uses and any(namespace in (None, use.claim.partition("/")[0]) for use in row.uses)
    ]
    orders: dict[str, Any] = {
        "use": lambda row: (-row.utilisation, row.node, row.key),
        "node": lambda row: (row.node, row.key),
        "name": lambda row: (row.device.name, row.node),
    }
    rows.sort(key=orders[sort])
    if rows:
        room = max(1, lines - out.getvalue().count("\n") - 2) if lines else len(rows)
        table(
            ["NODE", "DEVICE", "MODEL", "SIZE", "STATE", "USE", "HELD BY"],
            [
                [row.node or "*", row.device.name, row.model or "-", memory_of(row), row.state, bar(row.utilisation, 5), users(row)]
                for row in rows[:room]
            ],
            out=out,
        )  # fmt: skip
        if len(rows) > room:
            out.write(f"… and {plural(len(rows) - room, 'more device')}\n")
    else:
        out.write("no device is in use\n")
    return out.getvalue()


def bar(share: float, width: int = 10) -> str:
    """Return a share as a bar and a number.

    >>> bar(0.5, 4)
    '##..  50%'
    """
    filled = round(share * width)
    return f"{'#' * filled}{'.' * (width - filled)} {share:4.0%}"


async def _live(args: argparse.Namespace) -> int:
    sys.stdout.write(_HIDE)
    try:
        async with connect(args.kubeconfig, args.context) as client:
            changed = asyncio.Event()
            watcher = asyncio.create_task(_watch(client, changed))
            try:
                while True:
                    changed.clear()
                    try:
                        text = picture(
                            await capture(client), args.sort, args.namespace, shutil.get_terminal_size().lines
                        )
                    except (SnapshotError, ClientError) as error:
                        text = f"{error}\n"
                    width = shutil.get_terminal_size().columns
                    clipped = "\n".join(line[:width] for line in text.splitlines())
                    sys.stdout.write(f"{_CLEAR}{time.strftime('%H:%M:%S')}  Ctrl-C ends\n{clipped}\n")
                    sys.stdout.flush()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), args.interval)
                    await asyncio.sleep(0.2)  # many changes make one picture
            finally:
                watcher.cancel()
                await asyncio.gather(watcher, return_exceptions=True)
    except asyncio.CancelledError:
        return 0
    finally:
        sys.stdout.write(_SHOW)
        sys.stdout.flush()


async def _watch(client: Any, changed: asyncio.Event) -> None:
    """Tell when a claim changes; devices that fail are seen by the next regular picture."""
    from dray.client.resources import CLAIMS

    while True:
        with contextlib.suppress(ClientError):
            async for _ in client.watch_lines(CLAIMS):
                changed.set()
        await asyncio.sleep(1)
