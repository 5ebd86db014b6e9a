"""Laws of the ledger: entries are undone in any order, and nothing remains."""

import random

from hypothesis import given
from hypothesis import strategies as st

from dray.api.resource import AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult
from dray.devices import DeviceId, DeviceUse, Ledger, Undo, holds_of

RESULTS = st.builds(
    DeviceRequestAllocationResult,
    driver=st.sampled_from(["d1", "d2"]),
    pool=st.sampled_from(["p1", "p2"]),
    device=st.sampled_from(["a", "b"]),
    admin_access=st.sampled_from([None, None, True]),
    share_id=st.sampled_from([None, "s1", "s2"]),
    consumed_capacity=st.sampled_from([None, {"mem": "1Gi"}, {"mem": "2Gi", "cores": "500m"}]),
)
ALLOCATIONS = st.lists(RESULTS, min_size=1, max_size=4).map(
    lambda results: AllocationResult(devices=DeviceAllocationResult(results=results))
)


def contents(ledger: Ledger) -> object:
    return {
        (pool, name): (dict(use.holds_by_owner), use.is_whole, use.is_shared, dict(use.consumed))
        for pool, devices in ledger.pools.items()
        for name, use in devices.items()
    }


def take(ledger: Ledger, owner: str, allocation: AllocationResult, *, with_shares: bool = True) -> Undo:
    return ledger.take(owner, holds_of(allocation.devices.results, with_shares=with_shares))


@given(st.lists(ALLOCATIONS, max_size=6), st.integers(), st.booleans())
def test_once_everything_is_undone_the_ledger_is_empty(
    allocations: list[AllocationResult], seed: int, shares_count: bool
) -> None:
    ledger = Ledger()
    undos = [take(ledger, f"owner-{i}", allocation) for i, allocation in enumerate(allocations)]
    random.Random(seed).shuffle(undos)
    for undo in undos:
        undo()
        undo()  # a second call does nothing
    assert ledger.pools == {}


@given(ALLOCATIONS, ALLOCATIONS, ALLOCATIONS)
def test_an_undo_strikes_out_exactly_its_entry(
    first: AllocationResult, second: AllocationResult, third: AllocationResult
) -> None:
    ledger, other = Ledger(), Ledger()
    take(ledger, "a", first)
    undo = take(ledger, "b", second)
    take(ledger, "c", third)
    undo()
    take(other, "a", first)
    take(other, "c", third)
    assert contents(ledger) == contents(other)


@given(st.lists(ALLOCATIONS, max_size=5))
def test_the_listener_hears_the_state_that_the_ledger_holds(allocations: list[AllocationResult]) -> None:
    heard: dict[DeviceId, DeviceUse | None] = {}
    ledger = Ledger(
        on_change=lambda pool, device, use: heard.__setitem__(DeviceId(*pool, device), use),
    )
    undos = [take(ledger, f"owner-{i}", allocation) for i, allocation in enumerate(allocations)]
    for undo in undos[::2]:
        undo()
    assert all(ledger.use_of(device) is use for device, use in heard.items())


def test_admin_access_is_not_use() -> None:
    ledger = Ledger()
    result = DeviceRequestAllocationResult(driver="d", pool="p", device="x", admin_access=True)
    take(ledger, "a", AllocationResult(devices=DeviceAllocationResult(results=[result])))
    assert ledger.pools == {}
