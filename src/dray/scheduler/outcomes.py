"""What placing a pod can end with: a node for it, or the reasons why there is none and the evictions that would help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dray.api.core import Pod
from dray.api.resource import AllocationResult, ResourceClaim
from dray.scheduler.amounts import Requests
from dray.scheduler.queue import Hint
from dray.scheduler.state import PodUse
from dray.scheduler.volumes import NO_BINDINGS, VolumeBindings


@dataclass(frozen=True, slots=True)
class Preemption:
    """Evict these pods and the node will take the preemptor, or the nodes all members of a gang."""

    node: str
    victims: tuple[PodUse, ...]
    broken_budgets: int  # pods whose eviction exceeds a disruption budget
    nominations: tuple[tuple[Pod, str], ...] = ()  # preemptor -> its node; several for a gang


@dataclass(frozen=True, slots=True)
class Placement:
    """A node for the pod, and the allocations of its pending claims there. Nothing is taken yet."""

    node: str
    claims: tuple[ResourceClaim, ...] = ()  # those that get an allocation
    allocations: tuple[AllocationResult, ...] = ()  # in the order of the claims
    extra: Requests = ()  # node resources that devices cost
    volumes: VolumeBindings = NO_BINDINGS  # what must be written for its volumes first


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """No node takes the pod now. Falsy."""

    hints: frozenset[Hint]  # what can help
    explain: Callable[[], str] = field(repr=False)  # one line with the counts per reason
    stages: tuple[tuple[str, int], ...] = ()  # (stage, nodes still possible after it), in order
    is_fatal: bool = False  # an error that no node can cure
    gave_up: bool = False  # a search was cut short: there may be a place that we have no time to find
    about: str = ""  # what else of the situation is news when it changes
    preemption: Preemption | None = None  # the evictions that would help

    @property
    def cause(self) -> str:
        """What people should know at once when it changes; mere counts per reason are not part of it."""
        return self.about + next((stage for stage, left in self.stages if not left), "")

    def __bool__(self) -> bool:
        return False
