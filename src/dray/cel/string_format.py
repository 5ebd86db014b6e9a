"""`"%d of %s".format([1, "two"])`: filling templates, and checking them when compiling.

A template is text with clauses `%s %d %f %e %b %x %X %o`, `%.3f`, and `%%` for a
percent sign. Numbers are written as in American English, with commas and `× 10²`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from dray.cel.errors import Fault
from dray.cel.kinds import CelType
from dray.cel.operators import MAX_TEXT, too_big
from dray.cel.syntax import ListNode, MapNode, Node
from dray.cel.values import Duration, Timestamp, Uint, map_items, type_name

_DEFAULT_PRECISION = 6
_MAX_PRECISION = 10_000  # upstream has no bound; nobody needs more digits
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")

_COMPLAINTS = {
    "s": (
        "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, "
        "and timestamps, was given {}"
    ),
    "d": "decimal clause can only be used on integers, was given {}",
    "f": "fixed-point clause can only be used on doubles, was given {}",
    "e": "scientific clause can only be used on doubles, was given {}",
    "b": "only integers and bools can be formatted as binary, was given {}",
    "x": "only integers, byte buffers, and strings can be formatted as hex, was given {}",
    "o": "octal clause can only be used on integers, was given {}",
}
_ACCEPTED = {
    "s": frozenset(
        {
            "list",
            "map",
            "int",
            "uint",
            "double",
            "bool",
            "string",
            "timestamp",
            "bytes",
            "duration",
            "type",
            "null",
        }
    ),
    "d": frozenset({"int", "uint"}),
    "f": frozenset({"double", "string"}),
    "e": frozenset({"double", "string"}),
    "b": frozenset({"int", "uint", "bool"}),
    "x": frozenset({"int", "uint", "string", "bytes"}),
    "o": frozenset({"int", "uint"}),
}


class FormatProblem(Exception):
    """A template or an argument is wrong; `argument` is the node to blame, if one is."""

    def __init__(self, message: str, argument: Node | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class Clause(NamedTuple):
    """A `%` clause: its letter and precision."""

    letter: str
    precision: int


def parse_template(template: str, n_arguments: int) -> list[str | Clause | FormatProblem]:
    """Split a template. What is wrong with it is the last piece: what is wrong with earlier arguments comes first."""
    pieces: list[str | Clause | FormatProblem] = []
    try:
        _split(template, n_arguments, pieces)
    except FormatProblem as problem:
        pieces.append(problem)
    return pieces


def _split(template: str, n_arguments: int, pieces: list[str | Clause | FormatProblem]) -> None:
    position = 0
    n_clauses = 0
    while position < len(template):
        percent = template.find("%", position)
        if percent < 0:
            pieces.append(template[position:])
            break
        pieces.append(template[position:percent])
        if template.startswith("%%", percent):
            pieces.append("%")
            position = percent + 2
            continue
        if n_clauses >= n_arguments:
            at_end = percent + 1 >= len(template)
            raise FormatProblem("unexpected end of string" if at_end else f"index {n_clauses} out of range")
        clause, position = _parse_clause(template, percent + 1)
        pieces.append(clause)
        n_clauses += 1


def _parse_clause(template: str, position: int) -> tuple[Clause, int]:
    problem = "could not parse formatting clause: "
    if position >= len(template):
        raise FormatProblem("unexpected end of string")
    precision = _DEFAULT_PRECISION
    if template[position] == ".":
        start = position + 1
        position = start
        while position < len(template) and template[position] in "0123456789":
            position += 1
        if position >= len(template):
            raise FormatProblem(
                f"{problem}error while parsing precision: could not find end of precision specifier"
            )
        digits = template[start:position]
        if not digits:
            raise FormatProblem(
                f"{problem}error while parsing precision: error while converting precision to integer: "
                'strconv.Atoi: parsing "": invalid syntax'
            )
        precision = min(int(digits[:9]), _MAX_PRECISION)
    letter = template[position]
    if letter not in "sdfebxXo":
        raise FormatProblem(f'{problem}unrecognized formatting clause "{letter}"')
    return Clause(letter, precision), position + 1


# --- filling ---------------------------------------------------------------------------------------


_LONGEST_KNOWN = 256  # characters


@lru_cache(maxsize=1024)
def _known_template(template: str, n_values: int) -> list[str | Clause | FormatProblem]:
    """Parse a template, remembering it: loops use the same one over and over. Nobody changes the list."""
    return parse_template(template, n_values)


def format_string(template: str, values: list[object]) -> str:
    """Fill the clauses of a template with values; raise Fault."""
    try:
        parse = _known_template if len(template) <= _LONGEST_KNOWN else parse_template
        pieces = parse(template, len(values))
        arguments = iter(values)
        texts: list[str] = []
        length = 0
        for piece in pieces:
            if isinstance(piece, FormatProblem):
                raise Fault(str(piece))
            texts.append(piece if isinstance(piece, str) else _fill(piece, next(arguments)))
            length += len(texts[-1])
            if length > MAX_TEXT:
                raise too_big(MAX_TEXT, "characters")
        return "".join(texts)
    except FormatProblem as problem:
        raise Fault(str(problem)) from None
    except StopIteration:
        raise Fault(f"index {len(values)} out of range") from None


def _fill(clause: Clause, value: object) -> str:
    text = _CLAUSES[clause.letter](value, clause.precision)
    if text is None:
        complaint = _COMPLAINTS[clause.letter.lower()].format(type_name(value))
        raise FormatProblem(f"error during formatting: {complaint}")
    return text


def _string(value: object, _precision: int) -> str | None:
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    from dray.cel.conversions import show_double
    from dray.cel.functions_time import show_duration, show_timestamp

    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            return show_double(value)
        case str():
            return value
        case bytes():
            return value.decode("utf-8", "replace")
        case Duration():
            return show_duration(value)
        case Timestamp():
            return show_timestamp(value)
        case CelType():
            return value.name
        case list():
            return f"[{', '.join(map(_nested, value))}]"
        case dict():
            pairs = sorted((_format_key(key), _nested(item)) for key, item in map_items(value))
            return "{" + ", ".join(f"{key}:{item}" for key, item in pairs) + "}"
    return None


def _format_key(key: object) -> str:
    if isinstance(key, str | int):
        return _nested(key)
    raise FormatProblem(
        f"error during formatting: no formatting function for map key of type {type_name(key)}"
    )


def _nested(value: object) -> str:
    """Write a value inside a list or map: quoted where needed."""
    match value:
        case str():
            return _quoted(value)
        case bytes():
            return "b" + _quoted(value.decode("utf-8", "replace"))
        case float():
            text = _plain_double(value)
            return text if math.isfinite(value) else f'"{text}"'
        case Duration():
            return f'duration("{_string(value, 0)}")'
        case Timestamp():
            return f'timestamp("{_string(value, 0)}")'
    text_or_none = _string(value, 0)
    if text_or_none is None:
        raise FormatProblem(f"error during formatting: no formatting function for {type_name(value)}")
    return text_or_none


def _plain_double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.{_DEFAULT_PRECISION}f}"


def _quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'


def _decimal(value: object, _precision: int) -> str | None:
    return str(int(value)) if isinstance(value, int) and not isinstance(value, bool) else None


_NAMED_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _double(value: object) -> float | None:
    if isinstance(value, float):
        return value
    return _NAMED_DOUBLES.get(value) if isinstance(value, str) else None


def _special(number: float) -> str | None:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return None


def _fixed(value: object, precision: int) -> str | None:
    number = _double(value)
    if number is None:
        return None
    return _special(number) or f"{number:,.{precision}f}"


def _scientific(value: object, precision: int) -> str | None:
    number = _double(value)
    if number is None:
        return None
    special = _special(number)
    if special is not None:
        return special
    mantissa, _, exponent = f"{number:.{_DEFAULT_PRECISION}e}".partition("e")
    sign = "⁻" if exponent[0] == "-" else ""
    text = f"{mantissa}\u00a0×\u00a010{sign}{exponent[1:].translate(_SUPERSCRIPTS)}"
    return text.rjust(precision)


def _whole(letter: str) -> Callable[[object, int], str | None]:
    def write(value: object, _precision: int) -> str | None:
        if isinstance(value, bool):
            return ("1" if value else "0") if letter == "b" else None
        if isinstance(value, int | Uint):
            return format(int(value), letter)
        if letter in "xX" and isinstance(value, str | bytes):
            data = value.encode() if isinstance(value, str) else value
            return data.hex().upper() if letter == "X" else data.hex()
        return None

    return write


_CLAUSES: dict[str, Callable[[object, int], str | None]] = {
    "s": _string,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _whole("b"),
    "x": _whole("x"),
    "X": _whole("X"),
    "o": _whole("o"),
}


# --- checking ----------------------------------------------------------------------------------------


def check_template(template: str, arguments: list[Node]) -> None:
    """Check a literal template against the types of literal arguments; raise FormatProblem."""
    pieces = parse_template(template, len(arguments))
    clauses = [piece for piece in pieces if isinstance(piece, Clause)]
    for clause, argument in zip(clauses, arguments, strict=False):
        letter = clause.letter.lower()
        bad = _unfit(letter, argument)
        if bad is not None:
            complaint = _COMPLAINTS[letter].format(
                "google.protobuf.Any" if bad.type.kind == "any" else bad.type.name
            )
            raise FormatProblem(f"error during formatting: {complaint}", bad)
    if pieces and isinstance(pieces[-1], FormatProblem):
        raise pieces[-1]
    if len(arguments) > len(clauses):
        raise FormatProblem(
            f"too many arguments supplied to string.format (expected {len(clauses)}, got {len(arguments)})"
        )


def _unfit(letter: str, argument: Node) -> Node | None:
    """Return the node that a clause cannot write, if there is one."""
    if argument.type.kind != "dyn" and argument.type.kind not in _ACCEPTED[letter]:
        return argument
    if letter != "s":
        return None
    parts: list[Node] = []
    if isinstance(argument, ListNode):
        parts = argument.elements
    elif isinstance(argument, MapNode):
        parts = [part for entry in argument.entries for part in (entry.key, entry.value)]
    for part in parts:
        bad = _unfit(letter, part)
        if bad is not None:
            return bad
    return None
