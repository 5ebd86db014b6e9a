"""Who may do what: one table of subjects and requests, true for kube-apiserver and for dray.

A row is a request, a column a subject; `+` means that the request comes past authorisation and
admission of identities (whatever else may be wrong with it), `-` that it is refused with 401 or 403. The
table was written by kube-apiserver v1.37.1 (tests/e2e/test_authorisation_reference.py does so again);
tests/unit/server/test_authorisation_matrix.py asks dray the same.

Writes are dry runs, so no cell depends on another. `n1` runs pod `p1`, which uses secret `s1`, config map
`c1`, claim `k1` and service account `robot`; `n2` runs `p2` with `s2` and `k2`. Roles are bound in namespace `team` only.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Json = Any
TABLE = Path(__file__).resolve().parent / "authorisation_matrix.txt"
# token, user, uid, groups; service accounts get tokens of their own
TOKENS = """admintoken,admin,1,system:masters
nobody,nobody,2,
viewer,viewer,3,
editor,editor,4,
teamadmin,teamadmin,5,
n1,system:node:n1,6,system:nodes
n2,system:node:n2,7,system:nodes
scheduler,system:kube-scheduler,8,
controllers,system:kube-controller-manager,9,
monitor,monitor,10,system:monitoring
"""
ADMIN = "admintoken"
ROBOT, DRIVER = "robot-token", "driver-token"  # stand for tokens that the server issues
SUBJECTS = {
    "anon": "", "none": "nobody", "view": "viewer", "edit": "editor", "admin": "teamadmin", "n1": "n1", "n2": "n2",
    "sa": ROBOT, "sched": "scheduler", "ctrl": "controllers", "drv": DRIVER, "mon": "monitor", "root": ADMIN,
}  # fmt: skip

CORE, RESOURCE, RBAC = "/api/v1", "/apis/resource.k8s.io/v1", "/apis/rbac.authorization.k8s.io/v1"
TEAM, OTHER = f"{CORE}/namespaces/team", f"{CORE}/namespaces/other"
CLAIMS = f"{RESOURCE}/namespaces/team/resourceclaims"
TEAM_RBAC = f"{RBAC}/namespaces/team"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
DEPLOYMENTS = "/apis/apps/v1/namespaces/team/deployments"
ACCESS, IDENTITY = "/apis/authorization.k8s.io/v1", "/apis/authentication.k8s.io/v1"
MERGE, JSON, APPLY = "application/merge-patch+json", "application/json", "application/apply-patch+yaml"
DRY = "dryRun=All"


def named(name: str, **more: Json) -> Json:
    return {"metadata": {"name": name}, **more}


def pod(name: str, node: str = "", number: str = "1") -> Json:
    volumes = [
        {"name": "s", "secret": {"secretName": f"s{number}"}},
        {"name": "c", "configMap": {"name": f"c{number}"}},
    ]
    spec = {
        "containers": [{"name": "c", "image": "i"}], "volumes": volumes, "serviceAccountName": "robot",
        "resourceClaims": [{"name": "k", "resourceClaimName": f"k{number}"}],
    }  # fmt: skip
    return named(name, spec={**spec, "nodeName": node} if node else spec)


def plain_pod(name: str, **spec: Json) -> Json:
    return named(
        name, spec={"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "robot", **spec}
    )


def claim(name: str) -> Json:
    return named(name, spec={"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}})


def resource_slice(name: str, node: str) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return named(
        name, spec={"driver": "gpu.example.com", "pool": pool, "nodeName": node, "devices": [{"name": "d"}]}
    )


def binding(role: str, *subjects: Json, name: str = "b", kind: str = "ClusterRole") -> Json:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    return named(name, roleRef=reference, subjects=list(subjects))


def user(name: str) -> Json:
    return {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name}


def account(name: str) -> Json:
    return {"kind": "ServiceAccount", "namespace": "team", "name": name}


def deployment(name: str) -> Json:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return named(name, spec={"selector": {"matchLabels": {"a": "b"}}, "template": template})


def preparation(driver_role: Json) -> Iterator[tuple[str, Json]]:
    """Yield (path, object) that the administrator creates; `driver_role` is dray's role for drivers."""
    for namespace in ("team", "other"):
        yield f"{CORE}/namespaces", named(namespace)
        for name in ("default", "robot", "driver"):
            yield f"{CORE}/namespaces/{namespace}/serviceaccounts", named(name)
    for number in ("1", "2"):
        yield f"{CORE}/nodes", named(f"n{number}")
        yield f"{TEAM}/secrets", named(f"s{number}")
        yield f"{TEAM}/configmaps", named(f"c{number}")
        yield CLAIMS, claim(f"k{number}")
        yield f"{TEAM}/pods", pod(f"p{number}", f"n{number}", number)
        yield f"{RESOURCE}/resourceslices", resource_slice(f"l{number}", f"n{number}")
    yield f"{OTHER}/configmaps", named("c1")
    yield f"{TEAM}/pods", plain_pod("free")
    yield f"{RESOURCE}/deviceclasses", named("gpu", spec={})
    yield DEPLOYMENTS, deployment("d")
    for role, who in (("view", "viewer"), ("edit", "editor"), ("admin", "teamadmin")):
        yield f"{TEAM_RBAC}/rolebindings", binding(role, user(who), name=role)
    yield f"{RBAC}/clusterroles", driver_role
    yield (
        f"{RBAC}/clusterrolebindings",
        binding(driver_role["metadata"]["name"], account("driver"), name="test-driver"),
    )


