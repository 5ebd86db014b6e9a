"""Partitions by type: how many there are, how many still fit, and what makes that unanswerable."""

import msgspec

from dray.api.resource import ResourceSlice
from dray.control.partition_status import partition_summary

ATTRIBUTE = "gpu.example.com/profile"


def part(name, profile, size, key="profile"):
    draws = [{"counterSet": "board", "counters": {"memory": {"value": size}}}]
    attributes = {key: {"string": profile}} if profile else {}
    return {"name": name, "attributes": attributes, "consumesCounters": draws}


def pool(*devices, attribute=ATTRIBUTE, memory="40Gi"):
    counters = [{"name": "board", "counters": {"memory": {"value": memory}}}] if memory else []
    specs = [{"sharedCounters": counters}, {"devices": list(devices), "partitionTypeAttribute": attribute}]
    return [msgspec.convert({"spec": spec}, ResourceSlice) for spec in specs]


def summary(slices, in_use=(), default=None):
    found = partition_summary("gpu.example.com", slices, set(in_use), default)
    if not isinstance(found, list):
        return found
    return {each["type"]: (each["total"], each["allocatable"]) for each in found}


SMALL = [part(f"small-{index}", "1g", "5Gi") for index in range(7)]


def test_each_type_has_the_room_that_the_counters_leave():
    slices = pool(part("whole", "7g", "40Gi"), *SMALL)
    assert summary(slices) == {"7g": (1, 1), "1g": (7, 7)}
    assert summary(slices, ["small-0"]) == {"7g": (1, 0), "1g": (7, 6)}
    assert summary(slices, ["whole"]) == {"7g": (1, 0), "1g": (7, 0)}


def test_more_devices_than_fit_are_not_counted_twice():
    assert summary(pool(*SMALL, memory="12Gi")) == {"1g": (7, 2)}
    assert summary(pool(*SMALL, memory="12Gi"), ["small-0", "small-1"]) == {"1g": (7, 0)}


def test_the_request_names_the_attribute_where_no_slice_does():
    slices = pool(*SMALL, attribute=None)
    assert summary(slices) is None
    assert summary(slices, default=ATTRIBUTE) == {"1g": (7, 7)}
    assert summary(pool(*SMALL), default="example.com/other") == {"1g": (7, 7)}, "the driver knows better"


def test_what_has_no_answer_says_so():
    assert summary(pool(part("odd", None, "5Gi"))).startswith("PartitionTypeMissing: device odd")
    assert summary(pool(*SMALL, part("odd", "1g", "6Gi"))).startswith("PartitionCostMismatch")
    assert summary(pool(*SMALL, memory=None)).startswith("PartitionTypeMissing")
    many = [part(f"p{index}", f"t{index}", "1") for index in range(33)]
    assert summary(pool(*many)).startswith("PartitionSummaryOverCap")
    other = part("far", "1g", "5Gi", key="other.example.com/profile")
    assert summary(pool(other)).startswith("PartitionTypeMissing"), "another domain is another attribute"
