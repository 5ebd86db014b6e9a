"""Every typed view agrees with the schema: field names, types, and completeness in resource.k8s.io.

A view is found by importing all of dray. It must be a kind with `api_version` and `kind`, one of `PARTIAL`
(views that show a part of a kind), or be used by one of those; so no view is left unchecked.
"""

import importlib
import pkgutil
import types
import typing

import msgspec
import pytest

import dray
from dray.allocator import cases
from dray.api import compute_domains, driver_rollouts, podspec, resource, storage, workloads
from dray.api.kinds import split_api_version
from dray.api.meta import Condition, ObjectMeta, View
from dray.api.pod_autoscalers import MetricSource
from dray.api.schema import LIST, MAP, STRUCT, schema_of
from dray.control.garbage_collection import Partial
from dray.control.guarding import guard_views, webhook_configuration

# Views of a kind under a name of their own: group, version, kind.
PARTIAL = {
    podspec.RunPod: ("", "v1", "Pod"),
    guard_views.Claim: ("resource.k8s.io", "v1", "ResourceClaim"),
    guard_views.Slice: ("resource.k8s.io", "v1", "ResourceSlice"),
}
# Not described by a schema: the cases of the allocator's tests, kinds that dray does not serve, any object at all.
OTHERS = {
    cases.Case,
    cases.UsedDevice,
    guard_views.Review,
    guard_views.ReviewRequest,
    webhook_configuration.WebhookConfiguration,
    Partial,
}
# Volumes are read from kube-apiserver only: dray's server has no schema of these kinds.
OTHERS |= {view for view in vars(storage).values() if getattr(view, "__module__", "") == storage.__name__}
# Custom kinds have a CustomResourceDefinition instead.
OTHERS |= {
    view
    for module in (compute_domains, driver_rollouts)
    for view in vars(module).values()
    if getattr(view, "__module__", "") == module.__name__
}
OTHERS |= {workloads.Service, workloads.ServiceSpec, workloads.ReplicationController}
OTHERS |= {workloads.StatefulSet, workloads.StatefulSetSpec}
SCALARS = {
    str: {"string", "bytes", "quantity", "time", "microtime", "duration", "intorstring"},
    int: {"int32", "int64", "intorstring", "quantity"},
    float: {"float64", "quantity"},
    bool: {"bool"},
}


def all_views():
    for module in pkgutil.walk_packages(dray.__path__, "dray."):
        if "__main__" not in module.name and not module.name.startswith("dray.drivers."):
            importlib.import_module(module.name)
    found, waiting = set(), [View]
    while waiting:
        subclasses = waiting.pop().__subclasses__()
        waiting += subclasses
        found |= {view for view in subclasses if view.__module__.startswith("dray.")}
    return found


def root_of(view):
    """Return group, version and kind of a view of a whole object, or None."""
    if view in OTHERS:
        return None
    if view in PARTIAL:
        return PARTIAL[view]
    defaults = {field.name: field.default for field in msgspec.structs.fields(view)}
    if not defaults.get("api_version") or not defaults.get("kind"):
        return None
    return *split_api_version(defaults["api_version"]), defaults["kind"]


VIEWS = all_views()
SHARED = {Condition, MetricSource}  # by structures of several shapes, each with some of the fields
ROOTS = {view: root for view in VIEWS - OTHERS if (root := root_of(view)) is not None}


def compare(hint, schema, path, seen):
    """Assert that a value of the schema's type can be decoded as the hint says."""
    if hint is typing.Any or hint is msgspec.Raw:
        return
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        if len(options) > 1:  # of scalars
            assert all(schema.kind in SCALARS[option] for option in options), (
                f"{path}: {schema} is not {hint}"
            )
            return
        (hint,) = options
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is list:
        assert schema.kind == LIST, f"{path} is not a list"
        compare(arguments[0], schema.element, f"{path}[]", seen)
    elif origin is dict:
        if schema.kind == MAP:
            compare(arguments[1], schema.element, f"{path}{{}}", seen)
        else:
            assert schema.kind in (STRUCT, "any", "raw"), f"{path} is not an object"
    elif isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        assert schema.kind == STRUCT, f"{path} is not an object"
        compare_struct(origin, schema, path, seen)
    else:
        assert schema.kind in SCALARS[origin], f"{path}: {schema} is not {hint}"


def compare_struct(view, schema, path, seen):
    if (view, schema) in seen:
        return
    seen.add((view, schema))
    shown = {field.encode_name: field for field in msgspec.structs.fields(view)}
    for name, field in shown.items():
        if name.endswith("(not read)") or (schema.has_type_meta and name in ("kind", "apiVersion")):
            continue
        if view in SHARED and name not in schema.fields:
            continue
        assert name in schema.fields, f"{path}.{name} does not exist in {schema.name}"
        compare(field.type, schema.fields[name].type, f"{path}.{name}", seen)
    if schema.group == "resource" and view.__module__ == resource.__name__:
        assert set(schema.fields) <= set(shown), f"{path} is not complete"


@pytest.mark.parametrize(
    "view", sorted(ROOTS, key=lambda view: view.__name__), ids=lambda view: view.__name__
)
def test_a_view_spells_fields_and_types_as_the_schema_does(view):
    compare_struct(view, schema_of(*ROOTS[view]), view.__name__, set())


def test_every_view_is_compared():
    seen = set()
    for view, root in ROOTS.items():
        compare_struct(view, schema_of(*root), view.__name__, seen)
    compared = {view for view, _ in seen} | OTHERS | {guard_views.Claim}
    assert {view.__qualname__ for view in VIEWS - compared} == set()


def test_a_misspelt_field_or_type_is_found():
    class Misspelt(View, frozen=True):
        metadata: ObjectMeta = ObjectMeta()
        specs: int = 0

    class WrongType(View, frozen=True):
        spec: str = ""

    with pytest.raises(AssertionError, match="specs does not exist"):
        compare_struct(Misspelt, schema_of("", "v1", "Pod"), "Pod", set())
    with pytest.raises(AssertionError, match="spec: .* is not"):
        compare_struct(WrongType, schema_of("", "v1", "Pod"), "Pod", set())
