"""Values as kube-apiserver keeps them in memory, for the few messages that show one.

A message about a stored value prints the struct behind it: every member is there, in the order of the
schema and with a capital letter, what was not set as null or as the zero of its type. Metadata within
a template is printed as it is sent, its members beside those of the struct around it.
"""

from __future__ import annotations

from dray.api.json_types import JsonObject, JsonValue
from dray.api.scalars import ZERO
from dray.api.schema import LIST, MAP, STRUCT, Type

_CAPITALS = {"cel": "CEL"}


def internal_form(value: JsonValue, schema: Type) -> JsonValue:
    """Return a canonical value in the form in which it is kept in memory."""
    if schema.kind == STRUCT:
        return _struct(value if isinstance(value, dict) else {}, schema)
    if schema.element is not None and schema.kind == LIST and isinstance(value, list):
        return [internal_form(item, schema.element) for item in value]
    if schema.element is not None and schema.kind == MAP and isinstance(value, dict):
        return {key: internal_form(value[key], schema.element) for key in sorted(value)}
    return value


def _struct(value: JsonObject, schema: Type) -> JsonObject:
    shown: JsonObject = {}
    for name, field in schema.fields.items():
        member = value.get(name)
        if name == "metadata":
            shown |= member if isinstance(member, dict) else {}
        elif member is None and (field.pointer or field.type.kind != STRUCT):
            shown[_capital(name)] = None if field.pointer else ZERO.get(field.type.kind)
        else:
            shown[_capital(name)] = internal_form(member, field.type)
    return shown


def _capital(name: str) -> str:
    return _CAPITALS.get(name, name[:1].upper() + name[1:])
