"""Selectors and derived attributes: CEL expressions, evaluated once per distinct device.

An expression reads few attributes, and thousands of devices carry the same values of
those. So the verdict is remembered per *projection*: the values of what is read, plus
driver and capacities, and a projection is all that an expression is given to read. A
device with an attribute that has no plain value is judged on its own, because such an
attribute makes every expression fail.

Errors are verdicts, too: whether an error matters is decided by the search, which
may never look at the device.

A tenant can send hundreds of distinct expressions of 10 KB in one claim, whose programs would take hundreds of
megabytes. So an expression keeps what it found and not its program: that is in the cache of `dray.cel`, which is bounded
in sum, and is made again where it is missed. Verdicts are bounded in sum by a `VerdictMemory`.

An expression at the cost limit takes a tenth of a second per device, and a search may take seconds. Who answers
queries on an event loop limits the `EvaluationBudget`: a query that needs more than that ends with `PendingWork`
(or `PendingSearch`), whose `work` can be done in any thread, since expressions are pure and a search gets a problem
of its own; asked again, the query finds the verdicts, or the result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from dray import cel
from dray.allocator.device_facts import DeviceFacts
from dray.api.features import Features
from dray.api.resource import DeviceAttribute
from dray.api.semver import Semver

_MOST_VERDICTS = 300_000  # projections remembered of all expressions, at 0.3 KB each; hardware has far fewer
_SLOW_COST = 300  # estimated; less than it takes to look at the device
_SLOW_NODES = 1_000  # about 2 KB of text
_COST_PER_NODE = 400  # of compiling: some tens of microseconds


class PendingWork(Exception):  # not an error: the query is to be asked again
    """An answer needs expressions that take long: do `work`, in whatever thread, and ask again."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__("expressions have to be evaluated first")
        self.work = work


class PendingSearch(PendingWork):
    """An answer needs a search that takes long. Its time counts: `is_late` ends it, as it ends any search."""


class EvaluationBudget:
    """How much of slow expressions and of searches is done before a query is answered."""

    __slots__ = ("cost_left", "is_over")

    def __init__(self) -> None:
        self.cost_left: int | None = None  # for expressions, in units of cost; None: as much as it takes
        self.is_over: Callable[[], bool] | None = (
            None  # whether a search has taken long enough; None: it may go on
        )

    def allows(self, cost: int) -> bool:
        """Return whether so much may be spent now, and spend it."""
        if self.cost_left is None:
            return True
        if cost > self.cost_left:
            return False
        self.cost_left -= cost
        return True

    @contextmanager
    def limited(self, cost: int, is_over: Callable[[], bool] | None = None) -> Iterator[None]:
        """Limit what is done inside: expressions by their cost, searches by a clock of the caller's."""
        self.cost_left, self.is_over = cost, is_over
        try:
            yield
        finally:
            self.cost_left = self.is_over = None


class _Alone:
    """The key of a device that is judged on its own; holds it, so that its identity stays its own."""

    __slots__ = ("facts",)

    def __init__(self, facts: DeviceFacts) -> None:
        self.facts = facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alone) and self.facts is other.facts

    def __hash__(self) -> int:
        return id(self.facts)


class VerdictMemory:
    """Counts what the expressions of one allocator remember, and lets all of them forget when it is too much."""

    def __init__(self, limit: int = _MOST_VERDICTS) -> None:
        self._limit = limit
        self._n_results = 0
        self._expressions: WeakSet[Expression] = WeakSet()

    def register(self, expression: Expression) -> None:
        """Count what the expression remembers."""
        self._expressions.add(expression)

    def count(self) -> None:
        """One result is about to be remembered."""
        self._n_results += 1
        if self._n_results > self._limit:
            self._n_results = 1
            for expression in list(self._expressions):
                expression.forget()


