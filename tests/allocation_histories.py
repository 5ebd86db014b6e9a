"""Follow a random history (tests/random_histories.py) with one allocator, and compare it after every step.

The allocator under test sees changes only. Its answers must be those of an allocator that is built from scratch for
the same state, and upstream's. Between two comparisons it is asked the other questions as well, so that there is
something outdated in its caches to be found.

An answer that fits is committed as production does it: entered while it is in flight, confirmed by the claims that
come back, then the first entry is undone. What is committed is upstream's answer, so that a recording of a history
does not depend on dray.
"""

from __future__ import annotations

from typing import Any

import msgspec
from allocation_comparison import check_answer, told
from random_histories import NODES, Change, History

from dray.allocator import AllocationError, Allocator
from dray.allocator.cases import build_allocator, features_of, read_case
from dray.api.core import Node
from dray.api.resource import AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice

N_STEPS = 8
COMMITS = 0.4  # of the answers that fit


class Follower:
    """A history and the allocator that follows it."""

    def __init__(self, seed: int) -> None:
        self.history = History(seed)
        self.allocator = Allocator(features_of(self.history.gates))
        self._questions = [
            [msgspec.convert(claim, ResourceClaim) for claim in claims] for claims in self.history.questions
        ]
        self._apply(self.history.start())

    def check(self, upstream: dict[str, Any]) -> None:
        """Fail unless the answer to the question of this step is upstream's, and that of a fresh allocator."""
        node, raw = self.history.question
        claims = self._questions[self.history.questions.index(raw)]
        fresh = build_allocator(read_case(self.history.case()))
        assert told(self.allocator, node, claims) == told(fresh, node, claims), "not as from scratch"
        if not upstream.get("timedOut"):
            check_answer(self.allocator, node, claims, upstream)

    def advance(self, upstream: dict[str, Any]) -> None:
        """Commit the answer or not, ask everything, and go to the next step."""
        history = self.history
        results = upstream.get("results")
        if results and history.chance(COMMITS):
            allocations = [msgspec.convert(each, AllocationResult) for each in results]
            undos = [self.allocator.take("in flight", each) for each in allocations]
            if history.chance(0.8):  # else somebody else was faster: nothing of it is left
                self._apply(history.commit(results))
            for undo in undos:
                undo()
        for claims in self._questions:
            for name in NODES:
                try:
                    self.allocator.plan(name, claims)
                except AllocationError:
                    continue
        self._apply(history.step())

    def _apply(self, changes: list[Change]) -> None:
        allocator = self.allocator
        for kind, value in changes:
            match kind:
                case "slice":
                    allocator.set_slice(msgspec.convert(value, ResourceSlice))
                case "no slice":
                    allocator.delete_slice(value)
                case "class":
                    allocator.set_class(msgspec.convert(value, DeviceClass))
                case "no class":
                    allocator.delete_class(value)
                case "rule":
                    allocator.set_taint_rule(msgspec.convert(value, DeviceTaintRule))
                case "no rule":
                    allocator.delete_taint_rule(value)
                case "node":
                    allocator.set_node(msgspec.convert(value, Node))
                case "claim":
                    allocator.set_claim(msgspec.convert(value, ResourceClaim))
                case "no claim":
                    allocator.delete_claim(value)
                case _:
                    raise ValueError(kind)
