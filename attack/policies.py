"""What judges requests of others: webhooks and admission policies, tried by the fuzzer and some of them in force.

A mutant of a webhook or policy that is in force could refuse all later requests, and a webhook's address may be anywhere.
So the fuzzer sends them as dry runs (`as_dry_run`): their validation, and the compiler of their expressions, is reached, and
they are never asked. What evaluates expressions is reached by policies that are the same in every run
(`in_force`): one warns about requests to every kind, one refuses some objects of the custom kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from dray.api.kinds import ADMISSION

Json = Any
_PREFIX = f"/apis/{ADMISSION}/"
# Expressions that the compiler takes, and some that it must refuse; fields named so choose among them.
EXPRESSIONS = (
    "true", "false", "1", "object", "self", "params", "", "has(object.spec)", "object.metadata.name == 'a0'", "oldObject == null", "self.size() > 0",
    "request.userInfo.username != ''", "authorizer.group('').resource('pods').check('get').allowed()", "variables.v == 2", "oldSelf == self",
    "object.metadata.labels.all(k, k != 'x')", "self.all(a, self.all(b, self.all(c, a == b)))", "[1,2,3].map(a, a * a).sum() > 2", "self.exists_one(x, x == 'a')",
    "'a'.matches('(a+)+$')", "'a'.matches('(')", "quantity('1Gi').isGreaterThan(quantity('1x'))", "semver('1.2.3').major() == 1", "ip('::1').family() == 6",
    "cidr('10.0.0.0/8').containsIP('10.1.1.1')", "url('https://a/b').getHost() == 'a'", "duration('1h') > duration('1x')", "timestamp('2026-01-02T03:04:05Z') < timestamp('x')",
    "device.attributes['a.example.com'].b.startsWith('c')", "device.capacity['a.example.com'].memory.compareTo(quantity('1Gi')) > 0", "1 / 0 == 1", "9223372036854775807 + 1 > 0",
    "cel.bind(x, 1, x + x) == 2", "object.?spec.?size.orValue(0) < 3", "format.named('dns1123Label').value().validate('a').hasValue()", "self.foo.bar", "dyn([1, 'a', {}])[0] == 1",
    "[[[[1]]]][0][0][0][0] == 1", "{'a': 1}.a == 1", "self.transformMap(k, v, v)", "sets.contains([1], [2])", "'%s %d'.format(['a', 1]) == 'a 1'", "b'\\xff' == b''", "self ==",
    "!(!(!(!true)))", "1 in [1, 2u]", "'' + string(1.0) + string(b'a') == ''", "lists.range(5).size() == 5", "string(object) == ''", "self.replace('a', 'b' * 9) == ''",
)  # fmt: skip
EXPRESSION_FIELDS = ("expression", "rule", "messageExpression", "valueExpression")


def as_dry_run(target: str) -> str:
    """Return the target of a write; one that would come into force and judge others becomes a dry run.

    >>> as_dry_run("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies?dryRun=x&pretty=1")
    '/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies?pretty=1&dryRun=All'
    >>> as_dry_run("/api/v1/nodes?dryRun=x")
    '/api/v1/nodes?dryRun=x'
    """
    if not target.startswith(_PREFIX):
        return target
    path, _, query = target.partition("?")
    kept = [each for each in parse_qsl(query, keep_blank_values=True) if each[0] != "dryRun"]
    return f"{path}?{urlencode([*kept, ('dryRun', 'All')])}"


def admission_kinds(
    metadata: Callable[[], Json], selector: Callable[[], Json]
) -> dict[tuple[str, str], list[Json]]:
    """Return objects that would judge requests of others, were there a kind of that name: two fields away from that."""
    rule = {
        "apiGroups": ["nothing.example.com"], "apiVersions": ["v1"], "resources": ["nothings"], "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }  # fmt: skip
    hook = {
        "name": "a.attack.example.com", "clientConfig": {"url": "https://127.0.0.1:1/hook"}, "rules": [rule],
        "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore", "timeoutSeconds": 1,
        "matchConditions": [{"name": "never", "expression": "false"}], "namespaceSelector": selector(),
    }  # fmt: skip
    policy = {
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "object.metadata.name != ''", "message": "m", "reason": "Invalid"}],
        "matchConditions": [{"name": "never", "expression": "false"}],
        "variables": [{"name": "v", "expression": "1 + 1"}],
        "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}],
    }
    binding = {"policyName": "p", "validationActions": ["Warn"], "matchResources": {"resourceRules": [rule]}}
    return {
        (ADMISSION, "MutatingWebhookConfiguration"): [
            {"metadata": metadata(), "webhooks": [{**hook, "reinvocationPolicy": "Never"}]}
        ],
        (ADMISSION, "ValidatingWebhookConfiguration"): [{"metadata": metadata(), "webhooks": [hook]}],
        (ADMISSION, "ValidatingAdmissionPolicy"): [{"metadata": metadata(), "spec": policy}],
        (ADMISSION, "ValidatingAdmissionPolicyBinding"): [{"metadata": metadata(), "spec": binding}],
    }


def _rule(group: str, resource: str, *operations: str) -> Json:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "resources": [resource],
        "operations": list(operations),
    }


def _bound(name: str, spec: Json, actions: list[str]) -> list[tuple[str, Json]]:
    binding = {"policyName": name, "validationActions": actions}
    return [
        ("validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec}),
        ("validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": binding}),
    ]


def in_force(group: str) -> list[tuple[str, Json]]:
    """Return (path, object) of policies that judge requests: all by warnings, those to the kinds of a group by refusals."""
    everything = {
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": [_rule("*", "*/*", "*")]},
        "variables": [
            {"name": "labels", "expression": "object.?metadata.?labels.orValue({})"},
            {"name": "old", "expression": "oldObject == null ? '' : oldObject.metadata.name"},
        ],
        "validations": [
            {"expression": "variables.labels.all(k, k.size() < 60)", "messageExpression": "'labels of ' + request.name"},
            {"expression": "variables.old == '' || variables.old == request.name", "message": "renamed"},
            {"expression": "request.operation != 'CONNECT' || request.subResource != 'nothing'"},
        ],
        "auditAnnotations": [{"key": "who", "valueExpression": "request.userInfo.username + request.name"}],
    }  # fmt: skip
    refusing = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_rule(group, "*", "CREATE", "UPDATE", "DELETE")]},
        "matchConditions": [{"name": "objects", "expression": "object != null"}],
        "variables": [{"name": "size", "expression": "object.?spec.?size.orValue(0)"}],
        "validations": [
            {
                "expression": "variables.size < 90",
                "messageExpression": "'size ' + string(variables.size) + ' is large'",
                "reason": "Forbidden",
            },
            {"expression": "!has(object.spec.name) || object.spec.name.matches('^(a|b|[a-z]+)*$')"},
            {"expression": "oldObject == null || !has(oldObject.spec.parts) || oldObject.spec.parts.size() < 100"},
            {"expression": "authorizer.group('').resource('pods').namespace(request.namespace).check('get').allowed()"},
        ],
    }  # fmt: skip
    found = [
        *_bound("attack-warns", everything, ["Warn", "Audit"]),
        *_bound("attack-refuses", refusing, ["Deny"]),
    ]
    return [(f"{_PREFIX}v1/{plural}", body) for plural, body in found]
