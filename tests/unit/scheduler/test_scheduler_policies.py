"""Node policies: what is free, what is expected, and where pods go."""

from __future__ import annotations

import random

import msgspec
import pytest
from msgspec.structs import replace
from scheduler_builders import SmallCluster, claim, container, device_class, node, pod, resource_slice

from dray.allocator import RequestFootprint
from dray.api.resource import ResourceClaimSpec
from dray.scheduler.policies import (
    NODE_POLICIES,
    WHOLE,
    Fragmentation,
    NodePolicy,
    NodeSupply,
    Pack,
    PodDemand,
    policy_named,
)
from dray.scheduler.policies.kit import check_policy
from dray.scheduler.policies.request_mix import FIRST, REFRESH, RequestMix


def demand(n_devices=1, amount=WHOLE, cpu=1000, matching=0b1111_1111):
    footprints = {0: (RequestFootprint(n_devices, amount, matching),)} if n_devices else {}
    return PodDemand(cpu, 0, has_claims=bool(n_devices), footprints=footprints)


def supply(*devices, cpu=64_000, hardware=0):
    return NodeSupply(cpu, 0, devices, hardware, 64_000)


# --- supply ---------------------------------------------------------------------


def test_a_share_goes_to_the_fullest_device_that_fits():
    assert supply(1000, 300, 600).after(demand(amount=300)).devices == (1000, 0, 600)


def test_the_devices_of_one_request_are_different_ones():
    assert supply(1000).after(demand(2, amount=400)) is None
    assert supply(1000, 500).after(demand(2, amount=400)).devices == (600, 100)


def test_a_pod_does_not_fit_without_cpu_or_on_hardware_it_does_not_select():
    assert supply(1000, cpu=500).after(demand()) is None
    assert supply(1000, hardware=7).after(demand()) is None
    assert supply(1000, 1000).after(demand(matching=0b10)).devices == (1000, 0)


# --- mix ------------------------------------------------------------------------


def test_the_mix_is_renewed_seldom_and_its_weights_add_up():
    mix, one, other = RequestMix(), demand(), demand(amount=500)
    renewed = [mix.observe(one if number % 4 else other) for number in range(3 * REFRESH)]
    assert renewed.index(True) == FIRST - 1
    assert sum(renewed) < 12
    assert sum(weight for _, weight in mix.current) == pytest.approx(1)
    assert dict(mix.current)[one] == pytest.approx(0.75, abs=0.02)


def test_pods_without_claims_are_not_part_of_the_mix():
    mix = RequestMix()
    assert not any(mix.observe(demand(0)) for _ in range(100))
    assert mix.current == () == mix.samples(2, 2)


def test_old_arrivals_count_less_than_new_ones(monkeypatch):
    monkeypatch.setattr("dray.scheduler.policies.request_mix.HALF_LIFE", 100)
    mix, old, new = RequestMix(), demand(), demand(amount=500)
    for _ in range(1000):
        mix.observe(old)
    for _ in range(1100):
        mix.observe(new)
    assert dict(mix.current)[new] > 0.9


# --- scores ---------------------------------------------------------------------


def learned(*pods):
    policy = Fragmentation()
    policy.describe({0: 8})
    for number in range(REFRESH * 2):
        policy.observe(pods[number % len(pods)])
    return policy


def best(policy, wanted, *supplies):
    def liking(before):
        after = before.after(wanted)
        return policy.score(wanted, before, after) + policy.refine(wanted, before, after)

    return max(supplies, key=liking)


def test_frag_keeps_a_whole_device_for_those_that_need_one():
    policy = learned(demand(), demand(amount=500))
    assert best(policy, demand(amount=500), supply(1000), supply(500)) == supply(500)


def test_frag_keeps_devices_together_for_large_pods():
    policy = learned(demand(4), demand(1))
    spare, exact = supply(1000, 1000, 1000, 1000, 1000), supply(1000, 1000, 1000, 1000)
    assert best(policy, demand(1), exact, spare) == spare


def test_frag_keeps_cpu_beside_devices():
    policy = learned(demand(1, cpu=8000))
    narrow, wide = supply(1000, 1000, cpu=16_000), supply(1000, 1000, cpu=64_000)
    assert best(policy, demand(1, cpu=12_000), narrow, wide) == wide


