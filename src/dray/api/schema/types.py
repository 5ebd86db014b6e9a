"""What a schema says: types and fields.

A `Type` is one shape a JSON value can have. There is one object for each struct of
each version, so types can be compared by identity and may refer to themselves
(the schema of a custom resource definition does). The fields of a struct are built
when somebody first asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["LIST", "MAP", "SCALARS", "SCALAR_TYPES", "STRUCT", "Field", "Type"]

STRUCT: Final = "struct"
LIST: Final = "list"
MAP: Final = "map"  # keys are always text
SCALARS: Final = (
    "string",
    "bool",
    "int32",
    "int64",
    "float64",
    "bytes",  # base64 text
    "quantity",
    "time",  # RFC 3339, seconds
    "microtime",  # RFC 3339, microseconds
    "duration",  # text such as 1h30m
    "intorstring",
    "any",  # any JSON
    "raw",  # any JSON, kept byte by byte (see dray.api.raw_json)
)


class Type:
    """The shape of a JSON value."""

    __slots__ = (
        "_build_fields",
        "_fields",
        "compiled",
        "description",
        "element",
        "group",
        "has_type_meta",
        "is_atomic",
        "kind",
        "list_type",
        "map_keys",
        "name",
        "version",
    )

    def __init__(
        self,
        kind: str,
        *,
        group: str = "",
        version: str = "",
        name: str = "",
        element: Type | None = None,
        list_type: str = "",
        map_keys: tuple[str, ...] = (),
        is_atomic: bool = False,
        has_type_meta: bool = False,
        description: str = "",
        build_fields: Callable[[], dict[str, Field]] = dict,
    ) -> None:
        self.kind = kind  # struct, list, map or one of SCALARS
        self.group = group  # structs: the schema file that defines it, such as `resource`
        self.version = version
        self.name = name  # structs: such as `Device`
        self.element = element  # lists and maps: the type of an item or value
        self.list_type = list_type  # lists under server-side apply: atomic, set or map
        self.map_keys = map_keys  # lists of type map: the fields that identify an item
        self.is_atomic = is_atomic  # structs and maps that server-side apply replaces whole
        self.has_type_meta = has_type_meta  # structs that carry kind and apiVersion
        self.description = description
        self._build_fields = build_fields
        self._fields: dict[str, Field] | None = None
        self.compiled: Any = None  # how to read values of the struct; see dray.api.reading

    @property
    def fields(self) -> dict[str, Field]:
        """Return the fields of a struct by JSON name (without kind and apiVersion); empty for others."""
        if self._fields is None:
            self._fields = self._build_fields()
        return self._fields

    @property
    def openapi_name(self) -> str:
        """Return the name of the struct's definition in OpenAPI documents."""
        if self.group == "meta":
            return f"io.k8s.apimachinery.pkg.apis.meta.{self.version}.{self.name}"
        if self.group == "apiextensions":
            return f"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{self.version}.{self.name}"
        return f"io.k8s.api.{self.group}.{self.version}.{self.name}"

    def structs(self) -> Iterator[Type]:
        """Yield this struct and every struct reachable from it, each once."""
        seen: set[int] = set()
        waiting: list[Type] = [self]
        while waiting:
            found = waiting.pop()
            while found.element is not None:
                found = found.element
            if found.kind != STRUCT or id(found) in seen:
                continue
            seen.add(id(found))
            yield found
            waiting.extend(field.type for field in reversed(found.fields.values()))

    def __repr__(self) -> str:
        if self.kind == STRUCT:
            return f"{self.group}/{self.version}.{self.name}"
        if self.element is not None:
            return f"[{self.element!r}]" if self.kind == LIST else f"{{{self.element!r}}}"
        return self.kind


SCALAR_TYPES: Final = {name: Type(name) for name in SCALARS}


class Field:
    """One field of a struct."""

    __slots__ = (
        "always",
        "default",
        "description",
        "name",
        "number",
        "patch_merge_key",
        "patch_strategy",
        "pointer",
        "required",
        "type",
    )

    def __init__(
        self,
        name: str,
        type: Type,
        *,
        pointer: bool = False,
        required: bool = False,
        always: bool = False,
        patch_strategy: tuple[str, ...] = (),
        patch_merge_key: str = "",
        default: str = "",
        number: tuple[int, ...] = (),
        description: str = "",
    ) -> None:
        self.name = name  # as in JSON
        self.type = type
        self.pointer = pointer  # absent and zero differ
        self.required = required
        self.always = always  # written even when it is zero
        self.patch_strategy = patch_strategy  # strategic merge: merge, replace, retainKeys
        self.patch_merge_key = patch_merge_key
        self.default = default  # as OpenAPI states it; empty means none
        self.number = number  # protobuf field number; longer for fields of an inlined message
        self.description = description

    @property
    def list_type(self) -> str:
        """Return how server-side apply treats the list: atomic, set or map."""
        return self.type.list_type

    @property
    def map_keys(self) -> tuple[str, ...]:
        """Return the fields that identify an item of a list of type map."""
        return self.type.map_keys

    def __repr__(self) -> str:
        return f"{self.name}: {'*' if self.pointer else ''}{self.type!r}"
