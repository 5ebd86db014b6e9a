"""Server-side apply, and the bookkeeping of fields for all other writes.

`FieldManagers` connects the pure rules in `dray.server.patch` with kinds and versions;
`Applier` answers apply requests: parse, check against the schema, merge, then write
like any update, or create where nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dray.api.codec import may_hold_raw
from dray.api.json_types import JsonObject
from dray.api.kinds import Kind, split_api_version
from dray.api.parsing import ParseError, parse_json, parse_yaml
from dray.api.raw_json import RawJson
from dray.api.reading import DecodeError, read
from dray.api.schema import Type
from dray.server.objects.object_versions import Versions
from dray.server.objects.verb_handlers import Handlers, drop_duplicate_owners
from dray.server.objects.write_strategies import reset_fields
from dray.server.patch import (
    FieldConflicts,
    ManagedFields,
    Ownership,
    read_managed_fields,
    write_managed_fields,
)
from dray.server.requests import (
    Call,
    Environment,
    Response,
    WriteOptions,
    compute,
    copy_json,
    errors,
    negotiate,
    reread,
    write_options,
)

_LONGEST_MANAGER = 128
_WRONG_TYPE = "json: cannot unmarshal"  # how reading says that a value has another type than its field


@dataclass(slots=True)
class FieldManagers:
    """Keeps managedFields of every kind."""

    versions: Versions
    environment: Environment
    _known: dict[tuple[str, str, str, str], Ownership] = field(default_factory=dict)

    def track(self, call: Call, new: JsonObject, old: JsonObject | None) -> None:
        """Record in `new` (storage version) who wrote what."""
        metadata = new["metadata"]
        if call.has_managed_fields:
            return  # an apply already did
        given = metadata.pop("managedFields", None)
        is_reset = given == [] or given == [{}]
        known = (old or {}).get("metadata", {}).get("managedFields")
        if call.route.subresource:
            managed = read_managed_fields(known)
        elif is_reset:
            managed = {}
        else:
            managed = read_managed_fields(given, from_client=True) or read_managed_fields(known)
        if is_reset and old is not None:
            return
        kind, version = call.route.kind, call.route.version
        written = new
        if call.keeps_empties:
            written = copy_json(new)
            self.versions.drop_empties(kind, written)
        show = self.versions.outgoing
        live = None if old is None else show(kind, old, version)
        shown, now = show(kind, written, version), self.environment.timestamp()
        managed = self.rules(call).update(live, shown, managed, manager_of(call), now)
        if managed:
            metadata["managedFields"] = write_managed_fields(managed)

    def rules(self, call: Call) -> Ownership:
        """Return the rules of apply for the kind and version of a request."""
        kind, version = call.route.kind, call.route.version
        key = (kind.group, kind.plural, version, call.route.subresource)
        rules = self._known.get(key)
        if rules is None:
            rules = self._rules(kind, version, call.route.subresource)
            # Custom kinds change with their definitions.
            if self.versions.schema(kind, version) is not None:
                self._known[key] = rules
        return rules

    def _rules(self, kind: Kind, version: str, subresource: str) -> Ownership:
        return Ownership(
            schema=self.versions.apply_schema(kind, version),
            api_version=kind.api_version(version),
            empty=self.versions.blank(kind, version),
            in_version=partial(self._in_version, kind, version),
            schema_in=partial(self._schema_in, kind),
            ignored=reset_fields(kind, subresource),
            subresource=subresource,
        )

    def _in_version(self, kind: Kind, own: str, obj: JsonObject, api_version: str) -> JsonObject | None:
        group, version = split_api_version(api_version)
        if group != kind.group or version not in kind.versions:
            return None
        stored = self.versions.stored_shape(
            kind, obj, split_api_version(obj.get("apiVersion") or "")[1] or own
        )
        # Upstream converts through structs, which do not keep empty lists and maps.
        stored = copy_json(stored)
        self.versions.drop_empties(kind, stored)
        return self.versions.outgoing(kind, stored, version)

    def _schema_in(self, kind: Kind, api_version: str) -> Type | None:
        return self.versions.apply_schema(kind, split_api_version(api_version)[1])


class Applier:
    """Answers apply requests."""

    def __init__(self, handlers: Handlers, managed_fields: FieldManagers) -> None:
        self._handlers = handlers
        self._managed_fields = managed_fields

    async def apply(self, call: Call) -> Response:
        """Merge a configuration into an object, or create the object from it."""
        representation = negotiate(call.request.header("accept"))
        options = write_options(call.request, "PatchOptions", is_patch=True, is_apply=True)
        config, problem = await compute(call.size, self._parse, call, options)

        def transform(old: JsonObject | None) -> JsonObject:
            return self._merged(call, old, config, options, problem)

        call.has_managed_fields = True
        stored, created = await self._handlers.writer.update(
            call, transform, dry_run=options.dry_run, allow_create=not call.route.subresource
        )
        return self._handlers.show(
            call, stored, 201 if created else 200, representation, dry_run=options.dry_run
        )

    def _parse(self, call: Call, options: WriteOptions) -> tuple[JsonObject, str]:
        """Return the configuration, checked against the schema but without anything added.

        The text is what is wrong with a value that has the right type ("" for nothing): a quantity that cannot be
        read is merged like any text, so conflicts are told first.
        """
        route = call.route
        value = _parsed(call.request.body)
        if not isinstance(value, dict):
            raise errors.bad_request("error decoding patch: a configuration must be an object")
        if value.get("kind") != route.kind.kind or value.get("apiVersion") != route.kind.api_version(
            route.version
        ):
            raise errors.bad_request(
                f"invalid object type: {value.get('apiVersion')}, Kind={value.get('kind')}"
            )
        metadata = value.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise errors.plain_failure(500, "failed to create typed patch object: .metadata: expected map")
        if metadata and metadata.get("managedFields") is not None:
            raise errors.bad_request("metadata.managedFields must be nil")
        problem = self._check(call, value)
        schema = self._handlers.versions.schema(route.kind, route.version)
        config: JsonObject = value
        if schema is not None and may_hold_raw(schema, value):
            config = _sealed(value, schema)
        return config, problem

    def _check(self, call: Call, value: JsonObject) -> str:
        route = call.route
        schema = self._handlers.versions.schema(route.kind, route.version)
        if schema is None:
            unknown = self._handlers.versions.custom.unknown_members(route.kind, route.version, value)
            self._refuse_unknown(call, unknown)
            return ""
        try:
            _, complaints = read(schema, value)
        except DecodeError as problem:
            if not str(problem).startswith(_WRONG_TYPE):
                return str(problem)
            raise errors.plain_failure(500, f"failed to create typed patch object: {problem}") from None
        if any(complaint.startswith("duplicate") for complaint in complaints):
            _parsed_as_yaml(call.request.body)  # refuses them in its own words
        unknown = [complaint for complaint in complaints if complaint.startswith("unknown")]
        self._refuse_unknown(call, unknown)
        return ""

    def _refuse_unknown(self, call: Call, unknown: list[str]) -> None:
        route = call.route
        if unknown:
            raise errors.plain_failure(
                500,
                f"failed to create typed patch object ({route.namespace}/{route.name}; "
                f"{route.kind.api_version(route.version)}, Kind={route.kind.kind}): "
                f"{unknown[0].removeprefix('unknown field ')}: field not declared in schema",
            )

    def _merged(
        self, call: Call, old: JsonObject | None, config: JsonObject, options: WriteOptions, problem: str
    ) -> JsonObject:
        kind, version = call.route.kind, call.route.version
        versions, environment = self._handlers.versions, self._handlers.environment
        live = None if old is None else versions.outgoing(kind, old, version)
        managed: ManagedFields = read_managed_fields((old or {}).get("metadata", {}).get("managedFields"))
        if live is not None:
            live = {**live, "metadata": _without_managed_fields(live["metadata"])}
        try:
            merged, managed, changed = self._managed_fields.rules(call).apply(
                live, config, managed, options.field_manager, environment.timestamp(), force=options.force
            )
        except FieldConflicts as conflicts:
            raise _conflict(conflicts) from None
        if problem:
            raise _unreadable(call, config, problem)
        uid = (merged.get("metadata") or {}).get("uid")
        if old is None and uid:
            raise errors.conflict(
                kind.group,
                kind.plural,
                call.route.name,
                f"uid mismatch: the provided object specified uid {uid}, and no existing object was found",
            )
        if old is not None and not changed:
            new: JsonObject = copy_json(old)
        else:
            quiet = Call(call.request, call.route, call.user)
            schema = versions.schema(kind, version)
            # Reading by a schema copies; a custom kind is read in place.
            document = merged if schema is not None else copy_json(merged)
            new = self._handlers.read(quiet, schema, document, "Ignore")
            call.keeps_empties = quiet.keeps_empties
            self._handlers.check_target(call, new)
            drop_duplicate_owners(call, new)
            new = versions.incoming(kind, new, version, environment.now())
        new["metadata"] = _without_managed_fields(new["metadata"])
        if managed:
            new["metadata"]["managedFields"] = write_managed_fields(managed)
        return new


def _parsed(body: bytes) -> Any:
    """Parse a configuration. Programs send JSON, which is YAML, too, but is read far faster as what it is."""
    if body[:1] == b"{":
        try:
            return parse_json(body)
        except ParseError:
            pass  # `{a: 1}` is YAML
    return _parsed_as_yaml(body)


def _parsed_as_yaml(body: bytes) -> Any:
    try:
        return parse_yaml(body)
    except ParseError as problem:
        raise errors.bad_request(f"error encoding patch: {problem}") from None


def manager_of(call: Call) -> str:
    """Return the field manager of a request: as it says, or by its user agent."""
    given = call.request.first("fieldManager")
    if given:
        return given
    agent = call.request.header("user-agent").split("/", 1)[0]
    if not agent.isprintable():
        agent = "".join(letter for letter in agent if letter.isprintable())
    return agent[:_LONGEST_MANAGER] or "unknown"


def _without_managed_fields(metadata: JsonObject) -> JsonObject:
    return {name: value for name, value in metadata.items() if name != "managedFields"}


def _sealed(value: Any, schema: Type | None) -> Any:
    """Wrap the raw parts of a configuration, which came parsed from YAML."""
    if schema is None or value is None:
        return value
    if schema.kind == "raw":
        return value if isinstance(value, RawJson) else RawJson.of(reread(value))
    if isinstance(value, dict) and schema.element is not None:
        return {name: _sealed(item, schema.element) for name, item in value.items()}
    if isinstance(value, dict):
        fields = schema.fields
        return {
            name: _sealed(item, fields[name].type) if name in fields else item for name, item in value.items()
        }
    if isinstance(value, list):
        return [_sealed(item, schema.element) for item in value]
    return value


def _unreadable(call: Call, config: JsonObject, problem: str) -> errors.ApiError:
    """Return 500 for a value of the right type that cannot be read, a quantity like "x"."""
    route, metadata = call.route, config.get("metadata") or {}
    what = f"{route.kind.group}/{route.version}, Kind={route.kind.kind}"
    return errors.plain_failure(
        500,
        f"failed to convert new object ({metadata.get('namespace') or ''}/{metadata.get('name') or ''}; {what}) to proper "
        f"version: unable to convert unstructured object to {what}: {problem}",
    )


def _conflict(problem: FieldConflicts) -> errors.ApiError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path}
        for who, path in problem.conflicts
    ]
    count = problem.total
    if count == 1:
        who, path = problem.conflicts[0]
        message = f"Apply failed with 1 conflict: conflict with {who}: {path}"
    else:
        lines_by_manager: dict[str, list[str]] = {}
        for who, path in problem.conflicts:
            lines_by_manager.setdefault(who, [f"conflicts with {who}:"]).append(f"- {path}")
        lines = [line for lines in lines_by_manager.values() for line in lines]
        if count > len(causes):
            lines.append(f"and {count - len(causes)} more")
        message = f"Apply failed with {count} conflicts: " + "\n".join(lines)
    return errors.apply_conflict(causes, message)
