"""The controller of HorizontalPodAutoscalers on a small API: what it reads, writes and says."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime

import msgspec
import pytest
from conditions import until
from small_api import SmallApi

from dray.api.pod_autoscalers import MetricSpec
from dray.client import Response
from dray.control.pod_autoscaling import PodAutoscalerController, controller, reported_metrics
from dray.control.pod_autoscaling.replica_counts import MetricUnavailableError
from dray.control.reconcile_loop import Caches, run_controllers

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
PODS = "/api/v1/namespaces/default/pods"
NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


class ScalingApi(SmallApi):
    """Takes scales, and refuses those of an older Deployment, as a server does."""

    def __init__(self):
        super().__init__()
        self.scales = []

    def _answer(self, request, path, query, body):
        if not path.endswith("/scale"):
            return super()._answer(request, path, query, body)
        target = self.objects[path.removesuffix("/scale")]
        if body["metadata"]["resourceVersion"] != target["metadata"]["resourceVersion"]:
            return Response(
                409, {}, b'{"kind": "Status", "code": 409, "reason": "Conflict", "message": "old"}'
            )
        target["spec"]["replicas"] = body["spec"]["replicas"]
        self.scales.append(body["spec"]["replicas"])
        self._store(path.removesuffix("/scale"), target, "MODIFIED", 200)
        return Response(200, {}, json.dumps(body).encode())


def workload(kind="Deployment", name="web", labels=None, replicas=1):
    labels = labels or {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}},
        "status": {"replicas": replicas},
    }


def pod(name, labels=None, **values):
    annotations = {f"metrics.dray.dev/{key}": value for key, value in values.items()}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {"app": "web"}, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {
            "phase": "Running",
            "startTime": "2026-03-04T10:00:00Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-04T10:00:01Z"}],
        },
    }


def pods_metric(name="queue", average="10"):
    return {
        "type": "Pods",
        "pods": {"metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": average}},
    }


def autoscaler(*metrics, name="web", target="web", kind="Deployment", version="apps/v1", most=10):
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "generation": 1},
        "spec": {
            "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": target},
            "minReplicas": 1,
            "maxReplicas": most,
            "metrics": list(metrics) or [pods_metric()],
        },
    }


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setattr(controller, "PERIOD", 0.02)
    return ScalingApi()


@contextlib.asynccontextmanager
async def running(api):
    async with api.client() as client:
        caches = Caches(client)
        work = asyncio.create_task(run_controllers(caches, [PodAutoscalerController(caches, lambda: NOW)]))
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def condition(api, kind, name="web"):
    status = api.objects[f"{AUTOSCALERS}/{name}"].get("status") or {}
    for each in status.get("conditions") or ():
        if each["type"] == kind:
            return each["status"], each["reason"], each["message"]
    return None


def events(api):
    return {obj["reason"] for path, obj in api.objects.items() if "/events/" in path}


async def test_a_deployment_is_scaled_by_what_its_pods_report(api):
    api.put(f"{DEPLOYMENTS}/web", workload(replicas=2))
    for number in range(2):
        api.put(f"{PODS}/p{number}", pod(f"p{number}", queue="15"))
    api.put(f"{PODS}/other", pod("other", {"app": "other"}, queue="900"))
    api.put(f"{AUTOSCALERS}/web", autoscaler())
    async with running(api):
        await until(lambda: api.scales == [3])
        await until(lambda: "SuccessfulRescale" in events(api))
        await until(lambda: condition(api, "ScalingActive") is not None)
    status = api.objects[f"{AUTOSCALERS}/web"]["status"]
    assert status["currentMetrics"][0]["pods"]["current"] == {"averageValue": "15"}
    assert status["lastScaleTime"] == "2026-03-04T12:00:00Z"
    assert status["observedGeneration"] == 1
    assert condition(api, "ScalingActive")[:2] == ("True", "ValidMetricFound")


async def test_a_replica_set_by_the_usage_of_its_cpu(api):
    usage = {"type": "Utilization", "averageUtilization": 50}
    api.put(f"{SETS}/web", workload("ReplicaSet", replicas=1))
    api.put(f"{PODS}/p0", pod("p0", cpu="1500m"))
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": usage}}
    api.put(f"{AUTOSCALERS}/web", autoscaler(metric, kind="ReplicaSet"))
    async with running(api):
        await until(lambda: api.scales == [3])


@pytest.mark.parametrize("kind", ["External", "Object"])
async def test_a_value_of_a_namespace_or_of_another_object(api, kind):
    body = {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "5"}}
    annotated = {"annotations": {"metrics.dray.dev/queue": "20"}}
    api.put(
        "/api/v1/namespaces/default",
        {"kind": "Namespace", "metadata": annotated if kind == "External" else {}},
    )
    if kind == "Object":
        body["describedObject"] = {"apiVersion": "v1", "kind": "ConfigMap", "name": "broker"}
        api.put("/api/v1/namespaces/default/configmaps/broker", {"kind": "ConfigMap", "metadata": annotated})
    api.put(f"{DEPLOYMENTS}/web", workload())
    api.put(f"{PODS}/p0", pod("p0"))
    api.put(f"{AUTOSCALERS}/web", autoscaler({"type": kind, kind.lower(): body}))
    async with running(api):
        await until(lambda: api.scales == [4])


@pytest.mark.parametrize(
    ("found", "kind", "reason", "words"),
    [
        (autoscaler(target="gone"), "AbleToScale", "FailedGetScale", '"gone" not found'),
        (
            autoscaler(kind="StatefulSet"),
            "AbleToScale",
            "FailedGetScale",
            'no matches for kind "StatefulSet"',
        ),
        (
            autoscaler(pods_metric("other")),
            "ScalingActive",
            "FailedGetPodsMetric",
            "no pod has the annotation",
        ),
        (
            autoscaler(
                {
                    "type": "Object",
                    "object": {
                        "metric": {"name": "q"},
                        "describedObject": {"apiVersion": "example.com/v1", "kind": "Broker", "name": "b"},
                        "target": {"type": "Value", "value": "1"},
                    },
                }
            ),
            "ScalingActive",
            "FailedGetObjectMetric",
            'no matches for kind "Broker"',
        ),
    ],
)
async def test_what_cannot_be_scaled_says_why(api, found, kind, reason, words):
    api.put(f"{DEPLOYMENTS}/web", workload())
    api.put(f"{PODS}/p0", pod("p0", queue="90"))
    api.put(f"{AUTOSCALERS}/web", found)
    async with running(api):
        await until(lambda: (condition(api, kind) or ("",))[0] == "False")
        await until(lambda: reason in events(api))
    assert condition(api, kind)[1] == reason
    assert words in condition(api, kind)[2]
    assert not api.scales


async def test_pods_of_two_autoscalers_are_scaled_by_neither(api):
    api.put(f"{DEPLOYMENTS}/web", workload())
    api.put(f"{PODS}/p0", pod("p0", queue="90"))
    api.put(f"{AUTOSCALERS}/web", autoscaler())
    api.put(f"{AUTOSCALERS}/two", autoscaler(name="two"))
    async with running(api):
        await until(lambda: condition(api, "ScalingActive", "two") is not None)
        await until(lambda: condition(api, "ScalingActive") is not None)
    assert condition(api, "ScalingActive")[1] == "AmbiguousSelector"
    assert "two, web" in condition(api, "ScalingActive")[2]
    assert not api.scales


async def test_a_status_that_says_the_same_is_not_written_again(api, monkeypatch):
    decide, decisions = controller.decide, []

    def counted(*args):
        decisions.append(args)
        return decide(*args)

    monkeypatch.setattr(controller, "decide", counted)
    api.put(f"{DEPLOYMENTS}/web", workload())
    api.put(f"{PODS}/p0", pod("p0", queue="10"))
    api.put(f"{AUTOSCALERS}/web", autoscaler())
    async with running(api):
        await until(lambda: condition(api, "ScalingActive") is not None)
        requests, before = len(api.requests), len(decisions)
        await until(lambda: len(decisions) > before + 3)
    assert [each for each in api.requests[requests:] if each.startswith("PUT")] == []


# --- reported values ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5000), ("250m", 250), (" 1k ", 1_000_000), ("-1", -1000), ("many", None), ("9" * 65, None)],
)
def test_a_value_is_a_quantity(text, expected):
    assert reported_metrics.value_of({"metrics.dray.dev/queue": text}, "queue") == expected


def test_a_value_is_never_too_large_to_be_written():
    assert reported_metrics.value_of({"metrics.dray.dev/queue": "9" * 60}, "queue") == 2**53


def test_a_selector_of_a_metric_is_refused():
    source = {"metric": {"name": "queue", "selector": {"matchLabels": {"a": "b"}}}}
    spec = msgspec.convert({"type": "External", "external": source}, MetricSpec)
    with pytest.raises(MetricUnavailableError, match="no labels that a selector could choose"):
        reported_metrics.of_object(spec, {"metrics.dray.dev/queue": "5"}, "namespace default")
