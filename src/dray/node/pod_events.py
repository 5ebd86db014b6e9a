"""Events and instructions of a pod's state machine (`machine`).

Events are facts that the agent reports after they happened. Instructions are what the agent shall do; each says which
event answers it. Both are values: they can be recorded, compared and replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dray.api.podspec import RunContainer


class Timer(StrEnum):
    """What a timer is for."""

    PREPARE = "prepare"  # prepare the claims again
    START = "start"  # start a container again
    DEADLINE = "deadline"  # activeDeadlineSeconds
    RELEASE = "release"  # unprepare the claims again


# --- events -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restored:
    """The pod is here; these containers of it were found (none for a new pod)."""

    containers: Sequence[Found] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A container that the agent found when it started."""

    name: str
    attempt: int
    started_at: float
    exit_code: int | None = None  # None: it still runs
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class ClaimsChanged:
    """The list of claims of a pod that is here has changed."""


@dataclass(frozen=True, slots=True)
class ClaimsPrepared:
    """Every claim of the pod is usable."""

    generation: int = 0  # of the pod: claims that were not in its list then are released


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """A claim is not usable, and why."""

    reason: str
    is_final: bool = False  # trying again is of no use
    is_waiting: bool = False  # nothing is wrong: a claim is not allocated for the pod yet
    generation: int = 0  # as in ClaimsPrepared; 0: claims that it no longer lists could not be released


@dataclass(frozen=True, slots=True)
class Started:
    """A container runs."""

    name: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A container could not be started."""

    name: str
    attempt: int
    reason: str  # CreateContainerError, …
    message: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A container has ended."""

    name: str
    attempt: int
    exit_code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe changed: `kind` is startup, readiness or liveness."""

    name: str
    attempt: int
    kind: str
    is_success: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer has run out."""

    timer: Timer
    container: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The pod is deleted (or evicted, with a reason)."""

    grace_seconds: float
    reason: str = ""  # set: the pod fails with it
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClaimsReleased:
    """Every claim of the pod is unprepared."""


@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    """A claim could not be unprepared; it will be tried again."""

    reason: str


Event = (
    Restored | ClaimsChanged | ClaimsPrepared | PrepareFailed | Started | StartFailed | Exited | Probed | TimerFired | StopRequested
    | ClaimsReleased | ReleaseFailed
)  # fmt: skip


# --- instructions ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareClaims:
    """Make the claims usable; answer ClaimsPrepared or PrepareFailed.

    With `is_running` each claim is prepared for itself, and what the pod does not list any more is released first.
    """

    is_running: bool = False


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start a container; answer Started or StartFailed, later Exited."""

    container: RunContainer
    attempt: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Begin to probe a container; answer Probed whenever the result changes."""

    container: RunContainer
    attempt: int


@dataclass(frozen=True, slots=True)
class StopContainer:
    """End a container; its Exited follows."""

    container: RunContainer
    attempt: int
    grace_seconds: float
    is_hastened: bool = False  # it is being stopped already, and shall end sooner


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Answer TimerFired after some time; a timer of the same kind and container is replaced."""

    timer: Timer
    seconds: float
    container: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseClaims:
    """Unprepare the claims; answer ClaimsReleased or ReleaseFailed."""


@dataclass(frozen=True, slots=True)
class Report:
    """Write the pod's status: it has changed."""


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Record a Kubernetes event about the pod."""

    reason: str
    message: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """The pod is over: take it from the API server if it was deleted, and forget its files."""


Instruction = (
    PrepareClaims
    | StartContainer
    | Probe
    | StopContainer
    | SetTimer
    | ReleaseClaims
    | Report
    | RecordEvent
    | Remove
)
