"""Compare dray with upstream on any number of random questions; print what differs.

    python tools/recorders/compare.py cel --count 1000000           # expressions (tests/random_expressions.py)
    python tools/recorders/compare.py texts --count 30000           # functions of difficult texts (tests/text_expressions.py)
    python tools/recorders/compare.py allocator --count 100000      # single worlds (tests/random_cases.py)
    python tools/recorders/compare.py histories --count 100000      # worlds that change (tests/random_histories.py)

A question is known by its seed: `--first` says where to begin, so a range can be divided among processes. Every difference
is one JSON object a line on standard output, the count goes to standard error. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "unit" / "cel")]

from allocation_comparison import check_allocation  # noqa: E402
from allocation_histories import N_STEPS, Follower  # noqa: E402
from random_cases import random_case  # noqa: E402
from random_expressions import random_expression  # noqa: E402
from record import CEL_ANSWER, DEFAULT_VERSION, UpstreamPrograms  # noqa: E402
from test_cel_vectors import answer, build_device  # noqa: E402
from text_expressions import text_expressions  # noqa: E402

CHUNK = 2_000  # questions, or histories, that are asked together
Found = Iterator[dict[str, Any]]


def compare_cel(upstream: UpstreamPrograms, seeds: range) -> Found:
    """Yield the random expressions whose outcome, error text or cost differs."""
    return _compare_expressions(upstream, {seed: random_expression(seed) for seed in seeds})


def compare_texts(upstream: UpstreamPrograms, places: range) -> Found:
    """Yield the same of the expressions about texts; a seed is a place in their list."""
    made = text_expressions()
    return _compare_expressions(upstream, {place: made[place] for place in places if place < len(made)})


def _compare_expressions(upstream: UpstreamPrograms, expressions: dict[int, str]) -> Found:
    fields = json.loads((TESTS / "cases" / "cel" / "device.json").read_text())
    device = build_device(fields)
    cases = [
        {"expression": each, "gates": ["DRAConsumableCapacity"], "device": fields}
        for each in expressions.values()
    ]
    for (seed, expression), theirs in zip(expressions.items(), upstream.ask("cel", cases), strict=True):
        want = tuple(theirs[key] for key in CEL_ANSWER)
        try:
            ours: object = answer(expression, device)
        except Exception as problem:  # a crash is a difference, and must not hide the others
            ours = repr(problem)
        if want[3].startswith("PANIC") and isinstance(ours, tuple):
            continue  # upstream has no answer: cel-go itself panics while compiling
        if _without_drawn(ours) != _without_drawn(want):
            yield {"seed": seed, "expression": expression, "upstream": want, "dray": ours}


def _without_drawn(value: object) -> object:
    """Return an answer without the numbers of type variables: asked twice, upstream itself says others."""
    if isinstance(value, tuple):
        return tuple(map(_without_drawn, value))
    return re.sub(r"\b_var\d+", "_var", value) if isinstance(value, str) else value


def compare_allocator(upstream: UpstreamPrograms, seeds: range) -> Found:
    """Yield the worlds in which the allocation differs."""
    cases = [random_case(seed) for seed in seeds]
    for seed, case, theirs in zip(seeds, cases, upstream.ask("allocator", cases), strict=True):
        if theirs.get("timedOut"):
            continue
        try:
            check_allocation(case, theirs, whole_error=True)
        except Exception as problem:  # also an assertion: both are differences
            yield {"seed": seed, "upstream": theirs, "problem": repr(problem)[:500]}


def compare_histories(upstream: UpstreamPrograms, seeds: range) -> Found:
    """Yield the histories that have a step in which the allocation differs, from upstream's or from dray's own."""
    followers = {seed: Follower(seed) for seed in seeds}
    for step in range(N_STEPS):
        cases = [follower.history.upstream_case() for follower in followers.values()]
        answers = upstream.ask("allocator", cases)
        for (seed, follower), theirs in zip(list(followers.items()), answers, strict=True):
            try:
                follower.check(theirs)
                follower.advance(theirs)
            except Exception as problem:  # also an assertion: both are differences
                del followers[seed]  # what follows would be the same difference again
                yield {"seed": seed, "step": step, "upstream": theirs, "problem": repr(problem)[:500]}


COMPARISONS = {
    "cel": compare_cel,
    "texts": compare_texts,
    "allocator": compare_allocator,
    "histories": compare_histories,
}


def main() -> int:
    """Compare, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=COMPARISONS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    upstream = UpstreamPrograms(os.environ.get("KUBERNETES_VERSION", DEFAULT_VERSION))
    end, n_different, started = options.first + options.count, 0, time.monotonic()
    for first in range(options.first, end, CHUNK):
        seeds = range(first, min(first + CHUNK, end))
        for found in COMPARISONS[options.what](upstream, seeds):
            n_different += 1
            print(json.dumps(found), flush=True)
        print(
            f"\r{seeds.stop - options.first} asked, {n_different} differ, {time.monotonic() - started:.0f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(file=sys.stderr)
    return 1 if n_different else 0


if __name__ == "__main__":
    raise SystemExit(main())
