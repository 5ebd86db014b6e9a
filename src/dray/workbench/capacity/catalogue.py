"""The catalogue of `dray capacity`: which nodes can be had, at which price, and in which order a class wants them.

    kind: NodeCatalogue
    currency: EUR                        # only printed
    nodeTypes:
    - {name: dgx-h100, profile: dgx-h100, price: 32.77, min: 1, max: 4}  # min: only for `dray autoscale`
    - {name: l40s, profile: l40s-shared, price: 4.10, labels: {tier: cheap}}
    - {name: cpu, allocatable: {cpu: "32", memory: 128Gi, pods: "110"}, price: 0.9}
    - {name: same-again, like: node-7, price: 12}   # a node of the cluster and its devices
    computeClasses:
    - name: training                     # for pods with the node selector dray.dev/compute-class: training
      priorities: [{nodeTypes: [dgx-h100]}, {nodeTypes: [l40s, cpu]}]
      whenUnsatisfiable: DoNotScaleUp    # or ScaleUpAnyway: then any type will do

A compute class lists alternatives in order: types of a later entry are bought only for what the earlier ones cannot
serve. Nodes bought for a class carry its label. Further documents of the file may be GKE's ComputeClass
objects; `machineType` and `nodepools` name types of the catalogue there, and the label is GKE's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dray.api.core import Node, NodeStatus, ResourceList, Taint
from dray.api.meta import Condition, ObjectMeta
from dray.api.quantity import QuantityError, parse_quantity
from dray.api.resource import ResourceSlice
from dray.api.well_known import well_known_labels
from dray.drivers.hardware import Profile, ProfileError, load_profile, pool_slices
from dray.sim.hardware import hardware_node
from dray.sim.snapshot import Snapshot

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
CLASS_LABEL = "dray.dev/compute-class"
GKE_CLASS_LABEL = "cloud.google.com/compute-class"
MOST_TYPES = 200
MOST_CLASSES = 200
MOST_NODES = 5_000  # of one type in one plan

Parts = tuple[Node, list[ResourceSlice]]


class CatalogueError(ValueError):
    """A catalogue that cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True)
class NodeType:
    """Nodes that can be had."""

    name: str
    price: float  # per hour
    make: Callable[[str], Parts] = field(repr=False, compare=False)  # node name -> the node and its devices
    most: int = MOST_NODES
    least: int = 0  # how many `dray autoscale` always keeps

    def instance(self, name: str, labels: dict[str, str] | None = None) -> Parts:
        """Return a node of this type and its slices."""
        node, slices = self.make(name)
        known = {INSTANCE_TYPE_LABEL: self.name, **(node.metadata.labels or {})}
        meta = msgspec.structs.replace(node.metadata, labels={**known, **(labels or {})})
        return msgspec.structs.replace(node, metadata=meta), slices


