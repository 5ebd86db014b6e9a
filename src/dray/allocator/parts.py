"""What one pool means to one question, apart from what is in use.

For each wish: which devices it selects, which it cannot take for good (taints, gates,
capacities too small by themselves), on which looking at them is an error, how much
of the capacities it needs; and for each constraint the value every device brings.
A part depends only on the pool's structure and on the attributes the question reads,
so all pools that are equal in these share one.

Values in constraints are sets: a plain value is a set of one. "All match" is then a
running intersection that stays non-empty, "all distinct" a union that new values do
not meet, for plain and list attributes alike. Elements carry their kind, because the
API keeps the integer 1, the bool true and the text "1" apart.
"""

from __future__ import annotations

from collections.abc import Iterable

from dray import cel
from dray.allocator.capacity import AmountError, Need, need_of
from dray.allocator.devices import DeviceFacts, find_attribute, is_odd
from dray.allocator.errors import CapacityError, SelectorError
from dray.allocator.gates import Gates
from dray.allocator.pools import PoolView
from dray.allocator.requests import ConstraintSpec, Fatal, Question, SelectorUse, Wish
from dray.allocator.selection import Derivation
from dray.api.resource import DeviceAttribute, DeviceTaint, DeviceToleration
from dray.devices import DeviceId, tolerates

Value = frozenset[object]  # elements are (kind, value)

OPTIONAL_OPERATIONS = "DRAOptionalNodeOperations"  # declared by nodes whose kubelet can skip


class WishPart:
    """One wish on one pool; bits are devices of the pool."""

    __slots__ = ("fatal", "matched", "needs", "operations", "tainted", "uncountable", "unsuitable")

    def __init__(self) -> None:
        self.matched = 0  # selected by class and request, and meant for the node
        self.fatal: dict[int, Fatal] = {}  # bit -> what looking at the device raises
        self.tainted = 0  # a taint is not tolerated
        self.operations = 0  # needs a node that can skip operations
        self.uncountable = 0  # draws from counters while the gate is off
        self.unsuitable = 0  # its capacities do not suit the request
        self.needs: dict[int, Need] = {}  # bit -> what would be taken


class PoolPart:
    """All wishes and constraints of a question on one pool."""

    __slots__ = ("consumers", "number", "shared", "twins", "values", "wanted", "wishes")

    def __init__(self, number: int, question: Question, view: PoolView) -> None:
        self.number = number  # equal parts have equal numbers
        gates = question.gates
        self.shared = _mask(gates.shares and d.is_shared for d in view.devices)
        self.consumers = _mask(bool(d.consumes) for d in view.devices)
        odd = _odd_devices(view)
        self.wishes = [_wish_part(wish, view, gates, odd) for wish in question.wishes]
        self.wanted = 0  # devices that some wish looks at
        for part in self.wishes:
            self.wanted |= part.matched | _mask_of(part.fatal)
        # (constraint, wish) -> bit -> value, None where the device cannot join, Fatal where looking raises
        self.values: dict[tuple[int, int], list[Value | Fatal | None]] = {}
        for wish in question.wishes:
            for number_of in wish.constraints:
                constraint = question.constraints[number_of]
                self.values[number_of, wish.number] = _values(constraint, wish, view, gates)
        self.twins = [self._twin_key(view, bit) for bit in range(len(view.devices))]

    def _twin_key(self, view: PoolView, bit: int) -> tuple[object, ...]:
        """Return a key equal for devices that no wish and no constraint can tell apart."""
        mask = 1 << bit
        rows = tuple(
            [
                (
                    bool(part.matched & mask),
                    bit in part.fatal,
                    bool((part.tainted | part.operations | part.uncountable | part.unsuitable) & mask),
                )
                for part in self.wishes
            ]
        )
        values = tuple(
            [value if not isinstance(value := column[bit], Fatal) else bit for column in self.values.values()]
        )
        return (view.devices[bit].shape, rows, values)


def _odd_devices(view: PoolView) -> set[int]:
    """Return the devices with an attribute that has no plain value."""
    return {
        bit
        for bit, facts in enumerate(view.devices)
        if any(is_odd(attribute) for attribute in (facts.device.attributes or {}).values())
    }


def unevaluated_cost(question: Question, view: PoolView) -> int:
    """Return what the slow expressions of a question may cost on a pool, as far as they are not known.

    A selector after one that is not known does not count: it may not be looked at.
    """
    if not question.has_slow_expressions:
        return 0
    cost, odd = 0, _odd_devices(view)
    for wish in question.wishes:
        derived = _slow_derivations(question, wish)
        for bit, facts in enumerate(view.devices):
            for use in wish.selectors:
                verdict = use.selector.known(facts, alone=bit in odd)
                if verdict is None:
                    cost += use.selector.price
                if verdict is not True:
                    break
            cost += sum(derivation.price for derivation in derived if derivation.known(facts) is None)
    return cost


def evaluate_expressions(question: Question, view: PoolView) -> None:
    """Evaluate what `unevaluated_cost` counts; the expressions remember the results."""
    odd = _odd_devices(view)
    for wish in question.wishes:
        derived = _slow_derivations(question, wish)
        for bit, facts in enumerate(view.devices):
            _selected(wish.selectors, facts, alone=bit in odd)
            for derivation in derived:
                derivation.value(facts)


def _slow_derivations(question: Question, wish: Wish) -> list[Derivation]:
    names = [question.constraints[number].attribute for number in wish.constraints]
    return [wish.derived[name] for name in names if name in wish.derived and wish.derived[name].is_slow]


def _mask(flags: Iterable[bool]) -> int:
    bits = 0
    for bit, flag in enumerate(flags):
        if flag:
            bits |= 1 << bit
    return bits


