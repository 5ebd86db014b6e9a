"""Custom kinds: definitions, schemas, objects."""

import time
from typing import Any

import pytest
from server_cluster import APPLY, MERGE, running_cluster

from dray.server.custom.schema_validation import validate_value

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.test/v1/namespaces/default/widgets"


def definition() -> dict[str, Any]:
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1},
            "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "ports": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port"],
                "items": {
                    "type": "object",
                    "required": ["port"],
                    "properties": {"port": {"type": "integer"}},
                },
            },
        },
    }
    properties = {"spec": spec, "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": schema,
        "subresources": {"status": {}},
    }
    return {
        "metadata": {"name": "widgets.example.test"},
        "spec": {
            "group": "example.test",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [version],
        },
    }


def widget(name: str = "w", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.test/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": 1, **spec},
    }


async def test_a_definition_is_served_at_once_and_discovered() -> None:
    async with running_cluster() as client:
        assert (await client.call("GET", WIDGETS)).code == 404
        assert (await client.call("POST", DEFINITIONS, definition())).code == 201
        assert (await client.call("GET", WIDGETS)).json["items"] == []
        resources = (await client.call("GET", "/apis/example.test/v1")).json["resources"]
        assert {"widgets", "widgets/status"} <= {resource["name"] for resource in resources}


async def test_objects_are_pruned_defaulted_and_judged() -> None:
    async with running_cluster() as client:
        await client.call("POST", DEFINITIONS, definition())
        made = await client.call("POST", WIDGETS, widget(bogus=1, free={"any": {"thing": 1}}))
        assert made.json["spec"] == {"size": 1, "mode": "a", "free": {"any": {"thing": 1}}}
        assert made.warnings == ['299 - "unknown field \\"spec.bogus\\""']
        wrong = await client.call("POST", WIDGETS, widget("x", size=0, mode="c"))
        assert (wrong.code, wrong.fields) == (422, ["spec.mode", "spec.size"])
        twice = await client.call("POST", WIDGETS, widget("y", ports=[{"port": 1}, {"port": 1}]))
        assert twice.fields == ["spec.ports[1]"]


async def test_status_has_its_own_path() -> None:
    async with running_cluster() as client:
        await client.call("POST", DEFINITIONS, definition())
        await client.call("POST", WIDGETS, {**widget(), "status": {"ready": True}})
        assert "status" not in (await client.call("GET", WIDGETS + "/w")).json
        change = {"status": {"ready": True}, "spec": {"size": 9}}
        changed = (await client.call("PATCH", WIDGETS + "/w/status", change, content=MERGE)).json
        assert (changed["status"], changed["spec"]["size"]) == ({"ready": True}, 1)
        assert changed["metadata"]["generation"] == 1


async def test_apply_merges_lists_by_their_keys() -> None:
    async with running_cluster() as client:
        await client.call("POST", DEFINITIONS, definition())
        for manager, port in (("a", 1), ("b", 2)):
            target = f"{WIDGETS}/w?fieldManager={manager}"
            applied = await client.call("PATCH", target, widget(ports=[{"port": port}]), content=APPLY)
        assert applied.json["spec"]["ports"] == [{"port": 1}, {"port": 2}]


async def test_a_deleted_definition_takes_its_objects_along() -> None:
    async with running_cluster() as client:
        await client.call("POST", DEFINITIONS, definition())
        await client.call("POST", WIDGETS, widget())
        await client.call("DELETE", DEFINITIONS + "/widgets.example.test")
        await client.cluster.custom.close()
        assert (await client.call("GET", DEFINITIONS + "/widgets.example.test")).code == 404
        assert (await client.call("GET", WIDGETS)).code == 404
        assert client.cluster.store.count("/example.test/") == 0


@pytest.mark.parametrize("odd", ["text", 1, True, [1], [{"a": 1}]])
async def test_values_of_wrong_types_are_refused_not_compared_field_by_field(odd: Any) -> None:
    async with running_cluster() as client:
        await client.call("POST", DEFINITIONS, definition())
        await client.call("POST", WIDGETS, widget())
        for method, target, body in (
            ("POST", WIDGETS, {**widget("new"), "spec": odd}),
            ("PATCH", f"{WIDGETS}/w", {"spec": odd}),
            ("PATCH", f"{WIDGETS}/w/status", {"status": odd}),
        ):
            answer = await client.call(method, target, body, content=MERGE if method == "PATCH" else "")
            assert 400 <= answer.code < 500, (method, target, answer.body)


def test_items_of_a_set_are_compared_once_each():
    schema = {
        "type": "array",
        "x-kubernetes-list-type": "set",
        "items": {"x-kubernetes-preserve-unknown-fields": True},
    }
    began = time.process_time()
    assert validate_value(schema, [*range(50_000), {"a": 1}, {"a": True}, True, "1"], "spec") == []
    assert time.process_time() - began < 5, "it took minutes when every item was compared with every other"
    found = validate_value(schema, [1, 2, 1, {"a": 1, "b": 2}, {"b": 2, "a": 1}], "spec")
    assert [problem.field for problem in found] == ["spec[2]", "spec[4]"]


async def test_apply_keeps_the_metadata_of_a_kind_whose_schema_names_no_members() -> None:
    free = definition()
    free["spec"]["versions"][0]["schema"] = {
        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    }
    body = {
        "apiVersion": "example.test/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"a": {"b": 1}},
    }
    async with running_cluster() as client:
        await client.call("POST", DEFINITIONS, free)
        assert (await client.call("POST", WIDGETS, body)).code == 201
        wanted = {**body, "spec": {"a": {"c": 2}}}
        answer = await client.call("PATCH", f"{WIDGETS}/w?fieldManager=m", wanted, content=APPLY)
        assert (answer.code, answer.json["spec"]) == (200, {"a": {"b": 1, "c": 2}})
