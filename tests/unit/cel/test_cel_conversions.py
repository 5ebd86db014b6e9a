"""Conversions between types, with Go's limits and spelling."""

import pytest
from cel_builders import error_of, value_of

from dray.cel.conversions import show_double
from dray.cel.values import Duration, Timestamp, Uint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("int('-12')", -12),
        ("int('+12')", 12),
        ("int(3.99)", 3),
        ("int(-3.99)", -3),
        ("int(7u)", 7),
        ("int(timestamp('1970-01-01T00:00:07.9Z'))", 7),
        ("uint('12')", Uint(12)),
        ("uint(3.99)", Uint(3)),
        ("double('1.5e3')", 1500.0),
        ("double('1_0.5')", 10.5),
        ("double('-0x1.8p1')", -3.0),
        ("double(3)", 3.0),
        ("string(1.0)", "1"),
        ("string(-0.5)", "-0.5"),
        ("string(true)", "true"),
        ("string(b'abc')", "abc"),
        ("string(12u)", "12"),
        ("string(duration('90m'))", "5400s"),
        ("string(timestamp('2024-02-29T12:00:00.5+02:00'))", "2024-02-29T12:00:00.5+02:00"),
        ("bytes('é')", "é".encode()),
        ("bool('t')", True),
        ("bool('FALSE')", False),
        ("timestamp(0)", Timestamp(0)),
        ("duration('1h1m1.5s')", Duration(3_661_500_000_000)),
        ("duration('-2ms')", Duration(-2_000_000)),
        ("dyn(1)", 1),
        ("type(1) == int", True),
        ("type('') == string && type([]) == list && type({}) == map && type(null) == null_type", True),
        ("type(1) == type(1u)", False),
        ("type(type(1)) == type", True),
        ("type(timestamp(0)) == google.protobuf.Timestamp", True),
    ],
)
def test_conversions(text, value):
    found = value_of(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int('9223372036854775808')", "type conversion error from 'string' to 'int'"),
        ("int('1.0')", "type conversion error from 'string' to 'int'"),
        ("int(' 1')", "type conversion error from 'string' to 'int'"),
        ("int('1_000')", "type conversion error from 'string' to 'int'"),
        ("int('\u0661')", "type conversion error from 'string' to 'int'"),
        ("uint('-1')", "type conversion error from 'string' to 'uint'"),
        ("double('1__0')", "type conversion error from 'string' to 'double'"),
        ("double('0x1')", "type conversion error from 'string' to 'double'"),
        ("double('0x1p1024')", "type conversion error from 'string' to 'double'"),
        ("bool('yes')", "type conversion error from 'string' to 'bool'"),
        ("int(1e19)", "integer overflow"),
        ("int(18446744073709551615u)", "integer overflow"),
        ("uint(-1)", "unsigned integer overflow"),
        ("uint(-1.0)", "unsigned integer overflow"),
        ("int(double('NaN'))", "integer overflow"),
        ("string(b'\\xff')", "invalid UTF-8 in bytes, cannot convert to string"),
        ("timestamp(253402300800)", "timestamp overflow"),
        (
            "timestamp('2023-02-29T00:00:00Z')",
            "type conversion error from 'string' to 'google.protobuf.Timestamp'",
        ),
        ("duration('1')", "type conversion error from 'string' to 'google.protobuf.Duration'"),
    ],
)
def test_refused_conversions(text, message):
    function, _, argument = text.removesuffix(")").partition("(")
    # In a loop, because what is constant is refused when it is compiled.
    assert error_of(f"[{argument}].map(each, {function}(each))") == message


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (100.0, "100"),
        (0.1, "0.1"),
        (1234.5, "1234.5"),
        (1e20, "1e+20"),
        (1e21, "1e+21"),
        (1.5e21, "1.5e+21"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1.25e-7, "1.25e-07"),
        (1e100, "1e+100"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_doubles_are_written_as_go_writes_them(number, text):
    assert show_double(number) == text