Row = tuple[str, str, str, Json, str]  # name, method, path with query, body, content type


def _row(name: str, method: str, path: str, body: Json = None, content: str = JSON) -> Row:
    if method != "GET" and "Review" not in name:
        path += ("&" if "?" in path else "?") + DRY
    return name, method, path, body, content


def _object_rows(name: str, collection: str, existing: str, new: Json) -> Iterator[Row]:
    """Yield the eight verbs on a kind."""
    label = {"metadata": {"labels": {"x": "y"}}}
    yield _row(f"get {name}", "GET", f"{collection}/{existing}")
    yield _row(f"list {name}", "GET", collection)
    yield _row(f"watch {name}", "GET", f"{collection}?watch=1&timeoutSeconds=1")
    yield _row(f"create {name}", "POST", collection, new)
    yield _row(f"update {name}", "PUT", f"{collection}/{existing}", {**new, "metadata": {"name": existing}})
    yield _row(f"patch {name}", "PATCH", f"{collection}/{existing}", label, MERGE)
    yield _row(f"delete {name}", "DELETE", f"{collection}/{existing}")
    yield _row(f"deletecollection {name}", "DELETE", collection)


def _kinds() -> Iterator[Row]:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    yield from _object_rows("pods", f"{TEAM}/pods", "free", plain_pod("new"))
    yield from _object_rows("secrets", f"{TEAM}/secrets", "s1", named("new"))
    yield from _object_rows("configmaps", f"{TEAM}/configmaps", "c1", named("new"))
    yield from _object_rows("configmaps of another namespace", f"{OTHER}/configmaps", "c1", named("new"))
    yield from _object_rows("resourceclaims", CLAIMS, "k1", claim("new"))
    yield from _object_rows(
        "resourceclaimtemplates",
        f"{RESOURCE}/namespaces/team/resourceclaimtemplates",
        "absent",
        named("new", spec={"spec": claim("x")["spec"]}),
    )
    yield from _object_rows("deviceclasses", f"{RESOURCE}/deviceclasses", "gpu", named("new", spec={}))
    yield from _object_rows("resourceslices", f"{RESOURCE}/resourceslices", "l1", resource_slice("new", "n9"))
    yield from _object_rows("deployments", DEPLOYMENTS, "d", deployment("new"))
    yield from _object_rows("serviceaccounts", f"{TEAM}/serviceaccounts", "robot", named("new"))
    yield from _object_rows(
        "events",
        f"{TEAM}/events",
        "absent",
        named("new", involvedObject={"namespace": "team", "kind": "Pod", "name": "p1"}),
    )
    yield from _object_rows("roles", f"{TEAM_RBAC}/roles", "absent", named("new", rules=[rule]))
    yield from _object_rows(
        "rolebindings", f"{TEAM_RBAC}/rolebindings", "view", binding("view", user("x"), name="new")
    )
    yield from _object_rows("clusterroles", f"{RBAC}/clusterroles", "view", named("new", rules=[rule]))
    yield from _object_rows(
        "clusterrolebindings",
        f"{RBAC}/clusterrolebindings",
        "test-driver",
        binding("view", user("x"), name="new"),
    )
    yield from _object_rows(
        "resourcequotas", f"{TEAM}/resourcequotas", "absent", named("new", spec={"hard": {"pods": "9"}})
    )
    yield from _object_rows("limitranges", f"{TEAM}/limitranges", "absent", named("new", spec={"limits": []}))
    yield from _object_rows(
        "leases", "/apis/coordination.k8s.io/v1/namespaces/team/leases", "absent", named("new", spec={})
    )
    yield from _object_rows(
        "poddisruptionbudgets",
        "/apis/policy/v1/namespaces/team/poddisruptionbudgets",
        "absent",
        named("new", spec={"minAvailable": 1}),
    )
    yield from _object_rows(
        "jobs",
        "/apis/batch/v1/namespaces/team/jobs",
        "absent",
        named(
            "new",
            spec={
                "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
            },
        ),
    )
    yield from _object_rows(
        "priorityclasses", "/apis/scheduling.k8s.io/v1/priorityclasses", "absent", named("new", value=1)
    )
    yield from _object_rows(
        "customresourcedefinitions",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "absent",
        named("new"),
    )
    for verb, method, path in (("get", "GET", "/team"), ("list", "GET", ""), ("delete", "DELETE", "/other")):
        yield _row(f"{verb} namespaces", method, f"{CORE}/namespaces{path}")
    yield _row("create namespaces", "POST", f"{CORE}/namespaces", named("new"))


