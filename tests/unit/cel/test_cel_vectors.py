"""Selectors against the recorded answers of upstream: outcome, error text and exact costs."""

import json
from pathlib import Path

import msgspec
import pytest
from recordings import recorded
from shared_data import shared

from dray.api.features import Features
from dray.api.resource import DeviceAttribute, DeviceCapacity
from dray.cel import CompileError, DeviceInput, EvaluationError, compile_selector
from dray.cel.codegen import compile_tree
from dray.cel.errors import Fault

CASES = Path(__file__).parents[2] / "cases" / "cel"


def build_device(fields):
    attributes = msgspec.convert(fields["Attributes"] or {}, dict[str, DeviceAttribute])
    capacity = msgspec.convert(fields["Capacity"] or {}, dict[str, DeviceCapacity])
    return DeviceInput.build(fields["Driver"], attributes, capacity, fields["AllowMultipleAllocations"])


def answer(expression, device, features=("DRAConsumableCapacity",), *, stored=False):
    """Return (compile error, max cost, match, error, cost), from the interpreter and the compiled function."""
    try:
        program = compile_selector(expression, features=Features(features), stored=stored)
    except CompileError as error:
        return str(error), 0, False, "", None
    outcome = program.outcome(device)
    try:
        fast, fast_error = program.evaluate(device), ""
    except EvaluationError as error:
        fast, fast_error = None, str(error)
    assert (fast, fast_error) == (outcome.value, outcome.error)
    check_counted(program, device, outcome)
    return "", program.max_cost, outcome.value is True, outcome.error, outcome.cost


def check_counted(program, device, outcome):
    """Check that the compiled function that counts agrees with the interpreter, if it returns."""
    counting = compile_tree(program.tree, counting=True)
    if counting is None or device.poison:
        return
    try:
        value, cost = counting(device, 1_000_000)
    except (Fault, EvaluationError):
        return
    if isinstance(value, bool):
        assert (value, cost) == (outcome.value, outcome.cost), program.expression


def check_recorded(max_cost, n_runs):
    """Check the recorded selectors; of those above a cost only some runs, since they take seconds."""
    lines = shared("vectors/cel/cases.jsonl").read_text().splitlines()
    for case in map(json.loads, lines):
        device = build_device(case)
        is_cheap = all((run["ActualCost"] or 0) <= max_cost for run in case["Runs"])
        for run in case["Runs"] if is_cheap else case["Runs"][:n_runs]:
            gates = [
                gate
                for gate, on in (
                    ("DRAConsumableCapacity", run["ConsumableCapacity"]),
                    ("DRAListTypeAttributes", run["ListTypeAttributes"]),
                )
                if on
            ]
            got = answer(case["Expression"], device, gates, stored=run["EnvType"] == "StoredExpressions")
            want = (run["CompileError"], run["MaxCost"], run["Match"], run["MatchError"], run["ActualCost"])
            assert got == want, case["Name"]
    assert lines


def test_every_recorded_selector_has_upstreams_outcome_and_costs():
    check_recorded(max_cost=100_000, n_runs=1)


@pytest.mark.heavy
def test_recorded_selectors_that_run_into_the_limit_do_so_in_every_environment():
    check_recorded(max_cost=10**9, n_runs=0)


def test_every_extra_selector_has_upstreams_outcome_and_costs():
    extra = json.loads(shared("vectors/cel/extra.json").read_text())
    device = build_device(extra["device"])
    for case in extra["cases"]:
        got = answer(case["Expr"], device)
        assert got[0].startswith(case["Compile"]) and bool(got[0]) == bool(case["Compile"]), case
        assert got[3].startswith(case["Err"]) and bool(got[3]) == bool(case["Err"]), case
        assert (got[1], got[2], got[4]) == (case["Max"], case["Match"], case["Actual"]), case


def test_every_environment_of_gates_has_upstreams_outcome_and_costs():
    fields = json.loads((CASES / "device_with_lists.json").read_text())
    device = build_device(
        {
            "Driver": fields["driver"],
            "Attributes": fields["attributes"],
            "Capacity": fields["capacity"],
            "AllowMultipleAllocations": None,
        }
    )
    for row in recorded("cel/environments.jsonl"):
        got = answer(row["expression"], device, row["gates"], stored=row["stored"])
        want = tuple(row[key] for key in ("compileError", "maxCost", "match", "error", "cost"))
        assert got == want, row["expression"]


@pytest.mark.parametrize("part", range(4))
def test_own_cases_of_every_function_and_operator(part):
    device = build_device(json.loads((CASES / "device.json").read_text()))
    cases = recorded("cel/expressions.jsonl")
    for case in cases[part::4]:
        want = tuple(case[key] for key in ("compileError", "maxCost", "match", "error", "cost"))
        assert answer(case["expression"], device) == want, case["expression"]
    assert len(cases) > 1000


def test_the_list_of_known_deviations_is_true():
    """What is known to differ from upstream still does; a case that agrees belongs to the other file."""
    device = build_device(json.loads((CASES / "device.json").read_text()))
    for case in recorded("cel/deviations.jsonl"):
        want = tuple(case[key] for key in ("compileError", "maxCost", "match", "error", "cost"))
        assert answer(case["expression"], device) != want, case["expression"]


def test_random_loops_have_upstreams_outcome_and_costs():
    attributes = {"i": {"int": 7}, "s": {"string": "text"}, "l": {"ints": [3, 1, 2]}}
    fields = {"Driver": "d", "Attributes": attributes, "Capacity": {}, "AllowMultipleAllocations": None}
    device = build_device(fields)
    lines = (CASES / "loops.jsonl").read_text().splitlines()
    for case in map(json.loads, lines):
        want = ("", case["maxCost"], case["match"], case["error"], case["cost"])
        got = answer(case["expression"], device, ["DRAListTypeAttributes"], stored=True)
        assert got == want, case["expression"]
    assert len(lines) > 200
