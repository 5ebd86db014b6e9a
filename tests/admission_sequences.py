"""Request sequences about rules of custom kinds, policies and webhook configurations; see api_sequences.

kube-apiserver follows definitions and policies a moment after they are written, so a step may say `until`:
it is sent again until the answer has that code.
"""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
MERGE = "application/merge-patch+json"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def definition(plural: str, spec: JsonObject, *root: JsonObject) -> JsonObject:
    kind = plural.capitalize().removesuffix("s")
    schema: JsonObject = {"type": "object", "properties": {"spec": spec}}
    if root:
        schema["x-kubernetes-validations"] = list(root)
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": plural.removesuffix("s"), "kind": kind, "listKind": f"{kind}List"}
    return {
        "metadata": {"name": f"{plural}.rules.test"},
        "spec": {"group": "rules.test", "scope": "Cluster", "names": names, "versions": [version]},
    }


def level(*written: JsonObject | str, **properties: JsonObject) -> JsonObject:
    listed = [{"rule": rule} if isinstance(rule, str) else rule for rule in written]
    found: JsonObject = {"type": "object", "properties": {**_FIELDS, **properties}}
    return {**found, "x-kubernetes-validations": listed} if listed else found


_FIELDS: JsonObject = {
    "min": {"type": "integer"},
    "max": {"type": "integer"},
    "name": {"type": "string", "maxLength": 64},
    "start": {"type": "string", "format": "date-time"},
    "share": {"type": "number"},
    "flag": {"type": "boolean"},
    "a-b": {"type": "string", "maxLength": 10},
    "size": {"x-kubernetes-int-or-string": True},
    "labels": {
        "type": "object",
        "maxProperties": 5,
        "additionalProperties": {"type": "string", "maxLength": 9},
    },
}