class Expression:
    """What selectors and derived attributes have in common: what they read, on which device."""

    is_derived = False

    def __init__(self, text: str, features: Features, memory: VerdictMemory | None = None) -> None:
        self.text = text
        self.compile_error: cel.CompileError | None = None
        # Attribute names as `domain/id`; None means: everything.
        self.reads: frozenset[str] | None = frozenset()
        self._names: tuple[tuple[str, str, str], ...] = ()  # the same as (name, domain, id)
        self._reads_capacity = True
        self.n_nodes, self.is_slow, self._max_cost = 1, False, 0
        self._features = features
        self._memory = memory or VerdictMemory()
        self._memory.register(self)
        try:
            program = self._program()
        except cel.CompileError as error:
            self.compile_error = error.with_traceback(None)
        else:
            self.reads = attribute_reads(program)
            self._names = tuple(
                [(f"{domain}/{name}", domain, name) for domain, name in program.reads.attributes]
            )
            self._reads_capacity = bool(program.reads.capacities)
            self.n_nodes, self._max_cost = program.n_nodes, min(program.max_cost, cel.RUN_TIME_LIMIT)
            self.is_slow = program.max_cost > _SLOW_COST or program.n_nodes > _SLOW_NODES

    def _program(self) -> cel.Program:
        """Return the program, made again if it was dropped. Raises CompileError the first time only."""
        compiler = cel.compile_derived if self.is_derived else cel.compile_selector
        return compiler(self.text, features=self._features, stored=True)

    def forget(self) -> None:
        """Forget what was found about devices."""
        raise NotImplementedError

    def is_alone(self, facts: DeviceFacts) -> bool:
        """Return whether the device is judged on its own, with all that it has."""
        return facts.is_odd or self.reads is None

    def values(self, facts: DeviceFacts) -> list[DeviceAttribute | None]:
        """Return the attributes that are read, in an order that is always the same."""
        attributes = facts.device.attributes or {}
        driver = facts.resource_slice.driver
        found = []
        for name, domain, identifier in self._names:
            value = attributes.get(name)
            if value is None and domain == driver:
                value = attributes.get(identifier)
            found.append(value)
        return found

    def key(self, facts: DeviceFacts, values: list[DeviceAttribute | None]) -> Hashable | None:
        """Return the key under which a result is remembered; None: it is not.

        Of devices that are not judged on their own it is equal where the expression cannot tell them apart.
        """
        if self.is_alone(facts):
            return _Alone(facts) if self.is_slow else None
        return (
            facts.resource_slice.driver,
            facts.capacity.id if facts.capacity and self._reads_capacity else -1,
            facts.device.allow_multiple_allocations,
            # Bare texts hash and compare much faster than the struct around them.
            *[value if value is None or value.string is None else value.string for value in values],
        )

    def device_input(self, facts: DeviceFacts, values: list[DeviceAttribute | None]) -> cel.DeviceInput:
        """Return the device as the expression sees it. Raises cel.EvaluationError for an attribute without value."""
        device = facts.device
        if self.is_alone(facts):
            return device_input(facts)
        attributes = {
            name: value for (name, _, _), value in zip(self._names, values, strict=True) if value is not None
        }
        capacity = device.capacity if self._reads_capacity else None
        return cel.DeviceInput.build(
            facts.resource_slice.driver, attributes, capacity, device.allow_multiple_allocations
        )

    @property
    def price(self) -> int:
        """What one evaluation may cost, with making the program where that is still to do."""
        if self.compile_error is not None:
            return 0
        is_made = cel.is_compiled(self.text, features=self._features, stored=True, derived=self.is_derived)
        return self._max_cost + (0 if is_made else _COST_PER_NODE * self.n_nodes)


def device_input(facts: DeviceFacts) -> cel.DeviceInput:
    """Return the device as expressions see it. Raises cel.EvaluationError for an attribute without value."""
    device = facts.device
    return cel.DeviceInput.build(
        facts.resource_slice.driver,
        device.attributes or {},
        device.capacity or {},
        device.allow_multiple_allocations,
    )


