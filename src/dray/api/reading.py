"""Read a parsed body by its schema: check it and put it in canonical form.

Kubernetes decodes a body into Go structs and encodes those again for storage and for
answers. Much of what clients see follows from that, and this module reproduces it on
plain dicts: unknown fields vanish (and are reported), null means absent, empty
values are left out, a few fields are written although they are zero, quantities and
times come out canonical, raw JSON stays as it was.

Theory of operation: a schema is compiled, struct by struct, when it is first used: a table from
field name to (how to read the value, when to leave it out). Nearly every body is sound, so it is first
read without a `_Walk`: any deviation ends that. The second reading, by the same tables, has a walk. It notes
unknown and duplicate fields where they are found, and each container on the way back adds its part of the
path; a value of the wrong type is an exception that collects its path in the same way. `inspect`, for
lint, notes those, too, and goes on.

Invariants (tests/property/test_api_reading_laws.py): reading what was read changes nothing; `read`
fails if and only if `inspect` notes a wrong type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Final

from dray.api.json_types import JsonObject, JsonValue
from dray.api.parsed_values import TOO_DEEP, Duplicates
from dray.api.scalars import SCALAR_READERS, ZERO, DecodeError, UnfitError
from dray.api.schema.types import LIST, MAP, SCALAR_TYPES, STRUCT, Field, Type

__all__ = [
    "DUPLICATE",
    "MAX_COMPLAINTS",
    "UNKNOWN",
    "WRONG_TYPE",
    "DecodeError",
    "Deviation",
    "drop_empty",
    "inspect",
    "read",
    "zero_of",
]

MAX_COMPLAINTS: Final = 100  # unknown and duplicate fields that are named; kube-apiserver names as many
UNKNOWN: Final = "unknown"
DUPLICATE: Final = "duplicate"
WRONG_TYPE: Final = "wrong type"
_STRING: Final = SCALAR_TYPES["string"]


@dataclass(slots=True)
class Deviation:
    """One place where a value is not what its schema says."""

    code: str  # UNKNOWN, DUPLICATE or WRONG_TYPE
    schema: Type  # of the struct around an unknown or duplicate field; the wanted type otherwise
    value: JsonValue  # the struct, or the value of the wrong type
    message: str = ""  # of a wrong type
    name: str = ""  # of the unknown or duplicate field
    parts: list[str] = dataclass_field(default_factory=list)  # innermost first: `.field`, `[index]`, `{key`

    def path(self) -> str:
        """Return the path as the API server writes it: `spec.devices[0].attributes.model`."""
        return "".join(f".{part[1:]}" if part[0] == "{" else part for part in reversed(self.parts))[1:]

    def field_path(self) -> str:
        """Return the path as validation writes it: `spec.devices[0].attributes[model]`."""
        return "".join(f"[{part[1:]}]" if part[0] == "{" else part for part in reversed(self.parts))[1:]


class _Deviating(Exception):
    """The body has unknown or duplicate fields: it is read again with a walk."""


class _Walk(list[Deviation]):
    """A reading that takes notes: its mode, and the deviations it found so far."""

    __slots__ = ("collects", "keep_empty")

    def __init__(self, *, keep_empty: bool = False, collects: bool = False) -> None:
        self.keep_empty = keep_empty  # lists and maps that were sent empty stay
        self.collects = collects  # wrong types, too, instead of raising

    def note(self, code: str, schema: Type, value: JsonValue, name: str) -> None:
        """Note an unknown or duplicate field, if there are not enough of them already."""
        if len(self) < MAX_COMPLAINTS:
            self.append(Deviation(code, schema, value, name=name, parts=["." + name]))

    def failed(self, error: DecodeError, wanted: Type, value: JsonValue, owner: str, part: str) -> None:
        """Note a value that cannot be read, or raise the error with the path so far."""
        if self.collects:
            if len(self) < MAX_COMPLAINTS:
                self.append(Deviation(WRONG_TYPE, wanted, value, str(error), parts=[part] if part else []))
            return
        if isinstance(error, UnfitError):
            error.owner = error.owner or owner
            if part[:1] in (".", "{"):
                error.path.append(part[1:])
        try:
            raise error
        finally:
            # The traceback of the error leads to this call: a cycle would keep the whole body until it is collected.
            del error

    def below(self, start: int, part: str) -> int:
        """Add a part of the path to the deviations noted since; return their new number."""
        for index in range(start, len(self)):
            self[index].parts.append(part)
        return len(self)


def read(schema: Type, value: JsonValue, *, keep_empty: bool = False) -> tuple[JsonObject, list[str]]:
    """Return the canonical object and the complaints about unknown and duplicate fields.

    The input is left alone; the result shares no dict or list with it. Raises
    DecodeError if something has the wrong type.

    With `keep_empty`, lists and maps that were sent empty stay, as they do in upstream's
    memory: a few rules tell `[]` from nothing. Storing forgets the difference: call
    `drop_empty` when validation is done.
    """
    reader = _reader_of(schema)
    value = {} if value is None else value
    if not keep_empty:
        try:
            return reader.read(value, None), []
        except (_Deviating, DecodeError, RecursionError):
            pass  # the second reading says what is wrong, and where
    walk = _Walk(keep_empty=keep_empty)
    try:
        obj = reader.read(value, walk)
    except RecursionError:
        raise DecodeError(TOO_DEEP) from None
    return obj, [f'{deviation.code} field "{deviation.path()}"' for deviation in walk]


def inspect(schema: Type, value: JsonValue) -> list[Deviation]:
    """Return where a value differs from its schema, at most MAX_COMPLAINTS places."""
    walk = _Walk(collects=True)
    try:
        _reader_of(schema).read({} if value is None else value, walk)
    except DecodeError as error:
        walk.failed(error, schema, value, "", "")
    return walk


def drop_empty(schema: Type, obj: JsonObject) -> None:
    """Remove empty lists and maps, null ones included, from an object that was read, in place."""
    for name in list(obj):
        field = schema.fields.get(name)
        item = obj[name]
        if field is None or field.type.kind not in (STRUCT, LIST, MAP):
            continue
        if item is None and (field.type.kind == STRUCT or field.pointer):
            continue
        if field.type.kind != STRUCT and not item and not field.pointer:
            if field.always:
                obj[name] = None
            else:
                del obj[name]
            continue
        inner, items = field.type, [item]
        while inner.element is not None:
            items = [
                part
                for whole in items
                for part in (whole if inner.kind == LIST else whole.values())
                if part is not None
            ]
            inner = inner.element
        if inner.kind == STRUCT:
            for part in items:
                drop_empty(inner, part)


def zero_of(schema: Type) -> JsonValue:
    """Return what Go writes for a value that nobody set."""
    return _reader_of(schema).read({}, None) if schema.kind == STRUCT else ZERO.get(schema.kind)


# --- compiled schemas -----------------------------------------------------------------------

# When a value that was read is left out (or changed).
_KEEP, _DROP_ZERO, _DROP_FALSE, _DROP_NONE, _DROP_EMPTY, _EMPTY_IS_NONE = range(6)
ReadContainer = Callable[[Any, _Walk | None], Any]
# The field's type, how to read it, whether that is a ReadContainer, when to leave it out, of a struct its reader.
_Member = tuple[Type, Callable[..., Any] | None, bool, int, Any]


class _StructReader:
    """Reads values of one struct."""

    __slots__ = ("_always", "_members", "_schema", "_zero")

    def __init__(self, schema: Type) -> None:
        self._schema = schema
        # Filled with the first reading: most structs of a schema are never met.
        self._members: dict[str, _Member] | None = None
        self._always: tuple[Field, ...] = ()
        self._zero: JsonObject | None = None

    def read(self, value: JsonValue, walk: _Walk | None) -> JsonObject:
        """Return the canonical struct; raise DecodeError, and _Deviating without a walk."""
        members = self._members
        if members is None:
            members = self._compile()
        if type(value) is not dict:
            _check_object(value, self._schema, walk)
        n_noted = 0 if walk is None else len(walk)
        result: JsonObject = {}
        for name, item in value.items():
            member = members.get(name)
            if member is None:
                self._type_meta_or_unknown(value, name, result, walk)
                n_noted = 0 if walk is None else len(walk)
                continue
            if item is None:
                continue
            wanted, read_item, is_container, rule, struct = member
            try:
                if read_item is None:
                    if type(item) is not str:  # most fields are strings
                        raise UnfitError(_STRING, item)
                elif is_container:
                    item = read_item(item, walk)
                    if walk:
                        n_noted = walk.below(n_noted, "." + name)
                else:
                    item = read_item(item)
            except DecodeError as error:
                if walk is None:
                    raise
                walk.failed(error, wanted, item, self._schema.name, "." + name)
                n_noted = len(walk)
                continue
            if rule:
                if rule == _DROP_ZERO:
                    if item == struct.zero():
                        continue
                elif not item:
                    if rule == _DROP_FALSE or (rule == _DROP_NONE and item is None):
                        continue
                    if rule >= _DROP_EMPTY and (walk is None or not walk.keep_empty):
                        if rule == _DROP_EMPTY:
                            continue
                        item = None
            result[name] = item
        for field in self._always:
            if field.name not in result:
                result[field.name] = None if field.pointer else zero_of(field.type)
        return result

    def zero(self) -> JsonObject:
        """Return what an empty struct reads as, to compare with; not to be given away."""
        if self._zero is None:
            self._zero = self.read({}, None)
        return self._zero

    def _type_meta_or_unknown(
        self, value: JsonObject, name: str, result: JsonObject, walk: _Walk | None
    ) -> None:
        item = value[name]
        is_type_meta = self._schema.has_type_meta and (name == "kind" or name == "apiVersion")
        if is_type_meta and type(item) is str:
            result[name] = item
        elif is_type_meta and item is None:
            return
        elif walk is None:
            raise _Deviating
        elif is_type_meta:
            unfit = UnfitError(_STRING, item, owner="TypeMeta", path=[name])
            walk.failed(DecodeError(str(unfit)), _STRING, item, "", "." + name)
        else:
            walk.note(UNKNOWN, self._schema, value, name)

    def _compile(self) -> dict[str, _Member]:
        fields = self._schema.fields.values()
        self._always = tuple(field for field in fields if field.always)
        self._members = {
            field.name: (
                field.type,
                _container_of(field.type) or SCALAR_READERS.get(field.type.kind),
                field.type.kind in (STRUCT, LIST, MAP),
                _rule_of(field),
                _reader_of(field.type) if field.type.kind == STRUCT else None,
            )
            for field in fields
        }
        return self._members


def _reader_of(schema: Type) -> _StructReader:
    reader: _StructReader | None = schema.compiled
    if reader is None:
        reader = schema.compiled = _StructReader(schema)
    return reader


def _rule_of(field: Field) -> int:
    kind = field.type.kind
    if kind in (LIST, MAP):
        # An empty list or map is stored like none at all.
        return _KEEP if field.pointer else _EMPTY_IS_NONE if field.always else _DROP_EMPTY
    if field.always:
        return _KEEP
    if kind == STRUCT:
        return _KEEP if field.pointer else _DROP_ZERO
    # The zero time reads as None; it is like no time at all.
    return _DROP_NONE if field.pointer else _DROP_FALSE


def _container_of(schema: Type) -> ReadContainer | None:
    """Return the function that reads a struct, list or map; None for scalars."""
    if schema.kind == STRUCT:
        return _reader_of(schema).read
    if schema.kind == LIST:
        return _list_reader(schema)
    return _map_reader(schema) if schema.kind == MAP else None


def _list_reader(schema: Type) -> ReadContainer:
    assert schema.element is not None
    element, read_item = schema.element, _item_reader(schema.element)

    def read_list(value: JsonValue, walk: _Walk | None) -> list[JsonValue]:
        if type(value) is not list:
            raise UnfitError(schema, value)
        if read_item is _string and _are_strings(value):
            return value.copy()
        if walk is None:
            return [zero_of(element) if item is None else read_item(item, None) for item in value]
        result = []
        n_noted = len(walk)
        for index, item in enumerate(value):
            try:
                result.append(zero_of(element) if item is None else read_item(item, walk))
            except DecodeError as error:
                walk.failed(error, element, item, "", "")
            n_noted = walk.below(n_noted, f"[{index}]")
        return result

    return read_list


def _map_reader(schema: Type) -> ReadContainer:
    assert schema.element is not None
    element, read_item = schema.element, _item_reader(schema.element)

    def read_map(value: JsonValue, walk: _Walk | None) -> JsonObject:
        if type(value) is not dict:
            _check_object(value, schema, walk)
        if read_item is _string and _are_strings(value.values()):
            return dict(value)
        if walk is None:
            return {
                key: zero_of(element) if item is None else read_item(item, None)
                for key, item in value.items()
            }
        result = {}
        n_noted = len(walk)
        for key, item in value.items():
            try:
                result[key] = zero_of(element) if item is None else read_item(item, walk)
            except DecodeError as error:
                # The path in the message of a refusal names no keys of maps.
                walk.failed(error, element, item, "", "{" + key if walk.collects else "")
                n_noted = len(walk)
            n_noted = walk.below(n_noted, "{" + key)
        return result

    return read_map


def _item_reader(schema: Type) -> ReadContainer:
    """Return the function that reads an item of a list or map."""
    read_container, read_scalar = _container_of(schema), SCALAR_READERS.get(schema.kind)
    if read_container is not None:
        return read_container
    return _string if read_scalar is None else lambda item, _walk: read_scalar(item)


def _string(value: JsonValue, _walk: _Walk | None) -> str:
    if type(value) is str:
        return value
    raise UnfitError(_STRING, value)


def _are_strings(items: Iterable[JsonValue]) -> bool:
    for item in items:  # noqa: SIM110 - twice as fast as all()
        if type(item) is not str:
            return False
    return True


def _check_object(value: JsonValue, schema: Type, walk: _Walk | None) -> None:
    """Note the duplicate fields of an object; raise UnfitError for anything else."""
    if not isinstance(value, dict):
        raise UnfitError(schema, value)
    if walk is None:
        raise _Deviating
    if isinstance(value, Duplicates):
        for name in value.names:
            walk.note(DUPLICATE, schema, value, name)
