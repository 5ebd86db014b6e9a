"""Expressions that mean harm get a clear error, in bounded time and memory."""

import pytest

from dray.api.features import Features
from dray.cel import CompileError, DeviceInput, EvaluationError, compile_selector

DEVICE = DeviceInput.build("d.io", {}, {})


def evaluate(expression):
    return compile_selector(expression, features=Features.default()).evaluate(DEVICE)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5000 + "true" + ")" * 5000,
        "[" * 5000,
        "size(" * 2000,
        "1" + "+1" * 4000 + " == 1",
        "device" + ".a" * 4000,
        "device.attributes" + '["a"]' * 1500,
    ],
)
def test_deep_nesting_is_refused_with_the_limit(expression):
    with pytest.raises(CompileError, match="recursion limit exceeded: 250"):
        evaluate(expression)


def test_nesting_within_the_limit_works():
    assert evaluate("(" * 240 + "true" + ")" * 240)
    assert evaluate("1" + "+1" * 199 + " == 200")
    assert evaluate(" && ".join(["true"] * 2000))
    assert not evaluate("!" * 9999 + "true")


def test_a_pattern_that_is_too_big_is_refused():
    with pytest.raises(CompileError, match="invalid matches argument"):
        evaluate('"a".matches("(a{1000}){1000}")')


def test_a_pattern_that_hangs_other_engines_is_quick():
    assert not evaluate('"' + "a" * 60 + '!".matches("^(a+)+$")')


def doubling(step, n_levels):
    chain = "".join(f"cel.bind(a{i + 1}, {step.replace('$', f'a{i}')}, " for i in range(n_levels))
    return f"cel.bind(a0, [1], {chain}a{n_levels} == a{n_levels}" + ")" * (n_levels + 1)


@pytest.mark.parametrize("step", ["$+$", "[$,$]", "{1:$,2:$}"])
def test_values_that_double_at_every_level_are_stopped(step):
    with pytest.raises(EvaluationError, match="operation cancelled"):
        evaluate(doubling(step, 40))


def test_types_that_double_at_every_level_are_refused():
    with pytest.raises(CompileError, match="too complex"):
        evaluate(doubling("{$:$}", 40))


def test_strings_that_square_at_every_level_are_stopped():
    chain = "".join(f'cel.bind(s{i + 1}, s{i}.replace("", s{i}), ' for i in range(8))
    with pytest.raises(EvaluationError, match="operation cancelled"):
        evaluate(f'cel.bind(s0, "aaaaaaaaaa", {chain}s8 == "x"' + ")" * 9)


def test_an_endless_range_is_stopped():
    with pytest.raises(EvaluationError, match="operation cancelled"):
        evaluate("lists.range(9223372036854775807).size() == 1")


@pytest.mark.heavy
def test_nested_loops_stop_at_the_cost_limit():
    loops = "".join(f".all(x{i}, [1,2,3,4,5,6,7,8,9,10]" for i in range(20))
    with pytest.raises(EvaluationError, match="actual cost limit exceeded"):
        evaluate(f"[1,2,3,4,5,6,7,8,9,10]{loops}.all(z, true)" + ")" * 20)
