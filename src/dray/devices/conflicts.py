"""Which claims may hold which devices side by side: the rules of joint possession.

The API server does not tie two claims together; whoever wants to know whether several allocations can stand
beside each other asks here. There are two who do, for different reasons: the guard judges a write before
it lands (`control.guarding.judging`), and a scheduler verifies its own write after it landed. They differ in
*which* claims they count; the rules are the same.

The rules, for a set of claims, administrative access left out:

  * a device that is held whole is held by one claim, and a share by one claim;
  * the shares of a device take no more of each of its capacities than there is;
  * the devices in use draw no more from a shared counter than there is, however many claims share a device;
  * the devices in use that draw from one counter set have a compatibility group in common; those without
    groups go with those without groups only.

A capacity or counter that nobody publishes is zero. Of a device that is not published nothing is known but
its holders, so only the first rule applies to it.

The rules are monotone: what holds for a set of claims holds for each part of it. Both callers rely on it.

A claim may have several entries for a device (the guard does not know yet which of them comes true). They are
alternatives: they do not compete with each other, and against other claims each of them counts; of
amounts the largest.

Invariants (tests/property/test_devices_conflict_laws.py): the guard, the scheduler's check and an independent
checker come to the same verdict in every small cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic

from dray.devices.groups import Groups, admits_groups, narrow_groups
from dray.devices.identities import DeviceId, PoolId
from dray.devices.ledger import Hold, Holds, Ledger, Undo
from dray.devices.published import DeviceT, Draw, PoolFacts, Pools, PublishedSlice

Counts = Callable[[str], bool]  # owner -> whether what it holds matters

# --- the rules ------------------------------------------------------------------


class Rule(Enum):
    """What can stand against a claim."""

    HELD = "another claim holds the device, or the share"
    CAPACITY = "a capacity has not enough left"
    COUNTER = "a shared counter has not enough left"
    GROUPS = "the devices in use have no compatibility group in common"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a claim cannot hold a device beside the others."""

    rule: Rule
    device: DeviceId
    holder: str = ""  # uid of a claim that holds it, if one does
    name: str = ""  # of the capacity or counter
    counter_set: str = ""


def excludes(one: Hold, other: Hold) -> bool:
    """Return whether two claims cannot both have these of one device."""
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
    pool: PoolFacts[DeviceT], key: PoolId, wanted: Collection[str], is_held: Callable[[str], bool]
) -> Conflict | None:
    """Return why the wanted devices cannot be in use together with each other and with those held."""
    drawn_by_set: dict[str, tuple[dict[str, int], bool]] = {}
    for name in sorted(wanted):
        facts = pool.facts(name)
        for draw in facts.draws if facts is not None else ():
            counter_set = draw.counter_set
            if counter_set not in drawn_by_set:
                in_use = (each for each in pool.drawers(counter_set) if each in wanted or is_held(each))
                drawn_by_set[counter_set] = _drawn(pool, counter_set, in_use)
            drawn, is_compatible = drawn_by_set[counter_set]
            if not is_compatible:
                return Conflict(Rule.GROUPS, DeviceId(*key, name), counter_set=counter_set)
            for counter in draw.counters:
                if drawn[counter] > pool.limits.get((counter_set, counter), 0):
                    return Conflict(Rule.COUNTER, DeviceId(*key, name), "", counter, counter_set)
    return None


def _drawn(pool: PoolFacts[DeviceT], counter_set: str, in_use: Iterable[str]) -> tuple[dict[str, int], bool]:
    """Add up what devices draw from a counter set, and return whether their groups go together."""
    drawn: dict[str, int] = defaultdict(int)
    common: Groups = None
    is_compatible = True
    for draw in _draws(pool, counter_set, in_use):
        for counter, value in draw.counters.items():
            drawn[counter] += value
        is_compatible = is_compatible and admits_groups(common, draw.groups)
        common = narrow_groups(common, draw.groups)
    return drawn, is_compatible


def _draws(pool: PoolFacts[DeviceT], counter_set: str, devices: Iterable[str]) -> Iterator[Draw]:
    for name in devices:
        facts = pool.facts(name)
        for draw in facts.draws if facts is not None else ():
            if draw.counter_set == counter_set:
                yield draw


# --- who holds what, and what there is -------------------------------------------


_NOBODY: Mapping[str, tuple[Hold, ...]] = {}


class Occupancy(Generic[DeviceT]):
    """The ledger beside what is published; see the module docstring. Not for several threads."""

    def __init__(self) -> None:
        self.pools: Pools[DeviceT] = Pools()
        self.ledger = Ledger()

    def set_slice(self, old: PublishedSlice[DeviceT] | None, new: PublishedSlice[DeviceT] | None) -> None:
        """Take note of a slice that came, changed or went."""
        self.pools.set_slice(old, new)

    def take(self, owner: str, holds: Holds) -> Undo:
        """Enter what a claim holds, or may come to hold; the undo removes it."""
        return self.ledger.take(owner, holds)

    def _holders(self, device: DeviceId) -> Mapping[str, tuple[Hold, ...]]:
        use = self.ledger.use_of(device)
        return use.holds_by_owner if use is not None else _NOBODY

    def excluded(self, owner: str, holds: Holds) -> Iterator[str]:
        """Yield the other claims that cannot keep a device if this one has it, some more than once."""
        for device, hold in holds.items():
            for other, states in self._holders(device).items():
                if other != owner and any(excludes(hold, state) for state in states):
                    yield other

    def involved(self, owner: str, holds: Holds) -> Iterator[str]:
        """Yield the other claims that a conflict may be due to, some more than once."""
        for device in holds:
            facts = self.pools.facts(device)
            names = {device.device}
            for draw in facts.draws if facts is not None else ():
                names.update(self.pools.drawers(device.pool_id, draw.counter_set))
            for name in names:
                for other in self._holders(DeviceId(device.driver, device.pool, name)):
                    if other != owner:
                        yield other

    def conflict(self, owner: str, holds: Holds, counts: Counts | None = None) -> Conflict | None:
        """Return why a claim cannot hold these beside the other claims that count (None: all)."""
        drawing: dict[PoolId, set[str]] = {}
        for device, hold in holds.items():
            others: list[tuple[Hold, ...]] = []
            holder = ""
            for other, states in self._holders(device).items():
                if other == owner or (counts is not None and not counts(other)):
                    continue
                for state in states:
                    if excludes(hold, state):
                        return Conflict(Rule.HELD, device, other)
                others.append(states)
                holder = holder or other
            facts = self.pools.facts(device)
            if facts is None:
                continue
            if hold.consumed:
                name = exceeded(facts.capacity, hold, others)
                if name is not None:
                    return Conflict(Rule.CAPACITY, device, holder, name)
            if facts.draws:
                drawing.setdefault(device.pool_id, set()).add(device.device)
        for pool_id, names in drawing.items():
            conflict = self._overdrawn(owner, pool_id, names, counts)
            if conflict is not None:
                return conflict
        return None

    def _overdrawn(self, owner: str, key: PoolId, names: set[str], counts: Counts | None) -> Conflict | None:
        pool = self.pools.pool(key)
        assert pool is not None

        def is_held(name: str) -> bool:
            for other in self._holders(DeviceId(*key, name)):
                if other != owner and (counts is None or counts(other)):
                    return True
            return False

        return overdrawn(pool, key, names, is_held)
