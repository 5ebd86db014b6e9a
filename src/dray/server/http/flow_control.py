"""How much at a time: limits on requests in flight and on open watches, and request timeouts.

A server that takes every request at once answers none. Beyond the limits a
request gets 429 with Retry-After, and clients come back. The numbers are
kube-apiserver's defaults: 400 reading and 200 writing requests. Watches and other
long requests are not in flight in that sense; they have a limit of their own.

Superusers are exempt: whoever has to repair an overloaded server must get in.

`Flow.run` surrounds the answering of one request, after it is known who asks. A
streaming answer counts as open until its last byte is sent or its reader is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dray.server.http.server_metrics import Metrics, RequestLabels
from dray.server.requests import (
    ApiError,
    EndingStream,
    Request,
    Response,
    split_path,
    timed_out,
    too_many_requests,
    verb_of,
)

READ_ONLY = "readOnly"
MUTATING = "mutating"
RETRY_AFTER = 1  # second
_LONG_SUBRESOURCES = frozenset({"attach", "exec", "portforward", "proxy"})


@dataclass(frozen=True, slots=True)
class Limits:
    """The most at a time; 0 means no limit."""

    reading: int = 400  # --max-requests-inflight
    writing: int = 200  # --max-mutating-requests-inflight
    watches: int = 20_000
    seconds: float = 60.0  # --request-timeout, of requests that are not long


@dataclass(slots=True)
class Flow:
    """Admit requests while there is room, time and count them."""

    metrics: Metrics
    limits: Limits = field(default_factory=Limits)
    clock: Callable[[], float] = time.monotonic
    _open: dict[str, int] = field(default_factory=lambda: {READ_ONLY: 0, MUTATING: 0, "watch": 0})

    async def run(
        self, request: Request, exempt: bool, answer: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Answer a request within the limits; raises 429 and 504 errors and whatever the answer raises."""
        labels, long_running = describe(request)
        request_kind = READ_ONLY if request.method in ("GET", "HEAD", "OPTIONS") else MUTATING
        lane = "watch" if long_running else request_kind
        limit = {"watch": self.limits.watches, READ_ONLY: self.limits.reading, MUTATING: self.limits.writing}[
            lane
        ]
        if limit and not exempt and self._open[lane] >= limit:
            self.metrics.dropped(labels, request_kind)
            raise too_many_requests(_FULL[lane], RETRY_AFTER)
        self._open[lane] += 1
        self.metrics.started(labels, request_kind, long_running)
        begun = self.clock()

        def close(code: int) -> None:
            self._open[lane] -= 1
            self.metrics.ended(labels, request_kind, long_running, code, self.clock() - begun)

        try:
            response = await self._in_time(answer, long_running)
        except ApiError as refusal:
            close(refusal.code)
            raise
        except BaseException:
            close(500)
            raise
        if isinstance(response.body, bytes):
            close(response.status)
        else:
            response.body = EndingStream(response.body, lambda: close(response.status))
        return response

    async def _in_time(self, answer: Callable[[], Awaitable[Response]], long_running: bool) -> Response:
        if long_running or not self.limits.seconds:
            return await answer()
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await answer()
        except TimeoutError as late:
            raise timed_out("Timeout: request did not complete within the allotted timeout") from late


_FULL = {
    "watch": "too many open watches, please try again later",
    READ_ONLY: "too many requests, please try again later",
    MUTATING: "too many requests, please try again later",
}


def describe(request: Request) -> tuple[RequestLabels, bool]:
    """Return by what a request is counted, and whether it may last long."""
    path = split_path(request.path)
    if path is None or not path.resource:
        return RequestLabels(request.method), False
    verb = verb_of(request, path).upper() or request.method
    scope = "resource" if path.name else "namespace" if path.namespace else "cluster"
    follows = path.subresource == "log" and request.first("follow").lower() in ("1", "true")
    long_running = verb == "WATCH" or follows or path.subresource in _LONG_SUBRESOURCES
    labels = RequestLabels(verb, path.group, path.version, path.resource, path.subresource, scope)
    return labels, long_running