class Selector(Expression):
    """A condition on devices."""

    def __init__(self, text: str, features: Features, memory: VerdictMemory | None = None) -> None:
        super().__init__(text, features, memory)
        self._verdicts: dict[Hashable, bool | Exception] = {}

    def forget(self) -> None:
        """Forget what was found about devices."""
        self._verdicts = {}

    def known(self, facts: DeviceFacts) -> bool | Exception | None:
        """Return the verdict if it takes no time, else None."""
        if not self.is_slow:
            return self.verdict(facts)
        return self._verdicts.get(self.key(facts, self.values(facts)))

    def verdict(self, facts: DeviceFacts) -> bool | Exception:
        """Return whether the device is selected, or the error (the same for equal devices)."""
        return self.verdicts([facts])[0]

    def verdicts(self, devices: Sequence[DeviceFacts]) -> list[bool | Exception]:
        """Return the verdict on each of many devices; the program is looked up once."""
        if self.compile_error is not None:
            return [self.compile_error] * len(devices)
        program = None
        verdicts: list[bool | Exception] = []
        for facts in devices:
            values = self.values(facts)
            key = self.key(facts, values)
            found = self._verdicts.get(key) if key is not None else None
            if found is None:
                if program is None:
                    program = self._program()
                found = self._evaluate(program, facts, values)
                if key is not None:
                    self._memory.count()
                    self._verdicts[key] = found
            verdicts.append(found)
        return verdicts

    def false_part(self, facts: DeviceFacts) -> tuple[str, str]:
        """Return the sub-expression that made the verdict false, and the values it read."""
        if self.compile_error is not None or self.is_slow:
            # Of a long expression, neither the term nor the text would help a reader.
            return shortened(self.text), ""
        term = cel.explain_false(self._program(), device_input(facts))
        if term is None:
            return self.text, ""
        return term.text, ", ".join(f"{name} is {value}" for name, value in term.values.items())

    def _evaluate(
        self, program: cel.Program, facts: DeviceFacts, values: list[DeviceAttribute | None]
    ) -> bool | Exception:
        try:
            return program.evaluate(self.device_input(facts, values))
        except cel.EvaluationError as error:
            return error.with_traceback(None)


class Derivation(Expression):
    """An attribute computed from the device for use in constraints."""

    is_derived = True

    def __init__(self, text: str, features: Features, memory: VerdictMemory | None = None) -> None:
        super().__init__(text, features, memory)
        self._values: dict[Hashable, DeviceAttribute | Exception] = {}

    def forget(self) -> None:
        """Forget what was found about devices."""
        self._values = {}

    def known(self, facts: DeviceFacts) -> DeviceAttribute | Exception | None:
        """Return the value if it takes no time, else None."""
        if not self.is_slow:
            return self.value(facts)
        return self._values.get(self.key(facts, self.values(facts)))

    def value(self, facts: DeviceFacts) -> DeviceAttribute | Exception:
        """Return the computed attribute, or the error."""
        if self.compile_error is not None:
            return self.compile_error
        values = self.values(facts)
        if not self.is_slow:
            return self._evaluate(facts, values)
        key = self.key(facts, values)
        found = self._values.get(key)
        if found is None:
            self._memory.count()
            found = self._values[key] = self._evaluate(facts, values)
        return found

    def _evaluate(
        self, facts: DeviceFacts, values: list[DeviceAttribute | None]
    ) -> DeviceAttribute | Exception:
        try:
            value = self._program().value(self.device_input(facts, values))
        except cel.EvaluationError as error:
            return error.with_traceback(None)
        try:
            return attribute_from(value)
        except TypeError as error:
            return error.with_traceback(None)


def shortened(text: str, limit: int = 200) -> str:
    """Return a text that fits into an event."""
    return text if len(text) <= limit else f"{text[:limit]} …"


def attribute_from(value: object) -> DeviceAttribute:
    """Turn the value of an expression into an attribute. Raises TypeError for kinds that are none."""
    if isinstance(value, list):
        return _list_attribute(value)
    if isinstance(value, bool):
        return DeviceAttribute(bool_value=value)
    if isinstance(value, int):
        return DeviceAttribute(int_value=int(value))
    if isinstance(value, str):
        return DeviceAttribute(string=value)
    if isinstance(value, Semver):
        return DeviceAttribute(version=str(value))
    raise TypeError(f"unsupported CEL return type: {type(value).__name__}")


def _list_attribute(values: list[object]) -> DeviceAttribute:
    if not values:
        return DeviceAttribute(strings=[])
    kinds = {bool if isinstance(value, bool) else type(value) for value in values}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"list elements must be of one kind, not {names}")
    match values[0]:
        case bool():
            return DeviceAttribute(bools=[bool(value) for value in values])
        case int():
            return DeviceAttribute(ints=[value for value in values if isinstance(value, int)])
        case str():
            return DeviceAttribute(strings=[str(value) for value in values])
        case Semver():
            return DeviceAttribute(versions=[str(value) for value in values])
    raise TypeError(f"unsupported list element type: {type(values[0]).__name__}")


def attribute_reads(program: cel.Program) -> frozenset[str] | None:
    """Return the attributes a program reads as `domain/id`; None when it may read any."""
    reads = program.reads
    return None if reads.everything else frozenset(f"{domain}/{name}" for domain, name in reads.attributes)
