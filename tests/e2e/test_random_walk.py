"""kube-apiserver and `dray server` asked the same random questions, and the protobuf that both write."""

import json
import os

import pytest
from api_sequences import GATES
from peers import kubernetes
from random_walk import Server, walk
from server_process import serving

from dray.api.schema import schema_of
from dray.server.requests.protobuf_answers import encode_object
from dray.server.requests.protobuf_bodies import MEDIA_TYPE, decode_object

FLAGS = (
    "--in-memory",
    "--disable-admission-plugins",
    "ServiceAccount",
    "--feature-gates",
    ",".join(f"{gate}=true" for gate in GATES),
)
pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    gates = ",".join(f"{gate}=true" for gate in GATES)
    with kubernetes(gates, controllers="") as peer, serving(tmp_path_factory.mktemp("walk"), *FLAGS) as own:
        yield Server(peer.kubeconfig), Server(own.kubeconfig)


def test_a_random_walk_meets_the_same_answers(servers):
    report = walk(*servers, seed=7, requests=400)
    assert not report.differences, "\n".join(json.dumps(found)[:2000] for found in report.differences[:3])


@pytest.mark.heavy
def test_a_long_random_walk_meets_the_same_answers(servers):
    requests = int(os.environ.get("DRAY_WALK_REQUESTS", "100000"))
    report = walk(*servers, seed=int(os.environ.get("DRAY_WALK_SEED", "1")), requests=requests)
    assert not report.differences, "\n".join(json.dumps(found)[:2000] for found in report.differences[:5])


OBJECTS = [
    ("", "v1", "ConfigMap", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "proto"}, "data": {"a": "b"}}),
    (
        "", "v1", "Pod", "/api/v1/namespaces/default/pods",
        {
            "metadata": {"name": "proto", "labels": {"a": "b"}},
            "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}, "livenessProbe": {"httpGet": {"port": "http"}}}],
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
            },
        },
    ),
    (
        "resource.k8s.io", "v1", "ResourceClaim", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
        {"metadata": {"name": "proto"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}], "config": [{"opaque": {"driver": "d.test", "parameters": {"x": 1}}}]}}},
    ),
    (
        "resource.k8s.io", "v1", "ResourceSlice", "/apis/resource.k8s.io/v1/resourceslices",
        {
            "metadata": {"name": "proto"},
            "spec": {
                "driver": "d.test", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "x", "attributes": {"a": {"int": -5}, "b": {"bool": False}}, "capacity": {"m": {"value": "1Gi"}}}],
            },
        },
    ),
    ("coordination.k8s.io", "v1", "Lease", "/apis/coordination.k8s.io/v1/namespaces/default/leases", {"metadata": {"name": "proto"}, "spec": {"renewTime": "2026-01-02T03:04:05.678901Z", "leaseDurationSeconds": 5}}),
    ("", "v1", "Node", "/api/v1/nodes", {"metadata": {"name": "proto"}, "status": {"capacity": {"cpu": "4"}}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("group", "version", "kind", "path", "obj"),
    OBJECTS,
    ids=lambda value: value if value in ("Pod", "Lease") else "",
)
def test_protobuf_says_the_same_as_kube_apiservers(servers, group, version, kind, path, obj):
    peer, own = servers
    schema = schema_of(group, version, kind)
    for server in servers:
        # Raw parts are kept as they were sent.
        code, body, _ = server.ask("POST", path, json.dumps(obj, separators=(",", ":")), "", "")
        assert code == 201, body
    _, plain, _ = peer.ask("GET", f"{path}/proto", None, "", "")
    _, theirs, _ = peer.ask("GET", f"{path}/proto", None, "", MEDIA_TYPE)
    # What Go wrote, and what is written here of the same object, mean the same.
    assert decode_object(schema, encode_object(schema, json.loads(plain))) == _told(
        decode_object(schema, theirs), json.loads(plain)
    )
    code, ours, _ = own.ask("GET", f"{path}/proto", None, "", MEDIA_TYPE)
    assert code == 200
    assert decode_object(schema, ours)["metadata"]["name"] == "proto"


def _told(value, plain):
    """Leave out what Go writes though it is zero, and JSON does not."""
    if isinstance(value, dict):
        return {
            name: _told(item, (plain or {}).get(name))
            for name, item in value.items()
            if name in (plain or {})
        }
    if isinstance(value, list):
        return [_told(item, other) for item, other in zip(value, plain, strict=True)]
    return value
