"""A compiled expression: how it is made, and how it runs."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dray.api.caching import BoundedCache
from dray.api.features import Features
from dray.api.resource import DeviceAttribute
from dray.api.semver import Semver
from dray.cel import kinds
from dray.cel.checker import check
from dray.cel.codegen import Compiled, compile_tree, may_abort
from dray.cel.depth import with_room
from dray.cel.device import DeviceInput
from dray.cel.environment import CONSUMABLE_CAPACITY, LIST_TYPE_ATTRIBUTES, Environment, environment_for
from dray.cel.errors import AbortedError, CompileError, EvaluationError, Fault
from dray.cel.estimate import max_cost
from dray.cel.interpreter import RUN_TIME_LIMIT, Failure, Frame, Meter, Step
from dray.cel.kinds import CelType
from dray.cel.parser import parse
from dray.cel.planning import plan
from dray.cel.reads import ReadSet, reads_of
from dray.cel.source import Complaints, Source
from dray.cel.syntax import Node, walk
from dray.cel.validators import validate
from dray.cel.values import Optional, Uint, go_native_name, type_name


@dataclass(frozen=True, slots=True)
class Outcome:
    """All there is to know about one evaluation."""

    value: object
    cost: int | None  # None: it did not even start
    error: str


class Program:
    """A compiled expression. Immutable after compilation; may be shared between threads."""

    __slots__ = (
        "_absorbs", "_compiled", "_counts", "_is_compiled", "_steps",
        "expression", "is_derived", "max_cost", "n_nodes", "output_type", "reads", "tree",
    )  # fmt: skip

    def __init__(
        self, expression: str, tree: Node, steps: Step, cost: int, *, is_derived: bool = False
    ) -> None:
        self.expression = expression
        self.tree = tree
        self.n_nodes = sum(1 for _ in walk(tree))
        self.output_type: CelType = tree.type
        self.max_cost = cost
        self.is_derived = is_derived
        self.reads: ReadSet = reads_of(tree)
        self._steps = steps
        # Within the limit by estimate means: no need to count.
        self._counts = cost > RUN_TIME_LIMIT
        self._absorbs = False
        self._compiled: Compiled | None = None
        self._is_compiled = False

    def evaluate(self, device: DeviceInput) -> bool:
        """Return whether the device matches; raise EvaluationError."""
        return as_bool(self.value(device))

    @property
    def is_ready(self) -> bool:
        """Return whether the function that evaluates is there already."""
        return self._is_compiled

    def value(self, device: DeviceInput) -> object:
        """Return the value of the expression, without its cost; raise EvaluationError."""
        if not self._is_compiled:
            # Compiling is left to the first evaluation: admission has no use for it. Two
            # threads may both do it, with the same result.
            self._absorbs = not self._counts and not may_abort(self.tree)
            self._compiled = with_room(
                lambda: compile_tree(self.tree, counting=self._counts, absorbs=self._absorbs)
            )
            self._is_compiled = True
        compiled = self._compiled
        if compiled is None or device.poison:
            return self.value_with_cost(device)[0]
        try:
            return compiled(device, RUN_TIME_LIMIT)[0]
        except AbortedError:
            pass  # unless the value is never asked for
        except EvaluationError:
            raise
        except Fault as fault:
            if self._absorbs:
                raise EvaluationError(fault.message) from None
        except Exception:  # noqa: S110  # the interpreter knows what it means
            pass
        return self.value_with_cost(device)[0]

    def evaluate_with_cost(self, device: DeviceInput, limit: int = RUN_TIME_LIMIT) -> tuple[bool, int]:
        """Return whether the device matches, and at what cost; raise EvaluationError."""
        value, cost = self.value_with_cost(device, limit)
        return as_bool(value), cost

    def value_with_cost(self, device: DeviceInput, limit: int = RUN_TIME_LIMIT) -> tuple[object, int]:
        """Return the value of the expression and its cost; raise EvaluationError."""
        meter = Meter(limit)
        value = self.run(device, meter)
        return value, meter.cost

    def run(self, device: DeviceInput, meter: Meter) -> object:
        """Evaluate with a meter of the caller's; raise EvaluationError."""
        if device.poison:
            raise EvaluationError(device.poison)
        start = meter.cost
        frame = Frame(meter, None, device.variables)

        def attempt() -> object:
            meter.restart(start)
            return self._steps.run(frame)

        value = with_room(attempt)
        if isinstance(value, Failure):
            raise EvaluationError(value.message)
        return value

    def outcome(self, device: DeviceInput) -> Outcome:
        """Evaluate as a selector (or a derived attribute), with the cost even of a failure."""
        if device.poison:
            return Outcome(None, None, device.poison)
        meter = Meter()
        try:
            value = self.run(device, meter)
            if not self.is_derived:
                value = as_bool(value)
        except EvaluationError as error:
            return Outcome(None, meter.cost, str(error))
        return Outcome(value, meter.cost, "")

    def evaluate_derived(self, device: DeviceInput) -> DeviceAttribute:
        """Return the value of a derived attribute; raise EvaluationError."""
        return as_attribute(self.value(device))


