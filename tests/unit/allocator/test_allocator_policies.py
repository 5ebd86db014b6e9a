"""Which devices and nodes each policy takes, on hardware small enough to see why."""

from __future__ import annotations

import msgspec
import pytest

from dray.allocator import Allocator, Demand, Plan, policy_named
from dray.api.core import Node
from dray.api.meta import ObjectMeta
from dray.api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice

Json = dict[str, object]

# The placements of an A100 that matter here: (name, compute slices, memory slices it covers).
PLACEMENTS = [
    *[(f"1g-{i}", 1, [i]) for i in range(7)],
    *[(f"2g-{i}", 2, [i, i + 1]) for i in (0, 2, 4)],
    *[(f"3g-{i}", 3, list(range(i, i + 4))) for i in (0, 4)],
    ("7g-0", 7, list(range(8))),
]


def one_node(devices: list[Json], counters: list[Json] | None = None, name: str = "n") -> Allocator:
    allocator = Allocator()
    add_node(allocator, devices, counters, name)
    allocator.set_class(DeviceClass(metadata=ObjectMeta(name="gpu")))
    return allocator


def add_node(
    allocator: Allocator, devices: list[Json], counters: list[Json] | None = None, name: str = "n"
) -> None:
    allocator.set_node(Node(metadata=ObjectMeta(name=name)))
    parts = [{"devices": devices}, *([{"sharedCounters": counters}] if counters else [])]
    for number, part in enumerate(parts):
        pool = {"name": name, "generation": 1, "resourceSliceCount": len(parts)}
        spec = {"driver": "d", "nodeName": name, "pool": pool, **part}
        allocator.set_slice(
            msgspec.convert({"metadata": {"name": f"{name}-{number}"}, "spec": spec}, ResourceSlice)
        )


def claim(count: int = 1, milli: int = 0, name: str = "", request: str = "r") -> ResourceClaim:
    exactly: Json = {"deviceClassName": "gpu", "count": count, "allocationMode": "ExactCount"}
    if milli:
        exactly["capacity"] = {"requests": {"gpu": f"{milli}m"}}
    if name:
        exactly["selectors"] = [{"cel": {"expression": f"device.attributes['d'].profile == '{name}'"}}]
    spec = {"devices": {"requests": [{"name": request, "exactly": exactly}]}}
    return msgspec.convert({"metadata": {"name": "c"}, "spec": spec}, ResourceClaim)


def chosen(allocator: Allocator, wanted: ResourceClaim, policy: str, node: str = "n") -> list[str]:
    plan = allocator.plan(node, [wanted], policy=policy_named(policy))
    assert isinstance(plan, Plan)
    return [result.device for result in plan.allocations[0].devices.results]


def use(allocator: Allocator, *devices: str, milli: int = 0, node: str = "n") -> None:
    results = [
        {"request": "r", "driver": "d", "pool": node, "device": device}
        | ({"shareID": f"s-{number}", "consumedCapacity": {"gpu": f"{milli}m"}} if milli else {})
        for number, device in enumerate(devices)
    ]
    allocator.take("other", msgspec.convert({"devices": {"results": results}}, AllocationResult))


def shared(*names: str) -> list[Json]:
    return [
        {"name": name, "allowMultipleAllocations": True, "capacity": {"gpu": {"value": "1"}}}
        for name in names
    ]


def mig(*gpus: str) -> tuple[list[Json], list[Json]]:
    devices = [
        {
            "name": f"{gpu}-{name}",
            "attributes": {"profile": {"string": name[:2]}},
            "consumesCounters": [
                {
                    "counterSet": gpu,
                    "counters": {
                        "compute": {"value": compute},
                        **{f"slice-{s}": {"value": 1} for s in slices},
                    },
                }
            ],
        }
        for gpu in gpus
        for name, compute, slices in PLACEMENTS
    ]
    counters = [
        {
            "name": gpu,
            "counters": {"compute": {"value": 7}, **{f"slice-{s}": {"value": 1} for s in range(8)}},
        }
        for gpu in gpus
    ]
    return devices, counters


@pytest.mark.parametrize(
    ("policy", "device"), [("first-fit", "g0"), ("pack", "g2"), ("spread", "g0"), ("frag", "g2")]
)
def test_a_share_goes_where_the_policy_says(policy: str, device: str) -> None:
    allocator = one_node(shared("g0", "g1", "g2", "g3"))
    use(allocator, "g1", milli=300)
    use(allocator, "g2", milli=500)
    use(allocator, "g3", milli=800)
    assert chosen(allocator, claim(milli=500), policy) == [device]


def test_spread_takes_the_emptiest_devices() -> None:
    allocator = one_node(shared("g0", "g1", "g2"))
    use(allocator, "g0", milli=500)
    use(allocator, "g1", milli=100)
    assert chosen(allocator, claim(2, milli=250), "spread") == ["g2", "g1"]


def test_pack_cuts_a_gpu_that_is_cut_already() -> None:
    allocator = one_node(*mig("a", "b"))
    use(allocator, "b-1g-0")
    assert chosen(allocator, claim(name="1g"), "first-fit") == ["a-1g-0"]
    assert chosen(allocator, claim(name="1g"), "pack") == ["b-1g-1"]
    assert chosen(allocator, claim(name="1g"), "spread") == ["a-1g-6"], "the slot that no 2g could use"


def test_frag_takes_the_placement_that_destroys_least() -> None:
    allocator = one_node(*mig("a", "b"))
    # Slot 6 is in no 2g placement; the other slots would cost one.
    assert chosen(allocator, claim(name="1g"), "frag") == ["a-1g-6"]
    use(allocator, "b-1g-6")
    # The second GPU has lost its whole profile and a 3g; its slots cost less than a fresh GPU.
    assert chosen(allocator, claim(name="1g"), "frag")[0].startswith("b-1g-")
    # A 3g at the lower half leaves the other half of the fresh GPU; on the cut one it fits there only.
    assert chosen(allocator, claim(name="3g"), "frag") == ["b-3g-0"]


