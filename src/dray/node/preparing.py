"""Claims of pods, from the API server through the drivers and back: the acting side of `claims`.

Prepare, for one pod:

    read every claim and judge it  →  reserve all in the records  →  checkpoint
    →  call each driver once, with all its claims  →  enter the answers  →  checkpoint  →  prepared

The first step touches nothing, so a pod with one bad claim leaves no trace. The
checkpoint comes before the calls: a driver may have prepared what we never heard
of, and after a crash the records say whom to ask. Release is the same backwards:

    call each driver for claims that the pod was the last to hold  →  strike out  →  checkpoint

Both are safe to repeat from any point (tests/e2e/test_node_kills.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from dray.api.podspec import RunPod
from dray.api.resource import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from dray.api.well_known import TERMINAL_PHASES
from dray.client import Client, ClientError, Forbidden, NotFound
from dray.client.resources import CLAIMS, PODS
from dray.node.claims import (
    ClaimFacts,
    ClaimInfo,
    ClaimKey,
    ClaimNotReserved,
    ClaimRecords,
    ClaimRefused,
    HeldDevice,
    group_by_driver,
)
from dray.node.plugins import PluginError

log = logging.getLogger("dray.node")

PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
Steps = Callable[[str], None]


class ClaimPlugin(Protocol):
    """A driver on this node, as the keeper calls it; with gRPC in between (`plugins.Plugin`) or without."""

    async def prepare(self, claims: Sequence[ClaimFacts]) -> Mapping[str, list[HeldDevice] | str]:
        """Prepare claims; per claim UID the devices, or the error's text. Raises PluginError."""
        ...

    async def unprepare(self, claims: Sequence[ClaimFacts]) -> Mapping[str, str]:
        """Unprepare claims; per claim UID the error's text, empty for success. Raises PluginError."""
        ...


class ClaimPlugins(Protocol):
    """The drivers of this node."""

    def find(self, driver: str) -> ClaimPlugin:
        """Return the driver to call; raise PluginError when there is none of that name."""
        ...


class Checkpoint(Protocol):
    """Where the records outlive this process."""

    async def commit(self) -> None:
        """Return when the records as they are now are safe."""
        ...


class ClaimsUnusable(Exception):
    """The pod cannot have its claims now; the text is for the user."""

    def __init__(self, message: str, *, is_waiting: bool = False) -> None:
        super().__init__(message)
        self.is_waiting = is_waiting  # nothing is wrong: the scheduler has not decided yet


def no_steps(_: str) -> None:
    """Ignore the steps."""


