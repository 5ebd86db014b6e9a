"""The judge of the guard: what may land beside what is there and what may still come."""

import msgspec
import pytest

from dray.control.guarding.double_allocation import Judge, Write
from dray.control.guarding.guard_views import Allocation, Claim, Slice


def results(*each):
    spelled = [
        {"driver": "d", "pool": "p", **(one if isinstance(one, dict) else {"device": one})} for one in each
    ]
    return msgspec.convert({"devices": {"results": spelled}}, Allocation).devices.results


def claim(name, revision, *given):
    status = {"allocation": {"devices": {"results": [msgspec.to_builtins(each) for each in results(*given)]}}}
    meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(revision)}
    return msgspec.convert({"metadata": meta, "status": status if given else {}}, Claim)


def published(*devices, name="s", generation=1, counters=None):
    spec = {"driver": "d", "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1}}
    spec["devices"] = [each if isinstance(each, dict) else {"name": each} for each in devices]
    if counters:
        spec["sharedCounters"] = [{"name": "set", "counters": {"c": {"value": counters}}}]
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Slice)


def part(name, value="3", groups=()):
    draw = {"counterSet": "set", "counters": {"c": {"value": value}}, "compatibilityGroups": list(groups)}
    return {"name": name, "consumesCounters": [draw]}


SHARED = {"name": "s", "allowMultipleAllocations": True, "capacity": {"mem": {"value": "10Gi"}}}


def share(name, amount):
    return {"device": "s", "shareID": name, "consumedCapacity": {"mem": amount}}


def judge_of(*devices, counters=None):
    judge = Judge()
    judge.set_slice(None, published(*devices, counters=counters))
    return judge


def admit(judge, name, base, *given, **how):
    return judge.admit(Write(name, f"ns/{name}", base, results(*given)), 0.0, **how)


def test_a_device_that_is_free_is_admitted_once():
    judge = judge_of("g")
    assert admit(judge, "a", 5, "g") is None
    refusal = admit(judge, "b", 6, "g")
    assert refusal.message == "device d/p/g is held by claim ns/a"
    assert (refusal.device, refusal.holder) == ("d/p/g", "ns/a")


def test_a_device_in_the_cache_is_held():
    judge = judge_of("g")
    judge.set_claim(None, claim("a", 5, "g"))
    assert admit(judge, "b", 6, "g") is not None


def test_a_release_counts_when_the_cache_shows_it():
    judge = judge_of("g")
    judge.set_claim(None, claim("a", 5, "g"))
    judge.set_claim(claim("a", 5, "g"), claim("a", 7))
    assert admit(judge, "b", 6, "g") is None


def test_a_write_stays_in_the_book_while_the_cache_is_at_its_base_or_before():
    judge = judge_of("g")
    assert admit(judge, "a", 5, "g") is None
    judge.set_claim(None, claim("a", 3))
    judge.set_claim(claim("a", 3), claim("a", 5))
    assert admit(judge, "b", 6, "g") is not None


def test_a_write_that_was_overtaken_is_struck_out():
    judge = judge_of("g")
    assert admit(judge, "a", 5, "g") is None
    judge.set_claim(None, claim("a", 8))
    assert list(judge.flights()) == []
    assert admit(judge, "b", 6, "g") is None


def test_a_write_that_landed_is_held_by_the_cache_from_then_on():
    judge = judge_of("g")
    assert admit(judge, "a", 5, "g") is None
    assert judge.set_claim(None, claim("a", 8, "g"))
    assert list(judge.flights()) == []
    assert admit(judge, "b", 6, "g") is not None


def test_a_claim_that_is_gone_takes_its_writes_along():
    judge = judge_of("g")
    assert admit(judge, "a", 5, "g") is None
    judge.set_claim(claim("a", 3), None)
    assert admit(judge, "b", 6, "g") is None


