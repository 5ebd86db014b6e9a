"""Exact amounts with a unit suffix, as Kubernetes writes them: `500m`, `40Gi`, `12e6`.

A quantity is a whole number of nanos plus the way it was written. Everything is
computed on Python integers, so nothing is ever rounded except on parsing, where an
amount below one nano is rounded up: who wants some gets some.

Theory of operation: three formats exist and a value remembers the one it came in.

  DecimalSI        n u m (none) k M G T P E    powers of 1000
  BinarySI         Ki Mi Gi Ti Pi Ei           powers of 1024
  DecimalExponent  e3, E3, e-3                 powers of 10

`str()` gives canonical text: no fraction, the largest suffix that keeps the value
whole. Binary values below 1024, or with a fraction, are written in DecimalSI.

Kubernetes keeps an amount either as a scaled int64 or as a big decimal, and some of
its answers depend on which: `quantity("1.5Gi").isInteger()` is false in CEL, because
a fraction was typed. `_scale` remembers that choice (None means: big decimal).
Text that was typed in a nearly canonical way (`+5`, `1.500`) is kept as it is, too.

Two deliberate differences: text above 4,000 digits or exponents above 4,000 is refused
(upstream may compute for minutes), and a DecimalSI amount above 1000E keeps its `E`
(upstream prints `1` for `1000E`, losing the value).

Invariants (tests/property/test_api_quantity_laws.py): `parse(str(q)) == q`; order, sum and
negation agree with those of the rational number.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

__all__ = [
    "BINARY_SI",
    "DECIMAL_EXPONENT",
    "DECIMAL_SI",
    "QUANTITY_FORMAT",
    "Quantity",
    "QuantityError",
    "canonical_quantity",
    "parse_quantity",
]

DECIMAL_SI: Final = "DecimalSI"
BINARY_SI: Final = "BinarySI"
DECIMAL_EXPONENT: Final = "DecimalExponent"

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)

_NANO: Final = 10**9
_MAX_DIGITS: Final = 4000
_MAX_EXPONENT: Final = 4000
_INT64_DIGITS: Final = 18  # so many decimal digits always fit an int64

_DECIMAL_SUFFIXES: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_DECIMAL_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _BINARY_SUFFIXES.items()}
_SUFFIX_CHARACTERS: Final = frozenset("eEinumkKMGTP")

QUANTITY_FORMAT: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_NUMERIC_WRONG: Final = "unable to parse numeric part of quantity"
_SUFFIX_WRONG: Final = "unable to parse quantity's suffix"


class QuantityError(ValueError):
    """The text is not a quantity; the message is the one Kubernetes gives."""


class Quantity:
    """An exact amount; immutable; equal, ordered and hashed by value alone.

    >>> parse_quantity("1.5Gi") + parse_quantity("512Mi")
    Quantity('2Gi')
    >>> parse_quantity("0.5") == parse_quantity("500m")
    True
    """

    __slots__ = ("_scale", "_text", "nanos", "notation")

    nanos: int  # the value times 10**9
    notation: str  # DecimalSI, BinarySI or DecimalExponent
    _scale: int | None  # power of ten of upstream's int64 form; None means big decimal
    _text: str | None  # canonical text once known

    def __init__(
        self, nanos: int, notation: str = DECIMAL_SI, *, scale: int | None = None, text: str | None = None
    ) -> None:
        object.__setattr__(self, "nanos", nanos)
        object.__setattr__(self, "notation", notation)
        object.__setattr__(self, "_scale", scale)
        object.__setattr__(self, "_text", text)

    @classmethod
    def of(cls, value: int, notation: str = DECIMAL_SI) -> Quantity:
        """Return a whole amount."""
        fits = INT64_MIN <= value <= INT64_MAX
        return cls(value * _NANO, notation, scale=0 if fits else None)

    @classmethod
    def of_milli(cls, value: int, notation: str = DECIMAL_SI) -> Quantity:
        """Return an amount of thousandths."""
        fits = INT64_MIN <= value <= INT64_MAX
        return cls(value * 10**6, notation, scale=-3 if fits else None)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Quantity is immutable: cannot set {name}")

    # --- comparing ---------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Quantity):
            return self.nanos == other.nanos
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __le__(self, other: Quantity) -> bool:
        return self.nanos <= other.nanos

    def __gt__(self, other: Quantity) -> bool:
        return self.nanos > other.nanos

    def __ge__(self, other: Quantity) -> bool:
        return self.nanos >= other.nanos

    def __bool__(self) -> bool:
        return self.nanos != 0

    @property
    def sign(self) -> int:
        """Return -1, 0 or 1."""
        return (self.nanos > 0) - (self.nanos < 0)

    # --- computing ---------------------------------------------------------

    def __add__(self, other: Quantity) -> Quantity:
        notation = self.notation if self.nanos else other.notation
        return Quantity(self.nanos + other.nanos, notation, scale=_scale_of_sum(self, other))

    def __sub__(self, other: Quantity) -> Quantity:
        if other._scale is not None and other.nanos == INT64_MIN * 10 ** (9 + other._scale):
            # Upstream negates 64 bits, and the smallest number has no counterpart.
            wrapped = self + other
            if wrapped._scale is not None:
                return wrapped
        return self + -other

    def __neg__(self) -> Quantity:
        return Quantity(-self.nanos, self.notation, scale=self._scale)

    def __mul__(self, factor: int) -> Quantity:
        nanos = self.nanos * factor
        scale = self._scale
        if scale is not None and not _fits_int64(nanos, scale):
            scale = None
        return Quantity(nanos, self.notation, scale=scale)

    # --- reading -----------------------------------------------------------

    def is_integer(self) -> bool:
        """Return whether `as_integer` has an answer."""
        return self.as_integer() is not None

    def as_integer(self) -> int | None:
        """Return the value as an int64, or None where upstream's AsInt64 has no answer.

        None does not mean "has a fraction": `1.0`, `1.5Gi` and `1Pi` have no answer
        either, because upstream holds them in another form.
        """
        if self._scale is None or self._scale < 0:
            return None
        value = self.nanos // _NANO
        return value if INT64_MIN <= value <= INT64_MAX else None

    def as_approximate_float(self) -> float:
        """Return the nearest float that upstream computes; infinite beyond its range."""
        exponent = -9 if self._scale is None else self._scale
        mantissa = self.nanos // 10 ** (9 + exponent)
        try:
            # Not 10.0**exponent, which is not the float nearest to the power from 10**23 on.
            return float(mantissa) * float(f"1e{exponent}")
        except OverflowError:
            return float("inf") if self.nanos > 0 else float("-inf")

    def ceil_value(self) -> int:
        """Return the whole number not nearer to zero than the value (upstream's Value)."""
        return _divide_away_from_zero(self.nanos, _NANO)

    def milli_value(self) -> int:
        """Return the value in thousandths, rounded away from zero."""
        return _divide_away_from_zero(self.nanos, 10**6)

    def __str__(self) -> str:
        if self._text is None:
            object.__setattr__(self, "_text", _canonical_text(self.nanos, self.notation))
        return self._text  # type: ignore[return-value]  # set just above

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.nanos, self.notation, self._scale, self._text))


