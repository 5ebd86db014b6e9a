"""HorizontalPodAutoscalers side by side: what kube-apiserver stores, refuses and prints, dray does too."""

import json

import peers
import pytest

from dray.client import ApiError, Client, Request
from dray.client.resources import HORIZONTAL_POD_AUTOSCALERS

PATH = HORIZONTAL_POD_AUTOSCALERS.path("default")
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
AVERAGE = {"type": "AverageValue", "averageValue": "10"}
METRIC = {"name": "queue"}
QUEUE = {"type": "Pods", "pods": {"metric": METRIC, "target": AVERAGE}}
POLICY = {"type": "Pods", "value": 1, "periodSeconds": 15}
NAMESPACE = {"kind": "Namespace", "name": "default"}


def pods_metric(**target):
    return {"metrics": [{"type": "Pods", "pods": {"metric": METRIC, "target": target}}]}


def external(**target):
    return {"metrics": [{"type": "External", "external": {"metric": METRIC, "target": target}}]}


def obj(described, **target):
    source = {"describedObject": described, "metric": METRIC, "target": target}
    return {"metrics": [{"type": "Object", "object": source}]}


def resource(name="cpu", container=None, **target):
    field = "resource" if container is None else "containerResource"
    source = {"name": name, "target": target, **({} if container is None else {"container": container})}
    return {"metrics": [{"type": field[0].upper() + field[1:], field: source}]}


def rules(direction="scaleUp", **changes):
    return {"behavior": {direction: {"policies": [POLICY], **changes}}}


def target(**reference):
    return {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", **reference}}


# Changes of the spec of a good autoscaler.
SPECS = [
    {}, {"metrics": None}, {"metrics": []}, {"minReplicas": None}, {"behavior": {}}, {"behavior": {"scaleDown": {}}},
    {"maxReplicas": 0}, {"maxReplicas": -1}, {"maxReplicas": None}, {"minReplicas": 6}, {"minReplicas": -1}, {"minReplicas": 0},
    {"minReplicas": 0, **external(**AVERAGE)},
    target(kind=""), target(name=""), target(apiVersion=""), target(apiVersion="v1"), target(apiVersion="a/b/c"),
    target(kind="a/b"), target(name=".."), target(apiVersion="v1", kind="ReplicationController"), target(apiVersion="", kind="ReplicationController"),
    {"metrics": [{}]}, {"metrics": [{"type": "Words"}]}, {"metrics": [{"type": "Pods"}]}, {"metrics": [{**QUEUE, "type": "Object"}]},
    {"metrics": [{**QUEUE, "external": {"metric": METRIC, "target": AVERAGE}}]}, {"metrics": [QUEUE, QUEUE, QUEUE]},
    pods_metric(), pods_metric(type="AverageValue"), pods_metric(type="AverageValue", averageValue="0"), pods_metric(type="Value", averageValue="-1"),
    pods_metric(type="Words", averageValue="1500m"), {"metrics": [{"type": "Pods", "pods": {"metric": {}, "target": AVERAGE}}]},
    {"metrics": [{"type": "Pods", "pods": {"metric": {"name": "a/b", "selector": {"matchLabels": {"a": "b"}}}, "target": AVERAGE}}]},
    external(type="Value"), external(type="Value", value="1"), external(type="Value", value="1", averageValue="1"), external(type="Value", value="0"),
    obj(NAMESPACE, type="Value", value="1"), obj(NAMESPACE, type="Value"), obj({"kind": "", "name": "x"}, type="Value", value="1"),
    obj({"kind": "A", "name": "x", "apiVersion": "a/b/c"}, type="Value", value="1"),
    resource(type="Utilization"), resource(type="Utilization", averageUtilization=0), resource("", type="Utilization", averageUtilization=5),
    resource(type="Utilization", averageUtilization=5, averageValue="5"), resource("nvidia.com/gpu", type="AverageValue", averageValue="1"),
    resource(container="", type="Utilization", averageUtilization=5), resource(container="C", type="Utilization", averageUtilization=5),
    resource("gold", "c", type="Utilization", averageUtilization=5), resource("memory", "c", type="Utilization", averageUtilization=5),
    resource("a.test/x", "c", type="Utilization", averageUtilization=5), resource("hugepages-2Mi", "c", type="Utilization", averageUtilization=5),
    rules(stabilizationWindowSeconds=3601), rules(stabilizationWindowSeconds=-1), rules(selectPolicy="Mean"), rules(selectPolicy="Disabled"),
    rules(tolerance="-1"), rules("scaleDown", tolerance="10m"), rules(policies=[{"type": "Words", "value": 0, "periodSeconds": 1801}]),
    rules(policies=[{"type": "Percent", "value": -5, "periodSeconds": 0}]), rules("scaleDown", stabilizationWindowSeconds=0, selectPolicy="Min"),
]  # fmt: skip


def autoscaler(name, spec):
    whole = {**target(), "maxReplicas": 5, "metrics": [QUEUE], **spec}
    return {
        "apiVersion": HORIZONTAL_POD_AUTOSCALERS.api_version,
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": whole,
    }


async def answers(kubeconfig):
    """Return what a server says to all requests: stored objects and refusals, without what differs anyhow."""
    found = []
    async with Client.connect(kubeconfig) as client:
        for index, spec in enumerate(SPECS):
            try:
                made = await client.create(
                    HORIZONTAL_POD_AUTOSCALERS, autoscaler(f"a{index}", spec), "default"
                )
            except ApiError as error:
                details = error.status.details
                causes = sorted(
                    (each.field, each.reason, each.message) for each in (details.causes if details else ())
                )
                found.append((spec, error.code, error.status.reason, causes))
                continue
            found.append((spec, 201, made["metadata"]["generation"], made["spec"], made["status"]))
        answer = await client.answer(Request("GET", PATH, headers={"Accept": TABLE}))
        table = json.loads(answer.body)
        found.append([column["name"] for column in table["columnDefinitions"]])
        found += [row["cells"][:-1] for row in table["rows"]]  # without the age
    return found


@pytest.mark.kubernetes
async def test_the_server_answers_as_kube_apiserver():
    with peers.kubernetes(controllers="") as peer:
        expected = await answers(peer.kubeconfig)
    with peers.dray_server(controllers="") as peer:
        found = await answers(peer.kubeconfig)
    assert len(expected) > len(SPECS) + 15  # of which some were stored and are in the table
    different = [(theirs, ours) for theirs, ours in zip(expected, found, strict=True) if theirs != ours]
    assert different == []