class ClaimKeeper:
    """Prepares and releases the claims of this node's pods."""

    def __init__(
        self,
        client: Client,
        registry: ClaimPlugins,
        records: ClaimRecords,
        checkpoint: Checkpoint,
        *,
        steps: Steps = no_steps,
        observe: Callable[[str, float, bool], None] = lambda operation, seconds, is_ok: None,
    ) -> None:
        self._client = client
        self._registry = registry
        self.records = records
        self._checkpoint = checkpoint
        self._step = steps
        self._observe = observe
        self._releasing: dict[str, asyncio.Lock] = {}

    # --- preparing --------------------------------------------------------------

    async def prepare(self, pod: RunPod, *, is_running: bool = False) -> None:
        """Make all claims of the pod usable, or raise ClaimsUnusable.

        A pod that runs gets those of its claims that can be used, before the error tells of the others.
        """
        started = time.monotonic()
        is_ok = False
        refused: list[ClaimRefused] = []
        try:
            facts = await self._judge(pod, refused if is_running else None)
            needed = self.records.reserve(pod.metadata.uid, facts)
            self._step("prepare:reserved")
            await self._checkpoint.commit()
            self._step("prepare:checkpointed")
            await self._call_prepare(needed)
            self._step("prepare:called")
            await self._checkpoint.commit()
            self._step("prepare:answered")
            for fact in needed:
                self.records.mark_prepared(fact.key)
            is_ok = True
            if refused:
                is_waiting = all(isinstance(each, ClaimNotReserved) for each in refused)
                raise ClaimsUnusable("; ".join(map(str, refused)), is_waiting=is_waiting)
        except (ClaimRefused, PluginError, ClientError, OSError) as error:
            raise ClaimsUnusable(str(error)) from error
        finally:
            self._observe("PrepareResources", time.monotonic() - started, is_ok)

    async def _judge(self, pod: RunPod, refused: list[ClaimRefused] | None) -> list[ClaimFacts]:
        """Read and check every claim; no state changes. Refusals are raised, or collected where there is a list for them."""
        wanted = list(claim_names(pod))
        claims = await asyncio.gather(*(self.read(key) for key, _ in wanted), return_exceptions=True)
        facts = []
        in_containers = {
            key
            for each in (*pod.spec.init_containers, *pod.spec.containers)
            for key, _ in container_references(pod, each.name)
        }
        for (key, is_from_template), claim in zip(wanted, claims, strict=True):
            try:
                if isinstance(claim, BaseException):
                    raise claim
                refuse_unfit(pod, key, claim, is_from_template)
            except ClaimRefused as error:
                if refused is None or key in in_containers:
                    raise  # without it no container may start
                refused.append(error)
            else:
                facts.append(facts_of(key, claim))
        for driver in {driver for fact in facts for driver in set(fact.drivers) - fact.skips_prepare}:
            self._registry.find(driver)
        return facts

    async def read(self, key: ClaimKey) -> ResourceClaim:
        """Return a claim that a pod uses; raise ClaimRefused when it does not exist."""
        try:
            return await self._client.get(CLAIMS, key.name, key.namespace, view=ResourceClaim)
        except NotFound as error:
            raise ClaimRefused(f"claim {key} does not exist") from error

    async def _call_prepare(self, claims: Sequence[ClaimFacts]) -> None:
        async def call(driver: str, mine: Sequence[ClaimFacts]) -> None:
            mine = [fact for fact in mine if driver not in fact.skips_prepare]
            if not mine:
                return
            answers = await self._registry.find(driver).prepare(mine)
            errors = []
            for fact in mine:
                answer = answers[fact.uid]
                if isinstance(answer, str):
                    errors.append(f"claim {fact.key}: driver {driver}: {answer}")
                else:
                    self.records.record(fact.key, driver, answer)
            if errors:
                raise ClaimRefused("; ".join(errors))

        # All drivers are let finish even if one fails: their answers belong in the records.
        outcomes = await asyncio.gather(
            *(call(driver, mine) for driver, mine in group_by_driver(claims).items()), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # --- releasing --------------------------------------------------------------

    async def release_unlisted(self, pod: RunPod) -> None:
        """Unprepare the claims that a running pod holds and does not list any more, or raise ClaimsUnusable."""
        listed = set(known_claims(pod))
        if self.records.held_by(pod.metadata.uid) - listed:
            await self.release(pod.metadata.uid, keep=listed)

    async def release(self, pod_uid: str, *, keep: Collection[ClaimKey] = ()) -> None:
        """Unprepare all claims that the pod holds but for those in `keep`, or raise ClaimsUnusable; harmless to repeat."""
        started = time.monotonic()
        is_ok = False
        lock = self._releasing.setdefault(pod_uid, asyncio.Lock())
        try:
            async with lock:
                last = self.records.release(pod_uid, keep)
                try:
                    await self._call_unprepare(last)
                finally:
                    await self._checkpoint.commit()
                self._step("release:checkpointed")
            self._releasing.pop(pod_uid, None)
            is_ok = True
        except (ClaimRefused, PluginError, OSError) as error:
            raise ClaimsUnusable(str(error)) from error
        finally:
            self._observe("UnprepareResources", time.monotonic() - started, is_ok)

    async def _call_unprepare(self, infos: Sequence[ClaimInfo]) -> None:
        errors: dict[ClaimKey, list[str]] = {info.key: [] for info in infos}

        async def call(driver: str, mine: Sequence[ClaimFacts]) -> None:
            try:
                outcomes = await self._registry.find(driver).unprepare(mine)
            except PluginError as error:
                outcomes = {fact.uid: str(error) for fact in mine}
            for fact in mine:
                if outcomes[fact.uid]:
                    errors[fact.key].append(f"claim {fact.key}: driver {driver}: {outcomes[fact.uid]}")

        facts = [
            ClaimFacts(
                info.key, info.uid, [d for d in info.devices_by_driver if d not in info.skips_unprepare]
            )
            for info in infos
        ]
        await asyncio.gather(*(call(driver, mine) for driver, mine in group_by_driver(facts).items()))
        self._step("release:called")
        for key, texts in errors.items():
            if texts:
                self.records.give_up_unpreparing(key)
            else:
                self.records.forget(key)
        failed = [text for texts in errors.values() for text in texts]
        if failed:
            raise ClaimRefused("; ".join(failed))

    async def reconcile(self, active_pod_uids: Iterable[str]) -> None:
        """Release claims of pods that are no longer active here; failures are tried again next time."""
        for pod_uid in self.records.pods() - set(active_pod_uids):
            try:
                await self.release(pod_uid)
                log.info("released claims of pod %s, which is gone", pod_uid)
            except ClaimsUnusable as error:
                log.warning("claims of pod %s, which is gone, are not released yet: %s", pod_uid, error)

    async def rebuild(self, node_name: str) -> None:
        """Refill empty records from the API server, after the checkpoint was lost; tries until the server answers.

        Entered are the allocated claims of every pod that is bound to this node, whichever
        driver and pool their devices are from; and, where the account may list claims
        (kubelet's may not), those that are allocated for this node alone, whose pods may be
        gone. Reconciling then releases what no pod here uses.
        """
        pause = 0.2
        while True:
            try:
                infos = await self._claims_of_pods(node_name)
                await self._add_abandoned(node_name, infos)
                break
            except ClientError as error:
                log.warning("the record of claims is not rebuilt yet: %s; again in %.1f s", error, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 10.0)
        self.records.restore(infos.values())
        await self._checkpoint.commit()
        log.warning("rebuilt the record of claims from the API server: %d claims", len(infos))

    async def _claims_of_pods(self, node_name: str) -> dict[ClaimKey, ClaimInfo]:
        pods = await self._client.list(PODS, view=RunPod, fieldSelector=f"spec.nodeName={node_name}")
        infos: dict[ClaimKey, ClaimInfo] = {}
        for pod in pods.items:
            if pod.status.phase in TERMINAL_PHASES:
                continue  # reported only after its claims were released
            for key in known_claims(pod):
                if key not in infos:
                    try:
                        claim = await self._client.get(CLAIMS, key.name, key.namespace, view=ResourceClaim)
                    except (NotFound, Forbidden):
                        continue
                    if claim.status.allocation is None:
                        continue
                    infos[key] = _unprepared(key, claim)
                infos[key].pod_uids.add(pod.metadata.uid)
        return infos

    async def _add_abandoned(self, node_name: str, infos: dict[ClaimKey, ClaimInfo]) -> None:
        try:
            listed = await self._client.list(CLAIMS, view=ResourceClaim)
        except Forbidden:
            log.warning("this node may not list claims; its record is rebuilt from its pods only")
            return
        for claim in listed.items:
            key = ClaimKey(claim.metadata.namespace, claim.metadata.name)
            allocation = claim.status.allocation
            if key not in infos and allocation is not None and is_for_node_alone(allocation, node_name):
                info = infos[key] = _unprepared(key, claim)
                info.pod_uids |= {consumer.uid for consumer in claim.status.reserved_for} or {"unknown"}

    # --- using ------------------------------------------------------------------

    def cdi_ids(self, pod: RunPod, container: str) -> list[str]:
        """Return the CDI names of exactly the devices that a container may see."""
        return self.records.cdi_ids(container_references(pod, container))

    def all_cdi_ids(self, pod: RunPod) -> list[str]:
        """Return the CDI names of all devices of the pod, also of those that no container refers to."""
        return self.records.cdi_ids([(key, "") for key, _ in claim_names(pod)])


def claim_names(pod: RunPod) -> Iterable[tuple[ClaimKey, bool]]:
    """Yield the claims of a pod, and whether each was made from a template for it."""
    made = {status.name: status for status in pod.status.resource_claim_statuses}
    namespace = pod.metadata.namespace
    for entry in pod.spec.resource_claims:
        if entry.resource_claim_name is not None:
            yield ClaimKey(namespace, entry.resource_claim_name), False
        elif entry.name not in made:
            raise ClaimRefused(f"pod claim {entry.name}: the claim was not made from its template yet")
        else:
            name = made[entry.name].resource_claim_name
            if name is not None:  # None means: this pod needs none
                yield ClaimKey(namespace, name), True
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name:
        yield ClaimKey(namespace, extended.resource_claim_name), True


def known_claims(pod: RunPod) -> list[ClaimKey]:
    """Return the claims of a pod that have a name by now; others cannot have been prepared."""
    made = {status.name for status in pod.status.resource_claim_statuses}
    entries = [
        entry
        for entry in pod.spec.resource_claims
        if entry.resource_claim_name is not None or entry.name in made
    ]
    named = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resource_claims=entries))
    return [key for key, _ in claim_names(named)]


