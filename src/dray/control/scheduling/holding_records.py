"""Keeps the history of who held which devices (`scheduler.holding_history`) in kube-system/dray-history.

It is written when anything begins or ends, at most every 15 seconds, and once a minute while anything lasts. Without permission for the ConfigMap there is no history, and
everything else works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from dray.client import Client, ClientError, Forbidden, NotFound
from dray.client.resources import CONFIG_MAPS
from dray.devices import device_id_of
from dray.scheduler.holding_history import NAME, NAMESPACE, HoldingHistory, parse_history
from dray.scheduler.queue_report import HeldDevices

log = logging.getLogger("dray.scheduler")

_SAVE_SECONDS, _SAVE_CHANGED_SECONDS = 60.0, 15.0


class HoldingRecords:
    """Observes and keeps; used from one event loop."""

    def __init__(self, client: Client, now: Callable[[], datetime]) -> None:
        self._client, self._now = client, now
        self._history = HoldingHistory()
        self._saved_at = 0.0
        self._has_changed = False
        self._may_save = True
        self._saved: dict[str, str] | None = None

    async def restore(self) -> None:
        """Take over what was kept."""
        try:
            stored = await self._client.get(CONFIG_MAPS, NAME, NAMESPACE)
        except NotFound:
            return
        except ClientError as error:
            self._may_save = False
            log.warning("the history of devices is not kept: %s", error)
            return
        self._history = parse_history(stored.get("data") or {})

    async def look(self, held: Iterable[HeldDevices]) -> None:
        """Take note of what is held now, and write it if it is time."""
        moment = self._now().timestamp()
        pairs = {(each.user, str(device_id_of(device))) for each in held for device in each.devices}
        self._has_changed |= self._history.observe(pairs, moment)
        pause = _SAVE_CHANGED_SECONDS if self._has_changed else _SAVE_SECONDS
        if not self._may_save or moment - self._saved_at < pause:
            return
        data = self._history.to_data(moment)
        if data == self._saved or (self._saved is None and data["spans"] == "[]"):
            return
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "data": data,
        }
        try:
            await self._client.apply(CONFIG_MAPS, NAME, body, NAMESPACE, manager="dray-scheduler", force=True)
            self._saved, self._saved_at, self._has_changed = data, moment, False
        except Forbidden as error:
            self._may_save = False
            log.warning("the history of devices is not kept: %s", error)
        except ClientError as error:
            log.info("the history of devices could not be written: %s", error)