def test_frag_leaves_hardware_that_is_asked_for_by_name_to_those_who_ask():
    both = {0: (RequestFootprint(1, WHOLE, 1),), 1: (RequestFootprint(1, WHOLE, 1),)}
    anything = PodDemand(1000, 0, has_claims=True, footprints=both)
    named = PodDemand(1000, 0, has_claims=True, footprints={1: both[1]})
    policy = Fragmentation()
    for number in range(REFRESH):
        policy.observe(named if number % 2 else anything)
    policy.describe({0: 100, 1: 20})
    assert best(policy, anything, supply(1000, hardware=1), supply(1000, hardware=0)).hardware == 0


def test_frag_packs_until_it_has_learned():
    policy, wanted = Fragmentation(), demand()
    full, empty = supply(1000, 0, 0), supply(1000, 1000, 1000)
    assert best(policy, wanted, empty, full) == best(Pack(), wanted, empty, full) == full


@pytest.mark.parametrize("name", ["pack", "frag"])
def test_pods_without_claims_keep_away_from_free_devices(name):
    policy, wanted = policy_named(name), demand(0)
    full, empty = supply(0, 0), supply(1000, 1000)
    assert policy.score_without_devices(wanted, full, full) > policy.score_without_devices(
        wanted, empty, empty
    )


def test_an_unknown_policy_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown policy 'best'; known: first-fit, .*frag"):
        policy_named("best")


# --- placing --------------------------------------------------------------------


def cluster(policy, **gpus_by_node):
    made = SmallCluster(policy=policy)
    made.add(device_class())
    for name, gpus in gpus_by_node.items():
        made.add(node(name), resource_slice(name, *[f"g{i}" for i in range(gpus)]))
    return made


class Last(NodePolicy):
    """A policy as a user writes it: the node with most free devices."""

    name = "last"

    def score(self, pod, before, after):
        return before.free


def test_a_user_policy_decides_where_pods_go():
    made = cluster(Last(), a=1, b=3, c=2)
    assert [made.run(pod(f"p{i}"), claim(f"c{i}")).node for i in range(4)] == ["b", "b", "c", "a"]


def test_every_node_is_compared_not_a_sample():
    made = cluster(policy_named("pack"), **{f"n{i:03}": 2 for i in range(199)}, z=1)
    assert made.run(pod("p"), claim("c")).node == "z"


@pytest.mark.parametrize("name", NODE_POLICIES)
def test_what_ends_is_free_again_for_the_next_pod(name):
    made = cluster(policy_named(name), a=1)
    first, second = pod("p1"), pod("p2")
    made.run(first, claim("c1"))
    assert not made.place(second, claim("c2"))
    made.end(first)
    assert made.run(second, claim("c2")).node == "a"


def test_a_pod_that_is_tried_again_counts_once():
    policy = Fragmentation()
    made = cluster(policy, a=0, b=1)
    for _ in range(FIRST + 1):
        made.place(pod("same"), claim("c"))
    assert policy.version == 0


# --- the test kit ---------------------------------------------------------------


@pytest.mark.parametrize("make", [*NODE_POLICIES.values(), Last])
def test_our_policies_pass_the_test_kit(make):
    check_policy(make)


class Moody(NodePolicy):
    def score(self, pod, before, after):
        self.asked = getattr(self, "asked", 0) + 1
        return self.asked


class Endless(NodePolicy):
    def score(self, pod, before, after):
        return float("inf")


@pytest.mark.parametrize(("make", "reason"), [(Moody, "changes without a new version"), (Endless, "is inf")])
def test_the_test_kit_says_what_a_policy_does_wrong(make, reason):
    with pytest.raises(AssertionError, match=reason):
        check_policy(make)


