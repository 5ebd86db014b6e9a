"""Compare allocations with upstream's: what must be equal, and what may differ."""

import json
from typing import Any

import msgspec

from dray.allocator import AllocationError, Allocator, Plan, Unsatisfied
from dray.allocator.cases import build_allocator, read_case
from dray.api.quantity import parse_quantity
from dray.api.resource import ResourceClaim


def comparable_selector(selector: dict[str, Any] | None) -> object:
    """Return a node selector so that the order of terms and requirements does not matter."""
    if not selector:
        return None
    return sorted(
        json.dumps(
            [
                kind,
                sorted(
                    (r["key"], r["operator"], sorted(r.get("values") or [])) for r in term.get(kind) or []
                ),
            ]
        )
        for term in selector["nodeSelectorTerms"]
        for kind in ("matchExpressions", "matchFields")
    )


def comparable_result(result: dict[str, Any]) -> str:
    """Return the result for one device as text; share ids are random and compare by presence."""
    result = dict(result)
    if "shareID" in result:
        result["shareID"] = "some"
    if "consumedCapacity" in result:
        result["consumedCapacity"] = {
            name: str(parse_quantity(value)) for name, value in result["consumedCapacity"].items()
        }
    if "tolerations" in result:
        # Equal is the default of the API: written or not, it is the same.
        result["tolerations"] = [
            {key: value for key, value in each.items() if (key, value) != ("operator", "Equal")}
            for each in result["tolerations"]
        ]
    return json.dumps({key: value for key, value in result.items() if value}, sort_keys=True)


def comparable(allocation: dict[str, Any]) -> object:
    """Return an allocation in a form that is equal where upstream's is the same."""
    devices = allocation.get("devices") or {}
    return (
        sorted(comparable_result(result) for result in devices.get("results") or []),
        [json.dumps(config, sort_keys=True) for config in devices.get("config") or []],
        comparable_selector(allocation.get("nodeSelector")),
    )


def check_allocation(data: dict[str, Any], expected: dict[str, Any], *, whole_error: bool) -> None:
    """Fail unless dray's answer to a case is the expected one of upstream.

    Of error texts the part after the last colon must be in ours; with `whole_error` they must be equal.
    """
    case = read_case(data)
    [node] = case.all_nodes()
    check_answer(build_allocator(case), node.metadata.name, case.claims or [], expected, whole_error)


def check_answer(
    allocator: Allocator,
    node: str,
    claims: list[ResourceClaim],
    expected: dict[str, Any],
    whole_error: bool = True,
) -> None:
    """Fail unless an allocator's answer to one question is the expected one of upstream."""
    error = None
    answer: Plan | Unsatisfied | None = None
    try:
        answer = allocator.plan(node, claims)
    except AllocationError as raised:
        error = str(raised)
    if isinstance(answer, Unsatisfied):
        error = answer.error
        assert answer.reasons is not None
    if expected.get("error"):
        assert error is not None
        if whole_error:
            assert error == expected["error"]
        else:
            assert expected["error"].rsplit(": ", 1)[-1] in error
        return
    assert error is None
    if not expected.get("results"):
        # Nothing asked for, nothing given: recorded like a refusal.
        assert isinstance(answer, Unsatisfied) or not claims
        return
    assert isinstance(answer, Plan)
    assert [comparable(a) for a in plain(answer)] == [comparable(a) for a in expected["results"]]


def plain(answer: Plan) -> list[dict[str, Any]]:
    """Return the allocations of a plan as JSON objects."""
    return [json.loads(msgspec.json.encode(allocation)) for allocation in answer.allocations]


def told(allocator: Allocator, node: str, claims: list[ResourceClaim]) -> object:
    """Return an allocator's answer in a form that is equal where it is the same, refusals with their reasons."""
    try:
        answer = allocator.plan(node, claims)
    except AllocationError as raised:
        return str(raised)
    if isinstance(answer, Plan):
        return [comparable(a) for a in plain(answer)]
    return (answer.error, answer.gave_up, answer.reasons)