def parse_quantity(value: str | int | float) -> Quantity:
    """Parse text, or a number as JSON writes it; raise QuantityError with upstream's message.

    Whitespace is not skipped: only the JSON decoder does that (see `canonical_quantity`).
    """
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, bool):
        raise QuantityError(QUANTITY_FORMAT)
    return _parse_text(_number_text(value))


def canonical_quantity(value: str | int | float) -> str:
    """Return the text that the API server stores for a quantity in a JSON body."""
    return str(parse_quantity(value.strip() if isinstance(value, str) else value))


@lru_cache(maxsize=65536)
def _parse_text(text: str) -> Quantity:
    if not text:
        raise QuantityError(QUANTITY_FORMAT)
    if len(text) > _MAX_DIGITS:
        raise QuantityError(_NUMERIC_WRONG)
    negative, whole, fraction, suffix = _split(text)
    notation, exponent = _interpret(suffix)
    digits = int(whole + fraction)  # at most _MAX_DIGITS digits
    if notation == BINARY_SI:
        # Upstream's test of whether an int64 is wide enough, quirks included.
        fast = not fraction and 15 - len(whole) - exponent * 3 // 10 - 1 >= 0
        scale = 0
    else:
        scale = exponent - len(fraction)
        fast = len(whole) + len(fraction) <= _INT64_DIGITS and scale >= -9
    if not fast:
        if not any("0" <= letter <= "9" for letter in text[: len(text) - len(suffix)]):
            raise QuantityError(_NUMERIC_WRONG)
        return _big_decimal(-1 if negative else 1, digits, len(fraction), notation, exponent)
    if notation == BINARY_SI:
        nanos = (digits << exponent) * _NANO
        keep_text = digits & 7 != 0
    else:
        nanos = digits * 10 ** (9 + scale)
        shifted = whole + fraction
        keep_text = scale % 3 == 0 and not shifted.endswith("000") and shifted[0] != "0"
    return Quantity(-nanos if negative else nanos, notation, scale=scale, text=text if keep_text else None)


