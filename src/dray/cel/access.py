"""Accesses: variables, selections and indexings, as steps of the interpreter.

`device.attributes["d"].x` is one step with a root and three qualifiers. Each
qualifier costs 1, and so does the access itself, unless it is a test by `has()` or
only serves as the key of another access.
"""

from __future__ import annotations

from dray.cel.conversions import show_key
from dray.cel.interpreter import Failure, Frame, Step
from dray.cel.values import MISSING, NOTHING, Optional, Uint, go_type_name, map_find, type_name


class Qualifier:
    """One `.field`, `[index]`, `.?field` or `[?index]` of an access."""

    __slots__ = ("id", "optional")

    def __init__(self, qualifier_id: int, *, optional: bool) -> None:
        self.id = qualifier_id
        self.optional = optional

    def key(self, frame: Frame) -> object:
        """Return the key to look up, or a Failure."""
        raise NotImplementedError

    def apply(self, frame: Frame, value: object) -> object:
        """Return what lies at the key, or a Failure; report it."""
        key = self.key(frame)
        found = key if isinstance(key, Failure) else look_up(value, key)
        if found is MISSING:
            found = missing(value, key)
        frame.meter.report(self.id, found, 1)
        return found

    def apply_if_present(self, frame: Frame, value: object) -> object:
        """Return what lies at the key, MISSING, or a Failure; report what is there."""
        key = self.key(frame)
        found = key if isinstance(key, Failure) else look_up(value, key)
        if found is not MISSING and not isinstance(found, Failure):
            frame.meter.report(self.id, found, 1)
        return found


class ConstantQualifier(Qualifier):
    """A key that is known when compiling."""

    __slots__ = ("value",)

    def __init__(self, qualifier_id: int, value: object, *, optional: bool) -> None:
        super().__init__(qualifier_id, optional=optional)
        self.value = value

    def key(self, frame: Frame) -> object:
        """Return the constant."""
        return self.value


class PresenceQualifier(ConstantQualifier):
    """The last part of has(a.b): is it there?"""

    __slots__ = ()

    def apply(self, frame: Frame, value: object) -> object:
        """Return a bool, or a Failure."""
        found = look_up(value, self.value)
        outcome = found if isinstance(found, Failure) else found is not MISSING
        frame.meter.report(self.id, outcome, 1)
        return outcome

    def apply_if_present(self, frame: Frame, value: object) -> object:
        """Return the value, MISSING, or a Failure."""
        found = look_up(value, self.value)
        frame.meter.report(self.id, found if isinstance(found, Failure) else found is not MISSING, 1)
        return found


class ComputedQualifier(Qualifier):
    """A key that another step computes."""

    __slots__ = ("step",)

    def __init__(self, qualifier_id: int, step: Step, *, optional: bool) -> None:
        super().__init__(qualifier_id, optional=optional)
        self.step = step

    def key(self, frame: Frame) -> object:
        """Evaluate the key; an access is resolved without being charged as a step of its own."""
        if isinstance(self.step, Access):
            return self.step.resolve(frame)
        return self.step.run(frame)


KEY_TYPES = frozenset({str, int, Uint, float, bool})


def bad_key(key: object) -> str:
    """Return the message about a value that nothing can be looked up with."""
    return f"invalid qualifier type: {go_type_name(key)}"


def look_up(value: object, key: object) -> object:
    """Return what a value has at a key: MISSING if nothing, a Failure if it cannot be asked."""
    if type(key) not in KEY_TYPES:
        return Failure(bad_key(key))
    if isinstance(value, dict):
        return map_find(value, key)
    if isinstance(value, list):
        index = _as_index(key)
        if isinstance(index, Failure):
            return index
        return value[index] if 0 <= index < len(value) else MISSING
    return MISSING


def _as_index(key: object) -> int | Failure:
    if isinstance(key, int) and not isinstance(key, bool):
        return int(key)
    if isinstance(key, float) and key.is_integer():
        return int(key)
    return Failure(f"unsupported index type '{type_name(key)}' in list")


