"""Take devices out of use: taint them, and move the pods that use them within their disruption budgets.

A drain is a set of DeviceTaintRules with one taint (`dray.dev/drain`). Their effect says how far it is:

  None        announced: nothing changes, but everybody can see who would have to go
  NoSchedule  nothing new is allocated; pods are evicted through the API, which respects disruption budgets
  NoExecute   (only on request) the taint controller deletes the pods at once, without asking a budget

The rules are the whole state: a drain that was interrupted is continued by draining again, and `undrain` deletes
the rules. `plan_drain` decides, `drain` acts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dray.api.core import Pod
from dray.api.json_types import JsonObject
from dray.api.well_known import MANAGED_BY_LABEL, TERMINAL_PHASES
from dray.client import AlreadyExists, Client, ClientError, NotFound, TooManyRequests, key_of
from dray.client.resources import PODS, TAINT_RULES, Resource, versions_of
from dray.sim.snapshot import Snapshot, capture
from dray.workbench.fleet.targets import Target, resolve
from dray.workbench.inventory import Inventory

DRAIN_KEY = "dray.dev/drain"
REASON_ANNOTATION = "dray.dev/reason"
TARGET_ANNOTATION = "dray.dev/target"
MANAGER = "dray-fleet"
PAUSE = 1.0  # seconds between two looks
Report = Callable[[str], None]


class DrainRefused(Exception):
    """A drain that would destroy something; the message says what, `hint` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that uses some of the devices."""

    namespace: str
    name: str
    uid: str
    devices: tuple[str, ...]
    is_bare: bool  # no controller makes it again
    is_leaving: bool

    @property
    def key(self) -> str:
        """Return namespace/name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What a drain does at this moment."""

    target: Target
    holders: tuple[Holder, ...]
    idle_claims: tuple[str, ...]  # allocated, but no pod uses them: they keep their devices


@dataclass(slots=True)
class DrainResult:
    """How a drain ended."""

    is_done: bool
    evicted: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)  # pod -> why it is still there


def plan_drain(snapshot: Snapshot, target: Target) -> DrainPlan:
    """Return who uses the devices of a target. Users with admin access do not count: they never block anybody."""
    pods = {pod.metadata.uid: pod for pod in snapshot.pods}
    users = {key_of(claim.metadata): claim.status.reserved_for for claim in snapshot.claims}
    devices_of: dict[str, list[str]] = {}
    idle: list[str] = []
    for row in target.rows:
        for use in row.holders:
            found = [user.uid for user in users.get(use.claim, ()) if user.resource == "pods"]
            idle += [] if found else [use.claim]
            for uid in found:
                devices_of.setdefault(uid, []).append(str(row.key))
    holders = [
        _holder(pods[uid], names)
        for uid, names in devices_of.items()
        if uid in pods and pods[uid].status.phase not in TERMINAL_PHASES
    ]
    return DrainPlan(target, tuple(sorted(holders, key=lambda each: each.key)), tuple(sorted(set(idle))))


def _holder(pod: Pod, devices: list[str]) -> Holder:
    meta = pod.metadata
    return Holder(
        meta.namespace,
        meta.name,
        meta.uid,
        tuple(sorted(set(devices))),
        is_bare=not any(owner.controller for owner in meta.owner_references or ()),
        is_leaving=meta.deletion_timestamp is not None,
    )


def drain_rules(target: Target, reason: str, effect: str) -> list[JsonObject]:
    """Return the rules of a drain; their names depend on the devices only, so a second drain finds them."""
    return [
        {
            "apiVersion": TAINT_RULES.api_version,
            "kind": TAINT_RULES.kind,
            "metadata": {
                "name": _rule_name(selector),
                "labels": {MANAGED_BY_LABEL: MANAGER},
                "annotations": {REASON_ANNOTATION: reason, TARGET_ANNOTATION: target.name},
            },
            "spec": {
                "deviceSelector": dict(selector),
                "taint": {"key": DRAIN_KEY, "value": "drained", "effect": effect},
            },
        }
        for selector in target.selectors
    ]


def _rule_name(selector: JsonObject) -> str:
    text = "/".join(str(selector.get(part, "")) for part in ("driver", "pool", "device"))
    return f"drain-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


# --- acting -------------------------------------------------------------------------


async def _served_rules(client: Client) -> Resource:
    """Return the rules in the newest version that the server has; in the newest of all when it has none."""
    for rules in versions_of(TAINT_RULES):
        with contextlib.suppress(NotFound):
            await client.list_page(rules, limit=1)
            return rules
    return TAINT_RULES


async def announce(client: Client, target: Target, reason: str) -> None:
    """Store the rules with the effect None; those of an earlier drain of the same devices stay as they are."""
    rules = await _served_rules(client)
    for rule in drain_rules(target, reason, "None"):
        try:
            await client.create(rules, rule | {"apiVersion": rules.api_version})
        except AlreadyExists:
            continue


async def set_effect(client: Client, target: Target, reason: str, effect: str) -> None:
    """Give all rules of a drain an effect."""
    rules = await _served_rules(client)
    for rule in drain_rules(target, reason, effect):
        body = {"metadata": {"annotations": rule["metadata"]["annotations"]}, "spec": rule["spec"]}
        await client.patch(rules, rule["metadata"]["name"], body)


@dataclass(frozen=True, slots=True)
class Drain:
    """One rule of a drain."""

    rule: str
    target: str
    effect: str
    reason: str
    since: str


async def drains(client: Client) -> list[Drain]:
    """Return the rules of all drains."""
    rules = await _served_rules(client)
    found = (await client.list(rules, labelSelector=f"{MANAGED_BY_LABEL}={MANAGER}")).items
    return [
        Drain(
            rule["metadata"]["name"],
            marks.get(TARGET_ANNOTATION, ""),
            rule["spec"]["taint"]["effect"],
            marks.get(REASON_ANNOTATION, ""),
            rule["spec"]["taint"].get("timeAdded") or rule["metadata"].get("creationTimestamp") or "",
        )
        for rule in found
        for marks in [rule["metadata"].get("annotations") or {}]
    ]


async def undrain(client: Client, target: str) -> int:
    """Delete the rules of a drain, also when its devices are no longer published; returns how many there were."""
    found = [each for each in await drains(client) if each.target == target]
    rules = await _served_rules(client)
    for each in found:
        with contextlib.suppress(NotFound):
            await client.delete(rules, each.rule)
    return len(found)


async def drain(
    client: Client,
    target: Target,
    reason: str,
    *,
    seconds: float,
    report: Report,
    force: bool = False,
    no_execute: bool = False,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> DrainResult:
    """Drain and wait until nobody uses the devices, at most `seconds`; raises DrainRefused before anything changes.

    May be repeated: pods that are gone are not missed. When time runs out the devices stay tainted.
    """
    plan = plan_drain(await capture(client), target)
    _refuse_bare(plan, force=force)
    await announce(client, target, reason)
    await set_effect(client, target, reason, "NoExecute" if no_execute else "NoSchedule")
    result = DrainResult(is_done=False)
    deadline = clock() + seconds
    shown = ""
    while True:
        snapshot = await capture(client)
        plan = plan_drain(snapshot, resolve(target.name, Inventory(snapshot)))
        # A pod that was placed while the taint was being written.
        _refuse_bare(plan, force=force)
        if not plan.holders:
            result.is_done, result.left = True, {}
            return result
        result.left = {}
        for holder in plan.holders:
            if no_execute and not holder.is_leaving:
                result.left[holder.key] = "waits for the taint eviction controller"
            else:
                result.left[holder.key] = await evict(client, holder, result)
        text = "; ".join(f"{pod}: {why}" for pod, why in sorted(result.left.items()))
        if text != shown:
            report(f"{len(plan.holders)} pods use the devices: {text}")
            shown = text
        if clock() >= deadline:
            return result
        await pause(min(PAUSE, max(0.0, deadline - clock())))


def _refuse_bare(plan: DrainPlan, *, force: bool) -> None:
    bare = [holder.key for holder in plan.holders if holder.is_bare and not holder.is_leaving]
    if bare and not force:
        raise DrainRefused(
            f"no controller would make {'this pod' if len(bare) == 1 else 'these pods'} again: {', '.join(bare)}",
            "--force evicts it all the same; or wait for its end and drain again",
        )


async def evict(client: Client, holder: Holder, result: DrainResult) -> str:
    """Evict a pod within its disruption budgets, unless it is going already; returns why it is still there."""
    if holder.is_leaving:
        return "is terminating"
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": holder.name, "namespace": holder.namespace},
        "deleteOptions": {"preconditions": {"uid": holder.uid}},
    }
    try:
        await client.create(PODS, body, holder.namespace, name=holder.name, subresource="eviction")
    except TooManyRequests:
        return "a disruption budget forbids its eviction for now"
    except NotFound:
        return "is gone"
    except ClientError as error:
        return str(error)
    if holder.key not in result.evicted:
        result.evicted.append(holder.key)
    return "was evicted"
