"""watch: the stream of changes of a collection, one JSON object a line.

Theory of operation: a watch subscribes first and looks second, so that nothing
falls between the present and the stream. Selectors turn the store's events into
what the client sees: an object that begins to match is ADDED, one that ceases to
match is DELETED (shown as it last matched, at the revision of the change).

A line is made once and shared by all watchers that want it in the same form,
which is what makes a thousand watchers cheap; so is what several events make together. A change
after a quiet time is sent at once; those that follow within a few milliseconds travel together,
because sending a piece costs far more than the bytes in it, on both sides. The watchers of a
collection pause together (`_Pauses`), the longer the more they are: about half of the time goes into
sending, and the other half belongs to the writers, whose changes are then sent together.

What is sent is made piece by piece: the next one when the client has taken the last one. So a
client that does not read costs one piece, its events (which are shared) wait in the store's
buffer, and the event loop serves others between two pieces.

How a watch ends: its timeout; the client leaves; its history is forgotten or it
does not keep up, which is told in the stream as an ERROR with a 410 Status.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

from dray.api.json_types import JsonObject
from dray.api.kinds import Kind
from dray.server.objects.get_and_list import ListReader, parse_version
from dray.server.objects.object_versions import Versions
from dray.server.objects.selection import Selection
from dray.server.objects.stored_objects import Objects, prefix_of
from dray.server.requests import ListOptions, Route, TimeSlice, encode, errors
from dray.server.store import Compacted, Event, Record, Watch, WatchLagged

BOOKMARK_SECONDS = 60.0
LAST_BOOKMARK_BEFORE_END = 2.0
SHORTEST_TIMEOUT = 1800.0  # kube-apiserver's --min-request-timeout: the end lies between this and twice this
SHARED_BYTES = 16 * 1024 * 1024  # of lines that are kept for other watchers
PIECE = 64 * 1024  # bytes that are sent together, and at most one line more
# Seconds from the first piece of a round to the next round; changes are collected in between.
PAUSE = 0.002  # at least
PAUSE_EACH = 0.0001  # for each watcher of the collection: twice what sending a piece costs
LONGEST_PAUSE = 0.1
WOKEN_AT_ONCE = 64  # watchers that go on in one turn of the event loop
SHARED_PIECES = 64  # joined lines that are kept for other watchers, of up to 64 KiB each
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

EVERYTHING = Selection()

Show = Callable[[JsonObject], JsonObject]  # the form a client wants: as it is, table, metadata only


class WatchStreams:
    """Makes watch streams over one store."""

    def __init__(self, objects: Objects, versions: Versions, reader: ListReader) -> None:
        self._objects = objects
        self._versions = versions
        self._reader = reader
        self._lines: dict[tuple[int, str, str], bytes] = {}
        self._lines_size = 0  # bytes
        self._last_past: tuple[Record, JsonObject] | None = None
        self._pieces: dict[tuple[str, str, str, int, int], bytes] = {}
        self.pauses = _Pauses()

    async def open(
        self, route: Route, options: ListOptions, selection: Selection, show: Show | None
    ) -> AsyncIterator[bytes]:
        """Return the stream; raises what must be answered before a stream begins.

        `show` None means plain objects, whose lines are shared.
        """
        store, prefix = self._objects.store, prefix_of(route.kind, route.namespace)
        asked = 0
        if options.resource_version:
            asked = parse_version(options.resource_version, lambda text: errors.plain_failure(500, text))
        with_state = options.send_initial_events is True or (
            asked == 0 and options.send_initial_events is not False
        )
        if with_state:
            if asked:
                await self._reader.wait_for(asked)
            page = store.list(prefix)
            watch = store.watch(prefix, page.revision)
            stream = _Stream(self, route, selection, show, watch, page.revision)
            return _Lines(stream.run(options, page.records), watch)
        try:
            # Without initial events, no version (or 0) means: from now on.
            after = asked or store.revision
            watch = store.watch(prefix, after)
        except Compacted as compacted:
            return _one(error_line(errors.expired(f"too old resource version: {asked} ({compacted.oldest})")))
        return _Lines(_Stream(self, route, selection, show, watch, after).run(options, []), watch)

    def line(self, kind: Kind, version: str, event: Event, event_type: str) -> bytes:
        """Return the shared line of a plain event."""
        key = (event.revision, version, event_type)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._make_line(kind, version, event, event_type)
            self._lines_size += len(line)
            while self._lines_size > SHARED_BYTES:
                self._lines_size -= len(self._lines.pop(next(iter(self._lines))))
        return line

    def piece(self, kind: Kind, version: str, prefix: str, events: list[Event]) -> bytes:
        """Return the lines of all events of a prefix between two revisions; b"" if they are long.

        Watchers without selectors that read equally fast want the same lines together.
        """
        key = (kind.group, version, prefix, events[0].revision, events[-1].revision)
        piece = self._pieces.get(key)
        if piece is None:
            lines: list[bytes] = []
            size = 0
            for event in events:
                lines.append(self.line(kind, version, event, self.changes(kind, EVERYTHING, event)))
                size += len(lines[-1])
                if size > PIECE:
                    return b""
            if len(self._pieces) >= SHARED_PIECES:
                del self._pieces[next(iter(self._pieces))]
            piece = self._pieces[key] = b"".join(lines)
        return piece

    def _make_line(self, kind: Kind, version: str, event: Event, event_type: str) -> bytes:
        if (
            event_type != "DELETED"
            and event.record is not None
            and self._versions.is_stored_form(kind, version)
        ):
            return b"".join((b'{"type":"', event_type.encode(), b'","object":', event.record.value, b"}\n"))
        return encode({"type": event_type, "object": self.shown(kind, version, event, event_type)}) + b"\n"

    def shown(self, kind: Kind, version: str, event: Event, event_type: str) -> JsonObject:
        """Return the object that an event shows."""
        if event_type != "DELETED" and event.record is not None:
            return self._versions.outgoing(kind, self._objects.decoded(kind, event.record), version)
        assert event.previous is not None
        last = self._past(kind, event.previous)
        gone = {**last, "metadata": {**last["metadata"], "resourceVersion": str(event.revision)}}
        return self._versions.outgoing(kind, gone, version)

    def changes(self, kind: Kind, selection: Selection, event: Event) -> str:
        """Return the event type as the selection sees it; "" for none."""
        if selection.is_everything:
            if event.record is None:
                return "DELETED"
            return "ADDED" if event.previous is None else "MODIFIED"
        did = event.previous is not None and selection.accepts(self._past(kind, event.previous))
        does = event.record is not None and selection.accepts(self._objects.selectable(kind, event.record))
        if does:
            return "MODIFIED" if did else "ADDED"
        return "DELETED" if did else ""

    def _past(self, kind: Kind, record: Record) -> JsonObject:
        """Return a replaced object; all watchers of one kind ask for the same one, one after the other."""
        found = self._last_past
        if found is None or found[0] is not record:
            found = self._last_past = (record, self._objects.decoded_past(kind, record))
        return found[1]

    def accepts(self, kind: Kind, selection: Selection, record: Record) -> bool:
        """Return whether a selection sees a record."""
        return selection.is_everything or selection.accepts(self._objects.selectable(kind, record))

    def is_stored_form(self, kind: Kind, version: str) -> bool:
        """Return whether stored bytes can be sent as they are."""
        return self._versions.is_stored_form(kind, version)

    def show_stored(self, kind: Kind, record: Record, version: str) -> JsonObject:
        """Return a stored object in a version."""
        # Thousands at once would push everything else out of the cache.
        return self._versions.outgoing(kind, self._objects.decoded_past(kind, record), version)

    def bookmark(self, kind: Kind, version: str, revision: int) -> JsonObject:
        """Return the object of a bookmark: nothing but a version."""
        return self._versions.empty(kind, version, revision)

    def revision(self) -> int:
        """Return the newest revision."""
        return self._objects.store.revision


class _Pauses:
    """Lets the watchers of a collection pause together after they were sent something."""

    def __init__(self) -> None:
        self._n_open: Counter[str] = Counter()  # streams by prefix
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by prefix

    def opened(self, prefix: str) -> None:
        """Count a stream."""
        self._n_open[prefix] += 1

    def ended(self, prefix: str) -> None:
        """Count a stream no longer."""
        self._n_open[prefix] -= 1
        if not self._n_open[prefix]:
            del self._n_open[prefix]

    async def pause(self, prefix: str) -> None:
        """Wait for the next round, which the first who pauses sets the time of."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(prefix)
        if waiting is None:
            waiting = self._waiting[prefix] = deque()
            seconds = min(max(PAUSE, PAUSE_EACH * self._n_open[prefix]), LONGEST_PAUSE)
            loop.call_later(seconds, self._end, prefix)
        turn = loop.create_future()
        waiting.append(turn)
        await turn

    def _end(self, prefix: str) -> None:
        self._wake(self._waiting.pop(prefix))

    def _wake(self, waiting: deque[asyncio.Future[None]]) -> None:
        """Let some go on, and the others when the loop has served everybody else."""
        for _ in range(min(WOKEN_AT_ONCE, len(waiting))):
            turn = waiting.popleft()
            if not turn.done():  # its watch may have been cancelled
                turn.set_result(None)
        if waiting:
            asyncio.get_running_loop().call_soon(self._wake, waiting)


