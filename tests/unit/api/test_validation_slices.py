"""Rules of slices: pools, node choice, devices, attributes, counters, taints."""

import pytest
from validation_cases import (
    ABSENT,
    EVERYTHING,
    SLICE,
    changed,
    counter_slice,
    judged,
    judged_update,
    resource_slice,
)

from dray.api.validation import ValidationContext, check_declared_features, warnings_create

D0, D0_FIELD = "spec.devices.0", "spec.devices[0]"
D1, D1_FIELD = "spec.devices.1", "spec.devices[1]"
COUNTERS_FIELD = f"{D1_FIELD}.consumesCounters[0]"
LABEL_REASON = [("Invalid", f"{D0_FIELD}.taints[0].key")]


def test_slices_with_everything_are_fine():
    assert judged(SLICE, resource_slice()) == []
    assert judged(SLICE, counter_slice()) == []


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.driver", "", [("Required", "spec.driver")]),
        ("spec.driver", "a_b", [("Invalid", "spec.driver")]),
        ("spec.driver", "GPU.Test", []),
        ("spec.driver", "d" * 64, [("TooLong", "spec.driver")]),
        ("spec.pool.name", "", [("Required", "spec.pool.name")]),
        ("spec.pool.name", "Pool", [("Invalid", "spec.pool.name")]),
        ("spec.pool.name", "a//b", [("Invalid", "spec.pool.name")]),
        ("spec.pool.name", "p" * 254, [("Invalid", "spec.pool.name"), ("TooLong", "spec.pool.name")]),
        ("spec.pool.generation", -1, [("Invalid", "spec.pool.generation")]),
        ("spec.pool.resourceSliceCount", 0, [("Invalid", "spec.pool.resourceSliceCount")]),
        # nodes
        ("spec.nodeName", ABSENT, [("Required", "spec")]),
        ("spec.nodeName", "", [("Invalid", "spec.nodeName"), ("Required", "spec")]),
        ("spec.nodeName", "Node", [("Invalid", "spec.nodeName")]),
        ("spec.allNodes", True, [("Invalid", "spec")]),
        ("spec.allNodes", False, [("Invalid", "spec.allNodes")]),
        ("spec.nodeSelector", {"nodeSelectorTerms": []}, [("Invalid", "spec"), ("Invalid", "spec.nodeSelector.nodeSelectorTerms"), ("Required", "spec.nodeSelector.nodeSelectorTerms")]),
        # devices
        (f"{D0}.name", "UP", [("Invalid", f"{D0_FIELD}.name")]),
        (f"{D0}.name", "d1", [("Duplicate", D1_FIELD)]),
        (f"{D0}.nodeName", "n", [("Invalid", D0_FIELD)]),
        ("spec.devices", [{"name": f"d{n}"} for n in range(129)], [("TooMany", "spec.devices")]),
        ("spec.devices", [{"name": f"d{n}"} for n in range(128)], []),
        ("spec.devices", [{"name": f"d{n}", "taints": [{"key": "k", "effect": "None"}]} for n in range(65)], [("TooMany", "spec.devices")]),
        ("spec.devices", [{"name": f"d{n}", "attributes": {"a": {"ints": [1]}}} for n in range(65)], [("TooMany", "spec.devices")]),
        # attributes
        (f"{D0}.attributes|1a".replace(".", "|"), {"int": 1}, [("Invalid", f"{D0_FIELD}.attributes")]),
        (f"{D0}.attributes|a-b".replace(".", "|"), {"int": 1}, [("Invalid", f"{D0_FIELD}.attributes")]),
        (f"{D0}.attributes".replace(".", "|") + "|/x", {"int": 1}, [("Invalid", f"{D0_FIELD}.attributes")]),
        (f"{D0}.attributes".replace(".", "|") + "|a.test/", {"int": 1}, [("Invalid", f"{D0_FIELD}.attributes")]),
        (f"{D0}.attributes".replace(".", "|") + "|A.Test/x", {"int": 1}, []),
        (f"{D0}.attributes".replace(".", "|") + "|a/b/c", {"int": 1}, []),
        (f"{D0}.attributes.x", {}, [("Invalid", f"{D0_FIELD}.attributes[x]")]),
        (f"{D0}.attributes.x", None, [("Invalid", f"{D0_FIELD}.attributes[x]")]),
        (f"{D0}.attributes.x", {"int": 1, "bool": True}, [("Invalid", f"{D0_FIELD}.attributes[x]")]),
        (f"{D0}.attributes.x", {"ints": []}, [("Invalid", f"{D0_FIELD}.attributes[x]"), ("Invalid", f"{D0_FIELD}.attributes[x].ints")]),
        (f"{D0}.attributes.x", {"int": 1, "ints": []}, [("Invalid", f"{D0_FIELD}.attributes[x]"), ("Invalid", f"{D0_FIELD}.attributes[x].ints")]),
        (f"{D0}.attributes.x", {"string": "ü" * 33}, [("TooLong", f"{D0_FIELD}.attributes[x].string")]),
        (f"{D0}.attributes.x", {"strings": ["a", "x" * 65]}, [("TooLong", f"{D0_FIELD}.attributes[x].strings[1]")]),
        (f"{D0}.attributes.x", {"version": "v1"}, [("Invalid", f"{D0_FIELD}.attributes[x].version")]),
        (f"{D0}.attributes.x", {"versions": ["1.0.0", "1.02.0"]}, [("Invalid", f"{D0_FIELD}.attributes[x].versions[1]")]),
        (f"{D0}.attributes", {f"a{n}": {"int": n} for n in range(31)}, [("Invalid", D0_FIELD)]),
        (f"{D0}.attributes", {"a": {"ints": list(range(49))}}, [("Invalid", D0_FIELD)]),
        # taints
        (f"{D0}.taints.0.key", "", LABEL_REASON * 2),
        (f"{D0}.taints.0.key", "a b", LABEL_REASON),
        (f"{D0}.taints.0.value", "a b", [("Invalid", f"{D0_FIELD}.taints[0].value")]),
        (f"{D0}.taints.0.effect", "", [("Required", f"{D0_FIELD}.taints[0].effect")]),
        (f"{D0}.taints.0.effect", "Evict", [("NotSupported", f"{D0_FIELD}.taints[0].effect")]),
        (f"{D0}.taints", [{"key": f"k{n}", "effect": "None"} for n in range(17)], [("TooMany", f"{D0_FIELD}.taints")]),
        # binding conditions
        (f"{D0}.bindingConditions", [], [("Invalid", f"{D0_FIELD}.bindingConditions")]),
        (f"{D0}.bindingFailureConditions", [], [("Invalid", f"{D0_FIELD}.bindingFailureConditions")]),
        (f"{D0}.bindingConditions", ["a", "a"], [("Duplicate", f"{D0_FIELD}.bindingConditions[1]")]),
        (f"{D0}.bindingConditions", ["a b"], [("Invalid", f"{D0_FIELD}.bindingConditions[0]")]),
        (f"{D0}.bindingFailureConditions", ["a.test/ready"], [("Invalid", f"{D0_FIELD}.bindingFailureConditions[0]")]),
        (f"{D0}.bindingConditions", [f"c{n}" for n in range(5)], [("TooMany", f"{D0_FIELD}.bindingConditions")]),
        # counters
        (f"{D1}.consumesCounters.0.counterSet", "", [("Required", f"{COUNTERS_FIELD}.counterSet")]),
        (f"{D1}.consumesCounters.0.counterSet", "S", [("Invalid", f"{COUNTERS_FIELD}.counterSet")]),
        (f"{D1}.consumesCounters.0.counters", {}, [("Required", f"{COUNTERS_FIELD}.counters")]),
        (f"{D1}.consumesCounters.0.counters", {"A": {"value": "1"}}, [("Invalid", f"{COUNTERS_FIELD}.counters")]),
        (f"{D1}.consumesCounters.0.counters", {f"c{n}": {"value": "1"} for n in range(33)}, [("TooMany", f"{COUNTERS_FIELD}.counters")]),
        (f"{D1}.consumesCounters.0.counters.memory.value", "-5", []),
        (f"{D1}.consumesCounters.0.compatibilityGroups", ["a", "a"], [("Duplicate", f"{COUNTERS_FIELD}.compatibilityGroups[1]")]),
        (f"{D1}.consumesCounters.0.compatibilityGroups", ["a", "b", "c"], [("TooMany", f"{COUNTERS_FIELD}.compatibilityGroups")]),
        (f"{D1}.consumesCounters.0.compatibilityGroups", [""], [("Invalid", f"{COUNTERS_FIELD}.compatibilityGroups[0]")]),
        (f"{D1}.consumesCounters.1", {"counterSet": "set", "counters": {"m": {"value": "1"}}}, [("Duplicate", f"{D1_FIELD}.consumesCounters[1]")]),
        # the slice as a whole
        ("spec.sharedCounters", [{"name": "a", "counters": {"m": {"value": "1"}}}], [("Invalid", "spec")]),
        ("spec.skipNodeOperations", ["NodePrepareResources"], [("Invalid", "spec.skipNodeOperations")]),
        ("spec.skipNodeOperations", ["NodePrepareResources", "*"], []),
        ("spec.skipNodeOperations", ["Mount"], [("NotSupported", "spec.skipNodeOperations[0]")]),
        ("spec.skipNodeOperations", ["*", "*"], [("Duplicate", "spec.skipNodeOperations[1]")]),
        # partition types
        ("spec.partitionTypeAttribute", "gpu.test/model", []),
        ("spec.partitionTypeAttribute", "a.test/kind", [("Required", f"{D1_FIELD}.attributes[a.test/kind]")]),
        ("spec.partitionTypeAttribute", "model", [("Invalid", "spec.partitionTypeAttribute")]),
    ],
)  # fmt: skip
def test_a_broken_field_of_a_slice_is_named(path, value, expected):
    assert judged(SLICE, changed(resource_slice(), (path, value))) == sorted(expected)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.sharedCounters.0.name", "", [("Required", "spec.sharedCounters[0].name")]),
        ("spec.sharedCounters.0.name", "A", [("Invalid", "spec.sharedCounters[0].name")]),
        ("spec.sharedCounters.0.counters", {}, [("Required", "spec.sharedCounters[0].counters")]),
        ("spec.sharedCounters.0.counters", {"m_n": {"value": "1"}}, [("Invalid", "spec.sharedCounters[0].counters")]),
        ("spec.sharedCounters.1", {"name": "set", "counters": {"m": {"value": "1"}}}, [("Duplicate", "spec.sharedCounters[1]")]),
        ("spec.sharedCounters", [{"name": f"s{n}", "counters": {"m": {"value": "1"}}} for n in range(9)], [("TooMany", "spec.sharedCounters")]),
        ("spec.devices", [], [("Invalid", "spec")]),
        ("spec.partitionTypeAttribute", "a.test/x", [("Invalid", "spec.partitionTypeAttribute")]),
    ],
)  # fmt: skip
def test_a_broken_counter_set_is_named(path, value, expected):
    assert judged(SLICE, changed(counter_slice(), (path, value))) == sorted(expected)


