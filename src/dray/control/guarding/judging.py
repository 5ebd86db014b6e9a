"""May this allocation land? The judge of the guard, without clock and network.

Schedulers write allocations into claims. Nothing in the API ties two claims together, so nothing
stops two writers from giving one device to two claims, except a judge that every such write must
pass before it lands.

Theory of operation. The API server shows each write to the judge together with the claim as it is
stored, at revision `base`. The write is a compare-and-swap: it lands only if the claim is at `base`
still, else the API server looks again and *asks again*. So a write that was admitted is in one
of three states: it landed (the claim is at a later revision and holds the allocation), it is
dead (the claim is at a later revision, or gone, without it), or it is in flight (the claim is at
`base`). The judge keeps a book of

  * what each claim holds according to the cache (list and watch, always some time behind), and
  * every admitted write until the cache shows the claim beyond its `base`, or gone.

Claim: at any moment, every allocation that is stored, and every one that may still land, is in
the book. For take an admitted write W on claim X with base b, whose allocation is stored now.
W made the first revision of X after b. If the cache shows X beyond b, then it shows a state at or
after W, and as the allocation is still there, the cache shows it. If the cache shows X at b or
earlier (or not at all yet), W's entry is still in the book. And if W may still land, X is at b, so
the cache cannot show it beyond b, and the entry is still there as well. How far the cache
lags does not matter.

A write is admitted only if it goes together with all the rest of the book. The rules (one claim
for an exclusive device, sums below limits, a common compatibility group) are monotone: what
holds for a set holds for every subset. What is stored is a subset of the book, so it keeps the rules,
always.

Of one claim the book may hold several states: the one of the cache and several in flight. They
are alternatives, one at most is true, so they do not compete with each other; against other claims
each of them counts (for amounts: the largest).

This needs three things that the judge cannot see to, and that `guard` does: every write that allocates
is shown to it (webhook configuration in force, fail closed), there is one judge at a time (lease),
and a judge that begins knows of no write in flight because there is none (fencing).

A released device becomes free when the cache shows the release: later than the fact, never earlier.
Administrative access does not count, neither as a holder nor as a wish.

Invariants: tests/property/test_guard_laws.py plays histories with delays, lost writes and restarts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dray.control.guarding.inventory import DeviceKey, Inventory, KnownDevice, amount
from dray.control.guarding.views import Claim, Result, Slice

_STORED = -1  # the tag of the state that the cache shows; the others are numbers of writes


@dataclass(frozen=True, slots=True)
class Write:
    """A write that would give devices to a claim."""

    uid: str  # of the claim
    key: str  # namespace/name
    base: int  # the revision that it replaces
    results: Sequence[Result]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a write may not land."""

    message: str
    device: str = ""  # driver/pool/device that is in dispute
    holder: str = ""  # namespace/name of a claim that has it


@dataclass(slots=True)
class Flight:
    """An admitted write that the cache does not show yet."""

    write: Write
    number: int
    since: float  # when it was admitted, in the caller's time
    is_contested: bool = False  # another claim was refused what this one may get
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class _Hold:
    """What one state of a claim takes of one device."""

    shares: frozenset[str]  # empty means: all of it
    consumed: dict[str, int] = field(default_factory=dict)


_Holds = dict[DeviceKey, _Hold]


