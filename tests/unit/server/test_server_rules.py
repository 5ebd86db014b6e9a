"""Rules of custom kinds: `x-kubernetes-validations`."""

from typing import Any

import pytest
from server_cluster import MERGE, running_cluster

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/example.test/v1/namespaces/default/things"


def definition(spec: dict[str, Any], *root_rules: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"spec": spec},
        **({"x-kubernetes-validations": list(root_rules)} if root_rules else {}),
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "metadata": {"name": "things.example.test"},
        "spec": {
            "group": "example.test",
            "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [version],
        },
    }


def limits(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "min": {"type": "integer"},
            "max": {"type": "integer"},
            "name": {"type": "string", "maxLength": 64},
            "start": {"type": "string", "format": "date-time"},
            "share": {"type": "number"},
            "a-b": {"type": "string", "maxLength": 10},
            "size": {"x-kubernetes-int-or-string": True, "maxLength": 10},
            **more,
        },
        "x-kubernetes-validations": list(rules),
    }


def thing(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.test/v1",
        "kind": "Thing",
        "metadata": {"name": "t"},
        "spec": spec,
    }


async def create(spec_schema: dict[str, Any], obj: dict[str, Any], *root: dict[str, Any]) -> Any:
    async with running_cluster() as client:
        made = await client.call("POST", DEFINITIONS, definition(spec_schema, *root))
        assert made.code == 201, made.json["message"]
        return await client.call("POST", THINGS, obj)


