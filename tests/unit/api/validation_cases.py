"""Whole objects that validation accepts, and a small language to break them one field at a time."""

import copy

from dray.api.features import Features
from dray.api.validation import ValidationContext, validate_create, validate_status_update, validate_update

ABSENT = object()
EVERYTHING = Features.everything().switched(off=["DRAFractionalCapacityRange"])
CONTEXT = ValidationContext(features=EVERYTHING)

CLAIM, TEMPLATE = "ResourceClaim.resource.k8s.io", "ResourceClaimTemplate.resource.k8s.io"
SLICE, CLASS = "ResourceSlice.resource.k8s.io", "DeviceClass.resource.k8s.io"
RULE, POOL = "DeviceTaintRule.resource.k8s.io", "ResourcePoolStatusRequest.resource.k8s.io"

SHARE = "550e8400-e29b-41d4-a716-446655440000"
TIME = "2024-05-06T07:08:09Z"


def changed(base, *changes):
    """Return a copy with fields set: `("spec.devices.0.name", "x")`; ABSENT removes a field."""
    result = copy.deepcopy(base)
    for path, value in changes:
        *way, last = [
            int(part) if part.isdigit() else part for part in path.split("|" if "|" in path else ".")
        ]
        place = result
        for part in way:
            if isinstance(place, dict) and part not in place:
                place[part] = {}
            place = place[part]
        if value is ABSENT:
            del place[last]
        elif isinstance(place, list) and last == len(place):
            place.append(value)
        else:
            place[last] = value
    return result


def about(errors):
    """Return what errors are about: kind (without its prefix) and field, sorted."""
    return sorted((error.kind.value.removeprefix("FieldValue"), error.field) for error in errors)


def judged(kind, obj, context=CONTEXT):
    return about(validate_create(kind, obj, context))


def judged_update(kind, new, old, context=CONTEXT):
    return about(validate_update(kind, versioned(new), versioned(old), context))


def judged_status(kind, new, old, context=CONTEXT):
    return about(validate_status_update(kind, versioned(new), versioned(old), context))


def versioned(obj):
    return changed(obj, ("metadata.resourceVersion", "7"), ("metadata.uid", "u"))


def toleration():
    return {"key": "a.test/k", "operator": "Equal", "value": "v", "effect": "NoExecute"}


def claim_spec():
    exact = {
        "deviceClassName": "gpu",
        "selectors": [{"cel": {"expression": "true"}}],
        "allocationMode": "ExactCount",
        "count": 2,
        "tolerations": [toleration()],
        "capacity": {"requests": {"mem": "1Gi"}},
        "derivedAttributes": [{"name": "a.test/x", "expression": "1"}],
    }
    alternatives = [
        {
            "name": "s1",
            "deviceClassName": "gpu",
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [{"cel": {"expression": "true"}}],
        },
        {"name": "s2", "deviceClassName": "gpu", "allocationMode": "All"},
    ]
    return {
        "devices": {
            "requests": [{"name": "req", "exactly": exact}, {"name": "big", "firstAvailable": alternatives}],
            "constraints": [
                {"requests": ["req", "big/s1"], "matchAttribute": "a.test/x"},
                {"requests": ["big"], "distinctAttribute": "a.test/y"},
            ],
            "config": [{"requests": ["req"], "opaque": {"driver": "gpu.test", "parameters": {"a": 1}}}],
        }
    }


def claim():
    return {"metadata": {"name": "c", "namespace": "ns"}, "spec": claim_spec()}


def template():
    inner = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": claim_spec()}
    return {"metadata": {"name": "t", "namespace": "ns"}, "spec": inner}


