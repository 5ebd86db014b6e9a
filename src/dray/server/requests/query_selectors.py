"""Label and field selectors: parse the query text once, then match objects.

A label selector is a conjunction of requirements (`a=b,c!=d,e in (x,y),!f`); whether
one holds is decided by `dray.api.label_selectors`. A field selector compares fields
with `=`, `==` and `!=`; which fields a kind offers is that kind's business, so
matching takes the object's fields as a map.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from dray.api.label_selectors import holds, integer_of
from dray.api.validation.fields import invalid
from dray.api.validation.formats import label_key, label_value
from dray.server.requests import errors

_SIGNS = "=!,()<>"
# White space is not a part of it: looked for in front of every token, it would be read again from each of its characters.
_TOKEN = re.compile(r"==|!=|[=!,()<>]|[^ \t\r\n=!,()<>]+")
_OPERATORS = {"in": "In", "notin": "NotIn", "=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}


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
    """Reads requirements one by one; what is wrong is said in kube-apiserver's words.

    `in` and `notin` are operators only behind a key: elsewhere they are keys and values like
    any other word. A refusal within a requirement says so in front.
    """

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def parse(self) -> LabelSelector:
        requirements: list[Requirement] = []
        if not self._tokens:
            return ()
        while True:
            token = self._peek()
            if token != "!" and not _is_word(token):
                raise errors.bad_request(f"found '{token}', expected: !, identifier, or 'end of string'")
            requirements.append(self._requirement())
            token = self._take()
            if not token:
                return tuple(requirements)
            if token != ",":
                raise errors.bad_request(f"found '{token}', expected: ',' or 'end of string'")
            following = self._peek()
            if following != "!" and not _is_word(following):
                raise errors.bad_request(f"found '{following}', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        absent = self._peek() == "!"
        if absent:
            self._take()
        key = self._take()
        if not _is_word(key):
            raise _refusal(f"found '{key}', expected: identifier")
        if problems := label_key(key):
            raise _refusal(_invalid("<nil>", key, problems))
        if absent:
            return Requirement(key, "DoesNotExist")
        if self._peek() in ("", ","):
            return Requirement(key, "Exists")
        operator = self._take()
        if operator not in _OPERATORS:
            raise _refusal(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        values = self._values() if operator in ("in", "notin") else {self._value()}
        found = [*self._problems(key, operator, values)]
        if found:
            raise _refusal(found[0] if len(found) == 1 else f"[{', '.join(found)}]")
        return Requirement(key, _OPERATORS[operator], frozenset(values))

    def _values(self) -> set[str]:
        token = self._take()
        if token != "(":
            raise _refusal(f"found '{token}' expected: '('")
        token = self._peek()
        if token == ")":
            self._take()
            return {""}
        if token != "," and not _is_word(token):
            raise _refusal(f"found '{token}', expected: ',', ')' or identifier")
        values: set[str] = set()
        while True:
            token = self._take()
            following = self._peek()
            if token == ",":
                if not values or following in (",", ")"):
                    values.add("")
                if following == ")":
                    break
            elif _is_word(token):
                values.add(token)
                if following == ")":
                    break
                if following != ",":
                    raise _refusal(f"found '{following}', expected: ',' or ')'")
            else:
                raise _refusal(f"found '{token}', expected: ',', or identifier")
        self._take()
        return values

    def _value(self) -> str:
        if self._peek() in ("", ","):
            return ""
        token = self._take()
        if not _is_word(token):
            raise _refusal(f"found '{token}', expected: identifier")
        return token

    @staticmethod
    def _problems(key: str, operator: str, values: set[str]) -> Iterator[str]:
        if operator in ("<", ">"):
            for at, value in enumerate(sorted(values)):
                if integer_of(value) is None:
                    yield _invalid(
                        f"values[{at}]", value, ["for 'Gt', 'Lt' operators, the value must be an integer"]
                    )
        for at, value in enumerate(sorted(values)):
            if problems := label_value(value):
                yield _invalid(f"values[{at}][{key}]", value, problems)

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token


def _is_word(token: str) -> bool:
    return bool(token) and token[0] not in _SIGNS


def _invalid(path: str, value: str, problems: list[str]) -> str:
    return invalid(path, value, "; ".join(problems)).message()


def _refusal(why: str) -> errors.ApiError:
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