def as_bool(value: object) -> bool:
    """Return the value of a selector; raise EvaluationError if it is not a bool."""
    if isinstance(value, bool):
        return value
    inner = value
    while isinstance(inner, Optional) and inner.present:
        inner = inner.value
    if isinstance(inner, bool):
        return inner
    problem = _conversion_problem(inner)
    raise EvaluationError(f"CEL result of type {type_name(value)} could not be converted to bool: {problem}")


_CONVERSION_PROBLEMS = {
    "bytes": "type conversion error from Bytes to 'bool'",
    "double": "type conversion error from Double to 'bool'",
    "string": "unsupported native conversion from string to 'bool'",
    "type": "type conversion not supported for 'type'",
    "kubernetes.NamedFormat": "type conversion error from 'Format' to 'bool'",
}


def _conversion_problem(value: object) -> str:
    name = type_name(value)
    if isinstance(value, Optional):
        return "optional.none() dereference"
    if name in ("list", "map"):
        return f"type conversion error from {name} to 'bool'"
    if name in ("int", "uint"):
        return f"unsupported type conversion from '{name}' to bool"
    return _CONVERSION_PROBLEMS.get(name, f"type conversion error from '{name.rpartition('.')[2]}' to 'bool'")


def as_attribute(value: object) -> DeviceAttribute:
    """Return a CEL value as an attribute; raise EvaluationError if it cannot be one."""
    match value:
        case bool():
            return DeviceAttribute(bool_value=value)
        case Uint():
            raise EvaluationError("unsupported CEL return type: uint64")
        case int():
            return DeviceAttribute(int_value=value)
        case str():
            return DeviceAttribute(string=value)
        case Semver():
            return DeviceAttribute(version=str(value))
        case list():
            return _list_attribute(value)
    raise EvaluationError(f"unsupported CEL return type: {go_native_name(value)}")


