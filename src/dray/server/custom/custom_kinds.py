"""Custom resource definitions: from an object in the store to a kind that is served.

The keeper of custom kinds follows every committed write of a definition. A new or
changed one is served as soon as its write is acknowledged; a deleted one is held by
a finalizer until all its objects are gone, so that none is left behind unreachable.

A definition's status is decided by this server alone and written together with the
definition, not by a controller afterwards: names are accepted unless another
definition has them, and an accepted definition is established.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dray.api.conditions import is_true_in
from dray.api.json_types import JsonObject
from dray.api.kinds import ALL_VERBS, APIEXTENSIONS, STATUS_VERBS, Kind, Subresource, kind_of
from dray.api.reading import DecodeError, read
from dray.api.schema import Type, struct_of
from dray.api.validation.fields import FieldError, Path, invalid, invalid_each
from dray.api.validation.formats import dns_subdomain
from dray.server.custom.schema_validation import validate_value
from dray.server.custom.structural_schemas import Schema, apply_type, prune, with_defaults
from dray.server.objects import Objects, key_of, prefix_of
from dray.server.openapi import version_priority
from dray.server.requests import (
    Call,
    copy_json,
    errors,
    member,
    other_version,
    report_complaints,
    said_kind_of,
)
from dray.server.store import Event, StoreError, WriteConflict

if TYPE_CHECKING:
    from dray.server.custom.validation_rules import Level

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_SCALE = Subresource("scale", STATUS_VERBS, "Scale", "autoscaling", "v1")
log = logging.getLogger("dray.server")


class CustomKinds:
    """Keeps the kinds that definitions make."""

    def __init__(self, objects: Objects, publish: Callable[[list[Kind]], None]) -> None:
        self._objects = objects
        self._publish = publish
        self._kinds: dict[str, Kind] = {}  # name of the definition -> kind
        self._versions: dict[
            tuple[str, str, str], JsonObject
        ] = {}  # (group, plural, version) -> its part of the spec
        self._types: dict[tuple[str, str, str], Type] = {}
        self._rules: dict[tuple[str, str, str], Level | None] = {}
        self._cleaning: set[asyncio.Task[None]] = set()
        definition = kind_of(APIEXTENSIONS, "CustomResourceDefinition")
        assert definition is not None
        self._definition = definition
        self._prefix = prefix_of(definition)

    # --- following the store ---------------------------------------------------

    def load(self) -> None:
        """Serve all definitions that are stored, and go on with deletions that a crash interrupted."""
        for definition in self._objects.list(APIEXTENSIONS, self._definition.plural):
            self._serve(definition)
            self._clean_if_deleted(definition)
        self._publish(list(self._kinds.values()))

    def observe(self, event: Event) -> None:
        """Follow a committed write."""
        if not event.key.startswith(self._prefix):
            return
        name = event.key.removeprefix(self._prefix)
        if event.record is None:
            self._forget(name)
        else:
            definition = self._objects.decoded(self._definition, event.record)
            self._forget(name)
            self._serve(definition)
            self._clean_if_deleted(definition)
        self._publish(list(self._kinds.values()))

    def _forget(self, name: str) -> None:
        kind = self._kinds.pop(name, None)
        if kind is not None:
            for key in [key for key in self._versions if key[:2] == (kind.group, kind.plural)]:
                del self._versions[key]
                self._types.pop(key, None)
                self._rules.pop(key, None)

    def _serve(self, definition: JsonObject) -> None:
        if not _is_established(definition):
            return
        spec, names = definition["spec"], definition["spec"]["names"]
        served = [version for version in spec["versions"] if version.get("served")]
        storage = next((version["name"] for version in spec["versions"] if version.get("storage")), "")
        if not served or not storage:
            return
        self._kinds[definition["metadata"]["name"]] = Kind(
            group=spec["group"],
            kind=names["kind"],
            plural=names["plural"],
            versions=tuple(sorted((version["name"] for version in served), key=version_priority)),
            storage_version=storage,
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            verbs=ALL_VERBS,
            subresources=_subresources(served),
            keeps_generation=True,
        )
        for version in spec["versions"]:
            self._versions[spec["group"], names["plural"], version["name"]] = version

    def _clean_if_deleted(self, definition: JsonObject) -> None:
        metadata = definition["metadata"]
        if metadata.get("deletionTimestamp") and CLEANUP in (metadata.get("finalizers") or ()):
            task = asyncio.get_running_loop().create_task(self._clean(metadata["name"]))
            self._cleaning.add(task)
            task.add_done_callback(self._cleaning.discard)

    async def _clean(self, name: str) -> None:
        """Delete all objects of a deleted definition, then let the definition go."""
        try:
            kind = self._kinds.get(name)
            if kind is not None:
                for record in self._objects.store.list(prefix_of(kind)).records:
                    await self._objects.store.delete(record.key)
            key = key_of(self._definition, "", name)
            while (found := self._objects.store.get(key)) is not None:
                definition = copy_json(self._objects.decoded(self._definition, found))
                finalizers = [f for f in definition["metadata"].get("finalizers") or () if f != CLEANUP]
                try:
                    if finalizers:
                        definition["metadata"]["finalizers"] = finalizers
                        await self._objects.put(self._definition, key, definition, found.revision)
                    else:
                        await self._objects.store.delete(key, found.revision)
                except WriteConflict:
                    continue
                return
        except StoreError as problem:
            # Closing, or a full disk: the finalizer stays, and the next start goes on.
            log.warning("objects of the deleted definition %s remain for now: %s", name, problem)

    async def close(self) -> None:
        """Wait for deletions under way."""
        await asyncio.gather(*self._cleaning, return_exceptions=True)

    # --- definitions being written -----------------------------------------------

    def prepare_definition(self, new: JsonObject, old: JsonObject | None, now: str) -> None:
        """Decide the status of a definition, and hold it while it has objects."""
        spec, metadata = new.get("spec") or {}, new["metadata"]
        names = {**(spec.get("names") or {})}
        if old is None:
            metadata["finalizers"] = [*(metadata.get("finalizers") or ()), CLEANUP]
        before = (old or {}).get("status") or {}
        stored = [version.get("name") for version in spec.get("versions") or () if version.get("storage")]
        is_taken = self._conflicts(metadata.get("name") or "", spec.get("group") or "", names)
        accepted = {
            "type": "NamesAccepted",
            "status": "False" if is_taken else "True",
            "lastTransitionTime": now,
            "reason": "ListKindConflict" if is_taken else "NoConflicts",
            "message": f'"{names.get("kind")}" is already in use' if is_taken else "no conflicts found",
        }
        established = {
            "type": "Established",
            "status": "False" if is_taken else "True",
            "lastTransitionTime": now,
            "reason": "NotAccepted" if is_taken else "InitialNamesAccepted",
            "message": "not all names are accepted" if is_taken else "the initial names have been accepted",
        }
        kept = {condition["type"]: condition for condition in before.get("conditions") or ()}
        conditions = [
            kept[condition["type"]]
            if kept.get(condition["type"], {}).get("status") == condition["status"]
            else condition
            for condition in (accepted, established)
        ]
        new["status"] = {
            "conditions": conditions,
            "acceptedNames": names
            if not is_taken
            else before.get("acceptedNames") or {"plural": "", "kind": ""},
            "storedVersions": list(dict.fromkeys([*(before.get("storedVersions") or ()), *stored])),
        }

    def _conflicts(self, own: str, group: str, names: JsonObject) -> bool:
        words = {names.get("kind"), names.get("listKind"), names.get("plural"), names.get("singular")} - {
            None,
            "",
        }
        for name, kind in self._kinds.items():
            if (
                name != own
                and kind.group == group
                and words & {kind.kind, kind.list_kind, kind.plural, kind.singular}
            ):
                return True
        return False

    # --- objects of custom kinds ---------------------------------------------------

    def part(self, kind: Kind, version: str) -> JsonObject | None:
        """Return what a definition says about one version; None for built-in kinds."""
        return self._versions.get((kind.group, kind.plural, version))

    def schema(self, kind: Kind, version: str) -> Schema | None:
        """Return the schema of a custom kind in a version."""
        part = self.part(kind, version) or {}
        return (part.get("schema") or {}).get("openAPIV3Schema")

    def columns(self, kind: Kind, version: str) -> list[JsonObject] | None:
        """Return the columns that tables of a custom kind show; None for built-in kinds."""
        part = self.part(kind, version)
        return None if part is None else part.get("additionalPrinterColumns") or []

    def selectable_fields(self, kind: Kind) -> frozenset[str]:
        """Return the fields that selectors may use beside name and namespace."""
        part = self.part(kind, kind.storage_version) or {}
        return frozenset(field["jsonPath"].lstrip(".") for field in part.get("selectableFields") or ())

    def apply_type(self, kind: Kind, version: str) -> Type | None:
        """Return the type that apply merges by; None for built-in kinds."""
        if self.part(kind, version) is None:
            return None
        key = (kind.group, kind.plural, version)
        found = self._types.get(key)
        if found is None:
            found = self._types[key] = apply_type(self.schema(kind, version))
        return found

    def deprecation(self, kind: Kind, version: str) -> str:
        """Return the warning that a version's definition asks for, or ""."""
        part = self.part(kind, version) or {}
        if not part.get("deprecated"):
            return ""
        return part.get("deprecationWarning") or f"{kind.api_version(version)} {kind.kind} is deprecated"

    def read(self, call: Call, body: Any, validation: str) -> JsonObject:
        """Return the body of a custom kind: known members only, defaults filled in."""
        kind, version = call.route.kind, call.route.version
        if body is None:
            body = {}
        if not isinstance(body, dict):
            raise errors.bad_request("the object provided is unrecognized (must be of type Object)")
        said = member(body, "kind")
        if isinstance(said, str) and said and said != kind.kind:
            name = (
                (body.get("metadata") or {}).get("name", "") if isinstance(body.get("metadata"), dict) else ""
            )
            raise errors.invalid(kind.group, kind.kind, name, [invalid("kind", said, f"must be {kind.kind}")])
        _, said_version = said_kind_of(body)
        if said_version not in ("", kind.api_version(version)):
            raise other_version(said_version, kind.api_version(version))
        try:
            metadata, complaints = read(struct_of("meta", "v1", "ObjectMeta"), body.get("metadata") or {})
        except DecodeError as problem:
            raise errors.bad_request(
                f"{kind.kind} in version {version!r} cannot be handled: {problem}"
            ) from None
        found = [complaint.replace('field "', 'field "metadata.') for complaint in complaints]
        content = {
            name: item for name, item in body.items() if name not in ("kind", "apiVersion", "metadata")
        }
        schema = self.schema(kind, version)
        content = with_defaults(schema, prune(schema, content, found))
        report_complaints(call, found, validation)
        return {"kind": kind.kind, "apiVersion": kind.api_version(version), "metadata": metadata, **content}

    def unknown_members(self, kind: Kind, version: str, value: JsonObject) -> list[str]:
        """Return complaints about members that the schema of a version does not know."""
        content = {
            name: item for name, item in value.items() if name not in ("kind", "apiVersion", "metadata")
        }
        found: list[str] = []
        prune(self.schema(kind, version), content, found)
        return found

    def scale_paths(self, kind: Kind, version: str) -> tuple[str, str, str]:
        """Return where replicas wanted, replicas present and the label selector of a scalable kind are."""
        scale = ((self.part(kind, version) or {}).get("subresources") or {}).get("scale") or {}
        return (
            scale.get("specReplicasPath", ""),
            scale.get("statusReplicasPath", ""),
            scale.get("labelSelectorPath", ""),
        )

    def rules(self, kind: Kind) -> Level | None:
        """Return the rules for objects of a custom kind, in its storage version."""
        key = (kind.group, kind.plural, kind.storage_version)
        if key not in self._rules:
            schema = self.schema(kind, kind.storage_version)
            # CEL is a tenth of the start-up time, and few kinds have rules.
            from dray.server.custom.validation_rules import compile_rules

            self._rules[key] = compile_rules(schema)
        return self._rules[key]

    def takes_long(self, kind: Kind) -> bool:
        """Return whether the rules of a kind, or those of a definition, may take longer than a loop should wait."""
        if kind == self._definition:
            return True
        if self.part(kind, kind.storage_version) is None:
            return False
        rules = self.rules(kind)
        return rules is not None and not rules.is_quick

    def validate(
        self, kind: Kind, new: JsonObject, old: JsonObject | None, warn: Callable[[str], None]
    ) -> list[FieldError]:
        """Judge an object of a custom kind by the schema of its storage version, and the rules of definitions."""
        if kind == self._definition:
            return _rule_problems(new, old)
        if self.part(kind, kind.storage_version) is None:
            return []
        problems: list[FieldError] = []
        if old is None:
            name = new["metadata"].get("name") or ""
            problems += invalid_each("metadata.name", name, dns_subdomain(name)) if name else []
        content = {name: item for name, item in new.items() if name not in ("kind", "apiVersion", "metadata")}
        problems += validate_value(self.schema(kind, kind.storage_version), content, "")
        rules = self.rules(kind)
        return problems if rules is None else problems + rules.judge(new, old, problems, warn)


