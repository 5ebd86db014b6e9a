"""Field errors: what is wrong with which field, in the words of the Kubernetes API.

A refused object is answered with one cause per broken rule: the path of the
field, a machine-readable reason and a sentence. Clients and tools parse all
three, so the text follows the wire convention to the letter:
`spec.x: Invalid value: "y": why`.

Theory of operation: validators walk plain JSON values with a `Path` in hand
and return lists of `FieldError`. A `FieldError` remembers whether the rule is
*declared* in the schema or written by hand; declared rules are reported in the
shape of the version that the client used, written ones always in the shape in
which objects are stored (see `declared.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from dray.api.raw_json import RawJson


class ErrorType(StrEnum):
    """The kinds of field errors; the value is the `reason` of a cause."""

    NOT_FOUND = "FieldValueNotFound"
    REQUIRED = "FieldValueRequired"
    DUPLICATE = "FieldValueDuplicate"
    INVALID = "FieldValueInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    FORBIDDEN = "FieldValueForbidden"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    TOO_FEW = "FieldValueTooFew"
    INTERNAL = "InternalError"
    TYPE_INVALID = "FieldValueTypeInvalid"


_TITLES = {
    ErrorType.NOT_FOUND: "Not found",
    ErrorType.REQUIRED: "Required value",
    ErrorType.DUPLICATE: "Duplicate value",
    ErrorType.INVALID: "Invalid value",
    ErrorType.NOT_SUPPORTED: "Unsupported value",
    ErrorType.FORBIDDEN: "Forbidden",
    ErrorType.TOO_LONG: "Too long",
    ErrorType.TOO_MANY: "Too many",
    ErrorType.TOO_FEW: "Too few",
    ErrorType.INTERNAL: "Internal error",
    ErrorType.TYPE_INVALID: "Invalid value",
}
# The offending value would only repeat what the title says, or may be huge.
_WITHOUT_VALUE = frozenset({ErrorType.REQUIRED, ErrorType.FORBIDDEN, ErrorType.TOO_LONG, ErrorType.INTERNAL})


OMITTED: Any = object()  # as the value of an error: it is not shown


class Path(str):
    """Where a field is, as text: `spec.devices[0].attributes[a.test/x]`.

    >>> Path("spec").child("devices").at(0).key("a.test/x")
    'spec.devices[0][a.test/x]'
    """

    __slots__ = ()

    def child(self, *names: str) -> Path:
        """Return the path of a field inside this one."""
        return _child(self, names)

    def at(self, position: int) -> Path:
        """Return the path of an item of this list."""
        return _item(self, position)

    def key(self, name: str) -> Path:
        """Return the path of an entry of this map."""
        return Path(f"{self}[{name}]")


@lru_cache(maxsize=4096)  # the same few paths are made for every object, and seldom shown
def _child(path: Path, names: tuple[str, ...]) -> Path:
    inner = ".".join(names)
    return Path(f"{path}.{inner}" if path else inner)


@lru_cache(maxsize=4096)
def _item(path: Path, position: int) -> Path:
    return Path(f"{path}[{position}]")


@dataclass(frozen=True, slots=True)
class FieldError:
    """One broken rule.

    >>> FieldError(ErrorType.INVALID, "spec.count", -1, "must be greater than zero").message()
    'spec.count: Invalid value: -1: must be greater than zero'
    """

    kind: ErrorType
    field: str
    value: Any = None
    detail: str = ""
    declared: bool = False  # the rule stands in the schema, not in hand-written code

    def body(self) -> str:
        """Return the sentence without the field's path."""
        text = _TITLES[self.kind]
        if self.kind not in _WITHOUT_VALUE and self.value is not OMITTED:
            text = f"{text}: {render(self.value)}"
        return f"{text}: {self.detail}" if self.detail else text

    def message(self) -> str:
        """Return the sentence with the field's path in front."""
        return f"{self.field}: {self.body()}"

    def cause(self) -> dict[str, str]:
        """Return the entry for `details.causes` of a Status."""
        return {"reason": self.kind.value, "message": self.body(), "field": self.field}


def render(value: Any) -> str:
    """Print an offending value: texts in quotes, all else as compact JSON."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    # Go writes JSON so that it can stand in HTML; only texts within can have these characters.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, RawJson) else str(value)


def invalid(path: str, value: Any, detail: str) -> FieldError:
    """Report a malformed value."""
    return FieldError(ErrorType.INVALID, path, value, detail)


def required(path: str, detail: str = "") -> FieldError:
    """Report a missing or empty value."""
    return FieldError(ErrorType.REQUIRED, path, "", detail)


def duplicate(path: str, value: Any) -> FieldError:
    """Report a value that must be unique and is not."""
    return FieldError(ErrorType.DUPLICATE, path, value)


def forbidden(path: str, detail: str) -> FieldError:
    """Report a value that is well-formed but not allowed here."""
    return FieldError(ErrorType.FORBIDDEN, path, "", detail)


def not_found(path: str, value: Any, detail: str = "") -> FieldError:
    """Report a reference that leads nowhere."""
    return FieldError(ErrorType.NOT_FOUND, path, value, detail)


def not_supported(path: str, value: Any, supported: Iterable[str]) -> FieldError:
    """Report a value outside an enumeration."""
    listed = ", ".join(render(word) for word in supported)
    return FieldError(ErrorType.NOT_SUPPORTED, path, value, f"supported values: {listed}" if listed else "")


def too_long(path: str, limit: int, unit: str = "bytes") -> FieldError:
    """Report a text beyond its size limit; the text itself is not repeated."""
    return FieldError(ErrorType.TOO_LONG, path, "", f"may not be more than {limit} {unit}")


def too_many(path: str, count: int, limit: int) -> FieldError:
    """Report a list or map with more entries than allowed."""
    return FieldError(ErrorType.TOO_MANY, path, count, f"must have at most {limit} items")


def internal(path: str, detail: str) -> FieldError:
    """Report that a rule could not be checked."""
    return FieldError(ErrorType.INTERNAL, path, "", detail)


def invalid_each(path: str, value: Any, details: Iterable[str]) -> list[FieldError]:
    """Report every complaint of a format check about one value."""
    return [invalid(path, value, detail) for detail in details]
