"""Objects that differ from a valid one in one field, chosen through the schema.

`Mutator.mutate` walks from the top of a valid object down to one place (a field that is
there, one that the schema knows and the object lacks, an item of a list, a key of a map) and
changes that place alone: to a value of the right type, to a boundary of that type, to another
JSON type, to nothing. All before that place stays valid, so the request reaches the code
that looks at exactly this field.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from dray.api.schema import LIST, MAP, STRUCT, Field, Type

Json = Any

_LONG = "x" * 300
STRINGS = (
    "", "a", "A", "-", ".", "a-b", "a.b", "a/b", "a0", "a_b", "é", "\u0000", "\ud83d\ude00", " ", "a b", "a\nb", _LONG,
    "*", "/", "//", "..", "../..", "%", "%s", "{}", "$(A)", "${A}", "0", "1", "-1", "true", "null", "None", "1e9", "NaN",
    "kubernetes.io/x", "a.example.com", "gpu.example.com", "gpu.example.com/numa", "a.example/" + "y" * 70, "١", "²",
    "10.0.0.1", "::1", "10.0.0.0/8", "127.0.0.1:80", "evil@127.0.0.1", "http://127.0.0.1/", "2026-01-02T03:04:05Z",
    "11111111-2222-4333-8444-555555555555", "Exists", "In", "NoSchedule", "NoExecute", "Always", "Never", "Delete",
)  # fmt: skip
INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    31,
    32,
    33,
    63,
    64,
    100,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53,
    2**63 - 1,
    -(2**63),
)
NOT_INTEGERS = (2**63, 10**30, 1.5, -0.0, 1e308, 1e16, "1", True)
QUANTITIES = (
    "0", "1", "-1", "1k", "1Ki", "1.5Gi", "100m", "1e3", "1E3", "0.0001", "1n", "9223372036854775807", "9223372036854775808",
    "1e100", "1e-100", "999999999999999999999999", "", " 1", "1 ", "1kk", "+1", "1e", ".5", "5.", "0x10", "1_000", "١", 5, 1.5, 10**20,
)  # fmt: skip
TIMES = (
    "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05+23:59", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
    "10000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-02", "", "x", "1970-01-01T00:00:00Z", "2026-01-02T24:00:00Z",
    "2026-01-02T03:04:60Z", "0000-00-00T00:00:00Z", None, "2026-01-02t03:04:05z",
)  # fmt: skip
DURATIONS = (
    "1s",
    "1h30m",
    "-1s",
    "0",
    "",
    "1",
    "1d",
    "1e9h",
    "9223372036854775807ns",
    "9999999999999h",
    "1.5s",
    "µs",
)
BYTES = ("", "AA==", "AAEC", "AA", "=", "é", "!!!!", "AAAA\n", "a" * 401)
ODD: tuple[Json, ...] = (
    None, True, False, 0, -1, 1.5, 2**63, 10**30, 1e308, "", "x", "é", [], {}, [[]], [None], [{}], {"": None}, {"a": {"b": [1]}},
    ["a", "a"], [1, "a"], {"a": None}, "\u0000",
)  # fmt: skip
KEYS = (
    "",
    "a",
    "a/b",
    "a.example/b",
    "a//b",
    "/",
    "é",
    "x" * 70,
    "a" * 254 + "/b",
    "-a",
    "a b",
    "\u0000",
    "cpu",
    "memory",
    "kubernetes.io/x",
)


class Mutator:
    """Changes objects; the same seed makes the same changes."""

    def __init__(self, chance: random.Random, words: dict[str, list[Json]] | None = None) -> None:
        self.chance = chance
        self.words = words if words is not None else {}  # field name -> values that were seen there
        self.path = ""  # of the last change

    def learn(self, value: Json, name: str = "") -> None:
        """Remember the scalars of a valid object by the name of their field."""
        if isinstance(value, dict):
            for key, item in value.items():
                self.learn(item, key)
        elif isinstance(value, list):
            for item in value:
                self.learn(item, name)
        elif name and value not in self.words.setdefault(name, []):
            self.words[name].append(value)

    def mutate(self, schema: Type | None, base: Json) -> Json:
        """Return a copy of an object with one place changed; `path` says which."""
        self.path = ""
        return self._change(schema, base, "", 0)

    # --- finding the place --------------------------------------------------------

    def _change(self, schema: Type | None, value: Json, name: str, depth: int) -> Json:
        chance = self.chance
        if isinstance(value, dict) and (value or (schema is not None and schema.kind == STRUCT)):
            if depth == 0 or chance.random() < 0.93:
                return self._in_object(schema, value, depth)
        elif isinstance(value, list) and value and chance.random() < 0.85:
            return self._in_list(schema, value, name, depth)
        return self._replacement(schema, value, name, depth)

    def _in_object(self, schema: Type | None, value: dict[str, Json], depth: int) -> Json:
        chance = self.chance
        fields = schema.fields if schema is not None and schema.kind == STRUCT else {}
        names = list(fields) if fields and chance.random() < 0.3 else list(value)
        name = chance.choice(names or ["x"])
        if not fields and chance.random() < 0.2:
            name = chance.choice(KEYS)
        self.path += f".{name}"
        inner = fields[name].type if name in fields else schema.element if schema is not None else None
        dice = chance.random()
        if name not in value:
            return {**value, name: self.generate(inner, name, depth + 1)}
        if dice < 0.04 and depth:
            return {key: item for key, item in value.items() if key != name}
        if dice < 0.06:
            return {**value, chance.choice((name.upper(), name + "x", "", "unknown")): value[name]}
        return {**value, name: self._change(inner, value[name], name, depth + 1)}

    def _in_list(self, schema: Type | None, value: list[Json], name: str, depth: int) -> Json:
        chance = self.chance
        element = schema.element if schema is not None else None
        place = chance.randrange(len(value))
        self.path += f"[{place}]"
        dice = chance.random()
        if dice < 0.06:
            return [*value, copy.deepcopy(value[place])]
        if dice < 0.09:
            return value[:place] + value[place + 1 :]
        if dice < 0.11:
            return [*value, *(value[place] for _ in range(chance.choice((8, 33, 130))))]
        if dice < 0.18:
            return [*value, self.generate(element, name, depth + 1)]
        return [*value[:place], self._change(element, value[place], name, depth + 1), *value[place + 1 :]]

    # --- what comes to stand there --------------------------------------------------

    def _replacement(self, schema: Type | None, value: Json, name: str, depth: int) -> Json:
        dice = self.chance.random()
        if dice < 0.10:
            return self.chance.choice(ODD)
        if dice < 0.25 and isinstance(value, str) and value:
            return self._spoiled(value)
        return self.generate(schema, name, depth)

    def _spoiled(self, text: str) -> str:
        chance = self.chance
        place = chance.randrange(len(text))
        return chance.choice(
            (
                text[:place],
                text + text,
                text[:place] + chance.choice(STRINGS) + text[place:],
                text.upper(),
                text + " ",
                text * 40,
            )
        )

    def generate(self, schema: Type | None, name: str, depth: int) -> Json:
        """Return a value for a field: of the right type, most of the time sensible."""
        chance = self.chance
        if schema is None or schema.kind in ("any", "raw"):
            return chance.choice(ODD) if chance.random() < 0.5 else {"kind": "Config", "x": [1, {"y": "z"}]}
        kind = schema.kind
        if kind == STRUCT:
            return self._struct(schema, depth)
        if kind == LIST:
            sizes = (0, 1, 1, 1, 2, 3, 33) if depth < 8 else (0, 1)
            return [self.generate(schema.element, name, depth + 1) for _ in range(chance.choice(sizes))]
        if kind == MAP:
            return {
                chance.choice(KEYS): self.generate(schema.element, name, depth + 1)
                for _ in range(chance.choice((0, 1, 1, 2)))
            }
        return self._scalar(kind, name)

    def _struct(self, schema: Type, depth: int) -> Json:
        chance = self.chance
        found = {}
        for name, field in schema.fields.items():
            if _wanted(field) or chance.random() < (0.25 if depth < 8 else 0.03):
                found[name] = self.generate(field.type, name, depth + 1)
        return found

    def _scalar(self, kind: str, name: str) -> Json:
        chance = self.chance
        known = self.words.get(name)
        if known and chance.random() < 0.5:
            return chance.choice(known)
        match kind:
            case "string":
                return chance.choice(STRINGS)
            case "bool":
                return chance.random() < 0.5
            case "int32" | "int64":
                return chance.choice(INTEGERS) if chance.random() < 0.93 else chance.choice(NOT_INTEGERS)
            case "float64":
                return chance.choice((0, 0.5, -1, 1e308, 1e-300))
            case "quantity":
                return chance.choice(QUANTITIES)
            case "time" | "microtime":
                return chance.choice(TIMES)
            case "duration":
                return chance.choice(DURATIONS)
            case "bytes":
                return chance.choice(BYTES)
            case _:
                return chance.choice((1, 80, "http", "50%", "", -1, 65536, "101%", "-1%", 2**31))


def _wanted(field: Field) -> bool:
    return field.required and field.name not in ("status",)