def obj(plural: str, name: str = "a", /, **spec: Any) -> JsonObject:
    kind = plural.capitalize().removesuffix("s")
    return {"apiVersion": "rules.test/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


_BAD_RULES: tuple[JsonObject | str, ...] = (
    "self.nothing == 1",
    "self.min",
    "self.min == 'x'",
    "self.min +",
    {"rule": ""},
    {"rule": "true", "message": " "},
    {"rule": "true", "message": "a\nb"},
    {"rule": "true ||\n false"},
    {"rule": "true", "messageExpression": "1"},
    {"rule": "true", "messageExpression": "self.x"},
    {"rule": "true", "messageExpression": " "},
    {"rule": "true", "reason": "Whatever"},
    {"rule": "true", "fieldPath": ".nowhere"},
    {"rule": "true", "fieldPath": "min"},
    {"rule": "true", "optionalOldSelf": True},
    "self.size == 1 || type(self.size) == string",
    "authorizer.path('/').check('get').allowed()",
)
_TEXTS: JsonObject = {"type": "array", "items": {"type": "string"}}
_PAIRS: JsonObject = {
    "type": "object",
    "required": ["key"],
    "properties": {"key": {"type": "string", "maxLength": 5}, "value": {"type": "integer"}},
}


def _list(items: JsonObject, rule: str, **more: Any) -> JsonObject:
    return {"type": "array", "items": {**items, "x-kubernetes-validations": [{"rule": rule}]}, **more}


_KEYED = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"]}


def rule_definitions(steps: Any) -> None:
    """Rules that are judged when a definition is written."""
    for number, rule in enumerate(_BAD_RULES):
        steps.post(DEFINITIONS, definition(f"bad{number}s", level(rule)))
    costly = "self.names.all(x, self.names.all(y, x == y))"
    nested = _list({"type": "object", "properties": {"names": _TEXTS}}, "self.names.all(x, x != 'a')")
    steps.post(
        DEFINITIONS,
        definition("costlies", level(costly, names=_TEXTS)),
        definition("nesteds", level(rows=nested)),
        definition("nestedagains", level(rows={**nested, "maxItems": 10})),
        definition("atomics", level(pairs=_list(_PAIRS, "self.value >= oldSelf.value"))),
        definition("matches", level("self.names.all(x, x.matches('^a+$'))", names=_TEXTS)),
        definition("sizes", level("self.name.size() > 1 && self.labels.all(k, k.size() < 5)")),
        definition("sorteds", level("self.names.isSorted()", names={**_TEXTS, "maxItems": 1000})),
        definition("roots", level(), {"rule": "self.metadata.name.startsWith('a') && self.kind == 'Root'"}),
        definition("metas", level(), {"rule": "self.metadata.labels.size() > 0"}),
    )


_RULES: tuple[JsonObject | str, ...] = (
    "!has(self.min) || !has(self.max) || self.min <= self.max",
    {"rule": "!has(self.name) || self.name != 'bad'", "message": "not bad", "fieldPath": ".name"},
    {"rule": "self.?max.orValue(0) < 100", "messageExpression": "'max is %d'.format([self.max])"},
    {"rule": "!has(self.share) || self.share < 0.5", "reason": "FieldValueForbidden", "message": "too much"},
    {"rule": "!has(self.start) || self.start > timestamp('2026-01-01T00:00:00Z')", "message": "too early"},
    {"rule": "!has(self.a__dash__b) || self.a__dash__b.startsWith('x')", "reason": "FieldValueRequired"},
    {"rule": "!has(self.labels) || !('bad' in self.labels)", "fieldPath": ".labels['bad']", "message": "no"},
    {"rule": "!has(self.flag) || self.min > 0", "message": "needs min"},
    {"rule": "!has(self.size) || self.size != 7", "reason": "FieldValueDuplicate"},
    {"rule": "self.?max.orValue(0) >= oldSelf.?max.orValue(0)", "message": "must not shrink"},
    {
        "rule": "oldSelf.hasValue() || self.?min.orValue(1) > 0",
        "optionalOldSelf": True,
        "message": "starts above",
    },
)


def rules(steps: Any) -> None:
    """Rules that judge objects."""
    keyed = _list(_PAIRS, "self.value >= oldSelf.value", maxItems=5, **_KEYED)
    scalars = {
        "type": "array",
        "maxItems": 5,
        "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self < 5"}]},
    }
    values = {
        "type": "object",
        "maxProperties": 5,
        "additionalProperties": {
            "type": "integer",
            "x-kubernetes-validations": [{"rule": "self > 1", "message": "more"}],
        },
    }
    steps.post(
        DEFINITIONS, definition("judgeds", level(*_RULES, pairs=keyed, numbers=scalars, amounts=values))
    )
    path = "/apis/rules.test/v1/judgeds"
    steps.add("GET", path, until=200)
    steps.add("POST", f"{path}?dryRun=All", obj("judgeds", "ready"), until=201)
    for number, spec in enumerate(
        (
            {},
            {"min": 3, "max": 2},
            {"name": "bad"},
            {"max": 100},
            {"share": 1},
            {"start": "2025-01-01T00:00:00Z"},
            {"a-b": "y"},
            {"labels": {"bad": "x"}},
            {"flag": True},
            {"size": 7},
            {"size": "7"},
            {"min": 0},
            {"numbers": [1, 7, 9]},
            {"amounts": {"a": 1, "b": 2}},
            {"min": "text"},
            {"min": 3, "max": 2, "name": "bad", "numbers": [6]},
        )
    ):
        steps.post(path, obj("judgeds", f"o{number}", **spec))
    steps.post(
        path, obj("judgeds", "changing", max=5, pairs=[{"key": "a", "value": 1}, {"key": "b", "value": 5}])
    )
    here = f"{path}/changing"
    steps.patch(
        here,
        {"spec": {"max": 4}},
        {"spec": {"max": 6}},
        {"spec": {"pairs": [{"key": "b", "value": 5}, {"key": "a", "value": 1}, {"key": "c", "value": 0}]}},
        {"spec": {"pairs": [{"key": "b", "value": 4}]}},
        {"metadata": {"labels": {"a": "b"}}},
    )
    steps.delete(f"{DEFINITIONS}/judgeds.rules.test")


def policy(
    name: str, *validations: JsonObject | str, resources: tuple[str, ...] = ("configmaps",), **spec: Any
) -> JsonObject:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": list(resources)}
    listed = [{"expression": each} if isinstance(each, str) else each for each in validations]
    found = {
        "matchConstraints": {"resourceRules": [rule]},
        "failurePolicy": "Fail",
        "validations": listed,
        **spec,
    }
    return {"metadata": {"name": name}, "spec": found}


def binding(name: str, policy_name: str, *actions: str, **spec: Any) -> JsonObject:
    said = list(actions) or ["Deny"]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "policies"}}
    match = {"namespaceSelector": selector, **(spec.pop("matchResources", None) or {})}
    return {
        "metadata": {"name": name},
        "spec": {"policyName": policy_name, "validationActions": said, "matchResources": match, **spec},
    }


