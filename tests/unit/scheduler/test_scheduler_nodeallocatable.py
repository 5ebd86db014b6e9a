"""Devices that stand for node resources, or cost some."""

import msgspec
from scheduler_builders import allocated, claim, container, pod

from dray.api.resource import AllocationResult, Device
from dray.scheduler import extra_in_status, footprint


def held(wanted, *results):
    body = {
        "devices": {"results": [{"request": "req", "driver": "d", "pool": "p", **each} for each in results]}
    }
    return wanted, msgspec.convert(body, AllocationResult)


def devices(**terms):
    made = {
        name: msgspec.convert({"name": name, "nodeAllocatableResources": each}, Device)
        for name, each in terms.items()
    }
    return lambda result: made.get(result.device)


def user(*names, **spec):
    containers = [
        {**container(cpu="1", name=name), "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "c"}]}}
        for name in names
    ]
    return pod("p", containers=containers, resource_claims=[{"name": "c", "resourceClaimName": "c"}], **spec)


def test_a_fixed_amount_per_device():
    found = footprint(
        user("x"),
        [held(claim("c"), {"device": "a"}, {"device": "b"})],
        devices(
            a={"cpu": {"mapping": {"deviceMultiplier": "2"}}},
            b={"cpu": {"mapping": {"deviceMultiplier": "500m"}}},
        ),
    )
    assert found.extra == (("cpu", 2500),)
    assert found.statuses == (
        {
            "resourceClaimName": "c",
            "containers": ["x"],
            "mapping": [{"name": "cpu", "quantity": "2500m"}],
            "overhead": [],
        },
    )


def test_a_consumed_capacity_times_a_factor():
    terms = {"memory": {"mapping": {"capacityKey": "size", "capacityMultiplier": "2"}}}
    result = {"device": "a", "shareID": "s", "consumedCapacity": {"size": "1Gi"}}
    assert footprint(user("x"), [held(claim("c"), result)], devices(a=terms)).extra == (("memory", 2 << 30),)


def test_overhead_counts_per_pod_and_per_container():
    terms = {"memory": {"overhead": {"perPod": "100", "perContainer": "10"}}}
    found = footprint(user("x", "y", "z"), [held(claim("c"), {"device": "a"})], devices(a=terms))
    assert found.extra == (("memory", 130),)
    assert found.statuses[0]["overhead"] == [{"name": "memory", "perPod": "100", "perContainer": "10"}]


def test_what_the_status_says_is_read_back_the_same():
    terms = {
        "cpu": {"mapping": {"deviceMultiplier": "2"}, "overhead": {"perPod": "1", "perContainer": "500m"}}
    }
    wanted = user("x", "y")
    found = footprint(wanted, [held(claim("c"), {"device": "a"})], devices(a=terms))
    status = msgspec.structs.replace(
        wanted.status, node_allocatable_resource_claim_statuses=list(found.statuses)
    )
    assert extra_in_status(msgspec.structs.replace(wanted, status=status)) == found.extra == (("cpu", 4000),)


def test_pod_level_requests_are_a_lid():
    terms = devices(a={"cpu": {"mapping": {"deviceMultiplier": "2"}}})
    enough = user("x", resources={"requests": {"cpu": "3"}})
    assert footprint(enough, [held(claim("c"), {"device": "a"})], terms).extra == ()
    tight = user("x", resources={"requests": {"cpu": "2"}})
    assert "does not cover" in footprint(tight, [held(claim("c"), {"device": "a"})], terms).problem


def test_a_claim_that_stands_for_node_resources_is_not_shared():
    terms = devices(a={"cpu": {"mapping": {"deviceMultiplier": "2"}}})
    wanted, allocation = held(claim("c"), {"device": "a"})
    shared = allocated(wanted, allocation, "uid-other")
    assert "reserved for another pod" in footprint(user("x"), [(shared, allocation)], terms).problem
    own = allocated(wanted, allocation, "uid-p")
    assert footprint(user("x"), [(own, allocation)], terms).extra == (("cpu", 2000),)


def test_plain_devices_cost_nothing():
    assert (
        footprint(user("x"), [held(claim("c"), {"device": "a"})], lambda _: Device(name="a")).statuses == ()
    )
