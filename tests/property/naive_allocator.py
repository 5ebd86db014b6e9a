"""A slow and simple allocator to compare with: tries everything, remembers nothing.

It walks claims, requests and devices in upstream's order on plain data, copies its state
at every step and has no bounds, no symmetry and no sharing between nodes. Selectors are
not CEL but functions of the device (`SELECTORS`), so CEL is not part of the comparison's
trusted base. Amounts of shares come from dray's own arithmetic, which has its own tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dray.allocator.capacity import AmountError, Need, need_of
from dray.allocator.device_facts import CapacityFacts
from dray.api.quantity import parse_quantity
from dray.api.resource import Device, DeviceAttribute, DeviceTaint, DeviceToleration

MAX_RESULTS = 32


class Error(Exception):
    """Ends the attempt; the text is the last part of upstream's."""


class Exceeded(Exception):
    """Too many devices in the claim."""


def _kind(device: Device) -> str:
    attribute = (device.attributes or {}).get("kind")
    if attribute is None:
        raise Error("no such key: kind")
    return attribute.string or ""


SELECTORS: dict[str, Callable[[str, Device], bool]] = {
    "true": lambda driver, device: True,
    'device.driver == "d1"': lambda driver, device: driver == "d1",
    'device.attributes["d1"].kind == "a"': lambda driver, device: (
        driver == "d1" and _kind(device) == "a" if driver == "d1" else _fail("no such key: kind")
    ),
    'device.attributes["d1"].?kind.orValue("") == "a"': lambda driver, device: (
        driver == "d1" and "kind" in (device.attributes or {}) and _kind(device) == "a"
    ),
    'device.attributes["d1"].?kind.orValue("") == "b"': lambda driver, device: (
        driver == "d1" and "kind" in (device.attributes or {}) and _kind(device) == "b"
    ),
    "device.allowMultipleAllocations": lambda driver, device: bool(device.allow_multiple_allocations),
}


def _fail(text: str) -> bool:
    raise Error(text)


@dataclass
class Found:
    """One device of the node."""

    id: tuple[str, str, str]
    device: Device
    pool: Any


@dataclass
class State:
    """Everything that changes on the way; copied at every step."""

    taken: dict[tuple[str, str, str], set[int]] = field(default_factory=dict)
    allocating: dict[tuple[str, str, str], dict[str, int]] = field(default_factory=dict)
    drawn: dict[tuple[Any, str, str], int] = field(default_factory=dict)
    groups: dict[tuple[Any, str], tuple[bool, frozenset[str]] | None] = field(default_factory=dict)
    values: dict[tuple[int, int], list[frozenset[Any]]] = field(default_factory=dict)
    results: dict[int, list[tuple[str, tuple[str, str, str], bool]]] = field(default_factory=dict)

    def copy(self) -> State:
        return State(
            {k: set(v) for k, v in self.taken.items()},
            {k: dict(v) for k, v in self.allocating.items()},
            dict(self.drawn),
            dict(self.groups),
            {k: list(v) for k, v in self.values.items()},
            {k: list(v) for k, v in self.results.items()},
        )


