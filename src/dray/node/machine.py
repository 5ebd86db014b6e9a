"""The life of one pod on its node, as a state machine: events in, instructions out.

The machine decides, the agent acts (`pods`). It knows no clock (every event carries the time), starts no process and
writes no status. Events and instructions are values (`pod_events`), so the life of a pod can be written down in a
test, and told again with the same result.

Theory of operation: `TRANSITIONS` says which handler takes an event in which stage; an event that has no entry for the
current stage changes nothing. Events about a container are first compared with the container (`_EXPECTED`): one of an
earlier run, or of a container that is not in a stage where it can happen, changes nothing either. Stages follow each
other in one order:

    PREPARING     claims are prepared; nothing runs yet
    INITIALIZING  init containers run one after the other; sidecars stay
    RUNNING       the containers run, and are restarted as the policy says
    STOPPING      they are told to end (deleted, failed, or all work is done)
    RELEASING     nothing runs any more; claims are unprepared
    FINISHED      the terminal status may be reported; a deleted pod may be removed

Nothing of this is kept on disk. After a restart the agent makes a new machine and tells it what the checkpoint and the
runtime have (`Restored`); preparing again is idempotent, and the machine then asks for what is missing.

The pod is never finished before its claims are unprepared: whoever sees a terminal pod may give its devices to another.

Invariants (tests/unit/node/test_node_machine.py):
  * no container is started before the claims are prepared or after stopping began;
  * claims are unprepared when nothing runs, but for those that the pod lists no longer;
  * the same events give the same instructions;
  * a machine that is restored from what runs starts nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dray.api.podspec import RunContainer, RunPod
from dray.node.pod_events import (
    ClaimsChanged,
    ClaimsPrepared,
    ClaimsReleased,
    Event,
    Exited,
    Instruction,
    PrepareClaims,
    PrepareFailed,
    Probe,
    Probed,
    RecordEvent,
    ReleaseClaims,
    ReleaseFailed,
    Remove,
    Report,
    Restored,
    SetTimer,
    StartContainer,
    Started,
    StartFailed,
    StopContainer,
    StopRequested,
    Timer,
    TimerFired,
)


class Stage(Enum):
    """Where a pod is in its life; see the module's text."""

    PREPARING = "preparing"
    INITIALIZING = "initializing"
    RUNNING = "running"
    STOPPING = "stopping"
    RELEASING = "releasing"
    FINISHED = "finished"


class ContainerStage(Enum):
    """Where a container is: not started (or waiting to be started again), on its way up, up, ended."""

    WAITING = "waiting"
    STARTING = "starting"
    UP = "up"
    DOWN = "down"


WAITING, STARTING, UP, DOWN = ContainerStage

