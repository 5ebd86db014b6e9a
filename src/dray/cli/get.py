"""`dray get`: devices, pools, claims and nodes as people think of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import msgspec

from dray.api.quantity import parse_quantity
from dray.api.well_known import NUMA_NODE, PCIE_ROOT
from dray.cli.output import CommandError, add_output_flag, emit, say, table
from dray.cli.sources import add_source_flags, load_source
from dray.client import key_of
from dray.sim.inventory import DeviceRow, Inventory, PoolRow


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("what", choices=("devices", "pools", "claims", "nodes"), help="what to list")
    parser.add_argument("name", nargs="?", help="only this node's devices or pools, this claim, this node")
    parser.add_argument("--all", action="store_true", help="free partitions (MIG placements) too")
    parser.add_argument("-n", "--namespace", help="claims of this namespace only")
    add_output_flag(parser, "wide", "tree")
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """List."""
    snapshot = load_source(args)
    needed = {"claims": "resourceclaims", "nodes": "nodes"}.get(args.what, "resourceslices")
    if needed in snapshot.forbidden and "only those of namespace" not in snapshot.forbidden[needed]:
        raise CommandError(snapshot.forbidden[needed], "ask for the permission to list them", code=1)
    inventory = Inventory(snapshot)
    shows: dict[str, Callable[[Inventory, argparse.Namespace], list[Any]]] = {
        "devices": _devices,
        "pools": _pools,
        "claims": _claims,
        "nodes": _nodes,
    }
    found = shows[args.what](inventory, args)
    if not found and args.output not in ("json", "yaml"):
        say(f"no {args.what} found")
    return 0


def users(row: DeviceRow) -> str:
    """Return who holds a device, in words."""
    parts = []
    for use in row.uses:
        pods = f" ({','.join(use.pods)})" if use.pods else ""
        parts.append(f"{'admin: ' if use.is_admin else ''}{use.claim}{pods}")
    return ", ".join(parts) or "-"


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


def _shown(row: DeviceRow, show_all: bool) -> bool:
    return show_all or not row.is_partition or bool(row.uses)


def _devices(inventory: Inventory, args: argparse.Namespace) -> list[DeviceRow]:
    rows = [
        row
        for row in inventory.devices.values()
        if _shown(row, args.all) and args.name in (None, row.node, row.device.name)
    ]
    if args.name is not None and not rows:
        raise CommandError(
            f"no device and no node is called {args.name!r}", "`dray get nodes` lists the nodes"
        )
    rows.sort(key=lambda row: (row.node, row.driver, row.pool))
    if args.output in ("json", "yaml"):
        emit([_device_data(row) for row in rows], args.output)
    elif args.output == "tree":
        _tree(rows)
    else:
        wide = args.output == "wide"
        headers = ["NODE", "DRIVER", "DEVICE", "MODEL", "SIZE", "STATE", "USE", "HELD BY"]
        headers[7:7] = ["PCIE ROOT", "NUMA", "TAINTS"] if wide else []
        lines = []
        for row in rows:
            line = [
                row.node or "*",
                row.driver,
                row.device.name,
                row.model or "-",
                memory_of(row),
                row.state,
                f"{row.utilisation:.0%}",
            ]
            if wide:
                taints = ",".join(f"{taint.key}:{taint.effect}" for taint in row.taints) or "-"
                root = row.attribute(PCIE_ROOT) or "-"
                line += [root, row.attribute(NUMA_NODE) or "-", taints]
            lines.append([*line, users(row)])
        if lines:
            table(headers, lines)
    for key, use in inventory.lost:
        say(f"warning: {use.claim} holds {'/'.join(key)}, which is no longer published")
    return rows


def _device_data(row: DeviceRow) -> dict[str, Any]:
    return {
        "driver": row.driver,
        "pool": row.pool,
        "node": row.node or None,
        "device": row.device.name,
        "state": row.state,
        "utilisation": round(row.utilisation, 4),
        "usedBy": [
            {"claim": use.claim, "pods": use.pods, "request": use.request, "adminAccess": use.is_admin, "shareID": use.share,
             "consumed": use.consumed}
            for use in row.uses
        ],
        "taints": [msgspec.to_builtins(taint) for taint in row.taints],
        "attributes": msgspec.to_builtins(row.device.attributes or {}),
        "capacity": msgspec.to_builtins(row.device.capacity or {}),
    }  # fmt: skip


def _tree(rows: list[DeviceRow]) -> None:
    """Print nodes, their PCIe roots (or drivers), and the devices below."""
    nodes: dict[str, dict[str, list[DeviceRow]]] = {}
    for row in rows:
        root = row.attribute(PCIE_ROOT) or row.driver
        nodes.setdefault(row.node or "(every node)", {}).setdefault(root, []).append(row)
    for node, roots in nodes.items():
        print(node)
        for index, (root, devices) in enumerate(sorted(roots.items())):
            last_root = index == len(roots) - 1
            print(f"{'└─' if last_root else '├─'} {root}")
            for position, row in enumerate(devices):
                stem = "   " if last_root else "│  "
                branch = "└─" if position == len(devices) - 1 else "├─"
                detail = f"{row.device.name}  {row.model}  {row.state}"
                holder = f"  {users(row)}" if row.uses else ""
                print(f"{stem}{branch} {detail}{holder}")


def _pools(inventory: Inventory, args: argparse.Namespace) -> list[PoolRow]:
    pools = [pool for pool in inventory.pools if args.name in (None, pool.node, pool.pool)]
    rows = []
    for pool in pools:
        states = [row.state for row in pool.countable]
        rows.append(
            {
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
        )
    if args.output in ("json", "yaml"):
        emit(rows, args.output)
    elif rows:
        headers = ["DRIVER", "POOL", "NODE", "DEVICES", "USED", "FREE", "TAINTED", "PARTITIONS", "SLICES"]
        table(
            headers,
            [
                [row["driver"], row["pool"], row["node"] or "*", row["devices"], row["used"], row["free"], row["tainted"],
                 row["partitions"] or "-",
                 f"{row['slices']}/{row['expectedSlices']}" + ("" if row["slices"] == row["expectedSlices"] else " incomplete")]
                for row in rows
            ],
        )  # fmt: skip
    return pools


def _claims(inventory: Inventory, args: argparse.Namespace) -> list[dict[str, Any]]:
    claims = [
        claim
        for claim in inventory.snapshot.claims
        if args.namespace in (None, claim.metadata.namespace) and args.name in (None, claim.metadata.name)
    ]
    if args.name is not None and not claims:
        raise CommandError(f"there is no claim {args.name!r}", "`dray get claims` lists them all")
    rows: list[dict[str, Any]] = []
    for claim in claims:
        devices = inventory.of_claim(key_of(claim.metadata))
        wanted = []
        for request in claim.spec.devices.requests:
            options = [request.exactly] if request.exactly else request.first_available
            words = [
                f"{'all' if o.allocation_mode == 'All' else f'{max(1, o.count)}x'} {o.device_class_name}"
                for o in options
            ]
            wanted.append(" or ".join(words))
        state = "pending"
        if claim.status.allocation is not None:
            state = "reserved" if claim.status.reserved_for else "allocated"
        if claim.metadata.deletion_timestamp is not None:
            state += ",deleting"
        rows.append(
            {
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "state": state,
                "wants": wanted,
                "node": ",".join(sorted({row.node for row in devices if row.node})) or None,
                "devices": ["/".join(row.key) for row in devices],
                "pods": [user.name for user in claim.status.reserved_for],
            }
        )
    if args.output in ("json", "yaml"):
        emit(rows, args.output)
    elif rows:
        table(
            ["NAMESPACE", "NAME", "STATE", "WANTS", "NODE", "DEVICES", "PODS"],
            [
                [row["namespace"], row["name"], row["state"], "; ".join(row["wants"]), row["node"] or "-",
                 ",".join(device.rpartition("/")[2] for device in row["devices"]) or "-", ",".join(row["pods"]) or "-"]
                for row in rows
            ],
        )  # fmt: skip
    return rows


def _nodes(inventory: Inventory, args: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for node, pools in sorted(inventory.by_node().items()):
        if args.name not in (None, node) or (not node and not pools):
            continue
        kinds: dict[str, tuple[int, int]] = {}
        for pool in pools:
            for row in pool.countable:
                label = row.model or pool.driver
                free, total = kinds.get(label, (0, 0))
                kinds[label] = (free + (row.state == "free"), total + 1)
        pods = [pod for pod in inventory.snapshot.pods if pod.spec.node_name == node and node]
        rows.append(
            {
                "node": node or "*",
                "devices": {label: {"free": f, "total": t} for label, (f, t) in kinds.items()},
                "pods": len(pods),
            }
        )
    if args.name is not None and not rows:
        raise CommandError(f"there is no node {args.name!r}", "`dray get nodes` lists them all")
    if args.output in ("json", "yaml"):
        emit(rows, args.output)
    elif rows:
        table(
            ["NODE", "PODS", "DEVICES (free/total)"],
            [
                [
                    row["node"],
                    row["pods"],
                    ", ".join(f"{label} {c['free']}/{c['total']}" for label, c in row["devices"].items())
                    or "-",
                ]
                for row in rows
            ],
        )
    return rows