class NaiveAllocator:
    """One node, one pod."""

    def __init__(self, inventory: NaiveInventory, claims: list[Any]) -> None:
        self.inventory = inventory
        self.claims = claims
        self.gates = inventory.gates
        self.calls = 0

    # --- before the search -----------------------------------------------------

    def allocate(self) -> list[list[tuple[str, tuple[str, str, str], bool]]] | None:
        """Return per claim the (request, device, is share) triples; None when they do not fit."""
        self.all_rows: dict[tuple[int, int, int], list[Found]] = {}
        for claim_index, claim in enumerate(self.claims):
            least = 0
            for request_index, request in enumerate(claim.spec.devices.requests):
                counts = []
                for sub_index, subrequest in enumerate(subrequests_of(request)):
                    if subrequest.allocation_mode == "All":
                        row = self._all(subrequest)
                        self.all_rows[claim_index, request_index, sub_index] = row
                        counts.append(len(row))
                    else:
                        counts.append(subrequest.count)
                if min(counts) > MAX_RESULTS - least:
                    raise Error(
                        f"adding {min(counts)} devices exceeds the claim limit of 32, with {least} already accounted for"
                    )
                least += min(counts)
        try:
            state = self._request(0, 0, State())
        except Exceeded:
            state = None
        if state is None:
            if any(pool.invalid for pool in self.inventory.pools):
                raise Error("invalid resource pools were encountered")
            return None
        return [state.results.get(index, []) for index in range(len(self.claims))]

    def _all(self, subrequest: Any) -> list[Found]:
        row = []
        for pool in self.inventory.pools:
            if pool.incomplete:
                raise Error(f"asks for all devices, but resource pool {pool.name} is currently being updated")
            if pool.invalid:
                raise Error(f"asks for all devices, but resource pool {pool.name} is currently invalid")
            for found in pool.devices:
                if self._selectable(subrequest, found):
                    if self.gates.shares:
                        need = self._need(subrequest, found)
                        if need is None or (found.device.capacity and not self._fits(need, found, {}, {})):
                            continue
                    row.append(found)
        return row

    # --- the search ------------------------------------------------------------

    def _request(self, claim_index: int, request_index: int, state: State) -> State | None:
        self.calls += 1
        if self.calls > 2_000:
            raise TooBig
        if claim_index == len(self.claims):
            return state
        requests = self.claims[claim_index].spec.devices.requests
        if request_index == len(requests):
            try:
                return self._request(claim_index + 1, 0, state)
            except Exceeded:
                return None
        request = requests[request_index]
        if not request.first_available:
            return self._devices(claim_index, request_index, 0, 0, 0, state)
        exceeded = True
        for sub_index in range(len(request.first_available)):
            try:
                found = self._devices(claim_index, request_index, sub_index, 0, 0, state)
            except Exceeded:
                continue
            exceeded = False
            if found is not None:
                return found
        if exceeded:
            raise Exceeded
        return None

    def _devices(
        self, claim_index: int, request_index: int, sub_index: int, done: int, start: int, state: State
    ) -> State | None:
        self.calls += 1
        if self.calls > 2_000:
            raise TooBig
        request = self.claims[claim_index].spec.devices.requests[request_index]
        subrequest = subrequests_of(request)[sub_index]
        name = f"{request.name}/{subrequest.name}" if request.first_available else request.name
        row = self.all_rows.get((claim_index, request_index, sub_index))
        if row is not None and not row:
            return None
        count = subrequest.count if row is None else len(row)
        if done == count:
            return self._request(claim_index, request_index + 1, state)
        if count - done > MAX_RESULTS - len(state.results.get(claim_index, [])):
            raise Exceeded
        if row is not None:
            next_state = self._take(claim_index, subrequest, name, row[done], state.copy(), must=True)
            if next_state is None:
                return None
            return self._devices(claim_index, request_index, sub_index, done + 1, 0, next_state)
        devices = [
            d
            for pool in self.inventory.pools
            if not pool.incomplete and not pool.invalid
            for d in pool.devices
        ]
        for index in range(start, len(devices)):
            found = devices[index]
            if self._in_use(claim_index, subrequest, found, state):
                continue
            if not self._selectable(subrequest, found):
                continue
            if self.gates.shares:
                need = self._need(subrequest, found)
                if need is None or not self._has_room(need, found, state):
                    continue
            next_state = self._take(claim_index, subrequest, name, found, state.copy(), must=False)
            if next_state is None:
                continue
            solved = self._devices(claim_index, request_index, sub_index, done + 1, index + 1, next_state)
            if solved is not None:
                return solved
        return None

    # --- one device ------------------------------------------------------------

    def _in_use(self, claim_index: int, subrequest: Any, found: Found, state: State) -> bool:
        if admin(subrequest):
            return claim_index in state.taken.get(found.id, ())
        return found.id in self.inventory.dedicated or bool(state.taken.get(found.id))

    def _selectable(self, subrequest: Any, found: Found) -> bool:
        if found.device.binding_conditions and not self.gates.conditions:
            return False
        for text in [
            *self.inventory.class_selectors[subrequest.device_class_name],
            *(s.cel.expression for s in subrequest.selectors),
        ]:
            try:
                if not SELECTORS[text](found.id[0], found.device):
                    return False
            except Error as error:
                raise Error(f"on device {'/'.join(found.id)}: CEL runtime error: {error}") from None
        return True

    def _need(self, subrequest: Any, found: Found) -> Need | None:
        requested = (
            {k: parse_quantity(v) for k, v in subrequest.capacity.requests.items()}
            if subrequest.capacity
            else None
        )
        if not found.device.capacity:
            return None if requested else Need({})
        try:
            return need_of(
                requested, CapacityFacts(0, found.device.capacity), fractional=self.gates.fractional
            )
        except AmountError as error:
            named = found.id[2] if subrequest.allocation_mode == "All" else "/".join(found.id)
            raise Error(f"checking capacity for device {named}: {error}") from error

    def _fits(self, need: Need, found: Found, used: dict[str, int], now: dict[str, int]) -> bool:
        return all(
            used.get(name, 0) + now.get(name, 0) + nanos
            <= parse_quantity((found.device.capacity or {})[name].value).nanos
            for name, nanos in need.nanos.items()
        )

    def _has_room(self, need: Need, found: Found, state: State) -> bool:
        return self._fits(
            need, found, self.inventory.consumed.get(found.id, {}), state.allocating.get(found.id, {})
        )

    def _take(
        self, claim_index: int, subrequest: Any, name: str, found: Found, state: State, *, must: bool
    ) -> State | None:
        device = found.device
        is_shared = self.gates.shares and bool(device.allow_multiple_allocations)
        if not is_shared and admin(subrequest) and claim_index in state.taken.get(found.id, ()):
            return None
        if not admin(subrequest) and (found.id in self.inventory.dedicated or state.taken.get(found.id)):
            return None
        again = is_shared and (found.id in self.inventory.in_shares or found.id in state.allocating)
        if device.consumes_counters and not again:
            if self.gates.groups and not self._join_groups(found, state):
                return None
            if not self._draw(found, state):
                return None
        if any(
            t.effect in ("NoSchedule", "NoExecute")
            and not any(tolerated(o, t) for o in subrequest.tolerations)
            for t in device.taints
        ):
            return None
        for number, constraint in enumerate(self.claims[claim_index].spec.devices.constraints):
            if constraint.requests and not {name, name.partition("/")[0]} & set(constraint.requests):
                continue
            if not self._join(state.values.setdefault((claim_index, number), []), constraint, found):
                if must:
                    raise Error(
                        f"cannot add device {'/'.join(found.id)} because a claim constraint would not be satisfied"
                    )
                return None
        if self.gates.shares:
            need = self._need(subrequest, found)
            if need is None or not self._has_room(need, found, state):
                return None
            if is_shared:
                amounts = state.allocating.setdefault(found.id, {})
                for capacity, nanos in need.nanos.items():
                    amounts[capacity] = amounts.get(capacity, 0) + nanos
        if not is_shared:
            state.taken.setdefault(found.id, set()).add(claim_index)
        state.results.setdefault(claim_index, []).append((name, found.id, is_shared))
        return state

    def _join_groups(self, found: Found, state: State) -> bool:
        for consumption in found.device.consumes_counters:
            key = (found.pool.name, consumption.counter_set)
            if key not in state.groups:
                state.groups[key] = None
                for peer in found.pool.devices:
                    if peer.id in self.inventory.dedicated or peer.id in self.inventory.in_shares:
                        for other in peer.device.consumes_counters:
                            if other.counter_set == consumption.counter_set:
                                state.groups[key] = folded(
                                    state.groups[key], frozenset(other.compatibility_groups)
                                )
            running = state.groups[key]
            groups = frozenset(consumption.compatibility_groups)
            if running is not None:
                all_empty, common = running
                if all_empty != (not groups) or (groups and not common & groups):
                    return False
            state.groups[key] = folded(running, groups)
        return True

    def _draw(self, found: Found, state: State) -> bool:
        pool = found.pool
        for consumption in found.device.consumes_counters:
            for counter, amount in consumption.counters.items():
                key = (pool.name, consumption.counter_set, counter)
                state.drawn[key] = state.drawn.get(key, 0) + parse_quantity(amount.value).nanos
        for set_name, counters in pool.counters.items():
            for counter, total in counters.items():
                used = sum(
                    parse_quantity(c.counters[counter].value).nanos
                    for peer in pool.devices
                    if peer.id in self.inventory.dedicated or peer.id in self.inventory.in_shares
                    for c in peer.device.consumes_counters
                    if c.counter_set == set_name and counter in c.counters
                )
                if total - used < state.drawn.get((pool.name, set_name, counter), 0):
                    return False
        return True

    def _join(self, members: list[frozenset[Any]], constraint: Any, found: Found) -> bool:
        full = constraint.match_attribute or constraint.distinct_attribute
        attributes = found.device.attributes or {}
        attribute = attributes.get(full)
        if attribute is None and full.partition("/")[0] == found.id[0]:
            attribute = attributes.get(full.partition("/")[2])
        if attribute is None:
            return False
        value = value_of(attribute, lists=self.gates.list_attributes)
        if constraint.match_attribute:
            common = value
            for member in members:
                common &= member
            if not common:
                return False
        elif any(member & value for member in members):
            return False
        members.append(value)
        return True


