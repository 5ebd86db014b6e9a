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
from dray.api.schema import Type, schema_of
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
)
from dray.server.requests import (
    LARGE,
    Call,
    Response,
    WriteOptions,
    compute,
    errors,
    negotiate,
    report_complaints,
    reread,
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
        accepted = [JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
        if not self._is_custom(call.route.kind):
            accepted.insert(2, STRATEGIC_PATCH)
        if media_type not in accepted:
            problem = errors.unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: "
                + ", ".join(accepted)
            )
            if not self._is_custom(call.route.kind):
                problem.details = {}
            raise problem
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
        if not isinstance(document, dict):
            raise _refused(patch, f"the patch makes a {type(document).__name__} of the object")
        if document.get("kind") != kind.kind:
            raise _refused(patch, f'no kind "{document.get("kind")}" is registered here')
        group, said = split_api_version(str(document.get("apiVersion") or ""))
        if group != kind.group or said not in kind.versions:
            raise _refused(
                patch, f'no kind "{kind.kind}" is registered for version "{document.get("apiVersion")}"'
            )
        # A patch may even change the version; the result is then read as that version.
        version = said
        quiet = Call(call.request, call.route._replace(version=version), call.user)
        try:
            obj = self._handlers.read(quiet, versions.schema(kind, version), document, "Warn")
        except errors.ApiError as problem:
            raise _refused(patch, problem.message) from None
        call.keeps_empties = quiet.keeps_empties
        found = [*complaints, *quiet.warnings]
        if found and options.field_validation == "Strict":
            raise _refused(patch, "strict decoding error: " + ", ".join(found))
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
            raise _refused(patch, str(problem)) from None

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
            raise _refused(patch, str(problem)) from None


def _parse(body: bytes, media_type: str, options: WriteOptions) -> tuple[Any, list[str]]:
    try:
        patch = parse_json(body)
    except ParseError:
        raise errors.bad_request("invalid JSON patch") from None
    if patch is None and media_type != MERGE_PATCH:
        patch = [] if media_type == JSON_PATCH else {}
    if media_type == JSON_PATCH:
        if not isinstance(patch, list) or not all(isinstance(step, dict) for step in patch):
            name = "object" if isinstance(patch, dict) else "value"
            raise errors.bad_request(
                f"error decoding patch: json: cannot unmarshal {name} into Go value of type []handlers.jsonPatchOp"
            )
        if len(patch) > MAX_OPERATIONS:
            raise errors.too_large(
                f"Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, "
                f"got {len(patch)}"
            )
    elif not isinstance(patch, dict):
        name = "array" if isinstance(patch, list) else "value"
        raise errors.bad_request(
            f"error decoding patch: json: cannot unmarshal {name} into Go value of type map[string]interface {{}}"
        )
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


def _refused(patch: Any, why: str) -> errors.ApiError:
    problem = invalid("patch", as_go(patch)[:4096], why)
    return errors.invalid("", "", "", [problem])
