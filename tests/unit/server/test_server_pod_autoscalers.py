"""HorizontalPodAutoscalers on the server: defaults, validation, status, tables."""

import pytest
from server_cluster import MERGE, running_cluster

PATH = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
AVERAGE = {"type": "AverageValue", "averageValue": "10"}
QUEUE = {"type": "Pods", "pods": {"metric": {"name": "queue"}, "target": AVERAGE}}


def autoscaler(**spec):
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 5,
            "metrics": [QUEUE],
            **spec,
        },
    }


async def test_defaults_are_those_of_upstream():
    async with running_cluster() as client:
        made = await client.call("POST", PATH, autoscaler(metrics=None, behavior={"scaleDown": {}}))
        assert made.code == 201, made.json
        spec = made.json["spec"]
        assert spec["minReplicas"] == 1
        cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
        assert spec["metrics"] == [{"type": "Resource", "resource": cpu}]
        assert spec["behavior"] == {
            "scaleUp": {
                "stabilizationWindowSeconds": 0,
                "selectPolicy": "Max",
                "policies": [
                    {"type": "Pods", "value": 4, "periodSeconds": 15},
                    {"type": "Percent", "value": 100, "periodSeconds": 15},
                ],
            },
            "scaleDown": {
                "selectPolicy": "Max",
                "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
            },
        }
        assert "behavior" not in (await client.call("PUT", f"{PATH}/web", autoscaler())).json["spec"]


async def test_the_generation_counts_changes_of_the_spec_and_status_has_a_path_of_its_own():
    async with running_cluster() as client:
        made = (await client.call("POST", PATH, {**autoscaler(), "status": {"currentReplicas": 3}})).json
        assert made["metadata"]["generation"] == 1
        assert made["status"] == {"currentMetrics": None, "desiredReplicas": 0}
        changed = await client.call("PATCH", f"{PATH}/web", {"spec": {"maxReplicas": 6}}, content=MERGE)
        assert changed.json["metadata"]["generation"] == 2
        status = {"status": {"currentReplicas": 2, "desiredReplicas": 3}, "spec": {"maxReplicas": 9}}
        told = (await client.call("PATCH", f"{PATH}/web/status", status, content=MERGE)).json
        assert (told["spec"]["maxReplicas"], told["status"]["desiredReplicas"]) == (6, 3)
        bad = {"status": {"currentReplicas": -1}}
        refused = await client.call("PATCH", f"{PATH}/web/status", bad, content=MERGE)
        assert (refused.code, refused.fields) == (422, ["status.currentReplicas"])


def rules(**changes):
    policy = {"type": "Pods", "value": 1, "periodSeconds": 15}
    return {"scaleUp": {"policies": [policy], **changes}}


