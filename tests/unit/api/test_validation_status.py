"""Rules of statuses: allocation, reservations, devices, taint rules, pool status."""

import pytest
from validation_cases import (
    ABSENT,
    CLAIM,
    POOL,
    RULE,
    SHARE,
    TIME,
    allocated_claim,
    changed,
    claim,
    judged,
    judged_status,
    judged_update,
    pool_request,
    taint_rule,
)

from dray.api.validation import check_admin_access_of_status

RESULT, RESULT_FIELD = "status.allocation.devices.results.0", "status.allocation.devices.results[0]"
CONFIG, CONFIG_FIELD = "status.allocation.devices.config.0", "status.allocation.devices.config[0]"
DEVICE, DEVICE_FIELD = "status.devices.0", "status.devices[0]"


def test_an_allocation_with_everything_is_fine():
    assert judged_status(CLAIM, allocated_claim(), claim()) == []


def consumers(count):
    return [{"resource": "pods", "name": f"p{n}", "uid": f"u{n}"} for n in range(count)]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (f"{RESULT}.request", "nope", [("Invalid", f"{RESULT_FIELD}.request")]),
        (f"{RESULT}.driver", "", [("Required", f"{RESULT_FIELD}.driver")]),
        (f"{RESULT}.driver", "GPU", []),
        (f"{RESULT}.pool", "", [("Required", f"{RESULT_FIELD}.pool")]),
        (f"{RESULT}.pool", "A", [("Invalid", f"{RESULT_FIELD}.pool")]),
        (f"{RESULT}.device", "a.b", [("Invalid", f"{RESULT_FIELD}.device")]),
        (f"{RESULT}.shareID", "x", [("Invalid", f"{RESULT_FIELD}.shareID")]),
        (f"{RESULT}.shareID", SHARE.upper(), [("Invalid", f"{RESULT_FIELD}.shareID")]),
        (f"{RESULT}.bindingConditions", [], [("Invalid", f"{RESULT_FIELD}.bindingConditions")]),
        (f"{RESULT}.tolerations.0.value", "a b", [("Invalid", f"{RESULT_FIELD}.tolerations[0].value")]),
        (f"{RESULT}.skipNodeOperations", ["NodePrepareResources"], [("Invalid", f"{RESULT_FIELD}.skipNodeOperations")]),
        (f"{CONFIG}.source", "", [("Required", f"{CONFIG_FIELD}.source")]),
        (f"{CONFIG}.source", "FromUser", [("NotSupported", f"{CONFIG_FIELD}.source")]),
        (f"{CONFIG}.requests", ["nope"], [("Invalid", f"{CONFIG_FIELD}.requests[0]")]),
        (f"{CONFIG}.opaque", ABSENT, [("Required", f"{CONFIG_FIELD}.opaque")]),
        ("status.allocation.nodeSelector", {}, [("Required", "status.allocation.nodeSelector.nodeSelectorTerms")]),
        ("status.allocation.devices.config", [{"source": "FromClaim", "opaque": {"driver": "a", "parameters": {}}}] * 65, [("TooMany", "status.allocation.devices.config")]),
        # reservations
        ("status.reservedFor.0.uid", "", [("Required", "status.reservedFor[0].uid")]),
        ("status.reservedFor.0.uid", "any text", []),
        ("status.reservedFor.0.name", ABSENT, [("Required", "status.reservedFor[0].name")]),
        ("status.reservedFor.0.resource", ABSENT, [("Required", "status.reservedFor[0].resource")]),
        ("status.reservedFor", [*consumers(2), consumers(1)[0]], [("Duplicate", "status.reservedFor[2]")]),
        ("status.reservedFor", consumers(256), []),
        ("status.reservedFor", consumers(257), [("TooMany", "status.reservedFor")]),
        # devices
        (f"{DEVICE}.device", "d9", [("Invalid", DEVICE_FIELD)]),
        (f"{DEVICE}.shareID", SHARE, [("Invalid", DEVICE_FIELD)]),
        (f"{DEVICE}.driver", "a_b", [("Invalid", DEVICE_FIELD), ("Invalid", f"{DEVICE_FIELD}.driver")]),
        (f"{DEVICE}.data", [1], [("Invalid", f"{DEVICE_FIELD}.data")]),
        (f"{DEVICE}.data", {"a": "x" * 10240}, [("TooLong", f"{DEVICE_FIELD}.data")]),
        (f"{DEVICE}.networkData.ips", ["10.0.0.1"], [("Invalid", f"{DEVICE_FIELD}.networkData.ips[0]")]),
        (f"{DEVICE}.networkData.ips", ["10.00.0.1/24"], [("Invalid", f"{DEVICE_FIELD}.networkData.ips[0]")]),
        (f"{DEVICE}.networkData.ips", ["2001:DB8::1/64"], [("Invalid", f"{DEVICE_FIELD}.networkData.ips[0]")]),
        (f"{DEVICE}.networkData.ips", ["10.0.0.1/24"] * 2, [("Duplicate", f"{DEVICE_FIELD}.networkData.ips[1]")]),
        (f"{DEVICE}.networkData.ips", [f"10.0.0.{n}/24" for n in range(17)], [("TooMany", f"{DEVICE_FIELD}.networkData.ips")]),
        (f"{DEVICE}.networkData.interfaceName", "x" * 257, [("TooLong", f"{DEVICE_FIELD}.networkData.interfaceName")]),
        (f"{DEVICE}.networkData.hardwareAddress", "x" * 129, [("TooLong", f"{DEVICE_FIELD}.networkData.hardwareAddress")]),
        # conditions
        (f"{DEVICE}.conditions.0.type", "", [("Required", f"{DEVICE_FIELD}.conditions[0].type")]),
        (f"{DEVICE}.conditions.0.status", "Maybe", [("NotSupported", f"{DEVICE_FIELD}.conditions[0].status")]),
        (f"{DEVICE}.conditions.0.reason", "a b", [("Invalid", f"{DEVICE_FIELD}.conditions[0].reason")]),
        (f"{DEVICE}.conditions.0.reason", ABSENT, [("Required", f"{DEVICE_FIELD}.conditions[0].reason")]),
        (f"{DEVICE}.conditions.0.lastTransitionTime", ABSENT, [("Required", f"{DEVICE_FIELD}.conditions[0].lastTransitionTime")]),
        (f"{DEVICE}.conditions.0.observedGeneration", -1, [("Invalid", f"{DEVICE_FIELD}.conditions[0].observedGeneration")]),
        (f"{DEVICE}.conditions.0.message", "x" * 32769, [("TooLong", f"{DEVICE_FIELD}.conditions[0].message")]),
    ],
)  # fmt: skip
def test_a_broken_field_of_a_claim_status_is_named(path, value, expected):
    assert judged_status(CLAIM, changed(allocated_claim(), (path, value)), claim()) == sorted(expected)


