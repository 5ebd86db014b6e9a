"""Security of a whole server, request by request: nodes, drivers, people, tokens."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from dray.server.assembly import Cluster, Settings
from dray.server.auth.authentication import parse_token_file
from dray.server.requests.messages import Request
from dray.server.store import MemoryStore

TOKENS = """
root,admin,1,system:masters
n1,system:node:n1,2,"system:nodes"
n2,system:node:n2,3,"system:nodes"
ann,ann,4,
scheduler,system:kube-scheduler,5,
"""
RESOURCE = "/apis/resource.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Api:
    """Sends requests to a server without sockets."""

    def __init__(self, cluster):
        self.cluster = cluster

    async def __call__(self, method, path, token="root", body=None, content_type="application/json"):
        path, _, text = path.partition("?")
        query = tuple(part.split("=", 1) for part in text.split("&") if part)
        headers = {"content-type": content_type} | ({"authorization": f"Bearer {token}"} if token else {})
        content = json.dumps(body).encode() if body is not None else b""
        response = await self.cluster.server.handle(Request(method, path, query, headers, content))
        return response.status, json.loads(response.body) if response.body else None

    async def ok(self, *arguments, **named):
        code, body = await self(*arguments, **named)
        assert code < 300, body
        return body

    async def refused(self, *arguments, **named):
        code, body = await self(*arguments, **named)
        assert code == 403, (code, body)
        return body["message"]


@pytest.fixture
async def api():
    settings = Settings(
        static_tokens=parse_token_file(TOKENS), token_key=ec.generate_private_key(ec.SECP256R1())
    )
    cluster = Cluster(MemoryStore(), settings)
    await cluster.start()
    yield Api(cluster)
    await cluster.stop()


def resource_slice(node, name="s"):
    spec = {
        "driver": "gpu.example",
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "nodeName": node,
    }
    return {"metadata": {"name": name}, "spec": {**spec, "devices": [{"name": "d0"}]}}


async def test_a_node_writes_only_its_own_slices(api):
    await api.ok("POST", f"{RESOURCE}/resourceslices", "n1", resource_slice("n1", "mine"))
    assert "same NodeName" in await api.refused(
        "POST", f"{RESOURCE}/resourceslices", "n1", resource_slice("n2")
    )
    await api.ok("POST", f"{RESOURCE}/resourceslices", "n2", resource_slice("n2", "theirs"))
    for method in ("GET", "DELETE"):
        assert "no relationship" in await api.refused(method, f"{RESOURCE}/resourceslices/theirs", "n1")
    assert "field selector" in await api.refused("GET", f"{RESOURCE}/resourceslices", "n1")
    own = await api.ok("GET", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName=n1", "n1")
    assert [item["metadata"]["name"] for item in own["items"]] == ["mine"]
    await api.ok("DELETE", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName=n1", "n1")
    left = await api.ok("GET", f"{RESOURCE}/resourceslices")
    assert [item["metadata"]["name"] for item in left["items"]] == ["theirs"]


def claim_of(pod_claim="gpu"):
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
    return {"metadata": {"name": pod_claim}, "spec": {"devices": {"requests": requests}}}


def allocated(node="n1", driver="gpu.example"):
    result = {"request": "r", "driver": driver, "pool": node, "device": "d0"}
    requirement = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
    return {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}


async def test_a_node_reads_claims_only_once_a_pod_that_uses_them_runs_there(api):
    claims, pods = f"{RESOURCE}/namespaces/default/resourceclaims", "/api/v1/namespaces/default/pods"
    await api.ok("POST", claims, body=claim_of())
    await api.refused("GET", f"{claims}/gpu", "n1")
    spec = {
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "g", "resourceClaimName": "gpu"}],
    }
    await api.ok("POST", pods, body={"metadata": {"name": "p"}, "spec": spec})
    await api.refused("GET", f"{claims}/gpu", "n1")
    await api.ok(
        "POST",
        f"{pods}/p/binding",
        body={"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}},
    )
    await api.ok("GET", f"{claims}/gpu", "n1")
    await api.refused("GET", f"{claims}/gpu", "n2")
    await api.refused("GET", claims, "n1")
    patch = "application/merge-patch+json"
    await api.ok("PATCH", f"{pods}/p/status", "n1", {"status": {"phase": "Running"}}, patch)
    await api.refused("PATCH", f"{pods}/p/status", "n2", {"status": {"phase": "Failed"}}, patch)
    statuses = {"status": {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "other"}]}}
    assert "claim statues" in await api.refused("PATCH", f"{pods}/p/status", "n1", statuses, patch)
    await api.ok("DELETE", f"{pods}/p?gracePeriodSeconds=0", "n1")
    await api.refused("GET", f"{claims}/gpu", "n1")


async def driver_token(api, node):
    """Make a driver's pod on a node and return the token of its account, bound to the pod."""
    await api(
        "POST", "/api/v1/namespaces/kube-system/serviceaccounts", body={"metadata": {"name": "gpu-driver"}}
    )
    spec = {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "gpu-driver", "nodeName": node}
    pods = "/api/v1/namespaces/kube-system/pods"
    pod = await api.ok("POST", pods, body={"metadata": {"name": f"driver-{node}"}, "spec": spec})
    bound = {"kind": "Pod", "apiVersion": "v1", "name": f"driver-{node}", "uid": pod["metadata"]["uid"]}
    path = "/api/v1/namespaces/kube-system/serviceaccounts/gpu-driver/token"
    answer = await api.ok("POST", path, node, {"spec": {"boundObjectRef": bound}})
    return answer["status"]["token"]