def is_for_node_alone(allocation: AllocationResult, node_name: str) -> bool:
    """Return whether an allocation can be used on this node and on no other."""
    if any(result.pool == node_name for result in allocation.devices.results):
        return True
    terms = allocation.node_selector.node_selector_terms if allocation.node_selector is not None else ()
    return bool(terms) and all(
        any(
            (field.key, field.operator, field.values) == ("metadata.name", "In", [node_name])
            for field in term.match_fields
        )
        for term in terms
    )


def _unprepared(key: ClaimKey, claim: ResourceClaim) -> ClaimInfo:
    return ClaimInfo(key, claim.metadata.uid, set(), {driver: [] for driver in facts_of(key, claim).drivers})


def container_references(pod: RunPod, container: str) -> list[tuple[ClaimKey, str]]:
    """Return which (claim, request) pairs a container uses; an empty request is the whole claim."""
    namespace = pod.metadata.namespace
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    names = {
        entry.name: entry.resource_claim_name
        if entry.resource_claim_name is not None
        else made.get(entry.name)
        for entry in pod.spec.resource_claims
    }
    found: list[tuple[ClaimKey, str]] = []
    for spec in (*pod.spec.init_containers, *pod.spec.containers):
        if spec.name != container:
            continue
        for used in spec.resources.claims:
            name = names.get(used.name)
            if name:
                found.append((ClaimKey(namespace, name), used.request))
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        key = ClaimKey(namespace, extended.resource_claim_name)
        found += [(key, m.request_name) for m in extended.request_mappings if m.container_name == container]
    return found


