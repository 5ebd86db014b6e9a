"""Refusing by counting: the matching is right, and hopeless questions end in few steps."""

import itertools
import random
from collections.abc import Callable

import pytest

from dray.allocator import Allocator
from dray.allocator.bounds import _matchable
from dray.api.core import Node
from dray.api.meta import ObjectMeta
from dray.api.resource import (
    CELDeviceSelector,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceCounterConsumption,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)


def brute_force_matchable(needs: list[tuple[int, int]]) -> bool:
    if not needs:
        return True
    (wanted, mask), rest = needs[0], needs[1:]
    elements = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    for chosen in itertools.combinations(elements, wanted):
        used = sum(1 << bit for bit in chosen)
        if brute_force_matchable([(w, m & ~used) for w, m in rest]):
            return True
    return False


def test_the_matching_agrees_with_trying_everything() -> None:
    r = random.Random(1)
    outcomes = set()
    for _ in range(2000):
        needs = [(r.randint(0, 2), r.getrandbits(5)) for _ in range(r.randint(1, 4))]
        expected = brute_force_matchable(needs)
        assert _matchable(needs) == expected, needs
        outcomes.add(expected)
    assert outcomes == {True, False}


def world_of(
    devices: list[Device],
    counters: list[CounterSet] | None = None,
    is_late: Callable[[], bool] | None = None,
) -> Allocator:
    allocator = Allocator(is_late=is_late)
    total = 2 if counters else 1
    pool = ResourcePool(name="p", generation=1, resource_slice_count=total)
    spec = ResourceSliceSpec(driver="d", node_name="n", pool=pool, devices=devices)
    allocator.set_slice(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec))
    if counters:
        spec = ResourceSliceSpec(driver="d", node_name="n", pool=pool, shared_counters=counters)
        allocator.set_slice(ResourceSlice(metadata=ObjectMeta(name="t"), spec=spec))
    allocator.set_node(Node(metadata=ObjectMeta(name="n")))
    allocator.set_class(DeviceClass(metadata=ObjectMeta(name="any")))
    return allocator


def request(name: str, count: int = 1, text: str = "") -> DeviceRequest:
    selectors = [DeviceSelector(cel=CELDeviceSelector(expression=text))] if text else []
    return DeviceRequest(
        name=name, exactly=ExactDeviceRequest(device_class_name="any", count=count, selectors=selectors)
    )


def claim(*requests: DeviceRequest, match: str = "", distinct: str = "") -> ResourceClaim:
    constraints = []
    if match:
        constraints.append(DeviceConstraint(match_attribute=match))
    if distinct:
        constraints.append(DeviceConstraint(distinct_attribute=distinct))
    return ResourceClaim(
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=list(requests), constraints=constraints))
    )


def roots(n_devices: int, root_of: object) -> list[Device]:
    return [
        Device(name=f"g{i:02}", attributes={"root": DeviceAttribute(string=str(root_of(i)))})  # type: ignore[operator]
        for i in range(n_devices)
    ]


@pytest.mark.parametrize("n", [8, 16, 31])
def test_n_plus_one_single_requests_take_few_steps(n: int) -> None:
    allocator = world_of(roots(n, lambda i: i))
    answer = allocator.plan("n", [claim(*[request(f"r{i}") for i in range(n + 1)])])
    assert not answer
    assert answer.steps <= 3 * n + 3


@pytest.mark.parametrize("n", [8, 16, 32])
def test_distinct_values_short_by_one_take_few_steps(n: int) -> None:
    allocator = world_of(roots(n, lambda i: min(i, n - 2)))
    for wanted in (
        claim(request("r", n), distinct="d/root"),
        claim(*[request(f"r{i}") for i in range(n)], distinct="d/root"),
    ):
        answer = allocator.plan("n", [wanted])
        assert not answer
        assert answer.steps <= 3 * n + 3