def test_a_partition_type_must_be_a_text():
    broken = changed(
        resource_slice(),
        ("spec.partitionTypeAttribute", "gpu.test/model"),
        (f"{D1}.attributes.model", {"int": 1}),
    )
    assert judged(SLICE, broken) == [("Invalid", f"{D1_FIELD}.attributes[gpu.test/model]")]


def test_without_its_gate_a_partition_type_is_forbidden():
    context = ValidationContext(features=EVERYTHING.switched(off=["DRAPartitionableDevicesType"]))
    slice_with_type = changed(resource_slice(), ("spec.partitionTypeAttribute", "gpu.test/model"))
    assert judged(SLICE, slice_with_type, context) == [("Forbidden", "spec.partitionTypeAttribute")]


class TestNodeChoicePerDevice:
    def per_device(self, **choice):
        base = changed(resource_slice(), ("spec.nodeName", ABSENT), ("spec.perDeviceNodeSelection", True))
        return changed(base, ("spec.devices", [{"name": "d", **choice}]))

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            ({"nodeName": "n"}, []),
            ({"allNodes": True}, []),
            ({}, [("Required", D0_FIELD)]),
            ({"nodeName": "n", "allNodes": True}, [("Invalid", D0_FIELD)]),
            ({"nodeName": ""}, [("Invalid", f"{D0_FIELD}.nodeName"), ("Required", D0_FIELD)]),
            ({"allNodes": False}, [("Invalid", f"{D0_FIELD}.allNodes"), ("Required", D0_FIELD)]),
            (
                {
                    "nodeSelector": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt"}]}]
                    }
                },
                [("Required", f"{D0_FIELD}.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values")],
            ),
        ],
    )
    def test_exactly_one_choice_per_device(self, choice, expected):
        assert judged(SLICE, self.per_device(**choice)) == sorted(expected)