def test_an_allocation_that_nobody_asked_about_is_told():
    judge = judge_of("g", "h")
    assert not judge.set_claim(None, claim("a", 8, "g"))
    assert admit(judge, "b", 9, "h") is None
    assert judge.set_claim(claim("b", 9), claim("b", 10, "h"))
    assert judge.set_claim(claim("b", 10, "h"), claim("b", 11))


def test_writes_to_one_claim_are_alternatives():
    judge = judge_of("g", "h")
    assert admit(judge, "a", 5, "g") is None
    assert admit(judge, "a", 5, "h") is None
    assert admit(judge, "a", 5, "g") is None
    assert admit(judge, "b", 6, "g") is not None
    assert admit(judge, "b", 6, "h") is not None
    judge.set_claim(None, claim("a", 7, "h"))
    assert admit(judge, "b", 6, "g") is None


def test_a_write_on_an_old_revision_is_refused():
    judge = judge_of("g")
    judge.set_claim(None, claim("a", 8))
    assert "read it again" in admit(judge, "a", 5, "g").message


def test_a_dry_run_is_judged_and_not_entered():
    judge = judge_of("g")
    assert admit(judge, "a", 5, "g", is_dry_run=True) is None
    assert admit(judge, "b", 6, "g") is None
    assert admit(judge, "a", 5, "g", is_dry_run=True) is not None


def test_administrative_access_neither_counts_nor_is_refused():
    judge = judge_of("g")
    assert admit(judge, "admin", 5, {"device": "g", "adminAccess": True}) is None
    assert admit(judge, "a", 5, "g") is None
    assert admit(judge, "other", 6, {"device": "g", "adminAccess": True}) is None
    assert admit(judge, "other", 6, {"device": "unknown", "adminAccess": True}) is None


def test_unknown_devices_are_refused_until_their_slice_is_seen():
    judge = judge_of("g")
    assert "not published" in admit(judge, "a", 5, "h").message
    judge.set_slice(None, published("h", name="later"))
    assert admit(judge, "a", 5, "h") is None


def test_only_the_newest_generation_of_a_pool_counts():
    judge = judge_of("g")
    judge.set_slice(None, published("h", name="new", generation=2))
    assert admit(judge, "a", 5, "g") is not None
    judge.set_slice(published("h", name="new", generation=2), None)
    assert admit(judge, "a", 5, "g") is None


def test_a_device_cannot_be_given_twice_in_one_claim():
    assert "twice" in admit(judge_of("g"), "a", 5, "g", "g").message


@pytest.mark.parametrize(
    "given", [("s", share("1", "1Gi")), (share("1", "1Gi"), "s"), (share("1", "1Gi"), share("1", "1Gi"))]
)
def test_a_share_cannot_be_given_twice_in_one_claim_nor_beside_the_whole_device(given):
    assert admit(judge_of(SHARED), "a", 5, *given).message == "device d/p/s is named twice"


def test_only_writes_that_may_be_in_the_way_are_contested():
    judge = judge_of("g", "h", part("p0"), part("p1"), counters="3")
    for name, device in [("a", "g"), ("b", "h"), ("c", "p0")]:
        assert admit(judge, name, 5, device) is None
    assert admit(judge, "d", 6, "unknown") is not None
    assert admit(judge, "d", 6, "g") is not None
    assert [each.write.uid for each in judge.flights() if each.is_contested] == ["a"]
    assert admit(judge, "d", 6, "p1") is not None
    assert [each.write.uid for each in judge.flights() if each.is_contested] == ["a", "c"]


def test_a_share_id_does_not_make_a_device_shareable():
    judge = judge_of("g")
    assert "cannot be shared" in admit(judge, "a", 5, {"device": "g", "shareID": "1"}).message


def test_shares_add_up_to_the_capacity_at_most():
    judge = judge_of(SHARED)
    assert admit(judge, "a", 5, share("1", "6Gi")) is None
    assert "not enough mem" in admit(judge, "b", 6, share("2", "5Gi")).message
    assert admit(judge, "b", 6, share("2", "4Gi")) is None
    assert admit(judge, "c", 7, share("3", "1")) is not None


