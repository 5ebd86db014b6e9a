"""ValidatingAdmissionPolicy: writes judged by CEL expressions."""

import gc
import weakref
from typing import Any

import pytest
from server_cluster import MERGE, running_cluster

from dray.server.admission.admission_expressions import Compiler, Evaluation

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{GROUP}/validatingadmissionpolicies"
BINDINGS = f"{GROUP}/validatingadmissionpolicybindings"
MAPS = "/api/v1/namespaces/default/configmaps"


def policy(
    *validations: dict[str, Any], resources: tuple[str, ...] = ("configmaps",), **spec: Any
) -> dict[str, Any]:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": list(resources)}
    return {
        "metadata": {"name": "rule.test"},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": list(validations), **spec},
    }


def binding(*actions: str, **spec: Any) -> dict[str, Any]:
    said = list(actions) or ["Deny"]
    return {
        "metadata": {"name": "bound"},
        "spec": {"policyName": "rule.test", "validationActions": said, **spec},
    }


def config_map(name: str = "m", labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, **({"labels": labels} if labels else {})}, "data": data}


async def configure(client: Any, written: dict[str, Any], bound: dict[str, Any] | None = None) -> None:
    made = await client.call("POST", POLICIES, written)
    assert made.code == 201, made.json["message"]
    made = await client.call("POST", BINDINGS, bound or binding())
    assert made.code == 201, made.json["message"]


async def judged(written: dict[str, Any], obj: dict[str, Any], bound: dict[str, Any] | None = None) -> Any:
    async with running_cluster() as client:
        await configure(client, written, bound)
        return await client.call("POST", MAPS, obj)


async def test_a_policy_refuses_what_its_expression_does_not_allow() -> None:
    rule = {"expression": "'owner' in object.data"}
    assert (await judged(policy(rule), config_map(owner="me"))).code == 201
    refused = await judged(policy(rule), config_map(other="me"))
    text = (
        "ValidatingAdmissionPolicy 'rule.test' with binding 'bound' denied request: "
        "failed expression: 'owner' in object.data"
    )
    assert (refused.code, refused.json["reason"]) == (422, "Invalid")
    assert refused.json["message"] == f'configmaps "m" is forbidden: {text}'
    assert refused.json["details"]["causes"] == [{"message": text}]


async def test_a_policy_without_a_binding_does_nothing() -> None:
    async with running_cluster() as client:
        assert (await client.call("POST", POLICIES, policy({"expression": "false"}))).code == 201
        assert (await client.call("POST", MAPS, config_map())).code == 201


async def test_the_message_may_be_computed_and_the_reason_chosen() -> None:
    rule = {
        "expression": "size(object.data) < 1",
        "message": "too much",
        "messageExpression": "'has %d keys, user %s'.format([size(object.data), request.userInfo.username])",
        "reason": "Forbidden",
    }
    refused = await judged(policy(rule), config_map(a="b"))
    assert refused.code == 403
    assert refused.json["message"].endswith("denied request: has 1 keys, user admin")
    rule["messageExpression"] = "string(object.data.nothing)"
    refused = await judged(policy(rule), config_map(a="b"))
    assert refused.json["message"].endswith("denied request: too much")


async def test_variables_are_computed_once_and_may_use_each_other() -> None:
    variables = [
        {"name": "keys", "expression": "object.data.map(k, k)"},
        {"name": "count", "expression": "size(variables.keys)"},
        {"name": "broken", "expression": "object.data.nothing"},
    ]
    rule = {"expression": "variables.count == 2 && variables.keys.all(k, k != 'bad')"}
    assert (await judged(policy(rule, variables=variables), config_map(a="1", b="2"))).code == 201
    assert (await judged(policy(rule, variables=variables), config_map(a="1", bad="2"))).code == 422
    broken = await judged(
        policy({"expression": "variables.broken == 'x'"}, variables=variables), config_map()
    )
    assert 'composited variable "broken" fails to evaluate: no such key: ' in broken.json["message"]


def test_variables_do_not_keep_the_object_that_they_read() -> None:
    class Body(dict):
        """A dict that can be asked for by a weak reference."""

    compiler = Compiler(has_variables=True)
    variables = {"n": compiler.add_variable("n", "size(object)")}
    rule = compiler.compile("variables.n == 1", "variable")
    body = Body(a=1)
    seen = weakref.ref(body)
    gc.collect()
    gc.disable()
    try:
        evaluation = Evaluation({"object": body}, 10_000_000, variables)
        assert evaluation.run(rule) is True
        del evaluation, body
        assert seen() is None  # in a cycle it would stay until the next collection
    finally:
        gc.enable()