class TestWriteOnce:
    def test_an_allocation_cannot_be_modified(self):
        new = changed(allocated_claim(), (f"{RESULT}.device", "d5"))
        assert judged_status(CLAIM, new, allocated_claim()) == [("Invalid", "status.allocation")]

    def test_an_allocation_cannot_be_emptied(self):
        new = changed(allocated_claim(), ("status.allocation", {}), ("status.devices", []))
        assert judged_status(CLAIM, new, allocated_claim()) == [("Invalid", "status.allocation")]

    def test_an_allocation_may_be_cleared_when_nobody_holds_it(self):
        new = changed(allocated_claim(), ("status", {}))
        assert judged_status(CLAIM, new, allocated_claim()) == []
        held = changed(new, ("status.reservedFor", consumers(1)))
        assert judged_status(CLAIM, held, allocated_claim()) == [("Forbidden", "status.reservedFor")]

    def test_an_old_allocation_is_not_judged_again(self):
        old = changed(allocated_claim(), (f"{RESULT}.tolerations.0.value", "a b"))
        new = changed(old, ("status.reservedFor.1", {"resource": "pods", "name": "q", "uid": "u2"}))
        assert judged_status(CLAIM, new, old) == []

    def test_a_deleted_claim_takes_no_new_consumers(self):
        old = changed(allocated_claim(), ("metadata.deletionTimestamp", TIME))
        new = changed(old, ("status.reservedFor.1", {"resource": "pods", "name": "q", "uid": "u2"}))
        assert judged_status(CLAIM, new, old) == [("Forbidden", "status.reservedFor")]
        assert judged_status(CLAIM, changed(old, ("status.reservedFor", [])), old) == []

    def test_devices_need_an_allocation(self):
        new = changed(claim(), ("status", {"devices": [{"driver": "d", "pool": "p", "device": "d"}]}))
        assert judged_status(CLAIM, new, claim()) == [("Invalid", DEVICE_FIELD)]


class TestAdminAccess:
    GRANTED = changed(allocated_claim(), (f"{RESULT}.adminAccess", True))

    def test_a_new_result_with_admin_access_needs_the_label(self):
        (error,) = check_admin_access_of_status(self.GRANTED, claim(), {})
        assert error.field == f"{RESULT_FIELD}.adminAccess"
        assert (
            check_admin_access_of_status(
                self.GRANTED, claim(), {"resource.kubernetes.io/admin-access": "true"}
            )
            == []
        )

    def test_what_was_granted_stays_granted(self):
        assert check_admin_access_of_status(self.GRANTED, self.GRANTED, {}) == []