# Seconds between two looks at a claim that was added to a running pod: while the scheduler has it, and while a driver fails.
_LONGEST_WAIT, _LONGEST_RETRY = 3.0, 60.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a container that keeps failing is started again."""

    first_seconds: float = 10.0
    longest_seconds: float = 300.0
    reset_after_seconds: float = 600.0  # a container that ran this long counts as new

    def after(self, failures: int) -> float:
        """Return the pause before the next start; the first restart is at once."""
        if failures <= 1:
            return 0.0
        return float(min(self.first_seconds * 2.0 ** (failures - 2), self.longest_seconds))


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
    stage: ContainerStage = WAITING
    attempt: int = 0  # restarts so far
    started_at: float = 0.0
    has_started: bool = False  # the startup probe, if any, has succeeded
    is_ready: bool = False
    is_stopping: bool = False
    failures: int = 0  # in a row, for the backoff
    waiting_reason: str = ""  # set: a timer will start it
    waiting_message: str = ""
    ended: Ended | None = None  # the current end, when DOWN
    last_ended: Ended | None = None  # the end before this run

    @property
    def is_active(self) -> bool:
        """Return whether a process may exist."""
        return self.stage in (STARTING, UP)

    @property
    def is_initialized(self) -> bool:
        """Return whether the next init container may start."""
        if self.is_sidecar:
            return self.stage is UP and self.has_started
        return self.stage is DOWN and self.ended is not None and self.ended.exit_code == 0

    def come_up(self, started_at: float) -> None:
        """Note that its process runs."""
        self.stage, self.started_at = UP, started_at
        self.waiting_reason = self.waiting_message = ""
        self.has_started = self.spec.startup_probe is None
        self.is_ready = self.has_started and self.spec.readiness_probe is None

    def go_down(self, exit_code: int, reason: str, finished_at: float) -> None:
        """Note how its process ended."""
        self.stage, self.is_ready, self.is_stopping = DOWN, False, False
        reason = reason or ("Completed" if exit_code == 0 else "Error")
        self.ended = Ended(exit_code, reason, self.started_at or finished_at, finished_at, self.attempt)


@dataclass(slots=True)
class PodMachine:
    """One pod; see the module's text."""

    pod: RunPod
    backoff: Backoff = field(default_factory=Backoff)
    stage: Stage = Stage.PREPARING
    init: list[ContainerState] = field(default_factory=list)
    main: list[ContainerState] = field(default_factory=list)
    is_deleted: bool = False
    is_busy_with_claims: bool = False  # a prepare or unprepare is under way
    failed_reason: str = ""
    failed_message: str = ""
    waiting_reason: str = ""  # why nothing runs yet
    prepare_failures: int = 0
    grace_seconds: float = 30.0
    needs_claims: bool = False
    observed_generation: int = 0  # of the pod: it holds no claim that was not in its list then
    claims_have_changed: bool = False  # while something was under way: look again after it
    claims_problem: str | None = None  # why a claim that was added is not usable yet; None: none ever was

    @classmethod
    def of(cls, pod: RunPod, backoff: Backoff | None = None) -> PodMachine:
        """Make the machine of a pod; feed it `Restored` next."""
        return cls(
            pod=pod,
            backoff=backoff or Backoff(),
            init=[
                ContainerState(spec, is_init=True, is_sidecar=spec.restart_policy == "Always")
                for spec in pod.spec.init_containers
            ],
            main=[ContainerState(spec) for spec in pod.spec.containers],
            grace_seconds=pod.grace_seconds,
            # One that changed may have lost its last claim while no agent was here to release it.
            needs_claims=bool(
                pod.spec.resource_claims
                or pod.status.extended_resource_claim_status
                or pod.metadata.generation > 1
            ),
        )

    @property
    def containers(self) -> list[ContainerState]:
        """All containers, init ones first."""
        return [*self.init, *self.main]

    def find(self, name: str) -> ContainerState | None:
        """Return a container by name."""
        return next((state for state in self.containers if state.spec.name == name), None)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event and return what to do."""
        if isinstance(event, _CLAIM_ANSWERS):
            self.is_busy_with_claims = False
        if isinstance(event, ClaimsPrepared | PrepareFailed):
            self.observed_generation = max(self.observed_generation, event.generation)
        container = None
        if isinstance(event, _CONTAINER_EVENTS):
            container = self.find(event.name)
            if container is None or container.attempt != event.attempt:
                return []
            if container.stage not in _EXPECTED[type(event)]:
                return []
        name = event.timer if isinstance(event, TimerFired) else type(event)
        handler = TRANSITIONS.get((self.stage, name))
        return list(handler(self, event, container, now)) if handler is not None else []

    # --- handlers: each changes the state and yields instructions -------------------

    def _restore(self, event: Restored, _: None, now: float) -> Iterator[Instruction]:
        for found in event.containers:
            state = self.find(found.name)
            if state is None or found.attempt < state.attempt:
                continue
            state.attempt = found.attempt
            state.come_up(found.started_at)
            if found.exit_code is not None:
                state.go_down(found.exit_code, "", found.finished_at or now)
        if self.is_deleted:
            yield from self._begin_stopping()
        elif self.needs_claims:
            yield from self._prepare()
        else:
            yield from self._initialize(event, None, now)

    def _prepare(self, *_: object) -> Iterator[Instruction]:
        if not self.is_busy_with_claims:
            self.is_busy_with_claims = True
            # One that has run has what it started with; a claim that was added since need not be there yet.
            yield PrepareClaims(is_running=any(state.started_at for state in self.containers))

    def _initialize(self, event: Event, _: None, now: float) -> Iterator[Instruction]:
        self.stage, self.waiting_reason = Stage.INITIALIZING, ""
        for state in self.containers:
            if state.stage is UP:
                yield Probe(state.spec, state.attempt)
        yield from self._advance(now)
        if self.observed_generation > 1 and self.stage in _WORKING:
            yield from self._take_change()

    # Claims that come and go while the pod runs: docs/adr/0023-devices-after-pod-start.md

    def _note_change(self, *_: object) -> Iterator[Instruction]:
        self.needs_claims = self.claims_have_changed = True
        yield from ()

    def _change(self, *_: object) -> Iterator[Instruction]:
        self.needs_claims, self.prepare_failures = True, 0
        self.claims_have_changed = self.is_busy_with_claims
        yield from self._prepare_change()

    def _prepare_change(self, *_: object) -> Iterator[Instruction]:
        if not self.is_busy_with_claims:
            self.is_busy_with_claims = True
            yield PrepareClaims(is_running=True)

    def _take_change(self, *_: object) -> Iterator[Instruction]:
        self.claims_problem, self.prepare_failures = "", 0
        yield Report()
        if self.claims_have_changed:
            yield from self._change()

    def _retry_change(self, event: PrepareFailed, _: None, now: float) -> Iterator[Instruction]:
        self.prepare_failures += 1
        self.claims_problem = event.reason
        if not event.is_waiting:
            yield RecordEvent("FailedPrepareDynamicResources", event.reason, is_warning=True)
        yield Report()
        if self.claims_have_changed:
            yield from self._change()
        else:
            longest = _LONGEST_WAIT if event.is_waiting else _LONGEST_RETRY
            yield SetTimer(Timer.PREPARE, min(0.1 * 2.0 ** min(self.prepare_failures, 16), longest))

    def _retry_prepare(self, event: PrepareFailed, _: None, now: float) -> Iterator[Instruction]:
        if event.is_waiting and any(state.started_at for state in self.containers):
            yield from self._initialize(event, None, now)
            yield from self._retry_change(event, None, now)
            return
        self.prepare_failures += 1
        self.waiting_reason = "ContainerCreating"
        yield RecordEvent("FailedPrepareDynamicResources", event.reason, is_warning=True)
        yield Report()
        if event.is_final:
            yield from self._fail("UnexpectedAdmissionError", event.reason)
        else:
            yield SetTimer(Timer.PREPARE, min(0.5 * 2.0**self.prepare_failures, 60.0))

    def _take_start(self, event: Started, state: ContainerState, now: float) -> Iterator[Instruction]:
        state.come_up(now)
        yield Probe(state.spec, state.attempt)
        yield from self._advance(now)
        yield Report()

    def _stop_late_start(self, event: Started, state: ContainerState, now: float) -> Iterator[Instruction]:
        # It was on its way up when the end was decided.
        state.come_up(now)
        state.is_stopping = False
        yield from self._continue_stopping()

    def _retry_start(self, event: StartFailed, state: ContainerState, now: float) -> Iterator[Instruction]:
        yield from self._note_failed_start(event, state)
        state.failures += 1
        # A start that fails is tried again whatever the policy: nothing has run yet.
        pause = max(self.backoff.after(state.failures + 1), 0.5)
        yield SetTimer(Timer.START, pause, event.name)

    def _drop_start(self, event: StartFailed, state: ContainerState, now: float) -> Iterator[Instruction]:
        yield from self._note_failed_start(event, state)
        yield from self._continue_stopping()

    def _note_failed_start(self, event: StartFailed, state: ContainerState) -> Iterator[Instruction]:
        state.stage, state.started_at = WAITING, 0.0
        state.waiting_reason, state.waiting_message = event.reason, event.message
        yield RecordEvent("Failed", f"container {event.name}: {event.message}", is_warning=True)
        yield Report()

    def _note_exit(self, event: Exited, state: ContainerState, now: float) -> Iterator[Instruction]:
        is_reset = now - (state.started_at or now) >= self.backoff.reset_after_seconds
        state.go_down(event.exit_code, event.reason, now)
        state.failures = 1 if is_reset else state.failures + 1
        yield Report()

    def _take_exit(self, event: Exited, state: ContainerState, now: float) -> Iterator[Instruction]:
        yield from self._note_exit(event, state, now)
        yield from self._restart_or_end(state, now)

    def _take_last_exit(self, event: Exited, state: ContainerState, now: float) -> Iterator[Instruction]:
        yield from self._note_exit(event, state, now)
        yield from self._continue_stopping()

    def _take_probe(self, event: Probed, state: ContainerState, now: float) -> Iterator[Instruction]:
        if state.is_stopping:
            return
        if event.kind == "readiness":
            state.is_ready = event.is_success and state.has_started
        elif event.kind == "startup" and event.is_success:
            state.has_started = True
            state.is_ready = state.spec.readiness_probe is None
            yield from self._advance(now)
        elif not event.is_success:
            yield from self._kill_unhealthy(event, state)
        yield Report()

    def _kill_unhealthy(self, event: Probed, state: ContainerState) -> Iterator[Instruction]:
        said = f"container {event.name}: {event.kind} probe failed: {event.message}"
        yield RecordEvent("Unhealthy", said, is_warning=True)
        probe = state.spec.startup_probe if event.kind == "startup" else state.spec.liveness_probe
        own_grace = probe.termination_grace_period_seconds if probe else None
        state.is_stopping, state.is_ready = True, False
        yield RecordEvent(
            "Killing", f"container {event.name} failed its {event.kind} probe and will be restarted"
        )
        grace = self.grace_seconds if own_grace is None else float(own_grace)
        yield StopContainer(state.spec, state.attempt, grace)

    def _start_again(self, event: TimerFired, _: None, now: float) -> Iterator[Instruction]:
        state = self.find(event.container)
        if state is not None and not state.is_active:
            yield from self._start(state)

    def _exceed_deadline(self, *_: object) -> Iterator[Instruction]:
        yield from self._fail(
            "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
        )

    def _take_stop(self, event: StopRequested, _: None, now: float) -> Iterator[Instruction]:
        self._note_stop(event)
        if event.reason:
            yield from self._fail(event.reason, event.message)
        else:
            yield from self._begin_stopping()

    def _hasten_stop(self, event: StopRequested, _: None, now: float) -> Iterator[Instruction]:
        is_shorter = event.grace_seconds < self.grace_seconds
        self._note_stop(event)
        if event.reason:
            yield from self._fail(event.reason, event.message)
        elif is_shorter or event.grace_seconds == 0:
            for state in self.containers:
                if state.stage is UP:
                    yield StopContainer(state.spec, state.attempt, event.grace_seconds, is_hastened=True)

    def _remove_deleted(self, event: StopRequested, _: None, now: float) -> Iterator[Instruction]:
        self._note_stop(event)
        if self.is_deleted:
            yield Remove()

    def _note_stop(self, event: StopRequested) -> None:
        self.is_deleted = self.is_deleted or not event.reason
        self.grace_seconds = event.grace_seconds

    def _finish(self, *_: object) -> Iterator[Instruction]:
        self.stage = Stage.FINISHED
        yield Report()
        if self.is_deleted:
            yield Remove()

    def _retry_release(self, event: ReleaseFailed, _: None, now: float) -> Iterator[Instruction]:
        yield RecordEvent("FailedUnprepareDynamicResources", event.reason, is_warning=True)
        yield SetTimer(Timer.RELEASE, 2.0)

    # --- going forward ----------------------------------------------------------------

    def _advance(self, now: float) -> Iterator[Instruction]:
        """Start what may be started now, and notice when all is done."""
        if self.stage is Stage.INITIALIZING:
            blocking = next((state for state in self.init if not state.is_initialized), None)
            if blocking is not None:
                yield from self._start_or_judge([blocking], now)
                return
            self.stage = Stage.RUNNING
            yield from self._start_or_judge(
                (state for state in self.main if state.stage is WAITING or self._is_restarted(state)), now
            )
            yield Report()
        if self.stage is Stage.RUNNING and self.main and all(map(self._is_over, self.main)):
            yield from self._begin_stopping()

    def _start_or_judge(self, states: Iterable[ContainerState], now: float) -> Iterator[Instruction]:
        """Start containers that wait for their turn; one that a previous agent left ended is judged."""
        for state in states:
            if state.waiting_reason:
                continue  # a timer will start it
            if state.stage is WAITING:
                yield from self._start(state)
            elif state.stage is DOWN:
                yield from self._restart_or_end(state, now)

    def _restart_or_end(self, state: ContainerState, now: float) -> Iterator[Instruction]:
        pause = self.backoff.after(state.failures)
        if self._is_restarted(state) and pause:
            state.waiting_reason = "CrashLoopBackOff"
            state.waiting_message = f"back-off {pause:.0f}s restarting failed container {state.spec.name}"
            yield RecordEvent("BackOff", state.waiting_message, is_warning=True)
            yield SetTimer(Timer.START, pause, state.spec.name)
        elif self._is_restarted(state):
            yield from self._start(state)
        elif state.is_init and state.ended is not None and state.ended.exit_code != 0:
            yield from self._fail("", "")
        else:
            yield from self._advance(now)

    def _is_restarted(self, state: ContainerState) -> bool:
        """Return whether a container that ended is started again."""
        if state.stage is not DOWN or state.ended is None:
            return False
        policy, has_failed = self.pod.spec.restart_policy, state.ended.exit_code != 0
        if state.is_init and not state.is_sidecar:
            return has_failed and policy != "Never"
        return state.is_sidecar or policy == "Always" or (policy == "OnFailure" and has_failed)

    def _is_over(self, state: ContainerState) -> bool:
        return state.stage is DOWN and not self._is_restarted(state)

    def _start(self, state: ContainerState) -> Iterator[Instruction]:
        if state.stage is DOWN:
            state.last_ended, state.ended = state.ended, None
            state.attempt += 1
        state.stage, state.has_started, state.is_ready = STARTING, False, False
        state.waiting_reason = state.waiting_message = ""
        yield StartContainer(state.spec, state.attempt)

    # --- coming to an end ---------------------------------------------------------------

    def _fail(self, reason: str, message: str) -> Iterator[Instruction]:
        self.failed_reason, self.failed_message = reason or self.failed_reason, message or self.failed_message
        if self.stage in _ACTIVE:
            yield from self._begin_stopping()

    def _begin_stopping(self) -> Iterator[Instruction]:
        self.stage = Stage.STOPPING
        yield Report()
        yield from self._continue_stopping()

    def _continue_stopping(self, *_: object) -> Iterator[Instruction]:
        """Stop containers first, then sidecars in reverse order, then unprepare the claims."""
        if self.stage is not Stage.STOPPING:
            return
        others = [state for state in self.containers if not state.is_sidecar and state.is_active]
        sidecars = [state for state in reversed(self.init) if state.is_sidecar and state.is_active]
        for state in others or sidecars[:1]:
            if state.stage is UP and not state.is_stopping:
                state.is_stopping = True
                yield StopContainer(state.spec, state.attempt, self.grace_seconds)
        if not others and not sidecars and not self.is_busy_with_claims:
            self.stage = Stage.RELEASING
            yield from self._release()

    def _release(self, *_: object) -> Iterator[Instruction]:
        if not self.needs_claims:
            yield from self._finish()
        elif not self.is_busy_with_claims:
            self.is_busy_with_claims = True
            yield ReleaseClaims()

    # --- what it looks like from outside ------------------------------------------

    @property
    def phase(self) -> str:
        """Return the pod's phase for its status."""
        if self.stage is Stage.FINISHED:
            return self._final_phase()
        # As for kubelet: running begins with the first container, not when it shall start.
        return "Running" if any(state.started_at for state in self.main) else "Pending"

    def _final_phase(self) -> str:
        if self.failed_reason or self.failed_message:
            return "Failed"
        ends = [state.ended for state in self.containers if not state.is_sidecar]
        if any(ended is None or ended.exit_code != 0 for ended in ends):
            return "Failed"
        return "Succeeded"