def allocated_claim():
    result = {
        "request": "req",
        "driver": "gpu.test",
        "pool": "p/q",
        "device": "d0",
        "shareID": SHARE,
        "tolerations": [toleration()],
        "bindingConditions": ["a"],
        "bindingFailureConditions": ["b"],
        "skipNodeOperations": ["NodeUnprepareResources"],
    }
    other = {"request": "big/s1", "driver": "gpu.test", "pool": "p", "device": "d1"}
    config = {
        "source": "FromClaim",
        "requests": ["req"],
        "opaque": {"driver": "gpu.test", "parameters": {"a": 1}},
    }
    nodes = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    }
    condition = {"type": "Ready", "status": "True", "reason": "Ok", "lastTransitionTime": TIME}
    device = {
        "driver": "gpu.test",
        "pool": "p",
        "device": "d1",
        "conditions": [condition],
        "data": {"a": 1},
        "networkData": {"interfaceName": "eth0", "ips": ["10.0.0.1/24", "2001:db8::1/64"]},
    }
    status = {
        "allocation": {"devices": {"results": [result, other], "config": [config]}, "nodeSelector": nodes},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u1"}],
        "devices": [device],
    }
    return {**claim(), "status": status}


def device_class():
    config = {"opaque": {"driver": "gpu.test", "parameters": {"a": 1}}}
    spec = {
        "selectors": [{"cel": {"expression": "true"}}],
        "config": [config],
        "extendedResourceName": "a.test/gpu",
    }
    return {"metadata": {"name": "k"}, "spec": spec}


def device():
    ranged = {"default": "2", "validRange": {"min": "1", "max": "4", "step": "1"}}
    listed = {"default": "2", "validValues": ["1", "2", "3"]}
    return {
        "name": "d0",
        "attributes": {"model": {"string": "x"}, "a.test/ver": {"version": "1.2.3"}, "l": {"ints": [1, 2]}},
        "capacity": {
            "mem": {"value": "10", "requestPolicy": ranged},
            "b.test/c": {"value": "10", "requestPolicy": listed},
        },
        "allowMultipleAllocations": True,
        "taints": [{"key": "a.test/t", "value": "v", "effect": "NoExecute"}],
        "bindingConditions": ["a.test/ready"],
        "bindingFailureConditions": ["a.test/failed"],
    }


def resource_slice():
    consumer = {
        "name": "d1",
        "attributes": {"model": {"string": "x"}},
        "consumesCounters": [
            {"counterSet": "set", "counters": {"memory": {"value": "1"}}, "compatibilityGroups": ["g"]}
        ],
    }
    spec = {
        "driver": "gpu.test",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "n1",
        "devices": [device(), consumer],
    }
    return {"metadata": {"name": "s"}, "spec": spec}


def counter_slice():
    spec = resource_slice()["spec"]
    del spec["devices"]
    return {
        "metadata": {"name": "s"},
        "spec": {**spec, "sharedCounters": [{"name": "set", "counters": {"memory": {"value": "1"}}}]},
    }


def taint_rule():
    taint = {"key": "a.test/x", "value": "v", "effect": "NoSchedule"}
    selector = {"driver": "gpu.test", "pool": "a/b", "device": "d"}
    return {"metadata": {"name": "r"}, "spec": {"deviceSelector": selector, "taint": taint}}


def pool_request():
    spec = {"driver": "gpu.test", "poolName": "a/b", "limit": 10, "defaultPartitionTypeAttribute": "a.test/x"}
    return {"metadata": {"name": "q"}, "spec": spec}


def pod():
    container = {
        "name": "main",
        "image": "img",
        "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
        "env": [{"name": "A", "value": "b"}],
        "resources": {"claims": [{"name": "gpu"}, {"name": "nic", "request": "r"}]},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "livenessProbe": {"exec": {"command": ["x"]}},
    }
    spec = {
        "containers": [container],
        "initContainers": [{"name": "init", "image": "i"}],
        "resourceClaims": [
            {"name": "gpu", "resourceClaimName": "c"},
            {"name": "nic", "resourceClaimTemplateName": "t"},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "restartPolicy": "Always",
        "tolerations": [{"key": "k", "operator": "Exists"}],
    }
    return {"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}
