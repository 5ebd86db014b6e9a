"""Prometheus metrics of the server, at `/metrics`, under kube-apiserver's names.

Requests are counted and timed by verb, resource and code; what changes by itself
(objects stored, the size of the store) is asked for at the moment of scraping
through gauges that hold a function.

A server has a registry of its own, so that several can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from dray.server.requests import Request, Response

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 30, 60)
_REQUEST_LABELS = ("verb", "group", "version", "resource", "subresource", "scope")

Samples = Callable[[], Iterable[tuple[Mapping[str, str], float]]]  # labels, value


@dataclass(frozen=True, slots=True)
class RequestLabels:
    """By what a request is counted."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    scope: str = ""  # cluster, namespace or resource; empty for other paths

    def values(self) -> tuple[str, ...]:
        """Return the values in the order of the labels."""
        return (self.verb, self.group, self.version, self.resource, self.subresource, self.scope)


@dataclass(slots=True, eq=False)
class _Asked:
    """A gauge whose value is asked for when it is scraped."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Samples

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in self.samples():
            family.add_metric([labels.get(label, "") for label in self.labels], value)
        yield family


@dataclass(slots=True)
class Metrics:
    """Count what the server does."""

    registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=False))
    _requests: Counter = field(init=False)
    _durations: Histogram = field(init=False)
    _in_flight: Gauge = field(init=False)
    _long_running: Gauge = field(init=False)
    _dropped: Counter = field(init=False)

    def __post_init__(self) -> None:
        registry = self.registry
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counter(
            "apiserver_request_total", "Requests by code.", (*_REQUEST_LABELS, "code"), registry=registry
        )
        self._durations = Histogram(
            "apiserver_request_duration_seconds",
            "Time that requests took, watches excepted.",
            _REQUEST_LABELS,
            buckets=_BUCKETS,
            registry=registry,
        )
        self._in_flight = Gauge(
            "apiserver_current_inflight_requests",
            "Requests being answered right now.",
            ("request_kind",),
            registry=registry,
        )
        self._long_running = Gauge(
            "apiserver_longrunning_requests",
            "Watches and other long requests that are open right now.",
            _REQUEST_LABELS,
            registry=registry,
        )
        self._dropped = Counter(
            "apiserver_dropped_requests_total",
            "Requests refused with 429 because too many were in flight.",
            ("request_kind",),
            registry=registry,
        )
        for kind in ("readOnly", "mutating"):
            self._in_flight.labels(kind)

    def add_gauge(self, name: str, help: str, labels: tuple[str, ...], samples: Samples) -> None:
        """Show a value that is asked for at scraping, such as the number of stored objects."""
        self.registry.register(_Asked(name, help, labels, samples))

    def started(self, labels: RequestLabels, request_kind: str, long_running: bool) -> None:
        """Note that a request is being answered."""
        if long_running:
            self._long_running.labels(*labels.values()).inc()
        else:
            self._in_flight.labels(request_kind).inc()

    def ended(
        self, labels: RequestLabels, request_kind: str, long_running: bool, code: int, seconds: float
    ) -> None:
        """Note that a request is done."""
        values = labels.values()
        self._requests.labels(*values, str(code)).inc()
        if long_running:
            self._long_running.labels(*values).dec()
        else:
            self._in_flight.labels(request_kind).dec()
            self._durations.labels(*values).observe(seconds)

    def dropped(self, labels: RequestLabels, request_kind: str) -> None:
        """Note that a request was refused because there were too many."""
        self._dropped.labels(request_kind).inc()
        self._requests.labels(*labels.values(), "429").inc()

    def respond(self, request: Request) -> Response | None:
        """Answer /metrics; None for other paths."""
        if request.path.rstrip("/") != "/metrics":
            return None
        return Response(200, generate_latest(self.registry), content_type=CONTENT_TYPE)
