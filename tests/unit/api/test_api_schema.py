"""The schema files: complete for every served kind, and read as written."""

import pytest

from dray.api.kinds import KINDS
from dray.api.schema import LIST, MAP, STRUCT, SchemaError, schema_of, struct_of
from dray.api.schema.types import SCALARS

SERVED = [(kind, version) for kind in KINDS for version in kind.versions]


@pytest.mark.parametrize(
    ("kind", "version"), SERVED, ids=lambda value: getattr(value, "group_resource", value)
)
def test_every_served_kind_has_a_whole_schema(kind, version):
    schema = schema_of(kind.group, version, kind.kind)
    assert schema.has_type_meta
    assert "metadata" in schema.fields
    for struct in schema.structs():
        for field in struct.fields.values():
            assert field.type.kind in (STRUCT, LIST, MAP, *SCALARS)
            if field.type.list_type == "map":
                assert set(field.map_keys) <= set(field.type.element.fields)
            if field.patch_merge_key and field.type.element.kind == STRUCT:
                assert field.patch_merge_key in field.type.element.fields


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.group == "resource.k8s.io"], ids=lambda kind: kind.kind
)
def test_every_field_of_resource_k8s_io_is_described(kind):
    for version in kind.versions:
        for struct in schema_of(kind.group, version, kind.kind).structs():
            if struct.group == "resource":
                missing = [field.name for field in struct.fields.values() if not field.description]
                assert not missing, f"{struct}: {missing}"


def test_subresource_bodies_and_options_have_schemas():
    for kind in KINDS:
        for subresource in kind.subresources:
            if subresource.kind and not subresource.kind.endswith("Options"):
                assert schema_of(subresource.group, subresource.version, subresource.kind).has_type_meta
    assert "propagationPolicy" in schema_of("meta.k8s.io", "v1", "DeleteOptions").fields


def test_apply_and_patch_facts_of_claims():
    status = schema_of("resource.k8s.io", "v1", "ResourceClaim").fields["status"].type
    reserved = status.fields["reservedFor"]
    assert (reserved.list_type, reserved.map_keys) == ("map", ("uid",))
    assert (reserved.patch_strategy, reserved.patch_merge_key) == (("merge",), "uid")
    devices = status.fields["devices"]
    assert devices.map_keys == ("driver", "device", "pool", "shareID")
    assert devices.patch_strategy == ()
    spec = schema_of("resource.k8s.io", "v1", "ResourceClaim").fields["spec"].type.fields["devices"].type
    assert spec.fields["requests"].list_type == "atomic"


def test_facts_of_pods():
    spec = schema_of("", "v1", "Pod").fields["spec"].type
    assert spec.fields["volumes"].patch_strategy == ("merge", "retainKeys")
    container = spec.fields["containers"].type.element
    ports = container.fields["ports"]
    assert ports.map_keys == ("containerPort", "protocol")
    assert ports.patch_merge_key == "containerPort"
    assert ports.type.element.fields["protocol"].default == "TCP"
    assert spec.fields["nodeSelector"].type.is_atomic
    # A field that is inlined from a nested message keeps the way to it.
    volume = spec.fields["volumes"].type.element
    assert volume.fields["hostPath"].number == (2, 1)


def test_a_version_like_another_differs_only_where_it_says_so():
    new = schema_of("resource.k8s.io", "v1", "ResourceSlice")
    old = schema_of("resource.k8s.io", "v1beta1", "ResourceSlice")
    old_device = old.fields["spec"].type.fields["devices"].type.element
    assert list(old_device.fields) == ["name", "basic"]
    assert old.fields["spec"].type.fields["nodeName"].pointer is False
    assert new.fields["spec"].type.fields["nodeName"].pointer is True
    assert old_device.openapi_name == "io.k8s.api.resource.v1beta1.Device"
    # Inherited types see the types of the inheriting version.
    template = schema_of("resource.k8s.io", "v1beta1", "ResourceClaimTemplate")
    claim_spec = template.fields["spec"].type.fields["spec"].type
    request = claim_spec.fields["devices"].type.fields["requests"].type.element
    assert "deviceClassName" in request.fields


def test_unknown_kinds_are_a_schema_error():
    with pytest.raises(SchemaError):
        schema_of("no.such.group", "v1", "Thing")
    with pytest.raises(SchemaError):
        schema_of("", "v2", "Pod")
    assert struct_of("core", "v1", "NodeSelector").is_atomic