def refuse_unfit(pod: RunPod, key: ClaimKey, claim: ResourceClaim, is_from_template: bool) -> None:
    """Raise ClaimRefused unless the pod may use the claim."""
    uid = pod.metadata.uid
    group = pod.spec.scheduling_group
    group_name = group.pod_group_name if group else None
    if is_from_template:
        owners = [owner for owner in claim.metadata.owner_references if owner.controller]
        # A claim that the pod shares with its group is made for the group.
        if not any(
            owner.uid == uid or (owner.kind == "PodGroup" and owner.name == group_name) for owner in owners
        ):
            names = ", ".join(f"{owner.kind} {owner.name}" for owner in owners)
            raise ClaimRefused(
                f"claim {key} was not made for pod {pod.key} (it is owned by {names or 'nobody'})"
            )
    if claim.metadata.deletion_timestamp is not None and not claim.status.reserved_for:
        raise ClaimRefused(f"claim {key} is being deleted")
    if claim.status.allocation is None:
        raise ClaimNotReserved(f"claim {key} is not allocated")
    for consumer in claim.status.reserved_for:
        if consumer.uid == uid or (consumer.resource == "podgroups" and consumer.name == group_name):
            return
    raise ClaimNotReserved(f"pod {pod.key} may not use claim {key}: it is not in the claim's reservedFor")


def facts_of(key: ClaimKey, claim: ResourceClaim) -> ClaimFacts:
    """Return what the drivers' calls need to know of an allocated claim."""
    assert claim.status.allocation is not None
    results = claim.status.allocation.devices.results
    drivers = list(dict.fromkeys(result.driver for result in results))
    return ClaimFacts(
        key,
        claim.metadata.uid,
        drivers,
        frozenset(driver for driver in drivers if _skips(results, driver, PREPARE)),
        frozenset(driver for driver in drivers if _skips(results, driver, UNPREPARE)),
    )


def _skips(results: Sequence[DeviceRequestAllocationResult], driver: str, operation: str) -> bool:
    """An operation is skipped only if every device of the driver says so."""
    return all(
        operation in result.skip_node_operations or "*" in result.skip_node_operations
        for result in results
        if result.driver == driver
    )
