"""The referee: of two claims that cannot both stand, exactly the later one yields."""

import msgspec
import pytest

from dray.api.resource import ResourceClaim, ResourceSlice
from dray.control.scheduling.rivals import Rivals


def claim(name, revision, *results):
    body = {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(revision)},
        "status": {
            "allocation": {
                "devices": {
                    "results": [{"request": "r", "driver": "d", "pool": "p", **each} for each in results]
                }
            }
        },
    }
    return msgspec.convert(body, ResourceClaim)


def pool(*devices, counters=None):
    body = {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "d",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }
    if counters:
        body["spec"]["sharedCounters"] = [{"name": "set", "counters": {"c": {"value": counters}}}]
    return msgspec.convert(body, ResourceSlice)


def share(name, amount):
    return {"device": "g", "shareID": name, "consumedCapacity": {"memory": amount}}


def judged(first, second, *slices):
    rivals = Rivals()
    for each in slices:
        rivals.set_slice(None, each)
    rivals.set_claim(None, first)
    rivals.set_claim(None, second)
    return rivals.conflict(first), rivals.conflict(second)


def test_an_exclusive_device_stays_with_the_first():
    assert judged(claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "g"})) == (None, "d/p/g")
    assert judged(claim("b", 11, {"device": "g"}), claim("a", 10, {"device": "g"})) == ("d/p/g", None)


def test_other_devices_and_admin_access_do_not_matter():
    assert judged(claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "h"})) == (None, None)
    assert judged(claim("a", 10, {"device": "g", "adminAccess": True}), claim("b", 11, {"device": "g"})) == (
        None,
        None,
    )


def test_a_later_change_of_the_first_claim_does_not_cost_it_its_rank():
    rivals = Rivals()
    first, second = claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "g"})
    rivals.set_claim(None, first)
    rivals.set_claim(None, second)
    rivals.set_claim(first, claim("a", 12, {"device": "g"}))
    assert rivals.conflict(second) == "d/p/g"
    assert rivals.conflict(claim("a", 12, {"device": "g"})) is None


def test_shares_yield_when_the_capacity_is_exceeded_and_not_before():
    device = {"name": "g", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}}
    fits = judged(claim("a", 10, share("x", "4Gi")), claim("b", 11, share("y", "6Gi")), pool(device))
    assert fits == (None, None)
    over = judged(claim("a", 10, share("x", "5Gi")), claim("b", 11, share("y", "6Gi")), pool(device))
    assert over == (None, "a share of d/p/g")


@pytest.mark.parametrize(("limit", "expected"), [("2", (None, None)), ("1", (None, "a counter of d/p/h"))])
def test_counters_are_added_up_over_devices(limit, expected):
    draws = [{"counterSet": "set", "counters": {"c": {"value": "1"}}}]
    devices = [{"name": name, "consumesCounters": draws} for name in ("g", "h")]
    found = judged(
        claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "h"}), pool(*devices, counters=limit)
    )
    assert found == expected


def test_when_the_first_lets_go_the_second_may_stay():
    rivals = Rivals()
    first, second = claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "g"})
    rivals.set_claim(None, first)
    rivals.set_claim(None, second)
    rivals.set_claim(first, None)
    assert rivals.conflict(second) is None


def test_those_who_never_yield_count_as_earlier():
    rivals = Rivals()
    mine, foreign = claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "g"})
    rivals.set_claim(None, mine)
    rivals.set_claim(None, foreign)
    assert rivals.conflict(mine) is None
    assert rivals.conflict(mine, yields_to={"b"}) == "d/p/g"
    assert list(rivals.others(foreign.status.allocation, "b")) == ["a"]


def test_parts_that_are_not_compatible_yield():
    def part(name, *groups):
        counters = {"c": {"value": "1"}}
        draw = {"counterSet": "set", "counters": counters, "compatibilityGroups": groups}
        return {"name": name, "consumesCounters": [draw]}

    devices = pool(part("g", "x"), part("h", "x", "y"), part("i", "y"), counters="9")
    first = claim("a", 10, {"device": "g"})
    assert judged(first, claim("b", 11, {"device": "h"}), devices) == (None, None)
    assert judged(first, claim("b", 11, {"device": "i"}), devices) == (
        None,
        "a compatibility group of d/p/i",
    )


def test_a_share_yields_to_the_whole_device_and_to_the_same_share():
    device = {"name": "g", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}}
    whole = claim("a", 10, {"device": "g"})
    assert judged(whole, claim("b", 11, share("x", "1Gi")), pool(device)) == (None, "d/p/g")
    same = claim("a", 10, share("x", "1Gi"))
    assert judged(same, claim("b", 11, share("x", "1Gi")), pool(device)) == (None, "d/p/g")


def test_a_device_that_is_not_published_still_stays_with_the_first():
    first, second = claim("a", 10, share("x", "99Gi")), claim("b", 11, {"device": "g"})
    assert judged(first, second) == (None, "d/p/g")
    assert judged(first, claim("b", 11, share("y", "99Gi"))) == (None, None)


def test_what_no_longer_fits_by_itself_is_given_up():
    device = {"name": "g", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "0"}}}
    rivals = Rivals()
    alone = claim("a", 10, share("x", "1Gi"))
    rivals.set_slice(None, pool(device))
    rivals.set_claim(None, alone)
    assert rivals.conflict(alone) == "a share of d/p/g"


def test_a_claim_that_was_never_seen_or_holds_nothing_has_no_rivals():
    rivals = Rivals()
    assert rivals.conflict(claim("a", 10, {"device": "g"})) is None
    empty = msgspec.convert({"metadata": {"name": "a", "uid": "a"}}, ResourceClaim)
    rivals.set_claim(None, empty)
    assert rivals.conflict(empty) is None


def test_a_claim_that_is_seen_twice_counts_once():
    rivals = Rivals()
    first, second = claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "g"})
    rivals.set_claim(None, first)
    rivals.set_claim(None, first)
    rivals.set_claim(first, None)
    rivals.set_claim(None, second)
    assert rivals.conflict(second) is None


def test_the_device_of_a_result_is_the_one_of_the_newest_generation():
    rivals = Rivals()
    old = pool({"name": "g"}, {"name": "h"})
    rivals.set_slice(None, old)
    [wanted] = claim("a", 10, {"device": "h"}).status.allocation.devices.results
    assert rivals.device_of(wanted).name == "h"
    newer = msgspec.to_builtins(pool({"name": "g"}))
    newer["metadata"]["name"], newer["spec"]["pool"]["generation"] = "new", 2
    rivals.set_slice(None, msgspec.convert(newer, ResourceSlice))
    assert rivals.device_of(wanted) is None
