"""Evaluate an expression step by step, counting what it costs.

This is the exact evaluator: it gives the result, the error and the cost that
upstream gives. The compiled function (see `codegen`) is for speed; whatever that
one cannot decide without a failure is decided here.

Theory of operation. A checked tree is turned into *steps*. Errors are values
(`Failure`), since `&&` and `||` may absorb them. A chain of selections and
indexings (`device.attributes["d"].x`) is one step, an *access*, with a list of
qualifiers. Every step reports its value to the `Meter` when it is done. The meter
keeps a stack of reported values; a call is charged for the argument values it
finds there under the ids of its arguments, and costs nothing if one is missing
(because an earlier argument failed). That is how upstream counts, so the stack and
its quirks are part of the result: values that no step picked up stay on the stack
and may be found by a later round of a loop.

Constants are folded before: a list of literals costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dray.cel.call_costs import actual_call_cost, is_plain
from dray.cel.errors import CostLimitError, Fault
from dray.cel.macros import ACCUMULATOR
from dray.cel.memory import MEMORY_LIMIT, OUTGROWING, memory_left_after
from dray.cel.ranges import LIST_BASE, MAP_BASE
from dray.cel.values import (
    MISSING,
    Growing,
    GrowingMap,
    Optional,
    equal,
    go_type_name,
    map_items,
    map_key,
    map_keys,
)

RUN_TIME_LIMIT = 1_000_000


class Failure:
    """An error as a value."""

    __slots__ = ("message",)

    def __init__(self, message: str) -> None:
        self.message = message


class Meter:
    """Counts the cost of one evaluation."""

    __slots__ = ("_present", "cost", "limit", "memory_left", "stack")

    def __init__(self, limit: int = RUN_TIME_LIMIT) -> None:
        self.cost = 0
        self.limit = limit
        self.memory_left = MEMORY_LIMIT
        self.stack: list[tuple[int, object]] = []
        # How often each id is on the stack: spares the search for what is not there.
        self._present: dict[int, int] = {}

    def restart(self, cost: int) -> None:
        """Forget the values; used when an evaluation begins again."""
        self.cost = cost
        self.memory_left = MEMORY_LIMIT
        self.stack.clear()
        self._present.clear()

    def report(self, step_id: int, value: object, cost: int = 0) -> None:
        """Note the value of a finished step, and charge for it."""
        self.cost += cost
        self.stack.append((step_id, value))
        self._present[step_id] = self._present.get(step_id, 0) + 1
        if self.cost > self.limit:
            raise CostLimitError("operation cancelled: actual cost limit exceeded")

    def _pop(self, wanted: int) -> object:
        """Remove the topmost value of an id with all above it; MISSING if it is not there."""
        if not self._present.get(wanted):
            return MISSING
        while True:
            step_id, value = self.stack.pop()
            self._present[step_id] -= 1
            if step_id == wanted:
                return value

    def drop(self, *step_ids: int) -> None:
        """Remove the topmost value of each id, with all above it."""
        for wanted in step_ids:
            self._pop(wanted)

    def take(self, step_ids: list[int]) -> list[object] | None:
        """Remove the values of a call's arguments; None if one is not there."""
        values: list[object] = []
        for wanted in reversed(step_ids):
            value = self._pop(wanted)
            if value is MISSING:
                return None
            values.append(value)
        values.reverse()
        return values


class Frame:
    """The variables in sight: one of `device`, one per loop around."""

    __slots__ = ("meter", "parent", "values")

    def __init__(self, meter: Meter, parent: Frame | None, values: dict[str, object]) -> None:
        self.meter = meter
        self.parent = parent
        self.values = values

    def find(self, name: str) -> object:
        """Return a variable's value."""
        frame: Frame | None = self
        while frame is not None:
            value = frame.resolve(name)
            if value is not MISSING:
                return value
            frame = frame.parent
        return MISSING

    def resolve(self, name: str) -> object:
        """Return the value of a variable of this very frame, or MISSING."""
        return self.values.get(name, MISSING)

    def root(self) -> Frame:
        """Return the outermost frame."""
        frame = self
        while frame.parent is not None:
            frame = frame.parent
        return frame


class Step:
    """Something to evaluate; `run` reports to the meter, `id` names what it reports."""

    __slots__ = ("_id",)

    def __init__(self, step_id: int) -> None:
        self._id = step_id

    @property
    def id(self) -> int:
        """The id under which the value is reported."""
        return self._id

    def run(self, frame: Frame) -> object:
        """Return the value, or a Failure."""
        raise NotImplementedError


class Constant(Step):
    """A literal, or something folded into one."""

    __slots__ = ("value",)

    def __init__(self, step_id: int, value: object) -> None:
        super().__init__(step_id)
        self.value = value

    def run(self, frame: Frame) -> object:
        """Report and return the constant."""
        frame.meter.report(self._id, self.value)
        return self.value


