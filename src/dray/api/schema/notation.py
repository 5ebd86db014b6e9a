"""Read schema files: the notation is described in the package's docstring."""

from __future__ import annotations

import re
from collections.abc import Callable
from pkgutil import get_data
from typing import Final

from dray.api.schema.types import LIST, MAP, SCALAR_TYPES, STRUCT, Field, Type

__all__ = ["SchemaFile"]

StructLookup = Callable[[str, str, str], Type]  # file, version, struct name

_FLAG: Final = re.compile(r"(\w+)(?:\(([^)]*)\))?")
_ATOMIC: Final = "atomic"


class SchemaFile:
    """The types of one API group."""

    def __init__(self, name: str, lookup: StructLookup) -> None:
        data = get_data(__package__, f"{name}.schema")
        if data is None:
            raise FileNotFoundError(f"{name}.schema is missing from the installation")
        self.name = name
        self._lookup = lookup
        self._blocks = _split(data.decode())
        self._structs: dict[tuple[str, str], Type] = {}

    def struct(self, version: str, name: str) -> Type | None:
        """Return a struct as the version sees it, or None."""
        found = self._structs.get((version, name))
        if found is None:
            block = self._blocks.get(version, {}).get(name)
            if block is None:
                return None
            found = self._structs[version, name] = self._make_struct(version, name, block)
        return found

    def _make_struct(self, version: str, name: str, lines: list[str]) -> Type:
        head, _, description = lines[0].partition(" -- ")
        words = head.split()
        return Type(
            STRUCT,
            group=self.name,
            version=version,
            name=name,
            is_atomic=_ATOMIC in words,
            has_type_meta=words[0] == "kind",
            description=description,
            build_fields=lambda: self._make_fields(version, lines[1:]),
        )

    def _make_fields(self, version: str, lines: list[str]) -> dict[str, Field]:
        fields = (self._make_field(version, line) for line in lines)
        return {field.name: field for field in fields}

    def _make_field(self, version: str, line: str) -> Field:
        declaration, _, description = line.partition(" -- ")
        name, _, rest = declaration.strip().partition(": ")
        written, _, flag_text = rest.partition(" ")
        flags = dict(_FLAG.findall(flag_text.partition("#")[0]))
        number: tuple[int, ...] = ()
        if "#" in flag_text:
            digits, _, after = flag_text.partition("#")[2].partition(" ")
            number = tuple(map(int, digits.split(".")))
            flags = dict(_FLAG.findall(after))
        strategy, _, merge_key = flags.get("patch", "").partition(" by ")
        return Field(
            name,
            self._make_type(version, written.removeprefix("*"), flags),
            pointer=written.startswith("*"),
            required="required" in flags,
            always="always" in flags,
            patch_strategy=tuple(strategy.split("+")) if strategy else (),
            patch_merge_key=merge_key,
            default=flags.get("default", ""),
            number=number,
            description=description,
        )

    def _make_type(self, version: str, written: str, flags: dict[str, str]) -> Type:
        scalar = SCALAR_TYPES.get(written)
        if scalar is not None:
            return scalar
        if written[0] == "[":
            keys = tuple(flags["keyed"].split(",")) if "keyed" in flags else ()
            list_type = "map" if keys else "set" if "set" in flags else _ATOMIC
            return Type(
                LIST, element=self._make_type(version, written[1:-1], {}), list_type=list_type, map_keys=keys
            )
        if written[0] == "{":
            return Type(MAP, element=self._make_type(version, written[1:-1], {}), is_atomic=_ATOMIC in flags)
        struct = self._find_struct(version, written)
        if _ATOMIC in flags and not struct.is_atomic:
            # The field, not the struct, is atomic: a type of its own with the same fields.
            return Type(
                STRUCT,
                group=struct.group,
                version=struct.version,
                name=struct.name,
                is_atomic=True,
                description=struct.description,
                build_fields=lambda: struct.fields,
            )
        return struct

    def _find_struct(self, version: str, written: str) -> Type:
        place, dot, name = written.rpartition(".")
        if dot:
            file, slash, other_version = place.partition("/")
            return self._lookup(file, other_version if slash else "v1", name)
        found = self.struct(version, name)
        if found is None:
            raise LookupError(f"{self.name}.schema, version {version}: {name} is not defined")
        return found


def _split(text: str) -> dict[str, dict[str, list[str]]]:
    """Return the lines of each struct: version -> name -> head and fields."""
    blocks: dict[str, dict[str, list[str]]] = {}
    current: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            lines.append(line)
        elif line.startswith(("type ", "kind ")):
            lines = current[line.split(" ", 2)[1]] = [line]
        elif line.startswith("version "):
            words = line.split()
            current = dict(blocks[words[3]]) if "like" in words else {}
            blocks[words[1]] = current
    return blocks
