"""Pools: which devices a node sees, in which order, and what is left of them.

A driver publishes a pool in several slices and replaces it by a new generation,
slice by slice. A node sees the slices meant for it; whether these make a whole and
valid pool may depend on slices meant for other nodes.

Theory of operation:

  * `PoolRecord` keeps the slices of one (driver, pool), indexed by node.
  * `PoolRecord.view_for(node)` applies the rules (highest generation among the slices
    the node sees; whole if their number is the announced one, else count all slices of
    that generation; obsolete if a newer generation exists anywhere) and returns a
    `PoolView`: the devices in order, as bits of an integer. Nodes that see the same
    slices share one view.
  * The ledger tells the record which device changed; the views keep bit sets of
    dedicated and shared devices, so "free and matching" is one `&`.

Two nodes whose views have equal `structure`, equal attribute columns and equal
`ledger_key` are the same problem: that is what lets one search answer for many nodes.

Invariant: a view never changes but for its ledger part; new slices make new views.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from copy import copy

import msgspec

from dray.allocator.device_facts import DeviceFacts, Interner, SliceFacts, attribute_of
from dray.allocator.gates import Gates
from dray.allocator.node_selectors import node_matches
from dray.api.core import Node
from dray.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dray.devices import Amounts, DeviceId, DeviceUse, Groups, PoolId, admits_groups, narrow_groups

CounterSets = dict[str, dict[str, int]]  # counter set -> counter -> nanos


class PoolView:
    """One pool as some nodes see it."""

    __slots__ = (
        "_available",
        "_columns",
        "_ledger_key",
        "_published",
        "all_devices",
        "bit_by_name",
        "consumed",
        "consumers",
        "counter_sets",
        "dedicated",
        "devices",
        "elsewhere",
        "has_conditions",
        "id",
        "intern",
        "invalid_reason",
        "is_incomplete",
        "node",
        "node_match",
        "pool_classes",
        "record",
        "shareable",
        "shared",
        "structure",
    )

    def __init__(
        self,
        record: PoolRecord,
        slices: list[SliceFacts],
        *,
        node_match: int | None = None,
        whole: Generation | None = None,
        elsewhere: Generation | None = None,
        is_incomplete: bool = False,
        invalid_reason: str = "",
    ) -> None:
        self.record = record
        self.id = record.id
        self.intern = record.intern
        self.is_incomplete = is_incomplete
        self.invalid_reason = invalid_reason
        usable = () if is_incomplete or invalid_reason else slices
        self.devices: tuple[DeviceFacts, ...] = tuple(d for s in usable for d in s.devices)
        self.all_devices = (1 << len(self.devices)) - 1  # bits
        self.node_match = self.all_devices if node_match is None else node_match
        self.counter_sets = whole.counter_sets if whole else {}
        self.elsewhere = elsewhere  # the whole generation, where the node sees only a part
        self.has_conditions = any(d.device.binding_conditions is not None for d in self.devices)
        self.shareable = _mask([d.is_shared for d in self.devices])
        self.consumers = _mask([bool(d.consumes) for d in self.devices])
        self.bit_by_name = {d.name: bit for bit, d in enumerate(self.devices)}
        self.structure = record.intern(
            (
                record.id[0],
                is_incomplete,
                bool(invalid_reason),
                tuple((s.shape, len(s.devices)) for s in usable),
                tuple([d.shape for d in self.devices]),
                self.node_match,
            )
        )
        self.node = ""  # the only node that sees it; empty means: several may
        self.dedicated = 0  # bits of devices that nobody else may have
        self.shared = 0  # bits of devices of which somebody holds a share
        self.consumed: dict[int, Amounts] = {}  # bit -> capacity -> nanos
        self._ledger_key: Hashable = None
        self._available: tuple[CounterSets, dict[str, Groups]] | None = None
        self._columns: dict[str, int] = {}
        self._published: dict[str, int] | None = None  # attribute as published -> column
        self.pool_classes: dict[int, int] = {}  # number of a NodeClasses -> class of the pool
        uses = record.uses()
        if uses:
            for name, use in uses.items():
                self.set_use(name, use)

    @property
    def is_usable(self) -> bool:
        """Return whether devices may be taken from the pool."""
        return not self.is_incomplete and not self.invalid_reason

    def device_id(self, bit: int) -> DeviceId:
        """Return the identity of the device at a bit."""
        return DeviceId(self.id[0], self.id[1], self.devices[bit].name)

    def set_use(self, name: str, use: DeviceUse | None) -> None:
        """Take over what the ledger says about one device of the pool, here or on other nodes."""
        bit = self.bit_by_name.get(name)
        if bit is not None:
            mask = 1 << bit
            self.dedicated = self.dedicated | mask if use and use.is_whole else self.dedicated & ~mask
            self.shared = self.shared | mask if use and use.is_shared else self.shared & ~mask
            if use and use.consumed:
                self.consumed[bit] = dict(use.consumed)
            else:
                self.consumed.pop(bit, None)
        elif not self.counter_sets:
            return
        self._ledger_key = None
        self._available = None

    @property
    def ledger_key(self) -> Hashable:
        """Return a key that is equal where the same is left of equal pools."""
        key = self._ledger_key
        if key is None:
            if not self.shared and not self.counter_sets:
                key = self.dedicated
            else:
                consumed = tuple(sorted((bit, tuple(sorted(a.items()))) for bit, a in self.consumed.items()))
                available: Hashable = ()
                if self.counter_sets:
                    counters, groups = self.available()
                    available = (
                        tuple((s, tuple(sorted(c.items()))) for s, c in sorted(counters.items())),
                        tuple(sorted((s, g) for s, g in groups.items() if g is not None)),
                    )
                key = (self.dedicated, self.shared, consumed, available)
            self._ledger_key = key
        return key

    def available(self) -> tuple[CounterSets, dict[str, Groups]]:
        """Return what is left of the counters, and the groups that devices in use agree on.

        Devices in use on other nodes count as well. Left may be negative.
        """
        found = self._available
        if found is None:
            left = {name: dict(counters) for name, counters in self.counter_sets.items()}
            groups: dict[str, Groups] = {}
            uses = self.record.uses()
            for device in self._devices_in_use(uses) if uses else ():
                for consumption in device.consumes:
                    counters = left.get(consumption.counter_set)
                    for name, nanos in consumption.counters:
                        if counters is not None and name in counters:
                            counters[name] -= nanos
                    groups[consumption.counter_set] = narrow_groups(
                        groups.get(consumption.counter_set), consumption.groups
                    )
            found = self._available = (left, groups)
        return found

    def shortage(self, bit: int, *, with_groups: bool) -> tuple[str, str] | None:
        """Return what keeps a device from being taken as well: ("counters" or "groups", in words); None: nothing.

        Only devices that draw from counters can lack something; whether the device itself is in use
        is another query.
        """
        if not self.devices[bit].consumes:
            return None
        left, groups = self.available()
        for consumption in self.devices[bit].consumes:
            name_of_set = consumption.counter_set
            if with_groups and not admits_groups(groups.get(name_of_set), consumption.groups):
                return "groups", f"counter set {name_of_set} is used by devices of other groups"
            for name, nanos in consumption.counters:
                if left[name_of_set][name] < nanos:
                    return "counters", f"too little of {name_of_set}/{name} is left"
        for name_of_set, counters in left.items():
            for name, nanos in counters.items():
                if nanos < 0:
                    return "counters", f"{name_of_set}/{name} is overdrawn"
        return None

    def _devices_in_use(self, uses: dict[str, DeviceUse]) -> Iterable[DeviceFacts]:
        """Yield the devices in use that draw from the pool's counters, on whatever node they are.

        In the order of the slices, not in that in which they were taken: devices that disagree about
        their compatibility groups (slices may have changed) give another result in another order.
        """
        found = (self.bit_by_name.get(name) for name in uses)
        for bit in sorted(bit for bit in found if bit is not None):
            yield self.devices[bit]
        if self.elsewhere is not None:
            own = {d.resource_slice.key for d in self.devices}
            for facts in self.elsewhere.slices:
                if facts.key not in own and not facts.has_counters:
                    yield from (d for d in facts.devices if d.name in uses)

    def emptied(self) -> PoolView:
        """Return a view of the pool as it would be with nothing in use; it does not follow the ledger."""
        found = copy(self)
        found.dedicated = found.shared = 0
        found.consumed = {}
        found._ledger_key = None
        found._available = ({name: dict(counters) for name, counters in self.counter_sets.items()}, {})
        return found

    def frozen(self) -> PoolView:
        """Return a view of the pool as it is used now; it does not follow the ledger."""
        found = copy(self)
        found.consumed = dict(self.consumed)
        return found

    def column(self, attribute: str) -> int:
        """Return a number that is equal for pools whose devices carry equal values of an attribute."""
        found = self._columns.get(attribute)
        if found is None:
            found = self._columns[attribute] = self._prepared(attribute)
        return found

    def columns(self, names: list[tuple[str, str]]) -> list[int]:
        """Return the column of each attribute (domain/id, id if that may stand for it); -1: no device has it."""
        self.prepare()
        published = self._published
        assert published is not None
        found = []
        for name, bare in names:
            column = published.get(name, -1)
            if bare and bare in published:
                column = published[bare] if column < 0 else self.column(name)
            found.append(column)
        return found

    def prepare(self) -> None:
        """Number the columns of all published attributes, so that the first query finds them ready."""
        if self._published is not None:
            return
        total = len(self.devices)
        table: dict[str, list[object]] = {}
        for bit, facts in enumerate(self.devices):
            for name, attribute in (facts.device.attributes or {}).items():
                column = table.get(name)
                if column is None:
                    column = table[name] = [None] * total
                # Bare texts hash and compare much faster than the struct around them.
                column[bit] = attribute if attribute.string is None else attribute.string
        self._published = {name: self.intern(_hashable(tuple(column))) for name, column in table.items()}

    def _prepared(self, attribute: str) -> int:
        self.prepare()
        assert self._published is not None
        domain, _, bare = attribute.partition("/")
        full_column = self._published.get(attribute)
        bare_column = self._published.get(bare) if domain == self.id[0] else None
        if full_column is not None and bare_column is not None:
            # Some devices with, some without the domain: look device by device.
            values = [attribute_of(d.device.attributes, domain, attribute) for d in self.devices]
            plain = [v if v is None or v.string is None else v.string for v in values]
            return self.intern(_hashable(tuple(plain)))
        found = full_column if full_column is not None else bare_column
        return self.intern((None,) * len(self.devices)) if found is None else found

    def all_attributes(self) -> int:
        """Return a number that is equal for pools whose devices carry equal attributes."""
        found = self._columns.get("")
        if found is None:
            values = tuple(
                tuple(sorted((n, _hashable((v,))) for n, v in (d.device.attributes or {}).items()))
                for d in self.devices
            )
            found = self._columns[""] = self.intern(values)
        return found


def _mask(flags: list[bool]) -> int:
    bits = 0
    if True in flags:
        for bit, flag in enumerate(flags):
            if flag:
                bits |= 1 << bit
    return bits


def _hashable(values: tuple[object, ...]) -> Hashable:
    try:
        hash(values)
    except TypeError:  # list attributes
        return msgspec.json.encode(values)
    return values


class Generation:
    """What all slices of one generation of a pool say together."""

    __slots__ = ("counter_sets", "invalid_reason", "slices")

    def __init__(self, slices: list[SliceFacts], gates: Gates) -> None:
        self.slices = slices
        self.counter_sets: CounterSets = {}
        self.invalid_reason = ""
        if gates.partitionable:
            self.counter_sets, self.invalid_reason = _counter_sets(slices)


class PoolRecord:
    """All slices of one (driver, pool), whatever their generation."""

    def __init__(
        self, id: PoolId, gates: Gates, intern: Interner, ledger: dict[PoolId, dict[str, DeviceUse]]
    ) -> None:
        self.id = id
        self.intern = intern
        self._gates = gates
        self._ledger = ledger
        self.by_key: dict[str, SliceFacts] = {}
        self.by_node: dict[str, dict[str, SliceFacts]] = {}
        self.without_node: dict[str, SliceFacts] = {}  # slices without a node name
        self._views: dict[Hashable, PoolView | None] = {}
        self._views_by_device: dict[str, list[PoolView]] = {}
        self._generations: dict[int, Generation] = {}
        self._newest: int | None = None  # highest generation of any slice

    def uses(self) -> dict[str, DeviceUse] | None:
        """Return what the ledger says about the devices of this pool."""
        return self._ledger.get(self.id)

    def add(self, facts: SliceFacts) -> None:
        """Add or replace a slice."""
        old = self.by_key.get(facts.key)
        if old is not None and old.node_name != facts.node_name:
            self._slices_of_scope(old).pop(facts.key, None)
        self.by_key[facts.key] = facts
        self._slices_of_scope(facts)[facts.key] = facts
        self._forget_views()

    def remove(self, facts: SliceFacts) -> None:
        """Remove a slice."""
        self.by_key.pop(facts.key, None)
        self._slices_of_scope(facts).pop(facts.key, None)
        if facts.node_name and not self.by_node[facts.node_name]:
            del self.by_node[facts.node_name]
        self._forget_views()

    def _slices_of_scope(self, facts: SliceFacts) -> dict[str, SliceFacts]:
        if not facts.node_name:
            return self.without_node
        return self.by_node.setdefault(facts.node_name, {})

    def _forget_views(self) -> None:
        self._views.clear()
        self._views_by_device.clear()
        self._generations.clear()
        self._newest = None

    def set_use(self, name: str, use: DeviceUse | None) -> list[str]:
        """Pass a change of the ledger on; return the nodes concerned, "" among them means: many."""
        has_counters = any(v is not None and v.counter_sets for v in self._views.values())
        views = self._views.values() if has_counters else self._views_by_device.get(name, ())
        nodes = []
        for view in views:
            if view is not None:
                view.set_use(name, use)
                nodes.append(view.node)
        return nodes

    # --- the rules -------------------------------------------------------------

    def view_for(self, node: Node) -> PoolView | None:
        """Return the pool as the node sees it; None when the node sees nothing of it (or it is obsolete)."""
        slices, node_match = self._seen_from(node)
        if not slices:
            return None
        key = (frozenset([s.key for s in slices]), node_match)
        if key not in self._views:
            view = self._views[key] = self._build(slices, node_match)
            if view is not None:
                view.node = "" if self.without_node else node.metadata.name
                for name in view.bit_by_name:
                    self._views_by_device.setdefault(name, []).append(view)
        return self._views[key]

    def _seen_from(self, node: Node) -> tuple[list[SliceFacts], tuple[tuple[str, int], ...]]:
        """Return the slices of the highest generation that the node sees, and per-device matches."""
        seen: list[SliceFacts] = []
        matches: dict[str, int] = {}
        own = self.by_node.get(node.metadata.name, {})
        for facts in [*own.values(), *self.without_node.values()]:
            if not self._is_understood(facts):
                continue
            if facts.selects_nodes:
                spec = facts.spec
                relevant = node_matches(node, facts.node_name, spec.all_nodes, spec.node_selector)
            elif facts.per_device:
                matches[facts.key] = bits = _devices_for(facts.devices, node)
                relevant = bool(bits)
            else:
                # No known way of choosing nodes: from a future version; its pool stays incomplete.
                continue
            if not relevant or (seen and facts.generation < seen[0].generation):
                continue
            if seen and facts.generation > seen[0].generation:
                seen = []
            seen.append(facts)
        return seen, tuple(sorted((s.key, matches[s.key]) for s in seen if s.key in matches))

    def _is_understood(self, facts: SliceFacts) -> bool:
        gates = self._gates
        if not gates.partitionable and (
            facts.spec.per_device_node_selection is not None or facts.has_counters
        ):
            return False
        return gates.groups or not facts.uses_groups

    def _build(self, seen: list[SliceFacts], node_match: tuple[tuple[str, int], ...]) -> PoolView | None:
        # Slices should agree on their number; where they do not, the first by name decides, but one for
        # this node alone comes before all others: upstream looks at those first, else in any order.
        first = min(seen, key=lambda s: (not s.node_name, s.name, s.key))
        generation, announced = first.generation, first.slice_count
        seen = sorted(seen, key=lambda s: (s.name, s.key))
        whole, elsewhere = None, None
        if len(seen) == announced:
            whole = Generation(seen, self._gates)
        else:
            if self._newest_generation() > generation:
                return None
            whole = elsewhere = self._whole_generation(generation)
            if len(whole.slices) != announced:
                return PoolView(self, [], is_incomplete=True)
        slices = seen
        if self._gates.partitionable:
            slices = [s for s in seen if not s.has_counters]
        reason = _duplicate_device(slices) or whole.invalid_reason
        return PoolView(
            self,
            slices,
            node_match=_joined(slices, dict(node_match)),
            whole=whole,
            elsewhere=elsewhere,
            invalid_reason=reason,
        )

    def _newest_generation(self) -> int:
        if self._newest is None:
            self._newest = max(s.generation for s in self.by_key.values())
        return self._newest

    def _whole_generation(self, generation: int) -> Generation:
        found = self._generations.get(generation)
        if found is None:
            slices = [
                s
                for s in self.by_key.values()
                if s.generation == generation and (self._gates.groups or not s.uses_groups)
            ]
            # By name, not as they arrived: what is said first about an invalid pool must not depend on that.
            slices.sort(key=lambda s: (s.name, s.key))
            found = self._generations[generation] = Generation(slices, self._gates)
        return found


def _devices_for(devices: tuple[DeviceFacts, ...], node: Node) -> int:
    bits = 0
    for bit, facts in enumerate(devices):
        device = facts.device
        if node_matches(node, device.node_name, device.all_nodes, device.node_selector):
            bits |= 1 << bit
    return bits


def _joined(slices: list[SliceFacts], matches: dict[str, int]) -> int | None:
    """Join per-slice bits of matching devices into those of the pool; None means all."""
    if not matches:
        return None
    joined, offset = 0, 0
    for facts in slices:
        n_devices = len(facts.devices)
        joined |= matches.get(facts.key, (1 << n_devices) - 1) << offset
        offset += n_devices
    return joined


def _duplicate_device(slices: list[SliceFacts]) -> str:
    names: set[str] = set()
    for facts in slices:
        for device in facts.devices:
            if device.name in names:
                return f"duplicate device name {device.name}"
            names.add(device.name)
    return ""


def _counter_sets(slices: list[SliceFacts]) -> tuple[CounterSets, str]:
    """Collect the counter sets and check that every device draws from existing ones."""
    counter_sets: CounterSets = {}
    for facts in slices:
        if facts.has_counters:
            for name, counters in facts.shape[1]:  # type: ignore[index]  # see SliceInterner.slice_facts
                if name in counter_sets:
                    return {}, f"duplicate counter set name {name}"
                counter_sets[name] = dict(counters)
    for facts in slices:
        for device in facts.devices if not facts.has_counters else ():
            for consumption in device.consumes:
                counters = counter_sets.get(consumption.counter_set)
                if counters is None:
                    return {}, f"counter set {consumption.counter_set} not found"
                for name, _ in consumption.counters:
                    if name not in counters:
                        return {}, f"counter {name} not found in counter set {consumption.counter_set}"
    return counter_sets, ""


class NodeView:
    """A node with its pools in the order of the search."""

    __slots__ = ("_here", "_row", "has_invalid", "name", "node", "pool_classes", "pools")

    def __init__(self, node: Node, pools: list[PoolView]) -> None:
        self.name = node.metadata.name
        self.node = node
        pools.sort(key=lambda pool: (pool.has_conditions, pool.id))
        self.pools = tuple(pools)
        self.has_invalid = any(pool.invalid_reason for pool in pools)
        self.pool_classes: dict[int, tuple[int, ...]] = {}  # number of a NodeClasses -> classes of the pools
        self._row: tuple[DeviceFacts, ...] | None = None
        self._here: NodeSelector | None = None

    @property
    def row(self) -> tuple[DeviceFacts, ...]:
        """Return the devices by position (see `problem`); pools that cannot be used have none."""
        if self._row is None:
            self._row = tuple([device for pool in self.pools for device in pool.devices])
        return self._row

    def emptied(self) -> NodeView:
        """Return the node as it would be with nothing in use."""
        return NodeView(self.node, [pool.emptied() for pool in self.pools])

    @property
    def here(self) -> NodeSelector:
        """Return the selector of exactly this node."""
        if self._here is None:
            name = NodeSelectorRequirement(key="metadata.name", operator="In", values=[self.name])
            self._here = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[name])])
        return self._here