def _list_attribute(items: list[object]) -> DeviceAttribute:
    if not items:
        return DeviceAttribute(strings=[])
    kind = type(items[0])
    word = {bool: "bool", int: "int", str: "string", Semver: "semver"}.get(kind)
    if word is None:
        raise EvaluationError(f"unsupported list element type: {go_native_name(items[0])}")
    for index, item in enumerate(items):
        if type(item) is not kind:
            raise EvaluationError(
                f"expected list element at index {index} to be {word}, got {go_native_name(item)}"
            )
    if kind is bool:
        return DeviceAttribute(bools=[item for item in items if isinstance(item, bool)])
    if kind is int:
        return DeviceAttribute(ints=[item for item in items if isinstance(item, int)])
    if kind is str:
        return DeviceAttribute(strings=[item for item in items if isinstance(item, str)])
    return DeviceAttribute(versions=[str(item) for item in items])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What admission wants to know about an expression."""

    error: str | None
    max_cost: int


def compile_selector(expression: str, *, features: AbstractSet[str], stored: bool = False) -> Program:
    """Compile a device selector; raise CompileError."""
    return _compile(expression, _gates(features), stored, False)


def compile_derived(expression: str, *, features: AbstractSet[str], stored: bool = False) -> Program:
    """Compile the expression of a derived attribute; raise CompileError."""
    return _compile(expression, _gates(features), stored, True)


def is_compiled(
    expression: str, *, features: AbstractSet[str], stored: bool = False, derived: bool = False
) -> bool:
    """Return whether a program is at hand, and so evaluates at once."""
    program = _PROGRAMS.get((expression, _gates(features), stored, derived))
    return program is not None and program.is_ready


def check_expression(
    expression: str, *, features: AbstractSet[str], stored: bool = False, derived: bool = False
) -> Verdict:
    """Compile for admission: say what is wrong, or what the expression may cost."""
    key = expression, _gates(features), stored, derived
    verdict = _VERDICTS.get(key)
    if verdict is None:
        try:
            program = _anew(*key)
        except CompileError as error:
            verdict = Verdict(str(error), 0)
        else:
            verdict = Verdict(None, program.max_cost)
        # The program itself is not kept: admission does not evaluate, and programs are big.
        _VERDICTS.add(key, verdict, len(expression) + len(verdict.error or ""))
    return verdict


_LONG = 1_000  # characters; a few milliseconds
_COPYING = ("optMap", "optFlatMap")  # write their receiver twice, so a short text can become a big tree


def takes_long(expressions: Iterable[str]) -> bool:
    """Return whether compiling these expressions may take longer than an event loop should wait."""
    left = _LONG
    for expression in expressions:
        left -= len(expression)
        if left < 0 or any(name in expression for name in _COPYING):
            return True
    return False


def _gates(features: AbstractSet[str]) -> Features:
    return Features(name for name in (CONSUMABLE_CAPACITY, LIST_TYPE_ATTRIBUTES) if name in features)


_Key = tuple[str, Features, bool, bool]  # text, gates, is stored, is derived
# All programs together: nodes, which take 0.1 to 0.55 KB each, so about 100 MB at most. Whoever keeps what programs have
# found instead of the programs themselves (as the allocator does) stays within that, however many expressions there are.
_PROGRAMS: BoundedCache[_Key, Program] = BoundedCache(200_000)
_CHARACTERS_PER_NODE = 512  # an expression may be one long literal
_VERDICTS: BoundedCache[_Key, Verdict] = BoundedCache(16 << 20)  # characters


def _compile(expression: str, gates: Features, stored: bool, derived: bool) -> Program:
    key = expression, gates, stored, derived
    program = _PROGRAMS.get(key)
    if program is None:
        program = _anew(*key)
        _PROGRAMS.add(key, program, program.n_nodes + len(expression) // _CHARACTERS_PER_NODE)
    return program


def _anew(expression: str, gates: Features, stored: bool, derived: bool) -> Program:
    return with_room(lambda: _compile_anew(expression, gates, stored=stored, derived=derived))


def _compile_anew(expression: str, gates: Features, *, stored: bool, derived: bool) -> Program:
    environment = environment_for(gates, stored=stored)
    complaints = Complaints(Source(expression))
    tree = parse(complaints)
    if tree is None:
        raise complaints.error()
    check(tree, environment, complaints)
    if complaints:
        raise complaints.error()
    validate(tree, complaints)
    if complaints:
        raise complaints.error()
    _check_output(tree.type, environment, derived=derived)
    return Program(expression, tree, plan(tree), max_cost(tree, environment.shapes), is_derived=derived)


_DERIVED = frozenset({kinds.BOOL, kinds.INT, kinds.STRING, kinds.ANY, kinds.DYN, kinds.SEMVER})


def _check_output(kind: CelType, environment: Environment, *, derived: bool) -> None:
    if not derived:
        if kind not in (kinds.BOOL, environment.leaf):
            raise CompileError(f"must evaluate to bool or the unknown type, not {kind}")
        return
    if kind in _DERIVED:
        return
    if environment.lists_allowed and kind.kind == "list" and kind.params[0] in _DERIVED:
        return
    lists = " or a list of these scalars" if environment.lists_allowed else ""
    raise CompileError(
        f"must evaluate to a primitive scalar (string, integer, boolean, semver){lists}, not {kind}"
    )


def subprogram(program: Program, node: Node) -> Program:
    """Return a part of a compiled expression as a program of its own."""
    if node is program.tree:
        return program
    return Program(program.expression, node, plan(node), program.max_cost)
