"""The verbs of the Kubernetes API, on any transport.

A verb takes a `Resource` and returns a plain dict, or a typed view when the
caller names one (`view=Pod`): decoding straight into a msgspec struct is several
times cheaper than building dicts, and skips what the view does not name.

Retries: a 429 was not processed, so every verb waits as told and asks again; a
read that got no answer is asked again; a write that got no answer is not, because
only the caller knows whether doing it twice is harm.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast, overload
from urllib.parse import urlencode

import msgspec

from dray.api.json_types import JsonObject
from dray.api.media_types import APPLY_PATCH, JSON_TYPE, MERGE_PATCH
from dray.api.parsing import load_json
from dray.client.decoding import decoder_of, without_nulls
from dray.client.endpoint import Endpoint
from dray.client.errors import ApiError, Gone, TooManyRequests, TransportError, Unreadable, error_from
from dray.client.kubeconfig import load_endpoint
from dray.client.resources import Resource
from dray.client.transport import HttpTransport, Request, Response, Transport

T = TypeVar("T")


PAGE_SIZE = 500  # objects a request, as kubectl and client-go ask for
MOST_LINE = 16 << 20  # bytes of one watch event; API servers store objects of up to 3 MiB
_MAX_ATTEMPTS = 5
_WATCH_GRACE = 60.0  # seconds that a server may be late in ending a watch
_REVISION = re.compile(rb'"resourceVersion":"(\d+)"')


class ListMeta(msgspec.Struct, rename="camel", frozen=True):
    """What a list says of itself."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class ListOf(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list, or all pages joined."""

    items: list[T]
    metadata: ListMeta = ListMeta()


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change: ADDED, MODIFIED or DELETED."""

    type: str
    object: T


def _read_answer(request: Request, body: bytes, view: Any) -> Any:
    """Decode an answer; servers send null where a list is empty, which views do not know."""
    try:
        return decoder_of(view).decode(body)
    except msgspec.DecodeError:
        try:
            return msgspec.convert(without_nulls(load_json(body)), view)
        except msgspec.DecodeError as error:
            raise Unreadable(f"{request}: the answer cannot be read: {error}") from error


_encode = msgspec.json.Encoder().encode


def encode_body(body: Any) -> bytes:
    """Encode a dict or a struct; bytes pass through."""
    return body if isinstance(body, bytes) else _encode(body)


class Client:
    """Talks to one API server. Safe to share between tasks; close it at the end."""

    def __init__(self, transport: Transport, *, namespace: str = "default") -> None:
        self.transport = transport
        self.namespace = namespace  # the kubeconfig's default namespace; verbs never assume it

    @classmethod
    def connect(
        cls,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        user_agent: str = "dray",
        connections: int = 64,
    ) -> Client:
        """Make a client from a kubeconfig, or from the in-cluster files when there is none.

        Opens no connection and runs no exec plugin yet; the first verb does.
        """
        return cls.at(load_endpoint(kubeconfig, context), user_agent=user_agent, connections=connections)

    @classmethod
    def at(cls, endpoint: Endpoint, *, user_agent: str = "dray", connections: int = 64) -> Client:
        """Make a client of an endpoint; opens no connection yet."""
        transport = HttpTransport(endpoint, connections=connections, user_agent=user_agent)
        return cls(transport, namespace=endpoint.namespace)

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- reading --------------------------------------------------------------

    @overload
    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, view: type[T]
    ) -> T: ...
    @overload
    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject: ...
    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, view: Any = JsonObject
    ) -> Any:
        """Read one object; raises NotFound."""
        return await self.call("GET", resource.path(namespace, name), view=view)

    @overload
    async def list(
        self, resource: Resource, namespace: str | None = None, *, view: type[T], **query: Any
    ) -> ListOf[T]: ...
    @overload
    async def list(
        self, resource: Resource, namespace: str | None = None, **query: Any
    ) -> ListOf[JsonObject]: ...
    async def list(
        self, resource: Resource, namespace: str | None = None, *, view: Any = JsonObject, **query: Any
    ) -> ListOf[Any]:
        """Read a whole collection, page by page: 500 objects each unless `limit` says otherwise.

        Whoever wants only the first objects, or the revision, asks for one page: `list_page`.
        Query words are spelled as on the wire (`labelSelector=`, `fieldSelector=`,
        `resourceVersion=`, `limit=`); ones that are None are left out. A list that takes so long that
        the server forgets its revision is read once more, in one piece.
        """
        path, query = resource.path(namespace), {"limit": PAGE_SIZE, **query}
        first, items = query, list[Any]()
        while True:
            try:
                page: ListOf[Any] = await self.call("GET", path, view=ListOf[view], query=query)
            except Gone:
                if query is first:
                    raise
                return cast(
                    "ListOf[Any]",
                    await self.call("GET", path, view=ListOf[view], query={**first, "limit": None}),
                )
            items.extend(page.items)
            if not page.metadata.continue_:
                return ListOf(items, page.metadata)
            query = {
                **first,
                "continue": page.metadata.continue_,
                "resourceVersion": None,
                "resourceVersionMatch": None,
            }

    @overload
    async def list_page(
        self, resource: Resource, namespace: str | None = None, *, limit: int, view: type[T], **query: Any
    ) -> ListOf[T]: ...
    @overload
    async def list_page(
        self, resource: Resource, namespace: str | None = None, *, limit: int, **query: Any
    ) -> ListOf[JsonObject]: ...
    async def list_page(
        self, resource: Resource, namespace: str | None = None, *, limit: int, view: Any = JsonObject, **query: Any
    ) -> ListOf[Any]:  # fmt: skip
        """Read at most `limit` objects of a collection with one request; `metadata.continue_` says if there are more."""
        page: ListOf[Any] = await self.call(
            "GET", resource.path(namespace), view=ListOf[view], query={"limit": limit, **query}
        )
        return page

    @overload
    def watch(
        self, resource: Resource, namespace: str | None = None, *, view: type[T], **query: Any
    ) -> AsyncIterator[WatchEvent[T]]: ...
    @overload
    def watch(
        self, resource: Resource, namespace: str | None = None, **query: Any
    ) -> AsyncIterator[WatchEvent[JsonObject]]: ...
    async def watch(
        self, resource: Resource, namespace: str | None = None, *, view: Any = JsonObject, **query: Any
    ) -> AsyncIterator[WatchEvent[Any]]:
        """Follow changes until the server ends the stream; raises Gone when the revision is forgotten.

        Bookmarks are left out; ask `watch_lines` if you need them.
        """
        decode = decoder_of(WatchEvent[view]).decode
        async for lines in self.watch_lines(resource, namespace, **query):
            for line in lines:
                if not line.startswith(b'{"type":"BOOKMARK"'):
                    try:
                        yield decode(line)
                    except msgspec.DecodeError as error:
                        raise Unreadable(
                            f"watching {resource.plural}: an event cannot be read: {error}"
                        ) from error

    async def watch_lines(
        self, resource: Resource, namespace: str | None = None, **query: Any
    ) -> AsyncIterator[Sequence[bytes]]:
        """Follow changes as raw lines, in batches as they arrive; errors in the stream are raised.

        For readers that look before they decode.
        """
        target = _target(resource.path(namespace), {"watch": "1", "allowWatchBookmarks": "true", **query})
        request = Request("GET", target, stream=True, timeout=None)
        response = await self._answer(request)
        if response.pieces is None:
            raise TransportError(f"{request}: the transport did not stream the watch")
        deadline = None
        if query.get("timeoutSeconds") is not None:
            # A server that neither ends the watch nor closes the connection is not there any more.
            deadline = asyncio.get_running_loop().time() + float(query["timeoutSeconds"]) + _WATCH_GRACE
        try:
            async for events in _whole_lines(response.pieces, deadline, str(request)):
                for line in events:
                    if line.startswith(b'{"type":"ERROR"'):
                        raise _stream_error(line, str(request))
                yield events
        finally:
            await response.close()

    # --- writing --------------------------------------------------------------

    @overload
    async def create(
        self, resource: Resource, body: Any, namespace: str | None = None, *, name: str | None = None,
        subresource: str = "", view: type[T], **query: Any,
    ) -> T: ...  # fmt: skip
    @overload
    async def create(
        self, resource: Resource, body: Any, namespace: str | None = None, *, name: str | None = None,
        subresource: str = "", **query: Any,
    ) -> JsonObject: ...  # fmt: skip
    async def create(
        self, resource: Resource, body: Any, namespace: str | None = None, *, name: str | None = None,
        subresource: str = "", view: Any = JsonObject, **query: Any,
    ) -> Any:  # fmt: skip
        """POST an object, or (with name and subresource) a binding, an eviction."""
        path = resource.path(namespace, name, subresource)
        return await self.call("POST", path, body, view=view, query=query)

    @overload
    async def update(
        self, resource: Resource, name: str, body: Any, namespace: str | None = None, *, subresource: str = "",
        view: type[T], **query: Any,
    ) -> T: ...  # fmt: skip
    @overload
    async def update(
        self, resource: Resource, name: str, body: Any, namespace: str | None = None, *, subresource: str = "",
        **query: Any,
    ) -> JsonObject: ...  # fmt: skip
    async def update(
        self, resource: Resource, name: str, body: Any, namespace: str | None = None, *, subresource: str = "",
        view: Any = JsonObject, **query: Any,
    ) -> Any:  # fmt: skip
        """PUT an object; raises Conflict when its resourceVersion is no longer the newest."""
        return await self.call(
            "PUT", resource.path(namespace, name, subresource), body, view=view, query=query
        )

    @overload
    async def patch(
        self, resource: Resource, name: str, body: Any, namespace: str | None = None, *,
        kind: str = MERGE_PATCH, subresource: str = "", view: type[T], **query: Any,
    ) -> T: ...  # fmt: skip
    @overload
    async def patch(
        self, resource: Resource, name: str, body: Any, namespace: str | None = None, *,
        kind: str = MERGE_PATCH, subresource: str = "", **query: Any,
    ) -> JsonObject: ...  # fmt: skip
    async def patch(
        self, resource: Resource, name: str, body: Any, namespace: str | None = None, *,
        kind: str = MERGE_PATCH, subresource: str = "", view: Any = JsonObject, **query: Any,
    ) -> Any:  # fmt: skip
        """PATCH an object: merge (default), JSON_PATCH, STRATEGIC_PATCH."""
        path = resource.path(namespace, name, subresource)
        return await self.call("PATCH", path, body, view=view, query=query, content_type=kind)

    async def apply(
        self, resource: Resource, name: str, body: Any, namespace: str | None = None, *,
        manager: str, force: bool = False, subresource: str = "",
    ) -> JsonObject:  # fmt: skip
        """Server-side apply: own exactly the fields of `body` as `manager`."""
        query = {"fieldManager": manager, "force": "true" if force else None}
        path = resource.path(namespace, name, subresource)
        found: JsonObject = await self.call("PATCH", path, body, query=query, content_type=APPLY_PATCH)
        return found

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: str | None = None,
    ) -> JsonObject:
        """DELETE an object; with `uid`, only this incarnation of it (else Conflict)."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if any(preconditions.values()):
            options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation:
            options["propagationPolicy"] = propagation
        found: JsonObject = await self.call("DELETE", resource.path(namespace, name), options)
        return found

    # --- the wire -------------------------------------------------------------

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        view: Any = JsonObject,
        query: Mapping[str, Any] | None = None,
        content_type: str = JSON_TYPE,
    ) -> Any:
        """Send one request and decode the answer; the verbs above are spellings of this.

        `view=None` throws the answer away undecoded.
        """
        request = Request(
            method, _target(path, query), None if body is None else encode_body(body), content_type
        )
        response = await self._answer(request)
        if view is None:
            return None
        return _read_answer(request, response.body, view)

    async def answer(self, request: Request) -> Response:
        """Send a request of one's own making, with the retries and errors of the verbs."""
        return await self._answer(request)

    async def _answer(self, request: Request) -> Response:
        attempt = 0
        while True:
            attempt += 1
            try:
                response = await self.transport.send(request)
            except TransportError:
                if request.method != "GET" or request.stream or attempt >= _MAX_ATTEMPTS:
                    raise
                await asyncio.sleep(0.05 * 2**attempt)
                continue
            if response.status < 300:
                return response
            error = error_from(response.status, response.body, str(request), response.headers)
            if not isinstance(error, TooManyRequests) or attempt >= _MAX_ATTEMPTS or _is_eviction(request):
                raise error
            await asyncio.sleep(error.retry_after or 0.1 * 2**attempt)


