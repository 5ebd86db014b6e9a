"""`dray get`: devices, pools, claims and nodes, and who uses them.

Each list is a table of columns over rows: `-o json` and `-o yaml` print the rows as data, the other formats the columns.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from dray.api.quantity import parse_quantity
from dray.api.resource import DeviceRequest, ResourceClaim
from dray.api.well_known import NUMA_NODE, PCIE_ROOT, TERMINAL_PHASES
from dray.cli.arguments import add_flags, did_you_mean
from dray.cli.get_filters import add_filter_flags, row_filter
from dray.cli.live import add_watch_flags, show
from dray.cli.output import CommandError, add_output_flag, as_data, as_table, say
from dray.cli.sources import add_source_flags, need
from dray.client import key_of
from dray.scheduler import NotReady, claim_keys
from dray.sim.snapshot import Snapshot
from dray.workbench.inventory import DeviceRow, Inventory, PoolRow

_RESOURCES = {"claims": "resourceclaims", "nodes": "nodes"}  # what is listed -> what must be permitted
Row = dict[str, Any]
Columns = dict[str, Callable[[Any], object]]  # header -> cell of a row


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("what", choices=tuple(_LISTS), help="what to list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this node, claim, pool or device")
    parser.add_argument("-a", "--all", action="store_true", help="include free partitions (MIG placements)")
    add_flags(parser, "--namespace", help="only claims of this namespace")
    add_filter_flags(parser)
    add_output_flag(parser, "table", "wide", "tree")
    add_watch_flags(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """List."""
    return show(args, lambda snapshot: listing(snapshot, args), only_views=True)


def listing(snapshot: Snapshot, args: argparse.Namespace) -> str:
    """Return the list that was asked for, in the format that was asked for."""
    needed = _RESOURCES.get(args.what, "resourceslices")
    need(snapshot, needed)
    inventory = Inventory(snapshot)
    rows_of, columns, data_of = _LISTS[args.what]
    keep = row_filter(args, inventory)
    rows = rows_of(inventory, args)
    is_known = bool(rows)
    rows = [row for row in rows if keep(row)]
    if args.what == "devices":
        for key, use in inventory.lost:
            say(f"warning: {use.claim} holds {'/'.join(key)}, which is no longer published")
    if args.name is not None and not is_known:
        known = _names(inventory, args.what)
        raise CommandError(
            f"there are no {args.what} of {args.name!r}", did_you_mean(args.name, known, "known")
        )
    if args.output in ("json", "yaml"):
        return as_data([data_of(row) for row in rows], args.output)
    if not rows:
        say(f"no {args.what} found")
        return ""
    if args.output == "tree" and args.what == "devices":
        return _tree(rows)
    shown = {**_DEVICE, **_WIDE, **_HELD} if args.what == "devices" and args.output == "wide" else columns
    return as_table(list(shown), [[cell(row) for cell in shown.values()] for row in rows])


def _names(inventory: Inventory, what: str) -> set[str]:
    """Return the names by which rows of a list can be chosen."""
    if what == "claims":
        return {claim.metadata.name for claim in inventory.snapshot.claims}
    names = {node for node in inventory.by_node() if node}
    if what == "pools":
        names |= {pool.pool for pool in inventory.pools}
    elif what == "devices":
        names |= {row.device.name for row in inventory.devices.values()}
    return names


# --- devices ------------------------------------------------------------------------------------


def users(row: DeviceRow) -> str:
    """Return who holds a device: claims with their pods; of others the user and until when."""
    return ", ".join(map(str, row.uses)) or "-"


def memory_of(row: DeviceRow) -> str:
    """Return a device's memory in short, or its first capacity."""
    capacity = row.device.capacity or {}
    for name in ("memory", *capacity):
        if name in capacity:
            amount = parse_quantity(capacity[name].value)
            if name.endswith("memory"):
                return f"{amount.as_approximate_float() / 2**30:.0f}Gi"
            return f"{amount} {name.rpartition('/')[2]}"
    return "-"


