"""Prepare and unprepare of claims, around a vendor's driver: the order of steps that survives kill -9.

    prepare:   read claim → check → record "started" → driver.prepare → files → record "completed" → answer
    unprepare: driver.unprepare → remove files → strike from the record → answer

Each arrow may be the last thing the process ever does. Started but not
completed: the node asks again, and the driver's `prepare` runs again; or the pod
is gone and the node asks for unprepare, which finds the record. Completed:
answered from the record. Files without a record cannot exist, since the record
is written first and struck out last. (tests/e2e/test_node_kills.py kills at
every step.)

Calls are made one at a time: with an asyncio lock inside the process, and with a
file lock between two instances during a rolling update.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dray.api.resource import AllocatedDeviceStatus, ResourceClaim
from dray.api.well_known import POD_CLAIM_ANNOTATION
from dray.client import ClientError, NotFound, ServerFailed, TransportError
from dray.driver.contract import (
    AllocatedDevice,
    AttachesToRunningPods,
    ClaimRequest,
    DeviceConfig,
    Driver,
    DriverError,
    PreparedClaim,
    PreparedDevice,
)
from dray.driver.files import ClaimFiles
from dray.driver.metrics import Metrics
from dray.driver.state import RecordedClaim, RecordedDevice, StateError, StateFile

log = logging.getLogger("dray.driver")

Steps = Callable[[str], None]  # told of each step that was completed; tests end the driver there


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the node names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"


class ClaimSource:
    """Where claims are read and their device status is written; the API server, or a test's table."""

    async def read(self, namespace: str, name: str) -> ResourceClaim:
        """Return the claim; raise NotFound or TransportError."""
        raise NotImplementedError

    async def write_status(self, ref: ClaimRef, driver: str, devices: list[AllocatedDeviceStatus]) -> None:
        """Replace the driver's entries in `status.devices`."""
        raise NotImplementedError


def no_steps(_: str) -> None:
    """Ignore the steps."""


async def call_driver(method: Callable[..., Any], *args: Any) -> Any:
    """Call a method of the vendor: plain ones in a thread, since they may block."""
    if inspect.iscoroutinefunction(method):
        return await method(*args)
    result = await asyncio.to_thread(method, *args)
    return await result if inspect.isawaitable(result) else result


