"""Our own cases, one file per rule: given an inventory and claims, expect devices, a refusal or an error.

The format is that of `dray plan` with an `expect` beside it, shortened (see `allocation_cases`).
"""

from typing import Any

import pytest
from allocation_cases import allocation_cases, expanded

from dray.allocator import AllocationError, Plan, Unsatisfied
from dray.allocator.cases import build_allocator, read_case

CASES = allocation_cases()


def test_there_is_a_case_for_every_rule() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize(("name", "document"), CASES, ids=[name for name, _ in CASES])
def test_case(name: str, document: dict[str, Any]) -> None:
    case = read_case(expanded(document))
    allocator = build_allocator(case)
    expect = document["expect"]
    [node] = case.all_nodes()
    error = ""
    answer: Plan | Unsatisfied | None = None
    try:
        answer = allocator.plan(node.metadata.name, case.claims or [])
    except AllocationError as raised:
        error = str(raised)
    if answer is None:
        assert expect.get("error", "no error") in error
        return
    if "steps" in expect:
        assert answer.steps <= expect["steps"]
    if isinstance(answer, Unsatisfied):
        assert "devices" not in expect, answer.reasons
        assert (answer.error or "") == expect.get("error", "")
        causes = {reason.cause for request in answer.reasons for reason in request.reasons}
        assert set(expect.get("causes", [])) <= causes
        return
    assert isinstance(answer, Plan)
    assert "devices" in expect, "expected no allocation"
    found = [
        f"{r.request}={r.pool}/{r.device}"
        for allocation in answer.allocations
        for r in allocation.devices.results
    ]
    assert found == expect["devices"]
    for key, read in READERS.items():
        if key in expect:
            assert [read(allocation) for allocation in answer.allocations] == expect[key]


def _selector(allocation: Any) -> Any:
    if allocation.node_selector is None:
        return None
    [term] = allocation.node_selector.node_selector_terms
    return sorted(
        f"{r.key} {r.operator} {','.join(r.values)}" for r in [*term.match_fields, *term.match_expressions]
    )


READERS: dict[str, Any] = {
    "nodeSelector": _selector,
    "consumed": lambda a: [r.consumed_capacity for r in a.devices.results],
    "shares": lambda a: [r.share_id is not None for r in a.devices.results],
    "admin": lambda a: [bool(r.admin_access) for r in a.devices.results],
    "conditions": lambda a: [r.binding_conditions for r in a.devices.results],
    "skip": lambda a: [r.skip_node_operations for r in a.devices.results],
    "config": lambda a: [f"{c.source} {c.opaque.driver} {','.join(c.requests)}" for c in a.devices.config],
}
