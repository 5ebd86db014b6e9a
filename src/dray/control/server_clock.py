"""The time as the API server has it, carried on by a clock that nobody can put forward.

Controllers compare dates that the server wrote (when a taint was added, when an object was made)
with "now". When the local wall clock is wrong, or jumps, pods are evicted an hour early or
never. So "now" is what the server says in the `Date` of its answers, asked for once in a
while, and in between the steady clock goes on. Until the server has answered the local clock
stands in.

A `Date` has whole seconds and is old when it arrives: this clock is late by a second or two, and
never early.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from dray.client import Client, ClientError, Request
from dray.control.reconcile_loop import Clock, steady_now
from dray.host.clock import utc_now

log = logging.getLogger("dray.control")

ASK_EVERY = 60.0  # seconds
NOTABLE = timedelta(seconds=5)  # a difference that people should hear of
_ROUNDING = timedelta(seconds=2)


class ServerClock:
    """Callable like any clock; `run` keeps it in step with the server."""

    def __init__(self, client: Client, local: Clock = utc_now) -> None:
        self._client = client
        self._local = local
        self._zero: datetime | None = None  # server time when the steady clock was zero

    def __call__(self) -> datetime:
        """Return the time."""
        if self._zero is None:
            return self._local()
        return self._zero + timedelta(seconds=steady_now())

    async def ask(self) -> None:
        """Set the clock by one answer of the server; keep it when there is none."""
        try:
            # Any answer will do, a refusal has a date as well.
            answer = await self._client.transport.send(Request("GET", "/version", timeout=10.0))
            said = parsedate_to_datetime(answer.headers["date"]).astimezone(UTC)
        except (ClientError, KeyError, ValueError) as error:
            log.debug("the server does not tell the time: %s", error)
            return
        zero = said - timedelta(seconds=steady_now())
        before, self._zero = self._zero, zero
        if before is None:
            if abs(said - self._local()) > NOTABLE:
                log.warning("the server's clock says %s, the one here %s", said, self._local())
        elif abs(zero - before) < _ROUNDING:
            self._zero = max(zero, before)  # only the fraction of a second that a date leaves out

    async def run(self) -> None:
        """Follow the server's clock until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(ASK_EVERY)
