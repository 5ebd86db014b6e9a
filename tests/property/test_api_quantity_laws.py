"""Laws of quantities, checked against rational numbers."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from dray.api.quantity import QuantityError, parse_quantity

FACTORS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(1000),
           "M": Fraction(10**6), "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20), "e3": Fraction(1000), "e-3": Fraction(1, 1000)}  # fmt: skip

amounts = st.tuples(st.integers(-(10**20), 10**20), st.integers(0, 999), st.sampled_from(sorted(FACTORS)))


def text_of(amount):
    whole, thousandths, suffix = amount
    return f"{whole}.{thousandths:03d}{suffix}"


def exact(amount):
    """The rational number meant, rounded away from zero to nanos, binary ones capped."""
    whole, thousandths, suffix = amount
    magnitude = (abs(whole) + Fraction(thousandths, 1000)) * FACTORS[suffix] * 10**9
    nanos = -(-magnitude.numerator // magnitude.denominator)
    if suffix.endswith("i"):
        nanos = min(nanos, (2**63 - 1) * 10**9)
    return -nanos if whole < 0 else nanos


@given(amounts)
def test_parsing_is_exact(amount):
    assert parse_quantity(text_of(amount)).nanos == exact(amount)


@given(amounts)
def test_canonical_text_means_the_same(amount):
    quantity = parse_quantity(text_of(amount))
    again = parse_quantity(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)


@given(amounts, amounts)
def test_order_sum_and_difference_are_those_of_numbers(first, second):
    a, b = parse_quantity(text_of(first)), parse_quantity(text_of(second))
    assert (a < b) == (exact(first) < exact(second))
    assert (a + b).nanos == exact(first) + exact(second)
    assert (a - b).nanos == exact(first) - exact(second)
    assert a + b == b + a
    assert a - a == parse_quantity("0")


@given(st.text(alphabet="0123456789.+-eEinumkKMGTPx ", max_size=12))
def test_any_text_is_a_quantity_or_a_quantity_error(text):
    try:
        quantity = parse_quantity(text)
    except QuantityError:
        return
    assert parse_quantity(str(quantity)) == quantity
