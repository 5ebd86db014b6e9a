"""One leader among equals, by a Lease that is renewed.

A candidate takes the Lease when nobody holds it or when its holder has not renewed
it for the lease's duration *as seen by the candidate's own clock*: wall clocks of
machines differ, so only "I have seen no change for so long" counts, never the time
written in the Lease. Every write carries the resourceVersion, so two candidates
cannot both succeed.

A leader that cannot renew within `renew_deadline` stops leading before others may
take over. A leader that did not run for a while (SIGSTOP, a suspended machine) cannot
know that in time: its first step afterwards may be a write. So leaders write through
`fence(client)`, which sends nothing but reads unless the lease was renewed within
`renew_deadline`. A write that was sent before the pause may still land: what leaders
write must be safe even when two of them overlap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from dray.api.core import Lease
from dray.api.json_types import JsonObject
from dray.api.times import format_microtime
from dray.client.api_client import Client
from dray.client.change_log import ChangeLog
from dray.client.errors import ClientError, Conflict, Forbidden, NotFound, TransportError
from dray.client.resources import LEASES
from dray.client.transport import Request, Response, Transport
from dray.host.clock import utc_now

log = logging.getLogger("dray.client")


@dataclass(slots=True)
class LeaderElection:
    """Runs a function while this process holds the lease."""

    client: Client
    name: str
    identity: str  # unique per process
    namespace: str = "kube-system"
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic
    is_leading: bool = False
    is_new: bool = False  # there was no lease: whoever held one that was deleted may still believe in it
    confirmed_at: float = float("-inf")  # `clock` just before the last write that took or kept the lease

    @property
    def is_certain(self) -> bool:
        """Return whether nobody else can hold the lease at this moment, whatever happened since the last renewal.

        Counted from before the write was sent: others count from when they see it, which is later.
        """
        return self.is_leading and self.clock() - self.confirmed_at < self.renew_deadline

    def fence(self, client: Client) -> Client:
        """Return a client that writes only while nobody else can hold the lease; reads always pass.

        Close the given client, not this one.
        """
        return Client(_Fenced(client.transport, self), namespace=client.namespace)

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait to be elected, then run `lead`; returns when leading ends (lost, or `lead` returned).

        A lost lease cancels `lead`; the caller decides whether to run again or to exit.
        """
        held = await self._acquire()
        self.is_leading = True
        log.info("leading as %s", self.identity)
        work = asyncio.ensure_future(lead())
        renewing = asyncio.create_task(self._renew(held))
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_leading = False
            renewing.cancel()
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(work, return_exceptions=False)
            if renewing.done() and not renewing.cancelled() and renewing.exception() is None:
                log.warning("the lease %s was lost", self.name)
            else:
                await self._release()

    async def _acquire(self) -> Lease:
        """Return the lease once it is ours; a server that is away or refuses is asked again."""
        observed = _Observed(asyncio.get_running_loop().time)
        trouble = ChangeLog(log)
        while True:
            try:
                if (held := await self._try_to_acquire(observed)) is not None:
                    return held
            except Forbidden as error:
                trouble.warn(f"lease {self.namespace}/{self.name} cannot be taken: {error}")
            except ClientError as error:
                log.debug("lease %s: %s", self.name, error)
            await asyncio.sleep(self.retry_period)

    async def _try_to_acquire(self, observed: _Observed) -> Lease | None:
        """Take the lease if nobody holds it or its holder is silent; None while another holds it."""
        lease = await self._read()
        if lease is None:
            made = await self._confirm(self._create())
            self.is_new = True
            return made
        observed.see(lease)
        holder = lease.spec.holder_identity
        duration = lease.spec.lease_duration_seconds or self.lease_duration
        if holder and holder != self.identity and observed.unchanged_for() < duration:
            return None
        self.is_new = False
        return await self._confirm(self._write(lease))

    async def _renew(self, lease: Lease) -> None:
        """Keep the lease; returns when it is lost."""
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(self.retry_period)
            try:
                kept = await self._try_to_renew(lease)
                if kept is None:
                    return
                lease, renewed = kept, loop.time()
            except ClientError as error:
                log.debug("renewing lease %s: %s", self.name, error)
            if loop.time() - renewed >= self.renew_deadline:
                return

    async def _try_to_renew(self, lease: Lease) -> Lease | None:
        """Write the lease anew; None if it is no longer ours."""
        with contextlib.suppress(Conflict, NotFound):
            return await self._confirm(self._write(lease))
        current = await self._read()
        if current is None or current.spec.holder_identity != self.identity:
            return None
        return await self._confirm(self._write(current))

    async def _read(self) -> Lease | None:
        """Return the lease, or None where there is none."""
        try:
            return await self.client.get(LEASES, self.name, self.namespace, view=Lease)
        except NotFound:
            return None

    async def _confirm(self, writing: Awaitable[Lease]) -> Lease:
        started = self.clock()
        lease = await writing
        self.confirmed_at = started
        return lease

    async def _release(self) -> None:
        """Let the next candidate start at once."""
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(2.0):
                lease = await self.client.get(LEASES, self.name, self.namespace, view=Lease)
                if lease.spec.holder_identity == self.identity:
                    await self._put(lease, holder="", duration=1)

    async def _create(self) -> Lease:
        moment = format_microtime(self.now())
        body: JsonObject = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": int(self.lease_duration),
                "acquireTime": moment,
                "renewTime": moment,
                "leaseTransitions": 0,
            },
        }
        return await self.client.create(LEASES, body, self.namespace, view=Lease)

    async def _write(self, lease: Lease) -> Lease:
        return await self._put(lease, holder=self.identity, duration=int(self.lease_duration))

    async def _put(self, lease: Lease, *, holder: str, duration: int) -> Lease:
        moment, spec = format_microtime(self.now()), lease.spec
        is_new = spec.holder_identity != holder
        body: JsonObject = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "resourceVersion": lease.metadata.resource_version,
                # Not ours to remove: helm deletes only what carries its marks.
                "labels": lease.metadata.labels or {},
                "annotations": lease.metadata.annotations or {},
            },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": duration,
                "acquireTime": moment if is_new else spec.acquire_time,
                "renewTime": moment,
                "leaseTransitions": (spec.lease_transitions or 0) + (1 if is_new and holder else 0),
            },
        }
        return await self.client.update(LEASES, self.name, body, self.namespace, view=Lease)


@dataclass(slots=True)
class _Observed:
    """Since when a lease has not changed, by this process's own clock."""

    clock: Callable[[], float]
    revision: str | None = None
    since: float = 0.0

    def see(self, lease: Lease) -> None:
        """Remember a lease as it was read."""
        if self.revision is None or lease.metadata.resource_version != self.revision:
            self.revision, self.since = lease.metadata.resource_version, self.clock()

    def unchanged_for(self) -> float:
        """Return for how many seconds no change was seen."""
        return self.clock() - self.since


class _Fenced:
    """A transport that refuses writes of a process that may have lost its lease."""

    def __init__(self, transport: Transport, election: LeaderElection) -> None:
        self._transport = transport
        self._election = election

    async def send(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD", "OPTIONS") and not self._election.is_certain:
            raise TransportError(
                f"{request}: not sent: the lease {self._election.name} was not renewed in time, another may lead"
            )
        return await self._transport.send(request)

    async def close(self) -> None:
        """Leave the connections to whoever owns them."""