async def test_a_binding_chooses_parameters() -> None:
    written = policy(
        {"expression": "size(object.data) <= int(params.data.most)"},
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        matchConditions=[{"name": "not-params", "expression": "!has(object.metadata.labels)"}],
    )
    bound = binding(paramRef={"name": "limits", "parameterNotFoundAction": "Deny"})
    async with running_cluster() as client:
        await configure(client, written, bound)
        missing = await client.call("POST", MAPS, config_map(a="1"))
        assert (
            "no params found for policy binding with `Deny` parameterNotFoundAction"
            in missing.json["message"]
        )
        await client.call("DELETE", f"{BINDINGS}/bound")
        limits = config_map("limits", labels={"role": "limits"}, most="1")
        assert (await client.call("POST", MAPS, limits)).code == 201
        assert (await client.call("POST", BINDINGS, bound)).code == 201
        assert (await client.call("POST", MAPS, config_map(a="1"))).code == 201
        assert (await client.call("POST", MAPS, config_map("n", a="1", b="2"))).code == 422
        await client.call("DELETE", f"{BINDINGS}/bound")
        selector = {"matchLabels": {"role": "limits"}}
        by_label = binding(paramRef={"selector": selector, "parameterNotFoundAction": "Allow"})
        assert (await client.call("POST", BINDINGS, by_label)).code == 201
        assert (await client.call("POST", MAPS, config_map("n", a="1", b="2"))).code == 422


async def test_a_failed_evaluation_refuses_unless_failures_are_ignored() -> None:
    rule = {"expression": "object.data.nothing == 'x'"}
    refused = await judged(policy(rule), config_map(a="1"))
    wanted = "expression 'object.data.nothing == 'x'' resulted in error: no such key: nothing"
    assert refused.json["message"].endswith(wanted)
    assert (await judged(policy(rule, failurePolicy="Ignore"), config_map(a="1"))).code == 201


async def test_a_warning_does_not_refuse() -> None:
    made = await judged(
        policy({"expression": "false", "message": "do not"}), config_map(), binding("Warn", "Audit")
    )
    assert made.code == 201
    text = "Validation failed for ValidatingAdmissionPolicy 'rule.test' with binding 'bound': do not"
    assert any(text in warning for warning in made.warnings)


async def test_match_conditions_decide_whom_a_policy_concerns() -> None:
    conditions = [{"name": "only-admin", "expression": "request.userInfo.username == 'somebody'"}]
    made = await judged(policy({"expression": "false"}, matchConditions=conditions), config_map())
    assert made.code == 201
    broken = [{"name": "broken", "expression": "object.data.nothing == 'x'"}]
    refused = await judged(policy({"expression": "true"}, matchConditions=broken), config_map(a="1"))
    assert "no such key: nothing" in refused.json["message"]


