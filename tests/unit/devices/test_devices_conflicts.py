"""The rules of joint possession: what goes together, what does not, and what to make of bad data."""

import msgspec
import pytest

from dray.api.quantity import QuantityError
from dray.api.resource import DeviceRequestAllocationResult, ResourceSlice
from dray.control.guarding.guard_views import Result, Slice
from dray.devices import (
    Conflict,
    DeviceId,
    Hold,
    Occupancy,
    Rule,
    admits_groups,
    exceeded,
    excludes,
    holds_of,
    narrow_groups,
)

WHOLE = Hold((), {})


def hold(*shares, **consumed):
    return Hold(shares, {name: value * 10**9 for name, value in consumed.items()})


def given(*each, view=Result):
    spelled = [
        {"driver": "d", "pool": "p", **(one if isinstance(one, dict) else {"device": one})} for one in each
    ]
    return msgspec.convert(spelled, list[view])


def share(name, amount, device="s"):
    return {"device": device, "shareID": name, "consumedCapacity": {"mem": amount}}


def part(name, value="3", groups=(), counter_set="set", **more):
    draw = {"counterSet": counter_set, "counters": {"c": {"value": value}}, "compatibilityGroups": [*groups]}
    return {"name": name, "consumesCounters": [draw], **more}


SHARED = {"name": "s", "allowMultipleAllocations": True, "capacity": {"mem": {"value": "10"}}}


def published(*devices, name="s", generation=1, view=Slice, **counters):
    spec = {"driver": "d", "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1}}
    spec["devices"] = [each if isinstance(each, dict) else {"name": each} for each in devices]
    spec["sharedCounters"] = [
        {"name": each, "counters": {"c": {"value": value}}} for each, value in counters.items()
    ]
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, view)


def occupancy_of(*devices, **counters):
    occupancy = Occupancy()
    occupancy.set_slice(None, published(*devices, **counters))
    return occupancy


def ask(occupancy, uid, *requests_wanted, counts=None):
    return occupancy.conflict(uid, holds_of(given(*requests_wanted)), counts)


def give(occupancy, uid, *requests_wanted):
    """Enter what goes together with the rest; return the rule that stands against it otherwise."""
    conflict = ask(occupancy, uid, *requests_wanted)
    if conflict is None:
        occupancy.take(uid, holds_of(given(*requests_wanted)))
        return None
    return conflict.rule


# --- holds ----------------------------------------------------------------------


def test_a_device_is_held_whole_or_in_shares():
    assert holds_of(given("g", share("1", "2"))) == {
        ("d", "p", "g"): WHOLE,
        ("d", "p", "s"): hold("1", mem=2),
    }


def test_both_forms_of_results_are_read_alike():
    requests_wanted = ["g", share("1", "2"), {"device": "x", "adminAccess": True}]
    assert holds_of(given(*requests_wanted)) == holds_of(
        given(*requests_wanted, view=DeviceRequestAllocationResult)
    )


def test_administrative_access_holds_nothing():
    assert holds_of(given({"device": "g", "adminAccess": True}, {"device": "h", "adminAccess": False})) == {
        ("d", "p", "h"): WHOLE
    }


def test_shares_of_one_claim_add_up():
    assert holds_of(given(share("2", "500m"), share("1", "2"), {"device": "s", "shareID": "3"})) == {
        ("d", "p", "s"): Hold(("1", "2", "3"), {"mem": 2_500_000_000})
    }


@pytest.mark.parametrize("order", [1, -1])
def test_one_entry_for_the_whole_device_takes_all_of_it(order):
    [found] = holds_of(given(*[share("1", "2"), "s"][::order])).values()
    assert found == Hold((), {"mem": 2 * 10**9})


def test_less_than_nothing_is_nothing():
    assert holds_of(given(share("1", "-5"))) == {("d", "p", "s"): hold("1", mem=0)}


def test_an_amount_that_is_none_is_said_so():
    with pytest.raises(QuantityError):
        holds_of(given(share("1", "much")))


# --- rules ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (WHOLE, WHOLE, True),
        (WHOLE, hold("1"), True),
        (hold("1"), hold("1", "2"), True),
        (hold("1"), hold("2"), False),
    ],
)
def test_whole_devices_and_equal_shares_exclude_each_other(one, other, expected):
    assert excludes(one, other) == excludes(other, one) == expected


