"""Rules of the other served kinds: nodes, namespaces, events, quotas, workloads, roles, definitions."""

import base64

import pytest
from validation_cases import ABSENT, CONTEXT, TIME, changed, judged, judged_status, judged_update

from dray.api.validation import validate_namespace_finalize
from dray.api.validation.registry import VALIDATORS

NAMED = {"metadata": {"name": "x", "namespace": "ns"}}
GLOBAL = {"metadata": {"name": "x"}}
EVENT_TIME = "2024-05-06T07:08:09.000001Z"
RBAC = "rbac.authorization.k8s.io"
LABELS = {"matchLabels": {"a": "b"}}


def template(**spec):
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


SCHEMA = {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}
GOOD = {
    "Node": {
        **GLOBAL,
        "spec": {"taints": [{"key": "a.test/x", "effect": "NoSchedule"}], "podCIDRs": ["10.0.0.0/24"], "providerID": "x://1"},
        "status": {"capacity": {"cpu": "1", "a.test/gpu": "2"}, "declaredFeatures": ["A", "B/c"]},
    },
    "Namespace": {**GLOBAL, "spec": {"finalizers": ["kubernetes", "a.test/x"]}},
    "ConfigMap": {**NAMED, "data": {"a": "b"}, "binaryData": {"x": "YQ=="}},
    "Secret": {**NAMED, "type": "kubernetes.io/tls", "data": {"tls.crt": "YQ==", "tls.key": "YQ=="}},
    "ServiceAccount": NAMED,
    "Event": {**NAMED, "involvedObject": {"namespace": "ns"}},
    "Event.events.k8s.io": {
        **NAMED,
        "involvedObject": {"namespace": "ns"},
        "eventTime": EVENT_TIME,
        "reportingComponent": "a.test/c",
        "reportingInstance": "i",
        "action": "a",
        "reason": "r",
        "message": "m",
        "type": "Normal",
        "series": {"count": 2, "lastObservedTime": EVENT_TIME},
    },
    "Lease.coordination.k8s.io": {**NAMED, "spec": {"leaseDurationSeconds": 15, "leaseTransitions": 0}},
    "ResourceQuota": {
        **NAMED,
        "spec": {
            "hard": {"cpu": "1", "pods": "5", "count/resourceclaims.resource.k8s.io": "3", "g.deviceclass.resource.k8s.io/devices": "2"},
            "scopes": ["NotTerminating"],
        },
    },
    "LimitRange": {
        **NAMED,
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "4"}, "min": {"cpu": "1"}, "default": {"cpu": "3"}, "defaultRequest": {"cpu": "2"}}]},
    },
    "Deployment.apps": {
        **NAMED,
        "spec": {"replicas": 1, "selector": LABELS, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": 1}}, "template": template()},
    },
    "ReplicaSet.apps": {**NAMED, "spec": {"replicas": 1, "selector": LABELS, "template": template()}},
    "DaemonSet.apps": {**NAMED, "spec": {"selector": LABELS, "updateStrategy": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}, "template": template()}},
    "Job.batch": {
        **NAMED,
        "spec": {"parallelism": 1, "completions": 2, "completionMode": "Indexed", "selector": LABELS, "template": template(restartPolicy="Never")},
    },
    "PodDisruptionBudget.policy": {**NAMED, "spec": {"minAvailable": 1, "selector": LABELS}},
    "HorizontalPodAutoscaler.autoscaling": {
        **NAMED,
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
            "minReplicas": 0,
            "maxReplicas": 3,
            "metrics": [
                {"type": "Object", "object": {"describedObject": {"kind": "Namespace", "name": "n"}, "metric": {"name": "q"},
                                              "target": {"type": "Value", "value": "1"}}},
                {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
                                                                    "target": {"type": "Utilization", "averageUtilization": 1}}},
            ],
            "behavior": {"scaleUp": {"stabilizationWindowSeconds": 3600, "selectPolicy": "Min", "tolerance": "0",
                                     "policies": [{"type": "Percent", "value": 1, "periodSeconds": 1800}]}},
        },
    },
    f"Role.{RBAC}": {**NAMED, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]},
    f"ClusterRole.{RBAC}": {**GLOBAL, "rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}], "aggregationRule": {"clusterRoleSelectors": [LABELS]}},
    f"RoleBinding.{RBAC}": {**NAMED, "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "r"}, "subjects": [{"kind": "ServiceAccount", "name": "s"}]},
    f"ClusterRoleBinding.{RBAC}": {
        **GLOBAL,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "n"}, {"kind": "User", "name": "u", "apiGroup": RBAC}],
    },
    "PriorityClass.scheduling.k8s.io": {**GLOBAL, "value": 5, "preemptionPolicy": "Never"},
    "PodGroup.scheduling.k8s.io": {
        **NAMED,
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": [{"name": "c", "resourceClaimName": "d"}]},
    },
    "Workload.scheduling.k8s.io": {
        **NAMED,
        "spec": {"podGroupTemplates": [{"name": "a", "schedulingPolicy": {"basic": {}}}, {"name": "b", "schedulingPolicy": {"gang": {"minCount": 1}}}]},
    },
    "PersistentVolume": {
        **GLOBAL,
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"}},
    },
    "PersistentVolumeClaim": {
        **NAMED,
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    },
    "StorageClass.storage.k8s.io": {
        **GLOBAL,
        "provisioner": "csi.example.com",
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    },
    "CSINode.storage.k8s.io": {
        **GLOBAL,
        "spec": {"drivers": [{"name": "csi.example.com", "nodeID": "n", "topologyKeys": ["a"], "allocatable": {"count": 3}}]},
    },
    "CSIStorageCapacity.storage.k8s.io": {**NAMED, "storageClassName": "a", "capacity": "1Gi"},
    "VolumeAttachment.storage.k8s.io": {
        **GLOBAL,
        "spec": {"attacher": "csi.example.com", "nodeName": "n", "source": {"persistentVolumeName": "a"}},
    },
    "CustomResourceDefinition.apiextensions.k8s.io": {
        "metadata": {"name": "foos.a.test"},
        "spec": {
            "group": "a.test",
            "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [{"name": "v1", "storage": True, "schema": SCHEMA}],
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_a_good_object_is_fine_and_may_stay_as_it_is(kind):
    assert judged(kind, GOOD[kind]) == []
    assert judged_update(kind, GOOD[kind], GOOD[kind]) == []


def test_every_kind_with_rules_has_an_example_here_or_in_its_own_tests():
    # tests/unit/server/test_server_webhooks.py and test_server_policies.py have those of admission.
    elsewhere = (".resource.k8s.io", ".admissionregistration.k8s.io")
    own = {kind for kind in VALIDATORS if kind.endswith(elsewhere)} | {"Pod"}
    assert set(VALIDATORS) == set(GOOD) | own


@pytest.mark.parametrize(
    ("kind", "path", "value", "expected"),
    [
        ("Node", "spec.taints.0.key", "", [("Invalid", "metadata.taints[0].key")] * 2),
        ("PersistentVolume", "spec.capacity.storage", "-1", [("Invalid", "spec.capacity[storage]")] * 2),
        ("StorageClass.storage.k8s.io", "provisioner", "a b", [("Invalid", "provisioner")]),
        ("StorageClass.storage.k8s.io", "parameters", {"": "x"}, [("Invalid", "parameters")]),
        ("StorageClass.storage.k8s.io", "parameters", {str(key): "" for key in range(513)}, [("TooLong", "parameters")]),
        ("StorageClass.storage.k8s.io", "parameters", {"a": "x" * 262_144}, [("TooLong", "parameters")]),
        ("CSINode.storage.k8s.io", "spec.drivers.0.name", "a b", [("Invalid", "spec.drivers[0].name")]),
        ("CSINode.storage.k8s.io", "spec.drivers.0.name", "l" * 64, [("TooLong", "spec.drivers[0].name")]),
        ("CSINode.storage.k8s.io", "spec.drivers.0.nodeID", "n" * 257, [("Invalid", "spec.drivers[0].nodeID")]),
        ("CSINode.storage.k8s.io", "spec.drivers.0.topologyKeys", ["a", "a"], [("Duplicate", "spec.drivers[0]")]),
        ("CSINode.storage.k8s.io", "spec.drivers.0.topologyKeys", ["a b"], [("Invalid", "spec.drivers[0]")]),
        ("CSINode.storage.k8s.io", "spec.drivers.0.allocatable.count", -1,
         [("Invalid", "spec.drivers[0].allocatable.count")]),
        ("CSINode.storage.k8s.io", "spec.drivers.1", {"name": "csi.example.com", "nodeID": "n"},
         [("Duplicate", "spec.drivers[1].name")]),
        ("CSIStorageCapacity.storage.k8s.io", "capacity", "-1", [("Invalid", "capacity")]),
        ("VolumeAttachment.storage.k8s.io", "spec.attacher", "a b", [("Invalid", "spec.attacher")]),
        ("VolumeAttachment.storage.k8s.io", "spec.nodeName", "", [("Invalid", "spec.nodeName")]),
        ("VolumeAttachment.storage.k8s.io", "spec.source.persistentVolumeName", "9E",
         [("Invalid", "spec.source.persistentVolumeName")]),
        ("VolumeAttachment.storage.k8s.io", "spec.source.inlineVolumeSpec", {}, [("Forbidden", "spec.source")]),
        ("Node", "spec.taints.0.effect", "Never", [("NotSupported", "metadata.taints[0].effect")]),
        ("Node", "spec.taints.1", {"key": "a.test/x", "effect": "NoSchedule"}, [("Duplicate", "metadata.taints[1]")]),
        ("Node", "status.capacity.cpu", "-1", [("Invalid", "status.capacity.cpu")]),
        ("Node", "status.capacity|a.test/gpu".replace(".capacity", "|capacity"), "500m", [("Invalid", "status.capacity.a.test/gpu")]),
        ("Node", "status.declaredFeatures", ["B", "A"], [("Invalid", "status.declaredFeatures[1]")]),
        ("Node", "status.declaredFeatures", ["A", "A"], [("Duplicate", "status.declaredFeatures[1]")]),
        ("Node", "status.declaredFeatures", ["a"], [("Invalid", "status.declaredFeatures[0]")]),
        ("Node", "spec.podCIDRs", ["x"], [("Invalid", "spec.podCIDRs[0]")]),
        ("Node", "spec.podCIDRs", ["10.0.0.1/24"], [("Invalid", "spec.podCIDRs[0]")]),
        ("Node", "spec.podCIDRs", ["10.0.0.0/24", "10.0.1.0/24"], [("Invalid", "spec.podCIDRs")]),
        ("Namespace", "metadata.name", "a.b", [("Invalid", "metadata.name")]),
        ("Namespace", "spec.finalizers", ["x y"], [("Invalid", "spec.finalizers")] * 2),
        ("ConfigMap", "data", {"a/b": ""}, [("Invalid", "data[a/b]")]),
        ("ConfigMap", "data", {"x": ""}, [("Invalid", "data[x]")]),
        ("ConfigMap", "data", {"a": "x" * (1024 * 1024 + 1)}, [("TooLong", "")]),
        ("Secret", "data", {"tls.crt": "YQ=="}, [("Required", "data[tls.key]")]),
        ("Secret", "data|a b", "", [("Invalid", "data[a b]")]),
        ("Secret", "type", "kubernetes.io/basic-auth", [("Required", "data[password]"), ("Required", "data[username]")]),
        ("Secret", "type", "kubernetes.io/service-account-token", [("Required", "metadata.annotations[kubernetes.io/service-account.name]")]),
        ("Secret", "type", "Anything", []),
        ("Event", "involvedObject.namespace", "other", [("Invalid", "involvedObject.namespace")]),
        ("Event", "involvedObject", ABSENT, [("Invalid", "involvedObject.namespace")]),
        ("Event", "eventTime", EVENT_TIME, [("Invalid", "reportingComponent")] * 2 + [("Required", field) for field in ("action", "reason", "reportingComponent", "reportingInstance")]),
        ("Event.events.k8s.io", "reportingComponent", "a b", [("Invalid", "reportingController")]),
        ("Event.events.k8s.io", "message", "x" * 1025, [("Invalid", "message")]),
        ("Event.events.k8s.io", "reason", "", [("Required", "reason")]),
        ("Event.events.k8s.io", "eventTime", ABSENT, [("Required", "eventTime")]),
        ("Event.events.k8s.io", "type", "Loud", [("Invalid", "type")]),
        ("Event.events.k8s.io", "series.count", 1, [("Invalid", "series.count")]),
        ("Event.events.k8s.io", "count", 1, [("Invalid", "count")]),
        ("Lease.coordination.k8s.io", "spec.leaseDurationSeconds", 0, [("Invalid", "spec.leaseDurationSeconds")]),
        ("Lease.coordination.k8s.io", "spec.leaseTransitions", -1, [("Invalid", "spec.leaseTransitions")]),
        ("ResourceQuota", "spec.hard", {"gpus": "1"}, [("Invalid", "spec.hard[gpus]")] * 2),
        ("ResourceQuota", "spec.hard", {"pods": "1500m"}, [("Invalid", "spec.hard[pods]")]),
        ("ResourceQuota", "spec.hard", {"cpu": "-1"}, [("Invalid", "spec.hard[cpu]")]),
        ("ResourceQuota", "spec.scopes", ["Sometimes"], [("Invalid", "spec.scopes")]),
        ("ResourceQuota", "spec.scopes", ["Terminating", "NotTerminating"], [("Invalid", "spec.scopes")]),
        ("ResourceQuota", "spec.scopes", ["BestEffort"], [("Invalid", "spec.scopes")]),
        ("ResourceQuota", "spec.scopeSelector", {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}, [("Required", "spec.scopeSelector.matchExpressions.values")]),
        ("LimitRange", "spec.limits.0.type", "Thing", [("Invalid", "spec.limits[0].type")]),
        ("LimitRange", "spec.limits.0.min.cpu", "5", [("Invalid", f"spec.limits[0].{side}[cpu]") for side in ("default", "defaultRequest", "min")]),
        ("LimitRange", "spec.limits.0.maxLimitRequestRatio", {"cpu": "5"}, [("Invalid", "spec.limits[0].maxLimitRequestRatio[cpu]")]),
        ("LimitRange", "spec.limits.0.max", {"gpus": "5"}, [("Invalid", "spec.limits[0].max[gpus]")] * 2),
        ("Deployment.apps", "spec.replicas", -1, [("Invalid", "spec.replicas")]),
        ("Deployment.apps", "spec.selector", ABSENT, [("Invalid", "spec.template.metadata.labels"), ("Required", "spec.selector")]),
        ("Deployment.apps", "spec.selector", {}, [("Invalid", "spec.selector")]),
        ("Deployment.apps", "spec.selector.matchLabels.a", "c", [("Invalid", "spec.template.metadata.labels")]),
        ("Deployment.apps", "spec.selector.matchLabels.a", "c d", [("Invalid", "spec.selector"), ("Invalid", "spec.selector.matchLabels")]),
        ("Deployment.apps", "spec.strategy.type", "Other", [("NotSupported", "spec.strategy")]),
        ("Deployment.apps", "spec.strategy.type", "Recreate", [("Forbidden", "spec.strategy.rollingUpdate")]),
        ("Deployment.apps", "spec.strategy.rollingUpdate", {"maxUnavailable": 0, "maxSurge": 0}, [("Invalid", "spec.strategy.rollingUpdate.maxUnavailable")]),
        ("Deployment.apps", "spec.strategy.rollingUpdate.maxUnavailable", "101%", [("Invalid", "spec.strategy.rollingUpdate.maxUnavailable")]),
        ("Deployment.apps", "spec.template.spec.restartPolicy", "Never", [("NotSupported", "spec.template.spec.restartPolicy")]),
        ("Deployment.apps", "spec.template.spec.containers", [], [("Required", "spec.template.spec.containers")]),
        ("Deployment.apps", "spec.progressDeadlineSeconds", 0, [("Invalid", "spec.progressDeadlineSeconds")]),
        ("ReplicaSet.apps", "spec.minReadySeconds", -1, [("Invalid", "spec.minReadySeconds")]),
        ("DaemonSet.apps", "spec.updateStrategy.rollingUpdate.maxSurge", 1, [("Invalid", "spec.updateStrategy.rollingUpdate.maxSurge")]),
        ("DaemonSet.apps", "spec.updateStrategy.rollingUpdate.maxUnavailable", 0, [("Required", "spec.updateStrategy.rollingUpdate.maxUnavailable")]),
        ("DaemonSet.apps", "spec.updateStrategy.type", "X", [("NotSupported", "spec.updateStrategy")]),
        ("Job.batch", "spec.template.spec.restartPolicy", "Always", [("Required", "spec.template.spec.restartPolicy")]),
        ("Job.batch", "spec.completions", ABSENT, [("Required", "spec.completions")]),
        ("Job.batch", "spec.completionMode", "X", [("NotSupported", "spec.completionMode")]),
        ("Job.batch", "spec.maxFailedIndexes", 3, [("Invalid", "spec.maxFailedIndexes"), ("Required", "spec.backoffLimitPerIndex")]),
        ("Job.batch", "metadata.name", "a.b", [("Invalid", "metadata.name")]),
        ("PodDisruptionBudget.policy", "spec.maxUnavailable", 1, [("Invalid", "spec")]),
        ("PodDisruptionBudget.policy", "spec.minAvailable", "101%", [("Invalid", "spec.minAvailable")]),
        ("PodDisruptionBudget.policy", "spec.unhealthyPodEvictionPolicy", "X", [("NotSupported", "spec.unhealthyPodEvictionPolicy")]),
        (f"Role.{RBAC}", "rules.0.verbs", [], [("Required", "rules[0].verbs")]),
        (f"Role.{RBAC}", "rules.0.resources", [], [("Required", "rules[0].resources")]),
        (f"Role.{RBAC}", "rules.0.nonResourceURLs", ["/x"], [("Invalid", "rules[0].nonResourceURLs")] * 2),
        (f"Role.{RBAC}", "metadata.name", "system:x Y", []),
        (f"ClusterRole.{RBAC}", "aggregationRule.clusterRoleSelectors", [], [("Required", "aggregationRule.clusterRoleSelectors")]),
        (f"RoleBinding.{RBAC}", "roleRef.kind", "Thing", [("NotSupported", "roleRef.kind")]),
        (f"RoleBinding.{RBAC}", "roleRef.apiGroup", "", [("NotSupported", "roleRef.apiGroup")]),
        (f"ClusterRoleBinding.{RBAC}", "roleRef.kind", "Role", [("NotSupported", "roleRef.kind")]),
        (f"ClusterRoleBinding.{RBAC}", "subjects.0.namespace", ABSENT, [("Required", "subjects[0].namespace")]),
        (f"ClusterRoleBinding.{RBAC}", "subjects.1.apiGroup", "", [("NotSupported", "subjects[1].apiGroup")]),
        ("PriorityClass.scheduling.k8s.io", "value", 1_000_000_001, [("Forbidden", "value")]),
        ("PriorityClass.scheduling.k8s.io", "metadata.name", "system-mine", [("Forbidden", "metadata.name")]),
        ("PriorityClass.scheduling.k8s.io", "preemptionPolicy", "X", [("NotSupported", "preemptionPolicy")]),
        ("PodGroup.scheduling.k8s.io", "spec.schedulingPolicy", {}, [("Invalid", "spec.schedulingPolicy")]),
        ("PodGroup.scheduling.k8s.io", "spec.schedulingPolicy.gang.minCount", 0, [("Required", "spec.schedulingPolicy.gang.minCount")]),
        ("PodGroup.scheduling.k8s.io", "spec.resourceClaims", [{"name": f"c{n}", "resourceClaimName": "d"} for n in range(5)], [("TooMany", "spec.resourceClaims")]),
        ("PodGroup.scheduling.k8s.io", "spec.resourceClaims.0", {"name": "c"}, [("Invalid", "spec.resourceClaims[0]")]),
        ("Workload.scheduling.k8s.io", "spec.podGroupTemplates.1.name", "a", [("Duplicate", "spec.podGroupTemplates[1]")]),
        ("Workload.scheduling.k8s.io", "spec.podGroupTemplates.1.priority", 3, [("Invalid", "spec")]),
        ("Workload.scheduling.k8s.io", "spec.podGroupTemplates", [], [("Invalid", "spec")]),
        ("CustomResourceDefinition.apiextensions.k8s.io", "metadata.name", "bars.a.test", [("Invalid", "metadata.name")]),
        ("CustomResourceDefinition.apiextensions.k8s.io", "spec.scope", "Galaxy", [("NotSupported", "spec.scope")]),
        ("CustomResourceDefinition.apiextensions.k8s.io", "spec.names.kind", "", [("Required", "spec.names.kind")]),
        ("CustomResourceDefinition.apiextensions.k8s.io", "spec.versions.0.storage", False, [("Invalid", "spec.versions"), ("Invalid", "status.storedVersions")]),
        ("CustomResourceDefinition.apiextensions.k8s.io", "spec.versions.0.schema", {}, [("Required", "spec.versions[0].schema.openAPIV3Schema")]),
        ("CustomResourceDefinition.apiextensions.k8s.io", "spec.versions.0.schema.openAPIV3Schema.properties.spec", {}, [("Required", "spec.validation.openAPIV3Schema.properties[spec].type")]),
    ],
)  # fmt: skip
def test_a_broken_field_is_named(kind, path, value, expected):
    assert judged(kind, changed(GOOD[kind], (path, value))) == sorted(expected)


@pytest.mark.parametrize(
    ("kind", "path", "value", "expected"),
    [
        ("Node", "spec.podCIDRs", ["10.8.0.0/24"], [("Forbidden", "spec.podCIDRs")]),
        ("Node", "spec.podCIDR", "10.8.0.0/24", [("Forbidden", "spec.podCIDRs")]),
        ("Node", "spec.providerID", "x://2", [("Invalid", "spec.providerID")]),
        ("Node", "spec.providerID", "", [("Invalid", "spec.providerID")]),
        ("Node", "spec.unschedulable", True, []),
        ("Secret", "type", "Opaque", [("Invalid", "type")]),
        ("Event.events.k8s.io", "reason", "other", [("Invalid", "reason")]),
        ("Event.events.k8s.io", "series.count", 3, []),
        ("ResourceQuota", "spec.scopes", [], [("Invalid", "spec.scopes")]),
        ("Deployment.apps", "spec.selector.matchExpressions", [{"key": "a", "operator": "Exists"}], [("Invalid", "spec.selector")]),
        ("Job.batch", "spec.template.metadata.labels.c", "d", [("Invalid", "spec.template")]),
        ("Job.batch", "spec.parallelism", 2, []),
        (f"RoleBinding.{RBAC}", "roleRef.name", "other", [("Invalid", "roleRef")]),
        ("PriorityClass.scheduling.k8s.io", "value", 6, [("Forbidden", "value")]),
        ("PodGroup.scheduling.k8s.io", "spec.resourceClaims", [], [("Invalid", "spec.resourceClaims")]),
        ("CustomResourceDefinition.apiextensions.k8s.io", "spec.group", "b.test", [("Invalid", "spec.group")]),
    ],
)  # fmt: skip
def test_what_an_update_may_not_change(kind, path, value, expected):
    assert judged_update(kind, changed(GOOD[kind], (path, value)), GOOD[kind]) == expected


def test_an_immutable_config_map_keeps_its_data():
    old = changed(GOOD["ConfigMap"], ("immutable", True))
    assert judged_update("ConfigMap", changed(old, ("data.a", "c")), old) == [("Forbidden", "data")]
    assert judged_update("ConfigMap", changed(old, ("immutable", False)), old) == [("Forbidden", "immutable")]


def test_docker_configuration_must_be_json():
    good, bad = (base64.b64encode(text).decode() for text in (b"{}", b"{"))
    secret = {**NAMED, "type": "kubernetes.io/dockerconfigjson"}
    assert judged("Secret", {**secret, "data": {".dockerconfigjson": good}}) == []
    assert judged("Secret", {**secret, "data": {".dockerconfigjson": bad}}) == [
        ("Invalid", "data[.dockerconfigjson]")
    ]


def test_the_phase_of_a_namespace_follows_its_deletion():
    def with_phase(phase, *changes):
        return changed(GOOD["Namespace"], ("status.phase", phase), *changes)

    assert judged_status("Namespace", with_phase("Active"), with_phase("Active")) == []
    assert judged_status("Namespace", with_phase("Gone"), with_phase("Active")) == [
        ("Invalid", "status.Phase")
    ]
    deleted = ("metadata.deletionTimestamp", TIME)
    terminating = with_phase("Terminating", deleted)
    assert judged_status("Namespace", terminating, terminating) == []


def test_finalizing_reports_the_finalizer():
    new = changed(GOOD["Namespace"], ("spec.finalizers", ["x"]), ("metadata.resourceVersion", "1"))
    assert [error.field for error in validate_namespace_finalize(new, new, CONTEXT)] == ["spec.finalizers[0]"]


def test_counters_of_a_status_fit_together():
    def counted(**counters):
        return {**GOOD["ReplicaSet.apps"], "status": counters}

    good = counted(replicas=2, readyReplicas=2, availableReplicas=1)
    assert judged_status("ReplicaSet.apps", good, good) == []
    assert judged_status("ReplicaSet.apps", counted(replicas=1, readyReplicas=2), good) == [
        ("Invalid", "status.readyReplicas")
    ]
    assert judged_status("ReplicaSet.apps", counted(replicas=1, fullyLabeledReplicas=-1), good) == [
        ("Invalid", "status.fullyLabeledReplicas")
    ]


def test_a_pod_group_speaks_of_its_own_claims():
    group = GOOD["PodGroup.scheduling.k8s.io"]
    new = changed(group, ("status.resourceClaimStatuses", [{"name": "c"}, {"name": "z"}]))
    assert judged_status("PodGroup.scheduling.k8s.io", new, group) == [
        ("Invalid", "status.resourceClaimStatuses[1].name")
    ]


def test_templates_of_a_workload_neither_come_nor_go():
    old = GOOD["Workload.scheduling.k8s.io"]
    less = changed(old, ("spec.podGroupTemplates", old["spec"]["podGroupTemplates"][:1]))
    assert judged_update("Workload.scheduling.k8s.io", less, old) == [("Forbidden", "spec.podGroupTemplates")]
    more = changed(old, ("spec.podGroupTemplates.2", {"name": "c", "schedulingPolicy": {"basic": {}}}))
    assert judged_update("Workload.scheduling.k8s.io", more, old) == [
        ("Forbidden", "spec.podGroupTemplates[2]")
    ]


BAD_METADATA = {
    "name": {"name": ""},
    "generation": {"generation": -1},
    "labels": {"labels": {"a b": "x"}},
    "annotations": {"annotations": {"a b": "x"}},
    "finalizers": {"finalizers": ["a b"]},
    "ownerReferences": {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "n"}]},
    "managedFields": {"managedFields": [{"operation": "Zap"}]},
}


@pytest.mark.parametrize("kind", [kind for kind, rules in VALIDATORS.items() if rules.judges_metadata])
def test_a_kind_that_says_it_judges_metadata_judges_all_of_it(kind):
    for part, bad in BAD_METADATA.items():
        for named in (NAMED, GLOBAL):
            found = VALIDATORS[kind].create({"metadata": {**named["metadata"], **bad}}, CONTEXT)
            assert any(error.field.startswith(f"metadata.{part}") for error in found), part
    judged_places = [
        error.field
        for metadata in ({"name": "x"}, {"name": "x", "namespace": "no label"})
        for error in VALIDATORS[kind].create({"metadata": metadata}, CONTEXT)
    ]
    assert "metadata.namespace" in judged_places