def _mask_of(bits: Iterable[int]) -> int:
    mask = 0
    for bit in bits:
        mask |= 1 << bit
    return mask


# --- wishes -------------------------------------------------------------------


def _wish_part(wish: Wish, view: PoolView, gates: Gates, odd: set[int]) -> WishPart:
    part = WishPart()
    if wish.problem is not None:
        return part
    for bit, facts in enumerate(view.devices):
        mask = 1 << bit
        if facts.device.binding_conditions and not gates.conditions:
            continue
        selected = _selected(wish.selectors, facts, alone=bit in odd)
        if isinstance(selected, Fatal):
            part.fatal[bit] = selected
            continue
        if not selected or not view.node_match & mask:
            continue
        part.matched |= mask
        if gates.taints and facts.taints and not _tolerated(facts.taints, wish.tolerations):
            part.tainted |= mask
        if facts.resource_slice.spec.skip_node_operations:
            part.operations |= mask
        if facts.consumes and not gates.partitionable:
            part.uncountable |= mask
        if gates.shares:
            _weigh(part, wish, facts, bit, gates)
    return part


def _weigh(part: WishPart, wish: Wish, facts: DeviceFacts, bit: int, gates: Gates) -> None:
    if facts.capacity is None:
        if wish.amounts:
            part.unsuitable |= 1 << bit
        return
    try:
        need = need_of(wish.amounts, facts.capacity, fractional=gates.fractional)
    except AmountError as error:
        part.fatal[bit] = _capacity_fatal(wish, error)
        return
    if need is None or not need.fits(facts.capacity):
        part.unsuitable |= 1 << bit
    else:
        part.needs[bit] = need


def _capacity_fatal(wish: Wish, error: AmountError) -> Fatal:
    def text(claim: str, device: DeviceId | None) -> str:
        # "All" names the bare device, because upstream does.
        named = device.device if device and wish.wants_all else device
        return f"claim {claim}, request {wish.name}: checking capacity for device {named}: {error}"

    return Fatal(CapacityError, text, error)


def _selected(uses: tuple[SelectorUse, ...], facts: DeviceFacts, *, alone: bool) -> bool | Fatal:
    for use in uses:
        verdict = use.selector.verdict(facts, alone=alone)
        if verdict is False:
            return False
        if verdict is not True:
            return _selector_fatal(use, verdict)
    return True


def _selector_fatal(use: SelectorUse, error: Exception) -> Fatal:
    if use.selector.compile_error is not None:

        def compile_text(claim: str, _device: DeviceId | None) -> str:
            owner = f"class {use.class_name}" if use.class_name else f"claim {claim}"
            return f"{owner}: selector #{use.index}: CEL compile error: {error}"

        return Fatal(SelectorError, compile_text, error)

    def text(claim: str, device: DeviceId | None) -> str:
        owner = f"class {use.class_name}" if use.class_name else f"claim {claim}"
        return f"{owner}: selector #{use.index} on device {device}: CEL runtime error: {_hinted(error)}"

    return Fatal(SelectorError, text, error)


def _hinted(error: Exception) -> str:
    return error.hinted if isinstance(error, cel.EvaluationError) else str(error)


def _tolerated(taints: tuple[DeviceTaint, ...], tolerations: list[DeviceToleration]) -> bool:
    return all(any(tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


# --- constraints --------------------------------------------------------------


def _values(
    constraint: ConstraintSpec, wish: Wish, view: PoolView, gates: Gates
) -> list[Value | Fatal | None]:
    derivation = wish.derived.get(constraint.attribute)
    values: list[Value | Fatal | None] = []
    for bit, facts in enumerate(view.devices):
        attribute: DeviceAttribute | Exception | None
        attribute = derivation.value(facts) if derivation else find_attribute(facts, constraint.attribute)
        if isinstance(attribute, Exception):
            assert derivation is not None
            values.append(_derived_fatal(constraint.attribute, derivation, attribute))
        elif attribute is None:
            values.append(None)
        elif gates.list_attributes:
            values.append(value_set(attribute))
        else:
            # An attribute without a plain value matches nothing, itself included.
            values.append(_plain_value(attribute) or frozenset({("unknown", view.id, bit)}))
    return values


def _derived_fatal(name: str, derivation: Derivation, error: Exception) -> Fatal:
    if derivation.compile_error is not None:
        return Fatal(
            SelectorError, lambda _claim, _device: f"compile derived attribute {name} failed: {error}", error
        )

    def text(_claim: str, device: DeviceId | None) -> str:
        return f"evaluate derived attribute {name} on device {device} failed: {error}"

    return Fatal(SelectorError, text, error)


def _plain_value(attribute: DeviceAttribute) -> Value | None:
    if attribute.string is not None:
        return frozenset({("string", attribute.string)})
    if attribute.int_value is not None:
        return frozenset({("int", attribute.int_value)})
    if attribute.bool_value is not None:
        return frozenset({("bool", attribute.bool_value)})
    if attribute.version is not None:
        # Semver forbids leading zeros, so equal versions are equal texts.
        return frozenset({("version", attribute.version)})
    return None


def value_set(attribute: DeviceAttribute) -> Value | None:
    """Return the values of an attribute as a set; a plain value is a set of one."""
    for kind, values in (
        ("int", attribute.ints),
        ("bool", attribute.bools),
        ("string", attribute.strings),
        ("version", attribute.versions),
    ):
        if values:
            return frozenset((kind, value) for value in values)
    return _plain_value(attribute)


def is_unknown(value: Value) -> bool:
    """Say whether a value stands for an attribute without a plain value."""
    return any(isinstance(element, tuple) and element[0] == "unknown" for element in value)
