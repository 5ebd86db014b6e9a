"""The loop that keeps a driver's ResourceSlices on the server as the driver wants them.

It is level-triggered: whatever woke it (new pools, a slice that somebody deleted,
the clock), it lists what is there, plans the writes and makes them. A watch only
says *that* something changed; writes of our own are known by their revision and
wake nobody.

While the node does not know the driver nobody can prepare its devices: `suspend` deletes the slices, once
(another instance may publish the same ones), and `resume` publishes them again.

A server that drops fields (a feature gate is off) would look different from what
is wanted for ever. What it made of each spec is remembered, so such a slice is
written once, with a warning, and then left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from dray.api.resource import ResourceSliceSpec
from dray.client import ApiError, ClientError, Conflict, NotFound
from dray.driver.api_access import ApiAccess
from dray.driver.contract import Pool
from dray.driver.metrics import Metrics
from dray.driver.slices import Owner, Write, plan_all_writes, same_content, split_pool, split_pools

log = logging.getLogger("dray.driver")

RESYNC_SECONDS = 30.0
_LONGEST_PAUSE = 10.0


class Publisher:
    """Publishes the pools of one driver."""

    def __init__(self, api: ApiAccess, driver: str, node_name: str, *, metrics: Metrics) -> None:
        self._api = api
        self._owner = Owner(driver, node_name)
        self._metrics = metrics
        self._pools: Sequence[Pool] | None = None  # None means: nothing is known yet, touch nothing
        self._is_suspended = False
        self._is_withdrawn = False  # the slices were deleted since the suspension
        self._wake = asyncio.Event()
        self._own_revisions: set[str] = set()
        self._accepted: dict[bytes, ResourceSliceSpec] = {}  # what we sent -> what the server kept of it
        self._done = asyncio.Event()

    def publish(self, pools: Sequence[Pool]) -> None:
        """Say what should be on the server from now on; the loop brings it there."""
        for pool in pools:
            split_pool(pool, self._owner)  # a bad pool is refused here, where the driver is to blame
        self._pools = list(pools)
        self._done.clear()
        self._wake.set()

    def suspend(self) -> None:
        """Delete the slices and publish nothing until `resume`; idempotent."""
        if not self._is_suspended:
            self._is_suspended, self._is_withdrawn = True, False
            self._wake.set()

    def resume(self) -> None:
        """Publish again; idempotent."""
        if self._is_suspended:
            self._is_suspended = False
            self._wake.set()

    async def wait_published(self) -> None:
        """Wait until the last `publish` is on the server."""
        await self._done.wait()

    async def run(self) -> None:
        """Publish until cancelled; failures are retried with growing pauses."""
        watching = asyncio.create_task(self._watch())
        pause = 0.0
        try:
            while True:
                await self._wait(pause or RESYNC_SECONDS, only_clock=bool(pause))
                if self._pools is None or (self._is_suspended and self._is_withdrawn):
                    continue
                try:
                    is_suspended = self._is_suspended
                    await self._sync(() if is_suspended else self._pools)
                    self._is_withdrawn = is_suspended
                    pause = 0.0
                    self._done.set()
                except (Conflict, NotFound) as error:
                    # Our picture is old, or the node is not registered yet.
                    pause = min(max(pause * 2, 0.05), _LONGEST_PAUSE)
                    log.debug("publishing again in %.2f s: %s", pause, error)
                except ClientError as error:
                    self._metrics.failed("publish")
                    pause = min(max(pause * 2, 0.2), _LONGEST_PAUSE)
                    log.error(
                        "%s: cannot publish devices: %s; again in %.1f s", self._owner.driver, error, pause
                    )
                    _hint(error)
        finally:
            watching.cancel()

    async def _wait(self, seconds: float, *, only_clock: bool) -> None:
        if only_clock:
            await asyncio.sleep(seconds)
        else:
            try:
                # Not asyncio.wait_for: in Python 3.11 it forgets a cancellation that meets the event.
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()

    async def _sync(self, pools: Sequence[Pool]) -> None:
        if self._owner.node_name and not self._owner.node_uid:
            uid = await self._api.node_uid(self._owner.node_name)
            self._owner = Owner(self._owner.driver, self._owner.node_name, uid)
        wanted = split_pools(pools, self._owner)
        existing, _ = await self._api.list_slices(self._selector(self._pools or ()))
        for write in plan_all_writes(wanted, existing, self._owner, is_same=self._is_same):
            await self._perform(write)
        self._metrics.published_devices.set(sum(len(pool.devices) for pool in pools))

    def _selector(self, pools: Sequence[Pool]) -> str:
        driver = f"spec.driver={self._owner.driver}"
        if self._owner.node_name and all(_is_node_local(pool) for pool in pools):
            return f"{driver},spec.nodeName={self._owner.node_name}"
        return driver

    def _is_same(self, wanted: ResourceSliceSpec, there: ResourceSliceSpec) -> bool:
        if same_content(wanted, there):
            return True
        kept = self._accepted.get(msgspec.json.encode(wanted))
        return kept is not None and same_content(kept, there)

    async def _perform(self, write: Write) -> None:
        self._metrics.wrote_slice(write.verb)
        if write.verb == "delete":
            assert write.old is not None
            await self._api.delete_slice(write.old)
            log.info("deleted slice %s", write.old.metadata.name)
            return
        assert write.new is not None
        perform = self._api.create_slice if write.verb == "create" else self._api.update_slice
        stored = await perform(write.new)
        self._own_revisions.add(stored.metadata.resource_version)
        log.info(
            "%sd slice %s: pool %s, generation %d, %d devices",
            write.verb, stored.metadata.name, stored.spec.pool.name, stored.spec.pool.generation, len(stored.spec.devices),
        )  # fmt: skip
        if not same_content(write.new.spec, stored.spec):
            wanted = msgspec.structs.replace(
                write.new.spec, pool=msgspec.structs.replace(write.new.spec.pool, generation=0)
            )
            self._accepted[msgspec.json.encode(wanted)] = stored.spec
            log.warning(
                "the server changed or dropped fields of slice %s; a feature gate may be off there",
                stored.metadata.name,
            )

    async def _watch(self) -> None:
        """Wake the loop when somebody else touches our slices."""
        while True:
            try:
                pools = self._pools or ()
                _, revision = await self._api.list_slices(self._selector(pools))
                self._wake.set()
                async for changed in self._api.watch_slices(self._selector(pools), revision):
                    if changed in self._own_revisions:
                        self._own_revisions.discard(changed)
                    else:
                        self._wake.set()
            except ClientError as error:
                log.debug("watch of slices ended: %s", error)
            self._own_revisions.clear()
            await asyncio.sleep(1.0)


def _is_node_local(pool: Pool) -> bool:
    return not (pool.node_name or pool.node_selector or pool.all_nodes or pool.per_device_node_selection)


def _hint(error: ClientError) -> None:
    if isinstance(error, ApiError) and error.code == 403:
        log.error(
            "hint: the driver's account needs get, list, watch, create, update, delete on resourceslices"
        )
