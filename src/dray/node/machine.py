"""The life of one pod on its node, as a state machine: events in, instructions out.

The machine decides, the agent acts. It knows no clock (every event carries the
time), starts no process and writes no status; so every story of a pod can be told
in a test as a list of events. After a restart the agent makes a new machine and
tells it what it finds (`Restored`); the machine then asks for what is missing.

Stages, in the only order in which they can follow each other:

    preparing    claims are made usable; nothing runs yet
    initializing init containers run one after the other; sidecars stay
    running      the containers run, and are restarted as the policy says
    stopping     they are told to end (deleted, or all work is done)
    releasing    nothing runs any more; claims are given back
    finished     the terminal status may be reported; a deleted pod may be removed

The pod is never finished before its claims are released: whoever sees a terminal
pod may give its devices to somebody else.

Invariants (tests/unit/node/test_node_machine.py):
  * no container is started before the claims are prepared or after stopping began;
  * claims are released once, when nothing runs;
  * an event that does not fit the stage (a late exit, a probe of a dead container)
    changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dray.api.podspec import RunContainer, RunPod
from dray.node.signals import (
    ClaimsPrepared,
    ClaimsReleased,
    Due,
    Event,
    Exited,
    Instruction,
    Note,
    PrepareClaims,
    PrepareFailed,
    Probe,
    Probed,
    ReleaseClaims,
    ReleaseFailed,
    Remove,
    Report,
    Restored,
    StartContainer,
    Started,
    StartFailed,
    StopContainer,
    StopWanted,
    Wake,
)

PREPARING, INITIALIZING, RUNNING = "preparing", "initializing", "running"
STOPPING, RELEASING, FINISHED = "stopping", "releasing", "finished"

WAITING, STARTING, UP, DOWN = "waiting", "starting", "up", "down"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a container that keeps failing is started again."""

    first_seconds: float = 10.0
    longest_seconds: float = 300.0
    forgiven_after_seconds: float = 600.0  # a container that ran this long begins anew

    def after(self, failures: int) -> float:
        """Return the pause before the next start; the first restart is at once."""
        if failures <= 1:
            return 0.0
        return float(min(self.first_seconds * 2.0 ** (failures - 2), self.longest_seconds))


# --- state --------------------------------------------------------------------


@dataclass(slots=True)
class Ended:
    """How a container ended."""

    exit_code: int
    reason: str
    started_at: float
    finished_at: float
    attempt: int
    message: str = ""


@dataclass(slots=True)
class ContainerState:
    """One container of the pod."""

    spec: RunContainer
    is_init: bool = False
    is_sidecar: bool = False
    stage: str = WAITING
    attempt: int = 0  # restarts so far
    started_at: float = 0.0
    has_started: bool = False  # the startup probe, if any, has succeeded
    is_ready: bool = False
    is_stopping: bool = False
    failures: int = 0  # in a row, for the backoff
    waiting_reason: str = ""
    waiting_message: str = ""
    ended: Ended | None = None  # the current end, when DOWN
    last_ended: Ended | None = None  # the end before this run

    @property
    def is_active(self) -> bool:
        """Say whether a process may exist."""
        return self.stage in (STARTING, UP)


