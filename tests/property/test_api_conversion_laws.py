"""There and back again: conversion between versions loses nothing."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from dray.api.codec import read
from dray.api.conversion import convert, convert_event
from dray.api.schema import LIST, MAP, STRUCT, schema_of
from dray.api.schema.types import Type

RESOURCE = "resource.k8s.io"
words = st.text("abcxyz", min_size=1, max_size=4)
SCALARS = {
    "string": words, "bool": st.booleans(), "int32": st.integers(0, 9), "int64": st.integers(0, 9),
    "quantity": st.sampled_from(["1", "1Gi", "500m"]), "time": st.just("2026-01-01T00:00:00Z"),
    "microtime": st.just("2026-01-01T00:00:00.000000Z"), "raw": st.just({"a": 1}), "any": st.just({}),
}  # fmt: skip


def values(schema: Type, depth: int = 0):
    """Any value of a type, small."""
    if schema.kind == LIST:
        return st.lists(values(schema.element, depth + 1), max_size=2)
    if schema.kind == MAP:
        return st.dictionaries(words, values(schema.element, depth + 1), max_size=2)
    if schema.kind == STRUCT:
        fields = {name: field for name, field in schema.fields.items() if name != "managedFields"}
        optional = {
            name: st.deferred(lambda field=field: values(field.type, depth + 1))
            for name, field in fields.items()
        }
        return st.fixed_dictionaries({}, optional=optional if depth < 8 else {})
    return SCALARS[schema.kind]


def objects(version, kind):
    schema = schema_of(RESOURCE, version, kind)
    return values(schema).map(
        lambda obj: read(schema, {"apiVersion": f"{RESOURCE}/{version}", "kind": kind, **obj})[0]
    )


def there_and_back(obj, kind, version, other):
    before = copy.deepcopy(obj)
    there = convert(RESOURCE, kind, obj, version, other)
    assert obj == before, "conversion changed its input"
    assert read(schema_of(RESOURCE, other, kind), there) == (there, []), "not canonical in the other version"
    assert there["apiVersion"] == f"{RESOURCE}/{other}"
    return convert(RESOURCE, kind, there, other, version)


@given(objects("v1", "ResourceSlice"))
def test_slices_survive_v1beta1(obj):
    # v1beta1 cannot say these two; validation refuses them in v1.
    for name in ("nodeName", "allNodes"):
        if not obj["spec"].get(name):
            obj["spec"].pop(name, None)
    assert there_and_back(obj, "ResourceSlice", "v1", "v1beta1") == obj


@given(objects("v1", "ResourceClaim"))
def test_claims_survive_v1beta1(obj):
    for request in obj["spec"]["devices"]["requests"] or ():
        if not any(request.get("exactly", {}).values()):
            request.pop("exactly", None)  # an empty `exactly` is no request; validation refuses it
    assert there_and_back(obj, "ResourceClaim", "v1", "v1beta1") == obj


@given(objects("v1beta1", "ResourceClaimTemplate"))
def test_templates_survive_v1(obj):
    assert there_and_back(obj, "ResourceClaimTemplate", "v1beta1", "v1") == obj


@given(objects("v1beta1", "ResourceSlice"))
def test_beta_slices_survive_v1(obj):
    for device in obj["spec"].get("devices", ()):
        device.setdefault("basic", {})
    assert there_and_back(obj, "ResourceSlice", "v1beta1", "v1") == obj


@given(objects("v1", "DeviceTaintRule"), st.sampled_from(["v1beta2", "v1alpha3"]))
def test_other_versions_differ_only_in_name(obj, version):
    assert there_and_back(obj, "DeviceTaintRule", "v1", version) == obj


CORE_EVENT, NEW_EVENT = schema_of("", "v1", "Event"), schema_of("events.k8s.io", "v1", "Event")


@given(values(CORE_EVENT).map(lambda obj: read(CORE_EVENT, {"apiVersion": "v1", **obj})[0]))
def test_events_survive_the_other_group(event):
    there = convert_event(event, "events.k8s.io")
    assert read(NEW_EVENT, there) == (there, [])
    assert convert_event(there, "") == event


def test_an_empty_capacity_still_makes_a_request_exact():
    wanted = {"apiVersion": f"{RESOURCE}/v1beta1", "spec": {"devices": {"requests": [{"capacity": {}}]}}}
    flat = read(schema_of(RESOURCE, "v1beta1", "ResourceClaim"), wanted)[0]
    assert there_and_back(flat, "ResourceClaim", "v1beta1", "v1") == flat
