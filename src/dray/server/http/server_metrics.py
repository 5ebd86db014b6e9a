"""Metrics of the server, at `/metrics` in Prometheus' text format, under kube-apiserver's names.

Requests are counted and timed by verb, resource and code.

A path names its resource, and anybody can make up paths. So a refused request is
counted under its own labels only when the like of it has succeeded before, else as
`other`: what strangers ask for must not fill the memory.

Counting is a dictionary access, because it happens on every request; the client library for
Prometheus would cost more start-up time than everything else here together.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dray.api.features import KNOWN_GATES, Features
from dray.host.metrics_text import CONTENT_TYPE, Histogram, family, histogram
from dray.server.requests import Request, Response

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 30, 60)


class RequestLabels(NamedTuple):
    """By what a request is counted. A tuple, because it is looked up several times for each request."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    scope: str = ""  # cluster, namespace or resource; empty for other paths


_OTHER = RequestLabels("other")


@dataclass(slots=True)
class Metrics:
    """Count what the server does."""

    parts: list[Callable[[], Iterator[str]]] = field(default_factory=list)  # metrics of other parts, as lines
    more: Callable[[], Awaitable[bytes]] | None = None  # further metrics, as text; made at scraping
    _started: float = field(default_factory=time.time)
    _requests: dict[tuple[RequestLabels, int], int] = field(default_factory=lambda: defaultdict(int))
    _durations: dict[RequestLabels, Histogram] = field(
        default_factory=lambda: defaultdict(lambda: Histogram(BUCKETS))
    )
    _in_flight: dict[str, int] = field(default_factory=lambda: {"readOnly": 0, "mutating": 0})
    _long_running: dict[RequestLabels, int] = field(default_factory=lambda: defaultdict(int))
    _dropped: dict[str, int] = field(default_factory=lambda: {"readOnly": 0, "mutating": 0})
    _real: set[RequestLabels] = field(default_factory=set)  # labels of requests that succeeded

    def started(self, labels: RequestLabels, request_kind: str, long_running: bool) -> None:
        """Note that a request is being answered."""
        if long_running:
            self._long_running[labels] += 1
        else:
            self._in_flight[request_kind] += 1

    def ended(
        self, labels: RequestLabels, request_kind: str, long_running: bool, code: int, seconds: float
    ) -> None:
        """Note that a request is done."""
        counted = self._counted(labels, code)
        self._requests[counted, code] += 1
        if long_running:
            self._long_running[labels] -= 1
            if not self._long_running[labels]:
                del self._long_running[labels]
        else:
            self._in_flight[request_kind] -= 1
            self._durations[counted].observe(seconds)

    def dropped(self, labels: RequestLabels, request_kind: str) -> None:
        """Note that a request was refused because there were too many."""
        self._dropped[request_kind] += 1
        self._requests[self._counted(labels, 429), 429] += 1

    def _counted(self, labels: RequestLabels, code: int) -> RequestLabels:
        if code < 400:
            self._real.add(labels)
        return labels if labels in self._real else _OTHER

    def respond(self, request: Request) -> Response | None:
        """Answer /metrics; None for other paths."""
        if request.path.rstrip("/") != "/metrics":
            return None
        return Response(200, self._text() if self.more is None else self._stream(), content_type=CONTENT_TYPE)

    def _text(self) -> bytes:
        return "".join(self._lines()).encode()

    async def _stream(self) -> AsyncIterator[bytes]:
        assert self.more is not None
        yield self._text()
        yield await self.more()

    def _lines(self) -> Iterator[str]:
        yield from family(
            "apiserver_request_total",
            "counter",
            "Requests by code.",
            (
                ({**labels._asdict(), "code": str(code)}, count)
                for (labels, code), count in self._requests.items()
            ),
        )
        yield from histogram(
            "apiserver_request_duration_seconds",
            "Time that requests took, watches excepted.",
            ((labels._asdict(), found) for labels, found in self._durations.items()),
        )
        yield from family(
            "apiserver_current_inflight_requests",
            "gauge",
            "Requests being answered right now.",
            (({"request_kind": kind}, count) for kind, count in self._in_flight.items()),
        )
        yield from family(
            "apiserver_longrunning_requests",
            "gauge",
            "Watches and other long requests that are open right now.",
            ((labels._asdict(), count) for labels, count in self._long_running.items()),
        )
        yield from family(
            "apiserver_dropped_requests_total",
            "counter",
            "Requests refused with 429 because too many were in flight.",
            (({"request_kind": kind}, count) for kind, count in self._dropped.items()),
        )
        for part in self.parts:
            yield from part()
        yield from self._process()

    def _process(self) -> Iterator[str]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        values = [
            ("process_start_time_seconds", "gauge", "When the server began to count.", self._started),
            ("process_cpu_seconds_total", "counter", "Processor time used.", usage.ru_utime + usage.ru_stime),
        ]
        resident, descriptors = _resident_bytes(), _open_descriptors()
        if resident is not None:
            values.append(("process_resident_memory_bytes", "gauge", "Memory in use.", resident))
        if descriptors is not None:
            values.append(("process_open_fds", "gauge", "Open files and sockets.", descriptors))
        for name, kind, text, value in values:
            yield from family(name, kind, text, value)
        yield from family(
            "python_info",
            "gauge",
            "The Python that runs this.",
            [({"version": platform.python_version()}, 1)],
        )


def feature_gates(features: Features) -> Iterator[str]:
    """Write which feature gates are on, as kube-apiserver does, but without their stages."""
    return family(
        "kubernetes_feature_enabled",
        "gauge",
        "Feature gates: 1 is on, 0 is off.",
        (({"name": gate}, int(gate in features)) for gate in KNOWN_GATES),
    )


def _resident_bytes() -> float | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None  # not Linux
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _open_descriptors() -> float | None:
    try:
        return float(len(os.listdir("/proc/self/fd")))
    except OSError:
        return None