def _device_rows(inventory: Inventory, args: argparse.Namespace) -> list[DeviceRow]:
    rows = [
        row
        for row in inventory.devices.values()
        if (args.all or not row.is_partition or row.uses) and args.name in (None, row.node, row.device.name)
    ]
    return sorted(rows, key=lambda row: (row.node, row.driver, row.pool))


_DEVICE: Columns = {
    "NODE": lambda row: row.node or "*",
    "DRIVER": lambda row: row.driver,
    "DEVICE": lambda row: row.device.name,
    "MODEL": lambda row: row.model or "-",
    "SIZE": memory_of,
    "STATE": lambda row: row.state,
    "USE": lambda row: f"{row.utilisation:.0%}",
}
_HELD: Columns = {"HELD BY": users}
_WIDE: Columns = {
    "PCIE ROOT": lambda row: row.attribute(PCIE_ROOT) or "-",
    "NUMA": lambda row: row.attribute(NUMA_NODE) or "-",
    "TAINTS": lambda row: ",".join(f"{taint.key}:{taint.effect}" for taint in row.taints) or "-",
}


def _device_data(row: DeviceRow) -> Row:
    uses = [
        {"claim": use.claim, "pods": use.pods, "request": use.request, "adminAccess": use.is_admin,
         "shareID": use.share, "consumed": use.consumed}
        for use in row.uses
    ]  # fmt: skip
    return {
        "driver": row.driver,
        "pool": row.pool,
        "node": row.node or None,
        "device": row.device.name,
        "state": row.state,
        "utilisation": round(row.utilisation, 4),
        "usedBy": uses,
        "taints": [msgspec.to_builtins(taint) for taint in row.taints],
        "attributes": msgspec.to_builtins(row.device.attributes or {}),
        "capacity": msgspec.to_builtins(row.device.capacity or {}),
    }


def _tree(rows: Iterable[DeviceRow]) -> str:
    """Return nodes, their PCIe roots (or drivers), and the devices below."""
    nodes: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        root = row.attribute(PCIE_ROOT) or row.driver
        holder = f"  {users(row)}" if row.uses else ""
        text = f"{row.device.name}  {row.model}  {row.state}{holder}"
        nodes.setdefault(row.node or "(every node)", {}).setdefault(root, []).append(text)
    lines = []
    for node, roots in nodes.items():
        lines.append(node)
        for root, devices in sorted(roots.items()):
            is_last = root == max(roots)
            lines.append(f"{'└─' if is_last else '├─'} {root}")
            stem = "   " if is_last else "│  "
            lines += [f"{stem}├─ {text}" for text in devices[:-1]]
            lines.append(f"{stem}└─ {devices[-1]}")
    return "\n".join(lines) + "\n"


# --- pools, claims, nodes -------------------------------------------------------------------------


def _pool_rows(inventory: Inventory, args: argparse.Namespace) -> list[Row]:
    return [_pool(pool) for pool in inventory.pools if args.name in (None, pool.node, pool.pool)]


def _pool(pool: PoolRow) -> Row:
    states = [row.state for row in pool.countable]
    return {
        "driver": pool.driver,
        "pool": pool.pool,
        "node": pool.node or None,
        "generation": pool.generation,
        "slices": pool.slices,
        "expectedSlices": pool.expected_slices,
        "devices": len(states),
        "used": sum(state in ("used", "shared", "blocked") for state in states),
        "free": states.count("free"),
        "tainted": states.count("tainted"),
        "partitions": len(pool.devices) - len(states),
    }


def _slices(row: Row) -> str:
    count = f"{row['slices']}/{row['expectedSlices']}"
    return count if row["slices"] == row["expectedSlices"] else f"{count} incomplete"


_POOL: Columns = {
    "DRIVER": lambda row: row["driver"],
    "POOL": lambda row: row["pool"],
    "NODE": lambda row: row["node"] or "*",
    "DEVICES": lambda row: row["devices"],
    "USED": lambda row: row["used"],
    "FREE": lambda row: row["free"],
    "TAINTED": lambda row: row["tainted"],
    "PARTITIONS": lambda row: row["partitions"] or "-",
    "SLICES": _slices,
}


