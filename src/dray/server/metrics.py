"""Metrics of the server, at `/metrics` in Prometheus' text format, under kube-apiserver's names.

Requests are counted and timed by verb, resource and code; what changes by itself
(objects stored, the size of the store) is asked for at the moment of scraping
through gauges that hold a function.

A path names its resource, and anybody can make up paths. So a refused request is
counted under its own labels only when the like of it has succeeded before, else as
`other`: what strangers ask for must not fill the memory.

Counting is a dictionary access, because it happens on every request, and writing
the text takes a page of code; the client library for Prometheus would cost the
server more start-up time than everything else here together.
"""

from __future__ import annotations

import bisect
import os
import platform
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dray.server.requests import Request, Response

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 30, 60)
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Samples = Callable[[], Iterable[tuple[Mapping[str, str], float]]]  # labels, value


class RequestLabels(NamedTuple):
    """By what a request is counted. A tuple, because it is looked up several times for each request."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    scope: str = ""  # cluster, namespace or resource; empty for other paths

    def pairs(self) -> dict[str, str]:
        """Return the labels by name."""
        return self._asdict()


_OTHER = RequestLabels("other")


@dataclass(slots=True)
class _Durations:
    """A histogram of one kind of request."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))  # the last: longer than all
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Metrics:
    """Count what the server does."""

    _started: float = field(default_factory=time.time)
    _requests: dict[tuple[RequestLabels, int], int] = field(default_factory=lambda: defaultdict(int))
    _durations: dict[RequestLabels, _Durations] = field(default_factory=lambda: defaultdict(_Durations))
    _in_flight: dict[str, int] = field(default_factory=lambda: {"readOnly": 0, "mutating": 0})
    _long_running: dict[RequestLabels, int] = field(default_factory=lambda: defaultdict(int))
    _dropped: dict[str, int] = field(default_factory=lambda: {"readOnly": 0, "mutating": 0})
    _gauges: list[tuple[str, str, Samples]] = field(default_factory=list)
    _real: set[RequestLabels] = field(default_factory=set)  # labels of requests that succeeded

    def add_gauge(self, name: str, help: str, samples: Samples) -> None:
        """Show a value that is asked for at scraping, such as the number of stored objects."""
        self._gauges.append((name, help, samples))

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
            self._durations[counted].add(seconds)

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
        return Response(200, "".join(self._lines()).encode(), content_type=CONTENT_TYPE)

    def _lines(self) -> Iterator[str]:
        yield from _family(
            "apiserver_request_total",
            "counter",
            "Requests by code.",
            (
                ({**labels.pairs(), "code": str(code)}, count)
                for (labels, code), count in self._requests.items()
            ),
        )
        yield from self._histogram()
        yield from _family(
            "apiserver_current_inflight_requests",
            "gauge",
            "Requests being answered right now.",
            (({"request_kind": kind}, count) for kind, count in self._in_flight.items()),
        )
        yield from _family(
            "apiserver_longrunning_requests",
            "gauge",
            "Watches and other long requests that are open right now.",
            ((labels.pairs(), count) for labels, count in self._long_running.items()),
        )
        yield from _family(
            "apiserver_dropped_requests_total",
            "counter",
            "Requests refused with 429 because too many were in flight.",
            (({"request_kind": kind}, count) for kind, count in self._dropped.items()),
        )
        for name, text, samples in self._gauges:
            yield from _family(name, "gauge", text, samples())
        yield from self._process()

    def _histogram(self) -> Iterator[str]:
        name = "apiserver_request_duration_seconds"
        yield f"# HELP {name} Time that requests took, watches excepted.\n# TYPE {name} histogram\n"
        for labels, durations in self._durations.items():
            pairs, below = labels.pairs(), 0
            for bound, count in zip((*BUCKETS, None), durations.counts, strict=True):
                below += count
                limit = "+Inf" if bound is None else str(bound)
                yield _sample(f"{name}_bucket", {**pairs, "le": limit}, below)
            yield _sample(f"{name}_sum", pairs, durations.total)
            yield _sample(f"{name}_count", pairs, below)

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
            yield from _family(name, kind, text, [({}, value)])
        yield from _family(
            "python_info",
            "gauge",
            "The Python that runs this.",
            [({"version": platform.python_version()}, 1)],
        )


def _family(
    name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    listed = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    return f"{name}{{{listed}}} {value}\n" if listed else f"{name} {value}\n"


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
