"""Expressions that mean harm get a clear error, in bounded time and memory."""

import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from dray.api.caching import BoundedCache
from dray.api.features import Features
from dray.cel import (
    CompileError,
    DeviceInput,
    EvaluationError,
    check_expression,
    compile_selector,
    functions_strings,
    program,
)
from dray.cel.codegen import compile_tree
from dray.cel.functions_strings import compile_pattern

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
    with pytest.raises(EvaluationError, match="exceeds maximum allowed"):
        evaluate("lists.range(9223372036854775807).size() == 1")


def test_nested_loops_stop_at_the_cost_limit():
    loops = "".join(f".all(x{i}, [1,2,3,4,5,6,7,8,9,10]" for i in range(20))
    with pytest.raises(EvaluationError, match="actual cost limit exceeded"):
        evaluate(f"[1,2,3,4,5,6,7,8,9,10]{loops}.all(z, true)" + ")" * 20)


@pytest.mark.parametrize(
    "values",
    [
        't.replace("", b)',  # charged for what it reads
        "[t, b, t, b, t, b, t, b].join(b)",
        "l + l",  # adding lists costs 1
    ],
)
def test_results_that_cost_less_than_they_weigh_share_a_budget(values):
    expression = (
        f'cel.bind(b, "{"b" * 4000}", cel.bind(t, "{"t" * 4000}", cel.bind(l, lists.range(20000), '
        f"lists.range(1000).map(x, {values}).size() > 0)))"
    )
    with pytest.raises(EvaluationError, match="operation cancelled"):
        evaluate(expression)
    program = compile_selector(expression, features=Features.default())
    assert "operation cancelled" in program.outcome(DEVICE).error


@pytest.mark.parametrize("loop", ["map(x, x)", "filter(x, true)", "transformMap(i, v, v)"])
def test_the_memory_of_a_loop_grows_with_its_result_not_with_its_square(loop):
    program = compile_selector(f"lists.range(20000).{loop}.size() == 1 / 0", features=Features.default())
    tracemalloc.start()
    error = program.outcome(DEVICE).error
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error == "division by zero"
    assert peak < 64 << 20  # copies in every round would take more than 1 GB


def test_a_string_as_long_as_its_cost_allows_is_made():
    chain = "".join("cel.bind(s, s + s, " for _ in range(16))
    assert evaluate(f'cel.bind(s, "{"a" * 64}", {chain}size(s) == {64 << 16}' + ")" * 17)


def test_the_list_of_a_binding_does_not_change_when_it_is_added_to():
    expression = "cel.bind(l, [], (l + [1]).size() + (l + [1, 2]).size() == 3 && l == [])"
    assert evaluate(expression)
    assert compile_selector(expression, features=Features.default()).outcome(DEVICE).value is True


def test_a_chain_that_doubles_with_every_link_is_refused():
    with pytest.raises(CompileError, match="too big after expanding macros"):
        evaluate("optional.of(1)" + ".optMap(x, x)" * 40 + ".hasValue()")


def test_programs_are_kept_by_size_not_by_number():
    cache = BoundedCache(100)
    for number in range(20):
        cache.add(number, f"value {number}", 20)
        assert cache.get(0) == "value 0"  # used all the time
        assert len(cache) <= 5
    assert cache.get(19) == "value 19"
    assert cache.get(10) is None
    cache.add("big", "value", 51)
    assert cache.get("big") is None


def test_compiled_patterns_are_kept_by_size_not_by_number():
    for number in range(400):
        compile_pattern("a" * 3_000 + str(number))
    assert len(functions_strings._PATTERNS) < 100  # about 200 kB each
    short = [f"a.*b{number}" for number in range(1_000)]
    kept = [compile_pattern(pattern) for pattern in short]
    assert all(compile_pattern(pattern) is found for pattern, found in zip(short, kept, strict=True))


def test_programs_of_long_literals_are_kept_by_size_too():
    program._PROGRAMS.clear()
    for number in range(30):
        evaluate(f'device.driver == "{number}{"x" * 9_900}"')
    weight = program._PROGRAMS._n_young
    assert weight > 30 * 9_900 / 512
    program._PROGRAMS.clear()


def test_deep_expressions_are_compiled_by_several_threads_at_once():
    texts = ["(" * 200 + f"1 == {number}" + ")" * 200 for number in range(12)]
    with ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda text: check_expression(text, features=Features.default()), texts))
    assert {verdict.error for verdict in verdicts} == {None}
    assert sys.getrecursionlimit() < 30_000


@pytest.mark.parametrize(
    "body", ["1 / (x - x) == 1", 'device.attributes["d"].missing == 1', "x >= 0", "[x].all(y, y < 0) || true"]
)
def test_a_long_list_is_compiled_in_time_that_grows_with_it(body):
    short, long = (compile_time(f"[0].all(x, [{', '.join([body] * n)}].size() == {n})") for n in (40, 160))
    assert long < short * 10  # four times; sixteen times if every element looks at all before it


def compile_time(expression):
    program = compile_selector(expression, features=Features.default())
    best = 1.0
    for _ in range(5):
        start = time.process_time()
        assert compile_tree(program.tree, counting=False) is not None
        best = min(best, time.process_time() - start)
    return best
