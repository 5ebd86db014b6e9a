"""The device series of a process that has the objects at hand, as text in Prometheus' format for its /metrics.

`dray exporter`, the scheduler and `dray server` know the same objects from different places; each hands a function
that gathers them to `DeviceMetrics`, so that all serve the same series (`usage_series`) in the same form.

Theory of operation. The text is computed when somebody asks and the last one is older than `refresh` seconds.
`gather` is called on the event loop and only takes references; what it returns makes the snapshot and is called in a
thread, as is the rest, because a large fleet takes longer than an event loop may be held. Requests that come
meanwhile share the computation.

How long claims wait cannot be seen in a snapshot, so `ClaimWaits` counts each claim at the moment of its allocation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from dray.api.resource import ResourceClaim
from dray.api.times import parse_time
from dray.host.clock import utc_now
from dray.host.metrics_text import Histogram, family, histogram

if TYPE_CHECKING:
    from dray.sim.snapshot import Snapshot

MAX_DEVICES = 20_000
REFRESH = 15.0  # seconds
# Creation times have whole seconds.
_WAIT_BOUNDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)

Gather = Callable[[], Callable[[], "Snapshot"]]


@dataclass(slots=True)
class ClaimWaits:
    """How long claims waited for their devices."""

    now: Callable[[], datetime] = utc_now
    waits: Histogram = field(default_factory=lambda: Histogram(_WAIT_BOUNDS))

    def see(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take note of a change; a handler for an informer of claims."""
        if old is None or new is None or old.status.allocation is not None or new.status.allocation is None:
            return  # a claim that was allocated when it was first seen tells nothing of its wait
        self.allocated(new.metadata.creation_timestamp)

    def allocated(self, created: str | None) -> None:
        """Count a claim that was created then and is allocated now."""
        if created is not None:
            # Clocks of two machines differ a little.
            self.waits.observe(max(0.0, (self.now() - parse_time(created)).total_seconds()))


@dataclass(slots=True)
class DeviceMetrics:
    """Who holds what, as text; see the module docstring."""

    gather: Gather
    max_devices: int = MAX_DEVICES
    refresh: float = REFRESH
    clock: Callable[[], float] = time.monotonic
    claim_waits: ClaimWaits = field(default_factory=ClaimWaits)
    _text: bytes = b""
    _computed_at: float = float("-inf")
    _computing: asyncio.Future[bytes] | None = None

    async def text(self) -> bytes:
        """Return the series; those of devices are not older than `refresh` seconds."""
        waits = histogram(
            "dray_claim_allocation_duration_seconds",
            "Time from the creation of a claim to its allocation, of claims allocated since the start.",
            self.claim_waits.waits,
        )
        return await self._device_series() + "".join(waits).encode()

    async def _device_series(self) -> bytes:
        if self.clock() - self._computed_at < self.refresh:
            return self._text
        if self._computing is None:
            self._computing = asyncio.ensure_future(self._compute())
        return await asyncio.shield(self._computing)

    async def _compute(self) -> bytes:
        try:
            make_snapshot = self.gather()
            self._text = await asyncio.to_thread(_text_of, make_snapshot, self.max_devices)
            self._computed_at = self.clock()
            return self._text
        finally:
            self._computing = None


def _text_of(make_snapshot: Callable[[], Snapshot], max_devices: int) -> bytes:
    # Here, because a server that nobody scrapes needs none of it.
    from dray.workbench.inventory import Inventory
    from dray.workbench.usage_series import usage_series

    families = usage_series(Inventory(make_snapshot()), max_devices)
    lines = [line for name, text, samples in families for line in family(name, "gauge", text, samples)]
    return "".join(lines).encode()
