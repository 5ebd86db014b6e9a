"""Rules in a new definition: do they compile, and what may they cost?

A rule is asked once for every value at its level: rules below lists and maps are multiplied by
`maxItems` and `maxProperties`, and where those are missing by as many values as fit into a
request. The limits are kube-apiserver's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dray.api.validation.fields import (
    ErrorType,
    FieldError,
    Path,
    forbidden,
    invalid,
    not_supported,
    required,
)
from dray.cel.schema_types import MAX_REQUEST_BYTES, declare
from dray.server.custom.structural_schemas import Schema
from dray.server.custom.validation_rules import RULES, Rule, compile_rule, field_at, mentions_rules

LARGEST_ESTIMATE = 10_000_000  # of one rule, for all values that it is asked about
LARGEST_SUM = 100_000_000  # of all rules of a schema


@dataclass(slots=True)
class _Costs:
    total: int = 0
    most: list[tuple[int, Path]] = field(default_factory=list)  # the four largest

    def add(self, path: Path, cost: int) -> None:
        self.total += cost
        self.most = sorted([*self.most, (cost, path)], key=lambda entry: -entry[0])[:4]


def definition_problems(schema: Schema, path: Path) -> list[FieldError]:
    """Return what is wrong with the rules of a schema."""
    if not mentions_rules(schema):
        return []
    costs = _Costs()
    problems = _schema_problems(schema, path, costs, cardinality=1, uncorrelated="", is_root=True)
    if costs.total > LARGEST_SUM:
        why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        problems += [forbidden(place, why) for _, place in costs.most]
        name = f"{RULES} estimated rule cost total for entire OpenAPIv3 schema"
        problems.append(forbidden(path, _too_costly(name, costs.total, LARGEST_SUM)))
    return problems


def _schema_problems(
    schema: Schema,
    path: Path,
    costs: _Costs,
    *,
    cardinality: int | None,
    uncorrelated: str,
    is_root: bool = False,
) -> list[FieldError]:
    problems: list[FieldError] = []
    additional, items = schema.get("additionalProperties"), schema.get("items")
    if isinstance(additional, dict):
        below = _times(cardinality, schema.get("maxProperties"))
        problems += _schema_problems(
            additional,
            path.child("additionalProperties"),
            costs,
            cardinality=below,
            uncorrelated=uncorrelated,
        )
    for name, inner in (schema.get("properties") or {}).items():
        problems += _schema_problems(
            inner,
            path.child("properties").key(name),
            costs,
            cardinality=cardinality,
            uncorrelated=uncorrelated,
        )
    if isinstance(items, dict):
        lost = uncorrelated or ("" if schema.get("x-kubernetes-list-type") == "map" else str(path))
        below = _times(cardinality, schema.get("maxItems"))
        problems += _schema_problems(items, path.child("items"), costs, cardinality=below, uncorrelated=lost)
    rules = schema.get(RULES) or []
    problems += [
        error
        for number, rule in enumerate(rules)
        for error in _form_problems(rule, schema, path.child(RULES).at(number))
    ]
    if problems or not rules:
        return problems
    declared = declare(schema, is_root=is_root)
    if declared is None:
        why = "internal error: failed to retrieve type information for x-kubernetes-validations"
        return [FieldError(ErrorType.INTERNAL, path.child(RULES), "", why)]
    fitting = MAX_REQUEST_BYTES // (declared.min_size + 1)
    for number, written in enumerate(rules):
        here, rule = path.child(RULES).at(number), compile_rule(written, declared)
        asked = fitting if cardinality is None else cardinality
        problems += _rule_problems(rule, written, here, costs, asked)
        if uncorrelated and rule.uses_old:
            why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelated}"
            problems.append(invalid(here.child("rule"), rule.text, why))
    return problems


def _rule_problems(
    rule: Rule, written: Schema, here: Path, costs: _Costs, cardinality: int
) -> list[FieldError]:
    problems: list[FieldError] = []
    cost = rule.cost * cardinality
    if cost > LARGEST_ESTIMATE:
        problems.append(
            forbidden(here.child("rule"), _too_costly("estimated rule cost", cost, LARGEST_ESTIMATE))
        )
    costs.add(here.child("rule"), cost)
    if rule.error:
        problems.append(invalid(here.child("rule"), _as_go(written), rule.error))
    if rule.message_error:
        problems.append(invalid(here.child("messageExpression"), _as_go(written), rule.message_error))
    elif rule.message_expression is not None:
        if rule.message_cost > LARGEST_ESTIMATE:
            why = _too_costly("estimated messageExpression cost", rule.message_cost, LARGEST_ESTIMATE)
            problems.append(forbidden(here.child("messageExpression"), why))
        costs.add(here.child("messageExpression"), rule.message_cost)
    if not rule.uses_old and written.get("optionalOldSelf") is not None:
        why = "may not be set if oldSelf is not used in rule"
        problems.append(invalid(here.child("optionalOldSelf"), written["optionalOldSelf"], why))
    return problems


def _as_go(written: Schema) -> dict[str, Any]:
    """Return a rule as kube-apiserver prints it."""
    texts = ("rule", "message", "messageExpression")
    shown: dict[str, Any] = {name[0].upper() + name[1:]: written.get(name) or "" for name in texts}
    shown["Reason"], shown["FieldPath"] = written.get("reason"), written.get("fieldPath") or ""
    shown["OptionalOldSelf"] = written.get("optionalOldSelf")
    return shown


_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")


def _form_problems(rule: Schema, schema: Schema, here: Path) -> list[FieldError]:
    """Judge a rule without compiling it."""
    problems: list[FieldError] = []
    text, message = rule.get("rule") or "", rule.get("message") or ""
    if not text.strip():
        problems.append(required(here.child("rule"), "rule is not specified"))
    elif message and not message.strip():
        problems.append(invalid(here.child("message"), message, "must be non-empty if specified"))
    elif _has_breaks(message.strip()):
        problems.append(invalid(here.child("message"), message, "must not contain line breaks"))
    elif _has_breaks(text.strip()) and not message.strip():
        why = "message must be specified if rule contains line breaks"
        problems.append(required(here.child("message"), why))
    expression = rule.get("messageExpression") or ""
    if expression and not expression.strip():
        why = "messageExpression must be non-empty if specified"
        problems.append(required(here.child("messageExpression"), why))
    if rule.get("reason") is not None and rule["reason"] not in _REASONS:
        problems.append(not_supported(here.child("reason"), rule["reason"], _REASONS))
    place = rule.get("fieldPath") or ""
    if place and not place.strip():
        problems.append(invalid(here.child("fieldPath"), place, "must be non-empty if specified"))
    if _has_breaks(place):
        problems.append(invalid(here.child("fieldPath"), place, "must not contain line breaks"))
    if place and field_at(schema, place) is None:
        problems.append(invalid(here.child("fieldPath"), place, "must be a valid path"))
    return problems


def _has_breaks(text: str) -> bool:
    return "\n" in text or "\r" in text


def _times(cardinality: int | None, most: int | None) -> int | None:
    return None if cardinality is None or most is None else cardinality * max(most, 0)


def _too_costly(name: str, cost: int, limit: int) -> str:
    ratio = cost / limit
    factor = "more than 100x" if ratio > 100 else f"{ratio:f}x" if ratio < 1.5 else f"{ratio:.1f}x"
    return (
        f"{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, "
        "maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
