"""An allocator that was changed step by step answers like one that was built anew.

Random slices (local, shared, by selector, per device, several generations, half published ones, counters across
nodes, tainted devices, shared capacity), taint rules, node labels, nodes, classes, claims and in-flight allocations come and go; after every
few changes each node is asked the same questions of the old allocator and of a fresh one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from dray.allocator import AllocationError, Allocator, Plan, Unsatisfied
from dray.api.core import Node
from dray.api.features import Features
from dray.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta
from dray.api.resource import (
    AllocationResult,
    CapacityRequirements,
    CELDeviceSelector,
    Counter,
    CounterSet,
    Device,
    DeviceAllocationResult,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceCounterConsumption,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    DeviceSubRequest,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)

NODES = ["n1", "n2", "n3"]
FEATURES = Features.everything()


def selector(zone: str) -> NodeSelector:
    requirement = NodeSelectorRequirement(key="zone", operator="In", values=[zone])
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[requirement])])


SHARED: dict[str, Any] = {
    "allow_multiple_allocations": True,
    "capacity": {"memory": DeviceCapacity(value="4")},
}


def random_device(r: random.Random, name: str, has_counters: bool, per_device: bool) -> Device:
    consumes = []
    if has_counters and r.random() < 0.8:
        consumes = [
            DeviceCounterConsumption(counter_set="set", counters={"c": Counter(value=str(r.randint(1, 2)))})
        ]
    where: dict[str, Any] = {}
    if per_device:
        where = r.choice(
            [{"node_name": r.choice(NODES)}, {"all_nodes": True}, {"node_selector": selector(r.choice("ab"))}]
        )
    return Device(
        name=name,
        attributes={
            "root": DeviceAttribute(string=r.choice("xy")),
            "kind": DeviceAttribute(string=r.choice("ab")),
        },
        consumes_counters=consumes,
        taints=[DeviceTaint(key="own", effect="NoSchedule")] if r.random() < 0.15 else [],
        **SHARED if r.random() < 0.25 else {},
        **where,
    )


def random_slice(r: random.Random) -> ResourceSlice:
    pool = r.randrange(4)
    index = r.randrange(3)
    has_counters = pool == 3
    where: dict[str, Any] = r.choice(
        [
            {"node_name": NODES[pool % 3]},
            {"node_name": r.choice(NODES)},
            {"all_nodes": True},
            {"node_selector": selector(r.choice("ab"))},
            {"per_device_node_selection": True},
        ]
    )
    per_device = "per_device_node_selection" in where
    content: dict[str, Any] = {
        "devices": [
            random_device(r, f"d{index}-{i}", has_counters, per_device) for i in range(r.randint(1, 3))
        ]
    }
    if has_counters and index == 2:
        content = {"shared_counters": [CounterSet(name="set", counters={"c": Counter(value="3")})]}
        if per_device:
            where = {"all_nodes": True}
    return ResourceSlice(
        metadata=ObjectMeta(name=f"s{pool}-{index}"),
        spec=ResourceSliceSpec(
            driver="d",
            pool=ResourcePool(
                name=f"p{pool}",
                generation=r.choice([1, 1, 1, 2]),
                resource_slice_count=r.choice([1, 1, 2, 3]),
            ),
            **where,
            **content,
        ),
    )


def random_allocation(r: random.Random) -> AllocationResult:
    results = [
        DeviceRequestAllocationResult(
            driver="d", pool=f"p{r.randrange(4)}", device=f"d{r.randrange(3)}-{r.randrange(3)}"
        )
        for _ in range(r.randint(1, 3))
    ]
    return AllocationResult(devices=DeviceAllocationResult(results=results))


def claim(
    *requests: tuple[int, str], match: bool = False, mode: str = "ExactCount", **more: Any
) -> ResourceClaim:
    return ResourceClaim(
        metadata=ObjectMeta(name="wanted"),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(
                requests=[
                    DeviceRequest(
                        name=f"r{number}",
                        exactly=ExactDeviceRequest(
                            allocation_mode=mode,
                            count=count,
                            selectors=[DeviceSelector(cel=CELDeviceSelector(expression=text))]
                            if text
                            else [],
                            **{"device_class_name": "any", **more},
                        ),
                    )
                    for number, (count, text) in enumerate(requests)
                ],
                constraints=[DeviceConstraint(match_attribute="d/root")] if match else [],
            )
        ),
    )


QUESTIONS = [
    [claim((1, ""))],
    [claim((2, ""))],
    [claim((1, 'device.attributes["d"].kind == "a"'), (1, 'device.attributes["d"].kind == "b"'), match=True)],
    [claim((0, ""), mode="All")],
    [claim((1, ""), device_class_name="narrow"), claim((1, ""))],
    [claim((1, ""), tolerations=[DeviceToleration(key="own", operator="Exists")])],
    [claim((2, ""), capacity=CapacityRequirements(requests={"memory": "2"}))],
    [
        ResourceClaim(
            metadata=ObjectMeta(name="choice"),
            spec=ResourceClaimSpec(
                devices=DeviceClaim(
                    requests=[
                        DeviceRequest(
                            name="r",
                            first_available=[
                                DeviceSubRequest(
                                    name="many",
                                    device_class_name="narrow",
                                    allocation_mode="ExactCount",
                                    count=3,
                                ),
                                DeviceSubRequest(
                                    name="one", device_class_name="any", allocation_mode="ExactCount", count=1
                                ),
                            ],
                        )
                    ]
                )
            ),
        )
    ],
]


class Books:
    """The objects as an API server would hold them."""

    def __init__(self) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.nodes: dict[str, Node] = {}
        self.rules: dict[str, DeviceTaintRule] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.in_flight: dict[str, AllocationResult] = {}
        self.classes: dict[str, DeviceClass] = {}

    def allocator(self) -> Allocator:
        allocator = empty_world()
        for device_class in self.classes.values():
            allocator.set_class(device_class)
        # Rules after slices here and before them in the other allocator: order must not matter.
        for resource_slice in self.slices.values():
            allocator.set_slice(resource_slice)
        for node in self.nodes.values():
            allocator.set_node(node)
        for rule in self.rules.values():
            allocator.set_taint_rule(rule)
        for held in self.claims.values():
            allocator.set_claim(held)
        for owner, allocation in self.in_flight.items():
            allocator.take(owner, allocation)
        return allocator


def empty_world() -> Allocator:
    allocator = Allocator(FEATURES)
    allocator.set_class(DeviceClass(metadata=ObjectMeta(name="any"), spec=DeviceClassSpec()))
    return allocator


def change_class(r: random.Random, allocator: Allocator, books: Books) -> None:
    """Let the class `narrow` come, go, or select other devices."""
    if "narrow" in books.classes and r.random() < 0.3:
        del books.classes["narrow"]
        allocator.delete_class("narrow")
        return
    text = f'device.attributes["d"].kind == "{r.choice("ab")}"'
    spec = DeviceClassSpec(selectors=[DeviceSelector(cel=CELDeviceSelector(expression=text))])
    books.classes["narrow"] = DeviceClass(metadata=ObjectMeta(name="narrow"), spec=spec)
    allocator.set_class(books.classes["narrow"])


def change(r: random.Random, allocator: Allocator, books: Books, undos: dict[str, Any]) -> None:
    kind = r.random()
    if kind < 0.45:
        resource_slice = random_slice(r)
        books.slices.pop(resource_slice.metadata.name, None)
        allocator.delete_slice(resource_slice.metadata.name) if r.random() < 0.3 else None
        books.slices[resource_slice.metadata.name] = resource_slice
        allocator.set_slice(resource_slice)
    elif kind < 0.55 and books.slices:
        name = r.choice(list(books.slices))
        del books.slices[name]
        allocator.delete_slice(name)
    elif kind < 0.6:
        change_class(r, allocator, books)
    elif kind < 0.68:
        name = r.choice(NODES)
        if name in books.nodes and r.random() < 0.2:
            del books.nodes[name]
            allocator.delete_node(name)
            return
        books.nodes[name] = Node(metadata=ObjectMeta(name=name, labels={"zone": r.choice("abc")}))
        allocator.set_node(books.nodes[name])
    elif kind < 0.76:
        name = f"rule-{r.randrange(2)}"
        if name in books.rules and r.random() < 0.5:
            del books.rules[name]
            allocator.delete_taint_rule(name)
        else:
            chosen = DeviceTaintSelector(pool=f"p{r.randrange(4)}", device=f"d0-{r.randrange(2)}")
            taint = DeviceTaint(key="k", effect=r.choice(["NoSchedule", "None"]))
            books.rules[name] = DeviceTaintRule(
                metadata=ObjectMeta(name=name), spec=DeviceTaintRuleSpec(device_selector=chosen, taint=taint)
            )
            allocator.set_taint_rule(books.rules[name])
    elif kind < 0.9:
        uid = f"claim-{r.randrange(4)}"
        if uid in books.claims and r.random() < 0.5:
            del books.claims[uid]
            allocator.delete_claim(uid)
        else:
            allocation = random_allocation(r) if r.random() < 0.8 else None
            held = ResourceClaim(
                metadata=ObjectMeta(name=uid, uid=uid), status=ResourceClaimStatus(allocation=allocation)
            )
            books.claims[uid] = held
            allocator.set_claim(held)
    else:
        owner = f"flight-{r.randrange(2)}"
        if owner in undos:
            undos.pop(owner)()
            del books.in_flight[owner]
        else:
            books.in_flight[owner] = random_allocation(r)
            undos[owner] = allocator.take(owner, books.in_flight[owner])


def answer(allocator: Allocator, node: str, claims: list[ResourceClaim]) -> object:
    try:
        found = allocator.plan(node, claims)
    except AllocationError as error:
        return str(error)
    return comparable(found)


def comparable(found: Plan | Unsatisfied) -> object:
    if isinstance(found, Plan):
        return [(r.pool, r.device) for a in found.allocations for r in a.devices.results] + [
            a.node_selector for a in found.allocations
        ]
    return found.error


def many(allocator: Allocator, claims: list[ResourceClaim]) -> dict[str, object] | str:
    try:
        found = allocator.plan_nodes(claims, NODES)
    except AllocationError as error:
        return str(error)
    answers = {plan.node: comparable(plan) for plan in found.plans}
    return answers | {node: comparable(refusal) for node, refusal in found.refusals.items()}


def run_story(seed: int, n_changes: int) -> int:
    r = random.Random(seed)
    allocator, books, undos = empty_world(), Books(), {}
    for name in NODES:
        books.nodes[name] = Node(metadata=ObjectMeta(name=name, labels={"zone": "a"}))
        allocator.set_node(books.nodes[name])
    n_plans = 0
    for step in range(n_changes):
        change(r, allocator, books, undos)
        if r.random() < 0.5:
            continue
        fresh = books.allocator()
        for question in QUESTIONS:
            expected = {node: answer(fresh, node, question) for node in NODES}
            actual = {node: answer(allocator, node, question) for node in NODES}
            assert actual == expected, f"seed {seed}, step {step}"
            n_plans += sum(isinstance(a, list) for a in expected.values())
            together = many(allocator, question)
            if isinstance(together, str):
                assert together in expected.values(), f"seed {seed}, step {step}"
            else:
                assert together == expected, f"seed {seed}, step {step}"
    return n_plans


def test_a_changed_world_answers_like_a_fresh_one() -> None:
    assert sum(run_story(seed, 40) for seed in range(25)) > 500


@pytest.mark.heavy
def test_a_changed_world_answers_like_a_fresh_one_for_long() -> None:
    for seed in range(1000, 1400):
        run_story(seed, 120)
