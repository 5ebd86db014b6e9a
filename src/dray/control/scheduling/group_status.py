"""Tell on a PodGroup whether its pods have been scheduled: the condition PodGroupInitiallyScheduled.

As in kube-scheduler the condition is final once it is True. While the group waits it is False, with the reason; a new text of the same cause is not
written again, because it would only differ in counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from dray.api.caching import BoundedMap
from dray.api.conditions import is_true
from dray.api.core import PodGroup
from dray.api.times import format_time
from dray.client import STRATEGIC_PATCH, Client, ClientError
from dray.client import resources as kinds

log = logging.getLogger("dray.scheduler")

SCHEDULED = "PodGroupInitiallyScheduled"
_MAX_MESSAGE = 1024  # characters; the API allows 32,768
_MAX_KNOWN = 4096


class GroupReporter:
    """Writes the condition, once for each news."""

    def __init__(self, client: Client, now: Callable[[], datetime]) -> None:
        self._client = client
        self._now = now
        self._written: BoundedMap[str, tuple[bool, str]] = BoundedMap(
            _MAX_KNOWN
        )  # group uid -> what was written last

    def is_new(self, group: PodGroup, *, is_scheduled: bool, cause: str = "") -> bool:
        """Return whether this should be written, and take note of it."""
        if is_true(group.status.conditions, SCHEDULED):
            return False
        if self._written.get(group.metadata.uid) == (is_scheduled, cause):
            return False
        self._written[group.metadata.uid] = (is_scheduled, cause)
        return True

    async def write(self, group: PodGroup, message: str, *, is_scheduled: bool) -> None:
        """Write the condition; a failure is logged, the next news tries again."""
        meta = group.metadata
        condition = {
            "type": SCHEDULED,
            "status": "True" if is_scheduled else "False",
            "reason": "Scheduled" if is_scheduled else "Unschedulable",
            "message": message[:_MAX_MESSAGE],
            "lastTransitionTime": format_time(self._now()),
        }
        body: dict[str, Any] = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}
        path = kinds.POD_GROUPS.path(meta.namespace, meta.name, "status")
        try:
            await self._client.call("PATCH", path, body, content_type=STRATEGIC_PATCH, view=None)
        except ClientError as error:
            self._written.pop(meta.uid, None)
            log.info("cannot write the status of pod group %s: %s", meta.name, error)