def _is_eviction(request: Request) -> bool:
    # 429 on an eviction means "a disruption budget forbids it", not "slow down".
    return request.method == "POST" and request.target.partition("?")[0].endswith("/eviction")


def _target(path: str, query: Mapping[str, Any] | None) -> str:
    pairs = [(key, value) for key, value in (query or {}).items() if value is not None]
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _stream_error(line: bytes, what: str) -> ApiError:
    try:
        body = bytes(decoder_of(WatchEvent[msgspec.Raw]).decode(line).object)
    except msgspec.DecodeError:
        body = line
    error = error_from(500, body, what)
    if error.reason in ("Expired", "Gone") and not isinstance(error, Gone):
        return Gone(410, error.status, what)
    return error


async def _whole_lines(
    pieces: AsyncIterator[bytes], deadline: float | None, what: str
) -> AsyncIterator[list[bytes]]:
    """Cut a stream into lines, those that have come together in one batch; raise TransportError."""
    begun: list[bytes] = []  # pieces of a line whose end has not come yet
    size = 0
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise TransportError(f"{what}: the server did not end the watch in time") from None
        if piece is None:
            return
        first, newline, rest = piece.partition(b"\n")
        begun.append(first)
        size += len(first)
        if size > MOST_LINE:
            raise TransportError(f"{what}: a watch event has more than {MOST_LINE >> 20} MiB")
        if not newline:
            continue
        lines = [b"".join(begun), *rest.split(b"\n")]
        begun = [lines.pop()]
        size = len(begun[0])
        events = [line for line in lines if line]
        if events:
            yield events


def revision_of(line: bytes) -> str:
    """Read the resourceVersion of a raw watch line without decoding it; empty when there is none."""
    found = _REVISION.search(line)
    return found[1].decode() if found else ""
