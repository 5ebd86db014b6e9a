"""Random selector expressions, made from the types of the declared functions, one seed each.

Used to compare `dray.cel` with cel-go over many expressions (tools/recorders/compare.py). An expression depends on
nothing but its seed. Most are well typed, so that they are evaluated and not only refused: a generator draws an
expression of a wanted type, from literals, attributes of the device, macros and every declared function whose
result fits. Some get an operand of a wrong type, a missing attribute or a damaged text.
"""

from __future__ import annotations

import random
from functools import cache

from dray.cel import kinds
from dray.cel.declarations import FORMAT_NAMES, Overload, declared_functions
from dray.cel.kinds import CelType, list_of, map_of, optional_of

DOMAIN = "acme.test"
ATTRIBUTES = 'device.attributes["acme.test"]'
OPERATORS = ("+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||")
TEXTS = (
    "", "a", "b", "trout", "left", "A b", "a,b", "1", "-1", "1.5", "true", "TRUE", "1h", "90s", "1h30m", "x%s", "%d%%", "ä", "日本", "\\n",
    "1.2.3", "v1.2.3", "1.2.3-rc.1", "2.4.6-rc.1", "1.0", "01.2.3", "6Gi", "2500m", "1e3", "-1Ki", "10.0.0.0/8", "10.0.0.1", "::1", "fe80::1",
    "fe80::/10", "::ffff:1.2.3.4", "01.2.3.4", "10.0.0.0/33", "https://h.test:80/p?q=1", "h#f", "/p", "2024-02-29T12:00:00Z", "2024-01-01T00:00:00.5+01:00",
    "2024-01-01", "^a+$", "[a-z]*", "(a|b)", "t(r)", "(", "UTC", "America/New_York", "02:00", "-05:30",
)  # fmt: skip
# Texts that a conversion takes more often than any other, by what it makes.
FITTING = {
    "duration": ("1h", "90s", "1h30m", "-5ms", "0s"),
    "timestamp": ("2024-02-29T12:00:00Z", "2024-01-01T00:00:00.5+01:00", "1970-01-01T00:00:00Z"),
    "quantity": ("6Gi", "2500m", "1", "1e3", "-1Ki", "0"),
    "semver": ("1.2.3", "1.2.3-rc.1", "2.4.6-rc.1", "0.0.1+b"),
    "ip": ("10.0.0.1", "::1", "fe80::1", "255.255.255.255"),
    "cidr": ("10.0.0.0/8", "fe80::/10", "10.0.0.1/32"),
    "url": ("https://h.test:80/p?q=1", "http://[::1]/", "/p", "https://h.test"),
    "format.named": FORMAT_NAMES,
}
SCALARS = (
    kinds.BOOL, kinds.INT, kinds.UINT, kinds.DOUBLE, kinds.STRING, kinds.BYTES, kinds.DURATION, kinds.TIMESTAMP,
    kinds.QUANTITY, kinds.SEMVER, kinds.IP, kinds.CIDR, kinds.URL,
)  # fmt: skip
COMMON = (kinds.BOOL, kinds.INT, kinds.STRING)
KEYS = (kinds.STRING, kinds.STRING, kinds.INT, kinds.UINT, kinds.BOOL)  # what the language says
# No way to write them in a selector: macros make them, or there is no authorizer.
NOT_WRITTEN = ("@not_strictly_false", "cel.@mapInsert", "@sortByAssociatedKeys")
AUTHORIZER = "kubernetes.authorization"


def _mentions_authorizer(overload: Overload) -> bool:
    return any(AUTHORIZER in str(kind) for kind in (*overload.args, overload.result))


@cache
def _overloads() -> tuple[tuple[str, Overload], ...]:
    return tuple(
        (name, overload)
        for name, overloads in declared_functions(with_includes=False).items()
        for overload in overloads
        if name not in NOT_WRITTEN and not _mentions_authorizer(overload)
    )


