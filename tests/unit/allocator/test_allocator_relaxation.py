"""Hints are tried before they are given: a change that would not let the claims fit is not praised."""

from __future__ import annotations

import msgspec

from dray.allocator import Allocator, Undo, Unsatisfied
from dray.api.core import Node
from dray.api.meta import ObjectMeta
from dray.api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice

Json = dict[str, object]


def gpu(name: str, numa: int = 0, model: str = "a", taint: str = "") -> Json:
    device: Json = {"name": name, "attributes": {"numa": {"int": numa}, "model": {"string": model}}}
    if taint:
        device["taints"] = [{"key": taint, "effect": "NoSchedule"}]
    return device


def one_node(devices: list[Json]) -> Allocator:
    allocator = Allocator()
    allocator.set_class(DeviceClass(metadata=ObjectMeta(name="gpu")))
    allocator.set_node(Node(metadata=ObjectMeta(name="n")))
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    slice_spec = {"driver": "d", "nodeName": "n", "pool": pool, "devices": devices}
    allocator.set_slice(msgspec.convert({"metadata": {"name": "s"}, "spec": slice_spec}, ResourceSlice))
    return allocator


def use(allocator: Allocator, *names: str) -> Undo:
    results = [{"request": "r", "driver": "d", "pool": "n", "device": name} for name in names]
    return allocator.take("team/job", msgspec.convert({"devices": {"results": results}}, AllocationResult))


def hint(devices: list[Json], spec: Json, used: tuple[str, ...] = ()) -> list[str]:
    allocator = one_node(devices)
    use(allocator, *used)
    answer = allocator.plan("n", [msgspec.convert({"metadata": {"name": "c"}, "spec": spec}, ResourceClaim)])
    assert isinstance(answer, Unsatisfied)
    return [reasons.relaxation for reasons in answer.reasons]


def asking(*counts: int, selector: str = "", tie: str = "") -> Json:
    requests = [
        {
            "name": f"r{number}",
            "exactly": {
                "deviceClassName": "gpu",
                "count": count,
                "selectors": [{"cel": {"expression": selector}}] if selector else [],
            },
        }
        for number, count in enumerate(counts)
    ]
    constraints = [{"matchAttribute": tie}] if tie else []
    return {"devices": {"requests": requests, "constraints": constraints}}


def test_freeing_helps_where_it_was_tried() -> None:
    [found] = hint([gpu("a"), gpu("b")], asking(2), used=("a",))
    assert found == "wait for (or free) devices in use (team/job): 1 more would be usable, and the claims fit"


def test_freeing_is_not_praised_where_a_constraint_stands_behind_it() -> None:
    [found] = hint([gpu("a", 0), gpu("b", 1)], asking(2, tie="d/numa"), used=("a",))
    assert found.endswith("1 more would be usable, but that alone is not enough")


def test_a_constraint_is_named_when_the_claims_fit_without_it() -> None:
    [found] = hint([gpu("a", 0), gpu("b", 1)], asking(2, tie="d/numa"))
    assert found == "enough devices on its own; drop matchAttribute d/numa, and the claims fit"


def test_tolerating_comes_before_freeing_where_only_that_helps() -> None:
    devices = [gpu("a"), gpu("b", taint="broken"), gpu("c", taint="broken")]
    [found] = hint(devices, asking(2), used=("a",))
    assert found == "tolerate the taint (broken:NoSchedule): 2 more would be usable, and the claims fit"


def test_a_selector_is_to_blame_only_if_the_claims_fit_without_it() -> None:
    wanted = asking(2, selector="device.attributes['d'].model == 'b'")
    [found] = hint([gpu("a"), gpu("b")], wanted)
    assert found.startswith("loosen the selector") and found.endswith("and the claims fit")
    [found] = hint([gpu("a")], wanted)
    assert found.endswith("1 more would be usable, still not enough")


def test_requests_that_take_each_others_devices_hear_of_it() -> None:
    devices = [gpu("a"), gpu("b"), gpu("c")]
    assert set(hint(devices, asking(2, 2))) == {
        "enough devices on its own; other requests of the pod take them"
    }
    assert set(hint([*devices, gpu("d")], asking(2, 2), used=("d",))) == {
        "enough devices on its own, not together with the other requests; free devices in use, and the claims fit"
    }


def test_trying_changes_leaves_the_world_as_it_was() -> None:
    allocator = one_node([gpu("a"), gpu("b")])
    undo = use(allocator, "a")
    before = [(pool.dedicated, pool.ledger_key) for pool in allocator.view("n").pools]
    wanted = [msgspec.convert({"metadata": {"name": "c"}, "spec": asking(2)}, ResourceClaim)]
    refusal = allocator.plan("n", wanted)
    assert isinstance(refusal, Unsatisfied) and refusal.reasons
    assert [(pool.dedicated, pool.ledger_key) for pool in allocator.view("n").pools] == before
    assert not allocator.plan("n", wanted)
    undo()
    assert allocator.plan("n", wanted)
