"""Why a request got nothing on a node: every device counted under one reason.

The search answers fast and forgets; this module looks again, slowly, at one node: for
each subrequest it sorts the node's devices by the first thing that keeps them out, in the order
in which the search asks, but for devices in use: those count as in use only if they would
suit. Then it names the single change that helps most: one that was tried and lets the claims
fit (see `relaxation`), or else the one that frees most devices.

A subrequest is judged alone: if it has enough devices by itself, what stands in the way is a
constraint or another request of the pod, and the hint says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dray.allocator.answers import SHARED_WITH, Reason, RequestReasons
from dray.allocator.compiled_claims import Subrequest
from dray.allocator.device_facts import DeviceFacts
from dray.allocator.pool_matches import OPTIONAL_OPERATIONS, SubrequestMatches
from dray.allocator.pools import NodeView, PoolView
from dray.allocator.query_cache import CachedQuery
from dray.allocator.relaxation import FREE, TOLERATE, Change, helpful_changes
from dray.api.tolerations import first_untolerated
from dray.devices import DeviceId, Ledger

Obstacle = tuple[str, str, str]  # cause, detail, values that were found instead

_ADVICE = {
    "in-use": "wait for (or free) devices in use",
    "selector": "loosen the selector",
    "taint": "tolerate the taint",
    "counters": "free partitions of the same hardware",
    "capacity": "ask for less capacity, or free shares in use",
    "node": "try another node",
    "groups": "free devices of other compatibility groups",
    "constraint": "drop the constraint",
    "operations": "use a node that declares DRAOptionalNodeOperations",
    "conditions": "switch binding conditions on",
    "error": "repair the selector",
}


def explain_node(
    ledger: Ledger, query: CachedQuery, view: NodeView, labels: Sequence[str]
) -> tuple[RequestReasons, ...]:
    """Return the reasons per subrequest, those that lack devices on their own first."""
    witness = _NodeDiagnosis(ledger, query, view)
    found = [
        witness.reasons(subrequest, labels[subrequest.claim]) for subrequest in query.compiled.subrequests
    ]
    found.sort(key=lambda reasons: reasons.usable >= max(reasons.wanted, 1))
    return tuple(found)


class _NodeDiagnosis:
    """Looks at one node through one query."""

    def __init__(self, ledger: Ledger, query: CachedQuery, view: NodeView) -> None:
        self._ledger = ledger
        self._query = query
        self._compiled = query.compiled
        self._view = view
        self._can_skip = (
            query.compiled.gates.optional_operations
            and OPTIONAL_OPERATIONS in view.node.status.declared_features
        )

    def reasons(self, subrequest: Subrequest, label: str) -> RequestReasons:
        """Sort the devices of the node by what keeps them from the subrequest."""
        counts: Counter[tuple[str, str]] = Counter()
        values: dict[tuple[str, str], dict[str, None]] = {}
        n_devices = usable = 0
        for obstacle in self._obstacles(subrequest):
            n_devices += 1
            if obstacle is None:
                usable += 1
                continue
            cause, detail, found = obstacle
            counts[cause, detail] += 1
            if found:
                values.setdefault((cause, detail), {})[found] = None
        reasons = [
            Reason(cause, detail + _some_values(values.get((cause, detail))), n)
            for (cause, detail), n in counts.most_common()
        ]
        # Devices of another class were never meant: what keeps out those of the class comes first.
        reasons.sort(key=lambda reason: reason.cause == "selector" and reason.detail.startswith("class "))
        reasons += [Reason("pool", text, 0) for text in self._unusable_pools()]
        wanted = 0 if subrequest.wants_all else subrequest.count
        return RequestReasons(
            label,
            subrequest.full_name,
            wanted,
            n_devices,
            usable,
            tuple(reasons),
            self._relaxation(subrequest, usable, reasons),
        )

    # --- hints -----------------------------------------------------------------

    def _relaxation(self, subrequest: Subrequest, usable: int, reasons: Sequence[Reason]) -> str:
        """Name the single change that would help most."""
        wanted = max(subrequest.count, 1)
        helpful = helpful_changes(self._query, self._view)
        if usable >= wanted and not (subrequest.wants_all and reasons):
            return self._together(subrequest, helpful)
        by_cause: Counter[str] = Counter()
        for reason in reasons:
            by_cause[reason.cause] += reason.devices
        # Busy and tainted devices are hardware that exists and fits: those before looser selectors.
        ranked = sorted(
            ((cause, n) for cause, n in by_cause.items() if n),
            key=lambda item: (
                not _changes(item[0], subrequest) & helpful,
                usable + item[1] < wanted,
                item[0] == "selector",
                -item[1],
            ),
        )
        if not ranked:
            return "the node has too few devices"
        cause, n_devices = ranked[0]
        example = next(reason.detail for reason in reasons if reason.cause == cause)
        if _changes(cause, subrequest) & helpful:
            effect = ", and the claims fit"
        elif usable + n_devices < wanted:
            effect = ", still not enough"
        else:
            effect = ", but that alone is not enough"
        return f"{_ADVICE.get(cause, cause)} ({example}): {n_devices} more would be usable{effect}"

    def _together(self, subrequest: Subrequest, helpful: frozenset[Change]) -> str:
        """Return what keeps a subrequest and the others from being met at the same time."""
        alone = "enough devices on its own"
        for number in subrequest.constraints:
            if ("constraint", number) in helpful:
                constraint = self._compiled.constraints[number]
                kind = "distinctAttribute" if constraint.distinct else "matchAttribute"
                return f"{alone}; drop {kind} {constraint.attribute}, and the claims fit"
        if FREE in helpful:
            return f"{alone}, not together with the other requests; free devices in use, and the claims fit"
        if subrequest.constraints:
            return (
                f"{alone}; the constraints and other requests leave no choice: ask less of the other requests"
            )
        return f"{alone}; other requests of the pod take them"

    def _unusable_pools(self) -> Iterator[str]:
        for pool in self._view.pools:
            if not pool.is_usable:
                state = "being updated" if pool.is_incomplete else f"invalid: {pool.invalid_reason}"
                yield f"{'/'.join(pool.id)} is {state}"

    def _obstacles(self, subrequest: Subrequest) -> Iterator[Obstacle | None]:
        for pool in self._view.pools:
            if pool.is_usable:
                row = self._query.matches(pool).subrequests[subrequest.number]
                for bit in range(len(pool.devices)):
                    yield (
                        self._before_taking(subrequest, pool, row, bit)
                        or self._while_taking(subrequest, pool, row, bit)
                        or self._constraint(subrequest, pool, bit)
                    )

    def _before_taking(
        self, subrequest: Subrequest, pool: PoolView, row: SubrequestMatches, bit: int
    ) -> Obstacle | None:
        """Ask what the search asks before it tries to take a device."""
        device = pool.devices[bit]
        is_held = not subrequest.admin and pool.dedicated >> bit & 1
        # The search does not look at held devices at all; a reader wants to know which of
        # them would suit, so those that do not match anyway are counted as not matching.
        if is_held and (bit in row.fatal or row.matched >> bit & 1):
            return "in-use", self._holders(pool.device_id(bit)), ""
        if bit in row.fatal:
            return "error", row.fatal[bit].text(subrequest.full_name, pool.device_id(bit)), ""
        if not row.matched >> bit & 1:
            if device.device.binding_conditions and not self._compiled.gates.conditions:
                return "conditions", "binding conditions are switched off", ""
            return _failed_selector(subrequest, pool, bit)
        if row.unsuitable >> bit & 1:
            return "capacity", _unsuited(subrequest, device), ""
        need, used = row.needs.get(bit), pool.consumed.get(bit)
        if need is not None and used and device.capacity and not need.fits(device.capacity, used):
            return "capacity", f"{SHARED_WITH}{self._holders(pool.device_id(bit))}", ""
        return None

    def _while_taking(
        self, subrequest: Subrequest, pool: PoolView, row: SubrequestMatches, bit: int
    ) -> Obstacle | None:
        """Ask what the search asks while it takes a device."""
        if row.operations >> bit & 1 and not self._can_skip:
            return "operations", "the node cannot skip node operations", ""
        if row.uncountable >> bit & 1:
            return "counters", "partitionable devices are switched off", ""
        shortage = self._shortage(pool, bit)
        if shortage is None and row.tainted >> bit & 1:
            taints = pool.devices[bit].taints
            taint = first_untolerated(taints, subrequest.tolerations)
            assert taint is not None, "a tainted device has a taint that is not tolerated"
            value = f"={taint.value}" if taint.value else ""
            return "taint", f"{taint.key}{value}:{taint.effect}", ""
        return shortage

    def _shortage(self, pool: PoolView, bit: int) -> Obstacle | None:
        """Name the counter (or group) that stands against a device."""
        matches = self._query.matches(pool)
        if not matches.consumers >> bit & 1 or (matches.shared & pool.shared) >> bit & 1:
            return None
        found = pool.shortage(bit, with_groups=self._compiled.gates.groups)
        return None if found is None else (*found, "")

    def _constraint(self, subrequest: Subrequest, pool: PoolView, bit: int) -> Obstacle | None:
        values = self._query.matches(pool).values
        for number in subrequest.constraints:
            if values[number, subrequest.number][bit] is None:
                return "constraint", f"has no attribute {self._compiled.constraints[number].attribute}", ""
        return None

    def _holders(self, device: DeviceId) -> str:
        use = self._ledger.use_of(device)
        return ", ".join(dict.fromkeys(use.owners())) if use else "nobody"


def _failed_selector(subrequest: Subrequest, pool: PoolView, bit: int) -> Obstacle:
    facts = pool.devices[bit]
    for use in subrequest.selectors:
        if use.selector.verdict(facts) is not True:
            text, values = use.selector.false_part(facts)
            owner = f"class {use.class_name}" if use.class_name else "request"
            return "selector", f"{owner}: {text}", values
    return "node", "the device is meant for other nodes", ""


def _unsuited(subrequest: Subrequest, facts: DeviceFacts) -> str:
    """Say which capacity of a request a device does not have; amounts are left to the policy of the device."""
    has = facts.capacity.values if facts.capacity else {}
    missing = [name for name in subrequest.amounts or {} if name not in has]
    if not missing:
        return "its capacities do not suit the request"
    known = ", ".join(sorted(has)[:4]) or "none"
    return f"it has no capacity {missing[0]} (it has: {known})"


def _some_values(values: dict[str, None] | None, limit: int = 3) -> str:
    if not values:
        return ""
    more = " | …" if len(values) > limit else ""
    return f"; found: {' | '.join(list(values)[:limit])}{more}"


def _changes(cause: str, subrequest: Subrequest) -> frozenset[Change]:
    """Return the changes that remove a cause."""
    match cause:
        case "in-use" | "counters" | "capacity" | "groups":
            return frozenset({FREE})
        case "taint":
            return frozenset({TOLERATE})
        case "selector":
            return frozenset({("selector", subrequest.number)})
        case "constraint":
            return frozenset(("constraint", number) for number in subrequest.constraints)
    return frozenset()