class TestTaintRules:
    def test_a_rule_with_everything_is_fine(self):
        assert judged(RULE, taint_rule()) == []
        assert judged(RULE, changed(taint_rule(), ("spec.deviceSelector", ABSENT))) == []

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("spec.deviceSelector.driver", "", [("Required", "spec.deviceSelector.driver")]),
            ("spec.deviceSelector.pool", "", [("Required", "spec.deviceSelector.pool")]),
            ("spec.deviceSelector.device", "", [("Invalid", "spec.deviceSelector.device")]),
            ("spec.taint.key", "a b", [("Invalid", "spec.taint.key")]),
            ("spec.taint.value", "a b", [("Invalid", "spec.taint.value")]),
            ("spec.taint.effect", "", [("Required", "spec.taint.effect")]),
            ("spec.taint.effect", "Evict", [("NotSupported", "spec.taint.effect")]),
            ("metadata.namespace", "ns", [("Forbidden", "metadata.namespace")]),
        ],
    )
    def test_a_broken_field_of_a_rule_is_named(self, path, value, expected):
        assert judged(RULE, changed(taint_rule(), (path, value))) == expected

    def test_a_rule_without_a_taint_lacks_key_and_effect(self):
        broken = changed(taint_rule(), ("spec.taint", ABSENT))
        assert judged(RULE, broken) == [("Invalid", "spec.taint.key")] * 2 + [
            ("Required", "spec.taint.effect")
        ]

    def test_an_unknown_effect_may_stay_but_not_come(self):
        old = changed(taint_rule(), ("spec.taint.effect", "Future"))
        assert judged_update(RULE, changed(old, ("spec.taint.value", "w")), old) == []
        assert judged_update(RULE, old, taint_rule()) == [("NotSupported", "spec.taint.effect")]

    def test_conditions_are_limited(self):
        def rule_with(count):
            condition = {"status": "True", "reason": "R", "lastTransitionTime": TIME}
            return changed(
                taint_rule(), ("status.conditions", [{"type": f"T{n}", **condition} for n in range(count)])
            )

        assert judged_status(RULE, rule_with(8), taint_rule()) == []
        assert judged_status(RULE, rule_with(9), taint_rule()) == [("TooMany", "status.conditions")]

    def test_a_condition_may_occur_once(self):
        condition = {"type": "T", "status": "True", "reason": "R", "lastTransitionTime": TIME}
        broken = changed(taint_rule(), ("status.conditions", [condition, condition]))
        assert judged_status(RULE, broken, taint_rule()) == [("Duplicate", "status.conditions[1]")]


class TestPoolStatus:
    STATUS = {
        "poolCount": 1,
        "pools": [
            {"driver": "gpu.test", "poolName": "p", "generation": 1, "totalDevices": 3, "nodeName": "n"}
        ],
        "conditions": [{"type": "Complete", "status": "True", "reason": "Ok", "lastTransitionTime": TIME}],
    }

    def answered(self, *changes):
        return changed({**pool_request(), "status": self.STATUS}, *changes)

    def test_requests_and_answers_are_fine(self):
        assert judged(POOL, pool_request()) == []
        assert judged_status(POOL, self.answered(), pool_request()) == []

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("spec.driver", "", [("Required", "spec.driver")]),
            ("spec.driver", "a.b" + "c" * 100, []),
            ("spec.poolName", "", [("Invalid", "spec.poolName")]),
            ("spec.limit", 0, [("Invalid", "spec.limit")]),
            ("spec.limit", 1001, [("Invalid", "spec.limit")]),
            ("spec.limit", 1000, []),
            ("spec.defaultPartitionTypeAttribute", "x", [("Invalid", "spec.defaultPartitionTypeAttribute")]),
        ],
    )
    def test_a_broken_field_of_a_request_is_named(self, path, value, expected):
        assert judged(POOL, changed(pool_request(), (path, value))) == expected

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("status.poolCount", ABSENT, [("Required", "status.poolCount")]),
            ("status.poolCount", -1, [("Invalid", "status.poolCount")]),
            ("status.poolCount", 0, []),
            ("status.pools.0.driver", "", [("Required", "status.pools[0].driver")]),
            ("status.pools.0.generation", 0, [("Required", "status.pools[0].generation")]),
            ("status.pools.0.totalDevices", -1, [("Invalid", "status.pools[0].totalDevices")]),
            ("status.pools.0.resourceSliceCount", 0, [("Invalid", "status.pools[0].resourceSliceCount")]),
            ("status.pools.0.validationError", "x" * 257, [("TooLong", "status.pools[0].validationError")]),
            ("status.pools.0.shareableSummary", {}, [("Required", "status.pools[0].shareableSummary.fullyAvailableDevices"), ("Required", "status.pools[0].shareableSummary.partiallyAvailableDevices")]),
            ("status.conditions.0.status", "x", [("NotSupported", "status.conditions[0].status")]),
            ("status", {}, [("Required", "status.poolCount")]),
        ],
    )  # fmt: skip
    def test_a_broken_field_of_an_answer_is_named(self, path, value, expected):
        assert judged_status(POOL, self.answered((path, value)), pool_request()) == expected

    def test_spec_and_answer_are_frozen(self):
        new = changed(pool_request(), ("spec.limit", 5))
        assert judged_update(POOL, new, pool_request()) == [("Invalid", "spec")]
        assert judged_status(POOL, self.answered(("status.poolCount", 2)), self.answered()) == [
            ("Invalid", "status")
        ]