# --- the transition table ---------------------------------------------------------------

_ACTIVE = (Stage.PREPARING, Stage.INITIALIZING, Stage.RUNNING)
_WORKING = (Stage.INITIALIZING, Stage.RUNNING)
_CLAIM_ANSWERS = (ClaimsPrepared, PrepareFailed, ClaimsReleased, ReleaseFailed)
_CONTAINER_EVENTS = (Started, StartFailed, Exited, Probed)
# In which stages a container can be when this happens to it.
_EXPECTED: dict[type, tuple[ContainerStage, ...]] = {
    Started: (STARTING,),
    StartFailed: (STARTING,),
    Exited: (STARTING, UP),
    Probed: (UP,),
}
_Handler = Callable[[PodMachine, Any, Any, float], Iterator[Instruction]]
_ROWS: list[tuple[tuple[Stage, ...], type | Timer, _Handler]] = [
    ((Stage.PREPARING,), Restored, PodMachine._restore),
    ((Stage.PREPARING,), ClaimsPrepared, PodMachine._initialize),
    ((Stage.PREPARING,), ClaimsChanged, PodMachine._note_change),
    (_WORKING, ClaimsChanged, PodMachine._change),
    (_WORKING, ClaimsPrepared, PodMachine._take_change),
    (_WORKING, PrepareFailed, PodMachine._retry_change),
    (_WORKING, Timer.PREPARE, PodMachine._prepare_change),
    ((Stage.STOPPING,), ClaimsPrepared, PodMachine._continue_stopping),
    ((Stage.PREPARING,), PrepareFailed, PodMachine._retry_prepare),
    ((Stage.STOPPING,), PrepareFailed, PodMachine._continue_stopping),
    (_WORKING, Started, PodMachine._take_start),
    ((Stage.STOPPING,), Started, PodMachine._stop_late_start),
    (_WORKING, StartFailed, PodMachine._retry_start),
    ((Stage.STOPPING,), StartFailed, PodMachine._drop_start),
    ((Stage.PREPARING,), Exited, PodMachine._note_exit),  # found running; judged when the claims are prepared
    (_WORKING, Exited, PodMachine._take_exit),
    ((Stage.STOPPING,), Exited, PodMachine._take_last_exit),
    ((*_WORKING, Stage.STOPPING), Probed, PodMachine._take_probe),
    ((Stage.PREPARING,), Timer.PREPARE, PodMachine._prepare),
    (_WORKING, Timer.START, PodMachine._start_again),
    (_ACTIVE, Timer.DEADLINE, PodMachine._exceed_deadline),
    ((Stage.RELEASING,), Timer.RELEASE, PodMachine._release),
    (_ACTIVE, StopRequested, PodMachine._take_stop),
    ((Stage.STOPPING, Stage.RELEASING), StopRequested, PodMachine._hasten_stop),
    ((Stage.FINISHED,), StopRequested, PodMachine._remove_deleted),
    ((Stage.RELEASING,), ClaimsReleased, PodMachine._finish),
    ((Stage.RELEASING,), ReleaseFailed, PodMachine._retry_release),
]
TRANSITIONS: dict[tuple[Stage, type | Timer], _Handler] = {
    (stage, event): handler for stages, event, handler in _ROWS for stage in stages
}
