"""The structs of resource.k8s.io hold every field that the schema knows."""

import typing

import msgspec
import pytest

from dray.api import core, resource
from dray.api.meta import Condition, ObjectMeta
from dray.api.schema import schema_of

KINDS = [
    "DeviceClass",
    "DeviceTaintRule",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceSlice",
    "ResourcePoolStatusRequest",
]


def structs_within(hint):
    """The msgspec structs mentioned in a type hint."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [hint]
    return [found for argument in typing.get_args(hint) for found in structs_within(argument)]


def compare(view, schema, seen, path):
    if view in seen or view is ObjectMeta:
        return
    seen.add(view)
    fields = {field.encode_name: field for field in msgspec.structs.fields(view)}
    names = set(schema.fields) | ({"kind", "apiVersion"} if schema.has_type_meta else set())
    assert set(fields) == names, path
    for name, field in schema.fields.items():
        inner = field.type
        while inner.element is not None:
            inner = inner.element
        for struct in structs_within(fields[name].type):
            compare(struct, inner, seen, f"{path}.{name}")


@pytest.mark.parametrize("kind", KINDS)
def test_views_of_resource_k8s_io_are_complete(kind):
    version = "v1alpha3" if kind == "ResourcePoolStatusRequest" else "v1"
    compare(getattr(resource, kind), schema_of("resource.k8s.io", version, kind), set(), kind)


def partial(view, schema, seen, path):
    """Views of other groups show some fields; those they show must exist."""
    if view in seen or view is Condition:  # shared by conditions of several shapes
        return
    seen.add(view)
    for field in msgspec.structs.fields(view):
        if field.encode_name in ("kind", "apiVersion") and schema.has_type_meta:
            continue
        assert field.encode_name in schema.fields, f"{path}.{field.encode_name}"
        inner = schema.fields[field.encode_name].type
        while inner.element is not None:
            inner = inner.element
        for struct in structs_within(field.type):
            partial(struct, inner, seen, f"{path}.{field.encode_name}")


@pytest.mark.parametrize(
    ("view", "group", "version"),
    [(core.Pod, "", "v1"), (core.Node, "", "v1"), (core.Namespace, "", "v1"), (core.PriorityClass, "scheduling.k8s.io", "v1"),
     (core.PodDisruptionBudget, "policy", "v1"), (core.PodGroup, "scheduling.k8s.io", "v1beta1")],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_views_of_other_kinds_name_real_fields(view, group, version):
    partial(view, schema_of(group, version, view.__name__), set(), view.__name__)
