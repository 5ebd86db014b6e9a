"""Security side by side: the same requests to kube-apiserver and to dray, the same answers.

Every step is one request by one user. Codes, reasons, messages and details must be
equal; of successful answers only the code (reviews: the status as well). The story
is one test, because later steps build on earlier ones.
"""

import contextlib
import json
import re
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request

import peers
import pytest

TOKENS = """admintoken,admin,1,system:masters
n1,system:node:n1,2,system:nodes
n2,system:node:n2,3,system:nodes
ann,ann,4,people
bob,bob,5,dev
scheduler,system:kube-scheduler,6,system:components
"""
ADMIN = "admintoken"
RESOURCE, RBAC = "/apis/resource.k8s.io/v1", "/apis/rbac.authorization.k8s.io/v1"
ACCESS, IDENTITY = "/apis/authorization.k8s.io/v1", "/apis/authentication.k8s.io/v1"
DEFAULT = "/api/v1/namespaces/default"
MERGE = "application/merge-patch+json"
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Story:
    """Collects steps; one line each."""

    def __init__(self):
        self.steps = []

    def add(self, token, method, path, body=None, kind="application/json", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.steps.append((token, method, path, body, {"Content-Type": kind, **named}))

    def get(self, token, *paths, **headers):
        for path in paths:
            self.add(token, "GET", path, **headers)

    def post(self, token, path, *bodies, **headers):
        for body in bodies:
            self.add(token, "POST", path, body, **headers)

    def patch(self, token, path, *bodies):
        for body in bodies:
            self.add(token, "PATCH", path, body, MERGE)


def named(name, **rest):
    return {"metadata": {"name": name}, **rest}


def pod(name, resources=None, containers=1, **spec):
    made = [
        {"name": f"c{n}", "image": "i"} | ({"resources": resources} if resources else {})
        for n in range(containers)
    ]
    return named(name, spec={"containers": made, **spec})


def claim(name, **exactly):
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", **exactly}}]
    return named(name, spec={"devices": {"requests": requests}})


def resource_slice(node, name):
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return named(
        name, spec={"driver": "gpu.example", "pool": pool, "nodeName": node, "devices": [{"name": "d"}]}
    )


def binding(name, role, user, kind="ClusterRole"):
    group = "rbac.authorization.k8s.io"
    reference = {"apiGroup": group, "kind": kind, "name": role}
    return named(name, roleRef=reference, subjects=[{"kind": "User", "apiGroup": group, "name": user}])


def rule(verbs, groups, resources, **rest):
    return {"verbs": verbs.split(), "apiGroups": groups, "resources": resources.split(), **rest}


def review(user="", groups=(), **attributes):
    return {"spec": {"user": user, "groups": list(groups), "resourceAttributes": attributes}}


def nodes(story):
    story.post(ADMIN, f"{DEFAULT}/serviceaccounts", named("default"), named("robot"))
    story.post(ADMIN, "/api/v1/nodes", named("n1"))
    steering = {
        "name": "n2",
        "labels": {"node-restriction.kubernetes.io/x": "y", "kubernetes.io/hostname": "h"},
    }
    story.post("n2", "/api/v1/nodes", {"metadata": steering}, named("n3"), named("n2"))
    story.patch("n2", "/api/v1/nodes/n2", {"spec": {"taints": []}}, {"metadata": {"labels": {"rack": "1"}}})
    story.patch("n2", "/api/v1/nodes/n2", {"metadata": {"labels": {"node-role.kubernetes.io/x": ""}}})
    story.patch("n2", "/api/v1/nodes/n1", {"metadata": {"labels": {"rack": "1"}}})
    story.patch("n2", "/api/v1/nodes/n2/status", {"status": {"capacity": {"cpu": "4"}}})
    story.add("n2", "DELETE", "/api/v1/nodes/n2")
    story.get("n2", "/api/v1/nodes/n2", "/api/v1/nodes/n1", "/api/v1/nodes")
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    story.post("n1", leases, named("n1", spec={}), named("n2", spec={}))
    story.get("n1", f"{leases}/n2", leases, leases.replace("kube-node-lease", "default") + "/n1")


def slices(story):
    slices = f"{RESOURCE}/resourceslices"
    story.post("n1", slices, resource_slice("n1", "mine"), resource_slice("n2", "x"))
    story.post("n2", slices, resource_slice("n2", "theirs"))
    story.get("n1", f"{slices}/mine", f"{slices}/theirs", f"{slices}/absent", slices)
    story.get("n1", *(f"{slices}?fieldSelector=spec.nodeName%3D{node}" for node in ("n1", "n2")))
    story.patch("n1", f"{slices}/theirs", {"metadata": {"labels": {"a": "b"}}})
    for path in (slices, f"{slices}/theirs", f"{slices}?fieldSelector=spec.nodeName%3Dn1"):
        story.add("n1", "DELETE", path)


def pods_of_nodes(story):
    claims, pods = f"{RESOURCE}/namespaces/default/resourceclaims", f"{DEFAULT}/pods"
    story.post(ADMIN, claims, claim("gpu"))
    story.get("n1", f"{claims}/gpu", claims)
    story.patch("n1", f"{claims}/gpu/status", {"status": {}})
    uses = [{"name": "g", "resourceClaimName": "gpu"}]
    story.post(ADMIN, pods, pod("p", nodeName="n1", serviceAccountName="robot", resourceClaims=uses))
    for node in ("n1", "n2"):
        story.get(node, f"{claims}/gpu", f"{pods}/p", f"{DEFAULT}/serviceaccounts/robot")
    story.get("n1", "/api/v1/pods", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
    story.patch(
        "n1", f"{pods}/p/status", {"status": {"phase": "Running"}}, {"metadata": {"labels": {"q": "r"}}}
    )
    story.patch("n2", f"{pods}/p/status", {"status": {"phase": "Failed"}})
    statuses = [{"name": "g", "resourceClaimName": "z"}]
    story.patch("n1", f"{pods}/p/status", {"status": {"resourceClaimStatuses": statuses}})
    story.patch("n1", f"{pods}/p", {"metadata": {"labels": {"q": "r"}}})
    story.post("n1", pods, pod("m", nodeName="n1"))
    story.post("n2", f"{pods}/p/eviction", named("p", apiVersion="policy/v1", kind="Eviction"))
    story.add("n2", "DELETE", f"{pods}/p")
    story.get("n1", f"{DEFAULT}/secrets/x", f"{DEFAULT}/secrets", "/api/v1/secrets")
    story.post("n1", f"{DEFAULT}/secrets", named("x"))


def tokens(story):
    token = f"{DEFAULT}/serviceaccounts/robot/token"

    def bound(kind="Pod", version="v1", name="p"):
        return {"spec": {"boundObjectRef": {"kind": kind, "apiVersion": version, "name": name}}}

    story.post("n2", token, {"spec": {}})
    story.post(ADMIN, token, {"spec": {}}, {"spec": {"expirationSeconds": 10}}, named("other", spec={}))
    story.post(ADMIN, token, bound("Lease", "coordination.k8s.io/v1"), bound(name="none"), bound())
    story.post(ADMIN, token.replace("robot", "nobody"), {"spec": {}})
    story.post(ADMIN, token.replace("robot", "default"), bound())
    reviews = f"{IDENTITY}/tokenreviews"
    story.post(ADMIN, reviews, {"spec": {}}, {"spec": {"token": "ann"}}, {"spec": {"token": "bad"}})
    story.post("ann", reviews, {"spec": {"token": "bad"}})
    story.get("bad", "/version", "/healthz", "/api/v1/pods")


def people(story):
    for token in ("ann", ""):
        story.get(
            token,
            "/api/v1/pods",
            f"{DEFAULT}/pods/p/log",
            "/apis/apps/v1/namespaces/x/deployments",
            "/metrics",
        )
        story.get(
            token, "/openapi/v2x", "/api/v1/namespaces/foo", "/apis/none.example/v1/things", "/nonsense"
        )
    story.post("", f"{DEFAULT}/pods", pod("z"))
    roles, bindings = f"{RBAC}/namespaces/default/roles", f"{RBAC}/namespaces/default/rolebindings"
    core = rule("get list impersonate", [""], "pods serviceaccounts secrets")
    everything_in_rbac = rule("*", ["rbac.authorization.k8s.io"], "roles rolebindings")
    story.post(ADMIN, f"{RBAC}/clusterroles", named("nsadmin", rules=[everything_in_rbac, core]))
    story.post(ADMIN, bindings, binding("b", "nsadmin", "ann"))
    story.get("ann", f"{DEFAULT}/pods", "/api/v1/pods")
    story.post("ann", roles, named("small", rules=[rule("get", [""], "pods")]))
    story.post("ann", roles, named("large", rules=[rule("get update", ["", "x"], "nodes pods")]))
    story.post("ann", bindings, binding("b2", "cluster-admin", "bob"), binding("b3", "nsadmin", "bob"))
    story.post("ann", bindings, binding("b4", "nosuch", "bob"), binding("b5", "nosuch", "bob", "Role"))
    story.post("ann", f"{RBAC}/clusterroles", named("x", rules=[]))
    story.patch("ann", f"{roles}/small", {"rules": [rule("*", ["*"], "*")]})
    story.post(ADMIN, f"{RBAC}/clusterrolebindings", binding("dangling", "nosuch", "bob"))
    story.get("bob", "/api/v1/nodes")


def questions(story):
    reviews = f"{ACCESS}/subjectaccessreviews"
    story.post(ADMIN, reviews, review("ann", verb="get", resource="pods", namespace="default"))
    story.post(ADMIN, reviews, review("ann", verb="get", resource="nodes"))
    story.post(ADMIN, reviews, review("bob", ["dev"], verb="get", resource="pods", namespace="default"))
    story.post(ADMIN, reviews, review("x", ["system:masters"], verb="z", resource="y"))
    node = ("system:node:n1", ["system:nodes"])
    story.post(ADMIN, reviews, review(*node, verb="get", resource="nodes", name="n1"))
    story.post(ADMIN, reviews, review(*node, verb="list", resource="pods"))
    story.post(ADMIN, reviews, review("system:node:n1", verb="list", resource="pods"))
    claims = {"group": "resource.k8s.io", "resource": "resourceclaims"}
    story.post(
        ADMIN, reviews, review("system:kube-scheduler", verb="update", subresource="binding", **claims)
    )
    controller = "system:serviceaccount:kube-system:resource-claim-controller"
    story.post(ADMIN, reviews, review(controller, verb="create", namespace="q", **claims))
    story.post(ADMIN, reviews, review(verb="get"), {"spec": {"user": "a"}})
    path = {"path": "/apis", "verb": "get"}
    story.post(ADMIN, reviews, {"spec": {"user": "a", "nonResourceAttributes": path}})
    known = ["system:authenticated"]
    story.post(ADMIN, reviews, {"spec": {"user": "a", "groups": known, "nonResourceAttributes": path}})
    local = f"{ACCESS}/namespaces/default/localsubjectaccessreviews"
    for namespace in ("default", "other"):
        asked = review("ann", verb="get", resource="pods", namespace=namespace)
        story.post(ADMIN, local, {"metadata": {"namespace": "default"}, **asked})
    own = review(verb="get", resource="secrets", namespace="default")
    story.post("ann", f"{ACCESS}/selfsubjectaccessreviews", own)
    story.post("ann", f"{ACCESS}/selfsubjectrulesreviews", {"spec": {}})
    story.post("bob", f"{IDENTITY}/selfsubjectreviews", {})


def impersonation(story):
    story.get(ADMIN, "/api/v1/nodes", Impersonate_User="zed")
    story.get(ADMIN, "/api/v1/nodes", Impersonate_Group="zed")
    story.get("bob", "/api/v1/nodes", Impersonate_User="zed")
    story.get("bob", "/api/v1/nodes", Impersonate_User="system:node:n1")
    story.get("bob", "/api/v1/nodes", Impersonate_User="system:serviceaccount:kube-system:robot")
    who = f"{IDENTITY}/selfsubjectreviews"
    story.post(ADMIN, who, {}, Impersonate_User="zed", Impersonate_Group="g")
    story.post(ADMIN, who, {}, Impersonate_User="system:serviceaccount:a:b")
    story.post(ADMIN, who, {}, Impersonate_User="system:node:n1")
    story.post(ADMIN, who, {}, Impersonate_User="system:anonymous")
    story.post(ADMIN, who, {}, Impersonate_User="zed", Impersonate_Extra_Scopes="v", Impersonate_Uid="u1")


def claim_status(story):
    rights = rule("get patch update", ["resource.k8s.io"], "resourceclaims resourceclaims/status")
    story.post(ADMIN, f"{RBAC}/clusterroles", named("writer", rules=[rights]))
    story.post(ADMIN, f"{RBAC}/clusterrolebindings", binding("writer", "writer", "bob"))
    requirement = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    selector = {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
    result = {"request": "r", "driver": "gpu.example", "pool": "n1", "device": "d"}
    allocation = {"status": {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}}
    devices = {"status": {"devices": [{"driver": "gpu.example", "pool": "n1", "device": "d"}]}}
    status = f"{RESOURCE}/namespaces/default/resourceclaims/gpu/status"
    story.patch("bob", status, allocation)
    story.patch("scheduler", status, allocation, devices)
    story.patch(
        "bob", status, devices, {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
    )


def priorities(story):
    pods, classes = f"{DEFAULT}/pods", "/apis/scheduling.k8s.io/v1/priorityclasses"
    story.post(ADMIN, pods, pod("q1", serviceAccountName="nobody"), pod("q2", priorityClassName="none"))
    story.post(ADMIN, pods, pod("q3", priority=5), pod("q4", priorityClassName="system-node-critical"))
    story.post(
        ADMIN, classes, named("d1", value=10, globalDefault=True), named("d2", value=11, globalDefault=True)
    )
    story.post(ADMIN, pods, pod("q5", preemptionPolicy="Never"), pod("q6"))
    story.add(ADMIN, "DELETE", f"{classes}/d1")


def limits(story):
    story.post(ADMIN, "/api/v1/namespaces", named("lim"))
    story.post(ADMIN, "/api/v1/namespaces/lim/serviceaccounts", named("default"))
    container = {
        "type": "Container",
        "max": {"cpu": "2"},
        "min": {"cpu": "100m"},
        "default": {"cpu": "1"},
        "defaultRequest": {"cpu": "200m"},
        "maxLimitRequestRatio": {"cpu": "10"},
    }
    items = [container, {"type": "Pod", "max": {"cpu": "3"}}]
    story.post(ADMIN, "/api/v1/namespaces/lim/limitranges", named("l", spec={"limits": items}))
    pods = "/api/v1/namespaces/lim/pods"
    story.post(
        ADMIN, pods, pod("a"), pod("b", {"limits": {"cpu": "5"}}), pod("c", {"requests": {"cpu": "10m"}})
    )
    story.post(ADMIN, pods, pod("d", {"requests": {"cpu": "100m"}, "limits": {"cpu": "2"}}))
    story.post(ADMIN, pods, pod("e", {"limits": {"cpu": "2"}}, containers=2))


def quotas(story):
    story.post(ADMIN, "/api/v1/namespaces", named("quo"))
    place = "/api/v1/namespaces/quo"
    story.post(ADMIN, f"{place}/serviceaccounts", named("default"))
    hard = {
        "pods": "2",
        "requests.cpu": "1",
        "count/configmaps": "1",
        "secrets": "1",
        "gpu.deviceclass.resource.k8s.io/devices": "3",
        "count/resourceclaims.resource.k8s.io": "2",
    }
    story.post(ADMIN, f"{place}/resourcequotas", named("q", spec={"hard": hard}))
    # Upstream counts from the status that a controller writes; none runs here.
    unused = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
    story.patch(ADMIN, f"{place}/resourcequotas/q/status", unused)
    story.post(ADMIN, f"{place}/pods", pod("a"), pod("b", {"requests": {"cpu": "600m"}}))
    story.post(
        ADMIN,
        f"{place}/pods",
        *(
            pod(name, {"requests": {"cpu": cpu}})
            for name, cpu in (("c", "600m"), ("d", "0.1"), ("e", "100m"))
        ),
    )
    for kind in ("configmaps", "secrets"):
        story.post(ADMIN, f"{place}/{kind}", named("a"), named("b"))
    claims = f"{RESOURCE}/namespaces/quo/resourceclaims"
    story.post(ADMIN, claims, claim("a", count=2), claim("b", count=2), claim("c", allocationMode="All"))
    alternatives = [
        {"name": "x", "deviceClassName": "gpu", "count": 9},
        {"name": "y", "deviceClassName": "nic"},
    ]
    choice = [{"name": "r", "firstAvailable": alternatives}]
    story.post(ADMIN, claims, claim("d"), claim("e"), named("f", spec={"devices": {"requests": choice}}))


def whole_story():
    story = Story()
    for part in (
        nodes,
        slices,
        pods_of_nodes,
        tokens,
        people,
        questions,
        impersonation,
        claim_status,
        priorities,
        limits,
        quotas,
    ):
        part(story)
    return story.steps


class Server:
    """Sends steps and keeps what is comparable of the answers."""

    def __init__(self, url):
        self.url = url
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    def answer(self, token, method, path, body, headers):
        headers = {"Accept": "application/json", **headers} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=60) as response:
                code, raw = response.status, response.read()
        except urllib.error.HTTPError as refusal:
            code, raw = refusal.code, refusal.read()
        try:
            content = json.loads(UID.sub("<uid>", raw.decode()))
        except ValueError:
            return code, raw[:200]
        if code >= 400:
            return code, content.get("reason"), content.get("message"), content.get("details")
        return (code, content["status"]) if content.get("kind", "").endswith("Review") else (code,)


@contextlib.contextmanager
def kubernetes():
    binaries = peers.kubernetes_binaries()
    if binaries is None:
        pytest.skip(f"no kube-apiserver under {peers.CACHE}: run tools/peers/build")
    with peers._workplace("dray-edge-kube-", signal.SIGKILL) as (folder, processes):
        port, etcd_port, peer_port = peers.free_port(), peers.free_port(), peers.free_port()
        etcd, peer = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
        processes.start(
            "etcd", binaries / "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync", "--log-level", "error",
        )  # fmt: skip
        peers.subprocess.run(
            ["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"], check=True, capture_output=True
        )
        (folder / "tokens.csv").write_text(TOKENS)
        processes.start(
            "apiserver", binaries / "kube-apiserver", f"--etcd-servers={etcd}", f"--cert-dir={folder}/certs",
            f"--secure-port={port}", "--bind-address=127.0.0.1", "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={folder}/sa.key", f"--service-account-signing-key-file={folder}/sa.key",
            f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
        )  # fmt: skip
        peers._until_ready(f"https://127.0.0.1:{port}/readyz", processes)
        yield Server(f"https://127.0.0.1:{port}")


@contextlib.contextmanager
def dray():
    with peers._workplace("dray-edge-own-") as (folder, processes):
        (folder / "tokens.csv").write_text(TOKENS)
        port, kubeconfig = peers.free_port(), folder / "kubeconfig"
        processes.start(
            "server", sys.executable, "-m", "dray", "server", "--in-memory", "--bind-address", "127.0.0.1",
            "--secure-port", port, "--kubeconfig", kubeconfig, "--token-auth-file", folder / "tokens.csv",
        )  # fmt: skip
        peers._until_ready(f"https://127.0.0.1:{port}/readyz", processes)
        yield Server(f"https://127.0.0.1:{port}")


RULES = (
    "clusterroles",
    "rolebindings",
    "clusterrolebindings",
    "priorityclasses",
    "limitranges",
    "resourcequotas",
)


def settled(reference, step, found):
    """Ask kube-apiserver; it judges by caches that follow its own writes a moment later.

    After a new rule it gets that moment; a refusal that may still be of before is asked for again.
    """
    _, method, path, _, _ = step
    wanted = reference.answer(*step)
    limit = time.monotonic() + 15
    while wanted != found and (method == "GET" or wanted[0] >= 400) and time.monotonic() < limit:
        time.sleep(0.2)
        wanted = reference.answer(*step)
    if method != "GET" and wanted[0] < 400 and any(f"/{word}" in path for word in RULES):
        time.sleep(0.3)
    return wanted


@pytest.mark.kubernetes
def test_users_are_judged_as_kubernetes_judges_them():
    differences = []
    with kubernetes() as reference, dray() as own:
        for step in whole_story():
            found = own.answer(*step)
            wanted = settled(reference, step, found)
            if wanted != found:
                differences.append(
                    f"{step[0]} {step[1]} {step[2]} {step[3]}\n  wanted {wanted}\n  found  {found}"
                )
    assert differences == [], "\n".join(differences)


def test_the_story_asks_enough():
    steps = whole_story()
    assert len(steps) > 150
    assert len({step[0] for step in steps}) == 8
