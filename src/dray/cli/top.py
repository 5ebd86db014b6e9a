"""`dray top`: devices in use and claims, live on a terminal, printed once elsewhere."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from typing import Any

from dray.cli.arguments import add_flags
from dray.cli.get import claim_state, memory_of, users
from dray.cli.live import add_watch_flags, show
from dray.cli.output import add_output_flag, as_data, as_table, plural
from dray.cli.sources import add_source_flags
from dray.sim.snapshot import Snapshot
from dray.workbench.inventory import DeviceRow, Inventory

SORTS: dict[str, Callable[[DeviceRow], Any]] = {
    "use": lambda row: (-row.utilisation, row.node, row.key),
    "node": lambda row: (row.node, row.key),
    "name": lambda row: (row.device.name, row.node),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--once", action="store_true", help="print once and exit (the default without a terminal)"
    )
    parser.add_argument(
        "--sort", choices=tuple(SORTS), default="use", help="order of the devices (default: use)"
    )
    add_flags(parser, "--namespace", help="only claims of this namespace")
    add_output_flag(parser)
    add_watch_flags(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Show."""
    if args.once:
        args.watch = False
    elif args.output == "table" and not args.against and sys.stdout.isatty():
        args.watch = True

    def draw(snapshot: Snapshot) -> str:
        if args.output != "table":
            return as_data(overview(Inventory(snapshot), args.namespace), args.output)
        is_live = args.watch and sys.stdout.isatty()
        return picture(
            snapshot, args.sort, args.namespace, shutil.get_terminal_size().lines if is_live else 0
        )

    return show(args, draw)


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
        # A partition in use blocks the whole GPU, which then counts as used.
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
            counts[claim_state(claim).partition(",")[0]] += 1
    return counts


def picture(snapshot: Snapshot, sort: str, namespace: str | None, lines: int = 0) -> str:
    """Return the screen as text; `lines` is its height, 0 means: as long as it needs."""
    inventory = Inventory(snapshot)
    running = sum(pod.status.phase == "Running" for pod in snapshot.pods)
    claims = ", ".join(f"{count} {state}" for state, count in _claims(snapshot, namespace).items())
    text = f"{plural(len(snapshot.nodes), 'node')}, {plural(len(snapshot.pods), 'pod')} ({running} running), claims: {claims}\n\n"
    models = _models(inventory)
    if models:
        names = ("model", "driver", "free", "used", "tainted", "devices")
        headers = ["MODEL", "DRIVER", "FREE", "USED", "TAINTED", "TOTAL", "USE"]
        cells = [[*(model[name] for name in names), bar(model["utilisation"])] for model in models]
        text += as_table(headers, cells) + "\n"
    rows = [
        row
        for row in inventory.devices.values()
        if any(namespace in (None, use.claim.partition("/")[0]) for use in row.uses)
    ]
    if snapshot.hides("resourceslices"):
        return text + "devices may not be listed\n"
    if not rows:
        return text + "no device is in use\n"
    rows.sort(key=SORTS[sort])
    room = max(1, lines - text.count("\n") - 4) if lines else len(rows)
    headers = ["NODE", "DEVICE", "MODEL", "SIZE", "STATE", "USE", "HELD BY"]
    text += as_table(headers, [_cells(row) for row in rows[:room]])
    return text + (f"… and {plural(len(rows) - room, 'more device')}\n" if len(rows) > room else "")


def _cells(row: DeviceRow) -> list[str]:
    use = bar(row.utilisation, 5)
    return [row.node or "*", row.device.name, row.model or "-", memory_of(row), row.state, use, users(row)]


def bar(share: float, width: int = 10) -> str:
    """Return a share as a bar and a number.

    >>> bar(0.5, 4)
    '##..  50%'
    """
    filled = round(share * width)
    return f"{'#' * filled}{'.' * (width - filled)} {share:4.0%}"
