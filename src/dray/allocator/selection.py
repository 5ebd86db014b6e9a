"""Selectors and derived attributes: CEL expressions, evaluated once per distinct device.

An expression reads few attributes, and thousands of devices carry the same values of
those. So the verdict is remembered per *projection*: the values of what is read, plus
driver and capacities. A device with an attribute that has no plain value is judged on
its own, because such an attribute makes every expression fail.

Errors are verdicts, too: whether an error matters is decided by the search, which
may never look at the device.
"""

from __future__ import annotations

from collections.abc import Hashable

from dray import cel
from dray.allocator.devices import DeviceFacts, attribute_of
from dray.api.features import Features
from dray.api.resource import DeviceAttribute
from dray.api.semver import Semver

_MOST_VERDICTS = 100_000  # projections remembered per expression; hardware has far fewer


class Expression:
    """What selectors and derived attributes have in common: what they read, on which device."""

    def __init__(self, text: str, reads: frozenset[str] | None) -> None:
        self.text = text
        self.reads = reads  # attribute names as `domain/id`; None means: everything

    def projection(self, facts: DeviceFacts) -> Hashable | None:
        """Return a key equal for devices the expression cannot tell apart; None: judge it alone."""
        if self.reads is None:
            return None
        device = facts.device
        driver = facts.resource_slice.driver
        values = tuple([attribute_of(device.attributes, driver, name) for name in self.reads])
        capacity = facts.capacity.id if facts.capacity else -1
        return (driver, capacity, device.allow_multiple_allocations, values)


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

    def __init__(self, text: str, features: Features) -> None:
        self.compile_error: cel.CompileError | None = None
        self.program: cel.Program | None = None
        reads: frozenset[str] | None = frozenset()
        try:
            self.program = cel.compile_selector(text, features=features, stored=True)
        except cel.CompileError as error:
            self.compile_error = error
        else:
            reads = attribute_reads(self.program)
        super().__init__(text, reads)
        self._verdicts: dict[Hashable, bool | Exception] = {}

    def verdict(self, facts: DeviceFacts, *, alone: bool) -> bool | Exception:
        """Return whether the device is selected, or the error (the same for equal devices)."""
        if self.compile_error is not None:
            return self.compile_error
        key = None if alone else self.projection(facts)
        try:
            found = self._verdicts.get(key) if key is not None else None
        except TypeError:  # list values cannot be hashed
            key, found = None, None
        if found is None:
            found = self._evaluate(facts)
            if key is not None:
                if len(self._verdicts) >= _MOST_VERDICTS:
                    self._verdicts.clear()
                self._verdicts[key] = found
        return found

    def false_part(self, facts: DeviceFacts) -> tuple[str, str]:
        """Return the sub-expression that made the verdict false, and the values it read."""
        if self.program is None:
            return self.text, ""
        term = cel.explain_false(self.program, device_input(facts))
        if term is None:
            return self.text, ""
        return term.text, ", ".join(f"{name} is {value}" for name, value in term.values.items())

    def _evaluate(self, facts: DeviceFacts) -> bool | Exception:
        assert self.program is not None
        try:
            return self.program.evaluate(device_input(facts))
        except cel.EvaluationError as error:
            return error


class Derivation(Expression):
    """An attribute computed from the device for use in constraints."""

    def __init__(self, text: str, features: Features) -> None:
        self.compile_error: cel.CompileError | None = None
        self.program: cel.Program | None = None
        try:
            self.program = cel.compile_derived(text, features=features, stored=True)
        except cel.CompileError as error:
            self.compile_error = error
        super().__init__(text, attribute_reads(self.program) if self.program else frozenset())

    def value(self, facts: DeviceFacts) -> DeviceAttribute | Exception:
        """Return the computed attribute, or the error."""
        if self.compile_error is not None:
            return self.compile_error
        assert self.program is not None
        try:
            value, _ = self.program.value_with_cost(device_input(facts))
        except cel.EvaluationError as error:
            return error
        try:
            return attribute_from(value)
        except TypeError as error:
            return error


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