@pytest.mark.parametrize("n", [8, 16, 32])
def test_match_groups_short_by_one_take_few_steps(n: int) -> None:
    allocator = world_of(roots(n, lambda i: i // 4))
    answer = allocator.plan("n", [claim(request("r", 5), match="d/root")])
    assert not answer
    assert answer.steps <= 20


def test_a_request_that_cannot_matter_is_not_varied() -> None:
    devices = [*roots(16, lambda i: i % 4), Device(name="odd")]
    wanted = claim(
        request("r", 4, 'has(device.attributes["d"].root)'),
        request("x", 2, '!has(device.attributes["d"].root)'),
    )
    answer = world_of(devices).plan("n", [wanted])
    assert not answer
    assert answer.steps <= 20


def test_partitions_that_exceed_the_hardware_in_sum_take_few_steps() -> None:
    devices, sets = [], []
    for gpu in range(8):
        sets.append(CounterSet(name=f"gpu{gpu}", counters={f"s{i}": Counter(value="1") for i in range(8)}))
        for size, starts in ((1, range(8)), (8, (0,))):
            for start in starts:
                counters = {f"s{i}": Counter(value="1") for i in range(start, start + size)}
                consumption = DeviceCounterConsumption(counter_set=f"gpu{gpu}", counters=counters)
                size_attribute = {"size": DeviceAttribute(int_value=size)}
                devices.append(
                    Device(
                        name=f"g{gpu}-{size}-{start}",
                        attributes=size_attribute,
                        consumes_counters=[consumption],
                    )
                )
    small, large = 'device.attributes["d"].size == 1', 'device.attributes["d"].size == 8'
    allocator = world_of(devices, sets)
    answer = allocator.plan("n", [claim(request("a", 8, small), request("b", 8, large))])
    assert not answer
    assert answer.steps <= 50
    assert allocator.plan("n", [claim(request("a", 8, small), request("b", 7, large))])


def test_the_budget_ends_a_search_and_says_so() -> None:
    allocator = world_of(roots(4, lambda i: i))
    answer = allocator.plan("n", [claim(request("r", 3), request("q", 1))], budget=2)
    assert not answer
    assert answer.gave_up  # type: ignore[union-attr]
    assert "gave up after 3 steps" in answer.summary  # type: ignore[union-attr]
    assert allocator.plan("n", [claim(request("r", 3), request("q", 1))])


def test_a_search_ends_when_its_time_is_over() -> None:
    chance = random.Random(2)
    puzzle = [
        Device(
            name=f"g{i:02}",
            attributes={name: DeviceAttribute(string=str(chance.randrange(12))) for name in "abc"},
        )
        for i in range(48)
    ]
    late = [True]
    allocator = world_of(puzzle, is_late=lambda: late[0])
    assert allocator.plan("n", [claim(request("r", 20))]), "without a dead end it is answered all the same"

    def hard(name: str) -> ResourceClaim:
        constraints = [DeviceConstraint(distinct_attribute=f"d/{each}") for each in "abc"]
        devices = DeviceClaim(requests=[request(name, 9)], constraints=constraints)
        return ResourceClaim(spec=ResourceClaimSpec(devices=devices))

    answer = allocator.plan("n", [hard("r")])
    assert not answer
    assert answer.gave_up  # type: ignore[union-attr]
    late[0] = False
    assert allocator.plan("n", [hard("q")])


def test_a_pod_with_hundreds_of_requests_is_no_problem() -> None:
    allocator = world_of([Device(name=f"g{i:03}") for i in range(320)])
    pod = [claim(*[request(f"r{i}") for i in range(32)]) for _ in range(10)]
    assert allocator.plan("n", pod)
    assert not allocator.plan("n", [*pod, claim(request("one-more"))])


def test_nodes_that_were_given_up_are_named() -> None:
    allocator = world_of(roots(4, lambda i: i))
    answers = allocator.plan_nodes([claim(request("r", 3), request("q", 1))], budget=2)
    assert answers.gave_up == {"n"}
    assert allocator.plan_nodes([claim(request("r", 3), request("q", 1))]).gave_up == frozenset()


def test_all_nodes_together_have_a_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.allocator.node_sweep._LEAST_STEPS", 2)
    allocator = world_of(roots(4, lambda i: i))
    for number in range(3):  # nodes that differ, so that none answers for another
        pool = ResourcePool(name=f"p{number}", generation=1, resource_slice_count=1)
        devices = [Device(name=f"g{i}") for i in range(5 + number)]
        spec = ResourceSliceSpec(driver="d", node_name=f"n{number}", pool=pool, devices=devices)
        allocator.set_slice(ResourceSlice(metadata=ObjectMeta(name=f"s{number}"), spec=spec))
    pod, names = [claim(request("r", 3), request("q", 1))], ["n0", "n1", "n2"]
    short = allocator.plan_nodes(pod, names, total=6)
    assert short.nodes == ("n0",)
    assert short.gave_up == {"n1", "n2"}
    assert allocator.plan_nodes(pod, names).nodes == ("n0", "n1", "n2"), "asked again with more steps"
