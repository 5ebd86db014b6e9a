"""The verbs on resources: from a routed call to a response.

Every handler reads its options and body, lets `get_and_list`, `create_and_update`, `deletion` or
`watch_streams` do the work on stored objects, and shows the result in the version and
form that the client asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.kinds import APIEXTENSIONS, META
from dray.api.media_types import JSON_TYPE, PROTOBUF_TYPE, YAML_TYPE
from dray.api.parsing import load_json
from dray.api.schema import Type, schema_of
from dray.server.objects.create_and_update import Writer
from dray.server.objects.deletion import Deleter
from dray.server.objects.get_and_list import Listing, ListReader, list_response, parse_version
from dray.server.objects.object_versions import Versions
from dray.server.objects.response_forms import ResponseForms
from dray.server.objects.selection import parse_selection
from dray.server.objects.stored_objects import Objects, key_of
from dray.server.objects.watch_streams import WatchStreams
from dray.server.objects.write_strategies import strategy_of
from dray.server.requests import (
    Call,
    DeleteOptions,
    Environment,
    Representation,
    Response,
    compute,
    delete_options,
    encode,
    encode_event,
    encode_list,
    encode_object,
    encode_yaml,
    errors,
    json_response,
    list_options,
    negotiate,
    not_an_object,
    not_options,
    parse_body,
    read_object,
    said_kind_of,
    write_options,
)
from dray.server.store import Record

SMALL_YAML = 16 * 1024  # bytes as JSON; more is written as YAML by a thread, which takes a while


class Handlers:
    """Answers get, list, watch, create, update, delete and deletecollection."""

    def __init__(
        self,
        objects: Objects,
        versions: Versions,
        writer: Writer,
        deleter: Deleter,
        shapes: ResponseForms,
        environment: Environment,
    ) -> None:
        self.objects = objects
        self.versions = versions
        self.writer = writer
        self.deleter = deleter
        self.shapes = shapes
        self.environment = environment
        self.reader = ListReader(objects, versions)
        self.streams = WatchStreams(objects, versions, self.reader)

    async def get(self, call: Call) -> Response:
        """Return one object."""
        route = call.route
        representation = negotiate(
            call.request.header("accept")
        )  # before the version: a request may have both faults
        version = call.request.first("resourceVersion")
        if version:
            if (
                route.kind.plural == "events"
            ):  # upstream keeps them out of its cache, whose answer is the other one
                wanted = parse_version(version, errors.bad_request, "invalid resource version: ")
            else:
                wanted = parse_version(version, lambda text: errors.plain_failure(500, text))
            await self.reader.wait_for(wanted)
        obj = self.objects.find(route.kind, route.namespace, route.name)
        if obj is None:
            raise errors.not_found(route.kind.group, route.kind.plural, route.name)
        return self.show(call, obj, 200, representation)

    async def list(self, call: Call) -> Response:
        """Return a collection, or a page of it."""
        route = call.route
        representation = negotiate(call.request.header("accept"))
        options = list_options(call.request, watch=False)
        selection = parse_selection(
            route.kind, route.version, options, self.versions.extra_fields(route.kind)
        )
        listing = await self.reader.find(route, options, selection)
        return self._show_list(call, listing, representation)

    def _show_list(self, call: Call, listing: Listing, representation: Representation) -> Response:
        """Return a list in the client's version and form, in pieces if it is long."""
        route = call.route
        if representation.is_plain:
            return self.reader.body(route.kind, route.version, listing)
        schema = self._protobuf_schema(call, representation)
        frame = self.shapes.frame(call, listing, representation)
        items = (
            self.shapes.item(call, self.reader.object(route.kind, route.version, record), representation)
            for record in listing.records
        )
        size = sum(len(record.value) for record in listing.records)
        if schema is not None:
            return Response(200, _message_list(schema, frame, items, size), content_type=PROTOBUF_TYPE)
        if representation.as_kind == "Table" and representation.media_type != YAML_TYPE:

            def read(record: Record) -> JsonObject:
                return self.reader.object(route.kind, route.version, record)

            rows = self.shapes.rows(call, listing.records, read, representation.as_version)
            return list_response(encode(frame), rows, size=size)
        if representation.media_type != YAML_TYPE:
            # Even a short table may be made of large objects.
            return list_response(encode(frame), map(encode, items), size=size)
        if size <= SMALL_YAML:
            frame[_place(frame)] = list(items)
            return Response(200, encode_yaml(frame), content_type=YAML_TYPE)
        return Response(200, _yaml_list(frame, items), content_type=YAML_TYPE)

    async def watch(self, call: Call) -> Response:
        """Stream the changes of a collection."""
        route = call.route
        representation = negotiate(call.request.header("accept"))
        if representation.media_type == YAML_TYPE:
            raise errors.not_acceptable(f"only the following media types are accepted: {JSON_TYPE}")
        schema = self._protobuf_schema(call, representation)
        options = list_options(call.request, watch=True)
        selection = parse_selection(
            route.kind, route.version, options, self.versions.extra_fields(route.kind)
        )
        show = self.shapes.for_watch(call, representation)
        stream = await self.streams.open(route, options, selection, show)
        if schema is not None:
            return Response(200, _frames(stream, schema), content_type=f"{PROTOBUF_TYPE};stream=watch")
        return Response(200, stream)

    async def create(self, call: Call) -> Response:
        """Create an object in a collection."""
        representation = negotiate(call.request.header("accept"))
        options = write_options(call.request, "CreateOptions")
        new = await compute(call.size, self._created, call, options.field_validation)
        stored = await self.writer.create(call, new, dry_run=options.dry_run)
        return self.show(call, stored, 201, representation, dry_run=options.dry_run)

    def _created(self, call: Call, validation: str) -> JsonObject:
        new = self.incoming(call, self.body(call), validation)
        self._check_namespace(call, new)
        drop_duplicate_owners(call, new)
        return new

    async def update(self, call: Call) -> Response:
        """Replace an object (or its status) with the one in the body."""
        representation = negotiate(call.request.header("accept"))
        options = write_options(call.request, "UpdateOptions")
        body = await compute(call.size, self.body, call)
        first = await compute(call.size, self._replacement, call, body, options.field_validation)
        uid = first["metadata"].get("uid") or ""
        unused = [first]

        def transform(old: JsonObject | None) -> JsonObject:
            # The writer changes what it gets. Who loses a race gets the body read again.
            return unused.pop() if unused else self._replacement(call, body, options.field_validation)

        stored, created = await self.writer.update(call, transform, dry_run=options.dry_run, uid=uid)
        return self.show(call, stored, 201 if created else 200, representation, dry_run=options.dry_run)

    def _replacement(self, call: Call, body: Any, validation: str) -> JsonObject:
        new = self.incoming(call, body, validation)
        self._check_name(call, new)
        self._check_namespace(call, new)
        drop_duplicate_owners(call, new)
        return new

    async def delete(self, call: Call) -> Response:
        """Delete one object."""
        representation = negotiate(call.request.header("accept"))
        options = await compute(call.size, self.delete_options, call)
        obj, vanished = await self.deleter.delete(call, call.route.name, options)
        strategy = strategy_of(call.route.kind)
        shows_object = strategy.returns_deleted and call.route.version not in strategy.status_when_deleted
        if vanished and not shows_object:
            return self.deleted_status(call, obj)
        return self.show(call, obj, 200, representation, dry_run=options.dry_run)

    async def deletecollection(self, call: Call) -> Response:
        """Delete all selected objects of a collection, one after the other."""
        route = call.route
        representation = negotiate(call.request.header("accept"))
        selecting = list_options(call.request, watch=False)
        options = await compute(call.size, self.delete_options, call)
        selection = parse_selection(
            route.kind, route.version, selecting, self.versions.extra_fields(route.kind)
        )
        listing = await self.reader.find(route, selecting, selection)
        for record in listing.records:
            name = record.key.rsplit("/", 1)[1]
            try:
                await self.deleter.delete(call, name, copy_options(options))
            except errors.ApiError as problem:
                if problem.reason != "NotFound":
                    raise
        # The answer shows the objects as they were found, not as deletion left them.
        return self._show_list(call, listing, representation)

    # --- shared with patches and subresources --------------------------------

    def body(self, call: Call) -> Any:
        """Return the parsed body of a request."""
        schema = self.versions.schema(call.route.kind, call.route.version)
        kind = call.route.kind.kind
        return parse_body(schema, call.request.body, call.request.header("content-type"), kind)

    def incoming(self, call: Call, body: Any, validation: str) -> JsonObject:
        """Return a body as an object to store: checked, defaulted, converted."""
        route = call.route
        schema = self.versions.schema(route.kind, route.version)
        obj = self.read(call, schema, body, validation)
        return self.versions.incoming(route.kind, obj, route.version, self.environment.now())

    def read(self, call: Call, schema: Type | None, body: Any, validation: str) -> JsonObject:
        """Return a body in the version of the request."""
        route = call.route
        if schema is None:
            return self.versions.read_custom(call, body, validation)
        # A few rules about slices tell an empty list from none; storing forgets the difference.
        call.keeps_empties = route.kind.kind == "ResourceSlice" and b"[]" in call.request.body
        return read_object(
            call,
            schema,
            body,
            kind=route.kind.kind,
            api_version=route.kind.api_version(route.version),
            validation=validation,
        )

    def show(
        self,
        call: Call,
        stored: JsonObject,
        status: int,
        representation: Representation,
        *,
        dry_run: bool = False,
    ) -> Response:
        """Return a stored object in the client's version and form."""
        route = call.route
        if representation.is_plain and self.versions.is_stored_form(route.kind, route.version):
            # What was just read or written is most often the very bytes that are stored.
            metadata = stored["metadata"]
            record = self.objects.store.get(key_of(route.kind, route.namespace, metadata.get("name", "")))
            if record is not None and str(record.revision) == metadata.get("resourceVersion") and not dry_run:
                return Response(status, record.value + b"\n")
        shown = self.versions.outgoing(route.kind, stored, route.version)
        schema = self._protobuf_schema(call, representation)
        if schema is not None:
            body = encode_object(
                schema,
                {**shown, "kind": route.kind.kind, "apiVersion": route.kind.api_version(route.version)},
            )
            return Response(status, body, content_type=PROTOBUF_TYPE)
        return _encoded(status, self.shapes.one(call, shown, representation), representation)

    def _protobuf_schema(self, call: Call, representation: Representation) -> Type | None:
        """Return the schema for an answer in protobuf; None for other answers; raises 406 for custom kinds."""
        if representation.media_type != PROTOBUF_TYPE:
            return None
        kind = call.route.kind
        schema = self.versions.schema(kind, call.route.version)
        if schema is None or kind.group == APIEXTENSIONS:
            raise errors.not_acceptable(
                f"only the following media types are accepted: {JSON_TYPE}, {YAML_TYPE}"
            )
        return schema

    def delete_options(self, call: Call) -> DeleteOptions:
        """Read delete options from the body or, without one, from the query."""
        body = None
        if call.request.body.strip():
            schema = schema_of(META, "v1", "DeleteOptions")
            body = parse_body(schema, call.request.body, call.request.header("content-type"))
            if body is not None and not isinstance(body, dict):
                raise errors.bad_request(not_an_object(body))
            kind, api_version = said_kind_of(body or {})
            if kind not in ("", "DeleteOptions"):
                raise errors.bad_request(not_options(api_version, kind))
        return delete_options(call.request, body)

    def deleted_status(self, call: Call, obj: JsonObject) -> Response:
        """Return the Status that says an object is gone."""
        kind = call.route.kind
        details = {"name": obj["metadata"].get("name", ""), "group": kind.group, "kind": kind.plural}
        details["uid"] = obj["metadata"].get("uid", "")
        return json_response(200, success({key: value for key, value in details.items() if value}))

    def check_target(self, call: Call, new: JsonObject) -> None:
        """Refuse an object that names another place than the path does."""
        self._check_namespace(call, new)
        self._check_name(call, new)

    def _check_name(self, call: Call, new: JsonObject) -> None:
        name = new["metadata"].get("name") or ""
        if not name:
            raise errors.bad_request(
                "the name of the object (based on URL) was undeterminable: name must be provided"
            )
        if name != call.route.name:
            raise errors.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({call.route.name})"
            )

    def _check_namespace(self, call: Call, new: JsonObject) -> None:
        if not call.route.kind.namespaced:
            new["metadata"].pop("namespace", None)
            return
        namespace = new["metadata"].get("namespace") or ""
        if namespace and namespace != call.route.namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        new["metadata"]["namespace"] = call.route.namespace


