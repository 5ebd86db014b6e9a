"""Read well-formed bodies fast: the same result as `reading`, or no result at all.

Nearly every body that a server reads is sound: written by a program that knows the
schema. What makes the general walk slow is the care for the others, such as keeping
track of where it is, for a complaint that never comes. So sound bodies are read here,
without any of that, and whatever is unusual (an unknown or repeated field, a null in a
list, a wrong type) raises `Unusual`: the caller then reads again with `reading`, which
knows what to say.

Theory of operation: for every struct of a schema there is a table from field name to
(how to read the value, when to leave it out), made when the struct is first met. A
walk only looks fields up and calls what it finds.

Invariant (tests/property/test_api_reading_laws.py): what this module returns, `reading`
would have returned, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dray.api.json_types import JsonObject, JsonValue
from dray.api.quantity import canonical_quantity
from dray.api.raw_json import RawJson
from dray.api.schema.types import LIST, MAP, STRUCT, Field, Type
from dray.api.text_cache import remembers_short_texts
from dray.api.times import canonical_microtime, canonical_time

__all__ = ["ZERO", "StructReader", "Unusual", "reader_of"]

Read = Callable[[Any], Any]

# When a value that was read is left out (or changed): the general walk says why.
_KEEP, _DROP_FALSE, _DROP_NONE, _FALSE_IS_NONE, _DROP_ZERO = range(5)
_REMEMBERED: Final = 2_048  # texts of times and quantities that were parsed before


class Unusual(Exception):
    """The body needs the general walk."""


class StructReader:
    """Reads values of one struct."""

    __slots__ = ("_always", "_has_type_meta", "_members", "_schema", "_zero")

    def __init__(self, schema: Type) -> None:
        self._schema = schema  # held, so that no other schema gets its id
        self._has_type_meta = schema.has_type_meta
        # Filled with the first reading: most structs of a schema are never met.
        self._members: dict[str, tuple[Read | None, int, StructReader | None]] | None = None
        self._always: tuple[tuple[str, Callable[[], JsonValue]], ...] = ()
        self._zero: JsonObject | None = None

    def read(self, value: JsonValue) -> JsonObject:
        """Return the canonical struct; raise Unusual."""
        members = self._members
        if members is None:
            members = self._learn()
        if type(value) is not dict:
            raise Unusual
        result: JsonObject = {}
        for name, item in value.items():
            member = members.get(name)
            if member is None:
                if not self._has_type_meta or (name != "kind" and name != "apiVersion"):
                    raise Unusual
                if type(item) is str:
                    result[name] = item
                elif item is not None:
                    raise Unusual
                continue
            if item is None:
                continue
            read, rule, struct = member
            if read is None:  # a text: most fields are
                if type(item) is not str:
                    raise Unusual
            else:
                item = read(item)
            if rule:
                if rule == _DROP_FALSE:
                    if not item:
                        continue
                elif rule == _DROP_NONE:
                    if item is None:
                        continue
                elif rule == _FALSE_IS_NONE:
                    item = item or None
                elif struct is not None and item == struct.zero():
                    continue
            result[name] = item
        for name, make in self._always:
            if name not in result:
                result[name] = make()
        return result

    def zero(self) -> JsonObject:
        """Return what an empty struct reads as, to compare with; not to be given away."""
        if self._zero is None:
            self._zero = self.read({})
        return self._zero

    def _learn(self) -> dict[str, tuple[Read | None, int, StructReader | None]]:
        members = {}
        for field in self._schema.fields.values():
            struct = reader_of(field.type) if field.type.kind == STRUCT else None
            members[field.name] = (_reading_of(field.type), _rule_of(field), struct)
        self._always = tuple(
            (field.name, _maker_of(field)) for field in self._schema.fields.values() if field.always
        )
        self._members = members
        return members


_READERS: dict[int, StructReader] = {}
_MOST_READERS = 10_000  # more than all built-in kinds have; custom ones come and go


def reader_of(schema: Type) -> StructReader:
    """Return the reader of a struct."""
    reader = _READERS.get(id(schema))
    if reader is None:
        if len(_READERS) >= _MOST_READERS:
            _READERS.clear()
        reader = _READERS[id(schema)] = StructReader(schema)
    return reader


def _rule_of(field: Field) -> int:
    kind = field.type.kind
    if kind in (LIST, MAP):
        if field.pointer:
            return _KEEP
        return _FALSE_IS_NONE if field.always else _DROP_FALSE
    if field.always:
        return _KEEP
    if kind == STRUCT:
        return _KEEP if field.pointer else _DROP_ZERO
    return _DROP_NONE if field.pointer else _DROP_FALSE


def _maker_of(field: Field) -> Callable[[], JsonValue]:
    """Return what makes the value of a field that is written although nobody set it."""
    if field.pointer:
        return _nothing
    if field.type.kind == STRUCT:
        reader = reader_of(field.type)
        return lambda: reader.read({})
    zero = ZERO.get(field.type.kind)
    return lambda: zero


def _nothing() -> None:
    return None


# What Go writes for a scalar that nobody set; others are null.
ZERO: Final[JsonObject] = {
    "string": "",
    "bool": False,
    "int32": 0,
    "int64": 0,
    "float64": 0,
    "quantity": "0",
    "intorstring": 0,
    "duration": "0s",
}


# --- how to read each type -----------------------------------------------------------------


def _reading_of(schema: Type) -> Read | None:
    """Return the function that reads a type; None for plain text, which is only looked at."""
    if schema.kind == STRUCT:
        return _unusual if _contains_itself(schema) else reader_of(schema).read
    if schema.kind == LIST:
        return _list_reading(_element_of(schema))
    if schema.kind == MAP:
        return _map_reading(_element_of(schema))
    return _SCALARS[schema.kind]


def _contains_itself(schema: Type) -> bool:
    """Tell whether a struct can be nested without end; the general walk knows how deep is too deep."""
    return any(
        any(_innermost(field.type) is schema for field in inner.fields.values()) for inner in schema.structs()
    )


def _innermost(schema: Type) -> Type:
    while schema.element is not None:
        schema = schema.element
    return schema


def _element_of(schema: Type) -> Type:
    assert schema.element is not None
    return schema.element


def _list_reading(element: Type) -> Read:
    read = _reading_of(element)
    if read is None:
        return _texts

    def read_list(value: JsonValue) -> list[JsonValue]:
        if type(value) is not list or None in value:
            raise Unusual
        return [read(item) for item in value]

    return read_list


def _map_reading(element: Type) -> Read:
    read = _reading_of(element)
    if read is None:
        return _texts_by_key

    def read_map(value: JsonValue) -> JsonObject:
        if type(value) is not dict or None in value.values():
            raise Unusual
        return {key: read(item) for key, item in value.items()}

    return read_map


def _texts(value: JsonValue) -> list[JsonValue]:
    if type(value) is not list:
        raise Unusual
    for item in value:
        if type(item) is not str:
            raise Unusual
    return value.copy()


def _texts_by_key(value: JsonValue) -> JsonObject:
    if type(value) is not dict:
        raise Unusual
    for item in value.values():
        if type(item) is not str:
            raise Unusual
    return value.copy()


def _bool(value: JsonValue) -> bool:
    if value is True or value is False:
        return value
    raise Unusual


def _int32(value: JsonValue) -> int:
    if type(value) is int and -(2**31) <= value < 2**31:
        return value
    raise Unusual


def _int64(value: JsonValue) -> int:
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    raise Unusual


def _float(value: JsonValue) -> JsonValue:
    if isinstance(value, float) or type(value) is int:
        return value
    raise Unusual


def _int_or_text(value: JsonValue) -> JsonValue:
    if type(value) is str or (type(value) is int and abs(value) < 2**31):
        return value
    raise Unusual


def _any(value: JsonValue) -> JsonValue:
    return value


def _raw(value: JsonValue) -> RawJson:
    return value if isinstance(value, RawJson) else RawJson.of(value)


def _unusual(value: JsonValue) -> JsonValue:
    raise Unusual


def _text_form(parse: Callable[[str], str | None]) -> Read:
    """Return the reading of a scalar that is written as text in a form of its own."""
    remembered = remembers_short_texts(_REMEMBERED, longest=128)(parse)

    def read_text(value: JsonValue) -> str | None:
        if type(value) is not str:
            raise Unusual
        try:
            return remembered(value)
        except ValueError:  # what is wrong is said by the general walk
            raise Unusual from None

    return read_text


_SCALARS: Final[dict[str, Read | None]] = {
    "string": None,
    "duration": None,
    "bool": _bool,
    "int32": _int32,
    "int64": _int64,
    "float64": _float,
    "intorstring": _int_or_text,
    "any": _any,
    "raw": _raw,
    "bytes": _unusual,
    "quantity": _text_form(canonical_quantity),
    "time": _text_form(canonical_time),
    "microtime": _text_form(canonical_microtime),
}
