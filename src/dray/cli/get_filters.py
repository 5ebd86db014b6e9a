"""Filters of `dray get`: by driver, class, state and node; values that nothing has are answered with the nearest.

Each list knows the filters that mean something for it; the others are refused, because a filter that is ignored shows
rows that nobody asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dray.cli.arguments import did_you_mean
from dray.cli.output import CommandError
from dray.sim.snapshot import Snapshot
from dray.workbench.fleet.validation import classes_by_device
from dray.workbench.inventory import DeviceRow, Inventory

DEVICE_STATES = ("free", "used", "shared", "blocked", "tainted")
CLAIM_STATES = ("pending", "allocated", "reserved", "finished", "deleting")
_STATES = {"devices": DEVICE_STATES, "claims": CLAIM_STATES}
_MEANINGFUL: Mapping[str, tuple[str, ...]] = {
    "devices": ("driver", "class", "state", "node"),
    "pools": ("driver", "node"),
    "claims": ("driver", "class", "state", "node"),
    "nodes": ("driver", "node"),
}
Keep = Callable[[Any], bool]


def add_filter_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--driver`, `--class`, `--state` and `--node`."""
    add = parser.add_argument
    add("--driver", metavar="NAME", help="only what is of this driver")
    add(
        "--class",
        dest="device_class",
        metavar="CLASS",
        help="devices: only those that this class selects; claims: only those that ask for it",
    )
    add(
        "--state",
        metavar="STATE",
        help=f"devices: {', '.join(DEVICE_STATES)}; claims: {', '.join(CLAIM_STATES)}",
    )
    add("--node", metavar="NAME", help="only what is on this node")


def row_filter(args: argparse.Namespace, inventory: Inventory) -> Keep:
    """Return whether a row of the list is wanted; raises CommandError for filters that cannot be meant."""
    wanted = {"driver": args.driver, "class": args.device_class, "state": args.state, "node": args.node}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    known = _known_values(args.what, inventory)
    for name, value in wanted.items():
        if name not in _MEANINGFUL[args.what]:
            raise CommandError(f"--{name} has no meaning for {args.what}")
        if value not in known[name]:
            raise CommandError(
                f"--{name} {value!r}: there is no such {name}", did_you_mean(value, known[name], name)
            )
    snapshot = inventory.snapshot
    classes = classes_by_device(snapshot) if args.what == "devices" and "class" in wanted else {}

    def keep(row: Any) -> bool:
        found: Mapping[str, Iterable[str]]
        if isinstance(row, DeviceRow):
            found = {
                "driver": {row.driver},
                "state": {row.state},
                "node": {row.node},
                "class": classes.get("/".join(row.key), ()),
            }
        else:
            found = _facts(args.what, row)
        return all(value in found[name] for name, value in wanted.items())

    return keep


def _facts(what: str, row: Mapping[str, Any]) -> dict[str, Iterable[str]]:
    if what == "pools":
        return {"driver": {row["driver"]}, "node": {row["node"] or ""}}
    if what == "nodes":
        return {"driver": row["drivers"], "node": {row["node"]}}
    return {
        "driver": {device.partition("/")[0] for device in row["devices"]},
        "class": row["classes"],
        "state": set(row["state"].split(",")),
        "node": (row["node"] or "").split(","),
    }


def _known_values(what: str, inventory: Inventory) -> dict[str, set[str]]:
    snapshot: Snapshot = inventory.snapshot
    return {
        "driver": {pool.driver for pool in inventory.pools},
        "class": {each.metadata.name for each in snapshot.classes},
        "state": set(_STATES.get(what, ())),
        "node": {name for name in inventory.by_node() if name},
    }
