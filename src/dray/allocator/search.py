"""The search: depth first, first solution in upstream's order, without upstream's detours.

Upstream walks claim by claim, request by request, device by device, and takes back what
does not work out; the first complete assignment wins. So does this search, and it
returns the same assignment; it only leaves out subtrees that cannot hold a solution:

  * too few candidates are left for the request (counted, not tried);
  * a necessary condition of all remaining requests fails (`bounds`);
  * an interchangeable device has failed at the same place (`Problem.symmetry_classes`);
  * the same remaining requests in the same state have failed before (`_refused`);
  * the request has no influence on what failed after it (`NodeRequest.detached`).

What upstream would *meet* in such a subtree matters as well: looking at a device can end
the whole attempt with an error. A subtree is left out only if none of the requests in it
can meet one (`may_fail`); then leaving it out cannot be noticed.

The search runs straight at first. At the first dead end it returns to the root, asks
the bounds once, and starts again with all of the above switched on: most queries
never get there, and for those that do a few steps are repeated.

Results: FOUND; NO; EXCEEDED (more than 32 devices in a claim: other devices cannot help,
only an alternative with fewer can); HOPELESS (a later request failed, whatever is taken
here). Invariant: after NO, EXCEEDED and HOPELESS the state is as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dray.allocator.bounds import refuted
from dray.allocator.capacity import Need
from dray.allocator.compiled_claims import RESULTS_MAX, Fatal
from dray.allocator.constraints import ConstraintState
from dray.allocator.pool_matches import Value
from dray.allocator.problem import FatalFound, NodeSubrequest, Problem, positions, unsatisfied_constraint
from dray.devices import Groups, admits_groups, narrow_groups

NO: Final = 0
FOUND: Final = 1
EXCEEDED: Final = 2
HOPELESS: Final = 3

_FRAMES_OF_CALLERS = 600
_LOOK_EVERY = 256  # steps between two looks at the clock; some milliseconds
_LOOK_OFTEN = 16  # the same while an event loop waits: a step may take a tenth of a millisecond
_LATE_STEPS = 16  # made in any case, beside one for each device that is wanted
_MEMO_FROM = 64  # steps before failed states are remembered: short searches do not pay for it


@dataclass(frozen=True, slots=True)
class Pick:
    """One device given to one subrequest."""

    subrequest: int
    position: int
    need: Need | None  # set for shares


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a search found: the picks per claim and the alternatives taken, or nothing."""

    picks: tuple[tuple[Pick, ...], ...] | None
    chosen: tuple[int, ...]  # request -> subrequest
    steps: int
    gave_up: bool = False


_USUAL_FRAMES = sys.getrecursionlimit()
_deep_searches: list[int] = []  # frames that searches need now, in whatever thread


@contextmanager
def _recursion_limit_for(problem: Problem) -> Iterator[None]:
    """Let the interpreter recurse as deep as the largest pod needs: one frame a device, five a request.

    Calls from Python to Python need no C stack, so a higher limit is safe. It holds for all threads, so the
    last search that needs it restores it.
    """
    devices = sum(max(subrequest.count for subrequest in request.subrequests) for request in problem.requests)
    needed = min(devices, 100_000) + 5 * len(problem.requests) + _FRAMES_OF_CALLERS
    if needed <= _USUAL_FRAMES:
        yield
        return
    _deep_searches.append(needed)
    if needed > sys.getrecursionlimit():
        sys.setrecursionlimit(needed)
    try:
        yield
    finally:
        _deep_searches.remove(needed)
        if not _deep_searches:
            sys.setrecursionlimit(_USUAL_FRAMES)


def _easy_steps(problem: Problem) -> int:
    """Return how many steps are made also when it is late: enough for a search that meets no dead end."""
    devices = sum(max(subrequest.count for subrequest in request.subrequests) for request in problem.requests)
    return min(_LATE_STEPS + devices, _LOOK_EVERY)


class _DeadEnd(Exception):
    """The straight run met its first dead end."""


class _OutOfSteps(Exception):
    """The budget is spent, or the time is over."""


