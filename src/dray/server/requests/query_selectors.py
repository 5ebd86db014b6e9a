"""Label and field selectors: parse the query text once, then match objects.

A label selector is a conjunction of requirements (`a=b,c!=d,e in (x,y),!f`); whether
one holds is decided by `dray.api.label_selectors`. A field selector compares fields
with `=`, `==` and `!=`; which fields a kind offers is that kind's business, so
matching takes the object's fields as a map.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dray.api.label_selectors import holds
from dray.server.requests import errors

_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# White space is not a part of it: looked for in front of every token, it would be read again from each of its characters.
_TOKEN = re.compile(r"==|!=|[=!,()<>]|[^\s=!,()<>]+")


class Requirement(NamedTuple):
    """One condition on the labels."""

    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist, Gt, Lt
    values: frozenset[str] = frozenset()

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels fulfil this requirement."""
        return holds(self.key, self.operator, self.values, labels)


LabelSelector = tuple[Requirement, ...]


def matches_labels(selector: LabelSelector, labels: Mapping[str, str] | None) -> bool:
    """Return whether every requirement holds."""
    return all(requirement.accepts(labels or {}) for requirement in selector)


def parse_label_selector(text: str) -> LabelSelector:
    """Parse a label selector; raises ApiError 400 as kube-apiserver would."""
    return _LabelParser(text).parse()


class _LabelParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._at = 0

    @staticmethod
    def _split(text: str) -> list[str]:
        return _TOKEN.findall(text)

    def parse(self) -> LabelSelector:
        requirements: list[Requirement] = []
        if not self._tokens:
            return ()
        while True:
            requirements.append(self._requirement())
            token = self._take()
            if token == "":
                return tuple(requirements)
            if token != ",":
                raise self._refuse(f"found '{token}', expected: ',' or 'end of string'")
            if self._peek() == "":
                raise self._refuse("found '', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        token = self._take()
        if token == "!":
            return Requirement(self._key(self._take()), "DoesNotExist")
        key = self._key(token)
        operator = self._peek()
        if operator in ("", ","):
            return Requirement(key, "Exists")
        self._take()
        match operator:
            case "=" | "==":
                return Requirement(key, "In", frozenset({self._value()}))
            case "!=":
                return Requirement(key, "NotIn", frozenset({self._value()}))
            case "in" | "notin":
                return Requirement(key, "In" if operator == "in" else "NotIn", self._values())
            case ">" | "<":
                value = self._value()
                if not re.fullmatch(r"[-+]?\d+", value):
                    raise self._refuse("for 'Gt', 'Lt' operators, the value must be an integer")
                return Requirement(key, "Gt" if operator == ">" else "Lt", frozenset({value}))
        raise self._refuse(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def _values(self) -> frozenset[str]:
        if self._take() != "(":
            raise self._refuse("expected: '('")
        values: set[str] = set()
        while True:
            if self._peek() in (",", ")"):
                values.add("")
            else:
                values.add(self._checked(self._take()))
            token = self._take()
            if token == ")":
                return frozenset(values)
            if token != ",":
                raise self._refuse(f"found '{token}', expected: ',' or ')'")

    def _value(self) -> str:
        if self._peek() in ("", ","):
            return ""
        return self._checked(self._take())

    def _checked(self, value: str) -> str:
        if len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            raise self._refuse(
                f'Invalid value: "{value}": a valid label must be an empty string or consist of alphanumeric characters'
            )
        return value

    def _key(self, key: str) -> str:
        prefix, slash, name = key.rpartition("/")
        good = (
            len(name) <= 63
            and _QUALIFIED.fullmatch(name)
            and (not slash or (len(prefix) <= 253 and _DNS_SUBDOMAIN.fullmatch(prefix)))
        )
        if not good:
            raise self._refuse(
                f'key: Invalid value: "{key}": name part must consist of alphanumeric characters'
            )
        return key

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _refuse(self, why: str) -> errors.ApiError:
        return errors.bad_request(f"unable to parse requirement: {why}")


class FieldRequirement(NamedTuple):
    """One comparison of a field."""

    field: str
    value: str
    equal: bool


FieldSelector = tuple[FieldRequirement, ...]


def parse_field_selector(text: str, why_not: Callable[[str], str]) -> FieldSelector:
    """Parse a field selector; `why_not` says why the kind does not offer a field, "" if it does."""
    requirements: list[FieldRequirement] = []
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        operator = next((sign for sign in ("!=", "==", "=") if sign in part), None)
        if operator is None:
            raise errors.bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        field, _, value = part.partition(operator)
        if not field and not value:
            continue  # "=" alone selects everything
        refusal = why_not(field)
        if refusal:
            raise errors.bad_request(refusal)
        requirements.append(FieldRequirement(field, re.sub(r"\\([\\,=])", r"\1", value), operator != "!="))
    return tuple(requirements)


def matches_fields(selector: FieldSelector, field_of: Callable[[str], str]) -> bool:
    """Return whether every comparison holds; an absent field reads as empty text."""
    return all((field_of(part.field) == part.value) == part.equal for part in selector)


def field_text(obj: Mapping[str, Any], path: str) -> str:
    """Return a scalar field as field selectors see it."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
