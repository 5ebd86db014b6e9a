"""Why a text is not an address: the words of Go's net/netip."""

import pytest

from dray.cel.addresses import address_problem, prefix_problem

AT_REST = [
    ("", 'ParseAddr(""): unable to parse IP'),
    ("x%s", 'ParseAddr("x%s"): missing IPv6 address'),
    ("acme.test", 'ParseAddr("acme.test"): unexpected character (at "acme.test")'),
    ("1.2.3", 'ParseAddr("1.2.3"): IPv4 address too short'),
    ("1.2.3.4.5", 'ParseAddr("1.2.3.4.5"): IPv4 address too long'),
    ("1..2.3", 'ParseAddr("1..2.3"): IPv4 field must have at least one digit (at ".2.3")'),
    ("01.2.3.4", 'ParseAddr("01.2.3.4"): IPv4 field has octet with leading zero'),
    ("256.1.1.1", 'ParseAddr("256.1.1.1"): IPv4 field has value >255'),
    ("fe80::1%", 'ParseAddr("fe80::1%"): zone must be a non-empty string'),
    ("1:2", 'ParseAddr("1:2"): address string too short'),
    ("12345::", 'ParseAddr("12345::"): each group must have 4 or less digits (at "12345::")'),
    ("1::2::3", 'ParseAddr("1::2::3"): multiple :: in address (at ":3")'),
    ("1:2:3:4:5:6:7::8:9", 'ParseAddr("1:2:3:4:5:6:7::8:9"): trailing garbage after address (at "9")'),
    ("1:", 'ParseAddr("1:"): colon must be followed by more characters (at ":")'),
    (
        "1:1.2.3.4",
        'ParseAddr("1:1.2.3.4"): embedded IPv4 address must replace the final 2 fields of the address (at "1.2.3.4")',
    ),
]


@pytest.mark.parametrize(("text", "message"), AT_REST)
def test_the_first_thing_that_is_wrong_is_named(text, message):
    assert address_problem(text) == message


@pytest.mark.parametrize(
    ("text", "has_address", "reason"),
    [
        ("trout", False, "no '/'"),
        ("x/8", False, 'ParseAddr("x"): unable to parse IP'),
        ("1.2.3.4/08", True, 'bad bits after slash: "08"'),
        ("1.2.3.4/", True, 'bad bits after slash: ""'),
        ("1.2.3.4/33", True, "prefix length out of range"),
        ("fe80::1%e/8", True, "IPv6 zones cannot be present in a prefix"),
    ],
)
def test_a_prefix_is_refused_with_its_reason(text, has_address, reason):
    assert prefix_problem(text, has_address=has_address) == f'netip.ParsePrefix("{text}"): {reason}'