def _rule_problems(new: JsonObject, old: JsonObject | None) -> list[FieldError]:
    """Return what is wrong with the rules of a definition; versions that an update leaves alone are not asked."""
    versions = (new.get("spec") or {}).get("versions") or []
    schemas = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    before = {
        version.get("name"): (version.get("schema") or {}).get("openAPIV3Schema")
        for version in ((old or {}).get("spec") or {}).get("versions") or []
    }
    if not any(schemas):
        return []
    from dray.server.custom.rule_definitions import definition_problems

    shared = len(schemas) > 0 and all(schema == schemas[0] for schema in schemas)
    problems: list[FieldError] = []
    for number, (version, schema) in enumerate(zip(versions, schemas, strict=True)):
        if schema is None or (old is not None and before.get(version.get("name")) == schema):
            continue
        path = Path("spec.validation") if shared else Path("spec.versions").at(number).child("schema")
        problems += definition_problems(schema, path.child("openAPIV3Schema"))
        if shared:
            break
    return problems


def _subresources(versions: list[JsonObject]) -> tuple[Subresource, ...]:
    offered = [version.get("subresources") or {} for version in versions]
    found: list[Subresource] = []
    if any("scale" in part for part in offered):
        found.append(_SCALE)
    if any("status" in part for part in offered):
        found.append(Subresource("status"))
    return tuple(found)


def _is_established(definition: JsonObject) -> bool:
    return is_true_in(definition.get("status") or {}, "Established")
