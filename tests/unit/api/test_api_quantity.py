"""Quantities: what text means, how it is written back, what upstream answers about it."""

import pickle

import pytest

from dray.api.quantity import Quantity, QuantityError, canonical_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("1", "1"),
        ("1.5", "1500m"),
        ("1.5Gi", "1536Mi"),
        ("1024Mi", "1Gi"),
        ("0.5", "500m"),
        ("0.5Ki", "512"),
        ("1.1Ki", "1126400m"),
        ("1000", "1k"),
        ("1000Ki", "1000Ki"),
        ("1000000000", "1G"),
        ("0.1n", "1n"),
        ("1e3", "1e3"),
        ("1e1", "10"),
        ("1e25", "10e24"),
        ("-1.5", "-1500m"),
        ("1e-20", "1e-9"),
        ("100Ei", "9223372036854775807"),
        ("999999999999999999999", "999999999999999999999"),
        ("1.G", "1.G"),
        (".5", "500m"),
        ("+5", "+5"),  # nearly canonical text is kept
        ("1.500", "1.500"),
        ("1000E", "1000E"),
    ],
)
def test_text_is_written_back_canonically(text, canonical):
    quantity = parse_quantity(text)
    assert str(quantity) == canonical
    assert parse_quantity(canonical) == quantity


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must match the regular expression"),
        ("lots", "must match the regular expression"),
        ("1.2.3", "must match the regular expression"),
        (" 1", "must match the regular expression"),
        ("1K", "suffix"),
        ("1e", "suffix"),
        ("1Mib", "must match"),
        ("e-17", "numeric part"),
        ("9" * 5000, "numeric part"),
        ("1e5000", "suffix"),
    ],
)
def test_bad_text_is_refused_with_upstreams_message(text, message):
    with pytest.raises(QuantityError, match=message):
        parse_quantity(text)


def test_a_bool_is_no_quantity():
    with pytest.raises(QuantityError):
        parse_quantity(True)


def test_numbers_and_blanks_are_fine_in_json():
    assert canonical_quantity(" 1Gi ") == "1Gi"
    assert canonical_quantity(0.5) == "500m"
    assert canonical_quantity(2048) == "2048"


def test_equality_order_and_hash_are_by_value():
    assert parse_quantity("1Ki") == parse_quantity("1024")
    assert hash(parse_quantity("1Ki")) == hash(parse_quantity("1024"))
    assert parse_quantity("1Ki") > parse_quantity("1k")
    assert parse_quantity("1Ki") != "1Ki"


def test_values_beyond_int64_stay_exact():
    big = parse_quantity("9223372036854775807") + parse_quantity("1")
    assert str(big) == "9223372036854775808"
    assert big.as_integer() is None


@pytest.mark.parametrize(
    ("text", "integer"),
    [("5", 5), ("2Gi", 2**31), ("1e3", 1000), ("1.0", None), ("1.5Gi", None), ("1Pi", None), ("500m", None)],
)
def test_as_integer_has_an_answer_where_upstream_has_one(text, integer):
    assert parse_quantity(text).as_integer() == integer
    assert parse_quantity(text).is_integer() is (integer is not None)


def test_rounding_goes_away_from_zero():
    assert parse_quantity("1.0001").ceil_value() == 2
    assert parse_quantity("-1.0001").ceil_value() == -2
    assert parse_quantity("1u").milli_value() == 1
    assert parse_quantity("2").milli_value() == 2000


def test_a_sum_takes_the_format_of_the_first_amount_that_is_not_zero():
    assert str(parse_quantity("0") + parse_quantity("1Gi")) == "1Gi"
    assert str(parse_quantity("1Gi") - parse_quantity("512Mi")) == "512Mi"
    assert str(parse_quantity("1Gi") * 4) == "4Gi"
    assert str(-parse_quantity("3")) == "-3"
    assert parse_quantity("-3").sign == -1


def test_approximate_floats():
    assert parse_quantity("500m").as_approximate_float() == 0.5
    assert parse_quantity("501e23").as_approximate_float() == 5.01e25
    assert parse_quantity("1e400").as_approximate_float() == float("inf")
    assert parse_quantity("-1e400").as_approximate_float() == float("-inf")


def test_a_quantity_cannot_be_changed_but_can_be_copied():
    quantity = Quantity.of_milli(1500)
    with pytest.raises(AttributeError, match="immutable"):
        quantity.nanos = 0
    assert str(pickle.loads(pickle.dumps(quantity))) == "1500m"
    assert repr(Quantity.of(7)) == "Quantity('7')"
    assert bool(Quantity.of(0)) is False