def test_a_capacity_is_exceeded_by_the_sum():
    capacity = {"mem": 10 * 10**9, "empty": 0}
    assert exceeded(capacity, hold("1", mem=10), []) is None
    assert exceeded(capacity, hold("1", mem=11), []) == "mem"
    assert exceeded(capacity, hold("1", mem=4), [[hold("2", mem=3)], [hold("3", mem=3)]]) is None
    assert exceeded(capacity, hold("1", mem=5), [[hold("2", mem=3)], [hold("3", mem=3)]]) == "mem"


def test_of_alternatives_the_largest_amount_counts():
    capacity = {"mem": 10 * 10**9}
    states = [hold("2", mem=1), hold("3", mem=6), hold("4", other=9)]
    assert exceeded(capacity, hold("1", mem=4), [states]) is None
    assert exceeded(capacity, hold("1", mem=5), [states]) == "mem"


def test_a_capacity_of_zero_or_none_gives_zero():
    assert exceeded({"empty": 0}, hold("1", empty=0), []) is None
    assert exceeded({"empty": 0}, hold("1", empty=1), []) == "empty"
    assert exceeded({}, hold("1", mem=0), []) is None
    assert exceeded({}, hold("1", mem=1), []) == "mem"


def test_what_others_use_up_of_something_else_does_not_matter():
    assert exceeded({"mem": 10**9}, hold("1", mem=1), [[hold("2", other=99)]]) is None


@pytest.mark.parametrize(
    ("common", "groups", "expected"),
    [("", "", ""), ("x", "x", "x"), ("xy", "yz", "y"), ("x", "y", None), ("x", "", None), ("", "x", None)],
)
def test_groups_narrow_to_what_is_common(common, groups, expected):
    running, joining = frozenset(common), frozenset(groups)
    assert admits_groups(running, joining) == (expected is not None)
    if expected is not None:
        assert narrow_groups(running, joining) == frozenset(expected)
    assert admits_groups(None, joining)
    assert narrow_groups(None, joining) == joining


# --- occupancy -------------------------------------------------------------------


def test_an_exclusive_device_has_one_holder():
    occupancy = occupancy_of("g", "h")
    assert give(occupancy, "a", "g") is None
    assert ask(occupancy, "b", "g") == Conflict(Rule.HELD, ("d", "p", "g"), "a")
    assert give(occupancy, "b", "h") is None
    assert str(DeviceId("d", "p", "g")) == "d/p/g"


def test_a_claim_does_not_stand_in_its_own_way():
    occupancy = occupancy_of("g", SHARED, part("p0"), set="3")
    for _ in range(3):
        assert give(occupancy, "a", "g", share("1", "10"), "p0") is None


def test_a_device_in_several_states_of_a_claim_is_free_when_the_last_is_struck_out():
    occupancy = occupancy_of("g", "h")
    first, second = holds_of(given("g")), holds_of(given("g", "h"))
    undos = [occupancy.take("a", each) for each in (first, second, first)]
    for undo in undos[:2]:
        undo()
        assert ask(occupancy, "b", "g").rule is Rule.HELD
    assert ask(occupancy, "b", "h") is None
    undos[2]()
    assert ask(occupancy, "b", "g") is None
    assert occupancy.ledger.is_empty


def test_the_state_that_is_struck_out_is_the_one_that_was_entered():
    occupancy = occupancy_of(SHARED)
    small, large = holds_of(given(share("1", "2"))), holds_of(given(share("2", "9")))
    occupancy.take("a", small)
    occupancy.take("a", large)()
    assert give(occupancy, "b", share("2", "8")) is None


def test_only_claims_that_count_stand_in_the_way():
    occupancy = occupancy_of("g", SHARED, part("p0"), part("p1"), part("p2", groups="x"), set="5")
    occupancy.take("a", holds_of(given("g", share("1", "6"), "p0")))
    for wanted in ("g", share("2", "5"), "p1", "p2"):
        assert ask(occupancy, "b", wanted) is not None
        assert ask(occupancy, "b", wanted, counts=lambda uid: uid == "a") is not None
        assert ask(occupancy, "b", wanted, counts=lambda uid: uid != "a") is None


