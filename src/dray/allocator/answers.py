"""What the allocator answers: a plan, or a refusal that can say why.

Both are cheap to make, because most of them are thrown away: a plan remembers
which devices were picked and builds the API objects when somebody reads
`allocations`; a refusal counts reasons only when somebody reads `reasons`. A plan
describes the hardware at the moment of the query. Reasons are counted from what is
in use when they are read: read them before changing the inventory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dray.api.resource import AllocationResult

SHARED_WITH = "too little left beside shares of "  # before the claims, in the detail of the cause `capacity`


@dataclass(frozen=True, slots=True)
class Reason:
    """So many devices of the node fell to one cause, for one request.

    `cause` is one of: selector, in-use, taint, counters, capacity, constraint, node,
    operations, groups, conditions, error. `detail` names the false sub-expression, the
    claim that holds the devices, the taint, the counter or the attribute.
    """

    cause: str
    detail: str
    devices: int

    def __str__(self) -> str:
        noun = "device" if self.devices == 1 else "devices"
        return f"{self.devices} {noun}: {self.cause}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class RequestReasons:
    """Why one request (or sub-request) got nothing on one node."""

    claim: str  # namespace/name
    request: str  # request or request/subrequest
    wanted: int  # devices asked for; 0 means: all
    devices: int  # devices on the node
    usable: int  # devices that no reason excludes when the request stands alone
    reasons: tuple[Reason, ...]
    relaxation: str  # the single change that would free most; empty when none helps

    def __str__(self) -> str:
        parts = [
            f"request {self.request} of claim {self.claim} wants {self.wanted or 'all'}:"
            f" {self.usable} of {self.devices} usable"
        ]
        parts += [str(reason) for reason in self.reasons]
        if self.relaxation:
            parts.append(f"hint: {self.relaxation}")
        return "; ".join(parts)


class Plan:
    """The devices every claim would get on one node; nothing is taken yet.

    Truthy. Commit with `Allocator.take`, or write the allocations and let the claims come
    back through `Allocator.set_claim`.
    """

    __slots__ = ("_allocations", "_make", "_view", "node", "score", "steps")

    def __init__(
        self,
        node: str,
        steps: int,
        view: object,
        make: Callable[[object], tuple[AllocationResult, ...]],
        score: float = 0.0,
    ) -> None:
        self.node = node
        self.score = score  # how good the policy finds the node with these devices; 0 without a policy
        self.steps = steps  # search steps spent; 0 when an equal node had been answered before
        self._view = view  # the node as it was when the plan was made
        self._make = make
        self._allocations: tuple[AllocationResult, ...] | None = None

    @property
    def allocations(self) -> tuple[AllocationResult, ...]:
        """Return one allocation per claim, in the order of the claims."""
        if self._allocations is None:
            self._allocations = self._make(self._view)
        return self._allocations

    def __repr__(self) -> str:
        return f"Plan(node={self.node!r}, steps={self.steps})"


class Unsatisfied:
    """The claims do not fit on the node. Falsy.

    `error` is set when the node has invalid pools (upstream reports that per node);
    `gave_up` is set when the step budget ran out, so a solution might exist.
    """

    __slots__ = ("_explain", "_reasons", "error", "gave_up", "node", "steps")

    def __init__(
        self,
        node: str,
        steps: int,
        explain: Callable[[], tuple[RequestReasons, ...]],
        *,
        error: str | None = None,
        gave_up: bool = False,
    ) -> None:
        self.node = node
        self.steps = steps
        self.error = error
        self.gave_up = gave_up
        self._explain = explain
        self._reasons: tuple[RequestReasons, ...] | None = None

    def __bool__(self) -> bool:
        return False

    @property
    def reasons(self) -> tuple[RequestReasons, ...]:
        """Return the reasons per request, computed on first use."""
        if self._reasons is None:
            self._reasons = self._explain()
        return self._reasons

    @property
    def summary(self) -> str:
        """Return one line for events and logs, without counting devices."""
        if self.error:
            return self.error
        if self.gave_up:
            return f"gave up after {self.steps} steps"
        return "cannot allocate all claims"

    def __repr__(self) -> str:
        return f"Unsatisfied(node={self.node!r}, {self.summary!r})"


@dataclass(frozen=True)
class NodePlans:
    """The answers for many nodes, in the order asked; iterating yields the plans.

    With `first=n` the search stops after n feasible nodes: the others have no answer.
    `plans` is sorted best first when a policy was given.
    """

    plans: tuple[Plan, ...]
    refusals: Mapping[str, Unsatisfied]  # node -> refusal, each made when it is looked at
    steps: int
    gave_up: frozenset[str] = frozenset()  # nodes whose refusal is for lack of steps, not of devices

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of the feasible nodes."""
        return tuple(plan.node for plan in self.plans)


@dataclass(frozen=True)
class Explanation:
    """Why claims fit where they fit and why not elsewhere, nodes with the same reasons together.

    A node with an error of its own has its reasons as well: whoever counts nodes must count it once.
    """

    fits: tuple[str, ...]  # nodes
    errors: Mapping[str, str]  # node -> per-node error, or "" -> an error fatal for the pod
    reasons: tuple[tuple[tuple[str, ...], tuple[RequestReasons, ...]], ...]  # (nodes, their reasons)

    def lines(self) -> Iterator[str]:
        """Yield the explanation as text for people."""
        if self.fits:
            yield f"fits on {_some(self.fits)}"
        for node, error in self.errors.items():
            yield f"{node or 'every node'}: {error}"
        for nodes, requests in self.reasons:
            yield f"does not fit on {_some(nodes)}"
            for request in requests:
                wanted = f"wants {request.wanted}" if request.wanted else "wants all"
                yield f"  claim {request.claim}, request {request.request} {wanted} of {request.devices} devices,"
                yield f"    {request.usable} usable on its own"
                for reason in request.reasons:
                    yield f"    - {reason}"
                if request.relaxation:
                    yield f"    hint: {request.relaxation}"


def _some(nodes: tuple[str, ...], limit: int = 3) -> str:
    if len(nodes) <= limit:
        return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}: {', '.join(nodes)}"
    return f"{len(nodes)} nodes: {', '.join(nodes[:limit])}, …"
