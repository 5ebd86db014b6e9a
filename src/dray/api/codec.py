"""Bytes to objects and back.

There are two readers of an object, with different needs:

  * the server wants the *whole* object as a plain dict, checked and canonical, and the
    complaints about fields that nobody knows: `decode_body`, `decode_stored`, `encode`;
  * everybody else wants a typed *view* of the fields that decisions depend on, fast:
    `decode`, `decode_list`, `to_view`, and `encode` again.

Theory of operation for raw fields (see `raw_json`): a JSON parser forgets the bytes of
what it parsed, so the body is decoded a second time into a *shadow*, a msgspec struct
made from the schema that contains only the way to its raw fields; msgspec hands those
over as slices of the input. The shadow is then laid over the parsed object. Kinds
without raw fields pay nothing.

Views decode in C when the input has no nulls where Go would forgive them; otherwise
the nulls are taken out and the decoding repeated, at about a third of the speed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from dray.api.json_types import JsonObject, JsonValue
from dray.api.parsing import (
    ExactFloat,
    JsonLoader,
    MismatchError,
    ParseError,
    decode_text,
    json_loader,
    parse_json,
    parse_yaml,
)
from dray.api.raw_json import RawJson
from dray.api.reading import DecodeError, read
from dray.api.schema.types import LIST, MAP, STRUCT, Type

__all__ = [
    "DecodeError",
    "ParseError",
    "compact_raw",
    "decode",
    "decode_body",
    "decode_list",
    "decode_stored",
    "encode",
    "may_hold_raw",
    "open_raw",
    "parse_body",
    "read",
    "to_view",
]

V = TypeVar("V")


# --- whole objects ------------------------------------------------------------


def decode_body(schema: Type, data: bytes, *, yaml: bool = False) -> tuple[JsonObject, list[str]]:
    """Decode a request body: the canonical object, and its unknown and duplicate fields.

    Raises ParseError if the text is broken, DecodeError if a value has the wrong type.
    """
    return read(schema, parse_body(schema, data, yaml=yaml))


def parse_body(schema: Type, data: bytes, *, yaml: bool = False) -> JsonValue:
    """Parse a body without checking it, raw fields wrapped as they came."""
    if yaml:
        # YAML becomes JSON first, so its raw parts have no bytes of their own to keep.
        return parse_yaml(data)
    value = parse_json(data)
    return _with_raw(schema, value, data)


def decode_stored(schema: Type, data: bytes) -> JsonObject:
    """Decode what `encode` wrote, raw fields wrapped; nothing is checked."""
    value: JsonObject = _PLAIN.decode(data)
    _with_raw(schema, value, data)
    return value


def encode(value: Any) -> bytes:
    """Encode an object, a view or any JSON value; raw parts are written as they are."""
    return _ENCODER.encode(value)


def open_raw(value: JsonValue) -> JsonValue:
    """Return the value with raw parts parsed; the value itself if there are none."""
    return _replace_leaves(value, lambda raw: raw.value)


def compact_raw(value: JsonValue) -> JsonValue:
    """Return the value with raw parts as readers see them; the value itself if nothing changes."""
    return _replace_leaves(value, lambda raw: raw.compacted())


# --- views --------------------------------------------------------------------


def decode(view: type[V], data: bytes) -> V:
    """Decode JSON bytes to a view; unknown fields are skipped; raise DecodeError."""
    try:
        found: V = json_loader(view).decode(data)
        return found
    except MismatchError:
        return to_view(view, _plain(data))
    except ParseError as error:
        raise DecodeError(str(error)) from None


def decode_list(view: type[V], data: bytes) -> tuple[list[V], JsonObject]:
    """Decode the JSON of a Kubernetes list: its items as views, and its metadata.

    Items of a list carry no kind and apiVersion; views have them as defaults.
    """
    try:
        found = _list_loader_of(view).decode(data)
    except MismatchError:
        plain = _plain(data)
        items = (plain.get("items") if isinstance(plain, dict) else None) or []
        return [to_view(view, item) for item in items], plain.get("metadata") or {}
    except ParseError as error:
        raise DecodeError(str(error)) from None
    return found.items or [], found.metadata or {}


def to_view(view: type[V], obj: JsonValue) -> V:
    """Make a view of a plain object; nulls count as absent; raise DecodeError."""
    try:
        return msgspec.convert(_plain_json(open_raw(obj)), type=view)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DecodeError(str(error)) from None


# --- inside -------------------------------------------------------------------


def _write_special(value: Any) -> Any:
    if isinstance(value, RawJson):
        return msgspec.Raw(value.raw)
    if isinstance(value, float):  # an ExactFloat; msgspec knows only float itself
        return float(value)
    raise TypeError(f"cannot encode {type(value).__name__}")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_write_special)
_PLAIN: Final = json_loader(Any)


def _new_list_loader(view: Any) -> JsonLoader:
    items = list[view] | None
    envelope = msgspec.defstruct(
        f"{view.__name__}List", [("items", items, None), ("metadata", dict[str, Any] | None, None)]
    )
    return JsonLoader(envelope)


_list_loader_of: Callable[[Any], JsonLoader] = cache(_new_list_loader)


def _plain(data: bytes) -> JsonValue:
    try:
        return _PLAIN.decode(data)
    except ParseError as error:
        raise DecodeError(str(error)) from None


def _plain_json(value: JsonValue) -> JsonValue:
    """Return the value without null members and items, floats plain; the value itself if that changes nothing."""
    if isinstance(value, dict):
        cleaned = {key: _plain_json(item) for key, item in value.items() if item is not None}
        if len(cleaned) == len(value) and all(cleaned[key] is value[key] for key in cleaned):
            return value
        return cleaned
    if isinstance(value, list):
        items = [_plain_json(item) for item in value if item is not None]
        if len(items) == len(value) and all(map(_is, items, value)):
            return value
        return items
    return float(value) if isinstance(value, ExactFloat) else value


def _is(one: object, other: object) -> bool:
    return one is other


def _replace_leaves(value: JsonValue, replace: Any) -> JsonValue:
    if isinstance(value, RawJson):
        return replace(value)
    if isinstance(value, dict):
        changed = {key: _replace_leaves(item, replace) for key, item in value.items()}
        return value if all(changed[key] is value[key] for key in changed) else changed
    if isinstance(value, list):
        items = [_replace_leaves(item, replace) for item in value]
        return value if all(map(_is, items, value)) else items
    return value


# --- shadows ------------------------------------------------------------------


def may_hold_raw(schema: Type, obj: JsonObject) -> bool:
    """Return whether an object may hold raw JSON; most claims do not."""
    for way in _ways_to_raw(schema):
        value: Any = obj
        for name in way:
            value = value.get(name) if isinstance(value, dict) else None
            if value is None:
                break
        else:
            return True
    return False


@cache
def _ways_to_raw(schema: Type) -> tuple[tuple[str, ...], ...]:
    """Return the members on the way to raw JSON, as far as they are plain structs."""
    ways: list[tuple[str, ...]] = []
    for field in schema.fields.values():
        kind = field.type
        if kind.kind == STRUCT:
            ways += [(field.name, *rest) for rest in _ways_to_raw(kind)]
        elif _holds_raw(kind, ()):
            ways.append((field.name,))
    return tuple(ways)


def _holds_raw(kind: Type, inside: tuple[Type, ...]) -> bool:
    while kind.element is not None:
        kind = kind.element
    if kind.kind != STRUCT:
        return kind.kind == "raw"
    return kind not in inside and any(
        _holds_raw(field.type, (*inside, kind)) for field in kind.fields.values()
    )


def _with_raw(schema: Type, value: JsonValue, data: bytes) -> JsonValue:
    """Wrap the raw fields of a parsed value, in place, as they stand in the data."""
    shadow_type = _shadow_of(schema)
    if shadow_type is None or not isinstance(value, dict) or not may_hold_raw(schema, value):
        return value
    loader = json_loader(shadow_type)
    try:
        try:
            shadow = loader.decode(data)
        except MismatchError:
            raise
        except ParseError:  # perhaps not UTF-8; the parser replaced those bytes
            shadow = loader.decode(decode_text(data).encode())
    except ParseError:
        # Some value on the way has the wrong type; `read` will say which.
        return value
    _lay_over(value, shadow)
    return value


def _lay_over(value: JsonValue, shadow: Any) -> None:
    if isinstance(shadow, list):
        for item, item_shadow in zip(value, shadow, strict=True):
            _lay_over(item, item_shadow)
    elif isinstance(shadow, dict):
        for key, item_shadow in shadow.items():
            _lay_over(value[key], item_shadow)
    elif shadow is not None:
        for name in shadow.__struct_fields__:
            found = getattr(shadow, name)
            if isinstance(found, msgspec.Raw):
                if value.get(name) is not None:
                    value[name] = RawJson(bytes(found))
            elif found is not None:
                _lay_over(value[name], found)


@cache
def _shadow_of(schema: Type) -> Any:
    """Return the msgspec type with only the way to raw fields, or None if there are none."""
    return _shadow(schema, ())


def _shadow(schema: Type, inside: tuple[Type, ...]) -> Any:
    if schema.kind == "raw":
        return msgspec.Raw
    if schema.kind in (LIST, MAP):
        assert schema.element is not None
        element = _shadow(schema.element, inside)
        if element is None or element is msgspec.Raw:
            return None
        return list[element | None] if schema.kind == LIST else dict[str, element | None]  # type: ignore[valid-type]
    if schema.kind != STRUCT or schema in inside:
        return None
    fields: list[tuple[str, Any, Any]] = []
    for field in schema.fields.values():
        found = _shadow(field.type, (*inside, schema))
        if found is msgspec.Raw:
            fields.append((field.name, found, msgspec.Raw()))
        elif found is not None:
            fields.append((field.name, found | None, None))
    return msgspec.defstruct(schema.name + "Shadow", fields) if fields else None
