"""One node, one query, one state of the ledger: the input of the search.

Devices of all usable pools stand in one row, in upstream's order (pool after pool,
slice after slice); a device is a position, a set of devices is an integer. Everything
the search asks per candidate is looked up here, so that picking a device is a few
integer operations.

Nothing here changes during a search. Two nodes with equal keys (see `allocator`) have equal
problems, so a solution, being positions, fits both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property

from dray.allocator.capacity import Need
from dray.allocator.compiled_claims import RESULTS_MAX, CompiledClaims, Fatal, Subrequest
from dray.allocator.constraints import ConstraintState
from dray.allocator.device_facts import CapacityFacts, DeviceFacts
from dray.allocator.errors import InvalidRequestError, PoolUpdatingError
from dray.allocator.pool_matches import OPTIONAL_OPERATIONS, Draws, PoolMatches, Value
from dray.allocator.pools import NodeView, PoolView
from dray.devices import DeviceId, Groups

PARTS = 1_000_000  # a counter is measured in parts of what is left of it at the start


class FatalFound(Exception):  # a signal inside the search, turned into an AllocationError
    """The search met something that ends the attempt on every node.

    Names are left out, because the finding holds for all nodes that are alike.
    """

    def __init__(self, fatal: Fatal, claim: int, position: int | None, pool: int | None = None) -> None:
        super().__init__(claim, position)
        self.fatal = fatal
        self.claim = claim
        self.position = position  # of the device, if one is to blame
        self.pool = pool  # number of the pool, if one is to blame


def positions(mask: int) -> Iterator[int]:
    """Yield the positions in a set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _moved(mask: int, place: Sequence[int]) -> int:
    moved = 0
    for position in positions(mask):
        moved |= 1 << place[position]
    return moved


class NodeSubrequest:
    """One subrequest on one node."""

    __slots__ = (
        "blocked",
        "columns",
        "count",
        "errors",
        "fatal",
        "fatal_mask",
        "may_fail",
        "needs",
        "no_room",
        "ok",
        "row",
        "row_mask",
        "subrequest",
    )

    def __init__(self, subrequest: Subrequest) -> None:
        self.subrequest = subrequest
        self.count = subrequest.count
        self.ok = 0  # devices it could take, as far as the node and the ledger's shares go
        self.fatal: dict[int, Fatal] = {}
        self.fatal_mask = 0
        self.errors = 0  # devices at which a look, or a constraint, ends the attempt with an error
        self.needs: dict[int, Need] = {}
        self.blocked = 0  # selected, but never to be taken: taints, gates, node
        self.no_room = 0  # selected, but what is left of its capacities is too little
        self.row: tuple[int, ...] = ()  # for "all": exactly these, in this order
        self.row_mask = 0
        self.columns: list[tuple[int, list[Value | Fatal | None]]] = []  # (constraint, value by position)
        self.may_fail = False  # looking at some device (or a constraint on all) ends the attempt

    def moved(self, place: Sequence[int], order: Sequence[int]) -> NodeSubrequest:
        """Return the subrequest with every device at its new place; `order` is the inverse of `place`."""
        found = NodeSubrequest(self.subrequest)
        found.count = self.count
        found.ok = _moved(self.ok, place)
        found.fatal = {place[position]: fatal for position, fatal in self.fatal.items()}
        found.fatal_mask = _moved(self.fatal_mask, place)
        found.errors = _moved(self.errors, place)
        found.needs = {place[position]: need for position, need in self.needs.items()}
        found.blocked = _moved(self.blocked, place)
        found.no_room = _moved(self.no_room, place)
        found.row = tuple([place[position] for position in self.row])
        found.row_mask = _moved(self.row_mask, place)
        found.columns = [(number, [column[old] for old in order]) for number, column in self.columns]
        found.may_fail = self.may_fail
        return found


