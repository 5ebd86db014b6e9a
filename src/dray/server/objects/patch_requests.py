"""patch: JSON patch, merge patch and strategic merge patch on the client's version of an object.

A patch is applied to the object as its sender sees it (converted, raw parts
compact), the result is read like any body, and then is an update like any other.
What is wrong with the result is reported as 422 on the field `patch`.
Server-side apply is in `server_side_apply`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.api.codec import may_hold_raw
from dray.api.json_types import JsonObject
from dray.api.kinds import Kind, split_api_version
from dray.api.media_types import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from dray.api.parsing import Duplicates, ParseError, parse_json
from dray.api.raw_json import RawJson
from dray.api.reading import MAX_COMPLAINTS, DecodeError, read
from dray.api.scalars import UnfitError, go_type
from dray.api.schema import LIST, MAP, STRUCT, Type, schema_of
from dray.api.validation.fields import invalid
from dray.server.objects.object_versions import Versions
from dray.server.objects.server_side_apply import Applier
from dray.server.objects.verb_handlers import Handlers, drop_duplicate_owners
from dray.server.patch import (
    MAX_OPERATIONS,
    PatchError,
    PatchMalformed,
    StrategicPatchError,
    apply_json_patch,
    apply_merge_patch,
    apply_strategic_patch,
    as_go,
    entered_by_merge,
    entered_by_operations,
    patched_text,
)
from dray.server.requests import (
    LARGE,
    Call,
    Response,
    WriteOptions,
    compute,
    errors,
    is_group_version,
    json_name,
    negotiate,
    not_registered,
    report_complaints,
    reread,
    said_kind_of,
    write_options,
)

_GENERIC = "the server rejected our request due to an error in our request"


class Patcher:
    """Answers patch requests; applies are handed on."""

    def __init__(self, handlers: Handlers, applier: Applier, is_custom: Callable[[Kind], bool]) -> None:
        self._handlers = handlers
        self._applier = applier
        self._is_custom = is_custom

    def media_type(self, call: Call) -> str:
        """Return the kind of patch; raises 415 for others."""
        media_type = call.request.header("content-type").partition(";")[0].strip().lower()
        if not self._is_custom(call.route.kind):
            if media_type not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH):
                problem = errors.unsupported_media_type("415: Unsupported Media Type")
                problem.details = {}
                raise problem
        elif media_type not in (JSON_PATCH, MERGE_PATCH, APPLY_PATCH):
            raise errors.unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: "
                f"{JSON_PATCH}, {MERGE_PATCH}, {APPLY_PATCH}"
            )
        return media_type

    async def patch(self, call: Call) -> Response:
        """Patch an object or its status."""
        media_type = self.media_type(call)
        if media_type == APPLY_PATCH:
            return await self._applier.apply(call)
        representation = negotiate(call.request.header("accept"))
        options = write_options(call.request, "PatchOptions", is_patch=True)
        patch, complaints = await compute(call.size, _parse, call.request.body, media_type, options)
        if media_type == JSON_PATCH and any(step.get("op") == "copy" for step in patch):
            call.extra_bytes = LARGE  # a few copies make a large object of a small one

        def transform(old: JsonObject | None) -> JsonObject:
            assert old is not None
            return self.patched(call, old, media_type, patch, options, complaints)

        stored, _ = await self._handlers.writer.update(
            call, transform, dry_run=options.dry_run, allow_create=False
        )
        return self._handlers.show(call, stored, 200, representation, dry_run=options.dry_run)

    def patched(
        self,
        call: Call,
        old: JsonObject,
        media_type: str,
        patch: Any,
        options: WriteOptions,
        complaints: list[str],
    ) -> JsonObject:
        """Return the object that a patch makes of another, in the storage version."""
        kind, version = call.route.kind, call.route.version
        versions: Versions = self._handlers.versions
        shown = versions.outgoing(kind, old, version)
        document = self._apply(kind, version, shown, media_type, patch)
        refused = _Refusals(patch, media_type, document, versions.schema(kind, version))
        if not isinstance(document, dict):
            raise refused.because(f"the patch makes a {type(document).__name__} of the object")
        # A patch may even change the version; the result is then read as that version.
        version = refused.version_of(kind, document)
        quiet = Call(call.request, call.route._replace(version=version), call.user)
        try:
            obj = self._handlers.read(quiet, versions.schema(kind, version), document, "Warn")
        except errors.ApiError as problem:
            raise refused.because_unreadable(problem) from None
        call.keeps_empties = quiet.keeps_empties
        found = [*complaints, *quiet.warnings]
        if found and options.field_validation == "Strict":
            raise refused.because("strict decoding error: " + ", ".join(found))
        report_complaints(call, found, options.field_validation)
        self._handlers.check_target(call, obj)
        drop_duplicate_owners(call, obj)
        return versions.incoming(kind, obj, version, self._handlers.environment.now())

    def apply_to(self, obj: JsonObject, media_type: str, patch: Any, group: str, kind: str) -> JsonObject:
        """Return what a patch makes of a small object that is not stored itself, such as a Scale."""
        schema = schema_of(group, "v1", kind)
        document = self._applied(schema, obj, media_type, patch)
        try:
            return read(schema, document)[0]
        except DecodeError as problem:
            raise _refused(as_go(patch)[:4096], str(problem)) from None

    def _apply(self, kind: Kind, version: str, shown: JsonObject, media_type: str, patch: Any) -> Any:
        return self._applied(self._handlers.versions.schema(kind, version), shown, media_type, patch)

    def _applied(self, schema: Type | None, shown: JsonObject, media_type: str, patch: Any) -> Any:
        try:
            if media_type == JSON_PATCH:
                return apply_json_patch(shown, patch)
            if media_type == MERGE_PATCH:
                return apply_merge_patch(shown, patch)
            if schema is None or may_hold_raw(schema, shown):
                shown = _rebuilt(shown)
            return apply_strategic_patch(shown, patch, schema)
        except PatchError:
            raise errors.ApiError(422, "Invalid", _GENERIC, {}) from None
        except PatchMalformed as problem:
            raise errors.bad_request(str(problem)) from None
        except StrategicPatchError as problem:
            raise errors.plain_failure(problem.status, str(problem)) from None
        except DecodeError as problem:
            raise _refused(as_go(patch)[:4096], str(problem)) from None


def _parse(body: bytes, media_type: str, options: WriteOptions) -> tuple[Any, list[str]]:
    try:
        patch = parse_json(body)
    except ParseError:
        raise errors.bad_request("invalid JSON patch") from None
    if patch is None and media_type != MERGE_PATCH:
        patch = [] if media_type == JSON_PATCH else {}
    if media_type == JSON_PATCH:
        if not isinstance(patch, list):
            raise errors.bad_request(f"error decoding patch: {_cannot_be(patch, '[]handlers.jsonPatchOp')}")
        for step in patch:
            if not isinstance(step, dict):
                raise errors.bad_request(f"error decoding patch: {_cannot_be(step, 'handlers.jsonPatchOp')}")
        if len(patch) > MAX_OPERATIONS:
            raise errors.too_large(
                f"Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, "
                f"got {len(patch)}"
            )
    elif not isinstance(patch, dict):
        prefix = "error decoding patch: " if media_type == MERGE_PATCH else ""
        raise errors.bad_request(prefix + _cannot_be(patch, "map[string]interface {}"))
    return patch, _duplicates(patch)


def _duplicates(value: Any) -> list[str]:
    """Return complaints about keys given twice in the patch itself."""
    found: list[str] = []
    path: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, Duplicates):
            for name in value.names[: MAX_COMPLAINTS - len(found)]:
                found.append(f'duplicate field "{"".join((*path, ".", name)).removeprefix(".")}"')
        if isinstance(value, dict):
            steps = ((f".{key}", item) for key, item in value.items() if isinstance(item, dict | list))
        elif isinstance(value, list):
            steps = ((f"[{at}]", item) for at, item in enumerate(value) if isinstance(item, dict | list))
        else:
            return
        for step, item in steps:
            path.append(step)
            walk(item)
            path.pop()

    walk(value)
    return found


def _rebuilt(value: Any) -> Any:
    """Return an object whose raw parts were parsed and written again, as strategic patches do."""
    if isinstance(value, RawJson):
        return RawJson.of(reread(value.value))
    if isinstance(value, dict):
        return {key: _rebuilt(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rebuilt(item) for item in value]
    return value


def _cannot_be(value: Any, wanted: str) -> str:
    return f"json: cannot unmarshal {json_name(value)} into Go value of type {wanted}"


class _Refusals:
    """Makes the errors for one patch: each shows the patch, or the document that it made.

    A strategic merge patch is shown itself, and what is wrong with its result is worded as for a
    conversion between maps and structs; the others are shown by their result as JSON.
    """

    def __init__(self, patch: Any, media_type: str, document: Any, schema: Type | None) -> None:
        self._patch, self._media_type = patch, media_type
        self._document, self._schema = document, schema

    def because(self, why: str) -> errors.ApiError:
        """Return 422 with the reason."""
        return _refused(self._shown(), why)

    def because_unreadable(self, problem: errors.ApiError) -> errors.ApiError:
        """Return 422 for a document that cannot be read."""
        cause = problem.__cause__
        if not isinstance(cause, DecodeError):
            return self.because(problem.message)
        if self._media_type == STRATEGIC_PATCH and isinstance(cause, UnfitError):
            return self.because(_not_restored(cause))
        return self.because(str(cause))

    def version_of(self, kind: Kind, document: JsonObject) -> str:
        """Return the version of the document; raises 422 for one of another kind, or of none."""
        try:
            said_kind, api_version = said_kind_of(document)
        except errors.ApiError as problem:
            raise self.because(problem.message) from None
        if not is_group_version(api_version):
            raise self.because(f"unexpected GroupVersion string: {api_version}")
        group, version = split_api_version(api_version)
        if said_kind != kind.kind or group != kind.group or version not in kind.versions:
            raise self.because(not_registered(api_version, said_kind))
        return version

    def _shown(self) -> str:
        if self._media_type == STRATEGIC_PATCH:
            return as_go(self._patch)[:4096]
        is_merge = self._media_type == MERGE_PATCH
        entered = entered_by_merge(self._patch) if is_merge else entered_by_operations(self._patch)
        return patched_text(self._document, self._schema, entered)


def _not_restored(error: UnfitError) -> str:
    """Return what upstream's conversion from maps to structs says of a value of the wrong type."""
    value, wanted = error.value, error.wanted
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    found = {bool: "bool", str: "string", dict: "map", list: "slice", int: "int64"}.get(
        type(value), "float64"
    )
    if wanted.kind in _RESTORED:
        return f"cannot restore {_RESTORED[wanted.kind]} {found}"
    if is_number and (found == "int64" or wanted.kind in ("int32", "int64")):
        return f"cannot convert {found} to {go_type(wanted)}"
    return f"unrecognized type: {go_type(wanted)}"


_RESTORED = {MAP: "map from", LIST: "slice from", STRUCT: "struct from:"}


def _refused(shown: str, why: str) -> errors.ApiError:
    return errors.invalid("", "", "", [invalid("patch", shown, why)])