class Judge:
    """The book and the rules; see the module docstring. Not for several threads."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self._holders: dict[DeviceKey, dict[str, dict[int, _Hold]]] = {}  # -> claim uid -> state -> hold
        self._held_in_pool: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._revisions: dict[str, int] = {}  # claim uid -> as the cache shows it
        self._stored: dict[str, _Holds] = {}  # claim uid -> what the cache shows
        self._flights: dict[str, list[Flight]] = {}  # claim uid -> oldest first
        self._keys: dict[str, str] = {}  # claim uid -> namespace/name, for messages
        self._numbers = 0

    # --- following --------------------------------------------------------------

    def set_slice(self, old: Slice | None, new: Slice | None) -> None:
        """Take note of a slice that came, changed or went."""
        self.inventory.set_slice(old, new)

    def set_claim(self, old: Claim | None, new: Claim | None) -> bool:
        """Take note of what the cache shows; False for an allocation that nobody asked us about."""
        if new is None:
            assert old is not None
            self.forget(old.metadata.uid)
            return True
        uid, revision = new.metadata.uid, int(new.metadata.resource_version or 0)
        self._revisions[uid] = revision
        self._keys[uid] = f"{new.metadata.namespace}/{new.metadata.name}"
        before, after = self._stored.get(uid, {}), _holds_of(new.results)
        is_known = True
        if before != after:
            flights = self._flights.get(uid, ())
            is_known = not after or any(_holds_of(each.write.results) == after for each in flights)
            self._release(uid, _STORED, before)
            self._take(uid, _STORED, after)
            if after:
                self._stored[uid] = after
            else:
                self._stored.pop(uid, None)
        self._land(uid, revision)
        return is_known

    def _land(self, uid: str, revision: int) -> None:
        """End the flights that have landed or died: the claim has left their base."""
        flights = self._flights.get(uid)
        if not flights:
            return
        for flight in flights:
            if flight.write.base < revision:
                self._release(uid, flight.number, _holds_of(flight.write.results))
        left = [flight for flight in flights if flight.write.base >= revision]
        if left:
            self._flights[uid] = left
        else:
            del self._flights[uid]

    def forget(self, uid: str) -> None:
        """A claim is gone, and with it all that was in flight to it: a uid never comes back."""
        self._release(uid, _STORED, self._stored.pop(uid, {}))
        for flight in self._flights.pop(uid, ()):
            self._release(uid, flight.number, _holds_of(flight.write.results))
        self._revisions.pop(uid, None)
        self._keys.pop(uid, None)

    def abandon(self, flight: Flight) -> None:
        """Strike out a write that can no longer land, as the caller knows from elsewhere."""
        flights = self._flights.get(flight.write.uid, [])
        if flight in flights:
            self._release(flight.write.uid, flight.number, _holds_of(flight.write.results))
            flights.remove(flight)
            if not flights:
                del self._flights[flight.write.uid]

    # --- judging ----------------------------------------------------------------

    def admit(self, write: Write, now: float, *, is_dry_run: bool = False) -> Refused | None:
        """Enter a write into the book and return None, or say why it may not land.

        A dry run is judged and not entered: it never lands.
        """
        if self._revisions.get(write.uid, 0) > write.base:
            return Refused(f"claim {write.key} has changed meanwhile; read it again")
        refusal = self.judge(write.uid, write.results)
        if refusal is not None:
            self._contest(write)
        elif not is_dry_run and write.results:
            self._numbers += 1
            self._flights.setdefault(write.uid, []).append(Flight(write, self._numbers, now))
            self._keys.setdefault(write.uid, write.key)
            self._take(write.uid, self._numbers, _holds_of(write.results))
        return refusal

    def _contest(self, write: Write) -> None:
        """Mark the writes in flight that may be what a refused one has failed of."""
        for pool in {(result.driver, result.pool) for result in write.results}:
            for name in self._held_in_pool.get(pool, ()):
                for other in self._holders[*pool, name]:
                    if other != write.uid:
                        for flight in self._flights.get(other, ()):
                            flight.is_contested = True

    def judge(self, uid: str, results: Iterable[Result]) -> Refused | None:
        """Say what stands against giving these devices to the claim, None when nothing does."""
        devices: dict[DeviceKey, KnownDevice] = {}
        wanted = [result for result in results if not result.admin_access]
        for result in wanted:
            key = _key(result)
            known = self.inventory.device(key)
            if known is None:
                return Refused(
                    f"device {_spell(key)} is not published, as far as the guard has seen", _spell(key)
                )
            if result.share_id is not None and not known.is_shareable:
                return Refused(f"device {_spell(key)} cannot be shared", _spell(key))
            if key in devices and result.share_id is None:
                return Refused(f"device {_spell(key)} is named twice", _spell(key))
            devices[key] = known
        holds = _holds_of(wanted)
        for key, hold in holds.items():
            refusal = self._judge_device(uid, key, hold, devices[key])
            if refusal is not None:
                return refusal
        for pool in {key[:2] for key, known in devices.items() if known.draws}:
            refusal = self._judge_counters(uid, pool, {key[2] for key in holds if key[:2] == pool})
            if refusal is not None:
                return refusal
        return None

    def _judge_device(self, uid: str, key: DeviceKey, hold: _Hold, known: KnownDevice) -> Refused | None:
        used: dict[str, int] = defaultdict(int, hold.consumed)
        for other, states in self._holders.get(key, {}).items():
            if other == uid:
                continue
            for state in states.values():
                if not hold.shares or not state.shares or hold.shares & state.shares:
                    holder = self._keys.get(other, other)
                    return Refused(f"device {_spell(key)} is held by claim {holder}", _spell(key), holder)
            for name in hold.consumed:
                used[name] += max(state.consumed.get(name, 0) for state in states.values())
        for name in hold.consumed:
            if used[name] > known.capacity.get(name, 0):
                text = f"device {_spell(key)} has not enough {name} left for another share"
                return Refused(text, _spell(key), self._other_holder(key, uid))
        return None

    def _judge_counters(self, uid: str, pool: tuple[str, str], names: set[str]) -> Refused | None:
        """Add up what all devices in use draw from the counters that the wanted ones draw from."""
        in_use = set(names)
        for name in self._held_in_pool.get(pool, ()):
            if name not in in_use and any(other != uid for other in self._holders[*pool, name]):
                in_use.add(name)
        drawn: dict[tuple[str, str], int] = defaultdict(int)
        groups: dict[str, frozenset[str] | None] = {}  # counter set -> groups that all users have in common
        for name in in_use:
            known = self.inventory.device((*pool, name))
            for draw in known.draws if known is not None else ():
                for counter, value in draw.counters.items():
                    drawn[draw.counter_set, counter] += value
                groups[draw.counter_set] = _common(groups, draw.counter_set, draw.groups)
        limits = self.inventory.limits(pool)
        for name in sorted(names):
            known = self.inventory.device((*pool, name))
            for draw in known.draws if known is not None else ():
                spelled = _spell((*pool, name))
                if groups[draw.counter_set] is None:
                    return Refused(f"device {spelled} is not compatible with devices in use", spelled)
                for counter in draw.counters:
                    where = (draw.counter_set, counter)
                    if drawn[where] > limits.get(where, 0):
                        text = f"device {spelled} needs more of counter {counter} in {draw.counter_set} than is left"
                        return Refused(text, spelled)
        return None

    def _other_holder(self, key: DeviceKey, uid: str) -> str:
        other = next((each for each in self._holders.get(key, {}) if each != uid), "")
        return self._keys.get(other, other)

    # --- looking ----------------------------------------------------------------

    def flights(self) -> Iterator[Flight]:
        """Yield the admitted writes that the cache does not show yet."""
        for each in self._flights.values():
            yield from each

    def doubles(self) -> list[str]:
        """Name the exclusive devices that more than one claim holds: given before the guard came."""
        return [
            f"{_spell(key)}: {', '.join(sorted(self._keys.get(uid, uid) for uid in stored))}"
            for key, holders in self._holders.items()
            if len(stored := {uid: states[_STORED] for uid, states in holders.items() if _STORED in states})
            > 1
            and any(not hold.shares for hold in stored.values())
        ]

    def revision(self, uid: str) -> int | None:
        """Return the revision at which the cache shows a claim, None when it does not."""
        return self._revisions.get(uid)

    # --- the book ---------------------------------------------------------------

    def _take(self, uid: str, tag: int, holds: _Holds) -> None:
        for key, hold in holds.items():
            self._holders.setdefault(key, {}).setdefault(uid, {})[tag] = hold
            self._held_in_pool[key[:2]].add(key[2])

    def _release(self, uid: str, tag: int, holds: _Holds) -> None:
        for key in holds:
            holders = self._holders[key]
            del holders[uid][tag]
            if not holders[uid]:
                del holders[uid]
            if not holders:
                del self._holders[key]
                self._held_in_pool[key[:2]].discard(key[2])


def _holds_of(results: Iterable[Result]) -> _Holds:
    """Add up what an allocation takes of each device."""
    holds: _Holds = {}
    for result in results:
        if result.admin_access:
            continue
        key = _key(result)
        share = frozenset() if result.share_id is None else frozenset({result.share_id})
        known = holds.get(key)
        consumed = dict(known.consumed) if known is not None else {}
        for name, value in (result.consumed_capacity or {}).items():
            consumed[name] = consumed.get(name, 0) + amount(value)
        if known is not None:
            # One exclusive entry makes the whole device taken.
            share = known.shares | share if known.shares and share else frozenset()
        holds[key] = _Hold(share, consumed)
    return holds


def _common(
    groups: dict[str, frozenset[str] | None], counter_set: str, mine: frozenset[str]
) -> frozenset[str] | None:
    """Intersect compatibility groups; None means that nothing is left. No groups go with no groups only."""
    if counter_set not in groups:
        return mine
    so_far = groups[counter_set]
    if so_far is None:
        return None
    if not so_far and not mine:
        return so_far
    return (so_far & mine) or None


def _key(result: Result) -> DeviceKey:
    return result.driver, result.pool, result.device


def _spell(key: DeviceKey) -> str:
    return "/".join(key)