class NodeRequest:
    """One request on one node: its alternatives and what surrounds it."""

    __slots__ = ("claim", "detached", "has_alternatives", "may_fail", "opens_claim", "subrequests")

    def __init__(
        self, claim: int, subrequests: list[NodeSubrequest], *, has_alternatives: bool, opens_claim: bool
    ) -> None:
        self.claim = claim
        self.subrequests = subrequests
        self.has_alternatives = has_alternatives
        self.opens_claim = opens_claim  # the first request of a claim that is not the first
        self.may_fail = any(subrequest.may_fail for subrequest in subrequests)
        self.detached = False  # whatever it takes, later requests cannot tell

    def with_subrequests(self, subrequests: list[NodeSubrequest]) -> NodeRequest:
        """Return the request with the same subrequests in another order of devices."""
        found = NodeRequest(
            self.claim, subrequests, has_alternatives=self.has_alternatives, opens_claim=self.opens_claim
        )
        found.detached = self.detached
        return found


class Problem:
    """A node's devices and a pod's subrequests, joined."""

    def __init__(self, compiled: CompiledClaims, view: NodeView, matches_by_pool: list[PoolMatches]) -> None:
        """Raises FatalFound for what upstream finds before it starts to search."""
        self.compiled = compiled
        self._pools: list[tuple[int, PoolView, PoolMatches]] = []
        offset = 0
        for pool, matches in zip(view.pools, matches_by_pool, strict=True):
            if pool.is_usable:
                self._pools.append((offset, pool, matches))
                offset += len(pool.devices)
        self.n_devices = offset
        self._can_skip = (
            compiled.gates.optional_operations and OPTIONAL_OPERATIONS in view.node.status.declared_features
        )
        self.dedicated = self._join(lambda pool, matches: pool.dedicated)
        self.held = self._join(lambda pool, matches: pool.shared)  # shares of these are in use
        self.shared = self._join(lambda pool, matches: matches.shared)  # these may be shared
        self.consumers = self._join(lambda pool, matches: matches.consumers)
        self.subrequests = [self._node_subrequest(subrequest) for subrequest in compiled.subrequests]
        self.requests = self._checked(view)
        self.counters: list[int] = []  # what is left of each counter
        self.counter_set_of: list[int] = []  # counter -> its set
        self.draws: dict[int, Draws] = {}  # position -> (counter, nanos)
        self.group_sets: dict[int, tuple[tuple[int, frozenset[str]], ...]] = {}  # position -> (set, groups)
        self.groups: dict[int, Groups] = {}  # set -> groups of devices in use
        if self.consumers and compiled.gates.partitionable:
            self._count()
        self.can_exceed = any(
            sum(max(w.count for w in self.requests[r].subrequests) for r in requests) > RESULTS_MAX
            for requests in compiled.requests_by_claim
        )
        self.may_fail = any(request.may_fail for request in self.requests)
        # For each "all devices" under a constraint: the devices it looks at; None where that depends.
        self._looked_at = [
            _looked_at(self, subrequest)
            for subrequest in self.subrequests
            if subrequest.subrequest.wants_all and subrequest.columns
        ]
        self._symmetry_classes: list[int] | None = None
        self._origin: Problem | None = None  # the problem that this one is in another order
        self._order: tuple[int, ...] = ()  # position -> position in the origin

    def _join(self, read: object) -> int:
        mask = 0
        for offset, pool, matches in self._pools:
            mask |= read(pool, matches) << offset  # type: ignore[operator]
        return mask

    def detach(self) -> None:
        """Make the problem independent of the ledger, so that another thread may search while devices are taken."""
        _ = self.symmetry_classes  # made of what is in use now
        self._pools = [(offset, pool.frozen(), matches) for offset, pool, matches in self._pools]

    # --- devices ---------------------------------------------------------------

    def locate(self, position: int) -> tuple[PoolView, int]:
        """Return pool and bit of a position."""
        if self._origin is not None:
            return self._origin.locate(self._order[position])
        for offset, pool, _ in reversed(self._pools):
            if position >= offset:
                return pool, position - offset
        raise IndexError(position)

    def facts(self, position: int) -> DeviceFacts:
        """Return the device at a position."""
        pool, bit = self.locate(position)
        return pool.devices[bit]

    def capacity(self, position: int) -> tuple[CapacityFacts, Mapping[str, int] | None]:
        """Return the capacities of a device that has some, and what is used of them."""
        pool, bit = self.locate(position)
        facts = pool.devices[bit].capacity
        assert facts is not None
        return facts, pool.consumed.get(bit)

    @property
    def pools(self) -> list[tuple[int, PoolView, PoolMatches]]:
        """Return the usable pools, each with the position of its first device (in upstream's order)."""
        return self._pools

    def reordered(self, order: Sequence[int]) -> Problem:
        """Return the same problem with its devices in another order: `order` lists positions of this one.

        A solution of one is a solution of the other; only which comes first differs.
        """
        place = [0] * len(order)
        for new, old in enumerate(order):
            place[old] = new
        found = copy(self)
        found.__dict__.pop("volumes", None)
        found._origin, found._order, found._symmetry_classes = self, tuple(order), None
        found.dedicated = _moved(self.dedicated, place)
        found.held = _moved(self.held, place)
        found.shared = _moved(self.shared, place)
        found.consumers = _moved(self.consumers, place)
        found.draws = {place[position]: draws for position, draws in self.draws.items()}
        found.group_sets = {place[position]: sets for position, sets in self.group_sets.items()}
        found.subrequests = [subrequest.moved(place, order) for subrequest in self.subrequests]
        found.requests = [
            request.with_subrequests(
                [found.subrequests[subrequest.subrequest.number] for subrequest in request.subrequests]
            )
            for request in self.requests
        ]
        return found

    @property
    def symmetry_classes(self) -> list[int]:
        """Return a number per position; equal numbers mean interchangeable devices.

        "All devices" under a constraint goes through its row in order and ends either with
        "in use" or with an error, whichever comes first. Where that depends on what was taken
        before, no two devices are alike; else those before the end differ from those after it.
        """
        if self._symmetry_classes is None and self._origin is not None:
            numbers_there = self._origin.symmetry_classes
            self._symmetry_classes = [numbers_there[position] for position in self._order]
        looked_at = [mask for mask in self._looked_at if mask is not None]
        if self._symmetry_classes is None and len(looked_at) < len(self._looked_at):
            self._symmetry_classes = list(range(self.n_devices))
        if self._symmetry_classes is None:
            numbers: dict[Hashable, int] = {}
            self._symmetry_classes = []
            for index, (offset, pool, matches) in enumerate(self._pools):
                for bit, symmetry_class in enumerate(matches.symmetry_classes):
                    mask = 1 << bit
                    used = tuple(sorted(pool.consumed[bit].items())) if bit in pool.consumed else ()
                    key = (
                        symmetry_class,
                        bool(pool.dedicated & mask),
                        bool(pool.shared & mask),
                        used,
                        # Counters belong to a pool; without them pools do not matter.
                        index if matches.consumers & mask else -1,
                        pool.id[0],
                        tuple([seen >> offset + bit & 1 for seen in looked_at]),
                    )
                    self._symmetry_classes.append(numbers.setdefault(key, len(numbers)))
                    assert offset + bit == len(self._symmetry_classes) - 1
        return self._symmetry_classes

    @cached_property
    def volumes(self) -> list[tuple[int, int]]:
        """Return (volume, devices) ascending: the parts of all counters that taking a device uses up."""
        free = ((1 << self.n_devices) - 1) & (~self.consumers | self.shared)
        masks = {0: free}
        for position, draws in self.draws.items():
            if not self.shared >> position & 1:
                volume = sum(
                    nanos * PARTS // self.counters[c]
                    for c, nanos in draws
                    if self.counters[c] > 0 and nanos > 0
                )
                masks[volume] = masks.get(volume, 0) | 1 << position
        return sorted(masks.items())

    # --- subrequests ----------------------------------------------------------------

    def _node_subrequest(self, subrequest: Subrequest) -> NodeSubrequest:
        found = NodeSubrequest(subrequest)
        columns: dict[int, list[Value | Fatal | None]] = {number: [] for number in subrequest.constraints}
        for offset, pool, matches in self._pools:
            row = matches.subrequests[subrequest.number]
            blocked = row.tainted | row.uncountable
            if not self._can_skip:
                blocked |= row.operations
            no_room = 0
            for bit, need in row.needs.items():
                found.needs[bit + offset] = need
                used = pool.consumed.get(bit)
                if used:
                    capacity = pool.devices[bit].capacity
                    assert capacity is not None
                    if not need.fits(capacity, used):
                        no_room |= 1 << bit
            for bit, fatal in row.fatal.items():
                found.fatal[bit + offset] = fatal
                found.fatal_mask |= 1 << bit + offset
            selected = row.matched & ~row.unsuitable
            found.row_mask |= selected << offset
            found.blocked |= blocked << offset
            found.no_room |= no_room << offset
            for number, column in columns.items():
                column += matches.values[number, subrequest.number]
        # What is an error to look at is not ok either.
        found.ok = found.row_mask & ~found.blocked & ~found.no_room & ~found.fatal_mask
        found.columns = list(columns.items())
        found.errors = found.fatal_mask
        for _, column in found.columns:
            for position in positions(found.ok):
                if isinstance(column[position], Fatal):
                    found.errors |= 1 << position
        if subrequest.wants_all:
            found.row = tuple(positions(found.row_mask))
            found.count = len(found.row)
            found.may_fail = bool(found.columns)
        else:
            found.may_fail = bool(found.errors if subrequest.admin else found.errors & ~self.dedicated)
        return found

    def _checked(self, view: NodeView) -> list[NodeRequest]:
        """Check everything that comes before the search, in upstream's order."""
        requests: list[NodeRequest] = []
        compiled = self.compiled
        for claim, members in enumerate(compiled.requests_by_claim):
            least = 0
            for number in members:
                group = compiled.requests[number]
                if group.problem is not None:
                    raise FatalFound(group.problem, claim, None)
                for subrequest in group.subrequests:
                    if subrequest.problem is not None:
                        raise FatalFound(subrequest.problem, claim, None)
                    if subrequest.wants_all:
                        self._check_all(self.subrequests[subrequest.number], view)
                subrequests = [self.subrequests[subrequest.number] for subrequest in group.subrequests]
                fewest = min(subrequest.count for subrequest in subrequests)
                if fewest > RESULTS_MAX - least:
                    raise FatalFound(_too_many(group.name, fewest, least), claim, None)
                least += fewest
                opens = claim > 0 and number == members.start
                requests.append(
                    NodeRequest(
                        claim, subrequests, has_alternatives=group.has_alternatives, opens_claim=opens
                    )
                )
            problem = compiled.claim_problems[claim]
            if problem is not None:
                raise FatalFound(problem, claim, None)
        _mark_detached(self, requests)
        return requests

    def _check_all(self, subrequest: NodeSubrequest, view: NodeView) -> None:
        """ "All devices" needs every pool of the node whole and every device readable."""
        offset = 0
        for index, pool in enumerate(view.pools):
            if pool.is_incomplete or pool.invalid_reason:
                state = "being updated" if pool.is_incomplete else "invalid"
                raise FatalFound(
                    _pool_not_ready(subrequest.subrequest.name, state),
                    subrequest.subrequest.claim,
                    None,
                    index,
                )
            bits = subrequest.fatal_mask >> offset & ((1 << len(pool.devices)) - 1)
            if bits:
                position = next(positions(bits)) + offset
                raise FatalFound(subrequest.fatal[position], subrequest.subrequest.claim, position)
            offset += len(pool.devices)

    # --- counters --------------------------------------------------------------

    def _count(self) -> None:
        """Number counters and counter sets; devices of an overdrawn pool cannot be taken at all."""
        overdrawn = 0
        for offset, pool, matches in self._pools:
            if not matches.consumers:
                continue
            left, groups = pool.available()
            numbering = matches.numbered(pool, tuple([(name, *counters) for name, counters in left.items()]))
            first, first_set = len(self.counters), offset << 8
            for set_number, (set_name, counters) in enumerate(left.items(), first_set):
                self.groups[set_number] = groups.get(set_name)
                self.counters += counters.values()
                self.counter_set_of += [set_number] * len(counters)
            # Upstream compares every counter of the pool, so one below zero blocks all.
            if min(self.counters[first:], default=0) < 0:
                overdrawn |= matches.consumers << offset
            if not offset and not first:
                self.draws, self.group_sets = numbering.draws, numbering.group_sets  # shared, never changed
                continue
            self.draws = self.draws | {
                bit + offset: tuple([(counter + first, nanos) for counter, nanos in draws])
                for bit, draws in numbering.draws.items()
            }
            self.group_sets = self.group_sets | {
                bit + offset: tuple([(number + first_set, group) for number, group in sets])
                for bit, sets in numbering.group_sets.items()
            }
        # Another share of a device in use is not charged again, so it is not blocked.
        overdrawn &= ~(self.shared & self.held)
        if overdrawn:
            for subrequest in self.subrequests:
                subrequest.ok &= ~overdrawn
                subrequest.blocked |= overdrawn


