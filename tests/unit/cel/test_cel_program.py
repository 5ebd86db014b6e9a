"""The main functions of the package: read-sets, explanations, hints, derived attributes, the command."""

import io
import json

import pytest

from dray.api.features import Features
from dray.api.resource import DeviceAttribute, DeviceCapacity
from dray.cel import (
    CompileError,
    DeviceInput,
    EvaluationError,
    check_expression,
    compile_derived,
    compile_selector,
    explain_false,
    key_hint,
)
from dray.cli.main import main

FEATURES = Features.default()
GPU = DeviceInput.build(
    "gpu.example.com",
    {"model": DeviceAttribute(string="A100"), "other.io/numa": DeviceAttribute(int_value=1)},
    {"memory": DeviceCapacity(value="40Gi")},
)
A = 'device.attributes["gpu.example.com"]'


def selector(expression):
    return compile_selector(expression, features=FEATURES)


@pytest.mark.parametrize(
    ("expression", "attributes", "capacities", "driver", "everything"),
    [
        (f'{A}.model == "x"', {("gpu.example.com", "model")}, set(), False, False),
        (f"has({A}.model)", {("gpu.example.com", "model")}, set(), False, False),
        (f'"model" in {A}', {("gpu.example.com", "model")}, set(), False, False),
        (f"{A}.?model.hasValue()", {("gpu.example.com", "model")}, set(), False, False),
        ("device.attributes.d.m", {("d", "m")}, set(), False, False),
        (
            f'cel.bind(a, {A}, a.x == 1 && a["y"] == 2)',
            {("gpu.example.com", "x"), ("gpu.example.com", "y")},
            set(),
            False,
            False,
        ),
        ('device.capacity["d"].mem == quantity("1")', set(), {("d", "mem")}, False, False),
        ('device.driver == "x"', set(), set(), True, False),
        (f"{A}.size() == 1", set(), set(), False, True),
        (f"{A}.all(k, k != '')", set(), set(), False, True),
        ("device.attributes[device.driver].x == 1", set(), set(), True, True),
        ('"d" in device.attributes', set(), set(), False, True),
        ("true", set(), set(), False, False),
    ],
)
def test_reads_are_found_through_selections_and_bindings(
    expression, attributes, capacities, driver, everything
):
    reads = selector(expression).reads
    assert (reads.attributes, reads.capacities, reads.driver, reads.everything) == (
        attributes,
        capacities,
        driver,
        everything,
    )


def test_projection_tells_apart_what_python_takes_for_equal():
    reads = selector('device.attributes["d"].x == 1').reads
    one = DeviceInput.build("d", {"x": DeviceAttribute(int_value=1)}, {})
    true = DeviceInput.build("d", {"x": DeviceAttribute(bool_value=True)}, {})
    absent = DeviceInput.build("d", {"y": DeviceAttribute(int_value=1)}, {})
    assert len({reads.project(one), reads.project(true), reads.project(absent)}) == 3
    assert reads.project(one) == reads.project(
        DeviceInput.build("e", {"d/x": DeviceAttribute(int_value=1)}, {})
    )


def test_an_attribute_without_a_value_poisons_every_expression():
    device = DeviceInput.build("d", {"x": DeviceAttribute()}, {})
    with pytest.raises(EvaluationError, match="attribute x: unsupported attribute value"):
        selector("true").evaluate(device)


def test_the_false_term_is_named_with_its_values():
    program = selector(f'device.driver == "gpu.example.com" &&\n  {A}.model == "a100" && true')
    term = explain_false(program, GPU)
    assert term is not None
    assert term.text == f'{A}.model == "a100"'
    assert program.expression[term.start : term.end] == term.text
    assert term.values == {"attributes gpu.example.com/model": '"A100"'}
    assert "A100" in term.hint
    assert explain_false(selector("true"), GPU) is None


def test_a_missing_key_comes_with_advice():
    with pytest.raises(EvaluationError, match="^no such key: modle$") as caught:
        selector(f'{A}.modle == "A100"').evaluate(GPU)
    assert "orValue" in caught.value.hinted
    assert "model" in key_hint(str(caught.value), GPU)


def test_failures_are_absorbed_by_either_side_of_a_logical_operator():
    assert selector(f"{A}.missing == 1 || true").evaluate(GPU)
    assert selector(f"true || {A}.missing == 1").evaluate(GPU)
    assert not selector(f"{A}.missing == 1 && false").evaluate(GPU)
    with pytest.raises(EvaluationError):
        selector(f"{A}.missing == 1 && true").evaluate(GPU)


def test_derived_attributes_have_scalar_types():
    program = compile_derived(f'{A}.model + "-x"', features=FEATURES)
    assert program.evaluate_derived(GPU) == DeviceAttribute(string="A100-x")
    with pytest.raises(CompileError, match="must evaluate to a primitive scalar"):
        compile_derived("[1]", features=FEATURES)
    assert compile_derived("[1]", features=FEATURES, stored=True).evaluate_derived(GPU) == DeviceAttribute(
        ints=[1]
    )


def test_admission_gets_an_error_or_a_cost():
    assert check_expression("true", features=FEATURES).error is None
    assert check_expression('["a"].join() == "a"', features=FEATURES).max_cost > 1_000_000
    verdict = check_expression("1", features=FEATURES)
    assert verdict.error == "must evaluate to bool or the unknown type, not int"


def test_the_command_prints_verdict_costs_and_reasons(tmp_path, capsys):
    file = tmp_path / "slice.yaml"
    file.write_text(
        "spec:\n  driver: gpu.example.com\n  devices:\n  - name: gpu-0\n    attributes: {model: {string: A100}}\n"
    )
    assert main(["cel", f'{A}.model == "A100"', "--device", str(file)]) == 0
    assert "gpu-0: match (cost 5)" in capsys.readouterr().out
    assert main(["cel", f"{A}.none == 1", "--device", str(file), "--output", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["devices"][0]["error"] == "no such key: none"
    assert main(["cel", "device.x"]) == 1
    assert "undefined field 'x'" in capsys.readouterr().err
    assert main(["cel", "true", "--device", str(tmp_path / "absent")]) == 2
    assert "absent: No such file" in capsys.readouterr().err


def test_the_filter_answers_each_line(monkeypatch, capsys):
    case = {
        "Name": "n",
        "Expression": "device.allowMultipleAllocations",
        "Driver": "d",
        "Attributes": None,
        "Capacity": None,
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(case) + "\n"))
    assert main(["cel", "--jsonl"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["Name"] == "n"
    assert len(answer["Runs"]) == 8
    assert "undefined field" in answer["Runs"][0]["CompileError"]
    assert answer["Runs"][2] == {
        "ActualCost": 2, "CompileError": "", "ConsumableCapacity": True, "EnvType": "NewExpressions",
        "ListTypeAttributes": False, "Match": False, "MatchError": "", "MaxCost": 2,
    }  # fmt: skip


@pytest.mark.parametrize("line", ["{", "[]", '{"Expression": 1}', '{"Expression": "true", "Runs": [1]}'])
def test_the_filter_refuses_what_is_no_case(line, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(line + "\n"))
    assert main(["cel", "--jsonl"]) == 2
    assert "error: -:1:" in capsys.readouterr().err
