"""The search: depth first, first solution in upstream's order, without upstream's detours.

Upstream walks claim by claim, request by request, device by device, and takes back what
does not work out; the first complete assignment wins. So does this search, and it
returns the same assignment; it only leaves out subtrees that cannot hold a solution:

  * too few candidates are left for the request (counted, not tried);
  * a necessary condition of all remaining requests fails (`bounds`);
  * an interchangeable device has failed at the same place (`Problem.twins`);
  * the same question with the same rest has failed before (`_refused`);
  * the request has no influence on what failed after it (`NodeRequest.detached`).

What upstream would *meet* in such a subtree matters as well: looking at a device can end
the whole attempt with an error. A subtree is left out only if none of the requests in it
can meet one (`may_fail`); then leaving it out cannot be noticed.

The search runs straight at first. At the first dead end it returns to the root, asks
the bounds once, and starts again with all of the above switched on: most questions
never get there, and for those that do a few steps are repeated.

Results: FOUND; NO; EXCEEDED (more than 32 devices in a claim: other devices cannot help,
only an alternative with fewer can); HOPELESS (a later request failed, whatever is taken
here). Invariant: after NO, EXCEEDED and HOPELESS all books are as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dray.allocator.bounds import refuted
from dray.allocator.capacity import Need
from dray.allocator.parts import Value, is_unknown
from dray.allocator.problem import FatalFound, NodeWish, Problem, positions, unsatisfied_constraint
from dray.allocator.requests import RESULTS_MAX, Fatal
from dray.devices import Groups, admits_groups, narrow_groups

NO: Final = 0
FOUND: Final = 1
EXCEEDED: Final = 2
HOPELESS: Final = 3

_FRAMES_OF_CALLERS = 600
_LOOK_EVERY = 256  # steps between two looks at the clock; some milliseconds
_LATE_STEPS = 16
_MEMO_FROM = 64  # steps before failed states are remembered: short searches do not pay for it


@dataclass(frozen=True, slots=True)
class Pick:
    """One device given to one wish."""

    wish: int
    position: int
    need: Need | None  # set for shares


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found: the picks per claim and the alternatives taken, or nothing."""

    picks: tuple[tuple[Pick, ...], ...] | None
    chosen: tuple[int, ...]  # request -> wish
    steps: int
    gave_up: bool = False


@contextmanager
def _room_for(problem: Problem) -> Iterator[None]:
    """Let the interpreter recurse as deep as the largest pod needs: one frame a device, five a request.

    Calls from Python to Python need no C stack, so a higher limit is safe.
    """
    devices = sum(max(wish.count for wish in request.wishes) for request in problem.requests)
    needed = min(devices, 100_000) + 5 * len(problem.requests) + _FRAMES_OF_CALLERS
    limit = sys.getrecursionlimit()
    if needed <= limit:
        yield
        return
    sys.setrecursionlimit(needed)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


class _DeadEnd(Exception):
    """The straight run met its first dead end."""


class _OutOfSteps(Exception):
    """The budget is spent, or the time is over."""


class Tie:
    """The running state of one constraint."""

    __slots__ = ("claim", "distinct", "members", "value")

    def __init__(self, claim: int, *, distinct: bool) -> None:
        self.claim = claim
        self.distinct = distinct
        self.value: Value = frozenset()  # intersection so far; for distinct: union so far
        self.members = 0

    def joined(self, value: Value) -> Value | None:
        """Return the state with one more device; None when it must not join."""
        if not self.members:
            return value
        if self.distinct:
            if is_unknown(value) or not self.value.isdisjoint(value):
                return None
            return self.value | value
        return self.value & value or None