_BAD_POLICIES: tuple[JsonObject, ...] = (
    policy("syntax", "object.x =="),
    policy("type", "1"),
    policy("dyn", "object.x"),
    policy("undeclared", "nothing"),
    policy("params", "params.x == 1"),
    policy("field", "request.nothing == 1"),
    policy("variables", "variables.x == 1"),
    policy("unknown-variable", "variables.y == 1", variables=[{"name": "x", "expression": "1"}]),
    policy("variable-type", "variables.x == 'a'", variables=[{"name": "x", "expression": "1"}]),
    policy("bad-variable", "variables.x == 'a'", variables=[{"name": "x", "expression": "1 +"}]),
    policy("variable-name", "true", variables=[{"name": "in", "expression": "1"}]),
    policy("message", {"expression": "true", "messageExpression": "1"}),
    policy(
        "message-authorizer",
        {"expression": "true", "messageExpression": "authorizer.path('/').check('get').reason()"},
    ),
    policy("lines", {"expression": "true", "message": "a\nb"}),
    policy("reason", {"expression": "true", "reason": "Whatever"}),
    policy("empty"),
    policy("empty-expression", ""),
    policy("no-rules", "true", matchConstraints={}),
    policy("annotation", "true", auditAnnotations=[{"key": "a", "valueExpression": "1"}]),
    policy("annotation-key", "true", auditAnnotations=[{"key": "a b", "valueExpression": "'x'"}]),
    policy("annotation-twice", "true", auditAnnotations=[{"key": "a", "valueExpression": "'x'"}] * 2),
    policy("param-kind", "true", paramKind={"apiVersion": "a/b/c", "kind": "X"}),
    policy("param-kind-empty", "true", paramKind={}),
    policy("failure", "true", failurePolicy="Maybe"),
    policy(
        "condition",
        "true",
        matchConditions=[{"name": "a b", "expression": "1"}, {"name": "a", "expression": ""}],
    ),
    policy("condition-twice", "true", matchConditions=[{"name": "a", "expression": "true"}] * 2),
    policy("condition-params", "true", matchConditions=[{"name": "a", "expression": "params.x == 1"}]),
    {"metadata": {"name": "nothing"}, "spec": {}},
)


def policy_objects(steps: Any) -> None:
    """Policies, bindings and webhook configurations that are judged when they are written."""
    policies, bindings = (
        f"{ADMISSION}/validatingadmissionpolicies",
        f"{ADMISSION}/validatingadmissionpolicybindings",
    )
    steps.post(
        policies,
        *_BAD_POLICIES,
        policy("good", "true", auditAnnotations=[{"key": "a", "valueExpression": "null"}]),
    )
    steps.get(f"{policies}/good")
    steps.put(f"{policies}/good", policy("good", "true"))
    steps.patch(f"{policies}/good", {"spec": {"failurePolicy": "Ignore"}}, {"spec": {"validations": []}})
    steps.patch(f"{policies}/good/status", {"status": {"observedGeneration": 3}})
    steps.post(
        bindings,
        binding("empty", ""),
        binding("both", "good", "Deny", "Warn"),
        binding("word", "good", "Nothing"),
        binding("twice", "good", "Deny", "Deny"),
        binding("param", "good", paramRef={"parameterNotFoundAction": "Deny"}),
        binding("param-action", "good", paramRef={"name": "x"}),
        binding(
            "param-both", "good", paramRef={"name": "x", "selector": {}, "parameterNotFoundAction": "Allow"}
        ),
        binding("selector", "good", matchResources={"objectSelector": {"matchLabels": {"a b": "c"}}}),
        binding("good", "good"),
    )
    steps.get(f"{bindings}/good")
    steps.delete(f"{bindings}/good", f"{policies}/good")


def _hook(**written: Any) -> JsonObject:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"]}
    hook = {
        "name": "one.hooks.test",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": "hooks"}, "webhooks": [{**hook, **written}]}


def _hook_rule(**rule: Any) -> JsonObject:
    found = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
        **rule,
    }
    return _hook(rules=[found])


