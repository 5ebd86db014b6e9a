"""Hardware profiles as people handle them: checked before use, and made from the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from dray.api.core import Node
from dray.api.features import Features
from dray.api.json_types import JsonObject
from dray.api.resource import ResourceSlice
from dray.drivers.hardware import Profile, pool_slices
from dray.sim.hardware import hardware_node
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.twin import node_profile
from dray.workbench.lint.findings import INFO
from dray.workbench.lint.objects import judge

FIELDS = ("name", "description", "labels", "taints", "allocatable", "devices")


def profile_problems(profile: Profile, document: JsonObject) -> Iterator[str]:
    """Yield what a server would refuse of a node with this hardware; raises ProfileError where no pool can be made."""
    for name in document:
        if name not in FIELDS:
            yield f"there is no field {name!r} in a profile; known: {', '.join(FIELDS)}"
    for name, wanted in (("labels", dict), ("allocatable", dict), ("taints", list)):
        if name in document and not isinstance(document[name], wanted):
            yield f"{name} must be a {'map' if wanted is dict else 'list'}"
    objects: list[Node | ResourceSlice] = [
        hardware_node(profile, "node-1"),
        *pool_slices(profile.pools("node-1")),
    ]
    for view in objects:
        obj = {"apiVersion": view.api_version, "kind": view.kind, **msgspec.to_builtins(view)}
        for problem in judge(obj, Features.everything(), "default").problems:
            if problem.severity != INFO:
                yield f"{view.kind} {view.metadata.name}: {problem.path}: {problem.message}"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with the same hardware."""

    nodes: tuple[str, ...]
    profile: Profile


def node_groups(snapshot: Snapshot, name: str = "") -> list[NodeGroup]:
    """Return the nodes that have devices of their own, those with equal hardware together, large groups first."""
    slices: dict[str, list[ResourceSlice]] = {}
    for found in snapshot.slices:
        if found.spec.node_name:
            slices.setdefault(found.spec.node_name, []).append(found)
    groups: dict[bytes, list[tuple[str, Profile]]] = {}
    for node in snapshot.nodes:
        own = slices.get(node.metadata.name)
        if own:
            profile = node_profile(node, own, name, is_general=True)
            groups.setdefault(_shape(profile), []).append((node.metadata.name, profile))
    if not groups:
        raise SnapshotError("no node of the cluster has devices of its own: no ResourceSlice names a node")
    made = [NodeGroup(tuple(name for name, _ in members), members[0][1]) for members in groups.values()]
    return sorted(made, key=lambda group: -len(group.nodes))


def _shape(profile: Profile) -> bytes:
    """Return what equal nodes have in common: devices and their attributes, not where they are plugged in."""
    return msgspec.json.encode(
        [
            (entry["driver"], sorted(_device_shape(device) for device in entry.get("devices", [])))
            for entry in sorted(profile.entries, key=lambda entry: str(entry["driver"]))
        ]
    )


def _device_shape(device: JsonObject) -> str:
    attributes: dict[str, Any] = device.get("attributes") or {}
    told = {
        key: value
        for key, value in attributes.items()
        if key.rpartition("/")[2] in ("productName", "model", "type", "architecture", "profile")
    }
    names = sorted(attributes)
    capacity = device.get("capacity") or {}
    return msgspec.json.encode([names, told, capacity], order="sorted").decode()