def pods_metric(**target):
    return [{"type": "Pods", "pods": {"metric": {"name": "queue"}, "target": target}}]


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"maxReplicas": 0}, ["spec.maxReplicas", "spec.maxReplicas"]),
        ({"minReplicas": 6}, ["spec.maxReplicas"]),
        ({"minReplicas": -1}, ["spec.minReplicas"]),
        ({"minReplicas": 0}, ["spec.metrics"]),
        ({"scaleTargetRef": {"apiVersion": "apps/v1"}}, ["spec.scaleTargetRef.kind", "spec.scaleTargetRef.name"]),
        ({"scaleTargetRef": {"kind": "Deployment", "name": "a"}}, ["spec.scaleTargetRef.apiVersion"]),
        ({"scaleTargetRef": {"apiVersion": "a/b/c", "kind": "D", "name": "a"}}, ["spec.scaleTargetRef.apiVersion"]),
        ({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "a/b", "name": ".."}},
         ["spec.scaleTargetRef.kind", "spec.scaleTargetRef.name"]),
        ({"metrics": [{"type": "Words"}]}, ["spec.metrics[0].type"]),
        ({"metrics": [{}]}, ["spec.metrics[0].type", "spec.metrics[0].type"]),
        ({"metrics": [{"type": "Pods"}]}, ["spec.metrics[0].pods"]),
        ({"metrics": [{**QUEUE, "type": "Object"}]}, ["spec.metrics[0].object"]),
        ({"metrics": [{**QUEUE, "external": {"metric": {"name": "q"}, "target": AVERAGE}}]},
         ["spec.metrics[0].external"]),
        ({"metrics": pods_metric(type="AverageValue")}, ["spec.metrics[0].pods.target.averageValue"]),
        ({"metrics": pods_metric(type="AverageValue", averageValue="0")},
         ["spec.metrics[0].pods.target.averageValue"]),
        ({"metrics": pods_metric(type="Words", averageValue="1")}, ["spec.metrics[0].pods.target.type"]),
        ({"metrics": [{"type": "Pods", "pods": {"metric": {}, "target": AVERAGE}}]},
         ["spec.metrics[0].pods.metric.name"]),
        ({"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]},
         ["spec.metrics[0].resource.target.averageUtilization"]),
        ({"metrics": [{"type": "External", "external": {"metric": {"name": "q"},
                       "target": {"type": "Value", "value": "1", "averageValue": "1"}}}]},
         ["spec.metrics[0].external.target.value"]),
        ({"metrics": [{"type": "ContainerResource", "containerResource": {"name": "gold", "container": "C",
                       "target": {"type": "Utilization", "averageUtilization": 0}}}]},
         ["spec.metrics[0].containerResource.container", *["spec.metrics[0].containerResource.name"] * 2,
          "spec.metrics[0].containerResource.target.averageUtilization"]),
        ({"behavior": rules(stabilizationWindowSeconds=3601)}, ["spec.behavior.scaleUp.stabilizationWindowSeconds"]),
        ({"behavior": rules(stabilizationWindowSeconds=-1)}, ["spec.behavior.scaleUp.stabilizationWindowSeconds"]),
        ({"behavior": rules(selectPolicy="Mean")}, ["spec.behavior.scaleUp.selectPolicy"]),
        ({"behavior": rules(tolerance="-1")}, ["spec.behavior.scaleUp.tolerance"]),
        ({"behavior": rules(policies=[{"type": "Words", "value": 0, "periodSeconds": 1801}])},
         ["spec.behavior.scaleUp.policies[0].periodSeconds", "spec.behavior.scaleUp.policies[0].type",
          "spec.behavior.scaleUp.policies[0].value"]),
    ],
)  # fmt: skip
async def test_what_upstream_refuses_is_refused(spec, fields):
    async with running_cluster() as client:
        refused = await client.call("POST", PATH, autoscaler(**spec))
        assert refused.code == 422, refused.json
        assert refused.fields == sorted(fields)


async def test_zero_replicas_need_a_metric_that_is_there_without_pods():
    external = {"type": "External", "external": {"metric": {"name": "q"}, "target": AVERAGE}}
    async with running_cluster() as client:
        assert (await client.call("POST", PATH, autoscaler(minReplicas=0, metrics=[external]))).code == 201


async def test_a_target_that_was_invalid_before_may_stay():
    async with running_cluster() as client:
        core = {"apiVersion": "v1", "kind": "ReplicationController", "name": "a"}
        assert (await client.call("POST", PATH, autoscaler(scaleTargetRef=core))).code == 201
        moved = autoscaler(scaleTargetRef={"apiVersion": "v1", "kind": "Deployment", "name": "a"})
        assert (await client.call("PUT", f"{PATH}/web", moved)).code == 422
        renamed = autoscaler(scaleTargetRef={**core, "name": "b"})
        assert (await client.call("PUT", f"{PATH}/web", renamed)).code == 200


async def test_the_table_is_that_of_kubectl():
    utilization = {"type": "Utilization", "averageUtilization": 60}
    metrics = [
        QUEUE,
        {"type": "Resource", "resource": {"name": "cpu", "target": utilization}},
        {"type": "External", "external": {"metric": {"name": "q"}, "target": AVERAGE}},
    ]
    async with running_cluster() as client:
        await client.call("POST", PATH, autoscaler(metrics=metrics))
        shown = (await client.call("GET", PATH, accept=TABLE)).json
        names = [column["name"] for column in shown["columnDefinitions"]]
        assert names == ["Name", "Reference", "Targets", "MinPods", "MaxPods", "Replicas", "Age"]
        targets = "<unknown>/10, cpu: <unknown>/60% + 1 more..."
        assert shown["rows"][0]["cells"][:-1] == ["web", "Deployment/web", targets, "1", 5, 0]
        current = [
            {"type": "Pods", "pods": {"metric": {"name": "queue"}, "current": {"averageValue": "7500m"}}},
            {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 31}}},
        ]
        status = {"status": {"currentReplicas": 2, "desiredReplicas": 2, "currentMetrics": current}}
        await client.call("PATCH", f"{PATH}/web/status", status, content=MERGE)
        shown = (await client.call("GET", f"{PATH}/web", accept=TABLE)).json
        targets = "7500m/10, cpu: 31%/60% + 1 more..."
        assert shown["rows"][0]["cells"][2:6] == [targets, "1", 5, 2]
