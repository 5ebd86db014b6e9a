"""The device series on the /metrics of the scheduler, whose informers have the objects at hand."""

from __future__ import annotations

from collections.abc import Callable

from dray.control.scheduling import SchedulingLoop
from dray.sim.snapshot import Snapshot
from dray.workbench.device_metrics import DeviceMetrics


def scheduler_device_metrics(loop: SchedulingLoop, max_devices: int) -> DeviceMetrics:
    """Return the series of what the scheduler's informers know."""
    informers = loop.informers

    def gather() -> Callable[[], Snapshot]:
        snapshot = Snapshot(
            nodes=list(informers.nodes.items.values()),
            slices=list(informers.slices.items.values()),
            claims=list(informers.claims.items.values()),
            taint_rules=list(informers.taint_rules.items.values()),
        )
        return lambda: snapshot

    metrics = DeviceMetrics(gather, max_devices)
    informers.claims.add_handler(metrics.claim_waits.see)
    return metrics
