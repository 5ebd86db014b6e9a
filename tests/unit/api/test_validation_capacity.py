"""Request policies of shared capacities: valid values and ranges."""

import pytest
from validation_cases import EVERYTHING, SLICE, changed, judged, resource_slice

from dray.api.validation import ValidationContext

POLICY = "spec.devices.0.capacity.mem.requestPolicy"
FIELD = "spec.devices[0].capacity[mem].requestPolicy"
HUGE = "20E"


def with_policy(policy, value="10"):
    return changed(
        resource_slice(), ("spec.devices.0.capacity.mem", {"value": value, "requestPolicy": policy})
    )


def in_range(default, **bounds):
    return {"default": default, "validRange": bounds}


def of_values(default, *values):
    return {"default": default, "validValues": list(values)}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # a default alone is not looked at
        ({"default": "11"}, []),
        ({"default": "-1"}, []),
        ({}, []),
        ({"default": "1", "validValues": ["1"], "validRange": {"min": "1"}}, [("Forbidden", "")]),
        # values
        (of_values("1", "1", "2"), []),
        ({"validValues": ["1"]}, [("Required", ".default")]),
        (of_values("3", "1", "2"), [("Invalid", ".validValues")]),
        (of_values("1", "2", "1"), [("Invalid", ".validValues[1]")]),
        (of_values("1", "1", "11"), [("Invalid", ".validValues[1]")]),
        (of_values("1", "1", "1"), [("Duplicate", ".validValues[1]")]),
        (of_values("100m", "100m", "200m"), [("Duplicate", ".validValues[1]")]),
        (of_values("1", *(str(n) for n in range(11))), [("Invalid", ".validValues"), ("Invalid", ".validValues[10]"), ("TooMany", ".validValues")][::2]),
        # ranges
        (in_range("2", min="1"), []),
        (in_range("-1", min="-1"), []),
        ({"validRange": {"min": "1"}}, [("Required", ".default")]),
        (in_range("1", max="4"), [("Required", ".validRange.min")]),
        (in_range("1", min="2"), [("Invalid", ".validRange.default")]),
        (in_range("11", min="11"), [("Invalid", ".validRange.min")]),
        (in_range("2", min="2", max="1"), [("Invalid", ".validRange.default"), ("Invalid", ".validRange.max")]),
        (in_range("2", min="1", max="11"), [("Invalid", ".validRange.max")]),
        (in_range("5", min="1", max="4"), [("Invalid", ".validRange.default")]),
        (in_range("1", min="1", step="0"), [("Invalid", ".validRange.step")]),
        (in_range("1", min="1", step="-1"), [("Invalid", ".validRange.step")]),
        (in_range("5", min="5", step="6"), [("Invalid", ".validRange.step")]),
        (in_range("4", min="1", step="2"), [("Invalid", ".validRange.step")]),
        (in_range("3", min="1", max="4", step="2"), [("Invalid", ".validRange.step")]),
        (in_range("1", min="-1", step="2"), [("Invalid", ".validRange.min")]),
    ],
)  # fmt: skip
def test_a_broken_policy_is_named(policy, expected):
    assert judged(SLICE, with_policy(policy)) == sorted((kind, FIELD + field) for kind, field in expected)


def test_amounts_beyond_64_bits_cannot_be_stepped():
    broken = with_policy(in_range(HUGE, min=HUGE, step="1"), value="30E")
    assert judged(SLICE, broken) == [
        ("Invalid", f"{FIELD}.validRange.default"),
        ("Invalid", f"{FIELD}.validRange.min"),
    ]


def test_a_device_that_is_not_shared_has_no_policies():
    broken = changed(resource_slice(), ("spec.devices.0.allowMultipleAllocations", False))
    assert ("Forbidden", FIELD) in judged(SLICE, broken)


class TestFractions:
    CONTEXT = ValidationContext(features=EVERYTHING.switched(on=["DRAFractionalCapacityRange"]))

    def test_values_are_told_apart_exactly(self):
        assert judged(SLICE, with_policy(of_values("100m", "100m", "200m")), self.CONTEXT) == []
        assert judged(SLICE, with_policy(of_values("1", "1", "1000m")), self.CONTEXT) == [
            ("Duplicate", f"{FIELD}.validValues[1]")
        ]

    def test_steps_may_be_fractions(self):
        assert judged(SLICE, with_policy(in_range("500m", min="0", step="250m")), self.CONTEXT) == []
        assert judged(SLICE, with_policy(in_range("600m", min="0", step="250m")), self.CONTEXT) == [
            ("Invalid", f"{FIELD}.validRange.step")
        ]

    def test_less_than_a_thousandth_cannot_be_handed_out(self):
        broken = with_policy(in_range("1u", min="0", step="1u"))
        assert judged(SLICE, broken, self.CONTEXT) == [
            ("Invalid", f"{FIELD}.validRange.default"),
            ("Invalid", f"{FIELD}.validRange.step"),
        ]
