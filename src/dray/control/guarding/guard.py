"""The guard as a process: caches, phases, fences, and the answers to API servers.

Theory of operation. `judging` proves that nothing is given twice, provided that (1) every write that
allocates is shown to the judge, (2) there is one judge at a time, and (3) a judge that begins has no
write in flight that it does not know. This module sees to these three, in phases:

    standing by   another guard holds the lease
    filling       list and watch claims, slices and our webhook configuration
    registering   store the configuration, or wait for it; when it was missing or too narrow, wait
                  until all API servers follow it (`settle`)
    securing      fence every claim that has no allocation: what a former guard admitted, or what
                  passed an API server before the configuration was in force, cannot land any more;
                  then wait until the caches have seen all that did land
    judging       answer

In every phase but the last the answer is "not now". If the configuration is removed or
changed, the guard goes back to registering: until it is in force again somebody may have written past it.

One judge at a time: a guard answers only as long as its lease was confirmed less than `renew_deadline`
ago, and API servers take an answer for at most `timeout_seconds`; together these are no longer than the
lease, and nobody else begins before the lease has run out.

A write that was admitted and then did not land (another webhook refused it, the API server died) would
block its devices for ever: such entries are fenced, too, when they are older than `fence_after` and
another claim was refused because of them. While nobody else wants the devices a slow write has its time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from dray.api.json_types import JsonObject
from dray.api.parsing import json_loader
from dray.client import ApiError, Client, ClientError, Forbidden, Informer, Unauthorized, key_of
from dray.client import resources as kinds
from dray.control.exact_claims import ClaimText
from dray.control.guarding.double_allocation import Flight, Judge, Refused, Write
from dray.control.guarding.guard_views import Claim, Review, ReviewRequest, Slice
from dray.control.guarding.revision_fence import fence, list_waiting, move_on
from dray.control.guarding.webhook_configuration import (
    CONFIGURATION,
    CONFIGURATIONS,
    WebhookConfiguration,
    covers,
    is_ours,
    register,
)

log = logging.getLogger("dray.guard")

_FENCES_AT_ONCE = 16
_LOOK_AGAIN = 2.0  # seconds of waiting for the caches after which the server is asked again
# API servers give up a request after --request-timeout (60 s by default). No safety depends on it, except
# for claims that cannot be fenced because somebody forbids to change them.
_LONGEST_REQUEST = 65.0


class Phase(StrEnum):
    """What the guard is doing; only a judging guard admits anything."""

    STANDING_BY = "standing by: waiting for the lease"
    FILLING = "filling its caches"
    REGISTERING = "registering: the webhook configuration is missing or not as it should be"
    SETTLING = "waiting until all API servers follow the webhook configuration"
    SECURING = "securing: writes that were under way before must not land"
    JUDGING = "judging"


@dataclass(slots=True)
class GuardOptions:
    """How the guard behaves; the defaults are those of the command."""

    configuration: JsonObject  # as `registering.configuration` spells it
    registers: bool = True  # store the configuration; otherwise only check it
    settle: float = 5.0  # seconds until all API servers follow a new configuration
    fence_after: float = 2.0  # seconds until an admitted write that is not seen is fenced


@dataclass(slots=True)
class GuardStatistics:
    """Counters for /metrics and tests."""

    admitted: int = 0
    refused: int = 0
    dry_runs: int = 0
    not_now: int = 0  # asked in another phase than judging
    fences: int = 0
    unguarded: int = 0  # allocations that went past the guard
    reopened: int = 0  # times that the configuration was missing or changed
    seconds: float = 0.0  # spent on answers
    recent: dict[str, str] = field(default_factory=dict)  # last refusal and last unguarded claim, in words


class BadReview(Exception):
    """The request is not an AdmissionReview of a claim."""


_decode = json_loader(Review).decode
_encode = msgspec.json.Encoder().encode


class Guard:
    """Judges allocations while it leads; see the module docstring."""

    def __init__(
        self, client: Client, options: GuardOptions, *, may_judge: Callable[[], bool] = lambda: True
    ) -> None:
        self.options = options
        self.phase = Phase.STANDING_BY
        self.statistics = GuardStatistics()
        self.is_judging = asyncio.Event()
        self._client = client
        self._may_judge = may_judge  # whether the lease is certainly ours at this moment
        self._altered = asyncio.Event()  # the configuration is not, or was not, as it should be
        self._was_open = False  # writes may have gone past any guard since the last settling
        self._led_since = 0.0
        self._begin()

    def _begin(self) -> None:
        """Start a new record; what an earlier one knew is out of date."""
        self.judge = Judge()
        self.claims = Informer(self._client, kinds.CLAIMS, Claim)
        self.slices = Informer(self._client, kinds.SLICES, Slice)
        self.configurations = Informer(
            self._client,
            CONFIGURATIONS,
            WebhookConfiguration,
            field_selector=f"metadata.name={CONFIGURATION}",
        )
        self.slices.add_handler(self.judge.set_slice)
        self.claims.add_handler(self._claim_changed)
        self.configurations.add_handler(self._configuration_changed)

    # --- answering --------------------------------------------------------------

    def review(self, body: bytes) -> bytes:
        """Answer an AdmissionReview; raises BadReview. Quick, and complete before it returns."""
        started = time.perf_counter()
        try:
            request = _decode(body).request
        except msgspec.DecodeError as error:
            raise BadReview(f"no AdmissionReview: {error}") from error
        if request is None:
            raise BadReview("an AdmissionReview without a request")
        answer = self._answer(request)
        self.statistics.seconds += time.perf_counter() - started
        return _encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})

    def _answer(self, request: ReviewRequest) -> JsonObject:
        if self.phase is not Phase.JUDGING or not self._may_judge():
            self.statistics.not_now += 1
            reason = self.phase if self.phase is not Phase.JUDGING else "its lease may have run out"
            return _refusal(request, 503, "ServiceUnavailable", f"the guard is not ready: {reason}")
        claim, old = request.object, request.old_object
        if claim is None or old is None or not old.metadata.resource_version.isdigit():
            raise BadReview("not an update of a claim")
        meta = old.metadata
        write = Write(meta.uid, f"{meta.namespace}/{meta.name}", int(meta.resource_version), claim.results)
        is_dry_run = bool(request.dry_run)
        refusal = self.judge.admit(write, time.monotonic(), is_dry_run=is_dry_run)
        self.statistics.dry_runs += is_dry_run
        if refusal is None:
            self.statistics.admitted += not is_dry_run
            return {"uid": request.uid, "allowed": True}
        self.statistics.refused += 1
        self.statistics.recent["refusal"] = f"{write.key}: {refusal.message}"
        log.info("refused: claim %s: %s", write.key, refusal.message)
        return _refusal(request, 409, "Conflict", refusal.message, refusal)

    # --- leading ----------------------------------------------------------------

    async def run(self) -> None:
        """Guard until cancelled; call it while holding the lease, as often as that is won."""
        self._led_since = time.monotonic()
        self.phase = Phase.FILLING
        self._begin()
        informers: tuple[Informer[Any], ...] = (self.slices, self.claims, self.configurations)
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in informers:
                    tasks.create_task(informer.run(), name=f"informer {informer.resource.plural}")
                for informer in informers:
                    await informer.wait_synced()
                tasks.create_task(self._sweep(), name="sweep")
                while True:
                    await self._become_ready()
                    await self._altered.wait()
        finally:
            self.phase = Phase.STANDING_BY
            self.is_judging.clear()

    async def _become_ready(self) -> None:
        """Go through the phases until judging; failures of the server are retried."""
        while self.phase is not Phase.JUDGING:
            self._altered.clear()
            try:
                self.phase = Phase.REGISTERING
                await self._register()
                self.phase = Phase.SECURING
                await self._secure()
            except (Forbidden, Unauthorized):
                raise
            except ClientError as error:
                log.warning("%s: %s; trying again", self.phase, error)
                await asyncio.sleep(1.0)
                continue
            if not self._altered.is_set():
                self.phase = Phase.JUDGING
                self.is_judging.set()
        for each in self.judge.doubles():
            log.error("given twice before the guard came: %s", each)

    async def _register(self) -> None:
        if self.options.registers:
            self._was_open |= await register(self._client, self.options.configuration)
        elif not self._is_in_force():
            log.warning(
                "webhook configuration %s is missing or too narrow: nothing is guarded", CONFIGURATION
            )
        while not self._is_in_force():
            if self.options.registers and self._altered.is_set():
                self._altered.clear()
                self._was_open |= await register(self._client, self.options.configuration)
            await asyncio.sleep(0.05)
        self._altered.clear()  # what was amiss is put right; from here on every change counts
        if self._was_open:
            self.phase = Phase.SETTLING
            self._was_open = False
            await asyncio.sleep(self.options.settle)

    def _is_in_force(self) -> bool:
        found = self.configurations.get(CONFIGURATION)
        return found is not None and self._suits(found)

    def _suits(self, found: WebhookConfiguration) -> bool:
        # Whoever registers for us knows best how to reach us.
        return (is_ours if self.options.registers else covers)(found, self.options.configuration)

    def _configuration_changed(
        self, old: WebhookConfiguration | None, new: WebhookConfiguration | None
    ) -> None:
        if new is not None and self._suits(new):
            return
        if new is None or not covers(new, self.options.configuration):
            self._was_open = True
        if self.phase is Phase.JUDGING:
            self.statistics.reopened += 1
            log.error(
                "webhook configuration %s was removed or changed: allocations may go past the guard",
                CONFIGURATION,
            )
        if self.phase in (Phase.JUDGING, Phase.SECURING, Phase.SETTLING):
            self.phase = Phase.REGISTERING
            self.is_judging.clear()
        self._altered.set()

    # --- fencing ----------------------------------------------------------------

    async def _secure(self) -> None:
        """Kill what is in flight unknown to us, and see all that has landed."""
        waiting = await list_waiting(self._client)
        gate = asyncio.Semaphore(_FENCES_AT_ONCE)
        stuck: list[str] = []

        async def secure(claim: ClaimText) -> None:
            async with gate:
                try:
                    await move_on(self._client, claim)
                    self.statistics.fences += 1
                except ApiError as error:
                    if error.code >= 500:
                        raise
                    stuck.append(str(error))

        outcomes = await asyncio.gather(*map(secure, waiting), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        if stuck:
            left = max(0.0, self._led_since + _LONGEST_REQUEST - time.monotonic())
            log.warning("%d claims cannot be fenced, waiting %.0f s instead; %s", len(stuck), left, stuck[0])
            await asyncio.sleep(left)
        await self._catch_up(self.claims, Claim)
        await self._catch_up(self.slices, Slice)

    async def _catch_up(self, informer: Informer[Any], view: type[Any]) -> None:
        """Wait until a cache shows all that is stored now."""
        while True:
            listed: list[Any] = (await self._client.list(informer.resource, view=view)).items
            deadline = time.monotonic() + _LOOK_AGAIN
            while time.monotonic() < deadline:
                listed = [each for each in listed if not _has_seen(informer.get(key_of(each.metadata)), each)]
                if not listed:
                    return
                await asyncio.sleep(0.01)
            # Some may have been deleted before the cache ever saw them: ask what is left.

    async def _sweep(self) -> None:
        """Fence admitted writes that do not show up."""
        while True:
            await asyncio.sleep(self.options.fence_after / 4)
            for flight in [each for each in self.judge.flights() if self._is_overdue(each)]:
                await self._settle(flight)

    def _is_overdue(self, flight: Flight) -> bool:
        patience = self.options.fence_after if flight.is_contested else _LONGEST_REQUEST
        return not flight.is_fenced and flight.since < time.monotonic() - patience

    async def _settle(self, flight: Flight) -> None:
        write = flight.write
        try:
            if not await fence(self._client, write.key, write.uid, write.base):
                self.judge.forget(write.uid)
            self.statistics.fences += 1
            flight.is_fenced = True
        except ClientError as error:
            if isinstance(error, ApiError) and flight.since < time.monotonic() - _LONGEST_REQUEST:
                log.warning("claim %s cannot be fenced: %s; its write is too old to land", write.key, error)
                self.judge.abandon(flight)
            else:
                log.debug("claim %s cannot be fenced now: %s", write.key, error)

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        is_known = self.judge.set_claim(old, new)
        if not is_known and self.phase is Phase.JUDGING and new is not None:
            self.statistics.unguarded += 1
            self.statistics.recent["unguarded"] = key_of(new.metadata)
            log.error(
                "claim %s got devices past the guard: is the webhook in force on every API server?",
                key_of(new.metadata),
            )


def _has_seen(cached: Any, listed: Any) -> bool:
    return (
        cached is not None
        and cached.metadata.uid == listed.metadata.uid
        and int(cached.metadata.resource_version) >= int(listed.metadata.resource_version)
    )


def _refusal(
    request: ReviewRequest, code: int, reason: str, message: str, refusal: Refused | None = None
) -> JsonObject:
    status: JsonObject = {"status": "Failure", "code": code, "reason": reason, "message": message}
    if refusal is not None and refusal.device:
        cause = {"reason": "DeviceInUse", "field": refusal.device, "message": refusal.holder}
        status["details"] = {"causes": [cause]}
    elif code == 503:
        status["details"] = {"retryAfterSeconds": 1}  # client-go then asks again by itself
    return {"uid": request.uid, "allowed": False, "status": status}
