"""How the devices on this node feel, as their drivers tell it.

A driver streams complete lists. What it last said of a device holds for as long
as it promised (30 s unless it says otherwise) and is unknown afterwards: a driver
that fell silent must not keep a dead GPU healthy. Changes are told to the agent,
which updates the status of the pods that hold the device.
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
_BREATH_SECONDS = 0.1  # between two messages of one driver


@dataclass(frozen=True, slots=True)
class Feeling:
    """What was said of a device, and until when it holds."""

    health: str
    message: str
    valid_until: float


class DeviceHealthBoard:
    """The last word on every device; `on_change` is called with the devices whose health changed."""

    def __init__(
        self, on_change: Callable[[set[DeviceId]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._feelings: dict[DeviceId, Feeling] = {}
        self._on_change = on_change
        self._clock = clock

    def of(self, key: DeviceId) -> Feeling | None:
        """Return how a device feels now; None when its driver does not report health."""
        feeling = self._feelings.get(key)
        if feeling is not None and feeling.valid_until < self._clock():
            return Feeling("Unknown", "", feeling.valid_until)
        return feeling

    def hear(self, driver: str, answer: object) -> None:
        """Take one message of a driver's stream: the complete list of its devices."""
        now = self._clock()
        before = {key: self.of(key) for key in self._feelings if key.driver == driver}
        devices = list(getattr(answer, "devices", ()))
        if len(devices) > _MAX_DEVICES:
            log.warning("driver %s reports %d devices; only %d are kept", driver, len(devices), _MAX_DEVICES)
        after = {}
        for entry in devices[:_MAX_DEVICES]:
            key = DeviceId(driver, entry.device.pool_name, entry.device.device_name)
            valid = entry.health_check_timeout_seconds or DEFAULT_VALID_SECONDS
            message = entry.message.encode()[:_MAX_MESSAGE].decode(errors="ignore")
            after[key] = Feeling(HEALTH_NAMES.get(entry.health, "Unknown"), message, now + valid)
        for key, known in before.items():
            if key in after:
                continue
            # A device that is no longer listed is no longer known: said once, then forgotten.
            if known is None or known.health == "Unknown":
                del self._feelings[key]
            else:
                after[key] = Feeling("Unknown", "", now)
        self._feelings.update(after)
        self._tell({key for key, new in after.items() if _differ(before.get(key), new)})

    def expire(self) -> None:
        """Notice what has grown stale since the last call."""
        now = self._clock()
        stale = {
            key
            for key, feeling in self._feelings.items()
            if feeling.valid_until < now and feeling.health != "Unknown"
        }
        for key in stale:
            self._feelings[key] = Feeling(
                "Unknown", "no news from the driver", self._feelings[key].valid_until
            )
        self._tell(stale)

    def _tell(self, changed: set[DeviceId]) -> None:
        if changed:
            self._on_change(changed)

    async def follow(self, plugin: Plugin) -> None:
        """Listen to a driver until cancelled, or until it says that it has no health service."""
        while True:
            stream = plugin.watch_health()
            if stream is None:
                return
            try:
                async for answer in stream:
                    self.hear(plugin.driver, answer)
                    # A driver that never stops talking is held up by gRPC's flow control.
                    await asyncio.sleep(_BREATH_SECONDS)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
                log.debug("health stream of %s ended: %s", plugin.driver, error.details())
            await asyncio.sleep(RETRY_SECONDS)

    async def run_expiry(self) -> None:
        """Look for stale news every second."""
        while True:
            await asyncio.sleep(1.0)
            self.expire()


def _differ(old: Feeling | None, new: Feeling) -> bool:
    return old is None or (old.health, old.message) != (new.health, new.message)
