"""What a driver counts, for Prometheus.

Each driver has a registry of its own: several may live in one process (a
simulated node has one per kind of hardware).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """The metrics of one driver; `registry` is what an HTTP endpoint exposes."""

    def __init__(self, driver: str) -> None:
        self.registry = CollectorRegistry()
        labels = {"driver": driver}
        seconds = Histogram(
            "dray_driver_operation_seconds",
            "How long prepare and unprepare of one claim took.",
            ("driver", "operation"),
            registry=self.registry,
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 45),
        )
        errors = Counter(
            "dray_driver_errors_total",
            "Failed operations, by kind.",
            ("driver", "operation"),
            registry=self.registry,
        )
        self._seconds = {name: seconds.labels(driver, name) for name in ("prepare", "unprepare")}
        self._errors = {
            name: errors.labels(driver, name)
            for name in ("prepare", "unprepare", "discover", "publish", "health")
        }
        self.prepared_claims = Gauge(
            "dray_driver_prepared_claims", "Claims on record.", ("driver",), registry=self.registry
        ).labels(**labels)
        self.published_devices = Gauge(
            "dray_driver_published_devices",
            "Devices in published slices.",
            ("driver",),
            registry=self.registry,
        ).labels(**labels)
        self._writes = Counter(
            "dray_driver_slice_writes_total",
            "ResourceSlice writes.",
            ("driver", "verb"),
            registry=self.registry,
        )
        self._driver = driver

    def observe(self, operation: str, seconds: float) -> None:
        """Count one finished prepare or unprepare."""
        self._seconds[operation].observe(seconds)

    def failed(self, operation: str) -> None:
        """Count one failure."""
        self._errors[operation].inc()

    def wrote_slice(self, verb: str) -> None:
        """Count one create, update or delete."""
        self._writes.labels(self._driver, verb).inc()
