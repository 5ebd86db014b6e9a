"""The independent checker catches what it is there for, and says nothing of what is right."""

import copy

import pytest
from checker import Inventory, Ledger, amount, check_state


def world():
    device = {"name": "g0", "attributes": {"root": {"string": "r0"}}}
    other = {"name": "g1", "attributes": {"root": {"string": "r1"}}}
    shared = {"name": "s0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}}
    draws = [{"counterSet": "set", "counters": {"c": {"value": "1"}}}]
    parts = [{"name": name, "consumesCounters": draws} for name in ("p0", "p1")]
    spec = {"driver": "d", "nodeName": "n", "pool": {"name": "p", "generation": 2, "resourceSliceCount": 2}}
    return {
        "slices": [
            {"spec": {**spec, "devices": [device, other, shared, *parts]}},
            {"spec": {**spec, "sharedCounters": [{"name": "set", "counters": {"c": {"value": "1"}}}]}},
        ],
        "classes": [{"metadata": {"name": "gpu"}, "spec": {}}],
        "nodes": [{"metadata": {"name": "n"}}, {"metadata": {"name": "m"}}],
        "claims": [],
        "pods": [],
    }


def claim(name, *devices, count=None, constraint=None, **result):
    results = [{"request": "req", "driver": "d", "pool": "p", "device": each, **result} for each in devices]
    wanted = {
        "requests": [{"name": "req", "exactly": {"deviceClassName": "gpu", "count": count or len(devices)}}]
    }
    if constraint:
        wanted["constraints"] = [constraint]
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"devices": wanted},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"uid": f"pod-{name}", "name": "x"}],
        },
    }


def pod(name, claim_name, node="n"):
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"pod-{claim_name}"},
        "spec": {"nodeName": node, "resourceClaims": [{"name": "c", "resourceClaimName": claim_name}]},
        "status": {},
    }


def problems(*claims, pods=(), **changes):
    state = world()
    state["claims"], state["pods"] = list(claims), list(pods)
    return check_state(**{**state, **changes})


def test_what_is_right_is_not_complained_about():
    shares = [
        claim("s1", "s0", shareID="a", consumedCapacity={"memory": "5Gi"}),
        claim("s2", "s0", shareID="b", consumedCapacity={"memory": "5Gi"}),
    ]
    assert problems(claim("a", "g0"), claim("b", "g1"), claim("c", "p0"), *shares, pods=[pod("x", "a")]) == []


def test_admin_access_counts_for_nothing():
    assert problems(claim("a", "g0"), claim("b", "g0", adminAccess=True)) == []


@pytest.mark.parametrize(
    ("claims", "pods", "words"),
    [
        ([claim("a", "g0"), claim("b", "g0")], [], "already held"),
        ([claim("a", "p0"), claim("b", "p1")], [], "counter"),
        (
            [
                claim("a", "s0", shareID="x", consumedCapacity={"memory": "6Gi"}),
                claim("b", "s0", shareID="y", consumedCapacity={"memory": "5Gi"}),
            ],
            [],
            "more than there is",
        ),
        ([claim("a", "s0", shareID="x"), claim("b", "s0", shareID="x")], [], "used twice"),
        ([claim("a", "s0")], [], "share id"),
        ([claim("a", "nope")], [], "not published"),
        ([claim("a", "g0", count=2)], [], "1 devices instead of 2"),
        ([claim("a", "g0", "g1", constraint={"matchAttribute": "d/root"})], [], "does not hold"),
        ([claim("a", "g0")], [pod("x", "a", node="m")], "cannot be used"),
        ([], [pod("x", "missing")], "missing or not allocated"),
    ],
)
def test_what_is_wrong_is_found(claims, pods, words):
    assert any(words in each for each in problems(*claims, pods=pods))


def test_a_pod_without_a_reservation_is_found():
    lonely = claim("a", "g0")
    lonely["status"]["reservedFor"] = []
    assert "not reserved" in problems(lonely, pods=[pod("x", "a")])[0]


def test_selectors_are_judged_by_the_function_given():
    picky = claim("a", "g0")
    picky["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "never"}}]
    assert problems(picky, matches=lambda expression, driver, device: expression != "never")


def test_the_ledger_follows_releases():
    ledger = Ledger(Inventory(world()["slices"]))
    first, second = claim("a", "p0"), claim("b", "p1")
    assert ledger.see(first) == []
    assert ledger.see(copy.deepcopy(first)) == []
    assert ledger.see(first, is_gone=True) == []
    assert ledger.see(second) == []
    assert ledger.see(first) != []


def test_a_claim_that_names_a_device_twice_lets_go_of_it_once():
    ledger = Ledger(Inventory(world()["slices"]))
    assert "already held" in " ".join(ledger.see(claim("a", "p0", "p0")))
    ledger.see(claim("a", "p0", "p0"), is_gone=True)
    assert ledger.see(claim("a", "p0")) == []
    assert ledger.see(claim("b", "p1")) != []


@pytest.mark.parametrize(
    ("first", "second", "is_right"),
    [
        ([], [], True),
        (["x"], ["x", "y"], True),
        (["x"], ["y"], False),
        (["x"], [], False),
        ([], ["x"], False),
    ],
)
def test_devices_of_one_counter_set_have_a_group_in_common(first, second, is_right):
    state = world()
    for device, groups in zip(state["slices"][0]["spec"]["devices"][-2:], (first, second), strict=True):
        draws = {"counterSet": "set", "counters": {"c": {"value": "0"}}, "compatibilityGroups": groups}
        device["consumesCounters"] = [draws]
    ledger = Ledger(Inventory(state["slices"]))
    assert ledger.see(claim("a", "p0")) == []
    assert (ledger.see(claim("b", "p1")) == []) == is_right
    assert ledger.see(claim("a", "p0"), is_gone=True) == []
    assert ledger.see(claim("b", "p1")) == []


def test_a_capacity_that_the_device_has_not_is_none():
    odd = claim("a", "s0", shareID="x", consumedCapacity={"bandwidth": "1"})
    assert "more than there is" in " ".join(problems(odd))


def test_amounts_are_exact():
    assert amount("1.5Gi") == 3 * 2**29
    assert amount("500m") * 2 == 1
    assert amount(7) == 7
