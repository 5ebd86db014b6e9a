"""Objects whose values are slow to read and whose lists are slow to check."""

from __future__ import annotations

from collections.abc import Iterator

from attack.bombs.building import CLAIMS, CORE, HOME, RBAC, SLICES, Bomb, review, send
from attack.servers import NOBODY
from attack.vocabulary import JSON, YAML
from attack.wire import Request


def texts() -> Iterator[Bomb]:
    """Numbers, names and patterns that are slow to read."""
    for size in (4_400, 100_000, 2_900_000):
        yield f"json integer of {size} digits", review('{"a":' + "9" * size + "}")
        yield f"yaml integer of {size} digits", review("a: " + "9" * size, YAML)
        yield f"json fraction of {size} digits", review('{"a":0.' + "9" * size + "}")
        yield f"yaml octal of {size} digits", review("a: 0o" + "7" * size, YAML)
        yield f"yaml binary of {size} digits", review("a: 0b" + "1" * size, YAML)
        yield f"yaml sexagesimal of {size} digits", review("a: 1" + ":59" * (size // 3), YAML)
        limits = {"limits": {"cpu": "9" * size}}
        yield (
            f"quantity of {size} digits",
            send(
                "POST",
                f"{CORE}/pods",
                {
                    "metadata": {"name": "q"},
                    "spec": {"containers": [{"name": "c", "image": "i", "resources": limits}]},
                },
            ),
        )
        yield (
            f"name of {size}",
            send("POST", f"{CORE}/configmaps", {"metadata": {"name": "a-" * (size // 2)}}),
        )
        yield (
            f"namespace of {size}",
            send("POST", "/api/v1/namespaces", {"metadata": {"name": "a." * (size // 2) + "-"}}),
        )
        yield (
            f"image of {size}",
            send(
                "POST",
                f"{CORE}/pods",
                {
                    "metadata": {"name": "q"},
                    "spec": {"containers": [{"name": "c", "image": "a/" * (size // 2)}]},
                },
            ),
        )
        yield (
            f"time of {size}",
            send(
                "POST",
                f"{CORE}/configmaps",
                {"metadata": {"name": "t", "creationTimestamp": "2026-01-02T03:04:05." + "0" * size + "Z"}},
            ),
        )
        attribute = {
            "name": "d",
            "attributes": {"v": {"version": "1.0.0-" + "a." * (size // 2)}, "s": {"string": "x" * 65}},
        }
        spec = {
            "driver": "a.example.com",
            "nodeName": "n",
            "pool": {"name": "p", "resourceSliceCount": 1},
            "devices": [attribute],
        }
        yield f"version of {size}", send("POST", SLICES, {"metadata": {"name": "v"}, "spec": spec})
        yield (
            f"base64 of {size}",
            send("POST", f"{CORE}/secrets", {"metadata": {"name": "s"}, "data": {"a": "=" * size}}),
        )
        variables = [{"name": "A", "value": "$(" * (size // 2)}, {"name": "B", "value": "$(A)" * (size // 4)}]
        yield (
            f"variables of {size}",
            send(
                "POST",
                f"{CORE}/pods",
                {
                    "metadata": {"name": "q"},
                    "spec": {"containers": [{"name": "c", "image": "i", "env": variables}]},
                },
            ),
        )
        token = {"spec": {"token": "a." * (size // 2)}}
        yield f"token of {size}", send("POST", "/apis/authentication.k8s.io/v1/tokenreviews", token)
    for exponent in (
        "1e999999999",
        "1E-999999999",
        "1e2147483648",
        "0.000000001e-99999999",
        "1" + "0" * 4_000 + "Ei",
        "1e6e6",
    ):
        spec = {"hard": {"cpu": exponent, "count/configmaps": exponent}}
        yield (
            f"quota {exponent[:20]}",
            send(
                "POST",
                f"/api/v1/namespaces/{HOME}-limits/resourcequotas",
                {"metadata": {"name": "e"}, "spec": spec},
            ),
        )
        yield f"number {exponent[:20]}", review(f'{{"a":{exponent}}}')
        yield (
            f"capacity {exponent[:20]}",
            send(
                "POST",
                CLAIMS,
                {
                    "metadata": {"name": "e"},
                    "spec": {
                        "devices": {
                            "requests": [
                                {
                                    "name": "r",
                                    "exactly": {
                                        "deviceClassName": "a",
                                        "capacity": {"requests": {"m": exponent}},
                                    },
                                }
                            ]
                        }
                    },
                },
            ),
        )


def lists() -> Iterator[Bomb]:
    """Objects with long lists, where every rule looks at every pair."""
    many = range(20_000)
    pod = f"{CORE}/pods?dryRun=All"
    container = {"name": "c", "image": "i"}
    for name, spec in {
        "containers": {"containers": [{"name": f"c{n}", "image": "i"} for n in many]},
        "same containers": {"containers": [container for n in many]},
        "volumes": {"containers": [container], "volumes": [{"name": f"v{n}", "emptyDir": {}} for n in many]},
        "mounts": {"containers": [{**container, "volumeMounts": [{"name": "v", "mountPath": f"/{n}"} for n in many]}]},
        "env": {"containers": [{**container, "env": [{"name": f"A{n}", "value": "b"} for n in many]}]},
        "ports": {"containers": [{**container, "ports": [{"containerPort": 1 + n, "hostPort": 1 + n} for n in many]}]},
        "tolerations": {"containers": [container], "tolerations": [{"key": f"k{n}", "operator": "Exists"} for n in many]},
        "claims": {"containers": [{**container, "resources": {"claims": [{"name": f"g{n}"} for n in many]}}], "resourceClaims": [{"name": f"g{n}", "resourceClaimName": "a"} for n in many]},
        "terms": {"containers": [container], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]} for n in many]}}}},
        "spread": {"containers": [container], "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": f"k{n}", "whenUnsatisfiable": "DoNotSchedule"} for n in many]},
        "gates": {"containers": [container], "schedulingGates": [{"name": f"g{n}"} for n in many]},
        "aliases": {"containers": [container], "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["a"]} for n in many]},
        "sysctls": {"containers": [container], "securityContext": {"sysctls": [{"name": f"a.b{n}", "value": "1"} for n in many], "supplementalGroups": list(many)}},
        "limits": {"containers": [{**container, "resources": {"limits": {f"a.example/r{n}": "1" for n in many}}}]},
    }.items():  # fmt: skip
        yield f"pod with 20000 {name}", send("POST", pod, {"metadata": {"name": "p"}, "spec": spec})
    exactly = {"deviceClassName": "a"}
    for name, devices in {
        "requests": {"requests": [{"name": f"r{n}", "exactly": exactly} for n in many]},
        "same requests": {"requests": [{"name": "r", "exactly": exactly} for n in many]},
        "constraints": {"requests": [{"name": "r", "exactly": exactly}], "constraints": [{"matchAttribute": "a.example/b"} for n in many]},
        "configs": {"requests": [{"name": "r", "exactly": exactly}], "config": [{"opaque": {"driver": "a.example", "parameters": {"a": 1}}} for n in many]},
        "alternatives": {"requests": [{"name": "r", "firstAvailable": [{"name": f"s{n}", "deviceClassName": "a"} for n in many]}]},
        "names in a constraint": {"requests": [{"name": f"r{n}", "exactly": exactly} for n in range(32)], "constraints": [{"requests": [f"r{n}" for n in many], "matchAttribute": "a.example/b"}]},
    }.items():  # fmt: skip
        yield (
            f"claim with 20000 {name}",
            send("POST", CLAIMS + "?dryRun=All", {"metadata": {"name": "c"}, "spec": {"devices": devices}}),
        )
    spec = {"driver": "a.example.com", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1}}
    yield (
        "slice with 50000 devices",
        send(
            "POST",
            SLICES,
            {
                "metadata": {"name": "s"},
                "spec": {**spec, "devices": [{"name": f"d{n}"} for n in range(50_000)]},
            },
        ),
    )
    yield (
        "slice with 50000 same devices",
        send(
            "POST", SLICES, {"metadata": {"name": "s"}, "spec": {**spec, "devices": [{"name": "d"}] * 50_000}}
        ),
    )
    yield (
        "slice with 20000 counters",
        send(
            "POST",
            SLICES,
            {
                "metadata": {"name": "s"},
                "spec": {
                    **spec,
                    "sharedCounters": [{"name": f"c{n}", "counters": {"a": {"value": "1"}}} for n in many],
                },
            },
        ),
    )
    attributes = {f"a{n}": {"string": "x"} for n in range(32)}
    yield (
        "slice, as large as allowed",
        send(
            "POST",
            SLICES,
            {
                "metadata": {"name": "s"},
                "spec": {
                    **spec,
                    "devices": [{"name": f"d{n}", "attributes": attributes} for n in range(128)],
                },
            },
        ),
    )
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}] * 20_000
    yield (
        "role with 20000 rules",
        send("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "many-rules"}, "rules": rules}),
    )
    yield (
        "role with 100000 verbs",
        send(
            "POST",
            f"{RBAC}/clusterroles",
            {
                "metadata": {"name": "many-verbs"},
                "rules": [
                    {"apiGroups": [""], "resources": ["pods"], "verbs": [f"v{n}" for n in range(100_000)]}
                ],
            },
        ),
    )
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "many-rules"}
    subjects = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": f"u{n}"} for n in many]
    yield (
        "binding with 20000 subjects",
        send(
            "POST",
            f"{RBAC}/clusterrolebindings",
            {
                "metadata": {"name": "many-subjects"},
                "roleRef": role,
                "subjects": [
                    *subjects,
                    {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "nobody"},
                ],
            },
        ),
    )
    yield (
        "rules review over 20000 rules",
        send(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            {"spec": {"namespace": "default"}},
            JSON,
            NOBODY,
        ),
    )
    yield "list as a user of 20000 rules", Request("GET", "/api/v1/secrets", token=NOBODY)
    yield "drop the binding", Request("DELETE", f"{RBAC}/clusterrolebindings/many-subjects")
    selectors = [
        {"matchExpressions": [{"key": "a", "operator": "In", "values": [f"v{n}" for n in range(200)]}]}
    ] * 300
    yield (
        "aggregated role",
        send(
            "POST",
            f"{RBAC}/clusterroles",
            {"metadata": {"name": "aggregated"}, "aggregationRule": {"clusterRoleSelectors": selectors}},
        ),
    )
    review_spec = {
        "user": "u",
        "groups": [f"g{n}" for n in range(200_000)],
        "resourceAttributes": {"verb": "get", "resource": "pods"},
    }
    yield (
        "review of 200000 groups",
        send("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": review_spec}),
    )
    node = {
        "addresses": [{"type": "InternalIP", "address": f"10.0.{n >> 8 & 255}.{n & 255}"} for n in many],
        "images": [{"names": [f"i{n}"]} for n in many],
        "conditions": [{"type": f"T{n}", "status": "True"} for n in many],
    }
    yield (
        "node with 20000 of everything",
        send(
            "POST",
            "/api/v1/nodes?dryRun=All",
            {
                "metadata": {"name": "n"},
                "spec": {"taints": [{"key": f"k{n}", "effect": "NoSchedule"} for n in many]},
                "status": node,
            },
        ),
    )
    expressions = [{"key": f"k{n}", "operator": "In", "values": ["v"]} for n in many]
    yield (
        "budget with 20000 expressions",
        send(
            "POST",
            f"/apis/policy/v1/namespaces/{HOME}/poddisruptionbudgets",
            {
                "metadata": {"name": "b"},
                "spec": {"minAvailable": 1, "selector": {"matchExpressions": expressions}},
            },
        ),
    )
    yield (
        "large config map",
        send("POST", f"{CORE}/configmaps", {"metadata": {"name": "large"}, "data": {"a": "x" * 1_000_000}}),
    )
    yield (
        "large annotations",
        send(
            "POST",
            f"{CORE}/configmaps",
            {"metadata": {"name": "la", "annotations": {f"a/{n}": "x" * 1_000 for n in range(2_500)}}},
        ),
    )
    yield "too large", send("POST", f"{CORE}/configmaps", b"x" * (4 * 1024 * 1024))
    gang = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    yield (
        "workload with 20000 groups",
        send(
            "POST",
            f"/apis/scheduling.k8s.io/v1beta1/namespaces/{HOME}/workloads",
            {
                "metadata": {"name": "w"},
                "spec": {"podGroupTemplates": [{"name": f"g{n}", **gang} for n in many]},
            },
        ),
    )