def test_two_shares_of_one_claim_add_up():
    judge = judge_of(SHARED)
    assert admit(judge, "a", 5, share("1", "6Gi"), share("2", "5Gi")) is not None
    assert admit(judge, "a", 5, share("1", "6Gi"), share("2", "4Gi")) is None


def test_of_alternatives_the_largest_share_counts():
    judge = judge_of(SHARED)
    assert admit(judge, "a", 5, share("1", "6Gi")) is None
    assert admit(judge, "a", 5, share("2", "2Gi")) is None
    assert admit(judge, "b", 6, share("3", "5Gi")) is not None
    assert admit(judge, "b", 6, share("3", "4Gi")) is None


def test_a_share_id_is_used_once():
    judge = judge_of(SHARED)
    assert admit(judge, "a", 5, share("1", "1Gi")) is None
    assert admit(judge, "b", 6, share("1", "1Gi")) is not None


def test_whole_use_and_shares_exclude_each_other():
    judge = judge_of(SHARED)
    assert admit(judge, "a", 5, share("1", "1Gi")) is None
    assert admit(judge, "b", 6, "s") is not None
    judge = judge_of(SHARED)
    assert admit(judge, "a", 5, "s") is None
    assert admit(judge, "b", 6, share("1", "1Gi")) is not None


def test_a_share_of_something_that_the_device_has_not_is_refused():
    judge = judge_of(SHARED)
    wanted = {"device": "s", "shareID": "1", "consumedCapacity": {"bandwidth": "1"}}
    assert admit(judge, "a", 5, wanted) is not None


def test_counters_are_not_exceeded():
    judge = judge_of(part("p0"), part("p1"), part("p2"), "free", counters="7")
    assert admit(judge, "a", 5, "p0") is None
    assert admit(judge, "b", 6, "p1") is None
    assert "counter c" in admit(judge, "c", 7, "p2").message
    assert admit(judge, "c", 7, "free") is None
    judge.set_claim(None, claim("a", 9))
    assert admit(judge, "d", 7, "p2") is None


def test_counters_count_within_one_claim():
    judge = judge_of(part("p0"), part("p1"), part("p2"), counters="7")
    assert admit(judge, "a", 5, "p0", "p1", "p2") is not None
    assert admit(judge, "a", 5, "p0", "p1") is None


def test_counters_that_are_not_published_yet_are_empty():
    judge = judge_of(part("p0"))
    assert admit(judge, "a", 5, "p0") is not None


@pytest.mark.parametrize(
    ("first", "second", "is_allowed"),
    [
        ((), (), True),
        (("x",), ("x",), True),
        (("x", "y"), ("y",), True),
        (("x",), ("y",), False),
        (("x",), (), False),
    ],
)
def test_compatibility_groups_go_together(first, second, is_allowed):
    judge = judge_of(part("p0", "1", first), part("p1", "1", second), counters="7")
    assert admit(judge, "a", 5, "p0") is None
    assert (admit(judge, "b", 6, "p1") is None) == is_allowed


def test_devices_that_were_given_twice_before_are_named():
    judge = judge_of("g", SHARED)
    judge.set_claim(None, claim("a", 5, "g", share("1", "1Gi")))
    judge.set_claim(None, claim("b", 6, share("2", "1Gi")))
    assert judge.doubles() == []
    judge.set_claim(None, claim("c", 7, "g"))
    assert judge.doubles() == ["d/p/g: ns/a, ns/c"]


def test_a_write_can_be_given_up():
    judge = judge_of("g")
    assert admit(judge, "a", 5, "g") is None
    [flight] = judge.flights()
    judge.abandon(flight)
    judge.abandon(flight)
    assert admit(judge, "b", 6, "g") is None
