"""Functions on lists, sets, maps and optionals."""

import pytest
from cel_builders import error_of, value_of

from dray.cel.values import Duration, Uint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lists.range(4)", [0, 1, 2, 3]),
        ("lists.range(0)", []),
        ("[1, 2, 3, 4].slice(1, 3)", [2, 3]),
        ("[1, 2].slice(2, 2)", []),
        ("[[1, 2], [3]].flatten()", [1, 2, 3]),
        ("[dyn(1), dyn([dyn(2), dyn([3])])].flatten()", [1, 2, [3]]),
        ("[dyn(1), dyn([dyn(2), dyn([dyn(3), dyn([4])])])].flatten(2)", [1, 2, 3, [4]]),
        ("[[1]].flatten(0)", [[1]]),
        ("[3, 1, 2].sort()", [1, 2, 3]),
        ("['b', 'a'].sort()", ["a", "b"]),
        ("[1.5, -1.0].sort()", [-1.0, 1.5]),
        ("[true, false].sort()", [False, True]),
        ("['bbb', 'a', 'cc'].sortBy(word, size(word))", ["a", "cc", "bbb"]),
        ("[].sortBy(each, each)", []),
        ("[3, 1, 3, 2, 1].distinct()", [3, 1, 2]),
        ("[dyn(1), dyn(1.0), dyn(1u), dyn('a')].distinct()", [1, "a"]),
        ("[[1], [2], [1]].distinct()", [[1], [2]]),
        ("[1, 2, 3].reverse()", [3, 2, 1]),
        ("[].reverse()", []),
        ("[1, 1, 2].isSorted()", True),
        ("[2, 1].isSorted()", False),
        ("[].isSorted()", True),
        ("[1, 3, 2].max()", 3),
        ("['b', 'a'].min()", "a"),
        ("[1.5, 0.5].min()", 0.5),
        ("[1, 2, 3].sum()", 6),
        ("[1u, 2u].sum()", Uint(3)),
        ("[duration('1m'), duration('1s')].sum()", Duration(61_000_000_000)),
        ("['a', 'b', 'a'].indexOf('a')", 0),
        ("['a', 'b', 'a'].lastIndexOf('a')", 2),
        ("['a'].indexOf('z')", -1),
        ("['a'].lastIndexOf('z')", -1),
        ("sets.contains([1, 2, 3], [3, 1, 1])", True),
        ("sets.contains([1, 2], [3])", False),
        ("sets.contains([], [])", True),
        ("sets.equivalent([1, 2, 2], [2, 1])", True),
        ("sets.equivalent([1], [1, 2])", False),
        ("sets.equivalent([dyn(1)], [dyn(1u), dyn(1.0)])", True),
        ("sets.intersects([1, 2], [2, 3])", True),
        ("sets.intersects([1], [2])", False),
        ("sets.intersects([], [])", False),
        ("[1, 2, 3].all(n, n > 0) && ![1, 2].all(n, n > 1)", True),
        ("[].all(n, false)", True),
        ("[].exists(n, true)", False),
        ("[1, 2, 2].exists_one(n, n == 1)", True),
        ("[1, 2, 2].exists_one(n, n == 2)", False),
        ("[1, 2, 3].filter(n, n % 2 == 1)", [1, 3]),
        ("[1, 2, 3].map(n, n * n)", [1, 4, 9]),
        ("[1, 2, 3].map(n, n > 1, n * 10)", [20, 30]),
        ("{'a': 1, 'b': 2}.map(key, key)", ["a", "b"]),
        ("{'a': 1, 'b': 2}.filter(key, key == 'b')", ["b"]),
        ("['x', 'y'].all(i, word, i < 2 && word != '')", True),
        ("{'a': 1}.exists(key, value, key == 'a' && value == 1)", True),
        ("[10, 20].transformList(i, n, i * n)", [0, 20]),
        ("{'a': 1, 'b': 2}.transformMap(key, value, value > 1, value * 2)", {"b": 4}),
        ("optional.of(1).orValue(2)", 1),
        ("optional.none().orValue(2)", 2),
        ("optional.ofNonZeroValue(0).hasValue()", False),
        ("optional.ofNonZeroValue('').hasValue()", False),
        ("optional.ofNonZeroValue([0]).hasValue()", True),
        ("optional.of(0).hasValue()", True),
        ("optional.none().or(optional.of(3)).value()", 3),
        ("{'a': 1}[?'a'].orValue(0) + {'a': 1}[?'b'].orValue(10)", 11),
        ("[1][?0].orValue(9) + [1][?5].orValue(9)", 10),
        ("optional.of(2).optMap(n, n * 5).value()", 10),
        ("optional.none().optMap(n, n * 5).hasValue()", False),
        ("optional.of([1]).optFlatMap(items, items[?0]).value()", 1),
        ("[?optional.of(1), ?optional.none(), 3]", [1, 3]),
        ("{?'a': optional.none(), 'b': 2}", {"b": 2}),
    ],
)
def test_results(text, value):
    found = value_of(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lists.range(-1)", "lists.range: size must be non-negative, got -1"),
        ("[1, 2].slice(-1, 1)", "cannot slice(-1, 1), negative indexes not supported"),
        ("[1, 2].slice(2, 1)", "cannot slice(2, 1), start index must be less than or equal to end index"),
        ("[1, 2].slice(0, 3)", "cannot slice(0, 3), list is length 2"),
        ("[[1]].flatten(-1)", "level must be non-negative"),
        ("[dyn(1), dyn('a')].sort()", "list elements must have the same type"),
        ("[dyn([1]), dyn([2])].sort()", "list elements must be comparable"),
        ("[1].filter(n, n > 1).max()", "max called on empty list"),
        ("[1].filter(n, n > 1).min()", "min called on empty list"),
        ("[9223372036854775807, 1].sum()", "integer overflow"),
        ("[9223372036854775807, 1, -1].sum()", "integer overflow"),  # on the way, as upstream
        ("[1][1]", "index out of bounds: 1"),
        ("{'a': 1}['b']", "no such key: b"),
        ("optional.none().value()", "optional.none() dereference"),
        ("[1, 0].map(n, 1 / n)", "division by zero"),
    ],
)
def test_failures(text, message):
    assert error_of(text) == message


def test_a_loop_absorbs_errors_where_another_element_decides():
    assert value_of("[0, 1].exists(n, 1 / n == 1)") is True
    assert value_of("[0, 1].all(n, 1 / n == 2)") is False
    assert error_of("[0, 1].all(n, 1 / n == 1)") == "division by zero"
    assert error_of("[1, 0].exists_one(n, 1 / n == 1)") == "division by zero"
