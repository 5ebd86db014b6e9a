"""The health of the devices on this node, as their drivers report it.

A driver streams complete lists. The last report of a device is valid for the time that
the driver sets (30 s unless it says otherwise); afterwards its health is unknown, so that a
driver that no longer reports does not keep a dead GPU healthy. The agent is notified of changes
and updates the status of the pods that hold the device.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from dray.devices import DeviceId
from dray.node.plugins import Plugin

log = logging.getLogger("dray.node")

HEALTH_NAMES = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}
DEFAULT_VALID_SECONDS = 30
RETRY_SECONDS = 5.0
_MAX_DEVICES = 16384
_MAX_MESSAGE = 1024
_PAUSE_SECONDS = 0.1  # between two messages of one driver


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """The last report about a device, and until when it is valid."""

    health: str
    message: str
    valid_until: float


class DeviceHealthBoard:
    """The last report about every device; `on_change` is called with the devices whose health changed."""

    def __init__(
        self, on_change: Callable[[set[DeviceId]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reported: dict[DeviceId, ReportedHealth] = {}
        self._on_change = on_change
        self._clock = clock

    def of(self, key: DeviceId) -> ReportedHealth | None:
        """Return a device's health now; None when its driver does not report health."""
        reported = self._reported.get(key)
        if reported is not None and reported.valid_until < self._clock():
            return ReportedHealth("Unknown", "", reported.valid_until)
        return reported

    def take_report(self, driver: str, answer: object) -> None:
        """Take one message of a driver's stream: the complete list of its devices."""
        now = self._clock()
        before = {key: self.of(key) for key in self._reported if key.driver == driver}
        devices = list(getattr(answer, "devices", ()))
        if len(devices) > _MAX_DEVICES:
            log.warning("driver %s reports %d devices; only %d are kept", driver, len(devices), _MAX_DEVICES)
        after = {}
        for entry in devices[:_MAX_DEVICES]:
            key = DeviceId(driver, entry.device.pool_name, entry.device.device_name)
            valid = entry.health_check_timeout_seconds or DEFAULT_VALID_SECONDS
            message = entry.message.encode()[:_MAX_MESSAGE].decode(errors="ignore")
            after[key] = ReportedHealth(HEALTH_NAMES.get(entry.health, "Unknown"), message, now + valid)
        for key, known in before.items():
            if key in after:
                continue
            # A device that is no longer listed is reported as unknown once, then removed.
            if known is None or known.health == "Unknown":
                del self._reported[key]
            else:
                after[key] = ReportedHealth("Unknown", "", now)
        self._reported.update(after)
        self._notify({key for key, new in after.items() if _differ(before.get(key), new)})

    def expire(self) -> None:
        """Set reports to unknown whose time has passed since the last call."""
        now = self._clock()
        stale = {
            key
            for key, reported in self._reported.items()
            if reported.valid_until < now and reported.health != "Unknown"
        }
        for key in stale:
            self._reported[key] = ReportedHealth(
                "Unknown", "no report from the driver in time", self._reported[key].valid_until
            )
        self._notify(stale)

    def _notify(self, changed: set[DeviceId]) -> None:
        if changed:
            self._on_change(changed)

    async def follow(self, plugin: Plugin) -> None:
        """Read a driver's stream until cancelled, or until it turns out to have no health service."""
        while True:
            stream = plugin.watch_health()
            if stream is None:
                return
            try:
                async for answer in stream:
                    self.take_report(plugin.driver, answer)
                    # gRPC's flow control slows down a driver that sends without a pause.
                    await asyncio.sleep(_PAUSE_SECONDS)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
                log.debug("health stream of %s ended: %s", plugin.driver, error.details())
            await asyncio.sleep(RETRY_SECONDS)

    async def run_expiry(self) -> None:
        """Look for stale reports every second."""
        while True:
            await asyncio.sleep(1.0)
            self.expire()


def _differ(old: ReportedHealth | None, new: ReportedHealth) -> bool:
    return old is None or (old.health, old.message) != (new.health, new.message)