async def grant_driver(api, rules):
    await api.ok("POST", f"{RBAC}/clusterroles", body={"metadata": {"name": "driver"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "namespace": "kube-system", "name": "gpu-driver"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "driver"}
    binding = {"metadata": {"name": "driver"}, "subjects": [subject], "roleRef": reference}
    await api.ok("POST", f"{RBAC}/clusterrolebindings", body=binding)


async def test_a_driver_reports_only_its_own_devices_on_its_own_node(api):
    tokens = {node: await driver_token(api, node) for node in ("n1", "n2")}
    driver = ["resourceclaims/driver"]
    await grant_driver(
        api,
        [
            {"verbs": ["get", "patch"], "apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims", "resourceclaims/status"]},
            {"verbs": ["associated-node:patch"], "apiGroups": ["resource.k8s.io"], "resources": driver, "resourceNames": ["gpu.example"]},
        ],
    )  # fmt: skip
    claims = f"{RESOURCE}/namespaces/default/resourceclaims"
    patch = "application/merge-patch+json"
    await api.ok("POST", claims, body=claim_of())
    await api.ok("PATCH", f"{claims}/gpu/status", "scheduler", {"status": allocated()}, patch)

    def report(name):
        return {"status": {"devices": [{"driver": name, "pool": "n1", "device": "d0", "data": {"ok": True}}]}}

    async def reported(token, body):
        return await api("PATCH", f"{claims}/gpu/status", token, body, patch)

    code, refused = await reported(tokens["n2"], report("gpu.example"))
    assert code == 422
    assert refused["details"]["causes"][0]["field"] == "status.devices"
    assert "arbitrary-node:patch" in refused["message"]
    code, _ = await reported(tokens["n1"], report("gpu.example"))
    assert code == 200
    code, refused = await reported(tokens["n1"], {"status": {"allocation": None}})
    assert code == 422
    assert "resourceclaims/binding" in refused["message"]


async def test_a_token_dies_with_its_pod(api):
    token = await driver_token(api, "n1")
    code, who = await api("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", token, {})
    assert code == 201
    assert who["status"]["userInfo"]["username"] == "system:serviceaccount:kube-system:gpu-driver"
    assert who["status"]["userInfo"]["extra"]["authentication.kubernetes.io/node-name"] == ["n1"]
    await api.ok("DELETE", "/api/v1/namespaces/kube-system/pods/driver-n1?gracePeriodSeconds=0")
    assert (await api("GET", "/version", token))[0] == 401


async def test_a_node_gets_no_tokens_for_pods_elsewhere(api):
    await driver_token(api, "n1")
    path = "/api/v1/namespaces/kube-system/serviceaccounts/gpu-driver/token"
    assert "no relationship" in await api.refused("POST", path, "n2", {"spec": {}})


async def test_a_node_gets_tokens_only_bound_to_a_pod_that_runs_on_it(api):
    await driver_token(api, "n1")
    path = "/api/v1/namespaces/kube-system/serviceaccounts/gpu-driver/token"
    pod = await api.ok("GET", "/api/v1/namespaces/kube-system/pods/driver-n1")
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "driver-n1", "uid": pod["metadata"]["uid"]}
    assert "not bound to a pod" in await api.refused("POST", path, "n1", {"spec": {}})
    nameless = {**bound, "uid": ""}
    assert "without a uid" in await api.refused("POST", path, "n1", {"spec": {"boundObjectRef": nameless}})
    await api.refused("POST", path, "n2", {"spec": {"boundObjectRef": bound}})
    other = {**bound, "uid": "00000000-0000-0000-0000-000000000000"}
    assert "does not match" in await api.refused("POST", path, "n1", {"spec": {"boundObjectRef": other}})
    await api.ok("POST", path, "root", {"spec": {}})


async def test_rights_are_granted_used_and_revoked_at_once(api):
    pods = "/api/v1/namespaces/default/pods"
    await api.refused("GET", pods, "ann")
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
    bindings = f"{RBAC}/namespaces/default/rolebindings"
    await api.ok(
        "POST", bindings, body={"metadata": {"name": "b"}, "subjects": [subject], "roleRef": reference}
    )
    await api.ok("GET", pods, "ann")
    powerful = {
        "metadata": {"name": "x"},
        "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    }
    message = await api.refused("POST", f"{RBAC}/namespaces/default/roles", "ann", powerful)
    assert "attempting to grant RBAC permissions not currently held" in message
    await api.refused("POST", f"{RBAC}/clusterroles", "ann", powerful)
    await api.ok("DELETE", f"{bindings}/b")
    await api.refused("GET", pods, "ann")


async def test_a_quota_on_devices_holds(api):
    hard = {"gpu.deviceclass.resource.k8s.io/devices": "1"}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}}
    await api.ok("POST", "/api/v1/namespaces/default/resourcequotas", body=quota)
    claims = f"{RESOURCE}/namespaces/default/resourceclaims"
    await api.ok("POST", claims, body=claim_of("one"))
    assert "exceeded quota: q" in await api.refused("POST", claims, body=claim_of("two"))
    await api.ok("DELETE", f"{claims}/one")
    await api.ok("POST", claims, body=claim_of("two"))


async def test_nobody_learns_whether_something_exists(api):
    codes = {
        (await api("GET", path, ""))[0]
        for path in (
            "/api/v1/namespaces/default/pods/absent",
            "/apis/none.example/v1/things",
            "/apis",
            "/nonsense",
        )
    }
    assert codes == {403}
