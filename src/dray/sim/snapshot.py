"""A cluster's DRA objects in one value: captured from a server, read from files, written to one file.

Every tool of the workbench (explain, what-if, check, map, get) works on a snapshot,
so it makes no difference to them whether it came from a running cluster, from a
file that a colleague sent, or from manifests on disk.

The file is one JSON object, `{"kind": "DraySnapshot", "items": [...]}`, whose items
are plain Kubernetes objects; a stream of YAML documents or a `kind: List` reads as
well, so `kubectl get … -o yaml` output works too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dray.api.codec import encode, to_view
from dray.api.conversion import convert
from dray.api.core import Namespace, Node, Pod, PodDisruptionBudget, PodGroup
from dray.api.defaults import apply_defaults
from dray.api.features import Features
from dray.api.json_types import JsonObject
from dray.api.kinds import RESOURCE, split_api_version
from dray.api.parsing import ParseError, load_json, parse_yaml_documents
from dray.api.reading import read
from dray.api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dray.api.schema import SchemaError, schema_of
from dray.client import Client, Forbidden, NotFound
from dray.client.bounded_files import read_file
from dray.client.resources import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_CLASSES,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    SLICES,
    TAINT_RULES,
    Resource,
)
from dray.sim.other_users import claims_of_others, fetch_report

FILE_KIND = "DraySnapshot"
FILE_VERSION = "dray.dev/v1"

# kind -> (view, attribute of Snapshot, resource to capture it from)
KINDS: dict[str, tuple[Any, str, Resource]] = {
    "Node": (Node, "nodes", NODES),
    "Namespace": (Namespace, "namespaces", NAMESPACES),
    "Pod": (Pod, "pods", PODS),
    "PodGroup": (PodGroup, "pod_groups", POD_GROUPS),
    "ResourceSlice": (ResourceSlice, "slices", SLICES),
    "DeviceClass": (DeviceClass, "classes", DEVICE_CLASSES),
    "ResourceClaim": (ResourceClaim, "claims", CLAIMS),
    "ResourceClaimTemplate": (ResourceClaimTemplate, "templates", CLAIM_TEMPLATES),
    "DeviceTaintRule": (DeviceTaintRule, "taint_rules", TAINT_RULES),
    "PodDisruptionBudget": (PodDisruptionBudget, "budgets", DISRUPTION_BUDGETS),
}
_ONLY_THOSE = "; only those of namespace"
_OPTIONAL = {"PodGroup", "DeviceTaintRule", "PodDisruptionBudget"}  # not served everywhere
# Kept in files, for copies of a cluster; no tool looks at them.
_KEPT: dict[str, Resource] = {"ResourceQuota": RESOURCE_QUOTAS, "PriorityClass": PRIORITY_CLASSES}


class SnapshotError(ValueError):
    """A file or a cluster that cannot be read; the message says what to do."""


@dataclass(slots=True, repr=False)
class Snapshot:
    """The DRA objects of one cluster at one moment."""

    nodes: list[Node] = field(default_factory=list)
    namespaces: list[Namespace] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    pod_groups: list[PodGroup] = field(default_factory=list)
    slices: list[ResourceSlice] = field(default_factory=list)
    classes: list[DeviceClass] = field(default_factory=list)
    claims: list[ResourceClaim] = field(default_factory=list)
    templates: list[ResourceClaimTemplate] = field(default_factory=list)
    taint_rules: list[DeviceTaintRule] = field(default_factory=list)
    budgets: list[PodDisruptionBudget] = field(default_factory=list)
    objects: list[JsonObject] = field(default_factory=list)  # the same, as plain JSON, for writing
    forbidden: dict[str, str] = field(default_factory=dict)  # resource -> why not all of it could be captured
    ignored: dict[str, int] = field(default_factory=dict)  # kinds that no tool looks at -> how many
    complaints: list[str] = field(default_factory=list)  # unknown and duplicate fields
    features: Features = field(default_factory=Features.default)
    default_namespace: str = "default"  # of manifests that name none
    own_namespace: str = "default"  # of the user who captured it
    knows_others: bool = False  # what other users hold is known, though their objects are not
    captured_at: datetime = datetime(1970, 1, 1, tzinfo=UTC)  # the `now` of defaults that are times

    def __repr__(self) -> str:
        """Say how much there is; asyncio makes this text of every task's result, and throws it away."""
        return f"Snapshot({', '.join(f'{count} {kind}' for kind, count in self.counts().items() if count)})"

    def add(self, obj: JsonObject) -> None:
        """Take in one plain object; kinds that the tools do not look at are only counted."""
        kind = str(obj.get("kind", ""))
        group, version = split_api_version(str(obj.get("apiVersion") or ""))
        if kind in _KEPT and group == _KEPT[kind].group:
            self.objects.append(obj)
            return
        # The same name in another group (a PodGroup of Volcano) is another kind.
        if kind not in KINDS or (version and group != KINDS[kind][2].group):
            self.ignored[kind] = self.ignored.get(kind, 0) + 1
            return
        view, attribute, resource = KINDS[kind]
        try:
            obj, complaints = read(schema_of(resource.group, version or resource.version, kind), obj)
        except (ValueError, SchemaError) as error:
            raise SnapshotError(f"{kind} {identity(obj)[2]}: {error}") from error
        self.complaints += [f"{kind} {identity(obj)[2]}: {complaint}" for complaint in complaints]
        apply_defaults(resource.group, version or resource.version, kind, obj, self.captured_at)
        if resource.group == RESOURCE and version not in ("", "v1"):
            obj = convert(resource.group, kind, obj, version, "v1")
        if resource.namespaced:
            obj.setdefault("metadata", {}).setdefault("namespace", self.default_namespace)
        try:
            getattr(self, attribute).append(to_view(view, obj))
        except ValueError as error:
            name = (obj.get("metadata") or {}).get("name", "?")
            raise SnapshotError(f"{kind} {name}: {error}") from error
        self.objects.append(obj)

    def add_view(self, view: Any) -> None:
        """Take in a typed view, for example of modelled hardware."""
        self.add({"apiVersion": view.api_version, "kind": view.kind, **msgspec.to_builtins(view)})

    def hides(self, resource: str) -> bool:
        """Return whether nothing of a resource could be captured, because the user may not list it."""
        return resource in self.forbidden and _ONLY_THOSE not in self.forbidden[resource]

    def counts(self) -> dict[str, int]:
        """Return how many objects of each kind there are."""
        return {kind: len(getattr(self, attribute)) for kind, (_view, attribute, _resource) in KINDS.items()}

    def merged(self, other: Snapshot) -> Snapshot:
        """Return both together; objects of `other` replace those of the same name."""
        merged = Snapshot(
            features=self.features,
            forbidden={**self.forbidden, **other.forbidden},
            own_namespace=self.own_namespace,
            knows_others=self.knows_others,
        )
        seen: dict[tuple[str, str, str], JsonObject] = {}
        for obj in [*self.objects, *other.objects]:
            seen[identity(obj)] = obj
        for obj in seen.values():
            merged.add(obj)
        return merged

    def write(self, path: Path) -> None:
        """Write the snapshot to one file; raises OSError."""
        document = {"apiVersion": FILE_VERSION, "kind": FILE_KIND, "items": self.objects}
        # The codec writes opaque parameters as the bytes that they are.
        path.write_bytes(msgspec.json.format(encode(document), indent=1) + b"\n")