class TestNodeAllocatable:
    def with_resource(self, name, **resource):
        path = f"{D0}.nodeAllocatableResources".replace(".", "|") + f"|{name}"
        return changed(resource_slice(), (f"{D0}.capacity", {"mem": {"value": "1"}}), (path, resource))

    FIELD = f"{D0_FIELD}.nodeAllocatableResources"

    @pytest.mark.parametrize(
        ("name", "resource", "expected"),
        [
            ("cpu", {"mapping": {"deviceMultiplier": "1"}}, []),
            ("hugepages-2Mi", {"overhead": {"perPod": "1"}}, []),
            ("cpu", {"mapping": {"capacityKey": "mem", "capacityMultiplier": "2"}}, []),
            ("pods", {"overhead": {"perPod": "1"}}, [("Invalid", "[pods]")]),
            ("cpu", {}, [("Required", "[cpu]")]),
            ("cpu", {"mapping": {}}, [("Invalid", "[cpu].mapping")]),
            ("cpu", {"mapping": {"capacityKey": "x", "capacityMultiplier": "1"}}, [("NotFound", "[cpu].mapping.capacityKey")]),
            ("cpu", {"mapping": {"capacityKey": "", "capacityMultiplier": "1"}}, [("Invalid", "[cpu].mapping.capacityKey")]),
            ("cpu", {"mapping": {"capacityKey": "mem"}}, [("Required", "[cpu].mapping.capacityMultiplier")]),
            ("cpu", {"mapping": {"capacityKey": "mem", "capacityMultiplier": "0"}}, [("Invalid", "[cpu].mapping.capacityMultiplier")]),
            ("cpu", {"mapping": {"capacityMultiplier": "1"}}, [("Invalid", "[cpu].mapping"), ("Required", "[cpu].mapping.capacityKey")]),
            ("cpu", {"mapping": {"deviceMultiplier": "-1"}}, [("Invalid", "[cpu].mapping.deviceMultiplier")]),
            ("cpu", {"overhead": {}}, [("Invalid", "[cpu].overhead")]),
            ("cpu", {"overhead": {"perPod": "-1", "perContainer": "-1m"}}, [("Invalid", "[cpu].overhead.perContainer"), ("Invalid", "[cpu].overhead.perPod")]),
        ],
    )  # fmt: skip
    def test_a_broken_mapping_is_named(self, name, resource, expected):
        wanted = sorted((kind, f"{self.FIELD}{field}") for kind, field in expected)
        assert judged(SLICE, self.with_resource(name, **resource)) == wanted

    def test_nodes_must_exist_and_declare_the_feature(self):
        mapped = self.with_resource("cpu", mapping={"deviceMultiplier": "1"})
        feature = frozenset({"DRANodeAllocatableResources"})
        assert check_declared_features(mapped, {"n1": feature, "other": frozenset()}) == []
        assert check_declared_features(mapped, {}) == ['node "n1" not found for device "d0"']
        assert check_declared_features(mapped, {"n1": frozenset()}) == [
            'node "n1" does not support DRANodeAllocatableResources feature'
        ]

    def test_a_node_selector_is_followed(self):
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
        mapped = self.with_resource("cpu", mapping={"deviceMultiplier": "1"})
        mapped = changed(
            mapped, ("spec.nodeName", ABSENT), ("spec.nodeSelector", {"nodeSelectorTerms": [term]})
        )
        features = {"n1": frozenset(), "n2": frozenset()}
        labels = {"n1": {"zone": "a"}, "n2": {"zone": "b"}}
        assert len(check_declared_features(mapped, features, labels)) == 1

    def test_slices_that_map_nothing_need_no_nodes(self):
        assert check_declared_features(resource_slice(), {}) == []


