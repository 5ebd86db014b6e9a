"""get and list: one object, or a consistent view of many.

A list without selectors, in the version and form in which objects are stored, is
the stored bytes joined. Everything else decodes, selects and converts.

Which time a list shows: no version, "the present"; `0`, whatever is at hand (the
present too, since reads come from memory; but a limit is ignored then, as
upstream's cache does); a version with `NotOlderThan`, the present once that
version exists; `Exact` or a continue token, that very version, or 410 once it is
forgotten.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from typing import Any, NamedTuple

from dray.api.kinds import Kind
from dray.api.parsing import load_json
from dray.server import errors
from dray.server.encoding import encode
from dray.server.objects import Objects, prefix_of
from dray.server.options import EXACT, ListOptions
from dray.server.reader import Object
from dray.server.routing import Route
from dray.server.selectable import Selection
from dray.server.store import Compacted, FutureRevision, Record
from dray.server.versions import Versions

TOKEN_VERSION = "meta.k8s.io/v1"
FUTURE_WAIT = 3.0  # seconds to wait for a version that nobody wrote yet
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
                token = _token(page.revision, prefix, page.records[-1].key) if page.remaining else ""
                return Listing(page.records, page.revision, token, page.remaining or None)
            page = self._objects.store.list(prefix, revision=revision, after=after)
        except Compacted:
            if options.continue_token:
                token = _token(INCONSISTENT_CONTINUE, prefix, after)
                raise errors.expired(_TOO_OLD_TOKEN, token) from None
            raise errors.expired("The resourceVersion for the provided list is too old.") from None
        except FutureRevision as future:
            raise too_large(future.asked, future.current) from None
        chosen: list[Record] = []
        for record in page.records:
            if limit and len(chosen) == limit:
                return Listing(chosen, page.revision, _token(page.revision, prefix, chosen[-1].key), None)
            if selection.accepts(self._objects.selectable(route.kind, record)):
                chosen.append(record)
        return Listing(chosen, page.revision, "", None)

    async def _when(self, prefix: str, options: ListOptions) -> tuple[int | None, str, int]:
        """Return the revision (None: the present), the key to start behind, and the limit."""
        if options.continue_token:
            if options.resource_version and options.resource_version != "0":
                raise errors.bad_request("specifying resource version is not allowed when using continue")
            revision, start = _read_token(options.continue_token)
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

    def as_bytes(self, kind: Kind, version: str, listing: Listing) -> bytes:
        """Return the plain JSON list."""
        metadata: dict[str, Any] = {"resourceVersion": str(listing.revision)}
        if listing.continue_token:
            metadata["continue"] = listing.continue_token
        if listing.remaining:
            metadata["remainingItemCount"] = listing.remaining
        head = encode({"kind": kind.list_kind, "apiVersion": kind.api_version(version), "metadata": metadata})
        return b"".join(
            (head[:-1], b',"items":[', b",".join(self._items(kind, version, listing.records)), b"]}\n")
        )

    def objects(self, kind: Kind, version: str, listing: Listing) -> list[Object]:
        """Return the objects in the asked-for version."""
        show = self._versions.outgoing
        # Thousands at once would push everything else out of the cache.
        find = self._objects.decoded_past
        return [show(kind, find(kind, record), version) for record in listing.records]

    def _items(self, kind: Kind, version: str, records: list[Record]) -> list[bytes]:
        if self._versions.items_carry_kind(kind):
            show = self._versions.outgoing
            return [encode(show(kind, self._objects.decoded(kind, record), version)) for record in records]
        if self._versions.is_stored_form(kind, version):
            skip = len(self._objects.opening(kind))
            return [b"{" + record.value[skip:] for record in records]
        items = []
        for record in records:
            item = dict(self._versions.outgoing(kind, self._objects.decoded(kind, record), version))
            item.pop("kind", None)
            item.pop("apiVersion", None)
            items.append(encode(item))
        return items


def parse_version(text: str, refuse: Any, prefix: str = "") -> int:
    """Read a resourceVersion; `refuse` makes the error for what is no number."""
    if text.isascii() and text.isdigit() and int(text) < 2**64:
        return int(text)
    problem = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    raise refuse(prefix + problem)


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


def _token(revision: int, prefix: str, last_key: str) -> str:
    start = last_key.removeprefix(prefix) + "\0"
    token = json.dumps({"v": TOKEN_VERSION, "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, str]:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        content = load_json(raw)
        version, revision, start = content["v"], content["rv"], content["start"]
        if (
            version != TOKEN_VERSION
            or not isinstance(revision, int)
            or not isinstance(start, str)
            or not start
        ):
            raise ValueError("unexpected content")
        if ".." in start or start.startswith("/"):
            raise ValueError("the key leaves its prefix")
    except (ValueError, KeyError, TypeError, binascii.Error) as problem:
        raise errors.bad_request(f"invalid continue token: continue key is not valid: {problem}") from None
    if revision == 0:
        raise errors.bad_request(
            "invalid continue token: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"
        )
    # The NUL makes the token's key the first one *behind* the last key that was shown.
    return revision, start.rstrip("\0")