class Preparer:
    """Prepares and unprepares claims of one driver on one node."""

    def __init__(
        self,
        driver: Driver,
        state: StateFile,
        files: ClaimFiles,
        claims: ClaimSource,
        *,
        metrics: Metrics,
        lock_path: Path | None = None,  # shared between instances during rolling updates
        steps: Steps = no_steps,
    ) -> None:
        self._driver = driver
        self._state = state
        self._files = files
        self._claims = claims
        self._metrics = metrics
        self._lock = asyncio.Lock()
        self._lock_path = lock_path
        self._step = steps
        self._background: set[asyncio.Task[None]] = set()

    async def recover(self) -> None:
        """Hand the record to a driver that wants to clean up; before serving."""
        async with self._one_at_a_time():
            known = [_prepared_claim(record) for record in self._state.claims_by_uid.values()]
            recover = getattr(self._driver, "recover", None)
            if recover is not None:
                await call_driver(recover, known)
            self._metrics.prepared_claims.set(len(known))

    async def prepare(self, ref: ClaimRef) -> list[RecordedDevice]:
        """Make the claim usable and return its devices; the same answer again if it is already."""
        started = time.monotonic()
        try:
            async with self._one_at_a_time():
                record = await self._prepare(ref)
            # Outside the lock: while one claim waits for the disk, the next is prepared.
            await self._state.sync()
        except BaseException:
            self._metrics.failed("prepare")
            raise
        self._metrics.prepared_claims.set(len(self._state.claims_by_uid))
        self._metrics.observe("prepare", time.monotonic() - started)
        return record.devices

    async def unprepare(self, ref: ClaimRef) -> None:
        """Undo `prepare`; an unknown claim is success, for it may have been unprepared before."""
        started = time.monotonic()
        try:
            async with self._one_at_a_time():
                await self._unprepare(ref)
            await self._state.sync()
        except BaseException:
            self._metrics.failed("unprepare")
            raise
        self._metrics.prepared_claims.set(len(self._state.claims_by_uid))
        self._metrics.observe("unprepare", time.monotonic() - started)

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self) -> AsyncIterator[None]:
        async with self._lock:
            if self._lock_path is None:
                self._state.load()
                yield
                return
            descriptor = os.open(self._lock_path, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
                self._state.load()
                yield
            finally:
                os.close(descriptor)  # releases the lock

    async def _prepare(self, ref: ClaimRef) -> RecordedClaim:
        record = self._state.claims_by_uid.get(ref.uid)
        try:
            claim = await self._read(ref)
        except (TransportError, ServerFailed):
            # The record of a prepared claim is as good as the API server's word on it.
            if record is None or not record.is_complete:
                raise
            log.warning("API server is away; answering claim %s from the record", ref)
            return self._answer_again(record)
        request = claim_request(claim, self._driver.name)
        if record is not None and record.is_complete:
            if _device_keys(record.devices) == _device_keys(request.devices):
                return await self._attach(self._answer_again(record), claim)
            log.warning("claim %s was allocated anew; undoing the old preparation first", ref)
            await self._unprepare(ref)
        self._refuse_second_owner(request)
        if not request.devices:
            return RecordedClaim(ref.namespace, ref.name, ref.uid, is_complete=True)
        return await self._attach(await self._prepare_anew(request), claim)

    async def _attach(self, record: RecordedClaim, claim: ResourceClaim) -> RecordedClaim:
        """Let a driver that can bring the devices into pods that run already."""
        if isinstance(self._driver, AttachesToRunningPods):
            pod_uids = [user.uid for user in claim.status.reserved_for if user.resource == "pods"]
            await call_driver(self._driver.attach, _prepared_claim(record), pod_uids)
            self._step("prepare:attached")
        return record

    async def _prepare_anew(self, request: ClaimRequest) -> RecordedClaim:
        self._state.record(_started_record(request))
        self._step("prepare:recorded-start")
        answered = list(await call_driver(self._driver.prepare, request))
        self._step("prepare:driver-done")
        record = _completed_record(request, answered, self._driver.name)
        record = self._files.write(record)
        self._step("prepare:files-written")
        self._state.record(record)
        self._step("prepare:recorded-complete")
        statuses = [device.status for device in record.devices if device.status is not None]
        if statuses:
            self._report(ClaimRef(request.namespace, request.name, request.uid), statuses)
        log.info("prepared claim %s: %s", request, ", ".join(f"{d.pool}/{d.device}" for d in record.devices))
        return record

    def _answer_again(self, record: RecordedClaim) -> RecordedClaim:
        if self._files.are_missing(record):
            log.info("claim %s/%s: CDI files are gone; writing them again", record.namespace, record.name)
            return self._files.write(record)
        return record

    async def _read(self, ref: ClaimRef) -> ResourceClaim:
        try:
            claim = await self._claims.read(ref.namespace, ref.name)
        except NotFound as error:
            raise DriverError(f"claim {ref} does not exist (any more)") from error
        if claim.metadata.uid != ref.uid:
            raise DriverError(
                f"claim {ref.namespace}/{ref.name} was replaced: it has UID {claim.metadata.uid}, not {ref.uid}"
            )
        if claim.status.allocation is None:
            raise DriverError(f"claim {ref} is not allocated")
        return claim

    def _refuse_second_owner(self, request: ClaimRequest) -> None:
        wanted = {
            (device.pool, device.device): device for device in request.devices if not device.admin_access
        }
        for record in self._state.claims_by_uid.values():
            if record.uid == request.uid:
                continue
            for held in record.devices:
                mine = wanted.get((held.pool, held.device))
                if mine is None or held.admin_access or (mine.share_id and held.share_id):
                    continue
                raise DriverError(
                    f"device {held.pool}/{held.device} is still prepared for claim "
                    f"{record.namespace}/{record.name} ({record.uid}); it must be unprepared first"
                )

    async def _unprepare(self, ref: ClaimRef) -> None:
        record = self._state.claims_by_uid.get(ref.uid)
        if record is None:
            log.info("claim %s is not prepared here; nothing to undo", ref)
            return
        await call_driver(self._driver.unprepare, _prepared_claim(record))
        self._step("unprepare:driver-done")
        self._files.remove(record)
        self._step("unprepare:files-removed")
        self._state.forget(ref.uid)
        self._step("unprepare:forgotten")
        log.info("unprepared claim %s", ref)

    def _report(self, ref: ClaimRef, statuses: list[AllocatedDeviceStatus]) -> None:
        """Write `status.devices` in the background: a pod need not wait for it."""

        async def report() -> None:
            for pause in (0.2, 1.0, 5.0, 20.0, 0.0):
                try:
                    await self._claims.write_status(ref, self._driver.name, statuses)
                    return
                except NotFound:
                    return
                except ClientError as error:
                    log.warning("claim %s: device status not written: %s", ref, error)
                await asyncio.sleep(pause)

        task = asyncio.create_task(report())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def explain_failure(operation: str, claim: str, error: Exception) -> str:
    """Log why a call failed, and return the text for the node."""
    if isinstance(error, DriverError | StateError):
        log.error("cannot %s claim %s: %s", operation, claim, error)
    else:
        log.error("cannot %s claim %s", operation, claim, exc_info=error)
    # An empty text would mean success.
    return str(error) or type(error).__name__


def claim_request(claim: ResourceClaim, driver: str) -> ClaimRequest:
    """Cut a claim down to what one driver has to do with it."""
    assert claim.status.allocation is not None
    allocation = claim.status.allocation.devices
    devices = []
    for result in allocation.results:
        if result.driver != driver:
            continue
        request, _, subrequest = result.request.partition("/")
        configs = [
            DeviceConfig(config.source, config.opaque.parameters)
            for config in allocation.config
            if config.opaque is not None
            and config.opaque.driver == driver
            and (not config.requests or result.request in config.requests or request in config.requests)
        ]
        devices.append(
            AllocatedDevice(
                request=request,
                pool=result.pool,
                device=result.device,
                subrequest=subrequest,
                share_id=result.share_id,
                admin_access=bool(result.admin_access),
                consumed_capacity=result.consumed_capacity or {},
                configs=configs,
            )
        )
    meta = claim.metadata
    return ClaimRequest(meta.namespace, meta.name, meta.uid, devices, claim)


def _started_record(request: ClaimRequest) -> RecordedClaim:
    annotations = request.claim.metadata.annotations or {}
    return RecordedClaim(
        namespace=request.namespace,
        name=request.name,
        uid=request.uid,
        pod_claim_name=annotations.get(POD_CLAIM_ANNOTATION),
        devices=[
            RecordedDevice(
                request=device.request,
                pool=device.pool,
                device=device.device,
                share_id=device.share_id,
                full_request="/".join(filter(None, (device.request, device.subrequest))),
                admin_access=device.admin_access,
            )
            for device in request.devices
        ],
    )


def _completed_record(
    request: ClaimRequest, answered: Iterable[PreparedDevice], driver: str
) -> RecordedClaim:
    """Join the driver's answer to the started record; refuse an answer that does not fit the question."""
    record = _started_record(request)
    answers = list(answered)
    devices: list[RecordedDevice] = []
    for asked in record.devices:
        answer = next((a for a in answers if _answers(a, asked)), None)
        if answer is None:
            raise DriverError(
                f"driver {driver} did not prepare {asked.pool}/{asked.device} (request {asked.request})"
            )
        answers.remove(answer)
        devices.append(_recorded(asked, answer, driver))
    if answers:
        extra = ", ".join(f"{a.pool}/{a.device} (request {a.request})" for a in answers)
        raise DriverError(f"driver {driver} prepared devices that the claim was not given: {extra}")
    return msgspec.structs.replace(record, devices=devices, is_complete=True)


def _answers(answer: PreparedDevice, asked: RecordedDevice) -> bool:
    return (answer.request, answer.pool, answer.device, answer.share_id) == (
        asked.request,
        asked.pool,
        asked.device,
        asked.share_id,
    )


def _recorded(asked: RecordedDevice, answer: PreparedDevice, driver: str) -> RecordedDevice:
    status = None
    if answer.status is not None:
        status = AllocatedDeviceStatus(
            driver=driver,
            pool=answer.pool,
            device=answer.device,
            share_id=answer.share_id,
            conditions=list(answer.status.conditions),
            data=answer.status.data,
            network_data=answer.status.network_data,
        )
    return msgspec.structs.replace(
        asked,
        edits=answer.edits,
        given_cdi_device_ids=list(answer.cdi_device_ids),
        attributes=dict(answer.attributes),
        status=status,
        private=answer.private,
    )


def _prepared_claim(record: RecordedClaim) -> PreparedClaim:
    devices = [
        PreparedDevice(
            request=device.request,
            pool=device.pool,
            device=device.device,
            share_id=device.share_id,
            edits=device.edits,
            cdi_device_ids=device.given_cdi_device_ids,
            attributes=device.attributes,
            private=device.private,
        )
        for device in record.devices
    ]
    return PreparedClaim(record.namespace, record.name, record.uid, devices, record.is_complete)


def _device_keys(devices: Iterable[RecordedDevice] | Iterable[AllocatedDevice]) -> list[tuple[str, ...]]:
    return sorted((d.request, d.pool, d.device, d.share_id or "") for d in devices)