def _split(text: str) -> tuple[bool, str, str, str]:
    """Return sign, whole digits, fraction digits and suffix. Scanning is as lenient as upstream's."""
    position = 1 if text[0] in "+-" else 0
    whole, position = _take_digits(text, position)
    fraction = ""
    if text[position : position + 1] == ".":
        fraction, position = _take_digits(text, position + 1)
    end = position
    while end < len(text) and text[end] in _SUFFIX_CHARACTERS:
        end += 1
    if end < len(text):
        digits_from = end + 1 if text[end] in "+-" else end
        _, end = _take_digits(text, digits_from)
        if end < len(text):
            raise QuantityError(QUANTITY_FORMAT)
    return text[0] == "-", whole.lstrip("0") or "0", fraction, text[position:]


def _take_digits(text: str, start: int) -> tuple[str, int]:
    end = start
    while end < len(text) and "0" <= text[end] <= "9":
        end += 1
    return text[start:end], end


def _interpret(suffix: str) -> tuple[str, int]:
    if suffix in _DECIMAL_SUFFIXES:
        return DECIMAL_SI, _DECIMAL_SUFFIXES[suffix]
    if suffix in _BINARY_SUFFIXES:
        return BINARY_SI, _BINARY_SUFFIXES[suffix]
    if suffix[0] in "eE" and suffix[1:].lstrip("+-").isdigit():
        # A huge negative exponent means "a little": any below the cut rounds up to 1n.
        exponent = max(int(suffix[1:]), -2 * _MAX_EXPONENT)
        if exponent > _MAX_EXPONENT:
            raise QuantityError(_SUFFIX_WRONG)
        return DECIMAL_EXPONENT, exponent
    raise QuantityError(_SUFFIX_WRONG)


def _big_decimal(sign: int, digits: int, n_fraction: int, notation: str, exponent: int) -> Quantity:
    """Build the value upstream holds as a big decimal: rounded up to nanos, binary ones capped."""
    if notation == BINARY_SI:
        numerator, power = digits << exponent, 9 - n_fraction
    else:
        numerator, power = digits, 9 + exponent - n_fraction
    magnitude = numerator * 10**power if power >= 0 else -(-numerator // 10**-power)
    if notation == BINARY_SI:
        magnitude = min(magnitude, INT64_MAX * _NANO)
        if 0 < magnitude < _NANO:
            notation = DECIMAL_SI
    return Quantity(sign * magnitude, notation)


def _number_text(number: int | float) -> str:
    if isinstance(number, int):
        return str(number) if -(10**_MAX_DIGITS) < number < 10**_MAX_DIGITS else "9" * (_MAX_DIGITS + 1)
    return repr(number)


def _canonical_text(nanos: int, notation: str) -> str:
    if nanos == 0:
        return "0"
    if notation == BINARY_SI:
        whole, rest = divmod(nanos, _NANO)
        if rest == 0 and not -1024 < whole < 1024:
            exponent = 0
            while whole % 1024 == 0 and exponent < 60:
                whole //= 1024
                exponent += 10
            return f"{whole}{_BINARY_BY_EXPONENT.get(exponent, '')}"
        notation = DECIMAL_SI
    exponent = -9
    highest = 18 if notation == DECIMAL_SI else None
    while nanos % 1000 == 0 and exponent != highest:
        nanos //= 1000
        exponent += 3
    if notation == DECIMAL_SI:
        return f"{nanos}{_DECIMAL_BY_EXPONENT[exponent]}"
    return f"{nanos}e{exponent}" if exponent else str(nanos)


def _divide_away_from_zero(nanos: int, unit: int) -> int:
    return -(-nanos // unit) if nanos >= 0 else nanos // unit


def _fits_int64(nanos: int, scale: int) -> bool:
    value: int = nanos // 10 ** (9 + scale)
    return INT64_MIN <= value <= INT64_MAX


def _scale_of_sum(a: Quantity, b: Quantity) -> int | None:
    """Return the scale of upstream's int64 sum, or None where it falls back to a big decimal."""
    if a._scale is None or b._scale is None:
        return None
    if not b.nanos:
        return a._scale
    if not a.nanos:
        return b._scale
    scale = min(a._scale, b._scale)
    fits = (
        _fits_int64(a.nanos, scale) and _fits_int64(b.nanos, scale) and _fits_int64(a.nanos + b.nanos, scale)
    )
    return scale if fits else None


def _rebuild(nanos: int, notation: str, scale: int | None, text: str | None) -> Quantity:
    return Quantity(nanos, notation, scale=scale, text=text)