def _mark_detached(problem: Problem, requests: list[NodeRequest]) -> None:
    """Find requests whose devices, counters and constraints no later request shares."""
    touched_later = 0
    constraints_later: set[int] = set()
    for request in reversed(requests):
        touched = 0
        constraints: set[int] = set()
        for subrequest in request.subrequests:
            touched |= subrequest.row_mask | subrequest.fatal_mask
            constraints.update(number for number, _ in subrequest.columns)
        if touched & problem.consumers:
            touched |= problem.consumers
        request.detached = (
            not request.may_fail and not touched & touched_later and not constraints & constraints_later
        )
        touched_later |= touched
        constraints_later |= constraints


def _looked_at(problem: Problem, subrequest: NodeSubrequest) -> int | None:
    """Return the devices that "all devices" looks at before it ends for certain; None: it depends.

    One of them in use ends it with "does not fit", whichever; all of them free always end it in the same way.
    Counters, shares and devices that joined the constraints before may end it earlier.
    """
    if subrequest.row_mask & (problem.consumers | problem.shared):
        return None
    own = subrequest.subrequest
    numbers = {number for number, _ in subrequest.columns}
    for request in problem.requests[: own.request]:
        if any(not numbers.isdisjoint(each.subrequest.constraints) for each in request.subrequests):
            return None
    states = {
        number: ConstraintState(own.claim, distinct=problem.compiled.constraints[number].distinct)
        for number in numbers
    }
    seen = 0
    for position in subrequest.row:
        seen |= 1 << position
        if (subrequest.blocked | subrequest.no_room) >> position & 1:
            return seen
        for number, column in subrequest.columns:
            value, state = column[position], states[number]
            joined = state.joined(value) if isinstance(value, frozenset) else None
            if joined is None:
                return seen
            state.value = joined
            state.members += 1
    return seen


def _too_many(request: str, count: int, earlier: int) -> Fatal:
    return Fatal(
        InvalidRequestError,
        lambda claim, _device: (
            f"claim {claim}, request {request}: adding {count} devices exceeds the claim limit of {RESULTS_MAX},"
            f" with {earlier} already accounted for"
        ),
    )


def _pool_not_ready(request: str, state: str) -> Fatal:
    def text(claim: str, device: DeviceId | None) -> str:
        pool = f"{device.driver}/{device.pool}" if device else ""
        return (
            f"claim {claim}, request {request}: asks for all devices,"
            f" but resource pool {pool} is currently {state}"
        )

    return Fatal(PoolUpdatingError, text)


def unsatisfied_constraint(subrequest: Subrequest) -> Fatal:
    """Return the error for "all devices" under a constraint that they break."""

    def text(claim: str, device: DeviceId | None) -> str:
        return (
            f"claim {claim}, request {subrequest.name}: cannot add device {device}"
            " because a claim constraint would not be satisfied"
        )

    return Fatal(InvalidRequestError, text)
