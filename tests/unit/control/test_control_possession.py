"""The rules of possession: what goes together, what does not, and what to make of bad data."""

import msgspec
import pytest

from dray.api.quantity import QuantityError
from dray.api.resource import DeviceRequestAllocationResult, ResourceSlice
from dray.control.guarding.views import Result, Slice
from dray.control.possession import (
    Book,
    Hold,
    Objection,
    Rule,
    exceeded,
    excludes,
    holds_of,
    narrowed,
    spell,
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


def book_of(*devices, **counters):
    book = Book()
    book.set_slice(None, published(*devices, **counters))
    return book


def ask(book, uid, *wishes, counts=None):
    return book.objection(uid, holds_of(given(*wishes)), counts)


def give(book, uid, *wishes):
    """Enter what goes together with the rest; return the rule that stands against it otherwise."""
    objection = ask(book, uid, *wishes)
    if objection is None:
        book.take(uid, holds_of(given(*wishes)))
        return None
    return objection.rule


# --- holds ----------------------------------------------------------------------


def test_a_device_is_held_whole_or_in_shares():
    assert holds_of(given("g", share("1", "2"))) == {
        ("d", "p", "g"): WHOLE,
        ("d", "p", "s"): hold("1", mem=2),
    }


def test_both_forms_of_results_are_read_alike():
    wishes = ["g", share("1", "2"), {"device": "x", "adminAccess": True}]
    assert holds_of(given(*wishes)) == holds_of(given(*wishes, view=DeviceRequestAllocationResult))


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
    found = narrowed(frozenset(common), frozenset(groups))
    assert found == (None if expected is None else frozenset(expected))
    assert narrowed(None, frozenset(groups)) is None


# --- the book -------------------------------------------------------------------


def test_an_exclusive_device_has_one_holder():
    book = book_of("g", "h")
    assert give(book, "a", "g") is None
    assert ask(book, "b", "g") == Objection(Rule.HELD, ("d", "p", "g"), "a")
    assert give(book, "b", "h") is None
    assert spell(("d", "p", "g")) == "d/p/g"


def test_a_claim_does_not_stand_in_its_own_way():
    book = book_of("g", SHARED, part("p0"), set="3")
    for _ in range(3):
        assert give(book, "a", "g", share("1", "10"), "p0") is None


def test_a_device_in_several_states_of_a_claim_is_free_when_the_last_is_struck_out():
    book = book_of("g", "h")
    first, second = holds_of(given("g")), holds_of(given("g", "h"))
    for each in (first, second, first):
        book.take("a", each)
    for each in (first, second):
        book.release("a", each)
        assert ask(book, "b", "g").rule is Rule.HELD
    assert ask(book, "b", "h") is None
    book.release("a", first)
    assert ask(book, "b", "g") is None
    assert book.is_empty


def test_the_state_that_is_struck_out_is_the_one_that_was_entered():
    book = book_of(SHARED)
    small, large = holds_of(given(share("1", "2"))), holds_of(given(share("2", "9")))
    book.take("a", small)
    book.take("a", large)
    book.release("a", large)
    assert give(book, "b", share("2", "8")) is None


def test_only_claims_that_count_stand_in_the_way():
    book = book_of("g", SHARED, part("p0"), part("p1"), part("p2", groups="x"), set="5")
    book.take("a", holds_of(given("g", share("1", "6"), "p0")))
    for wish in ("g", share("2", "5"), "p1", "p2"):
        assert ask(book, "b", wish) is not None
        assert ask(book, "b", wish, counts=lambda uid: uid == "a") is not None
        assert ask(book, "b", wish, counts=lambda uid: uid != "a") is None


def test_shares_stay_within_the_capacity():
    book = book_of(SHARED)
    assert give(book, "a", share("1", "6")) is None
    assert ask(book, "b", share("2", "5")) == Objection(Rule.CAPACITY, ("d", "p", "s"), "a", "mem")
    assert give(book, "b", share("2", "4")) is None
    assert give(book, "c", share("2", "0")) is Rule.HELD  # the share, not the amount
    assert give(book, "c", "s") is Rule.HELD


def test_counters_are_drawn_once_for_a_device_that_many_share():
    shared_part = part("p0", "3", allowMultipleAllocations=True, capacity={"mem": {"value": "10"}})
    book = book_of(shared_part, part("p1", "3"), set="6")
    assert give(book, "a", share("1", "1", "p0")) is None
    assert give(book, "b", share("2", "1", "p0")) is None
    assert give(book, "c", "p1") is None


def test_counters_are_not_exceeded_by_one_claim_or_several():
    book = book_of(part("p0"), part("p1"), part("p2"), set="7")
    assert ask(book, "a", "p0", "p1", "p2").rule is Rule.COUNTER
    assert give(book, "a", "p0") is None
    assert give(book, "b", "p1") is None
    assert ask(book, "c", "p2") == Objection(Rule.COUNTER, ("d", "p", "p2"), "", "c", "set")


def test_counter_sets_do_not_mix():
    book = book_of(part("p0"), part("q0", counter_set="other"), set="3", other="3")
    assert give(book, "a", "p0") is None
    assert give(book, "b", "q0") is None


def test_a_device_that_draws_from_two_sets_needs_both():
    both = {
        "name": "b",
        "consumesCounters": [part("", counter_set=each)["consumesCounters"][0] for each in "xy"],
    }
    book = book_of(both, part("y0", counter_set="y"), x="3", y="5")
    assert give(book, "a", "y0") is None
    assert ask(book, "b", "b") == Objection(Rule.COUNTER, ("d", "p", "b"), "", "c", "y")


def test_devices_in_use_have_a_group_in_common():
    book = book_of(
        part("p0", "1", "xy"), part("p1", "1", "yz"), part("p2", "1", "xz"), part("p3", "1"), set="9"
    )
    assert give(book, "a", "p0") is None
    assert give(book, "b", "p1") is None
    # Each two have one in common, the three have not.
    assert ask(book, "c", "p2") == Objection(Rule.GROUPS, ("d", "p", "p2"), counter_set="set")
    assert give(book, "c", "p3") is Rule.GROUPS


def test_other_pools_have_other_counters():
    book = book_of(part("p0"), set="3")
    other = msgspec.to_builtins(published(part("p0"), name="t", set="3"))
    other["spec"]["pool"]["name"] = "q"
    book.set_slice(None, msgspec.convert(other, Slice))
    assert give(book, "a", "p0") is None
    assert give(book, "b", {"pool": "q", "device": "p0"}) is None


# --- bad data -------------------------------------------------------------------


def test_of_a_device_that_is_not_published_only_the_holders_are_known():
    book = book_of("g")
    assert give(book, "a", "ghost", share("1", "99", "phantom")) is None
    assert give(book, "b", "ghost") is Rule.HELD
    assert give(book, "b", share("2", "99", "phantom")) is None
    assert give(book, "c", share("2", "99", "phantom")) is Rule.HELD


def test_counters_that_are_not_published_are_empty():
    book = book_of(part("p0"), part("p1", "0"), part("p2", counter_set="none"))
    assert give(book, "a", "p0") is Rule.COUNTER
    assert give(book, "a", "p1") is None
    assert give(book, "a", "p2") is Rule.COUNTER


def test_held_devices_that_are_no_longer_published_draw_nothing():
    book = book_of(part("p0"), part("p1"), set="3")
    assert give(book, "a", "p0") is None
    book.set_slice(published(part("p0"), part("p1"), set="3"), published(part("p1"), set="3"))
    assert give(book, "b", "p1") is None


def test_counters_below_nothing_make_no_room():
    book = book_of(part("p0", "-5"), part("p1", "3"), set="2")
    assert give(book, "a", "p0") is None
    assert give(book, "b", "p1") is Rule.COUNTER


def test_older_generations_say_nothing():
    book = book_of("g", SHARED, part("p0"), set="9")
    newer = published({**SHARED, "capacity": {"mem": {"value": "1"}}}, part("p0"), name="new", generation=2)
    book.set_slice(None, newer)
    assert book.pools.facts(("d", "p", "g")) is None
    assert give(book, "a", share("1", "2")) is Rule.CAPACITY
    assert give(book, "a", "p0") is Rule.COUNTER  # the counters are those of the old generation
    book.set_slice(newer, None)
    assert give(book, "a", share("1", "2"), "p0") is None


def test_a_slice_that_moves_to_another_pool_leaves_the_old_one():
    book = book_of("g")
    old = published("g")
    moved = msgspec.to_builtins(old)
    moved["spec"]["pool"]["name"] = "q"
    book.set_slice(old, msgspec.convert(moved, Slice))
    assert book.pools.facts(("d", "p", "g")) is None
    assert book.pools.facts(("d", "q", "g")) is not None
    assert book.pools.drawers(("d", "p"), "set") == ()


def test_a_slice_that_was_never_seen_can_go():
    book = Book()
    book.set_slice(published("g"), None)
    assert book.pools.device(("d", "p", "g")) is None


def test_names_that_nobody_publishes_do_not_pile_up():
    book = book_of("g")
    assert give(book, "a", "ghost", {"pool": "nowhere", "device": "g"}) is None
    book.set_slice(published("g"), None)
    assert book.pools._slices == book.pools._pools == {}


def test_whole_slices_are_read_like_light_ones():
    devices = [SHARED, part("p0"), {"name": "bare"}, {"name": "odd", "capacity": None}]
    light, whole = Book(), Book()
    light.set_slice(None, published(*devices[:3], set="3"))
    whole.set_slice(None, published(*devices, set="3", view=ResourceSlice))
    for book in (light, whole):
        assert give(book, "a", share("1", "10"), "p0", "bare") is None
        assert give(book, "b", share("2", "1")) is Rule.CAPACITY
    assert give(whole, "b", "odd") is None
    assert whole.pools.device(("d", "p", "p0")).name == "p0"


# --- who is concerned -----------------------------------------------------------


def test_excluded_claims_are_those_that_hold_the_same():
    book = book_of("g", SHARED)
    book.take("a", holds_of(given("g")))
    book.take("b", holds_of(given(share("1", "1"))))
    book.take("c", holds_of(given(share("2", "1"))))
    assert list(book.excluded("x", holds_of(given("g", share("2", "99"))))) == ["a", "c"]
    assert list(book.excluded("x", holds_of(given("s")))) == ["b", "c"]
    assert list(book.excluded("a", holds_of(given("g", share("3", "99"))))) == []


def test_involved_claims_are_those_on_the_device_or_its_counters():
    book = book_of("g", part("p0"), part("p1"), part("q0", counter_set="other"), set="9", other="9")
    for uid, device in [("a", "g"), ("b", "p0"), ("c", "q0"), ("d", "ghost")]:
        book.take(uid, holds_of(given(device)))
    assert list(book.involved("x", holds_of(given("p1")))) == ["b"]
    assert sorted(book.involved("x", holds_of(given("g", "q0", "ghost")))) == ["a", "c", "d"]
    assert list(book.involved("b", holds_of(given("p1")))) == []