class SearchInterrupted(Exception):
    """The caller does not wait any longer: search again where there is time."""


class Search:
    """One attempt; use once."""

    def __init__(
        self,
        problem: Problem,
        budget: int,
        is_late: Callable[[], bool] | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> None:
        """Prepare. `is_late` ends the search without an answer, `is_over` raises SearchInterrupted."""
        self.problem = problem
        self.steps = 0
        self._budget = budget
        self._is_late = is_late
        self._is_over = is_over
        self._interval = _LOOK_EVERY if is_over is None else _LOOK_OFTEN
        # After so many steps we look at the limits next; what is easy is answered even when it is late.
        self._look = budget
        if is_late is not None or is_over is not None:
            is_too_late = is_late is not None and is_late()
            self._look = min(budget, _easy_steps(problem) if is_too_late else self._interval)
        self._straight = True
        self._refused: set[Hashable] = set()
        self._reset()

    def _reset(self) -> None:
        problem = self.problem
        n_claims = len(problem.compiled.requests_by_claim)
        self.taken = 0  # devices taken by any claim of this attempt
        self.taken_by = [0] * n_claims
        self.left = list(problem.counters)
        self.groups: dict[int, Groups] = dict(problem.groups)
        self.allocating: dict[int, dict[str, int]] = {}  # position -> capacity taken in this attempt
        self.constraints = [
            ConstraintState(c.claim, distinct=c.distinct) for c in problem.compiled.constraints
        ]
        self.results: list[list[Pick]] = [[] for _ in range(n_claims)]
        self.chosen = [request.subrequests[0].subrequest.number for request in problem.requests]

    def run(self) -> SearchOutcome:
        """Search. Raises FatalFound where upstream would end the attempt with an error, and SearchInterrupted."""
        gave_up = False
        try:
            with _recursion_limit_for(self.problem):
                found = self._walk()
        except (_OutOfSteps, RecursionError):
            found, gave_up = NO, True
        if found != FOUND:
            return SearchOutcome(None, (), self.steps, gave_up)
        return SearchOutcome(tuple(tuple(picks) for picks in self.results), tuple(self.chosen), self.steps)

    def _walk(self) -> int:
        try:
            return self._request(0)
        except _DeadEnd:
            self._reset()
            self._straight = False
            return self._request(0)

    def _look_at_limits(self) -> None:
        if self.steps > self._budget or (self._is_late is not None and self._is_late()):
            raise _OutOfSteps
        if self._is_over is not None and self._is_over():
            raise SearchInterrupted
        self._look = min(self._budget, self._look + self._interval)

    # --- walking ---------------------------------------------------------------

    def _request(self, number: int) -> int:
        requests = self.problem.requests
        if number == len(requests):
            return FOUND
        request = requests[number]
        key: Hashable = None
        if not self._straight and self.steps > _MEMO_FROM:
            key = self._state(number)
            if key in self._refused:
                return NO
        found = NO
        if request.has_alternatives:
            found = EXCEEDED
            for subrequest in request.subrequests:
                result = self._subrequest(number, subrequest)
                if result == FOUND:
                    self.chosen[number] = subrequest.subrequest.number
                    return FOUND
                if result == HOPELESS:
                    found = NO
                    break
                if result == NO:
                    found = NO
        else:
            found = self._subrequest(number, request.subrequests[0])
            if found == HOPELESS:
                found = NO
        if found == NO and key is not None:
            self._refused.add(key)
        if found == EXCEEDED and request.opens_claim:
            # Another choice in an earlier claim may leave room for a smaller alternative here.
            return NO
        return found

    def _subrequest(self, number: int, subrequest: NodeSubrequest) -> int:
        if subrequest.subrequest.wants_all:
            return self._pick_all(number, subrequest) if subrequest.row else NO
        return self._pick(number, subrequest, subrequest.count, 0)

    def _pick(self, number: int, subrequest: NodeSubrequest, wanted: int, start: int) -> int:
        """Take `wanted` more devices for the subrequest, none before position `start`; then go on."""
        self.steps += 1
        if self.steps > self._look:
            self._look_at_limits()
        if not wanted:
            return self._after(number)
        claim = subrequest.subrequest.claim
        if wanted > RESULTS_MAX - len(self.results[claim]):
            return EXCEEDED
        busy = self.taken_by[claim] if subrequest.subrequest.admin else self.problem.dedicated | self.taken
        scan = (subrequest.ok | subrequest.fatal_mask) & ~busy >> start << start
        fatal = scan & subrequest.fatal_mask
        if not scan & subrequest.errors and scan.bit_count() < wanted:
            return NO
        if not self._straight and refuted(self, number, subrequest, wanted, scan):
            return NO
        failed: set[int] = set()
        symmetry_classes = None if self._straight else self.problem.symmetry_classes
        while scan:
            low = scan & -scan
            scan ^= low
            position = low.bit_length() - 1
            if low & fatal:
                raise FatalFound(subrequest.fatal[position], claim, position)
            symmetry_class = -1
            if symmetry_classes is not None and position not in self.allocating:
                symmetry_class = symmetry_classes[position]
                if symmetry_class in failed:
                    continue
            undo = self._place(subrequest, position, must=False)
            if undo is not None:
                result = self._pick(number, subrequest, wanted - 1, position + 1)
                if result == FOUND:
                    return FOUND
                self._undo(undo)
                if result != NO:
                    return result
                if self._straight:
                    raise _DeadEnd
                if not scan & subrequest.errors and scan.bit_count() < wanted:
                    return NO
            if symmetry_class >= 0:
                failed.add(symmetry_class)
        return NO

    def _pick_all(self, number: int, subrequest: NodeSubrequest) -> int:
        """Take exactly the devices of the row; there is no choice."""
        self.steps += 1
        claim = subrequest.subrequest.claim
        if subrequest.count > RESULTS_MAX - len(self.results[claim]):
            return EXCEEDED
        undos = []
        result = NO
        for position in subrequest.row:
            busy = (
                self.taken_by[claim] if subrequest.subrequest.admin else self.problem.dedicated | self.taken
            )
            undo = None
            if not (busy | subrequest.blocked) >> position & 1:
                undo = self._place(subrequest, position, must=True)
            if undo is None:
                break
            undos.append(undo)
        else:
            result = self._after(number)
        if result != FOUND:
            for undo in reversed(undos):
                self._undo(undo)
        return result

    def _after(self, number: int) -> int:
        """Go on with the next request."""
        result = self._request(number + 1)
        if result == NO and self.problem.requests[number].detached and not self.problem.can_exceed:
            return HOPELESS
        return result

    # --- taking and taking back ------------------------------------------------

    def _place(self, subrequest: NodeSubrequest, position: int, *, must: bool) -> _Undo | None:
        """Take a device; None when a counter, group, constraint or capacity forbids it."""
        problem = self.problem
        is_shared = problem.shared >> position & 1
        need = subrequest.needs.get(position)
        if not must and is_shared and not self._has_room(position, need):
            return None
        undo = _Undo(subrequest, position)
        draws = problem.draws.get(position)
        if draws is not None and not (
            is_shared and (problem.held >> position & 1 or position in self.allocating)
        ):
            if not self._draw(undo, draws):
                return None
        for number, column in subrequest.columns:
            value = column[position]
            if isinstance(value, Fatal):
                raise FatalFound(value, subrequest.subrequest.claim, position)
            constraint = self.constraints[number]
            joined = constraint.joined(value) if value is not None else None
            if joined is None:
                self._undo(undo)
                if must:
                    raise FatalFound(
                        unsatisfied_constraint(subrequest.subrequest), subrequest.subrequest.claim, position
                    )
                return None
            undo.values.append((constraint, constraint.value))
            constraint.value = joined
            constraint.members += 1
        if must and (
            subrequest.no_room >> position & 1 or (is_shared and not self._has_room(position, need))
        ):
            self._undo(undo)
            return None
        self._enter(undo, need if is_shared else None, is_shared=bool(is_shared))
        return undo

    def _draw(self, undo: _Undo, draws: tuple[tuple[int, int], ...]) -> bool:
        """Draw from the counters and join the groups; on refusal nothing has changed."""
        problem = self.problem
        if problem.compiled.gates.groups:
            for group_set, groups in problem.group_sets[undo.position]:
                running = self.groups[group_set]
                if not admits_groups(running, groups):
                    self._undo(undo)
                    return False
                undo.groups.append((group_set, running))
                self.groups[group_set] = narrow_groups(running, groups)
        left = self.left
        for counter, nanos in draws:
            left[counter] -= nanos
        undo.draws = draws
        if any(left[counter] < 0 for counter, _ in draws):
            self._undo(undo)
            return False
        return True

    def _has_room(self, position: int, need: Need | None) -> bool:
        allocating = self.allocating.get(position)
        if need is None or not allocating:
            return True
        capacity, used = self.problem.capacity(position)
        return need.fits(capacity, used, allocating)

    def _enter(self, undo: _Undo, need: Need | None, *, is_shared: bool) -> None:
        claim = undo.subrequest.subrequest.claim
        mask = 1 << undo.position
        if is_shared:
            before = undo.capacity = self.allocating.get(undo.position)
            amounts = dict(before) if before else {}
            for name, nanos in need.nanos.items() if need else ():
                amounts[name] = amounts.get(name, 0) + nanos
            self.allocating[undo.position] = amounts
        else:
            self.taken |= mask
            self.taken_by[claim] |= mask
        undo.is_entered = True
        self.results[claim].append(Pick(undo.subrequest.subrequest.number, undo.position, need))

    def _undo(self, undo: _Undo) -> None:
        if undo.is_entered:
            claim = undo.subrequest.subrequest.claim
            self.results[claim].pop()
            mask = 1 << undo.position
            if self.problem.shared & mask:
                if undo.capacity is None:
                    del self.allocating[undo.position]
                else:
                    self.allocating[undo.position] = undo.capacity
            else:
                self.taken_by[claim] &= ~mask
                if not any(taken & mask for taken in self.taken_by):
                    self.taken &= ~mask
        for constraint, value in reversed(undo.values):
            constraint.value = value
            constraint.members -= 1
        for counter, nanos in undo.draws:
            self.left[counter] += nanos
        for group_set, groups in reversed(undo.groups):
            self.groups[group_set] = groups

    # --- remembering -----------------------------------------------------------

    def _state(self, number: int) -> Hashable:
        """Return a key for everything the requests from `number` on can notice."""
        request = self.problem.requests[number]
        symmetry_classes = self.problem.symmetry_classes
        relevant = 0
        for later in self.problem.requests[number:]:
            for subrequest in later.subrequests:
                relevant |= subrequest.row_mask | subrequest.fatal_mask
        if relevant & self.problem.consumers:
            relevant |= self.problem.consumers
        counts: dict[int, int] = {}
        for position in positions(self.taken & relevant):
            counts[symmetry_classes[position]] = counts.get(symmetry_classes[position], 0) + 1
        admin = any(
            subrequest.subrequest.admin
            for later in self.problem.requests[number:]
            for subrequest in later.subrequests
        )
        return (
            number,
            len(self.results[request.claim]),
            tuple(sorted(counts.items())),
            tuple(self.taken_by) if admin else (),
            tuple(self.left) if self.left else (),
            tuple(sorted((s, g) for s, g in self.groups.items() if g is not None)) if self.groups else (),
            tuple(sorted((p, tuple(sorted(a.items()))) for p, a in self.allocating.items())),
            tuple(
                [
                    (constraint.members > 0, constraint.value)
                    for constraint in self.constraints
                    if constraint.claim >= request.claim
                ]
            ),
        )


class _Undo:
    """What one placement changed."""

    __slots__ = ("capacity", "draws", "groups", "is_entered", "position", "subrequest", "values")

    def __init__(self, subrequest: NodeSubrequest, position: int) -> None:
        self.subrequest = subrequest
        self.position = position
        self.draws: tuple[tuple[int, int], ...] = ()
        self.groups: list[tuple[int, Groups]] = []
        self.values: list[tuple[ConstraintState, Value]] = []
        self.capacity: dict[str, int] | None = None
        self.is_entered = False
