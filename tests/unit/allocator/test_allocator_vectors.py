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

# The vectors are older than v1.37.1 and were made with a stub for the lister of classes: these two texts
# have another end in a real scheduler of v1.37.1 (see the recordings).
OTHER_ENDS = {
    "exceeds the claim limit of 32": "exceeds the claim limit of 32",
    "could not retrieve device class": "not found",
}


def expected_answer(outcome: dict[str, Any]) -> dict[str, Any]:
    for part, end in OTHER_ENDS.items():
        if part in outcome.get("error", ""):
            return {"error": end}
    return outcome


@pytest.mark.parametrize("data", CASES, ids=lambda data: data["name"])
def test_the_answer_is_upstreams(data: dict[str, Any]) -> None:
    if data["name"] in DAMAGED:
        pytest.skip("the recorded input lost a number beyond 1000E")
    check_allocation(
        {**data, "features": data["features"] or []},
        expected_answer(data["outcome"]["experimental"]),
        whole_error=False,
    )
