"""Events about objects, counted instead of repeated.

The same message about the same object becomes one Event whose count grows: the first
time it is created, later patched. Writing happens in the background, one at a time, so
recording never slows down whoever has something to say; while the server is away,
at most `_MAX_WAITING` events wait and the oldest are dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from dray.api.caching import BoundedMap
from dray.api.json_types import JsonObject
from dray.api.meta import ObjectMeta
from dray.api.times import format_time
from dray.client.api_client import Client
from dray.client.errors import ClientError, NotFound
from dray.client.resources import EVENTS, Resource
from dray.host.clock import utc_now

log = logging.getLogger("dray.client")

_MAX_WAITING = 5_000
_MAX_KNOWN = 4_096  # events whose count may still grow
_MAX_MESSAGE = 1_024


@dataclass(slots=True)
class _Known:
    name: str
    first: str
    count: int = 0
    is_written: bool = False


class EventRecorder:
    """Records events in the name of one component."""

    def __init__(self, client: Client, component: str, now: Callable[[], datetime] = utc_now) -> None:
        self._client = client
        self._component = component
        self._now = now
        self._known: BoundedMap[str, _Known] = BoundedMap(_MAX_KNOWN)
        self._waiting: BoundedMap[str, JsonObject] = BoundedMap(_MAX_WAITING)  # digest -> event to write
        self._arrived = asyncio.Event()

    def record(self, resource: Resource, meta: ObjectMeta, kind: str, reason: str, message: str) -> None:
        """Say something about an object; `kind` is Normal or Warning. Returns at once."""
        message = message[:_MAX_MESSAGE]
        parts = (resource.kind, meta.namespace, meta.name, meta.uid, kind, reason, message)
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
        moment = format_time(self._now())
        known = self._known.get(digest)
        if known is None:
            known = self._known[digest] = _Known(f"{meta.name[:200]}.{digest}", moment)
        known.count += 1
        self._waiting[digest] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": known.name, "namespace": meta.namespace or "default"},
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": known.first,
            "lastTimestamp": moment,
            "count": known.count,
        }
        self._arrived.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                digest, event = self._waiting.popitem(last=False)
                try:
                    await self._write(digest, event)
                except ClientError as error:
                    # Events are best effort: a lost one is no failure.
                    log.debug("event %s: %s", event["metadata"]["name"], error)

    async def _write(self, digest: str, event: JsonObject) -> None:
        known = self._known.get(digest)
        namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
        if known is not None and known.is_written:
            patch = {"count": event["count"], "lastTimestamp": event["lastTimestamp"]}
            try:
                await self._client.patch(EVENTS, name, patch, namespace)
                return
            except NotFound:
                pass  # it expired: write it anew
        await self._client.call("POST", EVENTS.path(namespace), event, view=None)
        if known is not None:
            known.is_written = True
