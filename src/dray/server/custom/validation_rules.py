"""Rules of custom kinds: `x-kubernetes-validations`, compiled once per definition.

A rule belongs to a level of the schema; there `self` is the value at that level, and
`oldSelf` what was there before the update. A rule that mentions `oldSelf` is asked only
where there is an old value to compare with (unless it says `optionalOldSelf`). Items of a
list correspond to old items only where the list has keys.

Work is bounded three times, with kube-apiserver's figures: a rule whose estimated worst case
is too large is refused with its definition, one evaluation ends at a million units, and all
rules of one object share ten million.

A value that an update did not change keeps breaking a rule it broke before: the client is
warned, not refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dray.api.validation.fields import (
    OMITTED,
    ErrorType,
    FieldError,
    Path,
    duplicate,
    forbidden,
    invalid,
    required,
)
from dray.cel import RUN_TIME_LIMIT, CompileError, CostLimitError, EvaluationError
from dray.cel.expressions import (
    BOOL,
    NOTHING,
    STRING,
    Environment,
    Expression,
    Meter,
    Optional,
    compile_expression,
    environment_of,
    optional_of,
)
from dray.cel.schema_types import Declared, SameShape, declare, to_value, with_object_meta
from dray.server.custom.structural_schemas import Schema

RULES = "x-kubernetes-validations"
BUDGET = 10_000_000  # of all rules of one object
LONGEST_MESSAGE = 5 * 1024
QUICK = 20_000  # estimated cost of all rules, below which an object is judged in the loop
_NO_OLD = object()
_OUT_OF_BUDGET = (
    "validation failed due to running out of cost budget, no further validation rules will be run"
)


@dataclass(slots=True)
class Rule:
    """One rule, compiled."""

    text: str
    message: str
    reason: str
    field_path: str
    optional_old: bool
    expression: Expression | None = None
    message_expression: Expression | None = None
    cost: int = 0
    message_cost: int = 0
    error: str = ""
    message_error: str = ""

    @property
    def uses_old(self) -> bool:
        """Return whether the rule compares with the old value."""
        return self.expression is not None and self.expression.uses("oldSelf")

    @property
    def shown(self) -> str:
        """Return what messages call the rule."""
        return self.message.strip() or self.text.strip()


@dataclass(slots=True)
class Level:
    """The rules of one level of a schema, and the levels below."""

    schema: Schema
    is_root: bool
    rules: list[Rule] = field(default_factory=list)
    members: dict[str, Level] = field(default_factory=dict)
    items: Level | None = None
    values: Level | None = None  # of additionalProperties
    alternatives: list[Level] = field(default_factory=list)  # of allOf

    def below(self) -> Iterator[Level]:
        """Yield this level and all below."""
        yield self
        for level in (*self.members.values(), self.items, self.values, *self.alternatives):
            if level is not None:
                yield from level.below()

    @property
    def is_quick(self) -> bool:
        """Return whether objects can be judged in the event loop: no rule repeats itself, none costs much."""
        if self.items is not None or self.values is not None:
            return False
        levels = list(self.below())
        if any(level.items is not None or level.values is not None for level in levels):
            return False
        return sum(rule.cost + rule.message_cost for level in levels for rule in level.rules) < QUICK

    def judge(
        self, new: Any, old: Any | None, found: list[FieldError], warn: Callable[[str], None]
    ) -> list[FieldError]:
        """Return what rules have against an object, of which the schema found something already."""
        if any(error.kind in _BLOCKING for error in found):
            return [invalid("<nil>", None, _UNCHECKED)]
        judge = _Judge(warn)
        judge.visit(self, Path(""), new, _NO_OLD if old is None else old, parent_same=False)
        return judge.errors


def compile_rules(schema: Schema | None) -> Level | None:
    """Return the rules of a schema; None if it has none."""
    if schema is None or not mentions_rules(schema):
        return None
    return _level(schema, schema, is_root=True)


def mentions_rules(schema: Any) -> bool:
    """Return whether there is a rule anywhere in a schema."""
    if isinstance(schema, dict):
        return bool(schema.get(RULES)) or any(map(mentions_rules, schema.values()))
    return isinstance(schema, list) and any(map(mentions_rules, schema))


def _level(rules: Schema, schema: Schema, *, is_root: bool = False) -> Level | None:
    """Return a level: `rules` is where rules stand (maybe in allOf), `schema` has the types."""
    level = Level(schema, is_root)
    if rules.get(RULES):
        level.rules = compile_level(schema, rules[RULES], is_root=is_root)
    for name, inner in (rules.get("properties") or {}).items():
        types = (schema.get("properties") or {}).get(name)
        found = None if types is None else _level(inner, types, is_root=_is_embedded(types))
        if found is not None:
            level.members[name] = found
    items, types = rules.get("items"), schema.get("items")
    if isinstance(items, dict) and isinstance(types, dict):
        level.items = _level(items, types, is_root=_is_embedded(types))
    values, types = rules.get("additionalProperties"), schema.get("additionalProperties")
    if isinstance(values, dict) and isinstance(types, dict):
        level.values = _level(values, types, is_root=_is_embedded(types))
    for inner in rules.get("allOf") or ():
        found = _level(inner, schema, is_root=is_root)
        if found is not None:
            level.alternatives.append(found)
    has_some = level.rules or level.members or level.items or level.values or level.alternatives
    return level if has_some else None


def _is_embedded(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-embedded-resource"))


def compile_level(schema: Schema, rules: list[Schema], *, is_root: bool) -> list[Rule]:
    """Compile the rules of one level; what is wrong with one is noted in it."""
    declared = declare(schema, is_root=is_root)
    if declared is None:
        return []
    compiled = [compile_rule(rule, declared) for rule in rules]
    for rule in compiled:
        rule.field_path = field_at(schema, rule.field_path) or ""
    return compiled


_STEP = re.compile(r"\.([^.\[\]']+)|\['((?:[^'\\]|\\.)+)'\]")


def field_at(schema: Schema, place: str) -> str | None:
    """Return the field that `.list['a.b'].x` means in a schema, as errors name it; None if it leads nowhere.

    >>> field_at({"properties": {"a": {"additionalProperties": {}}}}, ".a['b.c']")
    'a[b.c]'
    """
    level: Any = with_object_meta(schema) if _is_embedded(schema) else schema
    found, position = "", 0
    while position < len(place):
        step = _STEP.match(place, position)
        if step is None:
            return None
        name, position = step.group(1) or step.group(2).replace("\\'", "'"), step.end()
        additional = level.get("additionalProperties")
        if name in (level.get("properties") or {}):
            level, found = level["properties"][name], f"{found}.{name}"
        elif isinstance(additional, dict):
            level, found = additional, f"{found}[{name}]"
        else:
            return None
    return found.removeprefix(".")


def compile_rule(written: Schema, declared: Declared) -> Rule:
    """Compile a rule for values of a declared type; what is wrong with it is noted in it."""
    rule = Rule(
        written.get("rule") or "",
        written.get("message") or "",
        written.get("reason") or "",
        written.get("fieldPath") or "",
        bool(written.get("optionalOldSelf")),
    )
    old = optional_of(declared.type) if rule.optional_old else declared.type
    shapes = SameShape(declared.shape)
    environment = environment_of({"self": declared.type, "oldSelf": old}, declared.structs)
    if not rule.text.strip():
        return rule
    try:
        rule.expression = _typed(rule.text, environment, BOOL, "cel expression must evaluate to a bool")
        rule.cost = rule.expression.max_cost(shapes)
    except CompileError as problem:
        rule.error = str(problem)
        return rule
    text = written.get("messageExpression") or ""
    if text:
        try:
            rule.message_expression = _typed(
                text, environment, STRING, "messageExpression must evaluate to a string"
            )
            rule.message_cost = rule.message_expression.max_cost(shapes)
        except CompileError as problem:
            detail = str(problem)
            rule.message_error = (
                detail if detail.startswith("messageExpression") else f"messageExpression {detail}"
            )
    return rule


def _typed(text: str, environment: Environment, wanted: object, otherwise: str) -> Expression:
    expression = compile_expression(text, environment)
    if expression.output_type != wanted:
        raise CompileError(otherwise)
    return expression


# --- judging objects ----------------------------------------------------------------


@dataclass(slots=True)
class _Judge:
    """One object on its way through the rules."""

    warn: Callable[[str], None]
    budget: int = BUDGET
    errors: list[FieldError] = field(default_factory=list)

    def visit(self, level: Level, path: Path, new: Any, old: Any, *, parent_same: bool) -> bool:
        """Judge a value; False: out of budget, stop."""
        if new is None:
            return True
        same = parent_same if old is _NO_OLD else new == old
        if level.rules and not self._rules(level, path, new, None if old is _NO_OLD else old, same=same):
            return False
        for other in level.alternatives:
            if not self.visit(other, path, new, old, parent_same=parent_same):
                return False
        for below, place, value, before in _parts(level, path, new, old):
            if not self.visit(below, place, value, before, parent_same=same):
                return False
        return True

    def _rules(self, level: Level, path: Path, new: Any, old: Any, *, same: bool) -> bool:
        kind = level.schema.get("type") or ""
        shown = Path(path or "<nil>")
        if self.budget <= 0:
            self.errors.append(invalid(shown, kind, _OUT_OF_BUDGET))
            return False
        value = to_value(level.schema, new, is_root=level.is_root)
        before = None if old is None else to_value(level.schema, old, is_root=level.is_root)
        for rule in level.rules:
            if rule.error:
                self.errors.append(invalid(shown, kind, f"rule compile error: {rule.error}"))
                continue
            if rule.expression is None or (rule.uses_old and old is None and not rule.optional_old):
                continue
            previous = before
            if rule.optional_old:
                previous = NOTHING if old is None else Optional(before)
            variables = {"self": value, "oldSelf": previous}
            if not self._rule(rule, rule.expression, variables, (shown, path, new, kind, same)):
                return False
        return True

    def _rule(
        self,
        rule: Rule,
        expression: Expression,
        variables: dict[str, Any],
        place: tuple[Path, Path, Any, str, bool],
    ) -> bool:
        shown, path, new, kind, same = place
        meter, problem = Meter(RUN_TIME_LIMIT), None
        try:
            verdict = expression.run(variables, meter)
        except EvaluationError as failure:
            verdict, problem = None, failure
        if meter.cost > self.budget:
            self.errors.append(invalid(shown, kind, _OUT_OF_BUDGET))
            return False
        self.budget -= meter.cost
        if problem is not None:
            self.errors.append(invalid(shown, kind, _failure(problem, rule.shown)))
            return not isinstance(problem, CostLimitError)
        if verdict is True:
            return True
        where = path.child(rule.field_path) if rule.field_path else shown
        error = _broken(
            rule, where, OMITTED if kind in ("object", "array") else new, self._detail(rule, variables)
        )
        if same and not rule.uses_old:
            self.warn(error.message())
        else:
            self.errors.append(error)
        return True

    def _detail(self, rule: Rule, variables: dict[str, Any]) -> str:
        """Return what a broken rule says."""
        if rule.message_expression is not None:
            meter = Meter(min(RUN_TIME_LIMIT, max(self.budget, 0)))
            try:
                value = rule.message_expression.run(variables, meter)
            except EvaluationError:
                value = None
            self.budget -= meter.cost
            text = value.strip() if isinstance(value, str) else ""
            if text and len(text) <= LONGEST_MESSAGE and "\n" not in text:
                return text
        return rule.message.strip() or f"failed rule: {rule.text.strip()}"


def _failure(problem: EvaluationError, shown: str) -> str:
    text = str(problem)
    if text.startswith("no such overload"):
        why = "call arguments did not match a supported operator, function or macro signature for rule"
        return f"'{text}': {why}: {shown}"
    if isinstance(problem, CostLimitError):
        return f"'{text}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
    return f"{text} evaluating rule: {shown}"


def _broken(rule: Rule, path: Path, value: Any, detail: str) -> FieldError:
    match rule.reason:
        case "FieldValueForbidden":
            return forbidden(path, detail)
        case "FieldValueRequired":
            return required(path, detail)
        case "FieldValueDuplicate":
            return duplicate(path, value)
    return invalid(path, value, detail)


def _parts(level: Level, path: Path, new: Any, old: Any) -> Iterator[tuple[Level, Path, Any, Any]]:
    """Yield what is below a value and has rules, with what was there before."""
    if isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for name, below in level.members.items():
            if name in new:
                yield below, path.child(name), new[name], before.get(name, _NO_OLD)
        if level.values is not None:
            known = level.schema.get("properties") or {}
            for name, value in new.items():
                if name not in known:
                    yield level.values, path.key(name), value, before.get(name, _NO_OLD)
    elif isinstance(new, list) and level.items is not None:
        former = _by_keys(level.schema, old)
        for index, value in enumerate(new):
            yield level.items, path.at(index), value, former.get(_keys(level.schema, value), _NO_OLD)


def _by_keys(schema: Schema, old: Any) -> dict[tuple[str, ...], Any]:
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return {}
    return {_keys(schema, item): item for item in old}


def _keys(schema: Schema, item: Any) -> tuple[str, ...]:
    names = schema.get("x-kubernetes-list-map-keys") or ()
    return tuple(repr(item.get(name)) for name in names) if isinstance(item, dict) else (repr(item),)


_BLOCKING = frozenset(
    {
        ErrorType.NOT_SUPPORTED,
        ErrorType.REQUIRED,
        ErrorType.TOO_LONG,
        ErrorType.TOO_MANY,
        ErrorType.TYPE_INVALID,
    }
)
_UNCHECKED = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