@pytest.mark.parametrize(
    ("match", "concerned"),
    [
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, False),
        ({"objectSelector": {"matchLabels": {"a": "b"}}}, True),
        ({"objectSelector": {"matchLabels": {"a": "c"}}}, False),
        ({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["*"]}]}, False),
        ({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"], "resourceNames": ["m"]}]}, True),
        ({"excludeResourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["configmaps"]}]}, False),
    ],
)  # fmt: skip
async def test_a_binding_narrows_what_a_policy_is_about(match: dict[str, Any], concerned: bool) -> None:
    bound = binding(matchResources=match)
    answer = await judged(policy({"expression": "false"}), config_map(labels={"a": "b"}), bound)
    assert answer.code == (422 if concerned else 201)


async def test_updates_and_deletions_are_judged_with_the_old_object() -> None:
    rules = (
        {
            "expression": "request.operation != 'UPDATE' || object.data.a == oldObject.data.a",
            "message": "a stays",
        },
        {
            "expression": "request.operation != 'DELETE' || (object == null && oldObject.data.a == '2')",
            "message": "no",
        },
    )
    async with running_cluster() as client:
        await configure(client, policy(*rules))
        assert (await client.call("POST", MAPS, config_map(a="1"))).code == 201
        changed = await client.call("PATCH", f"{MAPS}/m", {"data": {"a": "2"}}, content=MERGE)
        assert "a stays" in changed.json["message"]
        kept = await client.call("DELETE", f"{MAPS}/m")
        assert kept.json["message"].endswith("denied request: no")


async def test_an_expression_may_ask_for_rights_and_about_the_namespace() -> None:
    rules = (
        {
            "expression": "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()"
        },
        {"expression": "authorizer.requestResource.check('delete').allowed()"},
        {"expression": "!authorizer.serviceAccount('default', 'x').path('/metrics').check('get').allowed()"},
        {
            "expression": "namespaceObject.metadata.name == 'default' && namespaceObject.status.phase == 'Active'"
        },
    )
    made = await judged(policy(*rules), config_map())
    assert made.code == 201, made.json["message"]


async def test_old_versions_of_an_object_are_judged_as_the_policy_names_them() -> None:
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["deviceclasses"],
    }
    written = policy(
        {"expression": "object.apiVersion == 'resource.k8s.io/v1'"},
        matchConstraints={"resourceRules": [rule]},
    )
    async with running_cluster() as client:
        await configure(client, written)
        made = await client.call(
            "POST", "/apis/resource.k8s.io/v1beta1/deviceclasses", {"metadata": {"name": "c"}}
        )
        assert made.code == 201, made.json["message"]
        await client.call(
            "PATCH",
            f"{POLICIES}/rule.test",
            {
                "spec": {
                    "matchConstraints": {"matchPolicy": "Exact", "resourceRules": [rule]},
                    "validations": [{"expression": "false"}],
                }
            },
            content=MERGE,
        )
        made = await client.call(
            "POST", "/apis/resource.k8s.io/v1beta1/deviceclasses", {"metadata": {"name": "d"}}
        )
        assert made.code == 201, "matchPolicy Exact does not concern other versions"


async def test_all_expressions_of_a_policy_share_a_budget() -> None:
    numbers = "[0,1,2,3,4,5,6,7,8,9]"
    loop = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, {numbers}.all(d, {numbers}.all(e, a+b+c+d+e >= 0)))))"
    refused = await judged(policy({"expression": loop}), config_map())
    assert "running out of cost budget" in refused.json["message"]


async def test_policies_themselves_are_judged_by_nobody() -> None:
    async with running_cluster() as client:
        await configure(client, policy({"expression": "false"}, resources=("*",)))
        assert (await client.call("DELETE", f"{BINDINGS}/bound")).code == 200
        assert (await client.call("POST", MAPS, config_map())).code == 201


BAD = [
    (policy({"expression": "object.x =="}), "spec.validations[0].expression: Invalid value"),
    (policy({"expression": "1"}), "must evaluate to bool but got int"),
    (policy({"expression": "nothing"}), "undeclared reference to 'nothing'"),
    (policy({"expression": "params.x"}), "undeclared reference to 'params'"),
    (policy({"expression": "request.nothing == 1"}), "undefined field 'nothing'"),
    (policy({"expression": "variables.x == 1"}), "undeclared reference to 'variables'"),
    (policy({"expression": "true", "messageExpression": "1"}), "must evaluate to string but got int"),
    (policy({"expression": "true", "reason": "Whatever"}), 'Unsupported value: "Whatever"'),
    (policy(), "validations or auditAnnotations must contain at least one item"),
    (policy({"expression": "true"}, matchConstraints={}), "spec.matchConstraints.resourceRules: Required value"),
    (policy({"expression": "true"}, variables=[{"name": "in", "expression": "1"}]), "must be a valid CEL identifier"),
    (policy({"expression": "true"}, auditAnnotations=[{"key": "a", "valueExpression": "1"}]), "must evaluate to one of [string null_type] but got int"),
    (policy({"expression": "true"}, paramKind={"apiVersion": "a/b/c", "kind": "X"}), "unexpected GroupVersion string"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "complaint"), BAD)
async def test_a_bad_policy_is_refused(written: dict[str, Any], complaint: str) -> None:
    async with running_cluster() as client:
        refused = await client.call("POST", POLICIES, written)
        assert refused.code == 422
        assert complaint in refused.json["message"]


BAD_BINDINGS = [
    (binding(policyName=""), "spec.policyName: Required value"),
    (binding("Deny", "Warn"), "must not contain both Deny and Warn"),
    (binding("Nothing"), 'Unsupported value: "Nothing"'),
    (binding(paramRef={"parameterNotFoundAction": "Deny"}), "one of name or selector must be specified"),
    (binding(paramRef={"name": "x"}), "spec.paramRef.parameterNotFoundAction: Required value"),
]


@pytest.mark.parametrize(("written", "complaint"), BAD_BINDINGS)
async def test_a_bad_binding_is_refused(written: dict[str, Any], complaint: str) -> None:
    async with running_cluster() as client:
        refused = await client.call("POST", BINDINGS, written)
        assert refused.code == 422
        assert complaint in refused.json["message"]