def copy_options(options: DeleteOptions) -> DeleteOptions:
    """Return options that one deletion may fill in without touching the next."""
    return DeleteOptions(
        options.grace_period_seconds,
        options.propagation_policy,
        options.orphan_dependents,
        options.uid,
        options.resource_version,
        options.dry_run,
    )


def drop_duplicate_owners(call: Call, new: JsonObject) -> None:
    """Keep the first of equal owner references, and tell the client."""
    owners = new["metadata"].get("ownerReferences") or []
    kept: dict[frozenset[tuple[str, Any]], JsonObject] = {}
    repeated: list[str] = []
    for owner in owners:
        identity = frozenset(owner.items())  # an owner reference has only scalars
        if identity in kept:
            repeated.append(str(owner.get("uid", "")))
        else:
            kept[identity] = owner
    if repeated:
        new["metadata"]["ownerReferences"] = list(kept.values())
        call.warn(
            f".metadata.ownerReferences contains duplicate entries with UID(s) {', '.join(dict.fromkeys(repeated))}; "
            "API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; "
            "please fix your requests"
        )


def success(details: dict[str, Any] | None = None, code: int = 0) -> JsonObject:
    """Return a Status that reports success."""
    status: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    if code:
        status["code"] = code
    return status


def _encoded(status: int, shown: JsonObject, representation: Representation) -> Response:
    encoded = encode(shown) + b"\n"
    if representation.media_type != YAML_TYPE:
        return Response(status, encoded)
    if len(encoded) <= SMALL_YAML:
        return Response(status, encode_yaml(shown), content_type=YAML_TYPE)
    return Response(status, _in_thread(shown), content_type=YAML_TYPE)


