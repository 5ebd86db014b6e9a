"""Our own cases and random ones against the recorded answers of upstream's allocator (tools/recorders)."""

from collections import Counter

import pytest
from allocation_cases import allocation_cases, expanded
from allocation_comparison import check_allocation
from random_cases import digest, random_case
from recordings import recorded

OWN = {row["name"]: row for row in recorded("allocator/cases.jsonl")}
RANDOM = recorded("allocator/random.jsonl")
PARTS = 4


def test_every_own_case_that_upstream_can_answer_is_recorded() -> None:
    others = {"taintRules", "allocatedClaims", "nodes"}
    names = {name for name, document in allocation_cases() if others.isdisjoint(document)}
    assert names == set(OWN), "cases were added or renamed: run `make record`"


@pytest.mark.parametrize(("name", "document"), allocation_cases(), ids=lambda each: str(each)[:60])
def test_own_cases_have_upstreams_answer(name: str, document: dict) -> None:
    if name in OWN:
        check_allocation(expanded(document), OWN[name], whole_error=True)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_cases_have_upstreams_answer(part: int) -> None:
    for row in RANDOM[part::PARTS]:
        case = random_case(row["seed"])
        assert digest(case) == row["case"], "the generator has changed: run `make record`"
        try:
            check_allocation(case, row, whole_error=True)
        except AssertionError as problem:
            raise AssertionError(f"seed {row['seed']}: {problem}") from problem


def test_random_cases_have_every_outcome_often() -> None:
    outcomes = Counter(
        "error" if row.get("error") else "fits" if row.get("results") else "does not fit" for row in RANDOM
    )
    assert min(outcomes["fits"], outcomes["error"], outcomes["does not fit"]) > 300, outcomes
