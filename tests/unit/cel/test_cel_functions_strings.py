"""Functions on strings, as the string extension of CEL defines them; positions count characters."""

import pytest
from cel_builders import error_of, value_of

from dray.cel.functions_strings import quote


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'tacocat'.charAt(3)", "o"),
        ("'😀b'.charAt(1)", "b"),
        ("'abc'.charAt(3)", ""),  # the end is a position
        ("'hello mellow'.indexOf('')", 0),
        ("'hello mellow'.indexOf('ello')", 1),
        ("'hello mellow'.indexOf('jello')", -1),
        ("'hello mellow'.indexOf('', 2)", 2),
        ("'hello mellow'.indexOf('ello', 2)", 7),
        ("'hello mellow'.indexOf('ello', 20)", -1),
        ("'hello mellow'.lastIndexOf('')", 12),
        ("'hello mellow'.lastIndexOf('ello')", 7),
        ("'hello mellow'.lastIndexOf('ello', 6)", 1),
        ("'hello mellow'.lastIndexOf('ello', 7)", 7),
        ("'hello mellow'.lastIndexOf('h', 0)", 0),
        ("'TacoCÉ'.lowerAscii()", "tacocÉ"),
        ("'tacocé'.upperAscii()", "TACOCé"),
        ("'hello hello'.replace('he', 'we')", "wello wello"),
        ("'hello hello'.replace('he', 'we', 1)", "wello hello"),
        ("'hello hello'.replace('he', 'we', 0)", "hello hello"),
        ("'hello hello'.replace('he', 'we', -1)", "wello wello"),
        ("'ab'.replace('', '_')", "_a_b_"),
        ("'ab'.replace('', '_', 2)", "_a_b"),
        ("'a b c'.split(' ')", ["a", "b", "c"]),
        ("'a b c'.split(' ', 2)", ["a", "b c"]),
        ("'a b c'.split(' ', 1)", ["a b c"]),
        ("'a b c'.split(' ', 0)", []),
        ("'a b c'.split(' ', -1)", ["a", "b", "c"]),
        ("'abc'.split('')", ["a", "b", "c"]),
        ("'abc'.split('', 2)", ["a", "bc"]),
        ("''.split(',')", [""]),
        ("'tacocat'.substring(4)", "cat"),
        ("'tacocat'.substring(0, 4)", "taco"),
        ("'tacocat'.substring(7)", ""),
        ("'ta©o'.substring(2, 3)", "©"),
        ("'  \\ttrim\\u00a0\\n '.trim()", "trim"),
        ("'\\u200btrim'.trim()", "\u200btrim"),  # no space to Go
        ("['a', 'b'].join()", "ab"),
        ("['a', 'b'].join(', ')", "a, b"),
        ("[].join('-')", ""),
        ("'abc'.matches('b.')", True),
        ("'abc'.matches('^b')", False),
        ("'abc 123'.find('[0-9]+')", "123"),
        ("'abc'.find('[0-9]+')", ""),
        ("'1 22 333'.findAll('[0-9]+')", ["1", "22", "333"]),
        ("'1 22 333'.findAll('[0-9]+', 2)", ["1", "22"]),
        ("'1 22 333'.findAll('[0-9]+', 0)", []),
        ("'abc'.contains('bc') && 'abc'.startsWith('ab') && 'abc'.endsWith('bc')", True),
        ("size('😀é') == 2 && 'é'.size() == 1 && size(b'é') == 2", True),
    ],
)
def test_results(text, value):
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'abc'.charAt(4)", "index out of range: 4"),
        ("'abc'.charAt(-1)", "index out of range: -1"),
        ("'abc'.indexOf('a', -1)", "index out of range: -1"),
        ("'abc'.lastIndexOf('a', -1)", "index out of range: -1"),
        ("'abc'.substring(4)", "index out of range: 4"),
        ("'abc'.substring(2, 1)", "invalid substring range. start: 2, end: 1"),
        ("'abc'.substring(0, 4)", "index out of range: 4"),
        ("'abc'.substring(-1, 1)", "index out of range: -1"),
        ("'('.matches(each)", "error parsing regexp: missing closing )"),
    ],
)
def test_positions_outside_and_bad_patterns(text, message):
    target, _, call = text.partition(".")
    assert error_of(f"[{target}].map(each, each.{call})").startswith(message)


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("abc", '"abc"'),
        ('a"b\\', r'"a\"b\\"'),
        ("\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        ("é😀", '"é😀"'),
        ("", '""'),
    ],
)
def test_a_quoted_text_means_itself(text, literal):
    assert quote(text) == literal
    assert value_of(quote(text)) == text


def test_a_quantifier_that_explodes_is_matched_in_linear_time():
    assert value_of("'" + "a" * 5000 + "'.matches('(a*)*b')") is False