RULES = [
    ("self.min <= self.max", {"min": 1, "max": 2}, {"min": 3, "max": 2}),
    ("!has(self.start) || self.start > timestamp('2026-01-01T00:00:00Z')", {"start": "2026-02-01T00:00:00Z"}, {"start": "2025-02-01T00:00:00Z"}),
    ("self.share < 0.5", {"share": 0}, {"share": 1}),
    ("self.a__dash__b.startsWith('x')", {"a-b": "xy"}, {"a-b": "y"}),
    ("self.size == 2 || self.size == 'big'", {"size": "big"}, {"size": 1}),
    ("self.name.matches('^[a-z]+$')", {"name": "abc"}, {"name": "A"}),
    ("self.?max.orValue(5) == 5", {}, {"max": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "good", "bad"), RULES)
async def test_a_rule_tells_good_objects_from_bad_ones(rule: str, good: Any, bad: Any) -> None:
    assert (await create(limits({"rule": rule}), thing(**good))).code == 201
    refused = await create(limits({"rule": rule}), thing(**bad))
    assert refused.code == 422
    assert refused.json["message"].endswith(f"spec: Invalid value: failed rule: {rule}")


async def test_a_broken_rule_says_what_its_author_wrote() -> None:
    rule = {
        "rule": "self.min <= self.max",
        "message": "wrong way round",
        "messageExpression": "'%d is more than %d'.format([self.min, self.max])",
        "reason": "FieldValueForbidden",
        "fieldPath": ".min",
    }
    refused = await create(limits(rule), thing(min=3, max=2))
    assert refused.json["details"]["causes"] == [
        {"reason": "FieldValueForbidden", "message": "Forbidden: 3 is more than 2", "field": "spec.min"}
    ]


async def test_a_rule_at_the_root_sees_the_name_of_the_object() -> None:
    rule = {"rule": "self.metadata.name.size() > 3 && self.kind == 'Thing'", "message": "name too short"}
    refused = await create(limits(), thing(), rule)
    assert refused.json["details"]["causes"][0]["field"] == "<nil>"
    assert "name too short" in refused.json["message"]


async def test_a_rule_that_fails_to_evaluate_refuses_the_object() -> None:
    refused = await create(limits({"rule": "self.min < self.max"}), thing(min=1))
    assert refused.json["message"].endswith(
        'spec: Invalid value: "object": no such key: max evaluating rule: self.min < self.max'
    )


async def test_rules_are_not_asked_about_an_object_of_the_wrong_shape() -> None:
    refused = await create(limits({"rule": "self.min < self.max"}), thing(min="x"))
    assert "some validation rules were not checked" in refused.json["message"]


async def test_transition_rules_compare_with_the_old_value() -> None:
    rules = (
        {"rule": "self.max >= oldSelf.max", "message": "must not shrink"},
        {"rule": "oldSelf.hasValue() || self.max < 10", "optionalOldSelf": True, "message": "starts small"},
    )
    async with running_cluster() as client:
        await client.call("POST", DEFINITIONS, definition(limits(*rules)))
        assert "starts small" in (await client.call("POST", THINGS, thing(max=10))).json["message"]
        assert (await client.call("POST", THINGS, thing(max=5))).code == 201
        path = f"{THINGS}/t"
        grown = await client.call("PATCH", path, {"spec": {"max": 50}}, content=MERGE)
        assert grown.code == 200
        shrunk = await client.call("PATCH", path, {"spec": {"max": 49}}, content=MERGE)
        assert shrunk.code == 422
        assert "must not shrink" in shrunk.json["message"]


async def test_a_value_that_an_update_leaves_alone_is_only_warned_about() -> None:
    async with running_cluster() as client:
        await client.call("POST", DEFINITIONS, definition(limits()))
        assert (await client.call("POST", THINGS, thing(min=3, max=2))).code == 201
        stricter = definition(limits({"rule": "self.min <= self.max", "message": "wrong way round"}))
        changed = await client.call(
            "PATCH", f"{DEFINITIONS}/things.example.test", {"spec": stricter["spec"]}, content=MERGE
        )
        assert changed.code == 200
        path = f"{THINGS}/t"
        labelled = await client.call("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, content=MERGE)
        assert labelled.code == 200
        assert any("wrong way round" in warning for warning in labelled.warnings)
        assert (await client.call("PATCH", path, {"spec": {"min": 4}}, content=MERGE)).code == 422


PAIR = {
    "type": "object",
    "properties": {"key": {"type": "string", "maxLength": 5}, "value": {"type": "integer"}},
}


def pairs(rule: str, list_type: str = "map") -> dict[str, Any]:
    items = {**PAIR, "required": ["key"], "x-kubernetes-validations": [{"rule": rule}]}
    found: dict[str, Any] = {
        "type": "array",
        "maxItems": 5,
        "items": items,
        "x-kubernetes-list-type": list_type,
    }
    if list_type == "map":
        found["x-kubernetes-list-map-keys"] = ["key"]
    return found


async def test_items_with_keys_are_compared_with_their_former_selves() -> None:
    schema = limits(pairs=pairs("self.value >= oldSelf.value"))
    async with running_cluster() as client:
        assert (await client.call("POST", DEFINITIONS, definition(schema))).code == 201
        first = [{"key": "a", "value": 1}, {"key": "b", "value": 5}]
        assert (await client.call("POST", THINGS, thing(pairs=first))).code == 201
        swapped = [{"key": "b", "value": 5}, {"key": "a", "value": 1}, {"key": "c", "value": 0}]
        path = f"{THINGS}/t"
        assert (await client.call("PATCH", path, {"spec": {"pairs": swapped}}, content=MERGE)).code == 200
        less = [{"key": "b", "value": 4}]
        refused = await client.call("PATCH", path, {"spec": {"pairs": less}}, content=MERGE)
        assert refused.fields == ["spec.pairs[0]"]


BAD = [
    ({"rule": ""}, "rule: Required value: rule is not specified"),
    ({"rule": "self.nothing == 1"}, "undefined field 'nothing'"),
    ({"rule": "self.min"}, "cel expression must evaluate to a bool"),
    ({"rule": "true", "messageExpression": "1"}, "messageExpression must evaluate to a string"),
    ({"rule": "true", "message": "a\nb"}, "must not contain line breaks"),
    ({"rule": "true", "reason": "Whatever"}, 'reason: Unsupported value: "Whatever"'),
    ({"rule": "true", "fieldPath": ".nowhere"}, "must be a valid path"),
    ({"rule": "true", "optionalOldSelf": True}, "may not be set if oldSelf is not used in rule"),
]


@pytest.mark.parametrize(("rule", "complaint"), BAD)
async def test_a_definition_with_a_bad_rule_is_refused(rule: dict[str, Any], complaint: str) -> None:
    async with running_cluster() as client:
        refused = await client.call("POST", DEFINITIONS, definition(limits(rule)))
        assert refused.code == 422
        assert complaint in refused.json["message"]


async def test_a_rule_that_may_cost_too_much_is_refused_with_its_definition() -> None:
    names = {"type": "array", "items": {"type": "string"}}
    rule = {"rule": "self.names.all(x, self.names.all(y, x == y))"}
    async with running_cluster() as client:
        refused = await client.call("POST", DEFINITIONS, definition(limits(rule, names=names)))
        assert refused.code == 422
        assert "estimated rule cost exceeds budget by factor of more than 100x" in refused.json["message"]
        bounded = {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 20}}
        assert (await client.call("POST", DEFINITIONS, definition(limits(rule, names=bounded)))).code == 201


async def test_old_values_cannot_be_used_where_nothing_tells_which_is_which() -> None:
    async with running_cluster() as client:
        schema = limits(pairs=pairs("self.value >= oldSelf.value", "atomic"))
        refused = await client.call("POST", DEFINITIONS, definition(schema))
        assert "oldSelf cannot be used on the uncorrelatable portion" in refused.json["message"]


async def test_rules_of_one_object_share_a_budget() -> None:
    rule = "self.all(x, self.all(y, self.all(z, x + y + z >= 0)))"
    numbers = {
        "type": "array",
        "maxItems": 150,
        "items": {"type": "integer"},
        "x-kubernetes-validations": [{"rule": "size(self) >= 0"}, {"rule": rule}],
    }
    async with running_cluster() as client:
        made = await client.call("POST", DEFINITIONS, definition(limits(numbers=numbers)))
        assert made.code == 422, "three loops over 150 items are estimated above the limit"
        numbers["maxItems"] = 80
        made = await client.call("POST", DEFINITIONS, definition(limits(numbers=numbers)))
        assert made.code == 201, made.json
        refused = await client.call("POST", THINGS, thing(numbers=list(range(80))))
        assert (
            "no further validation rules will be run due to call cost exceeds limit"
            in refused.json["message"]
        )
