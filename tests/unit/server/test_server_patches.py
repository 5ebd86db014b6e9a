"""Patches as functions on plain JSON."""

import pytest
from server_cluster import STRATEGIC, running_cluster

from dray.api.schema import schema_of
from dray.server.patch.json_patch import PatchError, PatchMalformed, apply_json_patch, apply_merge_patch
from dray.server.patch.strategic_merge import NoMergeKey, StrategicPatchError, apply_strategic_patch

POD = schema_of("", "v1", "Pod")


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/a/-", "value": 3}], {"a": [1, 2, 3]}),
        ([{"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1, 2]}),
        ([{"op": "add", "path": "/a/-1", "value": 9}], {"a": [1, 2, 9]}),
        ([{"op": "remove", "path": "/a/1"}], {"a": [1]}),
        ([{"op": "replace", "path": "/new", "value": 1}], {"a": [1, 2], "new": 1}),
        ([{"op": "move", "from": "/a", "path": "/b"}], {"b": [1, 2]}),
        ([{"op": "copy", "from": "/a/0", "path": "/b"}], {"a": [1, 2], "b": 1}),
        ([{"op": "test", "path": "/missing", "value": None}], {"a": [1, 2]}),
        ([{"op": "add", "path": "/x~1y", "value": 1}], {"a": [1, 2], "x/y": 1}),
    ],
)
def test_json_patch_operations(operations, expected) -> None:
    document = {"a": [1, 2]}
    assert apply_json_patch(document, operations) == expected
    assert document == {"a": [1, 2]}, "the input stays as it was"


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/b"},
        {"op": "add", "path": "/b/c", "value": 1},
        {"op": "add", "path": "/a/7", "value": 1},
        {"op": "test", "path": "/a/0", "value": True},
        {"op": "explode", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
    ],
)
def test_operations_that_do_not_apply_are_refused(operation) -> None:
    with pytest.raises(PatchError):
        apply_json_patch({"a": [1, 2]}, [operation])


def test_a_json_patch_is_a_list_of_objects() -> None:
    with pytest.raises(PatchMalformed):
        apply_json_patch({}, [1])


def test_merge_patch_removes_with_null_and_replaces_lists() -> None:
    document = {"a": {"b": 1, "c": 2}, "l": [1, 2]}
    assert apply_merge_patch(document, {"a": {"b": None, "d": 3}, "l": [9]}) == {
        "a": {"c": 2, "d": 3},
        "l": [9],
    }


def container(name: str, **more: str) -> dict[str, str]:
    return {"name": name, **more}


def test_strategic_merge_finds_items_by_key_and_puts_named_ones_first() -> None:
    document = {"spec": {"containers": [container("a", image="1"), container("b", image="1")]}}
    patch = {"spec": {"containers": [container("b", image="2"), container("c", image="3")]}}
    merged = apply_strategic_patch(document, patch, POD)
    names = [(item["name"], item["image"]) for item in merged["spec"]["containers"]]
    assert names == [("a", "1"), ("b", "2"), ("c", "3")]


def test_strategic_directives_delete_replace_and_order() -> None:
    document = {
        "spec": {"containers": [container("a"), container("b")]},
        "metadata": {"finalizers": ["x", "y"]},
    }
    deleted = apply_strategic_patch(
        document, {"spec": {"containers": [{"$patch": "delete", "name": "a"}]}}, POD
    )
    assert deleted["spec"]["containers"] == [container("b")]
    order = {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}
    assert apply_strategic_patch(document, order, POD)["spec"]["containers"] == [
        container("b"),
        container("a"),
    ]
    drop = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}
    assert apply_strategic_patch(document, drop, POD)["metadata"]["finalizers"] == ["y"]
    whole = {"metadata": {"$patch": "replace", "name": "n"}}
    assert apply_strategic_patch(document, whole, POD)["metadata"] == {"name": "n"}


def test_strategic_patches_that_make_no_sense_are_refused() -> None:
    document = {"spec": {"containers": [container("a")]}}
    with pytest.raises(NoMergeKey):
        apply_strategic_patch(document, {"spec": {"containers": [{"image": "x"}]}}, POD)
    with pytest.raises(StrategicPatchError, match="unknown patch type"):
        apply_strategic_patch(document, {"spec": {"$patch": "explode"}}, POD)


@pytest.mark.parametrize(("kept", "code"), [(1, 400), (["phase"], 422)])
async def test_a_list_of_keys_to_retain_that_does_not_fit_is_the_clients_fault(kept, code):
    async with running_cluster() as client:
        await client.call("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "c"}})
        patch = {"$retainKeys": kept, "metadata": {"labels": {"a": "b"}}}
        answer = await client.call(
            "PATCH", "/api/v1/namespaces/default/configmaps/c", patch, content=STRATEGIC
        )
        assert answer.code == code, answer.body
