"""Events do not live for ever: an hour after they were last written they go.

kube-apiserver gives events a lease of an hour in its store. Here a loop looks every
few minutes; an event may therefore live a little longer, never shorter.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta

from dray.api.json_types import JsonObject
from dray.api.kinds import kind_of
from dray.api.times import parse_time
from dray.server.objects.stored_objects import Objects, prefix_of
from dray.server.requests import Environment, TimeSlice
from dray.server.store import StoreUnavailable, WriteConflict

EVENT_LIFE = timedelta(hours=1)
LOOK_EVERY = 300.0
_TIMES = ("lastTimestamp", "eventTime")


async def expire_events(objects: Objects, environment: Environment) -> None:
    """Delete old events for as long as the server runs."""
    while True:
        await asyncio.sleep(LOOK_EVERY)
        with contextlib.suppress(StoreUnavailable):  # a full disk, perhaps: another time
            await expire_once(objects, environment.now())


async def expire_once(objects: Objects, now: datetime) -> int:
    """Delete the events that are too old; returns how many."""
    kind = kind_of("", "Event")
    assert kind is not None
    gone = 0
    turn = TimeSlice()
    for record in objects.store.list(prefix_of(kind)).records:
        await turn.check()
        if last_written(objects.decoded(kind, record)) + EVENT_LIFE > now:
            continue
        try:
            await objects.store.delete(record.key, record.revision)
            gone += 1
        except WriteConflict:
            pass  # written again just now: it is not old any more
    return gone


def last_written(event: JsonObject) -> datetime:
    """Return the latest time that an event tells about itself."""
    metadata = event["metadata"]
    series = (event.get("series") or {}).get("lastObservedTime")
    told = [metadata.get("creationTimestamp"), series, *(event.get(name) for name in _TIMES)]
    for entry in metadata.get("managedFields") or ():
        told.append(entry.get("time"))
    return max(parse_time(text) for text in told if text)
