"""What is filled in where a client said nothing."""

import copy
from datetime import UTC, datetime

import pytest

from dray.api.codec import read
from dray.api.defaults import apply_defaults, latest_is_pulled_always
from dray.api.schema import schema_of

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
RESOURCE = "resource.k8s.io"


def defaulted(group, version, kind, obj):
    """The object as it is after reading and defaulting; checks that doing it again changes nothing."""
    result, complaints = read(schema_of(group, version, kind), obj)
    assert complaints == []
    apply_defaults(group, version, kind, result, NOW)
    again = copy.deepcopy(result)
    apply_defaults(group, version, kind, again, NOW.replace(year=2027))
    assert again == result
    return result


def request_of(obj):
    return obj["spec"]["devices"]["requests"][0]


def test_requests_ask_for_one_device_by_default():
    claim = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}
    assert request_of(defaulted(RESOURCE, "v1", "ResourceClaim", claim))["exactly"] == {
        "deviceClassName": "c", "allocationMode": "ExactCount", "count": 1,
    }  # fmt: skip


def test_all_devices_get_no_count():
    claim = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"allocationMode": "All"}}]}}}
    assert "count" not in request_of(defaulted(RESOURCE, "v1", "ResourceClaim", claim))["exactly"]


def test_alternatives_and_tolerations_are_defaulted_in_templates_too():
    sub = {"name": "s", "deviceClassName": "c", "tolerations": [{"key": "k"}]}
    template = {"spec": {"spec": {"devices": {"requests": [{"name": "r", "firstAvailable": [sub]}]}}}}
    found = request_of(defaulted(RESOURCE, "v1beta2", "ResourceClaimTemplate", template)["spec"])[
        "firstAvailable"
    ][0]
    assert (found["allocationMode"], found["count"]) == ("ExactCount", 1)
    assert found["tolerations"] == [{"key": "k", "operator": "Equal"}]


def test_flat_requests_are_defaulted_only_with_a_class():
    flat = {
        "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "c"}, {"name": "only-a-name"}]}}
    }
    requests = defaulted(RESOURCE, "v1beta1", "ResourceClaim", flat)["spec"]["devices"]["requests"]
    assert (requests[0]["allocationMode"], requests[0]["count"]) == ("ExactCount", 1)
    assert requests[1] == {"name": "only-a-name", "deviceClassName": ""}


def test_taints_remember_when_they_were_added():
    rule = {"spec": {"taint": {"key": "k", "effect": "NoExecute"}}}
    assert (
        defaulted(RESOURCE, "v1", "DeviceTaintRule", rule)["spec"]["taint"]["timeAdded"]
        == "2026-01-02T03:04:05Z"
    )
    taint = {"key": "k", "effect": "None", "timeAdded": "2020-01-01T00:00:00Z"}
    found = defaulted(
        RESOURCE,
        "v1beta1",
        "ResourceSlice",
        {"spec": {"devices": [{"name": "d", "basic": {"taints": [taint]}}]}},
    )
    assert found["spec"]["devices"][0]["basic"]["taints"] == [taint]


def test_pool_status_requests_are_limited():
    assert (
        defaulted(RESOURCE, "v1alpha3", "ResourcePoolStatusRequest", {"spec": {"driver": "d"}})["spec"][
            "limit"
        ]
        == 100
    )


def test_a_limit_of_zero_is_left_for_validation_to_refuse():
    request = {"spec": {"driver": "d", "limit": 0}}
    assert defaulted(RESOURCE, "v1alpha3", "ResourcePoolStatusRequest", request)["spec"]["limit"] == 0


