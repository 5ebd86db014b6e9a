"""How a rollout of a driver goes on: which step each node takes next, decided from what was observed.

A node goes through these steps; each is written into the DriverRollout before anything is done for it:

  Pending     nothing happened yet
  Draining    its devices are tainted; pods that use them stay, end or are evicted, as `spec.pods` says
  Swapping    the driver's pod is deleted; the DaemonSet makes one of the wanted version, which must become ready
              and publish its devices
  Validating  claims with admin access try every device
  Updated     untainted again; after a rollback the same end is called Reverted
  Failed      the devices stay tainted; `evidence` says why

When `maxFailures` nodes or a canary failed the rollout is rolled back: nodes whose driver was not touched are untainted, all
others take the same steps towards the previous version. `advance` is pure: it returns the next status and
what to do now. Everything that is to be done may be done twice, so a driver of the rollout that was killed between
writing and doing loses nothing.

Invariants (tests/unit/workbench/test_fleet_rollout.py):
  * on the way forward never more than `maxUnavailable` nodes are at work, and only the canaries before all of those are
    updated; a rollback takes all nodes that are out of use already at once, and working ones within the same limit;
  * a driver's pod is deleted only while the devices of its node are tainted;
  * a failed node is not untainted unless it was reverted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from dray.api.driver_rollouts import (
    EVICT,
    KEEP,
    DriverRolloutSpec,
    DriverRolloutStatus,
    DriverTemplate,
    NodeRollout,
)
from dray.api.times import format_time, parse_time

PENDING = "Pending"
DRAINING = "Draining"
SWAPPING = "Swapping"
VALIDATING = "Validating"
UPDATED = "Updated"
REVERTED = "Reverted"
FAILED = "Failed"
AT_WORK = (DRAINING, SWAPPING, VALIDATING)

RUNNING = "Running"
PAUSED = "Paused"
ROLLING_BACK = "RollingBack"
COMPLETE = "Complete"
ROLLED_BACK = "RolledBack"
STOPPED = "Stopped"
ENDED = (COMPLETE, ROLLED_BACK, STOPPED)

MAX_MESSAGE = 400  # characters of evidence of one node


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of one node at this moment."""

    users: tuple[str, ...] = ()  # pods that use its devices
    is_tainted: bool = False  # no pod gets its devices
    has_taint_rules: bool = (
        False  # also such without an effect: a drain that was interrupted at its beginning
    )
    pod_version: str = ""  # of the driver's pod; empty means: there is none
    is_ready: bool = False  # that pod
    published_versions: frozenset[str] = frozenset()  # attribute driverVersion of the node's devices
    is_published: bool = False  # the node's pools of this driver are complete
    failures: tuple[str, ...] | None = (
        None  # of a validation that has ended; empty means: all devices are fine
    )


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do now; doing it again does no harm."""

    verb: str  # taint, evict, set-template, delete-pod, validate, untaint
    node: str = ""
    template: DriverTemplate | None = None  # of set-template and delete-pod: what is wanted
    is_revert: bool = False  # of validate


def start(nodes: Sequence[str], previous: DriverTemplate) -> DriverRolloutStatus:
    """Return the status of a rollout that has just begun."""
    return DriverRolloutStatus(
        phase=RUNNING, previous=previous, nodes=[NodeRollout(name=name) for name in sorted(nodes)]
    )


def advance(
    spec: DriverRolloutSpec,
    status: DriverRolloutStatus,
    observed: Mapping[str, Observation],
    now: datetime,
    template: DriverTemplate | None = None,
) -> tuple[DriverRolloutStatus, list[Action]]:
    """Return the status after one look and what is to be done now; `template` is what the DaemonSet has at the moment.

    A rollout ends only when everything that belongs to its end was seen: nothing is left to do for one that has ended.
    """
    if status.phase in ENDED:
        return status, []
    nodes = [_step(spec, status, node, observed.get(node.name, Observation()), now) for node in status.nodes]
    phase, message = _phase(spec, status, nodes)
    if phase == ROLLING_BACK and status.phase != ROLLING_BACK:
        nodes = [_turn_back(node, now) for node in nodes]
    elif phase in ENDED and not _is_settled(status, phase, nodes, observed, template):
        phase = status.phase
    elif phase == RUNNING:
        nodes = _admit(spec, nodes, now)
    elif phase == ROLLING_BACK:
        nodes = _admit_reverts(spec, nodes, now)
    after = msgspec.structs.replace(status, phase=phase, message=message, nodes=nodes)
    return after, _actions(spec, after, observed)


# --- one node -----------------------------------------------------------------------


def _step(
    spec: DriverRolloutSpec,
    status: DriverRolloutStatus,
    node: NodeRollout,
    seen: Observation,
    now: datetime,
) -> NodeRollout:
    if node.step not in AT_WORK:
        return node
    goal = _goal(spec, status, node)
    if node.step == DRAINING:
        if not seen.is_tainted:
            waits = "the taint of its devices"
        elif seen.users and spec.pods != KEEP:
            waits = f"{len(seen.users)} pods use its devices: {', '.join(seen.users[:5])}"
        else:
            return _at(node, SWAPPING, now)
    elif node.step == SWAPPING:
        waits = _swap_waits_for(spec, goal, seen)
        if not waits:
            return _at(node, VALIDATING, now)
    else:
        if seen.failures == ():
            return _at(node, REVERTED if node.reverting else UPDATED, now)
        if seen.failures:
            return _at(node, FAILED, now, "; ".join(seen.failures))
        waits = "the validation of its devices"
    if node.since and (now - parse_time(node.since)).total_seconds() > spec.step_seconds:
        return _at(node, FAILED, now, f"{node.step}: after {spec.step_seconds} s it still waits for {waits}")
    return msgspec.structs.replace(node, message=f"waits for {waits}"[:MAX_MESSAGE])


def _swap_waits_for(spec: DriverRolloutSpec, goal: DriverTemplate, seen: Observation) -> str:
    if seen.pod_version != goal.version:
        return f"a pod of the driver in version {goal.version or '(before)'}"
    if not seen.is_ready:
        return "the driver's pod to become ready"
    if not seen.is_published:
        return "the driver to publish its devices"
    if spec.expect_published_version and seen.published_versions != {goal.version}:
        published = ", ".join(sorted(seen.published_versions)) or "none"
        return f"devices that publish driverVersion {goal.version} (published: {published})"
    return ""


def _goal(spec: DriverRolloutSpec, status: DriverRolloutStatus, node: NodeRollout) -> DriverTemplate:
    return (status.previous or DriverTemplate()) if node.reverting else spec.to


def _at(node: NodeRollout, step: str, now: datetime, evidence: str = "") -> NodeRollout:
    evidence = " ".join(evidence.split())[:MAX_MESSAGE] or node.evidence
    return msgspec.structs.replace(node, step=step, since=format_time(now), message="", evidence=evidence)


# --- all nodes ----------------------------------------------------------------------


def _is_settled(
    status: DriverRolloutStatus,
    phase: str,
    nodes: list[NodeRollout],
    observed: Mapping[str, Observation],
    template: DriverTemplate | None,
) -> bool:
    """Return whether working nodes have no taint rule and, after a rollback, the DaemonSet has its former template."""
    in_use = [node.name for node in nodes if node.step in (PENDING, UPDATED, REVERTED)]
    if any(observed.get(name, Observation()).has_taint_rules for name in in_use):
        return False
    return phase != ROLLED_BACK or template in (None, status.previous)


def _phase(spec: DriverRolloutSpec, status: DriverRolloutStatus, nodes: list[NodeRollout]) -> tuple[str, str]:
    if status.phase == ROLLING_BACK:
        return _end_of_rollback(nodes, status.message)
    failed = [node.name for node in nodes if node.step == FAILED]
    # A canary that failed has said what it is there to say, whatever `maxFailures` is.
    is_bad = len(failed) >= spec.max_failures or any(node.step == FAILED for node in nodes[: spec.canary])
    if spec.abort or is_bad:
        reason = (
            "aborted"
            if spec.abort
            else f"{len(failed)} of {len(nodes)} nodes failed: {', '.join(failed[:10])}"
        )
        if spec.abort or spec.roll_back:
            return ROLLING_BACK, reason
        # Nodes at work are brought to an end; no other one begins.
        busy = any(node.step in AT_WORK for node in nodes)
        return (PAUSED if busy else STOPPED), reason
    if all(node.step in (UPDATED, FAILED) for node in nodes):
        return COMPLETE, f"{len(nodes) - len(failed)} of {len(nodes)} nodes are updated"
    canaries = nodes[: spec.canary]
    canaries_done = bool(canaries) and all(node.step == UPDATED for node in canaries)
    if (
        spec.pause_after_canary
        and canaries_done
        and all(node.step == PENDING for node in nodes[spec.canary :])
    ):
        return PAUSED, "the canaries are updated: waits to be continued"
    if spec.paused:
        return PAUSED, "paused"
    return RUNNING, ""


def _end_of_rollback(nodes: list[NodeRollout], reason: str) -> tuple[str, str]:
    if any(node.step in AT_WORK or (node.step == UPDATED) for node in nodes):
        return ROLLING_BACK, reason
    if any(node.step == FAILED and not node.reverting for node in nodes):
        return ROLLING_BACK, reason
    return ROLLED_BACK, reason


def _turn_back(node: NodeRollout, now: datetime) -> NodeRollout:
    """Return where a node is when the rollback begins: those whose driver was not touched have nothing to revert."""
    if node.step == DRAINING:
        return _at(node, PENDING, now)
    if node.step in (SWAPPING, VALIDATING, FAILED):
        return _at(msgspec.structs.replace(node, reverting=True), DRAINING, now)
    return node


def _admit(spec: DriverRolloutSpec, nodes: list[NodeRollout], now: datetime) -> list[NodeRollout]:
    canaries_done = all(node.step == UPDATED for node in nodes[: spec.canary])
    eligible = len(nodes) if canaries_done else spec.canary
    free = spec.max_unavailable - sum(node.step in AT_WORK for node in nodes)
    admitted = []
    for index, node in enumerate(nodes):
        if node.step == PENDING and index < eligible and free > 0:
            free -= 1
            admitted.append(_at(node, DRAINING, now))
        else:
            admitted.append(node)
    return admitted


def _admit_reverts(spec: DriverRolloutSpec, nodes: list[NodeRollout], now: datetime) -> list[NodeRollout]:
    """Updated nodes work: they are reverted a few at a time, after those that are broken."""
    free = spec.max_unavailable - sum(node.step in AT_WORK for node in nodes)
    admitted = []
    for node in nodes:
        if node.step == UPDATED and free > 0:
            free -= 1
            admitted.append(_at(msgspec.structs.replace(node, reverting=True), DRAINING, now))
        else:
            admitted.append(node)
    return admitted


def _actions(
    spec: DriverRolloutSpec, status: DriverRolloutStatus, observed: Mapping[str, Observation]
) -> list[Action]:
    if status.phase in ENDED:
        return []
    actions = [Action("set-template", template=status.previous if status.phase == ROLLING_BACK else spec.to)]
    for node in status.nodes:
        seen = observed.get(node.name, Observation())
        if node.step in (PENDING, UPDATED, REVERTED):
            actions += [Action("untaint", node.name)] if seen.has_taint_rules else []
        elif not seen.is_tainted:
            actions.append(Action("taint", node.name))
        elif node.step == DRAINING and seen.users and spec.pods == EVICT:
            actions.append(Action("evict", node.name))
        elif node.step == SWAPPING and seen.pod_version != _goal(spec, status, node).version:
            actions.append(Action("delete-pod", node.name, _goal(spec, status, node)))
        elif node.step == VALIDATING and seen.failures is None:
            actions.append(Action("validate", node.name, is_revert=node.reverting))
    return actions
