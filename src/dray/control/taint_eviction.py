"""Eviction of pods whose devices carry a NoExecute taint that their claim does not tolerate.

A taint comes from the published slice (highest generation of its pool) or from a
DeviceTaintRule; a rule counts even for a device that is no longer published. A pod
may stay until `timeAdded + tolerationSeconds` of the shortest matching toleration;
only tolerations with the effect NoExecute count here. An eviction is a pod
condition (DisruptionTarget) followed by a delete of exactly that pod (by uid).

Rules whose effect is None evict nobody: their status says what *would* happen, so
an administrator can look before leaping. A rule without a selector matches no
device here (the documented meaning); the allocator, like upstream's slice tracker,
treats it as matching all when it decides about new allocations. See docs/guides/taints.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from dray.api.caching import BoundedMap
from dray.api.core import Pod, PodGroup
from dray.api.media_types import STRATEGIC_PATCH
from dray.api.resource import (
    Device,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
    ResourceClaim,
    ResourceSlice,
)
from dray.api.times import format_time as rfc3339
from dray.api.times import parse_time as parse_rfc3339
from dray.api.tolerations import NO_EXECUTE
from dray.api.well_known import TERMINAL_PHASES
from dray.client import Conflict, NotFound, key_of
from dray.client.resources import CLAIMS, POD_GROUPS, PODS, SLICES, TAINT_RULES
from dray.control.reconcile_loop import (
    Caches,
    Clock,
    Controller,
    steady_now,
    wait_until,
)
from dray.control.taint_rule_status import CONDITION, RuleCounts, eviction_condition, needs_write
from dray.devices import DeviceId, Pools, device_id_of, rule_selects, tolerates_eviction
from dray.host.clock import utc_now

STATUS_PERIOD = 10.0  # a rule's status is written at most this often for one generation, seconds
MOST_EVICTED = 65_536  # uids of evicted pods that are remembered
EVICTION_REASON = "DeletionByDeviceTaintManager"


@dataclass(frozen=True, slots=True)
class Departure:
    """When a pod must go, and because of which taint."""

    at: datetime
    taint: DeviceTaint
    device: DeviceId
    rules: frozenset[str]  # names of all DeviceTaintRules that make the pod go, soon or later


def rule_matches(rule: DeviceTaintRule, device: DeviceId) -> bool:
    """Return whether the rule taints the device; no selector matches none here (see the module docstring)."""
    return rule.spec.device_selector is not None and rule_selects(rule, *device)


def departure_time(
    taint: DeviceTaint, tolerations: Iterable[DeviceToleration], now: datetime
) -> datetime | None:
    """Return when a user of the device must go; None means it may stay for ever."""
    added = parse_rfc3339(taint.time_added) if taint.time_added else now
    matching = [toleration for toleration in tolerations if tolerates_eviction(toleration, taint)]
    if not matching:
        return added
    limited = [
        toleration.toleration_seconds for toleration in matching if toleration.toleration_seconds is not None
    ]
    if not limited:
        return None
    return added + timedelta(seconds=max(0, min(limited)))


class DeviceTaints:
    """The NoExecute taints that are in force, by device."""

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        self._pools: Pools[Device] = Pools()
        self.rules: dict[str, DeviceTaintRule] = {}

    def set_slice(self, name: str, new: ResourceSlice | None) -> None:
        """Take in a published slice, or its removal."""
        self._pools.set_slice(self._slices.pop(name, None), new)
        if new is not None:
            self._slices[name] = new

    def published(self) -> Iterator[DeviceId]:
        """Yield every device of the newest generations."""
        return self._pools.published()

    def of(self, device: DeviceId) -> Iterator[tuple[DeviceTaint, str | None]]:
        """Yield the NoExecute taints of a device with the rule each comes from."""
        published = self._pools.device(device)
        for taint in published.taints if published is not None else ():
            if taint.effect == NO_EXECUTE:
                yield taint, None
        for rule in self.rules.values():
            if rule.spec.taint.effect == NO_EXECUTE and rule_matches(rule, device):
                yield rule.spec.taint, rule.metadata.name


def earliest_departure(
    claims: Iterable[ResourceClaim], taints: DeviceTaints, now: datetime
) -> Departure | None:
    """Return the first moment at which a user of these claims must go, if any."""
    earliest: tuple[datetime, DeviceTaint, DeviceId] | None = None
    rules = set()
    for claim in claims:
        if claim.status.allocation is None:
            continue
        for result in claim.status.allocation.devices.results:
            device = device_id_of(result)
            for taint, rule in taints.of(device):
                at = departure_time(taint, result.tolerations, now)
                if at is None:
                    continue
                if rule is not None:
                    rules.add(rule)
                if earliest is None or at < earliest[0]:
                    earliest = (at, taint, device)
    return Departure(*earliest, frozenset(rules)) if earliest is not None else None


class TaintEviction(Controller):
    """Evicts pods from devices with untolerated NoExecute taints; keeps the rules' status."""

    name = "device-taint-eviction"
    workers = 8

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.pods = caches.of(PODS, Pod)
        self.claims = caches.of(CLAIMS, ResourceClaim)
        self.slices = caches.of(SLICES, ResourceSlice)
        self.rules = caches.of(TAINT_RULES, DeviceTaintRule, optional=True)
        self.taints = DeviceTaints()
        self._claims_by_pool: dict[tuple[str, str], set[str]] = {}  # (driver, pool) -> claim keys
        self._evicted_by_rule: dict[str, int] = {}
        # The cache shows a deletion only later; until then nobody must be evicted, or counted, again.
        self._evicted: BoundedMap[str, None] = BoundedMap(MOST_EVICTED)  # uids of pods, oldest first
        self.groups = caches.of(POD_GROUPS, PodGroup, optional=True)
        self._pods_by_group: dict[str, set[str]] = {}  # group key -> keys of its pods
        self._status_written: dict[str, tuple[float, int]] = {}  # rule -> steady seconds, its generation

    def watch(self) -> None:
        """Look at pods whenever their claims, or the taints of the devices, change."""
        self.claims.add_handler(self._claim_changed)
        self.slices.add_handler(self._slice_changed)
        self.rules.add_handler(self._rule_changed)
        self.pods.add_handler(self._pod_changed)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for claim, adding in ((old, False), (new, True)):
            if claim is None or claim.status.allocation is None:
                continue
            for result in claim.status.allocation.devices.results:
                keys = self._claims_by_pool.setdefault((result.driver, result.pool), set())
                (keys.add if adding else keys.discard)(key_of(claim.metadata))
        if new is not None:
            self._enqueue_users(new)

    def _enqueue_users(self, claim: ResourceClaim) -> None:
        for key in self._users_of(claim):
            self.enqueue(f"pod:{key}")

    def _users_of(self, claim: ResourceClaim) -> set[str]:
        """Return the keys of the pods that use a claim, through their group too."""
        namespace = claim.metadata.namespace
        users: set[str] = set()
        for reference in claim.status.reserved_for:
            if reference.resource == "pods":
                users.add(f"{namespace}/{reference.name}")
            elif reference.resource == "podgroups":
                users |= self._pods_by_group.get(f"{namespace}/{reference.name}", set())
        return users

    def _slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        changed = new or old
        assert changed is not None
        self.taints.set_slice(changed.metadata.name, new)
        self._enqueue_pool(changed.spec.driver, changed.spec.pool.name)

    def _enqueue_pool(self, driver: str, pool: str) -> None:
        for key in self._claims_by_pool.get((driver, pool), ()):
            claim = self.claims.get(key)
            if claim is not None:
                self._enqueue_users(claim)

    def _rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        changed = new or old
        assert changed is not None
        if new is None:
            self.taints.rules.pop(changed.metadata.name, None)
            self._evicted_by_rule.pop(changed.metadata.name, None)
            self._status_written.pop(changed.metadata.name, None)
        else:
            self.taints.rules[new.metadata.name] = new
            if old is None or old.spec != new.spec:
                self.enqueue(f"rule:{new.metadata.name}")
        if old is None or new is None or old.spec != new.spec:
            for driver, pool in list(self._claims_by_pool):
                self._enqueue_pool(driver, pool)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        group = pod.spec.scheduling_group
        if group is not None and group.pod_group_name:
            members = self._pods_by_group.setdefault(
                f"{pod.metadata.namespace}/{group.pod_group_name}", set()
            )
            (members.discard if new is None else members.add)(key_of(pod.metadata))
        if new is not None and (new.spec.resource_claims or new.status.extended_resource_claim_status):
            self.enqueue(f"pod:{key_of(new.metadata)}")

    async def reconcile(self, key: str) -> float | None:
        """Evict one pod when its time has come, or write one rule's status."""
        kind, _, name = key.partition(":")
        return await (self._sync_pod(name) if kind == "pod" else self._sync_rule(name))

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        names = {entry.resource_claim_name for entry in pod.spec.resource_claims}
        names |= {status.resource_claim_name for status in pod.status.resource_claim_statuses}
        # Beyond upstream: a pod that got its device through an extended resource is evicted as well.
        if pod.status.extended_resource_claim_status is not None:
            names.add(pod.status.extended_resource_claim_status.resource_claim_name)
        consumers = {pod.metadata.uid}
        if pod.spec.scheduling_group is not None:
            group = self.groups.get(f"{pod.metadata.namespace}/{pod.spec.scheduling_group.pod_group_name}")
            consumers |= {group.metadata.uid} if group is not None else set()
        found = (self.claims.get(f"{pod.metadata.namespace}/{name}") for name in names if name)
        return [
            claim
            for claim in found
            if claim is not None and any(user.uid in consumers for user in claim.status.reserved_for)
        ]

    async def _sync_pod(self, key: str) -> float | None:
        pod = self.pods.get(key)
        if pod is None or not self._is_evictable(pod):
            return None
        now = self.clock()
        departure = earliest_departure(self._claims_of(pod), self.taints, now)
        if departure is None:
            return None
        if departure.at > now:
            return wait_until(departure.at, now)
        if await self._evict(pod, departure):
            for rule in departure.rules & self.taints.rules.keys():
                self._evicted_by_rule[rule] = self._evicted_by_rule.get(rule, 0) + 1
                self.enqueue(f"rule:{rule}")
        return None

    def _is_evictable(self, pod: Pod) -> bool:
        """Return whether there is anything to evict: bound, not at its end, and not deleted yet."""
        meta = pod.metadata
        return (
            bool(pod.spec.node_name)
            and meta.deletion_timestamp is None
            and meta.uid not in self._evicted
            and pod.status.phase not in TERMINAL_PHASES
        )

    async def _evict(self, pod: Pod, departure: Departure) -> bool:
        """Delete the pod; return whether it was there to be deleted."""
        device = "/".join(departure.device)
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": EVICTION_REASON,
            "message": f"Device {device} has the taint {departure.taint.key}, which the claim does not tolerate",
            "lastTransitionTime": rfc3339(self.clock()),
        }
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}
        try:
            await self.client.patch(
                PODS,
                meta.name,
                patch,
                meta.namespace,
                kind=STRATEGIC_PATCH,
                subresource="status",
            )
            await self.client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
            was_there = True
        except (NotFound, Conflict):
            was_there = False  # gone already, or replaced by a pod of the same name
        self._evicted[meta.uid] = None
        return was_there

    # --- status of rules --------------------------------------------------------

    async def _sync_rule(self, name: str) -> float | None:
        rule = self.taints.rules.get(name)
        if rule is None:
            return None
        previous = next((entry for entry in rule.status.conditions if entry.type == CONDITION), None)
        is_answered = previous is not None and previous.observed_generation == rule.metadata.generation
        if is_answered and rule.spec.taint.effect == "None":
            return None  # a dry run is answered once
        written_at, generation = self._status_written.get(name, (float("-inf"), 0))
        since = steady_now() - written_at
        if generation == rule.metadata.generation and since < STATUS_PERIOD:
            return STATUS_PERIOD - since
        condition = eviction_condition(rule, self._count(rule), self.clock())
        pending = condition["status"] == "True"
        if needs_write(previous, condition):
            if previous is not None and previous.status == condition["status"]:
                condition["lastTransitionTime"] = (
                    previous.last_transition_time or condition["lastTransitionTime"]
                )
            self._status_written[name] = (steady_now(), rule.metadata.generation)
            others = [
                msgspec.to_builtins(entry) for entry in rule.status.conditions if entry.type != CONDITION
            ]
            patch = {"metadata": {"uid": rule.metadata.uid}, "status": {"conditions": [*others, condition]}}
            try:
                await self.client.patch(self.rules.resource, name, patch, subresource="status")
            except NotFound:
                return None
        return STATUS_PERIOD if pending else None

    def _count(self, rule: DeviceTaintRule) -> RuleCounts:
        """Count the pods, their namespaces and the devices that the rule touches."""
        effect = rule.spec.taint.effect
        if effect not in (NO_EXECUTE, "None"):
            return RuleCounts(evicted=self._evicted_by_rule.get(rule.metadata.name, 0))
        pods, allocated = self._affected(rule)
        return RuleCounts(
            pending=len(pods),
            namespaces=len({key.partition("/")[0] for key in pods}),
            evicted=self._evicted_by_rule.get(rule.metadata.name, 0),
            published=sum(rule_matches(rule, device) for device in self.taints.published()),
            allocated=allocated,
        )

    def _affected(self, rule: DeviceTaintRule) -> tuple[set[str], int]:
        """Return the pods that the rule evicts (or would), by key, and how many allocated devices it selects."""
        pods: set[str] = set()
        devices: set[DeviceId] = set()
        as_no_execute = DeviceTaint(
            key=rule.spec.taint.key,
            value=rule.spec.taint.value,
            effect=NO_EXECUTE,
            time_added=rule.spec.taint.time_added,
        )
        for claim in self.claims.items.values():
            if claim.status.allocation is None:
                continue
            for result in claim.status.allocation.devices.results:
                if not rule_matches(rule, device_id_of(result)):
                    continue
                devices.add(device_id_of(result))
                if departure_time(as_no_execute, result.tolerations, self.clock()) is None:
                    continue
                pods |= {key for key in self._users_of(claim) if self._has_to_go(key, claim)}
        return pods, len(devices)

    def _has_to_go(self, key: str, claim: ResourceClaim) -> bool:
        """Return whether the pod exists, uses this very claim and can be evicted."""
        pod = self.pods.get(key)
        return (
            pod is not None
            and self._is_evictable(pod)
            and any(claim.metadata.uid == used.metadata.uid for used in self._claims_of(pod))
        )
