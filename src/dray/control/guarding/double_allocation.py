"""May this allocation land? The judge of the guard, without clock and network.

Schedulers write allocations into claims. Nothing in the API ties two claims together, so nothing
stops two writers from giving one device to two claims, except a judge that every such write must
pass before it lands.

Theory of operation. The API server shows each write to the judge together with the claim as it is
stored, at revision `base`. The write is a compare-and-swap: it lands only if the claim is at `base`
still, else the API server looks again and *asks again*. So a write that was admitted is in one
of three states: it landed (the claim is at a later revision and holds the allocation), it is
dead (the claim is at a later revision, or gone, without it), or it is in flight (the claim is at
`base`). The judge keeps a record of

  * what each claim holds according to the cache (list and watch, always some time behind), and
  * every admitted write until the cache shows the claim beyond its `base`, or gone.

Claim: at any moment, every allocation that is stored, and every one that may still land, is in
the record. For take an admitted write W on claim X with base b, whose allocation is stored now.
W made the first revision of X after b. If the cache shows X beyond b, then it shows a state at or
after W, and as the allocation is still there, the cache shows it. If the cache shows X at b or
earlier (or not at all yet), W's entry is still in the record. And if W may still land, X is at b, so
the cache cannot show it beyond b, and the entry is still there as well. How far the cache
lags does not matter.

A write is admitted only if it goes together with all the rest of the record. The rules (`dray.devices.conflicts`:
one claim for an exclusive device, sums below limits, a common compatibility group) are monotone: what
holds for a set holds for every subset. What is stored is a subset of the record, so it keeps the rules,
always.

Of one claim the record may hold several states: the one of the cache and several in flight. They
are alternatives, one at most is true, so they do not compete with each other; against other claims
each of them counts (for amounts: the largest).

This needs three things that the judge cannot see to, and that `guard` does: every write that allocates
is shown to it (webhook configuration in force, fail closed), there is one judge at a time (lease),
and a judge that begins knows of no write in flight because there is none (fencing).

A released device becomes free when the cache shows the release: later than the fact, never earlier.
Administrative access does not count, neither as a holder nor as a request.

Invariants: tests/property/test_guard_laws.py plays histories with delays, lost writes and restarts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dray.control.guarding.guard_views import Claim, Device, Result, Slice
from dray.devices import Conflict, DeviceId, Holds, Occupancy, Rule, Undo, holds_of


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
    holds: Holds  # what it takes if it lands
    release: Undo  # removes it from the ledger
    since: float  # when it was admitted, in the caller's time
    is_contested: bool = False  # another claim was refused what this one may get
    is_fenced: bool = False


class Judge:
    """The record of what is and what may come; see the module docstring. Not for several threads."""

    def __init__(self) -> None:
        self.occupancy: Occupancy[Device] = Occupancy()
        self._revisions: dict[str, int] = {}  # claim uid -> as the cache shows it
        self._stored: dict[str, tuple[Holds, Undo]] = {}  # claim uid -> what the cache shows
        self._flights: dict[str, list[Flight]] = {}  # claim uid -> oldest first
        self._keys: dict[str, str] = {}  # claim uid -> namespace/name, for messages

    # --- following --------------------------------------------------------------

    def set_slice(self, old: Slice | None, new: Slice | None) -> None:
        """Take note of a slice that came, changed or went."""
        self.occupancy.set_slice(old, new)

    def set_claim(self, old: Claim | None, new: Claim | None) -> bool:
        """Take note of what the cache shows; False for an allocation that nobody asked us about."""
        if new is None:
            assert old is not None
            self.forget(old.metadata.uid)
            return True
        uid, revision = new.metadata.uid, int(new.metadata.resource_version or 0)
        self._revisions[uid] = revision
        self._keys[uid] = f"{new.metadata.namespace}/{new.metadata.name}"
        before, after = self._stored_holds(uid), holds_of(new.results)
        is_known = True
        if before != after:
            flights = self._flights.get(uid, ())
            is_known = not after or any(each.holds == after for each in flights)
            self._release_stored(uid)
            if after:
                self._stored[uid] = (after, self.occupancy.take(uid, after))
        self._land(uid, revision)
        return is_known

    def _stored_holds(self, uid: str) -> Holds:
        holds, _ = self._stored.get(uid) or ({}, None)
        return holds

    def _release_stored(self, uid: str) -> None:
        found = self._stored.pop(uid, None)
        if found is not None:
            found[1]()

    def _land(self, uid: str, revision: int) -> None:
        """End the flights that have landed or died: the claim has left their base."""
        flights = self._flights.get(uid)
        if not flights:
            return
        for flight in flights:
            if flight.write.base < revision:
                flight.release()
        left = [flight for flight in flights if flight.write.base >= revision]
        if left:
            self._flights[uid] = left
        else:
            del self._flights[uid]

    def forget(self, uid: str) -> None:
        """A claim is gone, and with it all that was in flight to it: a uid never comes back."""
        self._release_stored(uid)
        for flight in self._flights.pop(uid, ()):
            flight.release()
        self._revisions.pop(uid, None)
        self._keys.pop(uid, None)

    def abandon(self, flight: Flight) -> None:
        """Strike out a write that can no longer land, as the caller knows from elsewhere."""
        flights = self._flights.get(flight.write.uid, [])
        if flight in flights:
            flight.release()
            flights.remove(flight)
            if not flights:
                del self._flights[flight.write.uid]

    # --- judging ----------------------------------------------------------------

    def admit(self, write: Write, now: float, *, is_dry_run: bool = False) -> Refused | None:
        """Enter a write into the record and return None, or say why it may not land.

        A dry run is judged and not entered: it never lands.
        """
        if self._revisions.get(write.uid, 0) > write.base:
            return Refused(f"claim {write.key} has changed meanwhile; read it again")
        holds = holds_of(write.results)
        refusal = self._flaw(write.results, holds)
        if refusal is None:
            conflict = self.occupancy.conflict(write.uid, holds)
            if conflict is not None:
                refusal = self._in_words(conflict)
                self._contest(write.uid, holds)
        if refusal is None and not is_dry_run and write.results:
            release = self.occupancy.take(write.uid, holds)
            self._flights.setdefault(write.uid, []).append(Flight(write, holds, release, now))
            self._keys.setdefault(write.uid, write.key)
        return refusal

    def _contest(self, uid: str, holds: Holds) -> None:
        """Mark the writes in flight that may be what a refused one has failed of."""
        for other in self.occupancy.involved(uid, holds):
            for flight in self._flights.get(other, ()):
                flight.is_contested = True

    def _flaw(self, results: Sequence[Result], holds: Holds) -> Refused | None:
        """Return what is wrong with a request by itself, whoever else holds what."""
        for key, hold in holds.items():
            facts = self.occupancy.pools.facts(key)
            if facts is None:
                return _refused(key, "is not published, as far as the guard has seen")
            if hold.shares and not facts.is_shareable:
                return _refused(key, "cannot be shared")
        n_held = sum([len(hold.shares) or 1 for hold in holds.values()])
        if n_held != sum([not result.admin_access for result in results]):
            named = Counter(
                (each.driver, each.pool, each.device) for each in results if not each.admin_access
            )
            key = next(key for key, hold in holds.items() if named[key] != (len(hold.shares) or 1))
            return _refused(key, "is named twice")
        return None

    def _in_words(self, conflict: Conflict) -> Refused:
        holder = self._keys.get(conflict.holder, conflict.holder)
        match conflict.rule:
            case Rule.HELD:
                text = f"is held by claim {holder}"
            case Rule.CAPACITY:
                text = f"has not enough {conflict.name} left for another share"
            case Rule.COUNTER:
                text = f"needs more of counter {conflict.name} in {conflict.counter_set} than is left"
            case Rule.GROUPS:
                text = "is not compatible with devices in use"
        return _refused(conflict.device, text, holder)

    # --- looking ----------------------------------------------------------------

    def flights(self) -> Iterator[Flight]:
        """Yield the admitted writes that the cache does not show yet."""
        for each in self._flights.values():
            yield from each

    def doubles(self) -> list[str]:
        """Name the exclusive devices that more than one claim holds: given before the guard came."""
        holders: dict[DeviceId, list[str]] = defaultdict(list)
        for uid, (holds, _) in self._stored.items():
            for device in holds:
                holders[device].append(uid)
        return [
            f"{device}: {', '.join(sorted(self._keys.get(uid, uid) for uid in uids))}"
            for device, uids in holders.items()
            if len(uids) > 1 and any(not self._stored_holds(uid)[device].shares for uid in uids)
        ]

    def revision(self, uid: str) -> int | None:
        """Return the revision at which the cache shows a claim, None when it does not."""
        return self._revisions.get(uid)


def _refused(device: DeviceId, why: str, holder: str = "") -> Refused:
    return Refused(f"device {device} {why}", str(device), holder)
