"""Of two allocations that cannot both stand, exactly the later one is a conflict."""

import msgspec
import pytest

from dray.api.resource import ResourceClaim, ResourceSlice
from dray.scheduler.verification import AllocationVerifier

HELD_BY_A = "device d/p/g is already allocated to claim ns/a"


def claim(name, revision, *results):
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(revision)},
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
    verifier = AllocationVerifier()
    for each in slices:
        verifier.set_slice(None, each)
    verifier.set_claim(None, first)
    verifier.set_claim(None, second)
    return verifier.conflict(first), verifier.conflict(second)


def test_an_exclusive_device_stays_with_the_first():
    assert judged(claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "g"})) == (None, HELD_BY_A)
    assert judged(claim("b", 11, {"device": "g"}), claim("a", 10, {"device": "g"})) == (HELD_BY_A, None)


def test_other_devices_and_admin_access_do_not_matter():
    assert judged(claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "h"})) == (None, None)
    assert judged(claim("a", 10, {"device": "g", "adminAccess": True}), claim("b", 11, {"device": "g"})) == (
        None,
        None,
    )


def test_a_later_change_of_the_first_claim_does_not_cost_it_its_rank():
    verifier = AllocationVerifier()
    first, second = claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "g"})
    verifier.set_claim(None, first)
    verifier.set_claim(None, second)
    verifier.set_claim(first, claim("a", 12, {"device": "g"}))
    assert verifier.conflict(second) == HELD_BY_A
    assert verifier.conflict(claim("a", 12, {"device": "g"})) is None


def test_shares_conflict_when_the_capacity_is_exceeded_and_not_before():
    device = {"name": "g", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}}
    fits = judged(claim("a", 10, share("x", "4Gi")), claim("b", 11, share("y", "6Gi")), pool(device))
    assert fits == (None, None)
    over = judged(claim("a", 10, share("x", "5Gi")), claim("b", 11, share("y", "6Gi")), pool(device))
    assert over == (None, "device d/p/g does not have enough memory left")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("2", (None, None)), ("1", (None, "device d/p/h needs more of counter set/c than is left"))],
)
def test_counters_are_added_up_over_devices(limit, expected):
    draws = [{"counterSet": "set", "counters": {"c": {"value": "1"}}}]
    devices = [{"name": name, "consumesCounters": draws} for name in ("g", "h")]
    found = judged(
        claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "h"}), pool(*devices, counters=limit)
    )
    assert found == expected


def test_when_the_first_is_released_the_second_may_stay():
    verifier = AllocationVerifier()
    first, second = claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "g"})
    verifier.set_claim(None, first)
    verifier.set_claim(None, second)
    verifier.set_claim(first, None)
    assert verifier.conflict(second) is None


def test_parts_that_are_not_compatible_conflict():
    def part(name, *groups):
        counters = {"c": {"value": "1"}}
        draw = {"counterSet": "set", "counters": counters, "compatibilityGroups": groups}
        return {"name": name, "consumesCounters": [draw]}

    devices = pool(part("g", "x"), part("h", "x", "y"), part("i", "y"), counters="9")
    first = claim("a", 10, {"device": "g"})
    assert judged(first, claim("b", 11, {"device": "h"}), devices) == (None, None)
    assert judged(first, claim("b", 11, {"device": "i"}), devices) == (
        None,
        "device d/p/i is not compatible with the partitions in use",
    )


def test_a_share_conflicts_with_the_whole_device_and_to_the_same_share():
    device = {"name": "g", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}}
    whole = claim("a", 10, {"device": "g"})
    assert judged(whole, claim("b", 11, share("x", "1Gi")), pool(device)) == (None, HELD_BY_A)
    same = claim("a", 10, share("x", "1Gi"))
    assert judged(same, claim("b", 11, share("x", "1Gi")), pool(device)) == (None, HELD_BY_A)


def test_a_device_that_is_not_published_still_stays_with_the_first():
    first, second = claim("a", 10, share("x", "99Gi")), claim("b", 11, {"device": "g"})
    assert judged(first, second) == (None, HELD_BY_A)
    assert judged(first, claim("b", 11, share("y", "99Gi"))) == (None, None)


def test_what_no_longer_fits_by_itself_is_a_conflict():
    device = {"name": "g", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "0"}}}
    verifier = AllocationVerifier()
    alone = claim("a", 10, share("x", "1Gi"))
    verifier.set_slice(None, pool(device))
    verifier.set_claim(None, alone)
    assert verifier.conflict(alone) == "device d/p/g does not have enough memory left"


def test_a_claim_that_was_never_seen_or_holds_nothing_has_no_conflict():
    verifier = AllocationVerifier()
    assert verifier.conflict(claim("a", 10, {"device": "g"})) is None
    empty = msgspec.convert({"metadata": {"name": "a", "uid": "a"}}, ResourceClaim)
    verifier.set_claim(None, empty)
    assert verifier.conflict(empty) is None


def test_a_claim_that_is_seen_twice_counts_once():
    verifier = AllocationVerifier()
    first, second = claim("a", 10, {"device": "g"}), claim("b", 11, {"device": "g"})
    verifier.set_claim(None, first)
    verifier.set_claim(None, first)
    verifier.set_claim(first, None)
    verifier.set_claim(None, second)
    assert verifier.conflict(second) is None


def test_the_device_of_a_result_is_the_one_of_the_newest_generation():
    verifier = AllocationVerifier()
    old = pool({"name": "g"}, {"name": "h"})
    verifier.set_slice(None, old)
    [wanted] = claim("a", 10, {"device": "h"}).status.allocation.devices.results
    assert verifier.device_of(wanted).name == "h"
    newer = msgspec.to_builtins(pool({"name": "g"}))
    newer["metadata"]["name"], newer["spec"]["pool"]["generation"] = "new", 2
    verifier.set_slice(None, msgspec.convert(newer, ResourceSlice))
    assert verifier.device_of(wanted) is None