# Functions whose overloads upstream tells apart at run time where the checker left more than one.
_CHOSEN_AT_RUN_TIME = frozenset(
    {
        "add", "compareTo", "containsCIDR", "containsIP", "indexOf", "isGreaterThan", "isLessThan", "lastIndexOf", "sub",
    }
)  # fmt: skip


class CallStep(Step):
    """A function call whose arguments are all needed."""

    __slots__ = (
        "args", "function", "implementation", "is_plain", "is_strict", "outgrows_cost", "overload", "stops_early",
    )  # fmt: skip

    def __init__(
        self,
        step_id: int,
        function: str,
        overload: str,
        args: list[Step],
        implementation: Callable[..., object],
    ) -> None:
        super().__init__(step_id)
        self.function = function
        self.overload = overload
        self.args = args
        self.implementation = implementation
        self.is_plain = is_plain(function, overload)
        self.outgrows_cost = function in OUTGROWING
        self.is_strict = function != "@not_strictly_false"
        # Whether the first failure ends the evaluation of the arguments: upstream's functions of one or two
        # arguments get them all, those that take a slice of arguments do not.
        self.stops_early = (
            len(args) > 2
            or function == "format"
            or (len(args) == 2 and not overload and function in _CHOSEN_AT_RUN_TIME)
        )

    def run(self, frame: Frame) -> object:
        """Evaluate the arguments and the call."""
        value = self._value(frame)
        meter = frame.meter
        if self.outgrows_cost and type(value) is not Growing:
            meter.memory_left = memory_left_after(value, meter.memory_left)
        args = meter.take([arg.id for arg in self.args])
        if args is None:
            cost = 0
        elif self.is_plain:
            cost = 1
        else:
            cost = actual_call_cost(self.function, self.overload, args, value)
        meter.report(self._id, value, cost)
        return value

    def _value(self, frame: Frame) -> object:
        values: list[object] = []
        for arg in self.args:
            value = arg.run(frame)
            if self.stops_early and isinstance(value, Failure):
                return value
            values.append(value)
        if self.is_strict:
            for value in values:
                if isinstance(value, Failure):
                    return value
        return guarded(self.implementation, *values)


def guarded(function: Callable[..., object], *args: object) -> object:
    """Call a function, turning a Fault into a Failure."""
    try:
        return function(*args)
    except Fault as fault:
        return Failure(fault.message)


def not_strictly_false(value: object) -> object:
    """Return False only for a plain false: failures count as true."""
    return value if isinstance(value, bool) else True


def not_equal(left: object, right: object) -> bool:
    """Return left != right; values that cannot be compared are unequal."""
    try:
        return not equal(left, right)
    except Fault:
        return True


class Logic(Step):
    """`&&` and `||`: a deciding value on either side absorbs a failure on the other."""

    __slots__ = ("decisive", "terms")

    def __init__(self, step_id: int, terms: list[Step], *, decisive: bool) -> None:
        super().__init__(step_id)
        self.terms = terms
        self.decisive = decisive

    def run(self, frame: Frame) -> object:
        """Evaluate terms until one decides."""
        value = self._value(frame)
        frame.meter.drop(*(term.id for term in self.terms))
        frame.meter.report(self._id, value)
        return value

    def _value(self, frame: Frame) -> object:
        failure: Failure | None = None
        for term in self.terms:
            value = term.run(frame)
            if value is self.decisive:
                return value
            if not isinstance(value, bool) and failure is None:
                failure = value if isinstance(value, Failure) else Failure("no such overload")
        return failure or (not self.decisive)


class OptionalOr(Step):
    """`a.or(b)` and `a.orValue(b)`: b is evaluated only if a is empty. Free of charge."""

    __slots__ = ("left", "right", "unwraps")

    def __init__(self, step_id: int, left: Step, right: Step, *, unwraps: bool) -> None:
        super().__init__(step_id)
        self.left = left
        self.right = right
        self.unwraps = unwraps

    def run(self, frame: Frame) -> object:
        """Evaluate the left side, and the right one if needed."""
        left = self.left.run(frame)
        value: object
        if isinstance(left, Failure):
            value = left
        elif not isinstance(left, Optional):
            value = Failure("no such overload")
        elif left.present:
            value = left.value if self.unwraps else left
        else:
            value = self.right.run(frame)
        frame.meter.report(self._id, value)
        return value


class Membership(Step):
    """`x in [constants]`: a set lookup, free of charge."""

    __slots__ = ("arg", "members")

    def __init__(self, step_id: int, arg: Step, members: frozenset[tuple[str, object]]) -> None:
        super().__init__(step_id)
        self.arg = arg
        self.members = members

    def run(self, frame: Frame) -> object:
        """Look the value up."""
        value = self.arg.run(frame)
        if not isinstance(value, Failure):
            value = member_key(value) in self.members
        frame.meter.report(self._id, value)
        return value


def member_key(value: object) -> tuple[str, object]:
    """Return a key that is equal for equal scalars; unhashable values are in no set."""
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int | float):
        return "number", value
    if isinstance(value, str):
        return "string", value
    if value is None:
        return "null", None
    return "other", id(value)