def _subresources() -> Iterator[Row]:
    status = {"status": {"phase": "Running"}}
    evicting = {"apiVersion": "policy/v1", "kind": "Eviction", **named("p1")}
    yield _row("patch pods/status", "PATCH", f"{TEAM}/pods/free/status", status, MERGE)
    yield _row(
        "create pods/binding",
        "POST",
        f"{TEAM}/pods/free/binding",
        named("free", target={"kind": "Node", "name": "n1"}),
    )
    yield _row("create pods/eviction", "POST", f"{TEAM}/pods/p1/eviction", evicting)
    yield _row("get pods/log", "GET", f"{TEAM}/pods/p1/log")
    yield _row("get pods/exec", "GET", f"{TEAM}/pods/p1/exec?command=x")
    yield _row("get pods/attach", "GET", f"{TEAM}/pods/p1/attach")
    yield _row("get pods/portforward", "GET", f"{TEAM}/pods/p1/portforward")
    yield _row("get pods/proxy", "GET", f"{TEAM}/pods/p1/proxy/x")
    yield _row(
        "patch pods/ephemeralcontainers",
        "PATCH",
        f"{TEAM}/pods/free/ephemeralcontainers",
        {"metadata": {}},
        MERGE,
    )
    yield _row(
        "patch resourceclaims/status",
        "PATCH",
        f"{CLAIMS}/k1/status",
        {"metadata": {"labels": {"a": "b"}}},
        MERGE,
    )
    allocation = {
        "status": {
            "allocation": {
                "devices": {
                    "results": [{"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "d"}]
                }
            }
        }
    }
    yield _row("allocate resourceclaims/status", "PATCH", f"{CLAIMS}/k1/status", allocation, MERGE)
    yield _row("get resourceclaims/status", "GET", f"{CLAIMS}/k1/status")
    yield _row("patch deployments/scale", "PATCH", f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 2}}, MERGE)
    yield _row("get deployments/scale", "GET", f"{DEPLOYMENTS}/d/scale")
    yield _row("patch namespaces/status", "PATCH", f"{CORE}/namespaces/team/status", {"metadata": {}}, MERGE)
    yield _row("update namespaces/finalize", "PUT", f"{CORE}/namespaces/team/finalize", named("team"))
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    yield _row("create serviceaccounts/token", "POST", f"{TEAM}/serviceaccounts/robot/token", token)
    for number in ("1", "2"):
        bound = {
            **token,
            "spec": {
                "audiences": [],
                "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": f"p{number}"},
            },
        }
        yield _row(
            f"create serviceaccounts/token for p{number}",
            "POST",
            f"{TEAM}/serviceaccounts/robot/token",
            bound,
        )


