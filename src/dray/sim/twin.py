"""A copy of a cluster: its nodes with their hardware as profiles, and the objects that belong to it.

    twin = make_twin(snapshot)
    twin.nodes      # (name, Profile): labels, taints, capacity, and devices as they were published
    twin.objects    # what to create on the server, in order

Pools of one node are published again by a simulated driver of that node; pools that several nodes reach are
objects like others, and the driver of every node can prepare their devices (`reachable`). Only the newest generation of
a pool counts. Workloads come without placements: the scheduler of the copy decides anew.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dray.api.core import Node
from dray.api.json_types import JsonObject
from dray.api.resource import ResourceSlice
from dray.api.well_known import NOT_READY_KEY, TERMINAL_PHASES, UNREACHABLE_KEY
from dray.client.resources import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_CLASSES,
    NAMESPACES,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    SLICES,
    TAINT_RULES,
    Resource,
)
from dray.drivers.hardware import PoolModel, Profile
from dray.sim.snapshot import Snapshot, SnapshotError

# Taints that controllers of the copy set by themselves.
_PASSING_TAINTS = (NOT_READY_KEY, UNREACHABLE_KEY)
_OWN_PRIORITIES = ("system-node-critical", "system-cluster-critical")  # every server has them
_ALWAYS: tuple[Resource, ...] = (NAMESPACES, PRIORITY_CLASSES, DEVICE_CLASSES, TAINT_RULES)
_WORKLOADS: tuple[Resource, ...] = (CLAIM_TEMPLATES, POD_GROUPS, CLAIMS, PODS)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Twin:
    """What to start and to create for a copy of a cluster."""

    nodes: tuple[tuple[str, Profile], ...]
    reachable: tuple[PoolModel, ...] = ()  # pools that several nodes reach
    objects: tuple[tuple[Resource, JsonObject], ...] = field(default=())
    workloads: tuple[tuple[Resource, JsonObject], ...] = field(
        default=()
    )  # to create once the nodes are ready

    @property
    def drivers(self) -> frozenset[str]:
        """Return the names of all drivers."""
        local = {str(entry["driver"]) for _, profile in self.nodes for entry in profile.entries}
        return frozenset(local | {pool.driver for pool in self.reachable})


def make_twin(snapshot: Snapshot, *, with_workloads: bool = False) -> Twin:
    """Return the copy of a cluster; raises SnapshotError when it has no nodes."""
    if not snapshot.nodes:
        raise SnapshotError("the snapshot has no nodes: there is nothing to copy")
    newest = _newest(snapshot.slices)
    names = {node.metadata.name for node in snapshot.nodes}
    local: dict[str, list[ResourceSlice]] = {name: [] for name in names}
    shared: list[ResourceSlice] = []
    for found in newest:
        if not found.spec.node_name:
            shared.append(found)
        elif found.spec.node_name in names:
            local[found.spec.node_name].append(found)
    nodes = tuple(
        (node.metadata.name, node_profile(node, local[node.metadata.name])) for node in snapshot.nodes
    )
    kept = {found.metadata.name for found in shared}

    def copied(resources: Sequence[Resource]) -> tuple[tuple[Resource, JsonObject], ...]:
        return tuple(
            (resource, fresh(obj))
            for resource in resources
            for obj in snapshot.objects
            if obj.get("kind") == resource.kind and _is_wanted(obj, resource, kept)
        )

    objects = copied([*_ALWAYS, SLICES, RESOURCE_QUOTAS])
    return Twin(nodes, tuple(_shared_pools(shared)), objects, copied(_WORKLOADS) if with_workloads else ())


def _newest(slices: Iterable[ResourceSlice]) -> list[ResourceSlice]:
    slices = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for found in slices:
        key = found.spec.driver, found.spec.pool.name
        newest[key] = max(newest.get(key, 0), found.spec.pool.generation)
    current = (
        found
        for found in slices
        if found.spec.pool.generation == newest[found.spec.driver, found.spec.pool.name]
    )
    # The order of devices is their preference; drivers number the slices of a pool in their names.
    return sorted(current, key=lambda found: (found.spec.driver, found.spec.pool.name, found.metadata.name))


def _shared_pools(slices: Sequence[ResourceSlice]) -> list[PoolModel]:
    devices: dict[tuple[str, str], list[Any]] = {}
    for found in slices:
        devices.setdefault((found.spec.driver, found.spec.pool.name), []).extend(found.spec.devices)
    return [PoolModel(driver, pool, tuple(each)) for (driver, pool), each in devices.items()]


def _is_wanted(obj: JsonObject, resource: Resource, shared: set[str]) -> bool:
    metadata = obj.get("metadata") or {}
    name = metadata.get("name")
    if resource is SLICES:
        return name in shared
    if resource is PRIORITY_CLASSES:
        return name not in _OWN_PRIORITIES
    if resource is CLAIMS:  # claims from templates are made again
        return not any(owner.get("kind") == "Pod" for owner in metadata.get("ownerReferences") or [])
    if resource is PODS:
        return (obj.get("status") or {}).get("phase") not in TERMINAL_PHASES
    return not metadata.get("deletionTimestamp")


def fresh(obj: JsonObject) -> JsonObject:
    """Return an object as somebody would create it: without status, owners and places."""
    metadata = obj.get("metadata") or {}
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
    made = {key: copy.deepcopy(value) for key, value in obj.items() if key not in ("metadata", "status")}
    made["metadata"] = kept
    spec = made.get("spec")
    if obj.get("kind") == "Pod" and isinstance(spec, dict):
        for field_name in ("nodeName", "priority", "preemptionPolicy", "volumes", "runtimeClassName"):
            spec.pop(field_name, None)
        for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
            # What the container did is not known, and must not happen twice.
            container["command"] = ["sleep", "infinity"]
        spec["initContainers"] = [
            container
            for container in spec.get("initContainers") or []
            if container.get("restartPolicy") == "Always"
        ]
        spec.setdefault("terminationGracePeriodSeconds", 0)
    if obj.get("kind") == "ResourceSlice" and isinstance(spec, dict):
        spec["pool"] = {**spec["pool"], "generation": 1}
    return made


# --- profiles -------------------------------------------------------------------------------


def node_profile(
    node: Node, slices: Sequence[ResourceSlice], name: str = "", *, is_general: bool = False
) -> Profile:
    """Return the profile of a node: what stands in it, as its drivers published it.

    `is_general`: the profile describes any number of such nodes, so the node's name and the UUIDs of its devices become
    placeholders, and labels with the node's name are left out.
    """
    pools: dict[tuple[str, str], JsonObject] = {}
    for found in slices:
        spec = found.spec
        entry = pools.setdefault(
            (spec.driver, spec.pool.name),
            {"kind": "published", "driver": spec.driver, "pool": spec.pool.name},
        )
        for field_name, items in (("devices", spec.devices), ("sharedCounters", spec.shared_counters)):
            if items:
                entry[field_name] = [*entry.get(field_name, []), *map(_wire, items)]
    entries: list[JsonObject] = list(pools.values())
    labels = dict(node.metadata.labels or {})
    own = node.metadata.name
    if is_general:
        entries = [_general(entry, own) for entry in entries]
        labels = {key: value for key, value in labels.items() if own not in value and "hostname" not in key}
    taints = tuple(
        {key: value for key, value in msgspec.to_builtins(taint).items() if value and key != "timeAdded"}
        for taint in node.spec.taints or []
        if taint.key not in _PASSING_TAINTS
    )
    amounts = node.status.allocatable or node.status.capacity or {}
    return Profile(
        name=name or own,
        description=", ".join(f"{len(entry.get('devices', []))} x {entry['driver']}" for entry in entries),
        labels=labels,
        allocatable={key: str(value) for key, value in amounts.items()},
        entries=tuple(entries),
        taints=taints,
    )


def _wire(view: Any) -> JsonObject:
    """Return a view as people write it: without fields that say nothing."""
    made = {key: value for key, value in msgspec.to_builtins(view).items() if value not in (None, [], {})}
    for holder in (made, *made.get("consumesCounters", [])):
        for field_name in ("counters", "capacity"):
            for amount in holder.get(field_name, {}).values():
                amount.setdefault("value", "0")  # views leave out zeros
    return made


def _general(value: Any, node: str) -> Any:
    if isinstance(value, dict):
        return {key: _general(item, node) for key, item in value.items()}
    if isinstance(value, list):
        return [_general(item, node) for item in value]
    if not isinstance(value, str):
        return value
    return _UUID.sub("{uuid}", value.replace(node, "{node}") if len(node) > 2 else value)


def profile_document(profile: Profile) -> JsonObject:
    """Return a profile as its YAML file says it."""
    document: JsonObject = {"name": profile.name, "description": profile.description}
    if profile.labels:
        document["labels"] = dict(profile.labels)
    if profile.taints:
        document["taints"] = [dict(taint) for taint in profile.taints]
    document["allocatable"] = dict(profile.allocatable)
    document["devices"] = [dict(entry) for entry in profile.entries]
    return document