def test_pods_get_what_the_kubelet_needs():
    pod = {
        "spec": {
            "hostNetwork": True,
            "serviceAccountName": "robot",
            "containers": [{
                "name": "c", "image": "app", "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100.5u"}},
                "livenessProbe": {"httpGet": {"port": 80}}, "startupProbe": {"grpc": {"port": 5}},
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            }],
            "volumes": [{"name": "tmp"}, {"name": "host", "hostPath": {"path": "/x"}}, {"name": "s", "secret": {"secretName": "s"}},
                        {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
        },
        "status": {"podIP": "10.0.0.1"},
    }  # fmt: skip
    found = defaulted("", "v1", "Pod", pod)
    spec, container = found["spec"], found["spec"]["containers"][0]
    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["schedulerName"]) == (
        "Always",
        "ClusterFirst",
        "default-scheduler",
    )
    assert (spec["terminationGracePeriodSeconds"], spec["enableServiceLinks"], spec["securityContext"]) == (
        30,
        True,
        {},
    )
    assert spec["serviceAccount"] == "robot"
    assert container["imagePullPolicy"] == "Always"
    assert container["ports"] == [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]
    # Amounts of node resources are whole thousandths, rounded up.
    assert container["resources"]["requests"] == {"cpu": "1m", "memory": "1Gi"}
    assert container["livenessProbe"]["httpGet"] == {"port": 80, "path": "/", "scheme": "HTTP"}
    assert container["livenessProbe"]["periodSeconds"] == 10
    assert container["startupProbe"]["grpc"] == {"port": 5, "service": ""}
    assert container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["tmp"]["emptyDir"] == {}
    assert volumes["host"]["hostPath"]["type"] == ""
    assert volumes["s"]["secret"]["defaultMode"] == 0o644
    assert volumes["p"]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 3600
    assert found["status"]["podIPs"] == [{"ip": "10.0.0.1"}]


def test_templates_of_pods_get_no_requests_from_limits():
    container = {"name": "c", "image": "app:1", "resources": {"limits": {"cpu": "1"}}}
    spec = {"selector": {}, "template": {"spec": {"containers": [container]}}}
    found = defaulted("apps", "v1", "Deployment", {"spec": spec})["spec"]
    assert found["template"]["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"}}
    assert found["template"]["spec"]["restartPolicy"] == "Always"
    assert found["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert (found["replicas"], found["revisionHistoryLimit"], found["progressDeadlineSeconds"]) == (
        1,
        10,
        600,
    )


def test_other_workloads():
    daemon_set = defaulted("apps", "v1", "DaemonSet", {"spec": {"selector": {}, "template": {}}})["spec"]
    assert daemon_set["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert defaulted("apps", "v1", "ReplicaSet", {"spec": {"selector": {}}})["spec"]["replicas"] == 1
    job = defaulted("batch", "v1", "Job", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    assert job["metadata"]["labels"] == {"a": "b"}
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"], spec["completionMode"]) == (
        1,
        1,
        6,
        "NonIndexed",
    )
    assert (
        defaulted("batch", "v1", "Job", {"spec": {"parallelism": 3, "template": {}}})["spec"].get(
            "completions"
        )
        is None
    )


def test_small_kinds():
    namespace = defaulted("", "v1", "Namespace", {"metadata": {"name": "n"}})
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}
    assert namespace["status"] == {"phase": "Active"}
    node = defaulted("", "v1", "Node", {"status": {"capacity": {"cpu": "4"}}})
    assert node["status"]["allocatable"] == {"cpu": "4"}
    assert defaulted("", "v1", "Secret", {})["type"] == "Opaque"
    assert (
        defaulted("scheduling.k8s.io", "v1", "PriorityClass", {"value": 1})["preemptionPolicy"]
        == "PreemptLowerPriority"
    )
    assert defaulted("scheduling.k8s.io", "v1beta1", "PodGroup", {"spec": {}})["spec"]["disruptionMode"] == {
        "single": {}
    }
    binding = defaulted(
        "rbac.authorization.k8s.io",
        "v1",
        "RoleBinding",
        {"subjects": [{"kind": "User", "name": "u"}], "roleRef": {}},
    )
    assert binding["subjects"][0]["apiGroup"] == binding["roleRef"]["apiGroup"] == "rbac.authorization.k8s.io"
    limits = defaulted(
        "",
        "v1",
        "LimitRange",
        {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}},
    )
    assert limits["spec"]["limits"][0]["defaultRequest"] == {"memory": "1Mi", "cpu": "2"}
    definition = {
        "spec": {
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [{"name": "v1", "storage": True}],
        }
    }
    found = defaulted("apiextensions.k8s.io", "v1", "CustomResourceDefinition", definition)
    assert (found["spec"]["names"]["singular"], found["spec"]["names"]["listKind"]) == (
        "widget",
        "WidgetList",
    )
    assert found["status"]["storedVersions"] == ["v1"]


@pytest.mark.parametrize(
    ("image", "always"),
    [("app", True), ("app:latest", True), ("app:1", False), ("host:5000/app", True), ("host:5000/app:2", False),
     ("app@sha256:0", False), ("app:latest@sha256:0", True), ("", False)],
)  # fmt: skip
def test_only_the_latest_image_is_always_pulled(image, always):
    assert latest_is_pulled_always(image) is always