async def _in_thread(shown: JsonObject) -> AsyncIterator[bytes]:
    """Yield an object as YAML, which takes long enough to need a thread."""
    yield await asyncio.to_thread(encode_yaml, shown)


async def _message_list(
    schema: Type, frame: JsonObject, items: Iterator[JsonObject], size: int
) -> AsyncIterator[bytes]:
    """Yield a list in protobuf: in one piece, because its length stands before it."""
    yield await compute(size, encode_list, schema, frame, items)


async def _frames(lines: AsyncIterator[bytes], schema: Type) -> AsyncIterator[bytes]:
    """Yield the events of a watch in protobuf."""
    try:
        async for piece in lines:
            for line in piece.splitlines():
                event = load_json(line)
                is_error = event["type"] == "ERROR"
                kind = schema_of(META, "v1", "Status") if is_error else schema
                yield encode_event(event["type"], encode_object(kind, event["object"]))
    finally:
        close = getattr(lines, "aclose", None)
        if close is not None:
            await close()


def _place(frame: JsonObject) -> str:
    """Return the name of the member that holds the items of a list: "items" or "rows"."""
    return next(reversed(frame))


async def _yaml_list(frame: JsonObject, items: Iterator[JsonObject]) -> AsyncIterator[bytes]:
    """Yield a list as YAML, item by item: the members of its frame are in alphabetical order."""
    place = _place(frame)
    before = {name: value for name, value in frame.items() if name < place}
    after = {name: value for name, value in frame.items() if name > place}
    yield encode_yaml(before) if before else b""
    first = True
    for item in items:
        yield (f"{place}:\n".encode() if first else b"") + await asyncio.to_thread(encode_yaml, [item])
        first = False
    if first:
        yield encode_yaml({place: []})
    yield encode_yaml(after) if after else b""