class TooBig(Exception):
    """The naive search takes too long to be useful."""


@dataclass
class NaivePool:
    """One pool of the node."""

    name: str
    devices: list[Found]
    counters: dict[str, dict[str, int]]
    incomplete: bool
    invalid: bool


@dataclass
class NaiveInventory:
    """What the naive allocator knows."""

    gates: Any
    pools: list[NaivePool]
    class_selectors: dict[str, list[str]]
    dedicated: set[tuple[str, str, str]]
    in_shares: set[tuple[str, str, str]]
    consumed: dict[tuple[str, str, str], dict[str, int]]


def subrequests_of(request: Any) -> list[Any]:
    return list(request.first_available) or [request.exactly]


def admin(subrequest: Any) -> bool:
    return bool(getattr(subrequest, "admin_access", None))


def tolerated(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    return (
        toleration.effect in ("", taint.effect)
        and toleration.key in ("", taint.key)
        and (toleration.operator == "Exists" or toleration.value == taint.value)
    )


def folded(
    running: tuple[bool, frozenset[str]] | None, groups: frozenset[str]
) -> tuple[bool, frozenset[str]]:
    if running is None:
        return (not groups, groups)
    all_empty, common = running
    if all_empty or not groups:
        return running
    return (False, common & groups)


def value_of(attribute: DeviceAttribute, *, lists: bool) -> frozenset[Any]:
    if lists:
        for kind, values in (("i", attribute.ints), ("s", attribute.strings)):
            if values:
                return frozenset((kind, v) for v in values)
    for kind, value in (("s", attribute.string), ("i", attribute.int_value)):
        if value is not None:
            return frozenset({(kind, value)})
    return frozenset({object()})
