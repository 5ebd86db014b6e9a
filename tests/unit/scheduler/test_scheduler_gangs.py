"""Gangs: all or none, and what was tried leaves no trace."""

from scheduler_builders import SmallCluster, claim, container, device_class, node, pod, resource_slice

from dray.allocator import PendingWork
from dray.scheduler import Alternative, Member, PodClaims, missing_members, place_gang, shape_of


def member(each, *claims):
    return Member(each, (Alternative(shape_of(each), PodClaims((), tuple(claims))),))


def gpus(**devices):
    small = SmallCluster()
    small.add(device_class())
    for name, count in devices.items():
        small.add(node(name), resource_slice(name, *(f"g{index}" for index in range(count))))
    return small


def test_all_members_get_a_place():
    small = gpus(a=2, b=2)
    answer = place_gang(small.placer, [member(pod(f"p{index}"), claim(f"c{index}")) for index in range(4)])
    nodes = sorted(each.node for each in answer.placements)
    assert nodes == ["a", "a", "b", "b"]


def test_one_too_many_and_none_is_placed():
    small = gpus(a=2, b=1)
    answer = place_gang(small.placer, [member(pod(f"p{index}"), claim(f"c{index}")) for index in range(4)])
    assert not answer
    assert "only 3 of the 4 pods" in answer.explain()
    assert small.state.pods == {}
    assert small.place(pod("alone"), claim("alone", 2)).node == "a"


def test_the_large_pod_goes_first_whatever_the_order():
    small = gpus(a=2, b=1)
    crumbs = [member(pod("small"), claim("one"))]
    large = [member(pod("large"), claim("two", 2))]
    for order in (crumbs + large, large + crumbs):
        answer = place_gang(small.placer, order)
        assert {
            each.pod.metadata.name: where.node
            for each, where in zip(answer.members, answer.placements, strict=True)
        } == {
            "large": "a",
            "small": "b",
        }


def test_a_failed_order_is_tried_again_with_the_pod_that_failed_in_front():
    small = SmallCluster(node("big", cpu="4"), node("tiny", cpu="1"))
    flexible = [member(pod(f"f{index}", containers=[container(cpu="1")])) for index in range(2)]
    greedy = member(pod("greedy", containers=[container(cpu="3", memory="1Gi")]))
    answer = place_gang(small.placer, [*flexible, greedy])
    assert answer
    where = {
        each.pod.metadata.name: place.node
        for each, place in zip(answer.members, answer.placements, strict=True)
    }
    assert where["greedy"] == "big"


def test_members_that_share_a_claim_meet_at_its_devices():
    small = gpus(a=1, b=1)
    shared = claim("shared")
    answer = place_gang(small.placer, [member(pod(f"p{index}"), shared) for index in range(3)])
    assert len({each.node for each in answer.placements}) == 1
    assert [len(each.claims) for each in answer.placements] == [1, 0, 0], "only one of them allocates it"


def test_a_refusal_is_explained_with_the_others_at_their_places():
    small = gpus(a=1, b=1)
    answer = place_gang(small.placer, [member(pod(f"p{index}"), claim(f"c{index}")) for index in range(3)])
    assert "2 have the only matching device in use" in answer.explain()
    assert small.state.pods == {}
    assert small.place(pod("alone"), claim("alone")), "what was reserved for the explanation is free again"


def test_the_first_way_that_works_is_taken():
    small = gpus(a=1, b=1)
    nodes = small.state.nodes
    each = pod("p")
    alternatives = tuple(
        Alternative(shape_of(each), PodClaims((), (claim(f"on-{name}", count),)), nodes[name].bit)
        for name, count in (("a", 2), ("b", 1))
    )
    answer = place_gang(small.placer, [Member(each, alternatives)])
    assert answer.alternatives == (alternatives[1],)
    assert answer.placements[0].node == "b"
    nowhere = place_gang(small.placer, [Member(each, alternatives[:1] * 2)])
    assert nowhere.explain().count("0/1 nodes") == 2, "each way says what is wrong with it"


def test_large_numbers_of_missing_pods_change_seldom():
    texts = [missing_members(number, "ns/g", 100).explain() for number in range(1, 100)]
    assert texts[0] == "waiting for 1 more pod of group ns/g (it starts with 100)"
    assert texts[7] == "waiting for 8 more pods of group ns/g (it starts with 100)"
    assert texts[8].startswith("waiting for more than 8 more pods")
    assert texts[15] == texts[8] != texts[16]
    assert len(set(texts)) == 12


def test_a_gang_that_is_too_large_is_not_tried_in_every_order(monkeypatch):
    small = gpus(**{f"n{number}": 8 for number in range(20)})
    n_placed, place = 0, small.placer.place

    def counted(*args, **kwargs):
        nonlocal n_placed
        n_placed += 1
        return place(*args, **kwargs)

    monkeypatch.setattr(small.placer, "place", counted)
    members = [member(pod(f"p{index}"), claim(f"c{index}")) for index in range(161)]
    assert not place_gang(small.placer, members)
    assert n_placed < 800, "32 orders of 161 would be 5,152"


def test_a_gang_with_slow_selectors_asks_for_time_and_leaves_no_trace():
    small = gpus(a=2, b=2)
    slow = " && ".join(["1 + 2 * 3 < 9"] * 200)
    members = [
        member(pod(f"p{index}"), claim(f"c{index}", selector=f"{slow} && {index} < 9")) for index in range(3)
    ]
    n_waits, answer, budget = 0, None, small.placer.devices.allocator.evaluation_budget
    while answer is None:
        try:
            with budget.limited(1_000):
                answer = place_gang(small.placer, members)
        except PendingWork as pending:
            n_waits += 1
            assert small.state.pods == {}
            assert small.placer.devices.allocator.ledger.pools == {}
            pending.work()
    assert n_waits >= 3, "each member has an expression of its own"
    assert len(answer.placements) == 3
