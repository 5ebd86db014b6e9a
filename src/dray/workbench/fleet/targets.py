"""Which devices a command means: a node, a pool (`DRIVER/POOL`) or one device (`DRIVER/POOL/DEVICE`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.workbench.inventory import DeviceRow, Inventory


class TargetError(ValueError):
    """A target that does not exist; `known` are names of the same sort."""

    def __init__(self, message: str, known: list[str]) -> None:
        super().__init__(message)
        self.known = known


@dataclass(frozen=True, slots=True)
class Target:
    """Devices as DeviceTaintRules name them."""

    name: str  # as it was given
    selectors: tuple[JsonObject, ...]  # of DeviceTaintRules that together name exactly these devices
    rows: tuple[DeviceRow, ...]


def resolve(text: str, inventory: Inventory) -> Target:
    """Return the devices that a text names; raises TargetError.

    A node stands for its own devices. A pool that lies on several nodes is named device by device then, so that
    those of other nodes stay in use.
    """
    parts = text.split("/", 2)
    if len(parts) == 1:
        return _of_node(text, inventory)
    driver, pool = parts[0], parts[1]
    rows = [row for row in inventory.devices.values() if (row.driver, row.pool) == (driver, pool)]
    if not rows:
        pools = sorted({f"{row.driver}/{row.pool}" for row in inventory.devices.values()})
        raise TargetError(f"no pool {driver}/{pool} is published", pools)
    selector: JsonObject = {"driver": driver, "pool": pool}
    if len(parts) == 3:
        names = sorted(f"{driver}/{pool}/{row.device.name}" for row in rows)
        rows = [row for row in rows if row.device.name == parts[2]]
        if not rows:
            raise TargetError(f"pool {driver}/{pool} has no device {parts[2]}", names)
        selector["device"] = parts[2]
    return Target(text, (selector,), tuple(rows))


def _of_node(node: str, inventory: Inventory) -> Target:
    nodes = sorted(
        {found.metadata.name for found in inventory.snapshot.nodes}
        | {row.node for row in inventory.devices.values() if row.node}
    )
    if node not in nodes:
        raise TargetError(f"there is no node {node}", nodes)
    rows = [row for row in inventory.devices.values() if row.node == node]
    if not rows:
        raise TargetError(f"node {node} has no devices of its own", [])
    return Target(node, selectors_of(rows, inventory), tuple(rows))


def selectors_of(rows: Iterable[DeviceRow], inventory: Inventory) -> tuple[JsonObject, ...]:
    """Return what selects these devices: whole pools where all of a pool is among them."""
    keys = {row.key for row in rows}
    selectors: list[JsonObject] = []
    for pool in inventory.pools:
        own = [row for row in pool.devices if row.key in keys]
        if own and len(own) == len(pool.devices):
            selectors.append({"driver": pool.driver, "pool": pool.pool})
        else:
            selectors += [
                {"driver": pool.driver, "pool": pool.pool, "device": row.device.name} for row in own
            ]
    return tuple(selectors)