_BAD_HOOKS: tuple[JsonObject, ...] = (
    _hook(name="short"),
    _hook(name=""),
    _hook(sideEffects="Some"),
    _hook(sideEffects=None),
    _hook(timeoutSeconds=31),
    _hook(clientConfig={}),
    _hook(clientConfig={"url": "http://x"}),
    _hook(clientConfig={"url": "https://u@x/?a=b#c"}),
    _hook(clientConfig={"service": {"namespace": "", "name": "", "path": "//a", "port": 70000}}),
    _hook(clientConfig={"service": {"namespace": "a", "name": "b", "path": "a/B"}}),
    _hook(admissionReviewVersions=[]),
    _hook(admissionReviewVersions=["v9", "v9"]),
    _hook(failurePolicy="Maybe", matchPolicy="Maybe"),
    _hook(matchConditions=[{"name": "x", "expression": "1"}, {"name": "x", "expression": "params.a == 1"}]),
    _hook(objectSelector={"matchExpressions": [{"key": "a", "operator": "Is"}]}),
    _hook_rule(operations=["NEVER"], scope="Somewhere"),
    _hook_rule(operations=["*", "CREATE"], apiGroups=["*", ""], apiVersions=["*", "v1"]),
    _hook_rule(operations=[], apiGroups=[], apiVersions=[""], resources=[]),
    _hook_rule(resources=["*", "pods"]),
    _hook_rule(resources=["*/*", "pods/status", "pods/*", "pods/exec", "*/scale", "x/scale", ""]),
)


def webhook_objects(steps: Any) -> None:
    """Webhook configurations that are judged when they are written."""
    for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
        path = f"{ADMISSION}/{kind}"
        steps.post(path, *_BAD_HOOKS, _hook(), _hook())
        steps.get(f"{path}/hooks", path)
        steps.patch(f"{path}/hooks", {"webhooks": None}, {"metadata": {"labels": {"a": "b"}}})
        steps.put(f"{path}/hooks", _hook())
        steps.delete(f"{path}/hooks")
    steps.post(f"{ADMISSION}/mutatingwebhookconfigurations", _hook(reinvocationPolicy="Always"))


def policies(steps: Any) -> None:
    """Policies that judge writes."""
    kinds, bindings = (
        f"{ADMISSION}/validatingadmissionpolicies",
        f"{ADMISSION}/validatingadmissionpolicybindings",
    )
    steps.post("/api/v1/namespaces", {"metadata": {"name": "policies"}})
    maps = "/api/v1/namespaces/policies/configmaps"
    steps.post(
        kinds,
        policy(
            "a.test",
            "!has(object.data) || !('bad' in object.data)",
            {
                "expression": "variables.n < 3",
                "messageExpression": "'has %d'.format([variables.n])",
                "reason": "Forbidden",
            },
            {
                "expression": "!has(object.data) || object.data.?x.orValue('') != 'broken' || object.data.y == 'z'"
            },
            {
                "expression": "object == null || oldObject == null || object.metadata.name != 'kept' || object.data == oldObject.data",
                "message": "kept stays",
            },
            {
                "expression": "request.operation != 'DELETE' || oldObject.metadata.name != 'kept'",
                "message": "kept remains",
                "reason": "RequestEntityTooLarge",
            },
            variables=[
                {"name": "data", "expression": "object == null || !has(object.data) ? {} : object.data"},
                {"name": "n", "expression": "size(variables.data)"},
            ],
            matchConditions=[{"name": "no-root", "expression": "request.name != 'kube-root-ca.crt'"}],
        ),
        policy(
            "warn.test",
            {"expression": "object == null || object.metadata.name != 'warned'", "message": "warned"},
        ),
        policy(
            "params.test",
            "object == null || !has(object.data) || !has(object.data.most) || int(object.data.most) <= int(params.data.limit)",
            paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
            matchConditions=[
                {"name": "labelled", "expression": "object != null && has(object.metadata.labels)"}
            ],
        ),
    )
    steps.post(maps, {"metadata": {"name": "limits"}, "data": {"limit": "5"}})
    steps.post(
        bindings,
        binding("warn-binding", "warn.test", "Warn"),
        binding(
            "params-binding", "params.test", paramRef={"name": "limits", "parameterNotFoundAction": "Deny"}
        ),
        binding("a-binding", "a.test"),
    )

    def made(name: str, labels: JsonObject | None = None, /, **data: str) -> JsonObject:
        return {"metadata": {"name": name, **({"labels": labels} if labels else {})}, "data": data}

    dry = f"{maps}?dryRun=All"
    steps.add("POST", dry, made("probe", bad="1"), until=422)
    steps.add("POST", dry, made("probe", {"a": "b"}, most="6"), until=422)
    steps.post(
        maps,
        made("bad", bad="1"),
        made("three", a="1", b="2", c="3"),
        made("broken", x="broken"),
        made("kept", a="1"),
        made("warned"),
        made("more", {"a": "b"}, most="6"),
        made("less", {"a": "b"}, most="4"),
        made("both", bad="1", a="2", b="3"),
    )
    steps.patch(f"{maps}/kept", {"data": {"a": "2"}}, {"metadata": {"labels": {"a": "b"}}})
    steps.delete(f"{maps}/kept", f"{maps}/less")
    steps.delete(f"{bindings}/a-binding", f"{bindings}/warn-binding", f"{bindings}/params-binding")
    steps.delete(f"{kinds}/a.test", f"{kinds}/warn.test", f"{kinds}/params.test")


