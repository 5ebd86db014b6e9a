"""Which single change would let the claims fit: tried, not guessed.

A count of obstacles says how many devices a cause keeps away, not whether the claims fit
without it: a constraint, another request or a second cause may stand behind the first.
So each change is tried: the query is asked again without one selector, without one
constraint, tolerating every taint, or of a node on which nothing is in use. Each trial is
a search with a small budget; one that ends without an answer counts as "does not help", and what takes longer
than the budget of the query allows is not tried.

Answers are remembered per group of equal nodes, because refusals come in thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from dray.allocator.compiled_claims import CompiledClaims
from dray.allocator.pools import NodeView
from dray.allocator.problem import FatalFound
from dray.allocator.query_cache import CachedQuery
from dray.allocator.search import Search, SearchInterrupted
from dray.api.resource import (
    DeviceRequest,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaimSpec,
)

Change = tuple[
    str, int
]  # ("free", 0), ("taint", 0), ("constraint", its number), ("selector", number of the subrequest)
Specs = Sequence[ResourceClaimSpec]

FREE: Change = ("free", 0)
TOLERATE: Change = ("taint", 0)

_STEPS = 2_000
_MOST_TRIALS = 16  # of selectors and of constraints; more would be no help to a reader


def helpful_changes(query: CachedQuery, view: NodeView) -> frozenset[Change]:
    """Return the single changes after each of which the claims would fit on the node."""
    classes = query.node_classes
    # Their group says nothing of the devices of pools that have no free ones; changed claims may look at those.
    key = (classes.group(view), *[classes.pool_class(pool) for pool in view.pools])
    found = query.helpful.get(key)
    if found is None:
        if query.budget.is_over is not None and query.budget.is_over():
            return frozenset()
        found = frozenset(_tried(query, view))
        if query.budget.is_over is None or not query.budget.is_over():
            query.helpful.add(key, found)
    return found


def _tried(query: CachedQuery, view: NodeView) -> Iterator[Change]:
    if _fits(query, view.emptied()):
        yield FREE
    compiled = query.compiled
    for change, specs in _relaxed(compiled):
        relaxed = CachedQuery(compiled.with_specs(specs), query.node_classes, evaluation_budget=query.budget)
        if _fits(relaxed, view):
            yield change


def _fits(query: CachedQuery, view: NodeView) -> bool:
    try:
        return Search(query.problem(view), _STEPS, is_over=query.budget.is_over).run().picks is not None
    except (FatalFound, SearchInterrupted):
        return False


def _relaxed(compiled: CompiledClaims) -> Iterator[tuple[Change, Specs]]:
    yield TOLERATE, _changed(compiled.specs, lambda _, wanted: _tolerating(wanted))
    for number in [subrequest.number for subrequest in compiled.subrequests][:_MOST_TRIALS]:
        specs = _without_selectors(compiled.specs, number)
        if specs != compiled.specs:
            yield ("selector", number), specs
    for number in range(len(compiled.constraints[:_MOST_TRIALS])):
        yield ("constraint", number), _without_constraint(compiled.specs, number)


Wanted = ExactDeviceRequest | DeviceSubRequest


def _changed(specs: Specs, change: Callable[[int, Wanted], Wanted]) -> list[ResourceClaimSpec]:
    """Change what is wanted, subrequest by subrequest, in the order in which a query numbers them."""
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
