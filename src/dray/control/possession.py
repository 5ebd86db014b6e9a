"""The rules of possession: which claims may hold which devices side by side.

The API server ties no two claims together; whoever wants to know whether several allocations can stand
beside each other asks here. There are two who do, for different reasons: the guard judges a write before
it lands (`guarding.judging`), and a scheduler checks its own write after it landed (`scheduling.rivals`).
They differ in *which* claims they count; the rules are the same.

The rules, for a set of claims, of which administrative access is no part:

  * a device that is held whole is held by one claim, and a share by one claim;
  * the shares of a device take no more of each of its capacities than there is;
  * the devices in use draw no more from a shared counter than there is, however many claims share a device;
  * the devices in use that draw from one counter set have a compatibility group in common; such without
    groups go with such without groups only.

What is not published is not there: a capacity or counter that nobody publishes is zero. Of a device that is
not published nothing is known but its holders, so only the first rule applies to it.

The rules are monotone: what holds for a set of claims holds for each part of it. Both callers rely on it.

Of one claim several states may be in the book (the guard does not know yet which of them comes true). They are
alternatives: they do not compete with each other, and against other claims each of them counts; of
amounts the largest.

Invariants (tests/property/test_possession_laws.py): the guard, the schedulers' referee and an independent
checker come to the same verdict in every small world.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol

import msgspec

from dray.control.published import (
    DeviceKey,
    DeviceT,
    Draw,
    PoolFacts,
    PoolKey,
    Pools,
    PublishedSlice,
    amount,
)

Counts = Callable[[str], bool]  # claim uid -> whether what it holds matters


def spell(key: DeviceKey) -> str:
    """Write a device as people read it."""
    return "/".join(key)


# --- what a claim holds ---------------------------------------------------------


class GivenDevice(Protocol):
    """One entry of an allocation: a device, or a share of one."""

    @property
    def driver(self) -> str:
        """Whose device."""

    @property
    def pool(self) -> str:
        """Of which pool."""

    @property
    def device(self) -> str:
        """Which one."""

    @property
    def admin_access(self) -> bool | None:
        """Whether it is looked after rather than used."""

    @property
    def share_id(self) -> str | None:
        """Which share; None means all of the device."""

    @property
    def consumed_capacity(self) -> Mapping[str, str | int | float] | None:
        """What the share takes of the device's capacities."""


class Hold(msgspec.Struct, frozen=True, gc=False):
    """What one state of a claim takes of one device. Not to be changed."""

    shares: tuple[str, ...]  # each once, in order; empty means: all of it
    consumed: dict[str, int]  # capacity -> nanos


Holds = dict[DeviceKey, Hold]

_WHOLE = Hold((), {})  # most holds are this one


def holds_of(results: Iterable[GivenDevice]) -> Holds:
    """Add up what an allocation takes of each device."""
    holds: Holds = {}
    for result in results:
        if result.admin_access:
            continue
        key = (result.driver, result.pool, result.device)
        share, consumed = result.share_id, result.consumed_capacity
        hold = _WHOLE
        if share is not None or consumed:
            amounts = {name: amount(value) for name, value in consumed.items()} if consumed else {}
            hold = Hold(() if share is None else (share,), amounts)
        earlier = holds.setdefault(key, hold)
        if earlier is not hold:
            holds[key] = _together(earlier, hold)
    return holds


def _together(one: Hold, other: Hold) -> Hold:
    consumed = {
        name: one.consumed.get(name, 0) + other.consumed.get(name, 0)
        for name in one.consumed | other.consumed
    }
    if not one.shares or not other.shares:  # one entry for all of the device makes all of it taken
        return Hold((), consumed)
    return Hold(tuple(sorted({*one.shares, *other.shares})), consumed)


# --- the rules ------------------------------------------------------------------


