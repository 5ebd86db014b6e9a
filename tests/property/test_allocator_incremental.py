"""A world that was changed step by step answers like one that was built anew.

Random slices (local, shared, by selector, per device, several generations, counters across
nodes), taint rules, node labels, claims and in-flight allocations come and go; after every
few changes each node is asked the same questions in the old world and in a fresh one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from dray.allocator import AllocationError, Plan, Unsatisfied, World
from dray.api.core import Node
from dray.api.features import Features
from dray.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta
from dray.api.resource import (
    AllocationResult,
    CELDeviceSelector,
    Counter,
    CounterSet,
    Device,
    DeviceAllocationResult,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceCounterConsumption,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
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


def claim(*requests: tuple[int, str], match: bool = False, mode: str = "ExactCount") -> ResourceClaim:
    return ResourceClaim(
        metadata=ObjectMeta(name="wanted"),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(
                requests=[
                    DeviceRequest(
                        name=f"r{number}",
                        exactly=ExactDeviceRequest(
                            device_class_name="any",
                            allocation_mode=mode,
                            count=count,
                            selectors=[DeviceSelector(cel=CELDeviceSelector(expression=text))]
                            if text
                            else [],
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
]


class Books:
    """The objects as an API server would hold them."""

    def __init__(self) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.nodes: dict[str, Node] = {}
        self.rules: dict[str, DeviceTaintRule] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.in_flight: dict[str, AllocationResult] = {}

    def world(self) -> World:
        world = empty_world()
        # Rules after slices here and before them in the other world: order must not matter.
        for resource_slice in self.slices.values():
            world.set_slice(resource_slice)
        for node in self.nodes.values():
            world.set_node(node)
        for rule in self.rules.values():
            world.set_taint_rule(rule)
        for held in self.claims.values():
            world.set_claim(held)
        for owner, allocation in self.in_flight.items():
            world.take(owner, allocation)
        return world


def empty_world() -> World:
    world = World(FEATURES)
    world.set_class(DeviceClass(metadata=ObjectMeta(name="any"), spec=DeviceClassSpec()))
    return world


def change(r: random.Random, world: World, books: Books, undos: dict[str, Any]) -> None:
    kind = r.random()
    if kind < 0.45:
        resource_slice = random_slice(r)
        books.slices.pop(resource_slice.metadata.name, None)
        world.delete_slice(resource_slice.metadata.name) if r.random() < 0.3 else None
        books.slices[resource_slice.metadata.name] = resource_slice
        world.set_slice(resource_slice)
    elif kind < 0.55 and books.slices:
        name = r.choice(list(books.slices))
        del books.slices[name]
        world.delete_slice(name)
    elif kind < 0.65:
        name = r.choice(NODES)
        books.nodes[name] = Node(metadata=ObjectMeta(name=name, labels={"zone": r.choice("abc")}))
        world.set_node(books.nodes[name])
    elif kind < 0.75:
        name = f"rule-{r.randrange(2)}"
        if name in books.rules and r.random() < 0.5:
            del books.rules[name]
            world.delete_taint_rule(name)
        else:
            chosen = DeviceTaintSelector(pool=f"p{r.randrange(4)}", device=f"d0-{r.randrange(2)}")
            taint = DeviceTaint(key="k", effect=r.choice(["NoSchedule", "None"]))
            books.rules[name] = DeviceTaintRule(
                metadata=ObjectMeta(name=name), spec=DeviceTaintRuleSpec(device_selector=chosen, taint=taint)
            )
            world.set_taint_rule(books.rules[name])
    elif kind < 0.9:
        uid = f"claim-{r.randrange(4)}"
        if uid in books.claims and r.random() < 0.5:
            del books.claims[uid]
            world.delete_claim(uid)
        else:
            allocation = random_allocation(r) if r.random() < 0.8 else None
            held = ResourceClaim(
                metadata=ObjectMeta(name=uid, uid=uid), status=ResourceClaimStatus(allocation=allocation)
            )
            books.claims[uid] = held
            world.set_claim(held)
    else:
        owner = f"flight-{r.randrange(2)}"
        if owner in undos:
            undos.pop(owner)()
            del books.in_flight[owner]
        else:
            books.in_flight[owner] = random_allocation(r)
            undos[owner] = world.take(owner, books.in_flight[owner])


def answer(world: World, node: str, claims: list[ResourceClaim]) -> object:
    try:
        found = world.plan(node, claims)
    except AllocationError as error:
        return str(error)
    return comparable(found)


def comparable(found: Plan | Unsatisfied) -> object:
    if isinstance(found, Plan):
        return [(r.pool, r.device) for a in found.allocations for r in a.devices.results] + [
            a.node_selector for a in found.allocations
        ]
    return found.error


def many(world: World, claims: list[ResourceClaim]) -> dict[str, object] | str:
    try:
        found = world.plan_nodes(claims, NODES)
    except AllocationError as error:
        return str(error)
    answers = {plan.node: comparable(plan) for plan in found.plans}
    return answers | {node: comparable(refusal) for node, refusal in found.refusals.items()}


def run_story(seed: int, n_changes: int) -> int:
    r = random.Random(seed)
    world, books, undos = empty_world(), Books(), {}
    for name in NODES:
        books.nodes[name] = Node(metadata=ObjectMeta(name=name, labels={"zone": "a"}))
        world.set_node(books.nodes[name])
    n_plans = 0
    for step in range(n_changes):
        change(r, world, books, undos)
        if r.random() < 0.5:
            continue
        fresh = books.world()
        for question in QUESTIONS:
            expected = {node: answer(fresh, node, question) for node in NODES}
            actual = {node: answer(world, node, question) for node in NODES}
            assert actual == expected, f"seed {seed}, step {step}"
            n_plans += sum(isinstance(a, list) for a in expected.values())
            together = many(world, question)
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
