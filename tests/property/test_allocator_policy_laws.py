"""Policies on random inventories: the same claims fit as with first-fit, and what is chosen obeys every rule.

The rules are those of the naive allocator, asked device by device about the choice.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from naive_allocator import Error, NaiveAllocator, NaiveInventory, State, TooBig, subrequests_of
from test_allocator_against_naive import build

from dray.allocator import POLICIES, AllocationError, Allocator, Plan, Policy, Unsatisfied
from dray.api.resource import AllocationResult, ResourceClaim

CHOOSING = [policy for policy in POLICIES.values() if policy.device is not None]


def answer(
    allocator: Allocator, claims: list[ResourceClaim], policy: Policy | None
) -> Plan | Unsatisfied | str:
    try:
        return allocator.plan("n1", claims, policy=policy)
    except AllocationError as error:
        return str(error)


def assert_valid(
    naive: NaiveInventory, claims: list[ResourceClaim], allocations: tuple[AllocationResult, ...]
) -> None:
    """Take the chosen devices one after the other; the naive allocator must agree with each."""
    judge = NaiveAllocator(naive, claims)
    judge.allocate()  # also finds the rows of "all devices"
    devices = {found.id: found for pool in naive.pools for found in pool.devices}
    state: State | None = State()
    for index, (claim, allocation) in enumerate(zip(claims, allocations, strict=True)):
        taken: dict[str, int] = {}
        subrequests = _subrequests(claim)
        for result in allocation.devices.results:
            subrequest, _ = subrequests[result.request]
            found = devices[result.driver, result.pool, result.device]
            assert judge._selectable(subrequest, found)
            assert state is not None and not judge._in_use(index, subrequest, found, state)
            state = judge._take(index, subrequest, result.request, found, state, must=False)
            assert state is not None, f"{result.device} must not be taken"
            taken[result.request] = taken.get(result.request, 0) + 1
        for number, request in enumerate(claim.spec.devices.requests):
            [name] = [name for name in taken if name.partition("/")[0] == request.name]
            subrequest, sub_index = subrequests[name]
            row = judge.all_rows.get((index, number, sub_index))
            assert taken[name] == (subrequest.count if row is None else len(row))


def _subrequests(claim: ResourceClaim) -> dict[str, tuple[Any, int]]:
    return {
        f"{request.name}/{subrequest.name}" if request.first_available else request.name: (subrequest, number)
        for request in claim.spec.devices.requests
        for number, subrequest in enumerate(subrequests_of(request))
    }


def check(seed: int) -> tuple[bool, bool]:
    """Return whether the claims fit, and whether some policy chose other devices than first-fit."""
    allocator, naive, claims = build(seed)
    plain = answer(allocator, claims, None)
    differs = False
    for policy in CHOOSING:
        found = answer(allocator, claims, policy)
        if isinstance(plain, str):
            assert found == plain
            continue
        assert isinstance(found, Plan) == isinstance(plain, Plan), policy.name
        if not isinstance(found, Plan) or not isinstance(plain, Plan):
            continue
        try:
            assert_valid(naive, claims, found.allocations)
        except (TooBig, Error):
            continue  # the judge's own limits; first-fit has its own test
        differs |= _devices(found) != _devices(plain)
    return isinstance(plain, Plan), differs


def _devices(plan: Plan) -> list[list[str]]:
    return [[result.device for result in each.devices.results] for each in plan.allocations]


def run_many(seeds: range) -> tuple[int, int]:
    fits = differing = 0
    for seed in seeds:
        try:
            fit, differs = check(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        fits += fit
        differing += differs
    return fits, differing


def test_policies_change_which_devices_are_taken_and_nothing_else() -> None:
    fits, differing = run_many(range(700))
    # The comparison is worth something only if policies often choose differently.
    assert fits > 80 and differing > 30, (fits, differing)


@pytest.mark.heavy
def test_policies_keep_the_rules_on_fifty_thousand_worlds() -> None:
    start = int(os.environ.get("DRAY_SEED", "10000"))
    fits, differing = run_many(range(start, start + 50_000))
    assert fits > 5_000 and differing > 2_000, (fits, differing)