def identity(obj: JsonObject) -> tuple[str, str, str]:
    """Return kind, namespace and name."""
    meta = obj.get("metadata")
    meta = meta if isinstance(meta, dict) else {}  # whoever complains about the object wants its name
    return obj.get("kind", ""), meta.get("namespace", ""), meta.get("name") or meta.get("generateName", "")


def objects_of(document: Any, source: str) -> Iterator[JsonObject]:
    """Yield the objects of a document: one object, a list of them, or a snapshot."""
    if document is None:
        return
    if isinstance(document, list):
        for entry in document:
            yield from objects_of(entry, source)
    elif isinstance(document, dict) and isinstance(document.get("items"), list):
        kind = str(document.get("kind", "")).removesuffix("List")
        for entry in document["items"]:
            if isinstance(entry, dict):
                # Items of a typed list carry no kind of their own.
                yield (
                    {"apiVersion": document.get("apiVersion"), "kind": kind, **entry}
                    if "kind" not in entry
                    else entry
                )
    elif isinstance(document, dict) and document.get("kind"):
        yield document
    else:
        raise SnapshotError(f"{source}: expected Kubernetes objects with `kind` and `metadata`")


def read_objects(path: Path) -> list[JsonObject]:
    """Read the Kubernetes objects of a YAML or JSON file."""
    try:
        content = read_file(path)
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}") from error
    return parse_objects(content, str(path))