class Search:
    """One attempt; use once."""

    def __init__(self, problem: Problem, budget: int, is_late: Callable[[], bool] | None = None) -> None:
        self.problem = problem
        self.steps = 0
        self._budget = budget
        self._is_late = is_late
        # After so many steps we look at the limits next; what is easy is answered even when it is late.
        self._look = budget
        if is_late is not None:
            self._look = min(budget, _LATE_STEPS if is_late() else _LOOK_EVERY)
        self._straight = True
        self._refused: set[Hashable] = set()
        self._open_books()

    def _open_books(self) -> None:
        problem = self.problem
        n_claims = len(problem.question.requests_by_claim)
        self.taken = 0  # devices taken by any claim of this attempt
        self.taken_by = [0] * n_claims
        self.left = list(problem.counters)
        self.groups: dict[int, Groups] = dict(problem.groups)
        self.allocating: dict[int, dict[str, int]] = {}  # position -> capacity taken in this attempt
        self.ties = [Tie(c.claim, distinct=c.distinct) for c in problem.question.constraints]
        self.results: list[list[Pick]] = [[] for _ in range(n_claims)]
        self.chosen = [request.wishes[0].wish.number for request in problem.requests]

    def run(self) -> Outcome:
        """Search. Raises FatalFound where upstream would end the attempt with an error."""
        gave_up = False
        try:
            with _room_for(self.problem):
                found = self._walk()
        except (_OutOfSteps, RecursionError):
            found, gave_up = NO, True
        if found != FOUND:
            return Outcome(None, (), self.steps, gave_up)
        return Outcome(tuple(tuple(picks) for picks in self.results), tuple(self.chosen), self.steps)

    def _walk(self) -> int:
        try:
            return self._request(0)
        except _DeadEnd:
            self._open_books()
            self._straight = False
            return self._request(0)

    def _look_at_limits(self) -> None:
        if self.steps > self._budget or (self._is_late is not None and self._is_late()):
            raise _OutOfSteps
        self._look = min(self._budget, self._look + _LOOK_EVERY)

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
            for wish in request.wishes:
                result = self._wish(number, wish)
                if result == FOUND:
                    self.chosen[number] = wish.wish.number
                    return FOUND
                if result == HOPELESS:
                    found = NO
                    break
                if result == NO:
                    found = NO
        else:
            found = self._wish(number, request.wishes[0])
            if found == HOPELESS:
                found = NO
        if found == NO and key is not None:
            self._refused.add(key)
        if found == EXCEEDED and request.opens_claim:
            # Another choice in an earlier claim may leave room for a smaller alternative here.
            return NO
        return found

    def _wish(self, number: int, wish: NodeWish) -> int:
        if wish.wish.wants_all:
            return self._pick_all(number, wish) if wish.row else NO
        return self._pick(number, wish, wish.count, 0)

    def _pick(self, number: int, wish: NodeWish, wanted: int, start: int) -> int:
        """Take `wanted` more devices for the wish, none before position `start`; then go on."""
        self.steps += 1
        if self.steps > self._look:
            self._look_at_limits()
        if not wanted:
            return self._after(number)
        claim = wish.wish.claim
        if wanted > RESULTS_MAX - len(self.results[claim]):
            return EXCEEDED
        busy = self.taken_by[claim] if wish.wish.admin else self.problem.dedicated | self.taken
        scan = (wish.ok | wish.fatal_mask) & ~busy >> start << start
        fatal = scan & wish.fatal_mask
        if not scan & wish.errors and scan.bit_count() < wanted:
            return NO
        if not self._straight and refuted(self, number, wish, wanted, scan):
            return NO
        failed: set[int] = set()
        twins = None if self._straight else self.problem.twins
        while scan:
            low = scan & -scan
            scan ^= low
            position = low.bit_length() - 1
            if low & fatal:
                raise FatalFound(wish.fatal[position], claim, position)
            twin = -1
            if twins is not None and position not in self.allocating:
                twin = twins[position]
                if twin in failed:
                    continue
            undo = self._place(wish, position, must=False)
            if undo is not None:
                result = self._pick(number, wish, wanted - 1, position + 1)
                if result == FOUND:
                    return FOUND
                self._take_back(undo)
                if result != NO:
                    return result
                if self._straight:
                    raise _DeadEnd
                if not scan & wish.errors and scan.bit_count() < wanted:
                    return NO
            if twin >= 0:
                failed.add(twin)
        return NO

    def _pick_all(self, number: int, wish: NodeWish) -> int:
        """Take exactly the devices of the row; there is no choice."""
        self.steps += 1
        claim = wish.wish.claim
        if wish.count > RESULTS_MAX - len(self.results[claim]):
            return EXCEEDED
        undos = []
        result = NO
        for position in wish.row:
            busy = self.taken_by[claim] if wish.wish.admin else self.problem.dedicated | self.taken
            undo = None
            if not (busy | wish.blocked) >> position & 1:
                undo = self._place(wish, position, must=True)
            if undo is None:
                break
            undos.append(undo)
        else:
            result = self._after(number)
        if result != FOUND:
            for undo in reversed(undos):
                self._take_back(undo)
        return result

    def _after(self, number: int) -> int:
        """Go on with the next request."""
        result = self._request(number + 1)
        if result == NO and self.problem.requests[number].detached and not self.problem.can_exceed:
            return HOPELESS
        return result

    # --- taking and taking back ------------------------------------------------

    def _place(self, wish: NodeWish, position: int, *, must: bool) -> _Undo | None:
        """Take a device; None when a counter, group, constraint or capacity forbids it."""
        problem = self.problem
        is_shared = problem.shared >> position & 1
        need = wish.needs.get(position)
        if not must and is_shared and not self._has_room(position, need):
            return None
        undo = _Undo(wish, position)
        draws = problem.draws.get(position)
        if draws is not None and not (
            is_shared and (problem.held >> position & 1 or position in self.allocating)
        ):
            if not self._draw(undo, draws):
                return None
        for number, column in wish.columns:
            value = column[position]
            if isinstance(value, Fatal):
                raise FatalFound(value, wish.wish.claim, position)
            tie = self.ties[number]
            joined = tie.joined(value) if value is not None else None
            if joined is None:
                self._take_back(undo)
                if must:
                    raise FatalFound(unsatisfied_constraint(wish.wish), wish.wish.claim, position)
                return None
            undo.values.append((tie, tie.value))
            tie.value = joined
            tie.members += 1
        if must and (wish.no_room >> position & 1 or (is_shared and not self._has_room(position, need))):
            self._take_back(undo)
            return None
        self._enter(undo, need if is_shared else None, is_shared=bool(is_shared))
        return undo

    def _draw(self, undo: _Undo, draws: tuple[tuple[int, int], ...]) -> bool:
        """Draw from the counters and join the groups; on refusal nothing has changed."""
        problem = self.problem
        if problem.question.gates.groups:
            for group_set, groups in problem.group_sets[undo.position]:
                running = self.groups[group_set]
                if not admits_groups(running, groups):
                    self._take_back(undo)
                    return False
                undo.groups.append((group_set, running))
                self.groups[group_set] = narrow_groups(running, groups)
        left = self.left
        for counter, nanos in draws:
            left[counter] -= nanos
        undo.draws = draws
        if any(left[counter] < 0 for counter, _ in draws):
            self._take_back(undo)
            return False
        return True

    def _has_room(self, position: int, need: Need | None) -> bool:
        allocating = self.allocating.get(position)
        if need is None or not allocating:
            return True
        capacity, used = self.problem.capacity(position)
        return need.fits(capacity, used, allocating)

    def _enter(self, undo: _Undo, need: Need | None, *, is_shared: bool) -> None:
        claim = undo.wish.wish.claim
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
        self.results[claim].append(Pick(undo.wish.wish.number, undo.position, need))

    def _take_back(self, undo: _Undo) -> None:
        if undo.is_entered:
            claim = undo.wish.wish.claim
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
        for tie, value in reversed(undo.values):
            tie.value = value
            tie.members -= 1
        for counter, nanos in undo.draws:
            self.left[counter] += nanos
        for group_set, groups in reversed(undo.groups):
            self.groups[group_set] = groups

    # --- remembering -----------------------------------------------------------

    def _state(self, number: int) -> Hashable:
        """Return a key for everything the requests from `number` on can notice."""
        request = self.problem.requests[number]
        twins = self.problem.twins
        relevant = 0
        for later in self.problem.requests[number:]:
            for wish in later.wishes:
                relevant |= wish.row_mask | wish.fatal_mask
        if relevant & self.problem.consumers:
            relevant |= self.problem.consumers
        counts: dict[int, int] = {}
        for position in positions(self.taken & relevant):
            counts[twins[position]] = counts.get(twins[position], 0) + 1
        admin = any(wish.wish.admin for later in self.problem.requests[number:] for wish in later.wishes)
        return (
            number,
            len(self.results[request.claim]),
            tuple(sorted(counts.items())),
            tuple(self.taken_by) if admin else (),
            tuple(self.left) if self.left else (),
            tuple(sorted((s, g) for s, g in self.groups.items() if g is not None)) if self.groups else (),
            tuple(sorted((p, tuple(sorted(a.items()))) for p, a in self.allocating.items())),
            tuple([(tie.members > 0, tie.value) for tie in self.ties if tie.claim >= request.claim]),
        )


class _Undo:
    """What one placement changed."""

    __slots__ = ("capacity", "draws", "groups", "is_entered", "position", "values", "wish")

    def __init__(self, wish: NodeWish, position: int) -> None:
        self.wish = wish
        self.position = position
        self.draws: tuple[tuple[int, int], ...] = ()
        self.groups: list[tuple[int, Groups]] = []
        self.values: list[tuple[Tie, Value]] = []
        self.capacity: dict[str, int] | None = None
        self.is_entered = False
