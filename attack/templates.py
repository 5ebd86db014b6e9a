"""One or more valid objects of every kind and version that the server serves.

`templates()` returns them all; a test sends each to a server and expects 201, so the table
cannot rot. Objects are deliberately rich: the fuzzer changes one field of an object at
a time, so what a template lacks is reached only where the schema adds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attack.custom_kinds import custom_bodies, definition
from attack.policies import admission_kinds
from dray.api.kinds import ADMISSION, KINDS, RBAC, Kind

Json = Any
DRIVER = "gpu.example.com"
UID = "11111111-2222-4333-8444-555555555555"
TIME = "2026-01-02T03:04:05Z"
EXPRESSION = 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].cores > 2'


@dataclass(frozen=True)
class Template:
    """A valid object and where it goes."""

    kind: Kind
    version: str
    body: dict[str, Json]  # without kind, apiVersion, name and namespace
    limits: bool = False  # bounds other objects of its namespace, so it needs a namespace of its own
    tried: bool = False  # judges requests of others, so a mutant is sent as a dry run and is never in force


def _metadata(**more: Json) -> Json:
    return {
        "labels": {"attack": "yes", "app.kubernetes.io/name": "a"},
        "annotations": {"a.example/b": "c"},
        **more,
    }


def _selector() -> Json:
    return {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]}


def _node_selector() -> Json:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


def _pod_spec(**more: Json) -> Json:
    term = {"labelSelector": _selector(), "topologyKey": "kubernetes.io/hostname"}
    return {
        "containers": [
            {
                "name": "main",
                "image": "registry.example/a:1",
                "command": ["sh"],
                "args": ["-c", "true"],
                "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
                "env": [
                    {"name": "A", "value": "b"},
                    {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "a"}}],
                "resources": {
                    "limits": {"cpu": "1", "memory": "64Mi"},
                    "requests": {"cpu": "100m", "memory": "32Mi"},
                    "claims": [{"name": "gpu", "request": "r"}],
                },
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
                "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
                "readinessProbe": {"exec": {"command": ["true"]}},
                "securityContext": {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}},
                "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
            }
        ],
        "initContainers": [{"name": "init", "image": "registry.example/i:1"}],
        "volumes": [
            {"name": "v", "configMap": {"name": "a", "items": [{"key": "k", "path": "p"}]}},
            {"name": "e", "emptyDir": {"sizeLimit": "1Mi"}},
            {"name": "s", "secret": {"secretName": "a"}},
        ],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "a0"}],
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
        "nodeSelector": {"zone": "a"},
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _node_selector()},
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]
            },
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": _selector(),
            }
        ],
        "securityContext": {"fsGroup": 1, "supplementalGroups": [2]},
        "terminationGracePeriodSeconds": 3,
        **more,
    }


def _request(name: str) -> Json:
    exactly = {
        "deviceClassName": "a0",
        "selectors": [{"cel": {"expression": EXPRESSION}}],
        "allocationMode": "ExactCount",
        "count": 2,
        "tolerations": [{"key": "a.example/k", "operator": "Exists", "effect": "NoExecute"}],
        "capacity": {"requests": {"memory": "1Gi"}},
    }
    return {"name": name, "exactly": exactly}


def _claim_spec() -> Json:
    alternatives = [
        {"name": "big", "deviceClassName": "a0"},
        {"name": "small", "deviceClassName": "a1", "count": 2},
    ]
    opaque = {"driver": DRIVER, "parameters": {"kind": "Config", "mode": {"a": [1, 2.5, None]}}}
    return {
        "devices": {
            "requests": [_request("r"), {"name": "alt", "firstAvailable": alternatives}],
            "constraints": [{"requests": ["r"], "matchAttribute": f"{DRIVER}/numa"}],
            "config": [{"requests": ["r", "alt/big"], "opaque": opaque}],
        }
    }


def _flat_claim_spec() -> Json:
    """Return the claim as v1beta1 spells it: without `exactly`."""
    spec = _claim_spec()
    request = spec["devices"]["requests"][0]
    request.update(request.pop("exactly"))
    return spec


def _device(name: str) -> Json:
    return {
        "name": name,
        "attributes": {
            "cores": {"int": 4},
            f"{DRIVER}/numa": {"int": 0},
            "model": {"string": "m"},
            "driverVersion": {"version": "1.2.3-rc.1"},
            "healthy": {"bool": True},
        },
        "capacity": {
            "memory": {
                "value": "16Gi",
                "requestPolicy": {
                    "default": "1Gi",
                    "validRange": {"min": "1Gi", "max": "8Gi", "step": "1Gi"},
                },
            }
        },
        "allowMultipleAllocations": True,
        "taints": [{"key": "a.example/t", "value": "v", "effect": "NoSchedule", "timeAdded": TIME}],
        "bindsToNode": True,
        "bindingConditions": ["Ready"],
        "bindingFailureConditions": ["Broken"],
    }


def _slice(flat: bool = True) -> Json:
    devices = [_device("d0"), _device("d1")]
    if not flat:
        devices = [{"name": each.pop("name"), "basic": each} for each in devices]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": _metadata(),
        "spec": {"driver": DRIVER, "pool": pool, "nodeName": "n1", "devices": devices},
    }


def _counters_slice() -> Json:
    counters = [{"name": "c", "counters": {"memory": {"value": "40Gi"}, "slices": {"value": "7"}}}]
    pool = {"name": "counters", "generation": 1, "resourceSliceCount": 2}
    return {
        "metadata": _metadata(),
        "spec": {"driver": DRIVER, "pool": pool, "allNodes": True, "sharedCounters": counters},
    }


def _workload(**more: Json) -> Json:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": _pod_spec(**more)}
    return {"selector": _selector(), "template": template}


def _rules() -> Json:
    return [
        {"apiGroups": ["", "apps"], "resources": ["pods", "deployments/scale"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["*"]},
    ]


def _binding(kind: str) -> Json:
    subjects = [
        {"kind": "User", "apiGroup": RBAC, "name": "somebody"},
        {"kind": "ServiceAccount", "name": "default", "namespace": "default"},
    ]
    return {
        "metadata": _metadata(),
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": "a0"},
        "subjects": subjects,
    }


def _node() -> Json:
    return {
        "metadata": _metadata(),
        "spec": {
            "taints": [{"key": "a", "effect": "NoSchedule"}],
            "podCIDR": "10.0.0.0/24",
            "providerID": "x://y",
        },
        "status": {
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": TIME, "reason": "R"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 9}},
            "nodeInfo": {"kubeletVersion": "v1.37.1", "machineID": "m"},
            "images": [{"names": ["a"], "sizeBytes": 1}],
        },
    }


def _event(version: str) -> Json:
    if version == "events":
        regarding = {"kind": "Pod", "namespace": "", "name": "a0", "uid": UID}
        more = {"eventTime": "2026-01-02T03:04:05.000000Z", "reportingController": "a.example/c"}
        return {
            "metadata": _metadata(), "regarding": regarding, "reason": "R", "note": "n", "type": "Normal",
            "action": "A", "reportingInstance": "i", **more,
        }  # fmt: skip
    return {
        "metadata": _metadata(),
        "involvedObject": {"kind": "Pod", "namespace": "", "name": "a0", "uid": UID},
        "reason": "R", "message": "m", "type": "Normal", "count": 2, "firstTimestamp": TIME,
        "source": {"component": "c", "host": "h"},
    }  # fmt: skip


def _resource_kinds() -> dict[str, list[Json]]:
    taint = {"key": "a.example/t", "value": "v", "effect": "NoSchedule"}
    selector = {"driver": DRIVER, "pool": "p", "device": "d0"}
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"a": {"b": 1}}}}
    device_class = {"selectors": [{"cel": {"expression": EXPRESSION}}], "config": [opaque]}
    return {
        "DeviceClass": [{"metadata": _metadata(), "spec": device_class}],
        "DeviceTaintRule": [{"metadata": _metadata(), "spec": {"deviceSelector": selector, "taint": taint}}],
        "ResourceClaim": [{"metadata": _metadata(), "spec": _claim_spec()}],
        "ResourceClaimTemplate": [
            {"metadata": _metadata(), "spec": {"metadata": {"labels": {"a": "b"}}, "spec": _claim_spec()}}
        ],
        "ResourcePoolStatusRequest": [{"metadata": _metadata(), "spec": {"driver": DRIVER, "limit": 10}}],
        "ResourceSlice": [_slice(), _counters_slice()],
    }


def _by_kind() -> dict[tuple[str, str], list[Json]]:
    gang = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    claims = [{"name": "c", "resourceClaimTemplateName": "a0"}]
    limit = {
        "type": "Container",
        "max": {"cpu": "8"},
        "default": {"cpu": "1"},
        "defaultRequest": {"cpu": "500m"},
    }
    scope = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}]}
    found: dict[tuple[str, str], list[Json]] = {
        ("", "ConfigMap"): [{"metadata": _metadata(), "data": {"k": "v"}, "binaryData": {"b": "AAEC"}}],
        ("", "Event"): [_event("core")],
        ("", "LimitRange"): [{"metadata": _metadata(), "spec": {"limits": [limit]}}],
        ("", "Namespace"): [{"metadata": _metadata(), "spec": {"finalizers": ["kubernetes"]}}],
        ("", "Node"): [_node()],
        ("", "Pod"): [
            {"metadata": _metadata(), "spec": _pod_spec()},
            {"metadata": _metadata(), "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}},
        ],
        ("", "ResourceQuota"): [{"metadata": _metadata(), "spec": {"hard": {"pods": "9", "cpu": "4"}, "scopeSelector": scope}}],
        ("", "Secret"): [{"metadata": _metadata(), "type": "Opaque", "data": {"k": "dg=="}, "stringData": {"s": "t"}}],
        ("", "ServiceAccount"): [{"metadata": _metadata(), "secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "b"}]}],
        ("apiextensions.k8s.io", "CustomResourceDefinition"): [definition(_metadata())],
        ("apps", "DaemonSet"): [{"metadata": _metadata(), "spec": _workload()}],
        ("apps", "Deployment"): [{"metadata": _metadata(), "spec": {**_workload(), "replicas": 2}}],
        ("apps", "ReplicaSet"): [{"metadata": _metadata(), "spec": {**_workload(), "replicas": 2}}],
        ("autoscaling", "HorizontalPodAutoscaler"): [{"metadata": _metadata(), "spec": _scaling()}],
        ("batch", "Job"): [
            {"metadata": _metadata(), "spec": {"completions": 2, "parallelism": 1, "template": {"spec": _pod_spec(restartPolicy="Never")}}}
        ],
        ("coordination.k8s.io", "Lease"): [
            {"metadata": _metadata(), "spec": {"holderIdentity": "h", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000001Z"}}
        ],
        ("events.k8s.io", "Event"): [_event("events")],
        ("policy", "PodDisruptionBudget"): [{"metadata": _metadata(), "spec": {"minAvailable": "50%", "selector": _selector()}}],
        (RBAC, "ClusterRole"): [
            {"metadata": _metadata(), "rules": [*_rules(), {"nonResourceURLs": ["/healthz/*"], "verbs": ["get"]}]},
            {"metadata": _metadata(), "aggregationRule": {"clusterRoleSelectors": [_selector()]}},
        ],
        (RBAC, "ClusterRoleBinding"): [_binding("ClusterRole")],
        (RBAC, "Role"): [{"metadata": _metadata(), "rules": _rules()}],
        (RBAC, "RoleBinding"): [_binding("Role")],
        ("scheduling.k8s.io", "PodGroup"): [{"metadata": _metadata(), "spec": {**gang, "resourceClaims": claims}}],
        ("scheduling.k8s.io", "PriorityClass"): [{"metadata": _metadata(), "value": 10, "description": "d"}],
        ("scheduling.k8s.io", "Workload"): [
            {"metadata": _metadata(), "spec": {"podGroupTemplates": [{"name": "g", **gang}]}}
        ],
    }  # fmt: skip
    attributes = {"verb": "get", "resource": "pods", "namespace": "default", "group": "", "name": "a"}
    access = {"resourceAttributes": attributes, "user": "somebody", "groups": ["g"], "extra": {"k": ["v"]}}
    found |= {
        ("", "Binding"): [{"metadata": {}, "target": {"kind": "Node", "name": "n1"}}],
        ("authentication.k8s.io", "SelfSubjectReview"): [{"metadata": {}}],
        ("authentication.k8s.io", "TokenReview"): [{"spec": {"token": "t", "audiences": ["a"]}}],
        ("authorization.k8s.io", "LocalSubjectAccessReview"): [{"spec": access}],
        ("authorization.k8s.io", "SelfSubjectAccessReview"): [{"spec": {"resourceAttributes": attributes}}],
        ("authorization.k8s.io", "SelfSubjectRulesReview"): [{"spec": {"namespace": "default"}}],
        ("authorization.k8s.io", "SubjectAccessReview"): [{"spec": access}],
    }
    return (
        found
        | admission_kinds(_metadata, _selector)
        | _storage_kinds()
        | {("resource.k8s.io", kind): bodies for kind, bodies in _resource_kinds().items()}
    )


def _scaling() -> Json:
    """Return how a Deployment is scaled: one metric of every sort, and a behavior."""
    value, metric = {"type": "AverageValue", "averageValue": "10"}, {"name": "queue", "selector": _selector()}
    described = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    policies = [
        {"type": "Pods", "value": 2, "periodSeconds": 60},
        {"type": "Percent", "value": 50, "periodSeconds": 30},
    ]
    return {
        "scaleTargetRef": described, "minReplicas": 1, "maxReplicas": 5,
        "metrics": [
            {"type": "Pods", "pods": {"metric": metric, "target": value}},
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
            {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": value}},
            {"type": "Object", "object": {"describedObject": described, "metric": metric, "target": {"type": "Value", "value": "3"}}},
            {"type": "External", "external": {"metric": metric, "target": {"type": "Value", "value": "3"}}},
        ],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Min", "policies": policies, "tolerance": "0.05"}},
    }  # fmt: skip


def _storage_kinds() -> dict[tuple[str, str], list[Json]]:
    group, storage = "storage.k8s.io", {"storage": "1Gi"}
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    volume = {
        "capacity": storage, "accessModes": ["ReadWriteOnce"], "storageClassName": "s", "hostPath": {"path": "/tmp/a"},
        "persistentVolumeReclaimPolicy": "Retain", "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }  # fmt: skip
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": storage}, "storageClassName": "s"}
    zones = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]
    storage_class = {
        "metadata": _metadata(), "provisioner": "p.example.com", "parameters": {"a": "b"}, "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": True, "allowedTopologies": zones,
    }  # fmt: skip
    attachment = {"attacher": "p.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "v"}}
    driver = {"name": "p.example.com", "nodeID": "i", "topologyKeys": ["zone"], "allocatable": {"count": 3}}
    return {
        ("", "PersistentVolume"): [{"metadata": _metadata(), "spec": volume}],
        ("", "PersistentVolumeClaim"): [{"metadata": _metadata(), "spec": wanted}],
        (group, "CSIDriver"): [
            {"metadata": _metadata(), "spec": {"attachRequired": True, "podInfoOnMount": False}}
        ],
        (group, "CSINode"): [{"metadata": _metadata(), "spec": {"drivers": [driver]}}],
        (group, "CSIStorageCapacity"): [
            {"metadata": _metadata(), "storageClassName": "s", "capacity": "1Gi", "nodeTopology": _selector()}
        ],
        (group, "StorageClass"): [storage_class],
        (group, "VolumeAttachment"): [{"metadata": _metadata(), "spec": attachment}],
    }


def templates() -> list[Template]:
    """Return valid objects of every kind in every version, the custom kind included."""
    found = []
    bodies = _by_kind()
    for kind in KINDS:
        for version in kind.versions:
            for body in _in_version(kind, version, bodies[kind.group, kind.kind]):
                is_limit = kind.kind in ("LimitRange", "ResourceQuota")
                found.append(Template(kind, version, body, is_limit, kind.group == ADMISSION))
    for kind, body in custom_bodies():
        found.append(Template(kind, kind.versions[0], {"metadata": _metadata(), **body}))
    return found


def _in_version(kind: Kind, version: str, bodies: list[Json]) -> list[Json]:
    if kind.group == "resource.k8s.io" and version == "v1beta1":
        if kind.kind == "ResourceClaim":
            return [{"metadata": _metadata(), "spec": _flat_claim_spec()}]
        if kind.kind == "ResourceClaimTemplate":
            return [{"metadata": _metadata(), "spec": {"spec": _flat_claim_spec()}}]
        if kind.kind == "ResourceSlice":
            return [_slice(flat=False), _counters_slice()]
    return bodies
