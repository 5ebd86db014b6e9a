"""Upstream's answers to the reference vectors, case by case: the first solution, the refusals, the errors."""

import json
from typing import Any

import pytest
from allocation_comparison import check_allocation
from shared_data import shared

CASES = [json.loads(line) for line in shared("vectors/allocator/cases.jsonl").read_text().splitlines()]

# The recorder wrote 1000000000000000000000 as "1" (upstream's canonical text loses it), so the input
# of this case is not what upstream was asked: 1 is below the minimum of 2 and must be rounded up.
DAMAGED = {"consumable-capacity-requests-are-not-modified"}


@pytest.mark.parametrize("data", CASES, ids=lambda data: data["name"])
def test_the_answer_is_upstreams(data: dict[str, Any]) -> None:
    if data["name"] in DAMAGED:
        pytest.skip("the recorded input lost a number beyond 1000E")
    check_allocation(
        {**data, "features": data["features"] or []}, data["outcome"]["experimental"], whole_error=False
    )