def resizing(steps: Any) -> None:
    """pods/resize."""
    steps.post("/api/v1/namespaces", {"metadata": {"name": "resizing"}})
    pods = "/api/v1/namespaces/resizing/pods"

    def container(
        name: str = "c", requests: JsonObject | None = None, limits: JsonObject | None = None
    ) -> JsonObject:
        return {"name": name, "image": "i", "resources": {"requests": requests or {}, "limits": limits or {}}}

    def pod(name: str, *containers: JsonObject, **spec: Any) -> JsonObject:
        return {"metadata": {"name": name}, "spec": {"containers": list(containers), **spec}}

    one, two = {"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "2Gi"}
    side = {**container("side", {"cpu": "1"}), "restartPolicy": "Always"}
    steps.post(
        pods,
        pod(
            "burstable",
            container("c", one),
            container("d", {"cpu": "1", "example.com/x": "1"}, {"example.com/x": "1"}),
        ),
        pod("guaranteed", container("c", one, one)),
        pod("besteffort", container("c")),
        pod("init", container("c", one), initContainers=[container("first", {"cpu": "1"}), side]),
        pod("mirror", container("c", one)),
    )

    def resize(name: str, *bodies: JsonObject) -> None:
        for body in bodies:
            steps.add(
                "PATCH", f"{pods}/{name}/resize", {"spec": body}, "application/strategic-merge-patch+json"
            )

    def change(name: str, **resources: Any) -> JsonObject:
        return {"containers": [{"name": name, "resources": resources}]}

    resize(
        "burstable",
        change("c", requests=two),
        change("c", requests={"cpu": None}),
        change("c", limits={"cpu": "3"}),
        change("d", requests={"cpu": "2"}),
        change("d", requests={"example.com/x": "2"}, limits={"example.com/x": "2"}),
        change("c", requests={"cpu": "4"}),
        change("e", requests=one),
        {"containers": [{"name": "c", "image": "other"}]},
        {"activeDeadlineSeconds": 5},
        {
            "containers": [
                {"name": "c", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}
            ]
        },
    )
    resize("guaranteed", change("c", requests={"cpu": "2"}), change("c", requests=two, limits=two))
    resize("besteffort", change("c", requests=one), {})
    resize(
        "init",
        {"initContainers": [{"name": "side", "resources": {"requests": {"cpu": "2"}}}]},
        {"initContainers": [{"name": "first", "resources": {"requests": {"cpu": "2"}}}]},
    )
    steps.get(f"{pods}/burstable/resize", f"{pods}/absent/resize")
    steps.patch(f"{pods}/guaranteed", {"spec": {"containers": [container("c", one, one)]}})
    steps.patch(
        f"{pods}/mirror/status",
        {
            "status": {
                "containerStatuses": [
                    {
                        "name": "c",
                        "image": "i",
                        "imageID": "",
                        "ready": True,
                        "restartCount": 0,
                        "state": {"running": {}},
                    }
                ]
            }
        },
    )
    resize("mirror", change("c", requests=two))


def storage(steps: Any) -> None:
    """Volumes, claims and classes."""
    steps.post("/api/v1/namespaces", {"metadata": {"name": "storage"}})
    claims, volumes = "/api/v1/namespaces/storage/persistentvolumeclaims", "/api/v1/persistentvolumes"
    group = "/apis/storage.k8s.io/v1"

    def claim(name: str, **spec: Any) -> JsonObject:
        base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        return {"metadata": {"name": name}, "spec": {**base, **spec}}

    def volume(name: str, **spec: Any) -> JsonObject:
        base = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/tmp/x"},
        }
        return {"metadata": {"name": name}, "spec": {**base, **spec}}

    def storage_class(name: str, **rest: Any) -> JsonObject:
        return {"metadata": {"name": name}, "provisioner": "a.test/p", **rest}

    steps.post(
        claims,
        claim("plain"),
        claim("modes", accessModes=[]),
        claim("mode", accessModes=["Sometimes"]),
        claim("once-pod", accessModes=["ReadWriteOncePod", "ReadWriteOnce"]),
        claim("nothing", resources={}),
        claim("zero", resources={"requests": {"storage": "0"}}),
        claim("class", storageClassName="Bad Name"),
        claim("volume-mode", volumeMode="Odd"),
        claim("selector", selector={"matchLabels": {"a": "b"}}, volumeName="v"),
    )
    steps.patch(
        f"{claims}/plain",
        {"metadata": {"labels": {"a": "b"}}},
        {"spec": {"storageClassName": "fast"}},
        {"spec": {"volumeName": "v"}},
    )
    steps.patch(f"{claims}/plain/status", {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})
    steps.patch(f"{claims}/plain", {"spec": {"resources": {"requests": {"storage": "512Mi"}}}})
    steps.get(f"{claims}/plain", claims)
    selector = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
    }
    steps.post(
        volumes,
        volume("v"),
        volume("modes", accessModes=[]),
        volume("capacity", capacity={}),
        volume("zero", capacity={"storage": "0"}),
        volume("policy", persistentVolumeReclaimPolicy="Maybe"),
        volume("two", local={"path": "/x"}),
        volume("none", hostPath=None),
        volume("local", hostPath=None, local={"path": "/x"}),
        volume("local-good", hostPath=None, local={"path": "/x"}, nodeAffinity={"required": selector}),
        volume("empty-path", hostPath={"path": ""}),
        volume("up", hostPath={"path": "/a/../b"}),
        volume("affinity", nodeAffinity={}),
        volume("csi", hostPath=None, csi={"driver": "d.test", "volumeHandle": "h"}),
        volume("csi-empty", hostPath=None, csi={}),
    )
    steps.patch(f"{volumes}/v", {"spec": {"capacity": {"storage": "2Gi"}}}, {"spec": {"volumeMode": "Block"}})
    steps.patch(f"{volumes}/v/status", {"status": {"phase": "Available"}})
    steps.get(f"{volumes}/v", f"{volumes}/local-good")
    steps.post(
        f"{group}/storageclasses",
        storage_class("fast"),
        storage_class("none", provisioner=""),
        storage_class("policy", reclaimPolicy="Recycle", volumeBindingMode="Later"),
        storage_class(
            "wait",
            volumeBindingMode="WaitForFirstConsumer",
            allowedTopologies=[{"matchLabelExpressions": [{"key": "a", "values": ["b"]}]}],
        ),
    )
    steps.patch(
        f"{group}/storageclasses/fast",
        {"provisioner": "b"},
        {"allowVolumeExpansion": True},
        {"reclaimPolicy": "Retain"},
    )
    steps.post(f"{group}/csidrivers", {"metadata": {"name": "d.test"}, "spec": {}})
    steps.post(
        f"{group}/csinodes",
        {
            "metadata": {"name": "n"},
            "spec": {"drivers": [{"name": "d.test", "nodeID": "x", "topologyKeys": None}]},
        },
        {"metadata": {"name": "m"}, "spec": {"drivers": [{"name": "d.test", "nodeID": ""}]}},
    )
    steps.post(
        f"{group}/volumeattachments",
        {
            "metadata": {"name": "a"},
            "spec": {"attacher": "d.test", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
        },
    )
    steps.post(
        f"{group}/namespaces/storage/csistoragecapacities",
        {"metadata": {"name": "c"}, "storageClassName": "fast", "capacity": "1Gi"},
        {"metadata": {"name": "d"}, "storageClassName": ""},
    )
    steps.get(f"{group}/csinodes/n", f"{group}/csidrivers", f"{group}/volumeattachments/a")
    steps.delete(
        f"{group}/storageclasses/fast",
        f"{group}/csidrivers/d.test",
        f"{group}/volumeattachments/a",
    )


ADMISSION_SEQUENCES = (storage, resizing, rule_definitions, rules, policy_objects, webhook_objects, policies)
