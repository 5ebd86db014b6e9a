"""A local copy of a collection that follows the server: list once, then watch.

Theory of operation. `run` lists, hands every object to the handlers as an
addition, and then watches from the revision of the list. When a watch ends it is
resumed from the last revision seen (events and bookmarks carry it); when the
server has forgotten that revision (410), everything is listed again and the
handlers are told only the differences. Handlers are plain functions called in
the order in which the server made the changes; they must be quick, because the
next event waits for them.

A process that was stopped for a while asks for a fresh list with `refresh` before it acts on its copy.

Objects that changed identity (same name, new uid) are reported as a deletion
followed by an addition, so that no handler mistakes one for the other.

Invariants (tests/unit/client/test_client_informer.py):
  * what the handlers were told, applied in order, equals `items`;
  * an object is never reported twice at the same resourceVersion;
  * `has_ended(uid)` is never true of an object that exists: uids are not used twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from dray.api.caching import BoundedMap
from dray.api.meta import ObjectMeta
from dray.api.parsing import ParseError, load_json
from dray.client.api_client import Client, ListOf, WatchEvent, revision_of
from dray.client.change_log import ChangeLog
from dray.client.decoding import decoder_of, without_nulls
from dray.client.errors import ClientError, Forbidden, Gone, NotFound, Unreadable
from dray.client.resources import Resource, versions_of

log = logging.getLogger("dray.client")

MOST_ENDED = 8192  # uids of objects that are gone, remembered

# A server that ends every watch at once is asked less and less often.
_SHORT_WATCH = 1.0  # seconds
_SHORT_WATCHES = 3

_BOOKMARK = b'{"type":"BOOKMARK"'


class HasMetadata(Protocol):
    """Any view of a Kubernetes object."""

    @property
    def metadata(self) -> ObjectMeta:
        """Name and identity."""
        ...


T = TypeVar("T", bound=HasMetadata)
Handler = Callable[[T | None, T | None], None]  # (old, new): old None = added, new None = deleted


def key_of(meta: ObjectMeta) -> str:
    """Return `namespace/name`, or the bare name of a cluster-wide object."""
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


class Informer(Generic[T]):
    """A list-watch cache of one resource, as typed views.

    `optional` resources may be absent on the server (404) or forbidden: the cache
    then counts as synced and empty, and looks again every minute. One that an older server has in an older
    version only is followed in that version, and `resource` says which. Others end `run` with
    the error when they cannot be listed at the start; permissions that are taken away later are a WARNING
    line, and are tried again until they are back.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        view: type[T],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        keep_raw: bool = False,  # remember the JSON text beside the view, see `raw`
        optional: bool = False,
        page_size: int | None = None,  # None means: the client's
    ) -> None:
        self.resource = resource
        self.items: dict[str, T] = {}
        self.is_available = True  # False while an optional resource is absent
        self.relists = 0
        self._client = client
        self._view: Any = view
        self._namespace = namespace
        self._query: dict[str, Any] = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._page_size = page_size
        self._raw_by_key: dict[str, bytes] | None = {} if keep_raw else None
        self._ended: BoundedMap[str, None] = BoundedMap(
            MOST_ENDED
        )  # uids of objects that were here and are gone, oldest first
        self._optional = optional
        self._trouble = ChangeLog(log)
        self._short_watches = 0  # in a row
        self._handlers: list[Handler[T]] = []
        self._synced = asyncio.Event()
        self._revision = ""
        self._watching: asyncio.Task[None] | None = None
        self._refreshing: list[asyncio.Future[None]] = []  # who waits for a list that is yet to be asked for
        generic: Any = WatchEvent
        self._event_type = generic[view]
        self._decode = decoder_of(self._event_type).decode

    # --- reading --------------------------------------------------------------

    @property
    def has_synced(self) -> bool:
        """Return whether the first list has been delivered."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait for the first list."""
        await self._synced.wait()

    def get(self, key: str) -> T | None:
        """Look up `namespace/name`."""
        return self.items.get(key)

    def raw(self, key: str) -> bytes:
        """Return the JSON text of an object as last seen (needs `keep_raw`).

        For writes that must not lose fields which the view does not know.
        """
        if self._raw_by_key is None:
            raise ValueError("this informer keeps no raw objects; make it with keep_raw=True")
        return self._raw_by_key[key]

    def has_ended(self, uid: str) -> bool:
        """Return whether an object with this uid is known to be gone for good.

        A fact, however far the cache is behind. False means: not known, ask the server.
        """
        return uid in self._ended

    def add_handler(self, handler: Handler[T]) -> None:
        """Call `handler(old, new)` on every change from now on, and for what is already here."""
        self._handlers.append(handler)
        for item in list(self.items.values()):
            handler(None, item)

    # --- following ------------------------------------------------------------

    async def run(self) -> None:
        """Follow the server until cancelled; failures are retried with backoff."""
        pause = 0.0
        loop = asyncio.get_running_loop()
        while True:
            if pause:
                await asyncio.sleep(pause)
            started = loop.time()
            try:
                if not self._revision:
                    await self._list()
                await self._watch_until_refreshed()
                pause = self._pause_after(pause, loop.time() - started)
            except Gone:
                # The server forgot our revision: the copy may have holes, so start over.
                self._revision = ""
                pause = self._pause_after(pause, loop.time() - started)
            except (NotFound, Forbidden) as error:
                if not self._optional and not self.has_synced:
                    raise
                if isinstance(error, Forbidden):
                    self._trouble.warn(f"{self.resource.plural} may not be listed or watched: {error}")
                elif self._optional and self._try_older_version():
                    continue
                pause = self._become_unavailable(error) if self._optional else _longer(pause)
            except ClientError as error:
                # The transport itself reports what concerns credentials.
                pause = _longer(pause)
                log.debug("%s: %s; again in %.1f s", self.resource.plural, error, pause)

    def _pause_after(self, pause: float, lasted: float) -> float:
        """Return the pause after a watch that ended: none, unless several in a row ended at once."""
        self._short_watches = self._short_watches + 1 if lasted < _SHORT_WATCH else 0
        return _longer(pause) if self._short_watches > _SHORT_WATCHES else 0.0

    def _try_older_version(self) -> bool:
        """Turn to the next older version of the resource; False after the last, and then the first is next."""
        versions = versions_of(self.resource)
        following = versions.index(self.resource) + 1 if self.resource in versions else len(versions)
        self.resource = versions[following % len(versions)]
        self._revision = ""
        return following < len(versions)

    def _become_unavailable(self, error: ClientError) -> float:
        """Count as synced and empty; return the seconds until the next look."""
        log.debug("%s are not served: %s", self.resource.plural, error)
        self.is_available = False
        self._replace([])
        self._synced.set()
        waiting, self._refreshing = self._refreshing, []
        _wake(waiting)
        return 60.0

    async def refresh(self) -> None:
        """List again; returns when the copy is at least as new as this call. Needs `run` to be running.

        For a process that did not run for a while: what its watch would deliver bit by bit is old news.
        """
        if not self.is_available or not self.has_synced:
            return  # the next list is due anyway
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refreshing.append(waiting)
        self._revision = ""
        if self._watching is not None:
            self._watching.cancel()
        await waiting

    async def _watch_until_refreshed(self) -> None:
        if self._refreshing:
            self._revision = ""  # asked for while a list was under way, which may be older
            return
        self._watching = asyncio.create_task(self._watch())
        try:
            await self._watching
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
        finally:
            self._watching = None

    async def _list(self) -> None:
        # Revision 0 lets the server answer from its cache; after a 410 that could be
        # older than what we have seen, so then ask for the newest.
        revision = None if self.has_synced else "0"
        waiting, self._refreshing = self._refreshing, []
        query = {"resourceVersion": revision, **self._query}
        if self._page_size is not None:
            query["limit"] = self._page_size
        try:
            answer = await self._ask_for_list(query)
        except BaseException:
            self._refreshing += waiting
            raise
        self.is_available = True
        self._trouble.clear(f"{self.resource.plural} may be listed again")
        self.relists += 1
        self._replace(answer.items)
        self._revision = answer.metadata.resource_version
        self._synced.set()
        _wake(waiting)

    async def _ask_for_list(self, query: dict[str, Any]) -> ListOf[Any]:
        kind: Any = msgspec.Raw if self._raw_by_key is not None else self._view
        try:
            answer: ListOf[Any] = await self._client.list(self.resource, self._namespace, view=kind, **query)
        except Unreadable:
            # Some object does not fit the view: take them one by one.
            answer = await self._client.list(self.resource, self._namespace, view=msgspec.Raw, **query)
        return answer

    def _replace(self, found: list[Any]) -> None:
        """Make the cache equal to a fresh list, telling the handlers only what differs."""
        fresh: dict[str, T] = {}
        raws: dict[str, bytes] = {}
        for entry in found:
            if isinstance(entry, msgspec.Raw):
                try:
                    item = decoder_of(self._view).decode(entry)
                except msgspec.ValidationError:
                    event = self._decode_anyway(b'{"type":"LISTED","object":' + bytes(entry) + b"}")
                    if event is None:
                        continue
                    item = event.object
                raws[key_of(item.metadata)] = bytes(entry)
            else:
                item = entry
            fresh[key_of(item.metadata)] = item
        for key in [key for key in self.items if key not in fresh]:
            self._forget(key)
        for key, item in fresh.items():
            self._store(key, item, raws.get(key))

    async def _watch(self) -> None:
        query = {**self._query, "resourceVersion": self._revision, "timeoutSeconds": 1800}
        stream = self._client.watch_lines(self.resource, self._namespace, **query)
        async for lines in stream:
            self._trouble.clear(f"{self.resource.plural} may be watched again")
            for line in lines:
                self._take(line)
            # One batch may hold thousands of events: let the others breathe.
            await asyncio.sleep(0)

    def _take(self, line: bytes) -> None:
        if line.startswith(_BOOKMARK):
            # Only its revision counts; the rest is an empty object that need not fit the view.
            self._revision = revision_of(line) or self._revision
            return
        try:
            event = self._decode(line)
        except msgspec.DecodeError:
            event = self._decode_anyway(line)
            if event is None:
                return
        item = event.object
        meta = item.metadata
        kind = event.type
        key = key_of(meta)
        if kind == "DELETED":
            if self._raw_by_key is not None:
                self._raw_by_key.pop(key, None)
            old = self.items.pop(key, None)
            self._ended[meta.uid] = None
            if old is not None:
                if old.metadata.uid != meta.uid:
                    self._ended[old.metadata.uid] = None
                # The last state travels with the deletion; handlers see it as `old`.
                self._notify(item if old.metadata.uid == meta.uid else old, None)
        else:
            self._store(key, item, line)
        # After the handlers: a handler that raises is a bug, and must not be skipped over.
        self._revision = meta.resource_version or revision_of(line)

    def _decode_anyway(self, line: bytes) -> Any:
        """Decode an event whose object has nulls where lists should be; give up on what makes no sense."""
        try:
            value = load_json(line)
        except ParseError as error:
            # Not JSON: an event is lost, so the watch begins again where it was.
            raise Unreadable(f"{self.resource.plural}: a watch event cannot be read: {error}") from error
        try:
            return msgspec.convert(without_nulls(value), self._event_type)
        except msgspec.ValidationError as error:
            log.warning("%s: an object cannot be read and is ignored: %s", self.resource.plural, error)
            self._revision = revision_of(line) or self._revision
            return None

    def _store(self, key: str, item: T, line: bytes | None) -> None:
        old = self.items.get(key)
        if old is not None:
            if old.metadata.uid != item.metadata.uid:
                self._forget(key)
                old = None
            elif old.metadata.resource_version == item.metadata.resource_version:
                return
        self.items[key] = item
        if self._raw_by_key is not None and line is not None:
            self._raw_by_key[key] = _object_text(line)
        self._notify(old, item)

    def _forget(self, key: str) -> None:
        old = self.items.pop(key)
        self._ended[old.metadata.uid] = None
        if self._raw_by_key is not None:
            self._raw_by_key.pop(key, None)
        self._notify(old, None)

    def _notify(self, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(old, new)


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)


def _longer(pause: float) -> float:
    """Return the next pause after a failure, in seconds."""
    return min(max(pause * 2, 0.1), 10.0)


def _object_text(line: bytes) -> bytes:
    """Cut the object out of a watch line; list items are objects already."""
    start = line.find(b'"object":')
    if not line.startswith(b'{"type":') or start < 0:
        return line
    return line[start + 9 : line.rindex(b"}")]