@pytest.mark.parametrize(("policy", "pairs"), [("first-fit", 2), ("frag", 3)])
def test_frag_leaves_room_for_more_large_profiles_than_first_fit(policy: str, pairs: int) -> None:
    allocator = one_node(*mig("a"))
    use(allocator, *chosen(allocator, claim(name="1g"), policy))
    placed = 0
    while isinstance(allocator.plan("n", [claim(name="2g")]), Plan):
        use(allocator, *chosen(allocator, claim(name="2g"), policy))
        placed += 1
    assert placed == pairs


def topological(*places: tuple[int, int]) -> list[Json]:
    return [
        {
            "name": f"g{number}",
            "attributes": {
                "resource.kubernetes.io/numaNode": {"int": numa},
                "resource.kubernetes.io/pcieRoot": {"string": f"root-{root}"},
            },
        }
        for number, (numa, root) in enumerate(places)
    ]


def test_topology_takes_devices_of_one_root() -> None:
    allocator = one_node(topological((0, 0), (0, 1), (1, 2), (1, 2)))
    assert chosen(allocator, claim(2), "first-fit") == ["g0", "g1"]
    assert chosen(allocator, claim(2), "topology") == ["g2", "g3"]


def test_topology_takes_one_numa_node_where_no_root_is_large_enough() -> None:
    allocator = one_node(topological((0, 0), (1, 1), (1, 2), (0, 3), (1, 4)))
    assert chosen(allocator, claim(3), "topology") == ["g1", "g2", "g4"]


def test_topology_leaves_whole_groups_whole() -> None:
    allocator = one_node(topological((0, 0), (0, 0), (1, 1), (1, 1)))
    use(allocator, "g2")
    assert chosen(allocator, claim(1), "topology") == ["g3"]


def test_topology_still_fits_what_fits_nowhere_together() -> None:
    allocator = one_node(topological((0, 0), (1, 1), (2, 2)))
    assert sorted(chosen(allocator, claim(3), "topology")) == ["g0", "g1", "g2"]


def test_topology_prefers_nodes_that_can_keep_devices_together() -> None:
    allocator = one_node(topological((0, 0), (1, 1)), name="a")
    add_node(allocator, topological((0, 0), (0, 0)), name="b")
    plans = allocator.plan_nodes([claim(2)], policy=policy_named("topology"))
    assert plans.nodes == ("b", "a")


def test_nodes_alike_but_for_their_places_get_answers_of_their_own() -> None:
    allocator = one_node(topological((0, 0), (0, 1), (1, 2), (1, 2)), name="a")
    add_node(allocator, topological((1, 2), (1, 2), (0, 0), (0, 1)), name="b")
    assert chosen(allocator, claim(2), "topology", "a") == ["g2", "g3"]
    assert chosen(allocator, claim(2), "topology", "b") == ["g0", "g1"]


def test_an_answer_follows_what_is_in_use() -> None:
    allocator = one_node(shared("g0", "g1"))
    assert chosen(allocator, claim(milli=100), "pack") == ["g0"]
    use(allocator, "g1", milli=100)
    assert chosen(allocator, claim(milli=100), "pack") == ["g1"]


def test_waste_is_the_room_that_the_demand_cannot_use() -> None:
    demand = Demand.of([(0.5, 1, 400), (0.5, 2, 1000)])
    assert demand.waste([1000, 1000]) == 0
    # Nobody can use 300; 500 serves the small kind only, and one whole device is no pair.
    assert demand.waste([300]) == 300
    assert demand.waste([500]) == 0.5 * 500
    assert demand.waste([1000, 500]) == 0.5 * 1500


@pytest.mark.parametrize("kind", [(1.0, 0, 500), (1.0, 1, 1001), (1.0, 1, 0), (-1.0, 1, 500)])
def test_a_demand_that_no_device_can_serve_is_refused(kind: tuple[float, int, int]) -> None:
    with pytest.raises(ValueError, match="parts 1 to 1000"):
        Demand.of([kind])


@pytest.mark.parametrize("policy", ["first-fit", "pack", "frag"])
def test_nodes_that_list_their_counter_sets_in_another_order_count_what_is_left_right(policy: str) -> None:
    allocator = one_node(*mig("a", "b"))
    devices, counters = mig("a", "b")
    add_node(allocator, devices, counters[::-1], "other")
    for node in ("n", "other"):
        use(allocator, "a-7g-0", node=node)
        assert chosen(allocator, claim(name="7g"), policy, node) == ["b-7g-0"]


@pytest.mark.parametrize("policy", ["first-fit", "pack", "frag"])
def test_counters_of_two_pools_of_a_node_are_told_apart(policy: str) -> None:
    allocator = one_node(*mig("a"))
    for number, part in enumerate([{"devices": mig("a")[0]}, {"sharedCounters": mig("a")[1]}]):
        pool = {"name": "second", "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": "d", "nodeName": "n", "pool": pool, **part}
        allocator.set_slice(
            msgspec.convert({"metadata": {"name": f"second-{number}"}, "spec": spec}, ResourceSlice)
        )
    for _ in range(2):
        plan = allocator.plan("n", [claim(name="7g")], policy=policy_named(policy))
        assert isinstance(plan, Plan)
        allocator.take("other", plan.allocations[0])
    assert not isinstance(allocator.plan("n", [claim(name="1g")], policy=policy_named(policy)), Plan)