def _nodes() -> Iterator[Row]:
    for number in ("1", "2"):
        node, mine = f"{CORE}/nodes/n{number}", f"of n{number}"
        yield _row(f"get node {mine}", "GET", node)
        yield _row(f"patch node {mine}", "PATCH", node, {"metadata": {"labels": {"rack": "1"}}}, MERGE)
        yield _row(
            f"taint node {mine}",
            "PATCH",
            node,
            {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
            MERGE,
        )
        yield _row(
            f"steer node {mine}",
            "PATCH",
            node,
            {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}},
            MERGE,
        )
        yield _row(
            f"patch nodes/status {mine}",
            "PATCH",
            f"{node}/status",
            {"status": {"capacity": {"cpu": "4"}}},
            MERGE,
        )
        yield _row(f"delete node {mine}", "DELETE", node)
        yield _row(f"get nodes/proxy {mine}", "GET", f"{node}/proxy/metrics")
        yield _row(f"create node lease {mine}", "POST", LEASES, named(f"n{number}", spec={}))
        yield _row(f"get node lease {mine}", "GET", f"{LEASES}/n{number}")
        yield _row(f"get pod {mine}", "GET", f"{TEAM}/pods/p{number}")
        yield _row(
            f"patch pod {mine}",
            "PATCH",
            f"{TEAM}/pods/p{number}",
            {"metadata": {"labels": {"a": "b"}}},
            MERGE,
        )
        yield _row(
            f"patch pods/status {mine}",
            "PATCH",
            f"{TEAM}/pods/p{number}/status",
            {"status": {"phase": "Running"}},
            MERGE,
        )
        claims = {"status": {"resourceClaimStatuses": [{"name": "k", "resourceClaimName": "other"}]}}
        yield _row(f"claim statuses of pod {mine}", "PATCH", f"{TEAM}/pods/p{number}/status", claims, MERGE)
        yield _row(f"delete pod {mine}", "DELETE", f"{TEAM}/pods/p{number}?gracePeriodSeconds=0")
        yield _row(
            f"evict pod {mine}",
            "POST",
            f"{TEAM}/pods/p{number}/eviction",
            {"apiVersion": "policy/v1", "kind": "Eviction", **named(f"p{number}")},
        )
        yield _row(f"list pods {mine}", "GET", f"{CORE}/pods?fieldSelector=spec.nodeName%3Dn{number}")
        yield _row(
            f"watch pods {mine}",
            "GET",
            f"{CORE}/pods?watch=1&timeoutSeconds=1&fieldSelector=spec.nodeName%3Dn{number}",
        )
        yield _row(f"get secret {mine}", "GET", f"{TEAM}/secrets/s{number}")
        yield _row(
            f"watch secret {mine}",
            "GET",
            f"{TEAM}/secrets?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Ds{number}",
        )
        yield _row(f"get configmap {mine}", "GET", f"{TEAM}/configmaps/c{number}")
        yield _row(f"get claim {mine}", "GET", f"{CLAIMS}/k{number}")
        yield _row(
            f"patch claim status {mine}",
            "PATCH",
            f"{CLAIMS}/k{number}/status",
            {"metadata": {"labels": {"a": "b"}}},
            MERGE,
        )
        slices = f"{RESOURCE}/resourceslices"
        yield _row(f"get slice {mine}", "GET", f"{slices}/l{number}")
        yield _row(f"create slice {mine}", "POST", slices, resource_slice(f"new{number}", f"n{number}"))
        yield _row(
            f"patch slice {mine}", "PATCH", f"{slices}/l{number}", {"metadata": {"labels": {"a": "b"}}}, MERGE
        )
        yield _row(f"delete slice {mine}", "DELETE", f"{slices}/l{number}")
        yield _row(f"list slices {mine}", "GET", f"{slices}?fieldSelector=spec.nodeName%3Dn{number}")
        yield _row(
            f"deletecollection slices {mine}", "DELETE", f"{slices}?fieldSelector=spec.nodeName%3Dn{number}"
        )
        yield _row(f"create mirror pod {mine}", "POST", f"{TEAM}/pods", plain_pod("m", nodeName=f"n{number}"))
    yield _row("list nodes", "GET", f"{CORE}/nodes")
    yield _row("create node n3", "POST", f"{CORE}/nodes", named("n3"))
    yield _row("list all pods", "GET", f"{CORE}/pods")
    yield _row("list all secrets", "GET", f"{CORE}/secrets")
    yield _row("list all claims", "GET", f"{RESOURCE}/resourceclaims")
    yield _row("get serviceaccount of own pods", "GET", f"{TEAM}/serviceaccounts/robot")