@dataclass(slots=True)
class PodMachine:
    """One pod; see the module's text."""

    pod: RunPod
    backoff: Backoff = field(default_factory=Backoff)
    stage: str = PREPARING
    init: list[ContainerState] = field(default_factory=list)
    main: list[ContainerState] = field(default_factory=list)
    is_deleted: bool = False
    is_busy_with_claims: bool = False  # a prepare or release is under way
    failed_reason: str = ""
    failed_message: str = ""
    waiting_reason: str = ""  # why nothing runs yet
    prepare_failures: int = 0
    grace_seconds: float = 30.0
    needs_claims: bool = False

    @classmethod
    def of(cls, pod: RunPod, backoff: Backoff | None = None) -> PodMachine:
        """Make the machine of a pod; feed it `Restored` next."""
        status = pod.status
        return cls(
            pod=pod,
            backoff=backoff or Backoff(),
            init=[
                ContainerState(spec, is_init=True, is_sidecar=spec.restart_policy == "Always")
                for spec in pod.spec.init_containers
            ],
            main=[ContainerState(spec) for spec in pod.spec.containers],
            grace_seconds=pod.grace_seconds,
            needs_claims=bool(pod.spec.resource_claims or status.extended_resource_claim_status),
        )

    @property
    def containers(self) -> list[ContainerState]:
        """All containers, init ones first."""
        return [*self.init, *self.main]

    def find(self, name: str) -> ContainerState | None:
        """Return a container by name."""
        return next((state for state in self.containers if state.spec.name == name), None)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event and say what to do."""
        return list(_HANDLERS[type(event)](self, event, now))

    # Each handler below is a generator: it changes the state and yields instructions.

    def _on_restored(self, event: Restored, now: float) -> Iterator[Instruction]:
        for found in event.containers:
            state = self.find(found.name)
            if state is None or found.attempt < state.attempt:
                continue
            state.attempt, state.started_at = found.attempt, found.started_at
            if found.exit_code is None:
                state.stage = UP
                state.has_started = state.spec.startup_probe is None
                state.is_ready = state.has_started and state.spec.readiness_probe is None
            else:
                state.stage = DOWN
                state.ended = _ended(
                    found.exit_code, "", found.started_at, found.finished_at or now, found.attempt
                )
        if self.is_deleted:
            yield from self._begin_stopping()
        elif not self.needs_claims:
            yield from self._on_prepared(ClaimsPrepared(), now)
        else:
            self.is_busy_with_claims = True
            yield PrepareClaims()

    def _on_prepared(self, event: ClaimsPrepared, now: float) -> Iterator[Instruction]:
        self.is_busy_with_claims = False
        if self.stage == STOPPING:
            yield from self._continue_stopping()
        elif self.stage == PREPARING:
            self.stage, self.waiting_reason = INITIALIZING, ""
            for state in self.containers:
                if state.stage == UP:
                    yield Probe(state.spec, state.attempt)
            yield from self._advance(now)

    def _on_prepare_failed(self, event: PrepareFailed, now: float) -> Iterator[Instruction]:
        self.is_busy_with_claims = False
        if self.stage == STOPPING:
            yield from self._continue_stopping()
            return
        self.prepare_failures += 1
        self.waiting_reason = "ContainerCreating"
        yield Note("FailedPrepareDynamicResources", event.reason, is_warning=True)
        yield Report()
        if event.is_final:
            yield from self._fail("UnexpectedAdmissionError", event.reason)
        else:
            yield Wake("prepare", min(0.5 * 2.0**self.prepare_failures, 60.0))

    def _on_started(self, event: Started, now: float) -> Iterator[Instruction]:
        state = self.find(event.name)
        if state is None or state.attempt != event.attempt or state.stage != STARTING:
            return
        state.stage, state.started_at = UP, now
        state.waiting_reason = state.waiting_message = ""
        state.has_started = state.spec.startup_probe is None
        state.is_ready = state.has_started and state.spec.readiness_probe is None
        if self.stage in (STOPPING, RELEASING):
            # It was on its way up when the end was decided.
            state.is_stopping = False
            yield from self._continue_stopping()
            return
        yield Probe(state.spec, state.attempt)
        yield from self._advance(now)
        yield Report()

    def _on_start_failed(self, event: StartFailed, now: float) -> Iterator[Instruction]:
        state = self.find(event.name)
        if state is None or state.attempt != event.attempt or state.stage != STARTING:
            return
        state.stage, state.started_at = WAITING, 0.0
        state.waiting_reason, state.waiting_message = event.reason, event.message
        yield Note("Failed", f"container {event.name}: {event.message}", is_warning=True)
        yield Report()
        if self.stage == STOPPING:
            yield from self._continue_stopping()
            return
        state.failures += 1
        # A start that fails is tried again whatever the policy: nothing has run yet.
        yield Wake(f"start {event.name}", max(self.backoff.after(state.failures + 1), 0.5))

    def _on_exited(self, event: Exited, now: float) -> Iterator[Instruction]:
        state = self.find(event.name)
        if state is None or state.attempt != event.attempt or not state.is_active:
            return
        started = state.started_at or now
        state.stage, state.is_ready, state.is_stopping = DOWN, False, False
        state.ended = _ended(event.exit_code, event.reason, started, now, event.attempt)
        is_forgiven = now - started >= self.backoff.forgiven_after_seconds
        state.failures = 1 if is_forgiven else state.failures + 1
        if self.stage == STOPPING:
            yield from self._continue_stopping()
        elif self.stage != PREPARING:  # else it was adopted, and is judged when the claims are prepared
            yield from self._restart_or_end(state, now)
        yield Report()

    def _restart_or_end(self, state: ContainerState, now: float) -> Iterator[Instruction]:
        assert state.ended is not None
        if self._is_restarted(state):
            pause = self.backoff.after(state.failures)
            if pause:
                state.waiting_reason = "CrashLoopBackOff"
                state.waiting_message = f"back-off {pause:.0f}s restarting failed container {state.spec.name}"
                yield Note("BackOff", state.waiting_message, is_warning=True)
                yield Wake(f"start {state.spec.name}", pause)
            else:
                yield from self._start(state)
        elif state.is_init and state.ended.exit_code != 0:
            yield from self._fail("", "")
        else:
            yield from self._advance(now)

    def _is_restarted(self, state: ContainerState) -> bool:
        assert state.ended is not None
        policy = self.pod.spec.restart_policy
        if state.is_sidecar:
            return True
        if state.is_init:
            return state.ended.exit_code != 0 and policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and state.ended.exit_code != 0)

    def _on_probed(self, event: Probed, now: float) -> Iterator[Instruction]:
        state = self.find(event.name)
        if state is None or state.attempt != event.attempt or state.stage != UP or state.is_stopping:
            return
        if event.kind == "readiness":
            state.is_ready = event.is_well and state.has_started
        elif event.kind == "startup" and event.is_well:
            state.has_started = True
            state.is_ready = state.spec.readiness_probe is None
            yield from self._advance(now)
        elif not event.is_well:
            yield Note(
                "Unhealthy",
                f"container {event.name}: {event.kind} probe failed: {event.message}",
                is_warning=True,
            )
            probe = state.spec.startup_probe if event.kind == "startup" else state.spec.liveness_probe
            own_grace = probe.termination_grace_period_seconds if probe else None
            grace = self.grace_seconds if own_grace is None else float(own_grace)
            state.is_stopping, state.is_ready = True, False
            yield Note(
                "Killing", f"container {event.name} failed its {event.kind} probe and will be restarted"
            )
            yield StopContainer(state.spec, state.attempt, grace, is_unwell=True)
        yield Report()

    def _on_due(self, event: Due, now: float) -> Iterator[Instruction]:
        if event.what == "prepare" and self.stage == PREPARING and not self.is_busy_with_claims:
            self.is_busy_with_claims = True
            yield PrepareClaims()
        elif event.what == "release" and self.stage == RELEASING and not self.is_busy_with_claims:
            yield from self._release()
        elif event.what == "deadline" and self.stage in (PREPARING, INITIALIZING, RUNNING):
            yield from self._fail(
                "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
            )
        elif event.what.startswith("start ") and self.stage in (INITIALIZING, RUNNING):
            state = self.find(event.what.removeprefix("start "))
            if state is not None and not state.is_active:
                yield from self._start(state)

    def _on_stop_wanted(self, event: StopWanted, now: float) -> Iterator[Instruction]:
        if not event.reason:
            self.is_deleted = True
        self.grace_seconds = event.grace_seconds
        if self.stage == FINISHED:
            if self.is_deleted:
                yield Remove()
        elif event.reason:
            yield from self._fail(event.reason, event.message)
        elif self.stage not in (STOPPING, RELEASING):
            yield from self._begin_stopping()
        elif event.grace_seconds == 0:
            # Asked again, and now it shall be at once.
            for state in self.containers:
                if state.stage == UP:
                    yield StopContainer(state.spec, state.attempt, 0.0)

    def _on_released(self, event: ClaimsReleased, now: float) -> Iterator[Instruction]:
        self.is_busy_with_claims = False
        if self.stage == RELEASING:
            self.stage = FINISHED
            yield Report()
            if self.is_deleted:
                yield Remove()

    def _on_release_failed(self, event: ReleaseFailed, now: float) -> Iterator[Instruction]:
        self.is_busy_with_claims = False
        yield Note("FailedUnprepareDynamicResources", event.reason, is_warning=True)
        yield Wake("release", 2.0)

    # --- going forward --------------------------------------------------------

    def _advance(self, now: float) -> Iterator[Instruction]:
        """Start what may be started now, and notice when all is done."""
        if self.stage == INITIALIZING:
            for state in self.init:
                if state.is_sidecar:
                    if state.stage == WAITING and not state.waiting_reason:
                        yield from self._start(state)
                    if not (state.stage == UP and state.has_started):
                        return
                elif state.stage == DOWN and state.ended is not None and state.ended.exit_code == 0:
                    continue
                elif state.stage == DOWN:
                    # Found like this after a restart; a live one was handled when it exited.
                    yield from self._restart_or_end(state, now)
                    return
                else:
                    if state.stage == WAITING and not state.waiting_reason:
                        yield from self._start(state)
                    return
            self.stage = RUNNING
            for state in self.main:
                if state.stage == WAITING:
                    yield from self._start(state)
                elif state.stage == DOWN and self._is_restarted(state):
                    yield from self._restart_or_end(state, now)
            yield Report()
        if self.stage == RUNNING and self.main and all(self._is_over(state) for state in self.main):
            yield from self._begin_stopping()

    def _is_over(self, state: ContainerState) -> bool:
        return state.stage == DOWN and not self._is_restarted(state)

    def _start(self, state: ContainerState) -> Iterator[Instruction]:
        if state.stage == DOWN:
            state.last_ended, state.ended = state.ended, None
            state.attempt += 1
        state.stage, state.has_started, state.is_ready = STARTING, False, False
        state.waiting_reason = state.waiting_message = ""
        yield StartContainer(state.spec, state.attempt)

    # --- coming to an end -------------------------------------------------------

    def _fail(self, reason: str, message: str) -> Iterator[Instruction]:
        self.failed_reason, self.failed_message = reason or self.failed_reason, message or self.failed_message
        if self.stage not in (STOPPING, RELEASING, FINISHED):
            yield from self._begin_stopping()

    def _begin_stopping(self) -> Iterator[Instruction]:
        self.stage = STOPPING
        yield Report()
        yield from self._continue_stopping()

    def _continue_stopping(self) -> Iterator[Instruction]:
        """Stop containers first, then sidecars in reverse order, then give the claims back."""
        others = [state for state in self.containers if not state.is_sidecar and state.is_active]
        sidecars = [state for state in reversed(self.init) if state.is_sidecar and state.is_active]
        for state in others or sidecars[:1]:
            if state.stage == UP and not state.is_stopping:
                state.is_stopping = True
                yield StopContainer(state.spec, state.attempt, self.grace_seconds)
        if not others and not sidecars and not self.is_busy_with_claims:
            self.stage = RELEASING
            yield from self._release()

    def _release(self) -> Iterator[Instruction]:
        if not self.needs_claims:
            yield from self._on_released(ClaimsReleased(), 0.0)
            return
        self.is_busy_with_claims = True
        yield ReleaseClaims()

    # --- what it looks like from outside ------------------------------------------

    @property
    def phase(self) -> str:
        """Return the pod's phase for its status."""
        if self.stage == FINISHED:
            return self._final_phase()
        # As for kubelet: running begins with the first container, not with the wish to start it.
        return "Running" if any(state.started_at for state in self.main) else "Pending"

    def _final_phase(self) -> str:
        if self.failed_reason or self.failed_message:
            return "Failed"
        ends = [state.ended for state in self.containers if not state.is_sidecar]
        if any(ended is None or ended.exit_code != 0 for ended in ends):
            return "Failed"
        return "Succeeded"


def _ended(exit_code: int, reason: str, started_at: float, finished_at: float, attempt: int) -> Ended:
    return Ended(
        exit_code, reason or ("Completed" if exit_code == 0 else "Error"), started_at, finished_at, attempt
    )


_HANDLERS: dict[type, Callable[[PodMachine, Any, float], Iterator[Instruction]]] = {
    Restored: PodMachine._on_restored,
    ClaimsPrepared: PodMachine._on_prepared,
    PrepareFailed: PodMachine._on_prepare_failed,
    Started: PodMachine._on_started,
    StartFailed: PodMachine._on_start_failed,
    Exited: PodMachine._on_exited,
    Probed: PodMachine._on_probed,
    Due: PodMachine._on_due,
    StopWanted: PodMachine._on_stop_wanted,
    ClaimsReleased: PodMachine._on_released,
    ReleaseFailed: PodMachine._on_release_failed,
}