def parse_objects(content: bytes, source: str) -> list[JsonObject]:
    """Return the Kubernetes objects of YAML documents, a JSON document or JSON lines."""
    is_json = content.lstrip().startswith(b"{")
    try:
        documents = [load_json(content)] if is_json else parse_yaml_documents(content)
    except ParseError as error:
        if not is_json:
            raise SnapshotError(f"{source}: {error}") from error
        try:  # JSON lines
            documents = [load_json(line) for line in content.splitlines() if line.strip()]
        except ParseError as problem:
            raise SnapshotError(f"{source}: not JSON: {problem}") from problem
    return [obj for document in documents for obj in objects_of(document, source)]


def load_snapshot(paths: Iterable[Path]) -> Snapshot:
    """Read files into one snapshot."""
    snapshot = Snapshot()
    for path in paths:
        for obj in read_objects(path):
            try:
                snapshot.add(obj)
            except SnapshotError as error:
                raise SnapshotError(f"{path}: {error}") from error
    return snapshot


async def capture(
    client: Client, namespace: str | None = None, *, complete: bool = False, only_views: bool = False
) -> Snapshot:
    """Read the objects of a running cluster; needs only permission to list them.

    `complete`: also quotas and priority classes, where they may be listed.
    `only_views`: leave `Snapshot.objects` empty, for callers that only look at views. Reading is many times
    cheaper then: answers become views at once, and the server has defaulted and converted them already.

    What may not be listed is left out and noted in `Snapshot.forbidden`. Where only objects of a namespace
    (the given one, else the kubeconfig's) may be listed, these are taken. Raises Forbidden when
    nothing may be listed, and the other errors of the client. On a shared machine the devices that others hold are
    known all the same: as claims without names (`other_users`).
    """
    snapshot = Snapshot(own_namespace=client.namespace)
    refusals: list[Forbidden] = []
    for kind, (view, attribute, resource) in KINDS.items():
        wanted = view if only_views else JsonObject
        try:
            items = await _listed(client, resource, wanted, namespace or client.namespace, snapshot.forbidden)
        except NotFound as error:
            if kind in _OPTIONAL:
                continue
            raise SnapshotError(f"the server has no {resource.plural}: {error}") from error
        except Forbidden as error:
            refusals.append(error)
            continue
        if only_views:
            getattr(snapshot, attribute).extend(items)
            continue
        for item in items:
            snapshot.add({"apiVersion": resource.api_version, "kind": kind, **item})
    if len(refusals) == len(KINDS):
        raise refusals[0]
    if CLAIMS.plural in snapshot.forbidden:
        report = await fetch_report(client)
        snapshot.knows_others = report is not None
        for claim in claims_of_others(
            report.held if report is not None else (), namespace or client.namespace
        ):
            snapshot.add(claim)
    for kind, resource in _KEPT.items() if complete else ():
        with contextlib.suppress(NotFound, Forbidden):
            for item in await _listed(
                client, resource, JsonObject, namespace or client.namespace, snapshot.forbidden
            ):
                snapshot.add({"apiVersion": resource.api_version, "kind": kind, **item})
    return snapshot


async def _listed(
    client: Client, resource: Resource, view: Any, namespace: str, forbidden: dict[str, str]
) -> list[Any]:
    items: list[Any]
    try:
        items = (await client.list(resource, view=view)).items
    except Forbidden as error:
        forbidden[resource.plural] = error.status.message or str(error)
        if not resource.namespaced:
            raise
        items = (await client.list(resource, namespace, view=view)).items
        forbidden[resource.plural] += f"{_ONLY_THOSE} {namespace} are known"
    return items
