"""Fields of features that are off disappear, unless they are in use already."""

import copy

import pytest

from dray.api.features import Features
from dray.api.gating import GATED_FIELDS, drop_disabled_fields
from dray.api.kinds import kind_of
from dray.api.schema import LIST, MAP, schema_of

RESOURCE = "resource.k8s.io"
SLICE = {
    "spec": {
        "devices": [
            {"name": "a", "attributes": {"x": {"ints": [1]}, "y": {"int": 2}}, "capacity": {"m": {"value": "1", "requestPolicy": {}}}},
            {"name": "b", "taints": [{"key": "k"}], "allowMultipleAllocations": False},
        ],
        "partitionTypeAttribute": "a/b",
    }
}  # fmt: skip


def dropped(kind, obj, old, features, group=RESOURCE):
    result = copy.deepcopy(obj)
    drop_disabled_fields(group, kind, result, old, features)
    return result


def test_nothing_is_dropped_while_everything_is_on():
    assert dropped("ResourceSlice", SLICE, None, Features.everything()) == SLICE


def test_alpha_fields_are_dropped_by_default():
    spec = dropped("ResourceSlice", SLICE, None, Features.default())["spec"]
    assert spec["devices"][0]["attributes"] == {"x": {}, "y": {"int": 2}}
    assert "partitionTypeAttribute" not in spec
    assert spec["devices"][1] == SLICE["spec"]["devices"][1]


def test_fields_in_map_values_and_list_items_are_found():
    off = Features.everything().switched(off=["DRAConsumableCapacity", "DRADeviceTaints"])
    devices = dropped("ResourceSlice", SLICE, None, off)["spec"]["devices"]
    assert devices[0]["capacity"] == {"m": {"value": "1"}}
    assert devices[1] == {"name": "b"}


def test_a_feature_in_use_stays():
    off = Features.everything().switched(off=["DRAConsumableCapacity"])
    old = {"spec": {"devices": [{"name": "old", "allowMultipleAllocations": False}]}}
    assert dropped("ResourceSlice", SLICE, old, off) == SLICE
    assert dropped("ResourceSlice", SLICE, {"spec": {"devices": []}}, off) != SLICE


def test_two_gates_are_needed_for_binding_conditions():
    obj = {"spec": {"devices": [{"name": "d", "bindsToNode": True}]}}
    off = Features.default().switched(off=["DRAResourceClaimDeviceStatus"])
    assert dropped("ResourceSlice", obj, None, off) == {"spec": {"devices": [{"name": "d"}]}}


def test_status_of_a_claim_counts_its_spec_as_use():
    off = Features.default().switched(off=["DRAAdminAccess"])
    status = {"status": {"allocation": {"devices": {"results": [{"device": "d", "adminAccess": True}]}}}}
    old = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"adminAccess": True}}]}}}
    assert dropped("ResourceClaim", status, old, off) == status
    assert dropped("ResourceClaim", status, None, off)["status"]["allocation"]["devices"]["results"] == [
        {"device": "d"}
    ]


def test_unknown_gates_are_off_for_good():
    lease = {"spec": {"strategy": "x", "holderIdentity": "me"}}
    assert dropped("Lease", lease, None, Features.everything(), "coordination.k8s.io") == {
        "spec": {"holderIdentity": "me"}
    }


def test_kinds_without_gated_fields_are_left_alone():
    assert dropped("ConfigMap", {"data": {"a": "b"}}, None, Features(), "") == {"data": {"a": "b"}}


@pytest.mark.parametrize(("group", "kind"), GATED_FIELDS, ids=str)
def test_every_gated_path_exists_in_the_schema(group, kind):
    schema = schema_of(group, kind_of(group, kind).storage_version, kind)
    for rule in GATED_FIELDS[group, kind]:
        for path in (*rule.paths, *rule.also_used_by):
            found = schema
            for step in path.split("."):
                found = found.fields[step.rstrip("[]{}")].type
                if step.endswith("[]"):
                    assert found.kind == LIST, path
                    found = found.element
                elif step.endswith("{}"):
                    assert found.kind == MAP, path
                    found = found.element