class TestUpdates:
    @pytest.mark.parametrize(
        ("path", "value", "field"),
        [
            ("spec.driver", "other.test", "spec.driver"),
            ("spec.pool.name", "other", "spec.pool.name"),
            ("spec.nodeName", "n2", "spec.nodeName"),
        ],
    )
    def test_identity_is_immutable(self, path, value, field):
        new = changed(resource_slice(), (path, value))
        assert judged_update(SLICE, new, resource_slice()) == [("Invalid", field)]

    def test_devices_are_judged_again(self):
        new = changed(resource_slice(), (f"{D0}.name", "UP"))
        assert judged_update(SLICE, new, resource_slice()) == [("Invalid", f"{D0_FIELD}.name")]

    def test_unchanged_taints_and_capacities_are_not_judged_again(self):
        old = changed(
            resource_slice(), (f"{D0}.taints.0.key", "a b"), (f"{D0}.allowMultipleAllocations", ABSENT)
        )
        new = changed(old, ("spec.pool.generation", 2))
        assert judged_update(SLICE, new, old) == []

    def test_changed_taints_are_judged_as_a_whole(self):
        old = changed(resource_slice(), (f"{D0}.taints.0.key", "a b"))
        new = changed(old, (f"{D0}.taints.1", {"key": "k", "effect": "None"}))
        assert judged_update(SLICE, new, old) == LABEL_REASON

    def test_a_device_that_changed_its_place_is_still_the_same(self):
        old = changed(resource_slice(), (f"{D0}.taints.0.key", "a b"))
        devices = old["spec"]["devices"]
        assert judged_update(SLICE, changed(old, ("spec.devices", devices[::-1])), old) == []


def test_old_versions_show_declared_rules_below_basic():
    context = ValidationContext(features=EVERYTHING, version="v1beta1")
    broken = changed(
        resource_slice(),
        (f"{D0}.attributes.x", {"int": 1, "bool": True}),
        (f"{D0}.taints.0.effect", "Evict"),
        (f"{D0}.taints.0.key", "a b"),
        (f"{D0}.bindingConditions", ["a", "a"]),
    )
    assert judged(SLICE, broken, context) == [
        ("Duplicate", f"{D0_FIELD}.bindingConditions[1]"),
        ("Invalid", f"{D0_FIELD}.basic.attributes[x]"),
        ("Invalid", f"{D0_FIELD}.taints[0].key"),
        ("NotSupported", f"{D0_FIELD}.basic.taints[0].effect"),
    ]


def test_upper_case_drivers_are_warned_about():
    assert warnings_create(SLICE, resource_slice()) == []
    (warning,) = warnings_create(SLICE, changed(resource_slice(), ("spec.driver", "GPU.test")))
    assert "lowercase" in warning