def test_shares_stay_within_the_capacity():
    occupancy = occupancy_of(SHARED)
    assert give(occupancy, "a", share("1", "6")) is None
    assert ask(occupancy, "b", share("2", "5")) == Conflict(Rule.CAPACITY, ("d", "p", "s"), "a", "mem")
    assert give(occupancy, "b", share("2", "4")) is None
    assert give(occupancy, "c", share("2", "0")) is Rule.HELD  # the share, not the amount
    assert give(occupancy, "c", "s") is Rule.HELD


def test_counters_are_drawn_once_for_a_device_that_many_share():
    shared_part = part("p0", "3", allowMultipleAllocations=True, capacity={"mem": {"value": "10"}})
    occupancy = occupancy_of(shared_part, part("p1", "3"), set="6")
    assert give(occupancy, "a", share("1", "1", "p0")) is None
    assert give(occupancy, "b", share("2", "1", "p0")) is None
    assert give(occupancy, "c", "p1") is None


def test_counters_are_not_exceeded_by_one_claim_or_several():
    occupancy = occupancy_of(part("p0"), part("p1"), part("p2"), set="7")
    assert ask(occupancy, "a", "p0", "p1", "p2").rule is Rule.COUNTER
    assert give(occupancy, "a", "p0") is None
    assert give(occupancy, "b", "p1") is None
    assert ask(occupancy, "c", "p2") == Conflict(Rule.COUNTER, ("d", "p", "p2"), "", "c", "set")


def test_counter_sets_do_not_mix():
    occupancy = occupancy_of(part("p0"), part("q0", counter_set="other"), set="3", other="3")
    assert give(occupancy, "a", "p0") is None
    assert give(occupancy, "b", "q0") is None


def test_a_device_that_draws_from_two_sets_needs_both():
    both = {
        "name": "b",
        "consumesCounters": [part("", counter_set=each)["consumesCounters"][0] for each in "xy"],
    }
    occupancy = occupancy_of(both, part("y0", counter_set="y"), x="3", y="5")
    assert give(occupancy, "a", "y0") is None
    assert ask(occupancy, "b", "b") == Conflict(Rule.COUNTER, ("d", "p", "b"), "", "c", "y")


def test_devices_in_use_have_a_group_in_common():
    occupancy = occupancy_of(
        part("p0", "1", "xy"), part("p1", "1", "yz"), part("p2", "1", "xz"), part("p3", "1"), set="9"
    )
    assert give(occupancy, "a", "p0") is None
    assert give(occupancy, "b", "p1") is None
    # Each two have one in common, the three have not.
    assert ask(occupancy, "c", "p2") == Conflict(Rule.GROUPS, ("d", "p", "p2"), counter_set="set")
    assert give(occupancy, "c", "p3") is Rule.GROUPS


def test_other_pools_have_other_counters():
    occupancy = occupancy_of(part("p0"), set="3")
    other = msgspec.to_builtins(published(part("p0"), name="t", set="3"))
    other["spec"]["pool"]["name"] = "q"
    occupancy.set_slice(None, msgspec.convert(other, Slice))
    assert give(occupancy, "a", "p0") is None
    assert give(occupancy, "b", {"pool": "q", "device": "p0"}) is None


# --- bad data -------------------------------------------------------------------


def test_of_a_device_that_is_not_published_only_the_holders_are_known():
    occupancy = occupancy_of("g")
    assert give(occupancy, "a", "ghost", share("1", "99", "phantom")) is None
    assert give(occupancy, "b", "ghost") is Rule.HELD
    assert give(occupancy, "b", share("2", "99", "phantom")) is None
    assert give(occupancy, "c", share("2", "99", "phantom")) is Rule.HELD


def test_counters_that_are_not_published_are_empty():
    occupancy = occupancy_of(part("p0"), part("p1", "0"), part("p2", counter_set="none"))
    assert give(occupancy, "a", "p0") is Rule.COUNTER
    assert give(occupancy, "a", "p1") is None
    assert give(occupancy, "a", "p2") is Rule.COUNTER