def _claim_rows(inventory: Inventory, args: argparse.Namespace) -> list[Row]:
    finished = finished_claims(inventory.snapshot)
    return [
        _claim(inventory, claim, finished)
        for claim in inventory.snapshot.claims
        if args.namespace in (None, claim.metadata.namespace) and args.name in (None, claim.metadata.name)
    ]


def _claim(inventory: Inventory, claim: ResourceClaim, finished: Collection[str]) -> Row:
    devices = inventory.of_claim(key_of(claim.metadata))
    return {
        "namespace": claim.metadata.namespace,
        "name": claim.metadata.name,
        "state": claim_state(claim, finished),
        "wants": [_wanted(request) for request in claim.spec.devices.requests],
        "classes": sorted({name for request in claim.spec.devices.requests for name in _classes(request)}),
        "node": ",".join(sorted({row.node for row in devices if row.node})) or None,
        "devices": ["/".join(row.key) for row in devices],
        "pods": [user.name for user in claim.status.reserved_for],
    }


def finished_claims(snapshot: Snapshot) -> set[str]:
    """Return the claims whose pods are all over: they hold nothing, and wait for nothing."""
    over: set[str] = set()
    living: set[str] = set()
    for pod in snapshot.pods:
        keys = claim_keys(pod)
        if not isinstance(keys, NotReady):
            (over if pod.status.phase in TERMINAL_PHASES else living).update(keys)
    return over - living


def claim_state(claim: ResourceClaim, finished: Collection[str] = ()) -> str:
    """Return one word for a claim: pending, allocated, reserved, or finished with its pods."""
    state = "finished" if key_of(claim.metadata) in finished else "pending"
    if claim.status.allocation is not None:
        state = "reserved" if claim.status.reserved_for else "allocated"
    return state + (",deleting" if claim.metadata.deletion_timestamp is not None else "")


def _classes(request: DeviceRequest) -> list[str]:
    options = [request.exactly] if request.exactly else request.first_available
    return [each.device_class_name for each in options]


def _wanted(request: DeviceRequest) -> str:
    options = [request.exactly] if request.exactly else request.first_available
    return " or ".join(
        f"{'all' if each.allocation_mode == 'All' else f'{max(1, each.count)}x'} {each.device_class_name}"
        for each in options
    )


_CLAIM: Columns = {
    "NAMESPACE": lambda row: row["namespace"],
    "NAME": lambda row: row["name"],
    "STATE": lambda row: row["state"],
    "WANTS": lambda row: "; ".join(row["wants"]),
    "NODE": lambda row: row["node"] or "-",
    "DEVICES": lambda row: ",".join(device.rpartition("/")[2] for device in row["devices"]) or "-",
    "PODS": lambda row: ",".join(row["pods"]) or "-",
}


def _node_rows(inventory: Inventory, args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    pods = Counter(pod.spec.node_name for pod in inventory.snapshot.pods)
    for node, pools in sorted(inventory.by_node().items()):
        if args.name not in (None, node) or not (node or pools):
            continue
        devices: dict[str, dict[str, int]] = {}
        for pool in pools:
            for row in pool.countable:
                count = devices.setdefault(row.model or pool.driver, {"free": 0, "total": 0})
                count["free"] += row.state == "free"
                count["total"] += 1
        drivers = sorted({pool.driver for pool in pools})
        rows.append(
            {"node": node or "*", "devices": devices, "pods": pods[node] if node else 0, "drivers": drivers}
        )
    return rows


_NODE: Columns = {
    "NODE": lambda row: row["node"],
    "PODS": lambda row: row["pods"],
    "DEVICES (free/total)": lambda row: (
        ", ".join(f"{model} {count['free']}/{count['total']}" for model, count in row["devices"].items())
        or "-"
    ),
}

# what -> (rows, columns, data of a row)
_LISTS: dict[
    str, tuple[Callable[[Inventory, argparse.Namespace], list[Any]], Columns, Callable[[Any], Row]]
] = {
    "devices": (_device_rows, {**_DEVICE, **_HELD}, _device_data),
    "pools": (_pool_rows, _POOL, dict),
    "claims": (_claim_rows, _CLAIM, dict),
    "nodes": (_node_rows, _NODE, dict),
}
