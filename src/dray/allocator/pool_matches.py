"""Which devices of a pool match the subrequests of compiled claims, apart from what is in use.

For each subrequest: which devices it selects, which it cannot take for good (taints, gates,
capacities too small by themselves), on which looking at them is an error, how much
of the capacities it needs; and for each constraint the value every device brings.
Matches depend only on the pool's structure and on the attributes the query reads,
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
from dray.allocator.compiled_claims import CompiledClaims, ConstraintSpec, Fatal, SelectorUse, Subrequest
from dray.allocator.device_facts import DeviceFacts, find_attribute
from dray.allocator.errors import CapacityError, SelectorError
from dray.allocator.expressions import Derivation
from dray.allocator.gates import Gates
from dray.allocator.pools import PoolView
from dray.api.resource import DeviceAttribute
from dray.api.tolerations import first_untolerated
from dray.devices import DeviceId

Value = frozenset[object]  # elements are (kind, value)

OPTIONAL_OPERATIONS = "DRAOptionalNodeOperations"  # declared by nodes whose kubelet can skip


class SubrequestMatches:
    """One subrequest on one pool; bits are devices of the pool."""

    __slots__ = ("fatal", "matched", "needs", "operations", "tainted", "uncountable", "unsuitable")

    def __init__(self) -> None:
        self.matched = 0  # selected by class and request, and meant for the node
        self.fatal: dict[int, Fatal] = {}  # bit -> what looking at the device raises
        self.tainted = 0  # a taint is not tolerated
        self.operations = 0  # needs a node that can skip operations
        self.uncountable = 0  # draws from counters while the gate is off
        self.unsuitable = 0  # its capacities do not suit the request
        self.needs: dict[int, Need] = {}  # bit -> what would be taken


Draws = tuple[tuple[int, int], ...]  # (counter, nanos)
CounterNames = tuple[tuple[str, ...], ...]  # a counter set and its counters


class CounterNumbering:
    """The counters of a pool in a row, and what each device draws from them; the same for equal pools."""

    __slots__ = ("draws", "group_sets", "names")

    def __init__(self, names: CounterNames, view: PoolView) -> None:
        self.names = names
        numbers: dict[tuple[str, str], int] = {}
        for set_name, *counters in names:
            for name in counters:
                numbers[set_name, name] = len(numbers)
        sets = {each[0]: number for number, each in enumerate(names)}
        self.draws: dict[int, Draws] = {}  # bit -> counters
        self.group_sets: dict[int, tuple[tuple[int, frozenset[str]], ...]] = {}  # bit -> (set, groups)
        for bit in range(len(view.devices)):
            if view.consumers >> bit & 1:
                consumes = view.devices[bit].consumes
                self.draws[bit] = tuple(
                    [(numbers[c.counter_set, name], nanos) for c in consumes for name, nanos in c.counters]
                )
                self.group_sets[bit] = tuple([(sets[c.counter_set], c.groups) for c in consumes])


class PoolMatches:
    """All subrequests and constraints of a query on one pool."""

    __slots__ = (
        "consumers",
        "number",
        "numbering",
        "shared",
        "subrequests",
        "symmetry_classes",
        "values",
        "wanted",
    )

    def __init__(self, number: int, compiled: CompiledClaims, view: PoolView) -> None:
        self.number = number  # equal matches have equal numbers
        gates = compiled.gates
        self.shared = view.shareable if gates.shares else 0
        self.consumers = view.consumers
        self.numbering: CounterNumbering | None = None  # of the pool that was asked about last
        self.subrequests = [
            _subrequest_matches(subrequest, view, gates) for subrequest in compiled.subrequests
        ]
        self.wanted = 0  # devices that some subrequest looks at
        for matches in self.subrequests:
            self.wanted |= matches.matched | _mask_of(matches.fatal)
        # (constraint, subrequest) -> bit -> value, None where the device cannot join, Fatal where looking raises
        self.values: dict[tuple[int, int], list[Value | Fatal | None]] = {}
        for subrequest in compiled.subrequests:
            for number_of in subrequest.constraints:
                constraint = compiled.constraints[number_of]
                self.values[number_of, subrequest.number] = _values(constraint, subrequest, view, gates)
        self.symmetry_classes: list[tuple[object, ...]] = (
            [self._symmetry_key(view, bit) for bit in range(len(view.devices))]
            if self.wanted
            else [()] * len(view.devices)  # nobody looks at them
        )

    def numbered(self, view: PoolView, names: CounterNames) -> CounterNumbering:
        """Return the numbering of a pool with these counters."""
        if self.numbering is None or self.numbering.names != names:
            self.numbering = CounterNumbering(names, view)
        return self.numbering

    def _symmetry_key(self, view: PoolView, bit: int) -> tuple[object, ...]:
        """Return a key equal for devices that no subrequest and no constraint can tell apart."""
        mask = 1 << bit
        rows = tuple(
            [
                (
                    bool(matches.matched & mask),
                    bit in matches.fatal,
                    bool(
                        (matches.tainted | matches.operations | matches.uncountable | matches.unsuitable)
                        & mask
                    ),
                )
                for matches in self.subrequests
            ]
        )
        values = tuple(
            [value if not isinstance(value := column[bit], Fatal) else bit for column in self.values.values()]
        )
        return (view.devices[bit].shape, rows, values)


def unevaluated_cost(compiled: CompiledClaims, view: PoolView) -> int:
    """Return what the slow expressions of a query may cost on a pool, as far as they are not known.

    A selector after one that is not known does not count: it may not be looked at.
    """
    if not compiled.has_slow_expressions:
        return 0
    cost = 0
    for subrequest in compiled.subrequests:
        derived = _slow_derivations(compiled, subrequest)
        for facts in view.devices:
            for use in subrequest.selectors:
                verdict = use.selector.known(facts)
                if verdict is None:
                    cost += use.selector.price
                if verdict is not True:
                    break
            cost += sum(derivation.price for derivation in derived if derivation.known(facts) is None)
    return cost


def evaluate_expressions(compiled: CompiledClaims, view: PoolView) -> None:
    """Evaluate what `unevaluated_cost` counts; the expressions remember the results.

    Expression by expression, not device by device: the programs of all may not be at hand at once.
    """
    for subrequest in compiled.subrequests:
        left = list(view.devices)
        for use in subrequest.selectors:
            verdicts = use.selector.verdicts(left)
            left = [facts for facts, verdict in zip(left, verdicts, strict=True) if verdict is True]
        for derivation in _slow_derivations(compiled, subrequest):
            for facts in view.devices:
                derivation.value(facts)


def _slow_derivations(compiled: CompiledClaims, subrequest: Subrequest) -> list[Derivation]:
    names = [compiled.constraints[number].attribute for number in subrequest.constraints]
    return [
        subrequest.derived[name]
        for name in names
        if name in subrequest.derived and subrequest.derived[name].is_slow
    ]


def _mask_of(bits: Iterable[int]) -> int:
    mask = 0
    for bit in bits:
        mask |= 1 << bit
    return mask


# --- subrequests -------------------------------------------------------------------


def _subrequest_matches(subrequest: Subrequest, view: PoolView, gates: Gates) -> SubrequestMatches:
    matches = SubrequestMatches()
    if subrequest.problem is not None:
        return matches
    for bit in _selected(subrequest.selectors, view, gates, matches.fatal):
        mask = 1 << bit
        if not view.node_match & mask:
            continue
        facts = view.devices[bit]
        matches.matched |= mask
        if gates.taints and facts.taints and first_untolerated(facts.taints, subrequest.tolerations):
            matches.tainted |= mask
        if facts.resource_slice.spec.skip_node_operations:
            matches.operations |= mask
        if facts.consumes and not gates.partitionable:
            matches.uncountable |= mask
        if gates.shares:
            _weigh(matches, subrequest, facts, bit, gates)
    return matches


def _weigh(
    matches: SubrequestMatches, subrequest: Subrequest, facts: DeviceFacts, bit: int, gates: Gates
) -> None:
    if facts.capacity is None:
        if subrequest.amounts:
            matches.unsuitable |= 1 << bit
        return
    try:
        need = need_of(subrequest.amounts, facts.capacity, fractional=gates.fractional)
    except AmountError as error:
        matches.fatal[bit] = _capacity_fatal(subrequest, error)
        return
    if need is None or not need.fits(facts.capacity):
        matches.unsuitable |= 1 << bit
    else:
        matches.needs[bit] = need


def _capacity_fatal(subrequest: Subrequest, error: AmountError) -> Fatal:
    def text(claim: str, device: DeviceId | None) -> str:
        # "All" names the bare device, because upstream does.
        named = device.device if device and subrequest.wants_all else device
        return f"claim {claim}, request {subrequest.name}: checking capacity for device {named}: {error}"

    return Fatal(CapacityError, text, error)


def _selected(
    uses: tuple[SelectorUse, ...], view: PoolView, gates: Gates, fatal: dict[int, Fatal]
) -> list[int]:
    """Return the devices that all selectors select; `fatal` gets those that one of them fails on."""
    bits = [
        bit
        for bit, facts in enumerate(view.devices)
        if gates.conditions or not facts.device.binding_conditions
    ]
    for use in uses:
        verdicts = use.selector.verdicts([view.devices[bit] for bit in bits])
        left = []
        for bit, verdict in zip(bits, verdicts, strict=True):
            if verdict is True:
                left.append(bit)
            elif verdict is not False:
                fatal[bit] = _selector_fatal(use, verdict)
        bits = left
        if not bits:
            break
    return bits


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


# --- constraints --------------------------------------------------------------


def _values(
    constraint: ConstraintSpec, subrequest: Subrequest, view: PoolView, gates: Gates
) -> list[Value | Fatal | None]:
    derivation = subrequest.derived.get(constraint.attribute)
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
    """Return whether a value stands for an attribute without a plain value."""
    return any(isinstance(element, tuple) and element[0] == "unknown" for element in value)