class Rule(Enum):
    """What can stand against a claim."""

    HELD = "another claim holds the device, or the share"
    CAPACITY = "a capacity has not enough left"
    COUNTER = "a shared counter has not enough left"
    GROUPS = "the devices in use have no compatibility group in common"


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a claim cannot hold a device beside the others."""

    rule: Rule
    device: DeviceKey
    holder: str = ""  # uid of a claim that holds it, if one does
    name: str = ""  # of the capacity or counter
    counter_set: str = ""


def excludes(one: Hold, other: Hold) -> bool:
    """Say whether two claims cannot hold these of one device."""
    if not one.shares or not other.shares:
        return True
    for share in one.shares:  # noqa: SIM110  # every claim event comes here: any() takes twice the time
        if share in other.shares:
            return True
    return False


def exceeded(capacity: Mapping[str, int], wanted: Hold, others: Iterable[Sequence[Hold]]) -> str | None:
    """Name a capacity that does not suffice for a hold and those of others, each with its alternatives."""
    used = dict(wanted.consumed)
    for states in others:
        for name in used:
            if len(states) == 1:  # as nearly always
                used[name] += states[0].consumed.get(name, 0)
            else:
                used[name] += max([state.consumed.get(name, 0) for state in states])
    for name, total in used.items():
        if total > capacity.get(name, 0):
            return name
    return None


def overdrawn(
    pool: PoolFacts[DeviceT], key: PoolKey, wanted: Collection[str], is_held: Callable[[str], bool]
) -> Objection | None:
    """Say which of the wanted devices cannot be in use together with each other and with those held."""
    drawn_by_set: dict[str, tuple[dict[str, int], frozenset[str] | None]] = {}
    for name in sorted(wanted):
        facts = pool.facts(name)
        for draw in facts.draws if facts is not None else ():
            counter_set = draw.counter_set
            if counter_set not in drawn_by_set:
                in_use = (each for each in pool.drawers(counter_set) if each in wanted or is_held(each))
                drawn_by_set[counter_set] = _drawn(pool, counter_set, in_use)
            drawn, groups = drawn_by_set[counter_set]
            if groups is None:
                return Objection(Rule.GROUPS, (*key, name), counter_set=counter_set)
            for counter in draw.counters:
                if drawn[counter] > pool.limits.get((counter_set, counter), 0):
                    return Objection(Rule.COUNTER, (*key, name), "", counter, counter_set)
    return None


def _drawn(
    pool: PoolFacts[DeviceT], counter_set: str, in_use: Iterable[str]
) -> tuple[dict[str, int], frozenset[str] | None]:
    """Add up what devices draw from a counter set, and return the groups that they have in common, if any."""
    drawn: dict[str, int] = defaultdict(int)
    common: frozenset[str] | None = None
    for place, draw in enumerate(_draws(pool, counter_set, in_use)):
        for counter, value in draw.counters.items():
            drawn[counter] += value
        common = narrowed(common, draw.groups) if place else draw.groups
    return drawn, common


def _draws(pool: PoolFacts[DeviceT], counter_set: str, devices: Iterable[str]) -> Iterator[Draw]:
    for name in devices:
        facts = pool.facts(name)
        for draw in facts.draws if facts is not None else ():
            if draw.counter_set == counter_set:
                yield draw


def narrowed(common: frozenset[str] | None, groups: frozenset[str]) -> frozenset[str] | None:
    """Return the groups that one more device leaves in common; None when not all go together."""
    if common is None:
        return None
    if not common and not groups:
        return common  # no groups go with no groups
    return common & groups or None


# --- the book -------------------------------------------------------------------


_NOBODY: Mapping[str, tuple[Hold, ...]] = {}


class Book(Generic[DeviceT]):
    """Who holds what, and what there is; see the module docstring. Not for several threads."""

    def __init__(self) -> None:
        self.pools: Pools[DeviceT] = Pools()
        self._holders: dict[DeviceKey, dict[str, tuple[Hold, ...]]] = {}  # -> claim uid -> its states

    def set_slice(self, old: PublishedSlice[DeviceT] | None, new: PublishedSlice[DeviceT] | None) -> None:
        """Take note of a slice that came, changed or went."""
        self.pools.set_slice(old, new)

    def take(self, uid: str, holds: Holds) -> None:
        """Enter a state of a claim."""
        for key, hold in holds.items():
            holders = self._holders.get(key)
            if holders is None:
                self._holders[key] = {uid: (hold,)}
            else:
                holders[uid] = (*holders[uid], hold) if uid in holders else (hold,)

    def release(self, uid: str, holds: Holds) -> None:
        """Strike out a state of a claim that was entered."""
        for key, hold in holds.items():
            holders = self._holders[key]
            states = holders[uid]
            if len(states) > 1:
                place = states.index(hold)
                holders[uid] = states[:place] + states[place + 1 :]
            elif len(holders) > 1:
                del holders[uid]
            else:
                del self._holders[key]

    @property
    def is_empty(self) -> bool:
        """Say whether nobody holds anything."""
        return not self._holders

    def excluded(self, uid: str, holds: Holds) -> Iterator[str]:
        """Yield the other claims that cannot keep a device if this one has it, some more than once."""
        for key, hold in holds.items():
            for other, states in self._holders.get(key, _NOBODY).items():
                if other == uid:
                    continue
                for state in states:
                    if excludes(hold, state):
                        yield other
                        break

    def involved(self, uid: str, holds: Holds) -> Iterator[str]:
        """Yield the other claims that an objection may be due to, some more than once."""
        for driver, pool, device in holds:
            facts = self.pools.facts((driver, pool, device))
            names = {device}
            for draw in facts.draws if facts is not None else ():
                names.update(self.pools.drawers((driver, pool), draw.counter_set))
            for name in names:
                for other in self._holders.get((driver, pool, name), _NOBODY):
                    if other != uid:
                        yield other

    def objection(self, uid: str, holds: Holds, counts: Counts | None = None) -> Objection | None:
        """Say what stands against a claim holding these, beside the other claims that count (None: all)."""
        drawing: dict[PoolKey, set[str]] = {}
        for key, hold in holds.items():
            others: list[tuple[Hold, ...]] = []
            holder = ""
            for other, states in self._holders.get(key, _NOBODY).items():
                if other == uid or (counts is not None and not counts(other)):
                    continue
                for state in states:
                    if excludes(hold, state):
                        return Objection(Rule.HELD, key, other)
                others.append(states)
                holder = holder or other
            facts = self.pools.facts(key)
            if facts is None:
                continue
            if hold.consumed:
                name = exceeded(facts.capacity, hold, others)
                if name is not None:
                    return Objection(Rule.CAPACITY, key, holder, name)
            if facts.draws:
                drawing.setdefault(key[:2], set()).add(key[2])
        for pool_key, names in drawing.items():
            objection = self._overdrawn(uid, pool_key, names, counts)
            if objection is not None:
                return objection
        return None

    def _overdrawn(self, uid: str, key: PoolKey, names: set[str], counts: Counts | None) -> Objection | None:
        pool = self.pools.pool(key)
        assert pool is not None

        def is_held(name: str) -> bool:
            for other in self._holders.get((*key, name), _NOBODY):
                if other != uid and (counts is None or counts(other)):
                    return True
            return False

        return overdrawn(pool, key, names, is_held)