@dataclass(frozen=True, slots=True)
class ComputeClass:
    """Alternatives of node types in the order in which a class of pods wants them."""

    name: str
    priorities: tuple[tuple[str, ...], ...]  # names of types; the types of one entry are equally welcome
    may_use_any: bool = False  # whenUnsatisfiable: ScaleUpAnyway
    label: str = CLASS_LABEL


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What can be bought."""

    types: tuple[NodeType, ...]
    classes: tuple[ComputeClass, ...] = ()
    currency: str = ""

    def type_named(self, name: str) -> NodeType | None:
        """Return a type by name."""
        return next((each for each in self.types if each.name == name), None)


# --- reading ----------------------------------------------------------------------


def parse_catalogue(documents: Iterable[Any], source: str, snapshot: Snapshot | None = None) -> Catalogue:
    """Read a catalogue; `snapshot` has the nodes that `like` names. Raises CatalogueError."""
    types: list[NodeType] = []
    classes: list[ComputeClass] = []
    currency = ""
    for document in documents:
        if document is None:
            continue
        kind = _mapping(document, source).get("kind", "NodeCatalogue")
        if kind == "ComputeClass":
            meta, spec = _mapping(document.get("metadata"), source), _mapping(document.get("spec"), source)
            classes.append(
                _class({**spec, "name": meta.get("name")}, f"{source}: ComputeClass", GKE_CLASS_LABEL)
            )
            continue
        if kind != "NodeCatalogue":
            raise CatalogueError(
                f"{source}: expected kind NodeCatalogue or ComputeClass, not {str(kind)[:60]!r}"
            )
        currency = str(document.get("currency", currency))[:16]
        for index, entry in enumerate(
            _entries(document.get("nodeTypes"), f"{source}: nodeTypes", MOST_TYPES)
        ):
            types.append(_type(entry, f"{source}: nodeTypes[{index}]", snapshot))
        label = str(document.get("computeClassLabel", CLASS_LABEL))
        found = document.get("computeClasses") or []
        for index, entry in enumerate(_entries(found, f"{source}: computeClasses", MOST_CLASSES)):
            classes.append(_class(entry, f"{source}: computeClasses[{index}]", label))
    _check_names(types, classes, source)
    return Catalogue(tuple(types), tuple(classes), currency)


def _check_names(types: list[NodeType], classes: list[ComputeClass], source: str) -> None:
    if not types:
        raise CatalogueError(f"{source}: nodeTypes is empty; name at least one type of node")
    names = [each.name for each in types]
    for what, listed in (("nodeTypes", names), ("computeClasses", [each.name for each in classes])):
        twice = next((name for name in listed if listed.count(name) > 1), None)
        if twice is not None:
            raise CatalogueError(f"{source}: {what} has {twice!r} twice")
    for each in classes:
        for name in (name for entry in each.priorities for name in entry):
            if name not in names:
                raise CatalogueError(
                    f"{source}: compute class {each.name} names the node type {name!r}; there are: {', '.join(names)}"
                )


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CatalogueError(f"{where}: expected a mapping, not {type(value).__name__}")
    return value


def _entries(value: Any, where: str, most: int) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise CatalogueError(f"{where}: expected a list, not {type(value).__name__}")
    if len(value) > most:
        raise CatalogueError(f"{where}: {len(value)} entries; at most {most} are possible")
    return [_mapping(entry, f"{where}[{index}]") for index, entry in enumerate(value)]


def _name(entry: dict[str, Any], where: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or not name or len(name) > 200:
        raise CatalogueError(f"{where}: `name` must be a short text")
    return name


def _type(entry: dict[str, Any], where: str, snapshot: Snapshot | None) -> NodeType:
    name, price, most = _name(entry, where), entry.get("price"), entry.get("max", MOST_NODES)
    where = f"{where} ({name})"
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < 1e9:
        raise CatalogueError(f"{where}: `price` must be a number of at least 0, per node and hour")
    if isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= MOST_NODES:
        raise CatalogueError(f"{where}: `max` must be a whole number from 0 to {MOST_NODES}")
    least = entry.get("min", 0)
    if isinstance(least, bool) or not isinstance(least, int) or not 0 <= least <= most:
        raise CatalogueError(f"{where}: `min` must be a whole number from 0 to `max` ({most})")
    unknown = set(entry) - {
        "name",
        "price",
        "min",
        "max",
        "profile",
        "like",
        "allocatable",
        "labels",
        "taints",
    }
    if unknown:
        raise CatalogueError(f"{where}: unknown field {sorted(unknown)[0]!r}")
    labels = {str(key): str(value) for key, value in _mapping(entry.get("labels") or {}, where).items()}
    return NodeType(name, float(price), _maker(entry, where, labels, snapshot), most, least)


def _maker(
    entry: dict[str, Any], where: str, labels: dict[str, str], snapshot: Snapshot | None
) -> Callable[[str], Parts]:
    allocatable = {key: str(value) for key, value in _mapping(entry.get("allocatable") or {}, where).items()}
    try:
        for value in allocatable.values():
            parse_quantity(value)
        taints = msgspec.convert(entry.get("taints") or [], list[Taint])
    except (QuantityError, msgspec.ValidationError) as error:
        raise CatalogueError(f"{where}: {error}") from error
    changes = _Changes(labels, allocatable, tuple(taints))
    if "profile" in entry and "like" in entry:
        raise CatalogueError(f"{where}: give `profile` or `like`, not both")
    if "profile" in entry:
        try:
            profile = load_profile(str(entry["profile"]))
            profile.pools("probe")
        except ProfileError as error:
            raise CatalogueError(f"{where}: {error}") from error
        return lambda name: changes.applied(_of_profile(profile, name))
    if "like" in entry:
        return _copies(str(entry["like"]), where, snapshot, changes)
    if "cpu" not in allocatable:
        raise CatalogueError(f"{where}: give `profile`, `like`, or `allocatable` with at least cpu")
    return lambda name: changes.applied((_bare_node(name), []))


@dataclass(frozen=True, slots=True)
class _Changes:
    labels: dict[str, str]
    allocatable: dict[str, str]
    taints: tuple[Taint, ...]

    def applied(self, parts: Parts) -> Parts:
        node, slices = parts
        meta = msgspec.structs.replace(node.metadata, labels={**(node.metadata.labels or {}), **self.labels})
        amounts = {**(node.status.allocatable or {}), **self.allocatable}
        status = msgspec.structs.replace(node.status, capacity=amounts, allocatable=amounts)
        spec = msgspec.structs.replace(node.spec, taints=[*node.spec.taints, *self.taints])
        return msgspec.structs.replace(node, metadata=meta, status=status, spec=spec), slices


def _of_profile(profile: Profile, name: str) -> Parts:
    return hardware_node(profile, name), pool_slices(profile.pools(name))


def _bare_node(name: str) -> Node:
    amounts: ResourceList = {"pods": "110"}
    ready = [Condition(type="Ready", status="True")]
    return Node(
        metadata=ObjectMeta(name=name, labels=well_known_labels(name, "amd64")),
        status=NodeStatus(capacity=amounts, allocatable=amounts, conditions=ready),
    )


def _copies(model: str, where: str, snapshot: Snapshot | None, changes: _Changes) -> Callable[[str], Parts]:
    nodes = snapshot.nodes if snapshot is not None else []
    node = next((each for each in nodes if each.metadata.name == model), None)
    if node is None or snapshot is None:
        known = ", ".join(each.metadata.name for each in nodes[:10]) or "none"
        raise CatalogueError(f"{where}: `like` names the node {model!r}, which is not there; nodes: {known}")
    slices = [each for each in snapshot.slices if each.spec.node_name == model]
    return lambda name: changes.applied(copy_of_node(node, slices, name))


def copy_of_node(node: Node, slices: Iterable[ResourceSlice], name: str) -> Parts:
    """Return an empty copy of a node and its local devices under another name."""
    old = node.metadata.name
    labels = {key: name if value == old else value for key, value in (node.metadata.labels or {}).items()}
    spec = msgspec.structs.replace(node.spec, unschedulable=False)
    copied = msgspec.structs.replace(node, metadata=ObjectMeta(name=name, labels=labels), spec=spec)
    made = []
    for index, each in enumerate(slices):
        pool = msgspec.structs.replace(each.spec.pool, name=f"{name}/{each.spec.pool.name}")
        if each.spec.pool.name == old:
            pool = msgspec.structs.replace(pool, name=name)
        slice_spec = msgspec.structs.replace(each.spec, node_name=name, pool=pool)
        made.append(ResourceSlice(metadata=ObjectMeta(name=f"{index:05x}-{name}"), spec=slice_spec))
    return copied, made


def _class(entry: dict[str, Any], where: str, label: str) -> ComputeClass:
    name = _name(entry, where)
    where = f"{where} ({name})"
    priorities = []
    for index, each in enumerate(_entries(entry.get("priorities"), f"{where}: priorities", MOST_TYPES)):
        found = each.get("nodeTypes") or each.get("nodepools") or [each.get("machineType")]
        if not isinstance(found, list) or not all(isinstance(type_name, str) for type_name in found):
            raise CatalogueError(
                f"{where}: priorities[{index}] must have nodeTypes, machineType or nodepools with names of the catalogue"
            )
        priorities.append(tuple(found))
    when = entry.get("whenUnsatisfiable", "DoNotScaleUp")
    if when not in ("DoNotScaleUp", "ScaleUpAnyway"):
        raise CatalogueError(
            f"{where}: whenUnsatisfiable must be DoNotScaleUp or ScaleUpAnyway, not {when!r}"
        )
    return ComputeClass(name, tuple(priorities), when == "ScaleUpAnyway", label)