@cache
def _making(wanted: CelType) -> tuple[tuple[str, Overload, tuple[tuple[str, CelType], ...]], ...]:
    """Return the functions whose result can be of a type, with what that binds their parameters to."""
    found = []
    for name, overload in _overloads():
        bound: dict[str, CelType] = {}
        if _fits(overload.result, wanted, bound):
            found.append((name, overload, tuple(bound.items())))
    return tuple(found)


def _fits(pattern: CelType, wanted: CelType, bound: dict[str, CelType]) -> bool:
    if pattern.kind == "param":
        return bound.setdefault(pattern.name, wanted) == wanted
    if (pattern.kind, pattern.name) != (wanted.kind, wanted.name) or len(pattern.params) != len(
        wanted.params
    ):
        return False
    return all(_fits(one, other, bound) for one, other in zip(pattern.params, wanted.params, strict=True))


def _bind(kind: CelType, bound: dict[str, CelType]) -> CelType:
    if kind.kind == "param":
        return bound[kind.name]
    return kind._replace(params=tuple(_bind(part, bound) for part in kind.params))


class ExpressionGenerator:
    """Draws one expression."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.variables: list[tuple[str, CelType]] = []
        self.wrong_types = self.random.random() < 0.15
        self.missing = self.random.random() < 0.15

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def expression(self) -> str:
        text = self.of(kinds.BOOL, self.random.choice((2, 2, 3, 3, 4)))
        if self.chance(0.02):
            place = self.random.randrange(len(text) + 1)
            text = (
                text[:place]
                + self.random.choice("()[]{}.,?:\"'+&|!1a ")
                + text[place + self.random.randrange(2) :]
            )
        return text

    def any_type(self, depth: int = 1) -> CelType:
        pick = self.random.choice
        if depth and self.chance(0.2):
            inner = self.any_type(0)
            return pick((list_of(inner), map_of(pick((kinds.STRING, kinds.INT)), inner), optional_of(inner)))
        return pick(COMMON) if self.chance(0.6) else pick(SCALARS)

    def key_type(self) -> CelType:
        """Draw the type of a map's keys; cel-go's checker also lets others pass, and fails later."""
        return self.any_type(0) if self.chance(0.02) else self.random.choice(KEYS)

    def of(self, wanted: CelType, depth: int) -> str:
        """Return an expression of a type."""
        if self.wrong_types and self.chance(0.1):
            wanted = self.any_type()
        if wanted.kind in ("dyn", "any"):
            wanted = self.any_type(0)
        fitting = [name for name, kind in self.variables if kind == wanted]
        if fitting and self.chance(0.4):
            return self.random.choice(fitting)
        if depth <= 0:
            return self.leaf(wanted)
        roll = self.random.random()
        if roll < 0.12:
            return self.leaf(wanted)
        if roll < 0.3:
            found = self.macro(wanted, depth - 1)
            if found:
                return found
        if roll < 0.36:
            return f"({self.of(kinds.BOOL, depth - 1)} ? {self.of(wanted, depth - 1)} : {self.of(wanted, depth - 1)})"
        if wanted == kinds.BOOL and roll < 0.7:
            return self.logic(depth - 1)
        return self.call(wanted, depth - 1)

    def logic(self, depth: int) -> str:
        pick = self.random.choice
        roll = self.random.random()
        if roll < 0.3:
            return f"({self.of(kinds.BOOL, depth)} {pick(('&&', '||'))} {self.of(kinds.BOOL, depth)})"
        if roll < 0.4:
            return f"!{self.of(kinds.BOOL, depth)}"
        if roll < 0.5:
            kind = pick((list_of(self.any_type(0)), map_of(kinds.STRING, self.any_type(0))))
            return f"({self.of(kind.params[0], depth)} in {self.of(kind, depth)})"
        kind = self.any_type()
        other = kind if self.chance(0.9) else self.any_type()
        operator = pick(("==", "==", "!=", "<", "<=", ">", ">="))
        left, right = self.of(kind, depth), self.of(other, depth)
        if self.chance(0.1):
            left = f"dyn({left})"
        return f"({left} {operator} {right})"

    def call(self, wanted: CelType, depth: int) -> str:
        choices = _making(wanted)
        if not choices:
            return self.leaf(wanted)
        name, overload, bindings = self.random.choice(choices)
        bound = dict(bindings)
        for param in overload.params:
            is_key = any(kind.kind == "map" and kind.params[0] == param for kind in overload.args)
            bound.setdefault(param.name, self.key_type() if is_key else self.any_type(0))
        if name in FITTING and self.chance(0.7):
            arguments = [_quoted(self.random.choice(FITTING[name]))]
            arguments += [self.of(_bind(kind, bound), depth) for kind in overload.args[1:]]
        else:
            arguments = [self.of(_bind(kind, bound), depth) for kind in overload.args]
        if self.chance(0.05):
            place = self.random.randrange(len(arguments)) if arguments else 0
            arguments[place : place + 1] = [f"dyn({each})" for each in arguments[place : place + 1]]
        return _written(name, overload, arguments)

    def macro(self, wanted: CelType, depth: int) -> str:
        """Return a macro of a type, or nothing."""
        pick = self.random.choice
        element = self.any_type(0)
        if wanted == kinds.BOOL:
            if self.chance(0.2):
                return self.presence()
            name = pick(("all", "exists", "exists_one"))
            return self.loop(name, list_of(element), [kinds.BOOL], depth)
        if wanted.kind == "list" and self.chance(0.8):
            if self.chance(0.3):
                return self.loop("filter", wanted, [kinds.BOOL], depth)
            if self.chance(0.2):
                return self.loop("sortBy", wanted, [pick((kinds.INT, kinds.STRING))], depth)
            return self.loop(
                "map", list_of(element), [kinds.BOOL] * self.chance(0.2) + [wanted.params[0]], depth
            )
        if wanted.name == "optional_type" and self.chance(0.5):
            return self.loop(pick(("optMap", "optFlatMap")), optional_of(element), [wanted.params[0]], depth)
        if self.chance(0.5):
            name, text = self.fresh(), self.of(element, depth)
            self.variables.append((name, element))
            inside = self.of(wanted, depth)
            self.variables.pop()
            return f"cel.bind({name}, {text}, {inside})"
        return ""

    def loop(self, name: str, subject: CelType, parts: list[CelType], depth: int) -> str:
        over = self.of(subject, depth)
        variables = [(self.fresh(), subject.params[0])]
        if name in ("all", "exists", "exists_one") and self.chance(0.2):
            name = "existsOne" if name == "exists_one" else name
            variables.insert(0, (self.fresh(1), kinds.INT))
        if name == "optFlatMap":
            parts = [optional_of(parts[0])]
        self.variables += variables
        inside = [self.of(part, depth) for part in parts]
        del self.variables[-len(variables) :]
        return f"{over}.{name}({', '.join([variable for variable, _ in variables] + inside)})"

    def fresh(self, more: int = 0) -> str:
        return f"v{len(self.variables) + more}"

    def presence(self) -> str:
        name = self.random.choice(("i", "s", "missing", "b"))
        return self.random.choice(
            (f"has({ATTRIBUTES}.{name})", f'"{name}" in {ATTRIBUTES}', f"{ATTRIBUTES}[?\"{name}\"].hasValue()",
             f"{ATTRIBUTES}.?{name}.hasValue()", f'has(device.capacity["acme.test"].{name})', f'"{DOMAIN}" in device.attributes')
        )  # fmt: skip

    def leaf(self, wanted: CelType) -> str:
        if self.missing and self.chance(0.15):
            return f"{ATTRIBUTES}.missing"
        return self.attribute(wanted) if self.chance(0.35) else self.literal(wanted)

    def attribute(self, wanted: CelType) -> str:
        known = {
            "bool": ("b", "f"), "int": ("i", "neg"), "string": ("s", "empty"), "kubernetes.Semver": ("v",)
        }  # fmt: skip
        if wanted == kinds.QUANTITY:
            return f'device.capacity["acme.test"].{self.random.choice(("mem", "frac"))}'
        names = known.get(wanted.name)
        if names is None:
            return self.literal(wanted)
        if wanted == kinds.STRING and self.chance(0.3):
            return self.random.choice(("device.driver", 'device.attributes["rack.test"].s'))
        if wanted == kinds.BOOL and self.chance(0.1):
            return "device.allowMultipleAllocations"
        if self.chance(0.2):
            return f"{ATTRIBUTES}.?{self.random.choice((*names, 'missing'))}.orValue({self.literal(wanted)})"
        return f"{ATTRIBUTES}.{self.random.choice(names)}"

    def literal(self, wanted: CelType) -> str:
        pick = self.random.choice
        if wanted.kind in ("list", "map") or wanted.name == "optional_type":
            return self.container(wanted)
        if wanted.kind == "type":
            return f"type({self.literal(self.any_type(0))})"
        match wanted.name:
            case "bool":
                return pick(("true", "false"))
            case "int":
                return pick(
                    (
                        "0",
                        "1",
                        "2",
                        "-1",
                        "3",
                        "10",
                        "7",
                        "9223372036854775807",
                        "-9223372036854775808",
                        "0x1f",
                    )
                )
            case "uint":
                return pick(("0u", "1u", "2u", "18446744073709551615u", "10u"))
            case "double":
                return pick(("0.0", "1.5", "-2.0", "1e10", "1e-7", "3.0", "1e300", "0.1"))
            case "string":
                return _quoted(pick(TEXTS))
            case "bytes":
                return f"b{_quoted(pick(TEXTS))}"
            case "null_type":
                return "null"
            case "google.protobuf.Duration":
                return f'duration("{pick(FITTING["duration"])}")'
            case "google.protobuf.Timestamp":
                return f'timestamp("{pick(FITTING["timestamp"])}")'
            case "kubernetes.NamedFormat":
                return f"format.{pick(FORMAT_NAMES)}()"
        name = wanted.name.rsplit(".", 1)[-1].lower()
        return f'{name}("{pick(FITTING[name])}")' if name in FITTING else "null"

    def container(self, wanted: CelType) -> str:
        size = self.random.choice((0, 1, 2, 2, 3))
        if wanted.kind == "list":
            return "[" + ", ".join(self.leaf(wanted.params[0]) for _ in range(size)) + "]"
        if wanted.kind == "map":
            key, value = wanted.params
            return "{" + ", ".join(f"{self.leaf(key)}: {self.leaf(value)}" for _ in range(size)) + "}"
        if self.chance(0.3):
            return "optional.none()"
        return f"optional.{self.random.choice(('of', 'ofNonZeroValue'))}({self.leaf(wanted.params[0])})"


def _quoted(text: str) -> str:
    return f'"{text}"'


def _written(name: str, overload: Overload, arguments: list[str]) -> str:
    """Write a call as the language does."""
    if name.startswith("_[?"):
        return f"{arguments[0]}[?{arguments[1]}]"
    if name == "_[_]":
        return f"{arguments[0]}[{arguments[1]}]"
    if name == "_?._":
        return f"{arguments[0]}.?s"
    if name == "_?_:_":
        return f"({arguments[0]} ? {arguments[1]} : {arguments[2]})"
    if name in ("!_", "-_"):
        return f"{name[0]}({arguments[0]})"
    if name.startswith("_") or name == "@in":
        return f"({arguments[0]} {name.strip('_@')} {arguments[1]})"
    if overload.is_member:
        return f"{arguments[0]}.{name}({', '.join(arguments[1:])})"
    return f"{name}({', '.join(arguments)})"


def random_expression(seed: int) -> str:
    """Return the expression of a seed."""
    return ExpressionGenerator(seed).expression()