# --- what is left over, counted in the quick way ----------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_offers_leave_what_placing_pod_after_pod_leaves(seed):
    chance = random.Random(seed)
    kinds = [
        demand(
            chance.choice((1, 1, 2, 4)), chance.choice((100, 250, 500, WHOLE)), chance.choice((0, 500, 8000))
        )
        for _ in range(6)
    ]
    policy = Fragmentation()
    for _ in range(4 * FIRST):
        policy.observe(chance.choice(kinds))
    for _ in range(20):
        devices = [chance.choice((0, 100, 300, 500, 750, WHOLE, WHOLE)) for _ in range(chance.randint(1, 8))]
        found = supply(*devices, cpu=chance.choice((0, 4000, 64_000)))
        assert policy._offers_on(found) is not None
        expected = 0
        for sample in policy._samples:
            left = found
            for each in sample:
                left = left.after(each) or left
            expected += left.free
        assert policy._left_over(found) == expected / len(policy._samples)


def test_devices_that_differ_to_a_pod_are_placed_one_by_one():
    policy = Fragmentation()
    for _ in range(4 * FIRST):
        policy.observe(demand(matching=0b01))
    assert policy._offers_on(supply(WHOLE, WHOLE)) is None
    assert policy._left_over(supply(WHOLE, WHOLE)) == WHOLE


def test_pack_leaves_a_rare_model_to_the_pods_that_name_it():
    policy = Pack()
    anything, rare = demand(), demand()
    anything.footprints[1] = anything.footprints[0]
    rare.footprints[1] = rare.footprints.pop(0)
    for number in range(4 * FIRST):
        policy.observe((anything, rare)[number % 2])
    policy.describe({0: 80, 1: 4})
    full_and_rare, empty = supply(WHOLE, hardware=1), supply(*[WHOLE] * 8)

    def score(before, pod):
        return policy.score(pod, before, before.after(pod))

    assert score(empty, anything) > score(full_and_rare, anything)
    nearly_empty = supply(WHOLE, WHOLE, hardware=1)
    assert score(full_and_rare, rare) > score(nearly_empty, rare), "among its own it fills the fullest"


# --- kept scores ------------------------------------------------------------------


class Learning(NodePolicy):
    """A policy whose scores change with every third arrival."""

    name = "learning"

    def __init__(self):
        self.version = self.arrivals = 0

    def observe(self, pod):
        self.arrivals += 1
        self.version = self.arrivals // 3

    def score(self, pod, before, after):
        return (before.free * 31 + after.cpu + 7 * self.version) % 1009


@pytest.mark.parametrize("seed", range(5))
def test_kept_scores_are_those_of_a_ranking_that_knows_nothing(seed):
    chance = random.Random(seed)
    made = cluster(Learning(), **{f"n{i}": chance.choice((1, 2, 4)) for i in range(12)})
    ranking, running, decided = made.placer.ranking, [], 0
    for number in range(150):
        if running and chance.random() < 0.45:
            made.end(running.pop(chance.randrange(len(running))))
            continue
        wanted = pod(f"p{number}", containers=[container(cpu=chance.choice(("1", "2")))])
        if made.place(wanted, claim(f"c{number}")):
            made.run(wanted, claim(f"c{number}"))
            running.append(wanted)
            decided += 1
        for kind in ranking._kinds.values():
            ranking._renew(kind)
            kept = dict(kind.scores)
            kind.page = -1
            ranking._renew(kind)
            assert kept == kind.scores
    assert decided > 20


def test_nodes_for_claims_without_a_summary_are_asked_again_only_where_something_changed():
    made = cluster(policy_named("pack"), **{f"n{i:02}": 1 + i % 3 for i in range(30)})
    everything = {"exactly": {"deviceClassName": "gpu", "allocationMode": "All"}, "name": "all"}

    def all_of(name):
        return replace(
            claim(name), spec=msgspec.convert({"devices": {"requests": [everything]}}, ResourceClaimSpec)
        )

    asked = []
    plan_nodes = made.devices.allocator.plan_nodes

    def counting(claims, nodes, **options):
        names = list(nodes)
        asked.append(len(names))
        return plan_nodes(claims, names, **options)

    made.devices.allocator.plan_nodes = counting
    first = made.run(pod("p0"), all_of("c0"))
    assert first.node == "n00", "the fullest: one device"
    assert sum(asked) == 31
    asked.clear()
    assert made.run(pod("p1"), all_of("c1")).node == "n03"
    assert sum(asked) == 2, "the node that changed, and the one that was chosen"