def test_held_devices_that_are_no_longer_published_draw_nothing():
    occupancy = occupancy_of(part("p0"), part("p1"), set="3")
    assert give(occupancy, "a", "p0") is None
    occupancy.set_slice(published(part("p0"), part("p1"), set="3"), published(part("p1"), set="3"))
    assert give(occupancy, "b", "p1") is None


def test_counters_below_nothing_make_no_room():
    occupancy = occupancy_of(part("p0", "-5"), part("p1", "3"), set="2")
    assert give(occupancy, "a", "p0") is None
    assert give(occupancy, "b", "p1") is Rule.COUNTER


def test_older_generations_say_nothing():
    occupancy = occupancy_of("g", SHARED, part("p0"), set="9")
    newer = published({**SHARED, "capacity": {"mem": {"value": "1"}}}, part("p0"), name="new", generation=2)
    occupancy.set_slice(None, newer)
    assert occupancy.pools.facts(DeviceId("d", "p", "g")) is None
    assert give(occupancy, "a", share("1", "2")) is Rule.CAPACITY
    assert give(occupancy, "a", "p0") is Rule.COUNTER  # the counters are those of the old generation
    occupancy.set_slice(newer, None)
    assert give(occupancy, "a", share("1", "2"), "p0") is None


def test_a_slice_that_moves_to_another_pool_leaves_the_old_one():
    occupancy = occupancy_of("g")
    old = published("g")
    moved = msgspec.to_builtins(old)
    moved["spec"]["pool"]["name"] = "q"
    occupancy.set_slice(old, msgspec.convert(moved, Slice))
    assert occupancy.pools.facts(DeviceId("d", "p", "g")) is None
    assert occupancy.pools.facts(DeviceId("d", "q", "g")) is not None
    assert occupancy.pools.drawers(("d", "p"), "set") == ()


def test_a_slice_that_was_never_seen_can_go():
    occupancy = Occupancy()
    occupancy.set_slice(published("g"), None)
    assert occupancy.pools.device(DeviceId("d", "p", "g")) is None


def test_names_that_nobody_publishes_do_not_pile_up():
    occupancy = occupancy_of("g")
    assert give(occupancy, "a", "ghost", {"pool": "nowhere", "device": "g"}) is None
    occupancy.set_slice(published("g"), None)
    assert occupancy.pools._slices == occupancy.pools._pools == {}


def test_whole_slices_are_read_like_light_ones():
    devices = [SHARED, part("p0"), {"name": "bare"}, {"name": "odd", "capacity": None}]
    light, whole = Occupancy(), Occupancy()
    light.set_slice(None, published(*devices[:3], set="3"))
    whole.set_slice(None, published(*devices, set="3", view=ResourceSlice))
    for occupancy in (light, whole):
        assert give(occupancy, "a", share("1", "10"), "p0", "bare") is None
        assert give(occupancy, "b", share("2", "1")) is Rule.CAPACITY
    assert give(whole, "b", "odd") is None
    assert whole.pools.device(DeviceId("d", "p", "p0")).name == "p0"


# --- who is concerned -----------------------------------------------------------


def test_excluded_claims_are_those_that_hold_the_same():
    occupancy = occupancy_of("g", SHARED)
    occupancy.take("a", holds_of(given("g")))
    occupancy.take("b", holds_of(given(share("1", "1"))))
    occupancy.take("c", holds_of(given(share("2", "1"))))
    assert list(occupancy.excluded("x", holds_of(given("g", share("2", "99"))))) == ["a", "c"]
    assert list(occupancy.excluded("x", holds_of(given("s")))) == ["b", "c"]
    assert list(occupancy.excluded("a", holds_of(given("g", share("3", "99"))))) == []


def test_involved_claims_are_those_on_the_device_or_its_counters():
    occupancy = occupancy_of("g", part("p0"), part("p1"), part("q0", counter_set="other"), set="9", other="9")
    for uid, device in [("a", "g"), ("b", "p0"), ("c", "q0"), ("d", "ghost")]:
        occupancy.take(uid, holds_of(given(device)))
    assert list(occupancy.involved("x", holds_of(given("p1")))) == ["b"]
    assert sorted(occupancy.involved("x", holds_of(given("g", "q0", "ghost")))) == ["a", "c", "d"]
    assert list(occupancy.involved("b", holds_of(given("p1")))) == []
