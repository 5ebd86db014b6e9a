"""get and list: one object, or a consistent view of many.

A list without selectors, in the version and form in which objects are stored, is
the stored bytes joined. Everything else decodes, selects and converts. A long list
is made while the client reads it, a piece at a time, of records that are shared with
the store: a client that does not read costs one piece, and the event loop serves
others in between.

Which time a list shows: no version, "the present"; `0`, whatever is at hand (the
present too, since reads come from memory; but a limit is ignored then, as
upstream's cache does); a version with `NotOlderThan`, the present once that
version exists; `Exact` or a continue token, that very version, or 410 once it is
forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

from dray.api.json_types import JsonObject
from dray.api.kinds import Kind
from dray.server.objects.continue_tokens import read_token, token_of
from dray.server.objects.object_versions import Versions
from dray.server.objects.selection import Selection
from dray.server.objects.stored_objects import Objects, prefix_of
from dray.server.requests import EXACT, ListOptions, Response, Route, TimeSlice, encode, errors
from dray.server.store import Compacted, FutureRevision, Record

FUTURE_WAIT = 3.0  # seconds to wait for a version that nobody wrote yet
WHOLE = 64 * 1024  # bytes; longer lists are sent in pieces
PIECE = 64 * 1024  # bytes, and at most one object more
INCONSISTENT_CONTINUE = -1  # a token's version after the 410 of its predecessor: go on at the present

_TOO_OLD_TOKEN = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You can start a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - "
    "objects that were created, modified, or deleted between the time the first chunk was returned and now may show "
    "up in the list."
)


class Listing(NamedTuple):
    """What a list found, before it takes a form."""

    records: list[Record]
    revision: int
    continue_token: str
    remaining: int | None


class ListReader:
    """Finds the objects of a collection."""

    def __init__(self, objects: Objects, versions: Versions) -> None:
        self._objects = objects
        self._versions = versions

    async def find(self, route: Route, options: ListOptions, selection: Selection) -> Listing:
        """Return the selected records of a collection at the asked-for time."""
        prefix = prefix_of(route.kind, route.namespace)
        revision, after, limit = await self._when(prefix, options)
        try:
            if selection.is_everything:
                page = self._objects.store.list(prefix, revision=revision, after=after, limit=limit)
                token = token_of(page.revision, prefix, page.records[-1].key) if page.remaining else ""
                return Listing(page.records, page.revision, token, page.remaining or None)
            page = self._objects.store.list(prefix, revision=revision, after=after)
        except Compacted:
            if options.continue_token:
                token = token_of(INCONSISTENT_CONTINUE, prefix, after)
                raise errors.expired(_TOO_OLD_TOKEN, token) from None
            raise errors.expired("The resourceVersion for the provided list is too old.") from None
        except FutureRevision as future:
            raise too_large(future.asked, future.current) from None
        chosen: list[Record] = []
        turn = TimeSlice()
        for record in page.records:
            await turn.check()
            if limit and len(chosen) == limit:
                return Listing(chosen, page.revision, token_of(page.revision, prefix, chosen[-1].key), None)
            if selection.accepts(self._objects.selectable(route.kind, record)):
                chosen.append(record)
        return Listing(chosen, page.revision, "", None)

    async def _when(self, prefix: str, options: ListOptions) -> tuple[int | None, str, int]:
        """Return the revision (None: the present), the key to start behind, and the limit."""
        if options.continue_token:
            if options.resource_version and options.resource_version != "0":
                raise errors.bad_request("specifying resource version is not allowed when using continue")
            revision, start = read_token(options.continue_token)
            return (None if revision <= 0 else revision), prefix + start, options.limit
        if not options.resource_version:
            return None, "", options.limit
        revision = parse_version(options.resource_version, errors.bad_request, "invalid resource version: ")
        if revision == 0:
            return None, "", 0
        # A limit with a version and no match means, for history's sake, that very version.
        if options.match == EXACT or (options.limit and not options.match):
            await self.wait_for(revision)
            return revision, "", options.limit
        await self.wait_for(revision)
        return None, "", options.limit

    async def wait_for(self, revision: int) -> None:
        """Wait a little for a version of the future; raises 504 when it does not come."""
        store = self._objects.store
        if revision <= store.revision:
            return
        watch = store.watch("", store.revision)
        try:
            async with asyncio.timeout(FUTURE_WAIT):
                while store.revision < revision:
                    await watch.next()
        except TimeoutError:
            raise too_large(revision, store.revision) from None
        finally:
            watch.close()

    # --- forms ---------------------------------------------------------------

    def body(self, kind: Kind, version: str, listing: Listing) -> Response:
        """Return the plain JSON list: small ones whole, others in pieces."""
        frame = encode(
            {
                "kind": kind.list_kind,
                "apiVersion": kind.api_version(version),
                "metadata": self._list_metadata(kind, listing),
                "items": [],
            }
        )
        records = listing.records
        if self._versions.is_stored_form(kind, version) and not self._versions.items_carry_kind(kind):
            skip = len(self._objects.opening(kind)) - 1  # the brace before the skipped members is kept
            length = len(frame) + 1 + sum(len(record.value) - skip for record in records)
            length += max(0, len(records) - 1)

            def stored(record: Record) -> bytes:
                return b"{" + record.value[skip + 1 :]

            return list_response(frame, map(stored, records), size=length, length=length)
        size = sum(len(record.value) for record in records)
        return list_response(frame, (self._item(kind, version, record) for record in records), size=size)

    def _list_metadata(self, kind: Kind, listing: Listing) -> JsonObject:
        """Return the metadata of a list; lists of custom kinds say that there is no further page."""
        metadata = list_metadata(listing)
        return {"continue": "", **metadata} if self._versions.items_carry_kind(kind) else metadata

    def object(self, kind: Kind, version: str, record: Record) -> JsonObject:
        """Return an object of a list in the asked-for version."""
        # Thousands at once would push everything else out of the cache.
        return self._versions.outgoing(kind, self._objects.decoded_past(kind, record), version)

    def _item(self, kind: Kind, version: str, record: Record) -> bytes:
        shown = self.object(kind, version, record)
        if not self._versions.items_carry_kind(kind):
            shown = {key: value for key, value in shown.items() if key not in ("kind", "apiVersion")}
        return encode(shown)


def list_metadata(listing: Listing) -> JsonObject:
    """Return the metadata of a list."""
    metadata: JsonObject = {"resourceVersion": str(listing.revision)}
    if listing.continue_token:
        metadata["continue"] = listing.continue_token
    if listing.remaining:
        metadata["remainingItemCount"] = listing.remaining
    return metadata


def list_response(frame: bytes, items: Iterable[bytes], *, size: int, length: int | None = None) -> Response:
    """Return a JSON list: the frame, which ends with an empty list, with the items in it.

    `size` is about how large it will be: small answers are made at once, others piece by
    piece as the client reads them. `length` is the exact length, if it is known beforehand.
    """
    assert frame.endswith(b"[]}")
    start, end = frame[:-2], b"]}\n"
    if size <= WHOLE:
        return Response(200, b"".join((start, b",".join(items), end)))
    return Response(200, _in_pieces(start, items, end), length=length)


async def _in_pieces(start: bytes, items: Iterable[bytes], end: bytes) -> AsyncIterator[bytes]:
    """Yield a list in pieces of about the same size; the event loop runs in between."""
    turn = TimeSlice()
    gathered, size, comma = [start], len(start), b""
    for item in items:
        gathered += (comma, item)
        comma = b","
        size += len(item) + 1
        if size >= PIECE:
            yield b"".join(gathered)
            gathered, size = [], 0
        await turn.check()
    gathered.append(end)
    yield b"".join(gathered)


def parse_version(text: str, refuse: Any, prefix: str = "", *, said: bool = True) -> int:
    """Read a resourceVersion; `refuse` makes the error for what is not a number.

    `said`: the error names the parameter, as it does everywhere but in the body of an update.
    """
    why = "invalid syntax"
    if text.isascii() and text.isdigit():
        digits = text.lstrip("0")
        if len(digits) <= 20 and int(digits or "0") < 2**64:  # Python reads no numbers of thousands of digits
            return int(digits or "0")
        why = "value out of range"
    problem = f'strconv.ParseUint: parsing "{text}": {why}'
    raise refuse(f'{prefix}resourceVersion: Invalid value: "{text}": {problem}' if said else problem)


def too_large(asked: int, current: int) -> errors.ApiError:
    """Return 504 for a version of the future."""
    error = errors.timed_out(
        f"Too large resource version: {asked}, current: {current}",
        [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        1,
    )
    error.message = "Timeout: " + error.message
    error.headers.append(("Retry-After", "1"))
    return error