def missing(value: object, key: object) -> Failure:
    """Return the failure of a lookup that found nothing."""
    if isinstance(value, list):
        return Failure(f"index out of bounds: {show_key(key)}")
    return Failure(f"no such key: {show_key(key)}")


class Access(Step):
    """A root with qualifiers; the root is a variable, another step, or a choice of two accesses."""

    __slots__ = ("qualifiers", "test_only")

    def __init__(self, step_id: int) -> None:
        super().__init__(step_id)
        self.qualifiers: list[Qualifier] = []
        self.test_only = False

    @property
    def id(self) -> int:
        """The id of the last qualifier, or of the root."""
        return self.qualifiers[-1].id if self.qualifiers else self._id

    def add(self, qualifier: Qualifier) -> None:
        """Extend the access by one qualifier."""
        self.qualifiers.append(qualifier)

    def root(self, frame: Frame) -> object:
        """Return the value at the root, or a Failure."""
        raise NotImplementedError

    def resolve(self, frame: Frame) -> object:
        """Return the value, charging only for the qualifiers."""
        value = self.root(frame)
        if isinstance(value, Failure):
            return value
        is_optional = isinstance(value, Optional)
        if isinstance(value, Optional):
            if not value.present:
                return value
            value = value.value
        for qualifier in self.qualifiers:
            is_optional = is_optional or qualifier.optional
            if is_optional:
                value = qualifier.apply_if_present(frame, value)
                if value is MISSING:
                    return NOTHING
            else:
                value = qualifier.apply(frame, value)
            if isinstance(value, Failure):
                return value
        return Optional(value) if is_optional else value

    def run(self, frame: Frame) -> object:
        """Resolve, and charge for the access itself."""
        value = self.resolve(frame)
        if self.test_only and isinstance(value, Optional):
            value = value.present
        step_id = self.id
        frame.meter.drop(step_id)
        frame.meter.report(self._reported_id(), value, 0 if self.test_only else 1)
        return value

    def _reported_id(self) -> int:
        return self.id


class VariableAccess(Access):
    """Starts at a variable."""

    __slots__ = ("from_outermost", "name")

    def __init__(self, step_id: int, name: str) -> None:
        super().__init__(step_id)
        self.from_outermost = name.startswith(".")
        self.name = name.removeprefix(".")

    def root(self, frame: Frame) -> object:
        """Look the variable up."""
        value = (frame.root() if self.from_outermost else frame).find(self.name)
        return Failure(f"no such attribute(s): {self.name}") if value is MISSING else value


class StepAccess(Access):
    """Starts at the value of another step."""

    __slots__ = ("operand",)

    def __init__(self, step_id: int, operand: Step) -> None:
        super().__init__(step_id)
        self.operand = operand

    def root(self, frame: Frame) -> object:
        """Evaluate the operand."""
        return self.operand.run(frame)


class Conditional(Access):
    """`condition ? a : b`; further qualifiers go to both branches."""

    __slots__ = ("condition", "falsy", "truthy")

    def __init__(self, step_id: int, condition: Step, truthy: Access, falsy: Access) -> None:
        super().__init__(step_id)
        self.condition = condition
        self.truthy = truthy
        self.falsy = falsy

    @property
    def id(self) -> int:
        """The id of the choice."""
        return self.truthy.id if self.truthy.id == self.falsy.id else self._id

    def add(self, qualifier: Qualifier) -> None:
        """Extend both branches."""
        self.truthy.add(qualifier)
        self.falsy.add(qualifier)

    def resolve(self, frame: Frame) -> object:
        """Evaluate the condition and one branch."""
        choice = self.condition.run(frame)
        if choice is True:
            return self.truthy.resolve(frame)
        if choice is False:
            return self.falsy.resolve(frame)
        return choice if isinstance(choice, Failure) else Failure("no such overload")

    def run(self, frame: Frame) -> object:
        """Resolve; a choice itself is free of charge, and a test by has() gives back what a step costs."""
        value = self.resolve(frame)
        frame.meter.drop(self.falsy.id, self.truthy.id, self.condition.id)
        frame.meter.report(self.id, value, -1 if self.test_only else 0)
        return value
