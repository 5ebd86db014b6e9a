"""Why a request got nothing on a node: every device counted under one reason.

The search answers fast and forgets; this module looks again, slowly, at one node: for
each wish it sorts the node's devices by the first thing that keeps them out, in the order
in which the search asks. Then it says which single change would free most devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dray.allocator.answers import DeviceId, Reason, RequestReasons
from dray.allocator.ledger import Ledger
from dray.allocator.parts import OPTIONAL_OPERATIONS, PoolPart, tolerates
from dray.allocator.pools import NodeView, PoolView
from dray.allocator.requests import Question, Wish
from dray.allocator.verdicts import Asked


def explain_node(
    ledger: Ledger, asked: Asked, view: NodeView, labels: Sequence[str]
) -> tuple[RequestReasons, ...]:
    """Return the reasons per wish, those that lack devices on their own first."""
    question = asked.question
    found = [_explain_wish(ledger, asked, view, wish, labels[wish.claim]) for wish in question.wishes]
    found.sort(key=lambda reasons: reasons.usable >= max(reasons.wanted, 1))
    return tuple(found)


def _explain_wish(ledger: Ledger, asked: Asked, view: NodeView, wish: Wish, label: str) -> RequestReasons:
    counts: Counter[tuple[str, str]] = Counter()
    seen: dict[tuple[str, str], dict[str, None]] = {}  # reason -> values that were found instead
    n_devices = usable = 0
    for pool in view.pools:
        if not pool.is_usable:
            state = (
                "pool is being updated" if pool.is_incomplete else f"pool is invalid: {pool.invalid_reason}"
            )
            counts["pool", f"{'/'.join(pool.id)}: {state}"] += 0
            continue
        part = asked.part(pool)
        for bit in range(len(pool.devices)):
            n_devices += 1
            reason = _why_not(ledger, asked.question, view, pool, part, wish, bit)
            if reason is None:
                usable += 1
                continue
            cause, detail, found = reason
            counts[cause, detail] += 1
            if found:
                seen.setdefault((cause, detail), {})[found] = None
    reasons = tuple(
        Reason(cause, detail + _some_values(seen.get((cause, detail))), n)
        for (cause, detail), n in counts.most_common()
    )
    wanted = 0 if wish.wants_all else wish.count
    return RequestReasons(
        label,
        wish.full_name,
        wanted,
        n_devices,
        usable,
        reasons,
        _relaxation(asked.question, wish, usable, max(wanted, 1), reasons),
    )


def _why_not(
    ledger: Ledger,
    question: Question,
    view: NodeView,
    pool: PoolView,
    part: PoolPart,
    wish: Wish,
    bit: int,
) -> tuple[str, str, str] | None:
    """Return what keeps a device from the wish when the wish stands alone; None when nothing does.

    Cause, detail, and the values a selector read.
    """
    found = _obstacle(ledger, question, view, pool, part, wish, bit)
    if found is None:
        return None
    if found == ("selector", ""):
        failed, values = _failed_selector(wish, pool, bit)
        return ("selector", failed, values) if failed else ("node", "the device is meant for other nodes", "")
    return (*found, "")


def _some_values(values: dict[str, None] | None) -> str:
    if not values:
        return ""
    listed = list(values)[:3]
    return f"; found: {' | '.join(listed)}{' | …' if len(values) > 3 else ''}"


def _obstacle(
    ledger: Ledger,
    question: Question,
    view: NodeView,
    pool: PoolView,
    part: PoolPart,
    wish: Wish,
    bit: int,
) -> tuple[str, str] | None:
    mask = 1 << bit
    row = part.wishes[wish.number]
    device = pool.devices[bit]
    if not wish.admin and pool.dedicated & mask:
        return "in-use", _holders(ledger, pool.device_id(bit))
    if bit in row.fatal:
        return "error", row.fatal[bit].text(wish.full_name, pool.device_id(bit))
    if not row.matched & mask:
        if device.device.binding_conditions and not question.gates.conditions:
            return "conditions", "binding conditions are switched off"
        return "selector", ""
    if row.unsuitable & mask:
        return "capacity", "its capacities do not suit the request"
    need = row.needs.get(bit)
    if need is not None and pool.consumed.get(bit) and device.capacity is not None:
        if not need.fits(device.capacity, pool.consumed[bit]):
            return "capacity", f"too little left, shares held by {_holders(ledger, pool.device_id(bit))}"
    if row.operations & mask and not (
        question.gates.optional_operations and OPTIONAL_OPERATIONS in view.node.status.declared_features
    ):
        return "operations", "the node cannot skip node operations"
    if row.uncountable & mask:
        return "counters", "partitionable devices are switched off"
    shortage = _shortage(pool, part, bit, groups_on=question.gates.groups)
    if shortage:
        return shortage
    if row.tainted & mask:
        taint = next(t for t in device.taints if not any(tolerates(o, t) for o in wish.tolerations))
        return (
            "taint",
            f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}",
        )
    for number in wish.constraints:
        if part.values[number, wish.number][bit] is None:
            return "constraint", f"has no attribute {question.constraints[number].attribute}"
    return None


def _holders(ledger: Ledger, device: DeviceId) -> str:
    use = ledger.use_of(device)
    return ", ".join(dict.fromkeys(use.owners())) if use else "nobody"


def _failed_selector(wish: Wish, pool: PoolView, bit: int) -> tuple[str, str]:
    facts = pool.devices[bit]
    for use in wish.selectors:
        if use.selector.verdict(facts, alone=False) is not True:
            text, values = use.selector.false_part(facts)
            return f"{f'class {use.class_name}' if use.class_name else 'request'}: {text}", values
    return "", ""


def _shortage(pool: PoolView, part: PoolPart, bit: int, *, groups_on: bool) -> tuple[str, str] | None:
    """Return the counter (or group) that a device would overdraw."""
    if not part.consumers >> bit & 1 or (part.shared & pool.shared) >> bit & 1:
        return None
    left, groups = pool.available()
    for consumption in pool.devices[bit].consumes:
        if groups_on:
            running = groups.get(consumption.counter_set)
            if running is not None and not (
                running & consumption.groups or (not running and not consumption.groups)
            ):
                return "groups", f"counter set {consumption.counter_set} is used by devices of other groups"
        for name, nanos in consumption.counters:
            if left[consumption.counter_set][name] < nanos:
                return "counters", f"too little of {consumption.counter_set}/{name} is left"
    overdrawn = [(s, n) for s, counters in left.items() for n, nanos in counters.items() if nanos < 0]
    if overdrawn:
        return "counters", f"{'/'.join(overdrawn[0])} is overdrawn"
    return None


def _relaxation(question: Question, wish: Wish, usable: int, wanted: int, reasons: tuple[Reason, ...]) -> str:
    """Name the single change that would free most devices for the wish."""
    if usable >= wanted:
        constraints = [question.constraints[number] for number in wish.constraints]
        if constraints:
            tie = constraints[0]
            kind = "distinctAttribute" if tie.distinct else "matchAttribute"
            return f"enough devices when it stands alone; drop {kind} {tie.attribute} or the other requests"
        return "enough devices when it stands alone; other requests of the pod take them"
    by_cause: Counter[str] = Counter()
    for reason in reasons:
        by_cause[reason.cause] += reason.devices
    advice = {
        "in-use": "wait for (or free) devices in use",
        "selector": "loosen the selector",
        "taint": "tolerate the taint",
        "counters": "free partitions of the same hardware",
        "capacity": "ask for less capacity",
        "node": "try another node",
        "groups": "free devices of other compatibility groups",
        "constraint": "drop the constraint",
        "operations": "use a node that declares DRAOptionalNodeOperations",
        "conditions": "switch binding conditions on",
        "error": "repair the selector",
    }
    # Tainted and busy devices are hardware that exists and fits: free those before loosening selectors.
    ranked = sorted(
        by_cause.items(), key=lambda item: (usable + item[1] < wanted, item[0] == "selector", -item[1])
    )
    if not ranked or not ranked[0][1]:
        return "the node has too few devices"
    cause, devices = ranked[0]
    example = next(reason.detail for reason in reasons if reason.cause == cause)
    enough = "" if usable + devices >= wanted else ", still not enough"
    return f"{advice.get(cause, cause)} ({example}): {devices} more would be usable{enough}"
