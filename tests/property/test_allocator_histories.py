"""Random histories: after every step the allocator answers as upstream's (recorded) and as one built from scratch.

See tests/random_histories.py; `tools/recorders/compare.py histories` asks upstream about any number of others.
"""

from collections import Counter

import pytest
from allocation_histories import N_STEPS, Follower
from random_cases import digest
from recordings import recorded

ROWS = recorded("allocator/histories.jsonl")
PARTS = 5


@pytest.mark.parametrize("part", range(PARTS))
def test_after_every_step_of_a_history_the_answer_is_upstreams(part: int) -> None:
    for row in ROWS[part::PARTS]:
        follower = Follower(row["seed"])
        for step, answer in enumerate(row["answers"]):
            assert digest(follower.history.upstream_case()) == answer["case"], (
                "the generator has changed: run `make record`"
            )
            try:
                follower.check(answer)
            except AssertionError as problem:
                raise AssertionError(f"seed {row['seed']}, step {step}: {problem}") from problem
            follower.advance(answer)


def test_histories_have_every_outcome_often() -> None:
    answers = [answer for row in ROWS for answer in row["answers"]]
    assert {len(row["answers"]) for row in ROWS} == {N_STEPS}
    outcomes = Counter(
        "error" if each.get("error") else "fits" if each.get("results") else "does not fit"
        for each in answers
    )
    assert min(outcomes["fits"], outcomes["error"], outcomes["does not fit"]) > len(answers) / 10, outcomes
