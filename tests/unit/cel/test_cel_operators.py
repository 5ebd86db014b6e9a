"""Arithmetic, comparison and membership, by the language's definition; both engines agree on each."""

import math

import pytest
from cel_builders import error_of, value_of

from dray.cel.operators import divide, modulo, position_of
from dray.cel.values import Duration, Timestamp, Uint

MAX, MIN = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 / 2", 3),
        ("-7 / 2", -3),  # towards zero, unlike Python
        ("7 / -2", -3),
        ("-7 % 2", -1),  # the sign of the left side
        ("7 % -2", 1),
        ("-(-5)", 5),
        ("2u + 3u", Uint(5)),
        ("7u / 2u", Uint(3)),
        ("7u % 4u", Uint(3)),
        ("1.5 + 2.25", 3.75),
        ("1.0 / 4.0", 0.25),
        ("1.0 / 0.0", math.inf),
        ("-1.0 / 0.0", -math.inf),
        ('"a" + "b"', "ab"),
        ('b"a" + b"\\xff"', b"a\xff"),
        ("[1] + [2, 3]", [1, 2, 3]),
        ('duration("1h") + duration("30m")', Duration(5_400_000_000_000)),
        ('duration("1h") - duration("90m")', Duration(-1_800_000_000_000)),
        ('timestamp("1970-01-01T00:00:10Z") - timestamp("1970-01-01T00:00:04Z")', Duration(6_000_000_000)),
        ('timestamp("1970-01-01T00:00:10Z") - duration("4s")', Timestamp(6_000_000_000)),
        ('duration("4s") + timestamp("1970-01-01T00:00:10Z")', Timestamp(14_000_000_000)),
        (f"{MAX}", MAX),
        (f"{MIN}", MIN),
        ("9223372036854775807 + 0", MAX),
    ],
)
def test_arithmetic(text, value):
    found = value_of(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{MAX} + 1", "integer overflow"),
        (f"{MIN} - 1", "integer overflow"),
        (f"{MAX} * 2", "integer overflow"),
        (f"-({MIN})", "integer overflow"),
        (f"{MIN} / -1", "integer overflow"),
        (f"{MIN} % -1", "integer overflow"),
        ("18446744073709551615u + 1u", "unsigned integer overflow"),
        ("1u - 2u", "unsigned integer overflow"),
        ("1 / 0", "division by zero"),
        ("1u / 0u", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("1u % 0u", "modulus by zero"),
        ('timestamp("9999-12-31T23:59:59Z") + duration("1s")', "timestamp overflow"),
        ('timestamp("0001-01-01T00:00:00Z") - duration("1s")', "timestamp overflow"),
        ("dyn(1) + dyn(1.0)", "no such overload"),
        ("dyn(1) + dyn(1u)", "no such overload"),
        ('dyn("a") + dyn(1)', "no such overload"),
        ("dyn(true) + dyn(true)", "no such overload: _+_"),
    ],
)
def test_arithmetic_without_a_result(text, message):
    assert error_of(text) == message


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("1 < 2", True),
        ("2 <= 2", True),
        ("2 > 2", False),
        ("2 >= 3", False),
        ('"a" < "b"', True),
        ('"Z" < "a"', True),  # by code points
        ('"\\uffff" < "\\U00010000"', True),
        ('b"\\x01" < b"\\x02"', True),
        ("false < true", True),
        ("dyn(1) < dyn(1.5)", True),  # numbers compare across types
        ("dyn(2u) > dyn(-1)", True),
        ("dyn(1) == dyn(1.0)", True),
        ("dyn(1) == dyn(1u)", True),
        ("dyn(1) == dyn('1')", False),
        ("dyn(1) == dyn(true)", False),
        ("dyn(0) == dyn(false)", False),
        ("[1, 2] == [1, 2]", True),
        ("[1, 2] == [2, 1]", False),
        ("{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", True),
        ("{1: 'a'} == {1: 'b'}", False),
        ("[dyn(1)] == [dyn(1.0)]", True),
        ("[true] == [dyn(1)]", False),
        ("null == null", True),
        ("dyn(null) == dyn(0)", False),
        ('duration("60s") == duration("1m")', True),
        ('timestamp("2024-01-01T00:00:00Z") < timestamp("2024-01-01T00:00:00.000000001Z")', True),
        ('timestamp("2024-01-01T01:00:00+01:00") == timestamp("2024-01-01T00:00:00Z")', True),
    ],
)
def test_comparison(text, holds):
    assert value_of(text) is holds


def test_nan_equals_nothing_and_has_no_order():
    nan = 'double("NaN")'
    for other in (nan, "1.0"):
        assert value_of(f"{nan} == {other}") is False
        assert value_of(f"{nan} != {other}") is True
        for operator in ("<", ">", "<=", ">="):
            assert error_of(f"{nan} {operator} {other}") == "NaN values cannot be ordered"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("2 in [1, 2]", True),
        ("3 in [1, 2]", False),
        ("dyn(2.0) in [1, 2]", True),
        ("dyn(true) in [dyn(1)]", False),
        ("dyn(1) in [dyn(true), dyn(1)]", True),  # Python takes True for 1 and would stop there
        ("'a' in {'a': 1}", True),
        ("1 in {'a': 1}.map(k, 1)", True),
        ("dyn(1.0) in {1: 'x'}", True),
        ("dyn(1u) in {1: 'x'}", True),
        ("dyn(true) in {dyn(1): 'x'}", False),
        ("[1] in [[2], [1]]", True),
        ("1 in []", False),
    ],
)
def test_membership(text, holds):
    assert value_of(text) is holds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("false && 1 / 0 == 1", False),
        ("1 / 0 == 1 && false", False),  # an error on the left is absorbed, too
        ("true || 1 / 0 == 1", True),
        ("1 / 0 == 1 || true", True),
        ("true ? 1 : 1 / 0", 1),
        ("false ? 1 / 0 : 2", 2),
        ("!(1 > 2)", True),
    ],
)
def test_logic_absorbs_errors(text, value):
    assert value_of(text) is value or value_of(text) == value


@pytest.mark.parametrize(
    "text", ["1 / 0 == 1 && true", "true && 1 / 0 == 1", "1 / 0 == 1 || false", "1 / 0 == 1 ? 1 : 2"]
)
def test_an_error_that_decides_remains(text):
    assert error_of(text) == "division by zero"


def test_integers_divide_towards_zero():
    for left in (-7, -6, -1, 0, 1, 6, 7):
        for right in (-3, -2, -1, 1, 2, 3):
            quotient, rest = divide(left, right), modulo(left, right)
            assert quotient * right + rest == left
            assert abs(rest) < abs(right)
            assert rest == 0 or (rest < 0) == (left < 0)


def test_a_quick_look_for_an_item_does_not_take_true_for_one():
    assert position_of(1, [0, 1]) == 1
    assert position_of(1, [0, 2]) == -1
    assert position_of(1, [True, 1]) is None  # must be compared one by one
    assert position_of(1.0, [1]) is None