def _escalation() -> Iterator[Row]:
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}}
    yield _row(
        "create a config map by apply", "PATCH", f"{TEAM}/configmaps/applied?fieldManager=m", applied, APPLY
    )
    yield _row("grant everything by a role", "POST", f"{TEAM_RBAC}/roles", named("new", rules=[everything]))
    yield _row(
        "grant everything by a cluster role", "POST", f"{RBAC}/clusterroles", named("new", rules=[everything])
    )
    yield _row(
        "bind cluster-admin in the namespace",
        "POST",
        f"{TEAM_RBAC}/rolebindings",
        binding("cluster-admin", user("x"), name="new"),
    )
    yield _row(
        "bind cluster-admin",
        "POST",
        f"{RBAC}/clusterrolebindings",
        binding("cluster-admin", user("x"), name="new"),
    )
    yield _row("widen the view role", "PATCH", f"{RBAC}/clusterroles/view", {"rules": [everything]}, MERGE)
    attributes = {"verb": "get", "resource": "pods", "namespace": "team"}
    yield _row("create TokenReview", "POST", f"{IDENTITY}/tokenreviews", {"spec": {"token": "x"}})
    yield _row("create SelfSubjectReview", "POST", f"{IDENTITY}/selfsubjectreviews", {})
    yield _row(
        "create SubjectAccessReview",
        "POST",
        f"{ACCESS}/subjectaccessreviews",
        {"spec": {"user": "x", "resourceAttributes": attributes}},
    )
    yield _row(
        "create SelfSubjectAccessReview",
        "POST",
        f"{ACCESS}/selfsubjectaccessreviews",
        {"spec": {"resourceAttributes": attributes}},
    )
    yield _row(
        "create SelfSubjectRulesReview",
        "POST",
        f"{ACCESS}/selfsubjectrulesreviews",
        {"spec": {"namespace": "team"}},
    )
    yield _row(
        "create LocalSubjectAccessReview",
        "POST",
        f"{ACCESS}/namespaces/team/localsubjectaccessreviews",
        {"spec": {"user": "x", "resourceAttributes": attributes}},
    )
    for path in (
        "/healthz",
        "/livez",
        "/readyz",
        "/version",
        "/api",
        "/apis",
        "/api/v1",
        "/apis/resource.k8s.io/v1",
        "/openapi/v2",
        "/openapi/v3",
        "/metrics",
        "/logs",
        "/debug/pprof/",
        "/nowhere",
        "/livez/ping",
    ):
        yield _row(f"get {path}", "GET", path)


def rows() -> list[Row]:
    """Return every row, in the order of the table."""
    return [*_kinds(), *_subresources(), *_nodes(), *_escalation()]


def read_table(text: str) -> dict[str, str]:
    """Return marks by row name; marks follow the order of SUBJECTS."""
    found = {}
    for line in text.strip().splitlines()[1:]:
        name, _, marks = line.rpartition("  ")
        found[name.strip()] = marks.strip()
    return found


def write_table(marks_by_row: dict[str, str]) -> str:
    """Return the table as text."""
    width = max(map(len, marks_by_row)) + 2
    lines = ["# " + " ".join(SUBJECTS)]
    lines += [f"{name:{width}}{marks}" for name, marks in marks_by_row.items()]
    return "\n".join(lines) + "\n"


def matrix(ask: Callable[[str, Row], int]) -> dict[str, str]:
    """Ask every cell; `ask` takes a token and a row and returns the status."""
    return {
        row[0]: "".join("-" if ask(token, row) in (401, 403) else "+" for token in SUBJECTS.values())
        for row in rows()
    }
