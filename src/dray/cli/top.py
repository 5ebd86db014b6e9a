"""`dray top`: who holds which devices and what waits, live and with keys on a terminal, printed once elsewhere.

Lines are claims (`--by device`: devices), then the jobs that wait, with the reason. What a key does is in `top_keys`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dray.api.wording import plural
from dray.cli.arguments import add_flags
from dray.cli.get import claim_state, finished_claims, memory_of, users
from dray.cli.live import add_watch_flags, show
from dray.cli.output import add_output_flag, as_data, as_table, use_colour
from dray.cli.sources import add_source_flags
from dray.cli.top_keys import KEYS, SORTS, Target, TopView
from dray.sim.snapshot import Snapshot
from dray.workbench.inventory import DeviceRow, Inventory, Use
from dray.workbench.jobs import job_states, queue_order
from dray.workbench.pictures import owner_colours, painted

_NAMES = 40  # characters of a list of devices
_ORDERS: dict[str, Callable[[DeviceRow], Any]] = {
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
        "--sort",
        choices=SORTS,
        default="use",
        help="order of the lines (default: use, the most devices first)",
    )
    parser.add_argument(
        "--by",
        choices=("claim", "device"),
        default="claim",
        help="one line for each claim, or for each device",
    )
    add_flags(parser, "--namespace", help="only claims of this namespace")
    add_output_flag(parser)
    add_watch_flags(parser)
    add_source_flags(parser)
    parser.epilog = KEYS


def run(args: argparse.Namespace) -> int:
    """Show."""
    if args.once:
        args.watch = False
    elif args.output == "table" and not args.against and sys.stdout.isatty():
        args.watch = True

    view = TopView(sort=args.sort)
    has_keys = args.watch and sys.stdout.isatty() and sys.stdin.isatty()

    def draw(snapshot: Snapshot) -> str:
        if args.output != "table":
            return as_data(overview(Inventory(snapshot), args.namespace), args.output)
        is_live = args.watch and sys.stdout.isatty()
        lines = shutil.get_terminal_size().lines if is_live else 0
        text = picture(snapshot, view, args.namespace, lines, by=args.by, with_choice=has_keys)
        return f"{text}{view.foot()}\n" if has_keys else text

    return show(args, draw, view if has_keys else None)


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
    counts = {"reserved": 0, "allocated": 0, "pending": 0, "finished": 0}
    finished = finished_claims(snapshot)
    for claim in snapshot.claims:
        if namespace in (None, claim.metadata.namespace):
            counts[claim_state(claim, finished).partition(",")[0]] += 1
    return counts


@dataclass(slots=True)
class _Line:
    """One line that can be chosen."""

    cells: Sequence[str]
    owner: str  # whose colour it has
    target: Target
    order: tuple[Any, ...] = ()


def picture(
    snapshot: Snapshot,
    view: TopView,
    namespace: str | None,
    lines: int = 0,
    *,
    by: str = "claim",
    with_choice: bool = False,
) -> str:
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
    if snapshot.hides("resourceslices"):
        return text + "devices may not be listed\n"
    held = _by_device(inventory, namespace) if by == "device" else _by_claim(inventory, namespace)
    held = sorted(
        (line for line in held if _matches(line, view)), key=lambda line: line.order[SORTS.index(view.sort)]
    )
    waiting = [line for line in _waiting(snapshot, namespace) if _matches(line, view)]
    view.targets = [line.target for line in (*held, *waiting)]
    view.chosen = max(0, min(view.chosen, len(view.targets) - 1))
    if not held and not waiting:
        return text + ("nothing matches the filter\n" if view.filter else "no device is in use\n")
    headers = _DEVICE_HEADERS if by == "device" else _CLAIM_HEADERS
    owners = dict.fromkeys(line.owner for line in (*held, *waiting))
    colours = owner_colours(owners) if use_colour() else {}
    chosen = view.chosen if with_choice else -1
    body = _block(headers, held, colours, chosen)
    body += ["", *_block(_WAITING_HEADERS, waiting, colours, chosen - len(held))] if waiting else []
    room = max(3, lines - text.count("\n") - 4) if lines else len(body)
    # What is chosen stays on the screen.
    at = view.chosen + 1 + (3 if held and view.chosen >= len(held) else 0)
    first = max(0, min(at - room + 1, len(body) - room)) if with_choice else 0
    shown = body[first : first + room]
    left = len(body) - first - len(shown)
    return text + "\n".join(shown) + "\n" + (f"… and {plural(left, 'more line')}\n" if left else "")


_CLAIM_HEADERS = ["HELD BY", "COUNT", "DEVICES", "MODEL", "NODE", "USE"]
_DEVICE_HEADERS = ["NODE", "DEVICE", "MODEL", "SIZE", "STATE", "USE", "HELD BY"]
_WAITING_HEADERS = ["WAITING", "WANTS", "REASON"]


def _matches(line: _Line, view: TopView) -> bool:
    text = " ".join(line.cells).lower()
    return all(word in text for word in view.filter.lower().split())


def _block(headers: list[str], lines: Sequence[_Line], colours: Mapping[str, str], chosen: int) -> list[str]:
    """Return a table as lines, the chosen one marked, each with the colour of its owner."""
    if not lines:
        return ["no device is in use"]
    head, *rows = as_table(headers, [line.cells for line in lines]).splitlines()
    marked = []
    for number, (line, row) in enumerate(zip(lines, rows, strict=True)):
        mark = ">" if number == chosen else " "
        marked.append(f"{painted(mark, colours.get(line.owner))} {row}")
    return [f"  {head}", *marked]


def _by_claim(inventory: Inventory, namespace: str | None) -> list[_Line]:
    by_claim: dict[str, list[tuple[DeviceRow, Use]]] = {}
    for row in inventory.devices.values():
        for use in row.uses:
            by_claim.setdefault(use.claim, []).append((row, use))
    found = []
    for claim, held in by_claim.items():
        if namespace not in (None, claim.partition("/")[0]):
            continue
        rows = [row for row, _ in held]
        use = held[0][1]
        nodes = ", ".join(sorted({row.node or "*" for row in rows}))
        models = ", ".join(sorted({row.model or row.driver for row in rows}))
        names = _some(sorted(row.device.name for row in rows))
        share = sum(row.utilisation for row in rows) / len(rows)
        cells = [str(use), str(len(rows)), names, models, nodes, bar(share, 5)]
        order = ((-len(rows), -share, claim), (nodes, claim), (claim,))
        found.append(_Line(cells, use.owner, _target(use), order))
    return found


def _by_device(inventory: Inventory, namespace: str | None) -> list[_Line]:
    found = []
    for row in inventory.devices.values():
        if not any(namespace in (None, use.claim.partition("/")[0]) for use in row.uses):
            continue
        size, use = memory_of(row), bar(row.utilisation, 5)
        cells = [row.node or "*", row.device.name, row.model or "-", size, row.state, use, users(row)]
        order = tuple(_ORDERS[name](row) for name in SORTS)
        found.append(_Line(cells, row.uses[0].owner, _target(row.uses[0]), order))
    return found


def _target(use: Use) -> Target:
    is_known = use.until is None and len(use.pods) == 1
    return Target(use.claim.partition("/")[0], use.pods[0] if is_known else "")


def _waiting(snapshot: Snapshot, namespace: str | None) -> list[_Line]:
    pods = [obj for obj in snapshot.objects if obj["kind"] == "Pod"]
    claims = [obj for obj in snapshot.objects if obj["kind"] == "ResourceClaim"]
    found = []
    for job in queue_order(job_states(pods, claims)):
        if namespace in (None, job.namespace):
            reason = " ".join(job.message.split()) or "not tried yet"
            cells = [job.key, ", ".join(job.wanted) or "-", reason]
            found.append(_Line(cells, job.key, Target(job.namespace, job.name)))
    return found


def _some(names: Sequence[str]) -> str:
    """Return names as far as there is room, and the number of the others.

    >>> _some(["gpu-0", "gpu-1"]), _some([f"gpu-{n}" for n in range(20)])[-4:]
    ('gpu-0,gpu-1', ' +14')
    """
    text = ""
    for number, name in enumerate(names):
        if len(text) + len(name) + 1 > _NAMES:
            return f"{text} +{len(names) - number}"
        text = f"{text},{name}" if text else name
    return text


def bar(share: float, width: int = 10) -> str:
    """Return a share as a bar and a number.

    >>> bar(0.5, 4)
    '##..  50%'
    """
    filled = round(share * width)
    return f"{'#' * filled}{'.' * (width - filled)} {share:4.0%}"
