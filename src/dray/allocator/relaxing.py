"""Which single change would let the claims fit: tried, not guessed.

A count of obstacles says how many devices a cause keeps away, not whether the claims fit
without it: a constraint, another request or a second cause may stand behind the first.
So each change is tried: the question is asked again without one selector, without one
constraint, tolerating every taint, or of a node on which nothing is in use. Each trial is
a search with a small budget; one that ends without an answer counts as "does not help".

Answers are remembered per group of equal nodes, because refusals come in thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from dray.allocator.pools import NodeView
from dray.allocator.problem import FatalFound
from dray.allocator.requests import Question
from dray.allocator.search import Search
from dray.allocator.verdicts import Asked
from dray.api.resource import (
    DeviceRequest,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaimSpec,
)

Change = tuple[
    str, int
]  # ("free", 0), ("taint", 0), ("constraint", its number), ("selector", number of the wish)
Specs = Sequence[ResourceClaimSpec]

FREE: Change = ("free", 0)
TOLERATE: Change = ("taint", 0)

_STEPS = 2_000
_MOST_KEPT = 10_000
_MOST_TRIALS = 16  # of selectors and of constraints; more would be no help to a reader


def helpful_changes(asked: Asked, view: NodeView) -> frozenset[Change]:
    """Return the single changes after each of which the claims would fit on the node."""
    group = asked.grouping.group(view)
    found = asked.helpful.get(group)
    if found is None:
        if len(asked.helpful) >= _MOST_KEPT:
            asked.helpful.clear()
        found = asked.helpful[group] = frozenset(_tried(asked, view))
    return found


def _tried(asked: Asked, view: NodeView) -> Iterator[Change]:
    if _fits(asked, view.emptied()):
        yield FREE
    question = asked.question
    for change, specs in _relaxed(question):
        if _fits(Asked(question.asking(specs), asked.grouping), view):
            yield change


def _fits(asked: Asked, view: NodeView) -> bool:
    try:
        return Search(asked.problem(view), _STEPS).run().picks is not None
    except FatalFound:
        return False


def _relaxed(question: Question) -> Iterator[tuple[Change, Specs]]:
    yield TOLERATE, _changed(question.specs, lambda _, wanted: _tolerating(wanted))
    for number in [wish.number for wish in question.wishes][:_MOST_TRIALS]:
        specs = _without_selectors(question.specs, number)
        if specs != question.specs:
            yield ("selector", number), specs
    for number in range(len(question.constraints[:_MOST_TRIALS])):
        yield ("constraint", number), _without_constraint(question.specs, number)


Wanted = ExactDeviceRequest | DeviceSubRequest


def _changed(specs: Specs, change: Callable[[int, Wanted], Wanted]) -> list[ResourceClaimSpec]:
    """Change what is wanted, wish by wish, in the order in which a question numbers them."""
    number = 0
    found = []
    for spec in specs:
        requests: list[DeviceRequest] = []
        for request in spec.devices.requests:
            if request.first_available:
                alternatives = []
                for wanted in request.first_available:
                    alternatives.append(change(number, wanted))
                    number += 1
                requests.append(msgspec.structs.replace(request, first_available=alternatives))
            else:
                exactly = change(number, request.exactly or ExactDeviceRequest())
                requests.append(msgspec.structs.replace(request, exactly=exactly))
                number += 1
        devices = msgspec.structs.replace(spec.devices, requests=requests)
        found.append(msgspec.structs.replace(spec, devices=devices))
    return found


def _tolerating(wanted: Wanted) -> Wanted:
    everything = DeviceToleration(operator="Exists")
    return msgspec.structs.replace(wanted, tolerations=[*wanted.tolerations, everything])


def _without_selectors(specs: Specs, number: int) -> list[ResourceClaimSpec]:
    def change(here: int, wanted: Wanted) -> Wanted:
        return msgspec.structs.replace(wanted, selectors=[]) if here == number else wanted

    return _changed(specs, change)


def _without_constraint(specs: Specs, number: int) -> list[ResourceClaimSpec]:
    found = []
    seen = 0
    for spec in specs:
        constraints = spec.devices.constraints
        kept = [each for index, each in enumerate(constraints) if seen + index != number]
        seen += len(constraints)
        found.append(
            msgspec.structs.replace(spec, devices=msgspec.structs.replace(spec.devices, constraints=kept))
        )
    return found