class ListStep(Step):
    """`[a, ?b]`."""

    __slots__ = ("elements", "optional")

    def __init__(self, step_id: int, elements: list[Step], optional: frozenset[int]) -> None:
        super().__init__(step_id)
        self.elements = elements
        self.optional = optional

    def run(self, frame: Frame) -> object:
        """Evaluate the elements."""
        value = self._value(frame)
        frame.meter.take([element.id for element in self.elements])
        frame.meter.report(self._id, value, LIST_BASE)
        return value

    def _value(self, frame: Frame) -> object:
        values: list[object] = []
        for index, element in enumerate(self.elements):
            value = element.run(frame)
            if isinstance(value, Failure):
                return value
            if index in self.optional:
                if not isinstance(value, Optional):
                    return Failure(f"cannot initialize optional list element from non-optional value {value}")
                if not value.present:
                    continue
                value = value.value
            values.append(value)
        return values


class MapStep(Step):
    """`{key: value}`."""

    __slots__ = ("entries",)

    def __init__(self, step_id: int, entries: list[tuple[Step, Step, bool]]) -> None:
        super().__init__(step_id)
        self.entries = entries

    def run(self, frame: Frame) -> object:
        """Evaluate keys and values."""
        value = self._value(frame)
        frame.meter.take([step.id for key, item, _ in self.entries for step in (key, item)])
        frame.meter.report(self._id, value, MAP_BASE)
        return value

    def _value(self, frame: Frame) -> object:
        entries: dict[object, object] = {}
        for key_step, value_step, optional in self.entries:
            key = key_step.run(frame)
            if isinstance(key, Failure):
                return key
            value = value_step.run(frame)
            if isinstance(value, Failure):
                return value
            if optional:
                if not isinstance(value, Optional):
                    return Failure(
                        f"cannot initialize optional entry '{key}' from non-optional value {value}"
                    )
                if not value.present:
                    entries.pop(map_key(key), None)
                    continue
                value = value.value
            entries[map_key(key)] = value
        return entries


class FoldStep(Step):
    """A comprehension."""

    __slots__ = ("accu", "accu_var", "condition", "iter_range", "iter_var", "iter_var2", "result", "step")

    def __init__(
        self, step_id: int, names: tuple[str, str, str], steps: tuple[Step, Step, Step, Step, Step]
    ) -> None:
        super().__init__(step_id)
        self.iter_var, self.iter_var2, self.accu_var = names
        self.iter_range, self.accu, self.condition, self.step, self.result = steps

    def run(self, frame: Frame) -> object:
        """Run the loop."""
        value = self._value(frame)
        frame.meter.drop(self.iter_range.id)
        frame.meter.report(self._id, value)
        return value

    def _value(self, frame: Frame) -> object:
        over = self.iter_range.run(frame)
        if isinstance(over, Failure):
            return over
        inner = _LoopFrame(frame, self)
        pairs: Iterable[tuple[object, object]]
        if isinstance(over, list):
            pairs = enumerate(over) if self.iter_var2 else ((item, None) for item in over)
        elif isinstance(over, dict):
            pairs = map_items(over) if self.iter_var2 else ((key, None) for key in map_keys(over))
        elif self.iter_var2:
            return Failure(f"unsupported comprehension range type: {go_type_name(over)}")
        else:
            return Failure(f"got '{go_type_name(over)}', expected iterable type")
        for inner.first, inner.second in pairs:
            condition = self.condition.run(inner)
            if condition is False:
                break
            inner.accumulator = self.step.run(inner)
        inner.in_result = True
        return _grown(self.result.run(inner))


def _growing(value: object) -> object:
    """Let the list or map of a loop grow in place: copies would take the square of its size."""
    if isinstance(value, list):
        return Growing(value)
    if isinstance(value, dict):
        return GrowingMap(value)
    return value


def _grown(value: object) -> object:
    if type(value) is Growing:
        return list(value)
    if type(value) is GrowingMap:
        return dict(value)
    return value


class _LoopFrame(Frame):
    """The variables of a loop; the accumulator starts when it is first asked for."""

    __slots__ = ("accumulator", "first", "fold", "in_result", "second")

    def __init__(self, parent: Frame, fold: FoldStep) -> None:
        super().__init__(parent.meter, parent, {})
        self.fold = fold
        self.accumulator: object = MISSING
        self.first: object = None
        self.second: object = None
        self.in_result = False

    def resolve(self, name: str) -> object:
        fold = self.fold
        if name == fold.accu_var:
            if self.accumulator is MISSING:
                assert self.parent is not None
                value = fold.accu.run(self.parent)
                # Nobody but the loop itself can see an accumulator of this name.
                self.accumulator = _growing(value) if name == ACCUMULATOR else value
            return self.accumulator
        if not self.in_result:
            if name == fold.iter_var:
                return self.first
            if fold.iter_var2 and name == fold.iter_var2:
                return self.second
        return MISSING
