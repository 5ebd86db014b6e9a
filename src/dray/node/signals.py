"""What a pod's machine hears, and what it says: events and instructions.

Events are facts, told by the agent after they happened. Instructions are wishes, carried out
by the agent; each says which event answers it. Both are values: a story of a pod can be written
down, compared, and told again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dray.api.podspec import RunContainer

# --- events -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restored:
    """The pod is here; these containers of it were found (none for a new pod)."""

    containers: Sequence[Found] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A container that a previous life of the agent left."""

    name: str
    attempt: int
    started_at: float
    exit_code: int | None = None  # None: it still runs
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class ClaimsPrepared:
    """Every claim of the pod is usable."""


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """A claim is not usable, and why."""

    reason: str
    is_final: bool = False  # no use to try again


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
    """A probe changed its mind: `kind` is startup, readiness or liveness."""

    name: str
    attempt: int
    kind: str
    is_well: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class Due:
    """A timer that the machine asked for has run out."""

    what: str


@dataclass(frozen=True, slots=True)
class StopWanted:
    """The pod is deleted (or evicted, with a reason)."""

    grace_seconds: float
    reason: str = ""  # set: the pod fails with it
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClaimsReleased:
    """No claim is held any more."""


@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    """A claim could not be given back; it will be tried again."""

    reason: str


Event = (
    Restored | ClaimsPrepared | PrepareFailed | Started | StartFailed | Exited | Probed | Due | StopWanted
    | ClaimsReleased | ReleaseFailed
)  # fmt: skip


# --- instructions ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareClaims:
    """Make the claims usable; answer ClaimsPrepared or PrepareFailed."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start a container; answer Started or StartFailed, later Exited."""

    container: RunContainer
    attempt: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Begin to probe a container; answer Probed on every change of mind."""

    container: RunContainer
    attempt: int


@dataclass(frozen=True, slots=True)
class StopContainer:
    """End a container; its Exited follows."""

    container: RunContainer
    attempt: int
    grace_seconds: float
    is_unwell: bool = False  # a liveness or startup probe gave up


@dataclass(frozen=True, slots=True)
class Wake:
    """Answer Due(what) after some time."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ReleaseClaims:
    """Give the claims back; answer ClaimsReleased or ReleaseFailed."""


@dataclass(frozen=True, slots=True)
class Report:
    """Write the pod's status: it has changed."""


@dataclass(frozen=True, slots=True)
class Note:
    """Tell the user by an event on the pod."""

    reason: str
    message: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """The pod is over: take it from the API server if it was deleted, and forget its files."""


Instruction = (
    PrepareClaims | StartContainer | Probe | StopContainer | Wake | ReleaseClaims | Report | Note | Remove
)