class _Lines:
    """The lines of a stream; closing it ends the watch even if nobody read a line."""

    def __init__(self, lines: AsyncGenerator[bytes, None], watch: Watch) -> None:
        self._lines = lines
        self._watch = watch

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> bytes:
        return await self._lines.__anext__()

    async def aclose(self) -> None:
        """End the stream and its subscription; idempotent."""
        await self._lines.aclose()
        self._watch.close()


class _Stream:
    """One watch on its way."""

    def __init__(
        self,
        streams: WatchStreams,
        route: Route,
        selection: Selection,
        show: Show | None,
        watch: Watch,
        position: int,
    ) -> None:
        self._streams = streams
        self._kind, self._version = route.kind, route.version
        self._prefix = prefix_of(route.kind, route.namespace)
        self._selection = selection
        self._show = show
        self._watch = watch
        self._position = position  # everything up to here was sent

    async def run(self, options: ListOptions, initial: list[Record]) -> AsyncGenerator[bytes, None]:
        """Yield lines until the watch ends."""
        loop = asyncio.get_running_loop()
        seconds = float(options.timeout_seconds or 0) or random.uniform(
            SHORTEST_TIMEOUT, 2 * SHORTEST_TIMEOUT
        )
        end = loop.time() + seconds
        self._streams.pauses.opened(self._prefix)
        try:
            async for piece in self._in_pieces(map(self._initial_line, initial)):
                yield piece
            del initial  # what was sent need not be kept for as long as the watch lasts
            if options.send_initial_events and options.bookmarks:
                yield self._bookmark_line({INITIAL_EVENTS_END: "true"})
            next_bookmark = self._next_bookmark(loop.time(), end) if options.bookmarks else end
            while True:
                try:
                    events = await self._next_events(min(next_bookmark, end))
                except TimeoutError:
                    if loop.time() >= end:
                        return
                    self._position = max(self._position, self._streams.revision())
                    yield self._bookmark_line({})
                    next_bookmark = self._next_bookmark(loop.time(), end)
                    continue
                if not events:
                    return  # the server is closing
                shared = self._shared_piece(events)
                n_pieces = 0
                if shared:
                    n_pieces = 1
                    yield shared
                else:
                    async for piece in self._in_pieces(map(self._event_line, events)):
                        n_pieces += 1
                        yield piece
                self._position = events[-1].revision
                if n_pieces:
                    await self._streams.pauses.pause(self._prefix)
        except WatchLagged:
            yield error_line(errors.expired("the watch fell behind; list again and watch from there"))
        finally:
            self._watch.close()
            self._streams.pauses.ended(self._prefix)

    async def _next_events(self, deadline: float) -> list[Event]:
        """Return what happened, waiting for it until a time; raises TimeoutError."""
        if self._watch.pending() and asyncio.get_running_loop().time() < deadline:
            return await self._watch.next()
        async with asyncio.timeout_at(deadline):
            return await self._watch.next()

    def _shared_piece(self, events: list[Event]) -> bytes:
        """Return the lines of plain events as one piece; b"" when this watcher needs its own."""
        if self._show is not None or not self._selection.is_everything:
            return b""
        return self._streams.piece(self._kind, self._version, self._prefix, events)

    @staticmethod
    async def _in_pieces(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
        """Join lines to pieces; each is made when the one before it is on its way to the client."""
        turn = TimeSlice()
        gathered: list[bytes] = []
        size = 0
        for line in lines:
            if line:
                gathered.append(line)
                size += len(line)
                if size >= PIECE:
                    yield b"".join(gathered)
                    gathered, size = [], 0
            if turn.is_over():
                await turn.check()
        if gathered:
            yield b"".join(gathered)

    def _event_line(self, event: Event) -> bytes:
        """Return the line of an event; empty when the selection does not see it."""
        streams = self._streams
        event_type = streams.changes(self._kind, self._selection, event)
        if not event_type:
            return b""
        if self._show is None:
            return streams.line(self._kind, self._version, event, event_type)
        shown = self._show(streams.shown(self._kind, self._version, event, event_type))
        return encode({"type": event_type, "object": shown}) + b"\n"

    def _initial_line(self, record: Record) -> bytes:
        """Return the line of an object that was there before; empty when the selection does not see it."""
        if not self._streams.accepts(self._kind, self._selection, record):
            return b""
        if self._show is None and self._streams.is_stored_form(self._kind, self._version):
            return b"".join((b'{"type":"ADDED","object":', record.value, b"}\n"))
        shown = self._streams.show_stored(self._kind, record, self._version)
        return encode({"type": "ADDED", "object": self._show(shown) if self._show else shown}) + b"\n"

    def _bookmark_line(self, annotations: dict[str, str]) -> bytes:
        obj = self._streams.bookmark(self._kind, self._version, self._position)
        if annotations:
            obj["metadata"]["annotations"] = annotations
        return encode({"type": "BOOKMARK", "object": self._show(obj) if self._show else obj}) + b"\n"

    @staticmethod
    def _next_bookmark(now: float, end: float) -> float:
        """Return when to send the next one: about every minute, and once shortly before the end."""
        usual = now + BOOKMARK_SECONDS * random.uniform(0.75, 1.0)
        last = end - LAST_BOOKMARK_BEFORE_END
        return min(usual, last) if last > now else end


def error_line(error: errors.ApiError) -> bytes:
    """Return the line that ends a stream."""
    return encode({"type": "ERROR", "object": error.status()}) + b"\n"


async def _one(line: bytes) -> AsyncIterator[bytes]:
    yield line
