"""Request sequences of our own for an API server, and how answers are compared.

The recorder plays them on a real kube-apiserver and writes the answers to tests/recordings/api; the test plays
them on `dray server` and compares. A sequence is a list of steps that build on each other; sequences are
independent, each in a namespace of its own or with names of its own.

What differs from run to run (uids, versions, times, random names) is replaced before anything is compared.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from admission_sequences import ADMISSION_SEQUENCES

Json = Any
JsonObject = dict[str, Any]

GATES = (
    "DRADerivedAttributes",
    "DRADeviceCompatibilityGroups",
    "DRAListTypeAttributes",
    "DRANodeAllocatableResources",
    "DRAOptionalNodeOperations",
    "DRAPartitionableDevicesType",
    "DRAResourcePoolStatus",
)
RESOURCE = "/apis/resource.k8s.io"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


class Steps:
    """Collects the requests of one sequence."""

    def __init__(self) -> None:
        self.requests: list[JsonObject] = []

    def add(
        self, method: str, path: str, body: Json = None, kind: str = "", accept: str = "", until: int = 0
    ) -> None:
        """Add a request; `body` may be text, which is sent as it is; sent again until the answer has a code."""
        step: JsonObject = {"do": f"{method} {path}"}
        if until:
            step["until"] = until
        if body is not None:
            step["body"] = body
        if kind:
            step["type"] = kind
        if accept:
            step["accept"] = accept
        self.requests.append(step)

    def get(self, *paths: str, accept: str = "") -> None:
        for path in paths:
            self.add("GET", path, accept=accept)

    def post(self, path: str, *bodies: Json) -> None:
        for body in bodies:
            self.add("POST", path, body)

    def put(self, path: str, *bodies: Json) -> None:
        for body in bodies:
            self.add("PUT", path, body)

    def patch(self, path: str, *bodies: Json, kind: str = MERGE) -> None:
        for body in bodies:
            self.add("PATCH", path, body, kind)

    def delete(self, *paths: str, body: Json = None) -> None:
        for path in paths:
            self.add("DELETE", path, body)


def named(name: str, **rest: Json) -> JsonObject:
    return {"metadata": {"name": name}, **rest}


def device_class(name: str, *expressions: str, **spec: Json) -> JsonObject:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return named(name, spec={**({"selectors": selectors} if selectors else {}), **spec})


def claim(name: str, *requests: JsonObject, **devices: Json) -> JsonObject:
    return named(name, spec={"devices": {"requests": list(requests), **devices}})


def request(name: str = "gpu", **exactly: Json) -> JsonObject:
    return {"name": name, "exactly": {"deviceClassName": "gpu.test", **exactly}}


def resource_slice(name: str, *devices: JsonObject, **spec: Json) -> JsonObject:
    pool = {"name": "pool-1", "generation": 1, "resourceSliceCount": 1}
    return named(
        name,
        spec={"driver": "gpu.test", "pool": pool, "nodeName": "node-1", "devices": list(devices), **spec},
    )


def namespace_paths(steps: Steps, name: str, version: str = "v1") -> tuple[str, str]:
    """Make a namespace; return the paths of its claims and templates."""
    steps.post("/api/v1/namespaces", named(name))
    base = f"{RESOURCE}/{version}/namespaces/{name}"
    return f"{base}/resourceclaims", f"{base}/resourceclaimtemplates"


# --- sequences --------------------------------------------------------------------


def classes(steps: Steps) -> None:
    path = f"{RESOURCE}/v1/deviceclasses"
    steps.post(
        path,
        device_class("plain"),
        device_class("plain"),
        device_class("Upper"),
        device_class("selecting", 'device.driver == "gpu.test"'),
        device_class("wrong-type", "1"),
        device_class("no-syntax", "device.driver =="),
        device_class("unknown", "device.nothing"),
        device_class(
            "costly",
            "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, a+b+c > 0)))",
        ),
        device_class(
            "too-costly",
            'device.attributes["a.test"].x.matches(".*") ' + "&& true " * 3 + '&& "a".matches(device.driver)',
        ),
        device_class("empty-selector", ""),
        device_class("many", *["true"] * 33),
        device_class("extended", extendedResourceName="example.com/gpu"),
        device_class("extended-wrong", extendedResourceName="kubernetes.io/gpu"),
        device_class("extended-shape", extendedResourceName="gpu"),
        device_class(
            "config", config=[{"opaque": {"driver": "gpu.test", "parameters": {"mode": "fast", "n": 1}}}]
        ),
        device_class("config-driver", config=[{"opaque": {"driver": "bad_driver", "parameters": {}}}]),
        device_class("config-text", config=[{"opaque": {"driver": "gpu.test", "parameters": "text"}}]),
        device_class("config-nothing", config=[{}]),
        {"spec": {}},
        {},
        named("unknown-field", spec={"nothing": 1}),
    )
    steps.get(f"{path}/plain", f"{path}/absent", path, f"{path}?limit=2", f"{path}?limit=x")
    steps.get(
        f"{path}?labelSelector=a%3Db",
        f"{path}?fieldSelector=metadata.name%3Dplain",
        f"{path}?fieldSelector=spec.x%3D1",
    )
    steps.get(path, f"{path}/plain", accept=TABLE)
    steps.get(path, f"{path}/plain", accept=METADATA_ONLY)
    steps.patch(
        f"{path}/plain",
        {"metadata": {"labels": {"a": "b"}}},
        {"spec": {"selectors": [{"cel": {"expression": "1"}}]}},
    )
    steps.patch(
        f"{path}/plain", {"metadata": {"labels": {"not valid!": "b"}}}, {"metadata": {"name": "other"}}
    )
    steps.get(
        f"{path}?labelSelector=a%3Db",
        f"{path}?labelSelector=a+in+(b,c)",
        f"{path}?labelSelector=!a",
        f"{path}?labelSelector=a%3D%3D%3D",
    )
    steps.put(f"{path}/plain", device_class("plain", "true"), device_class("other"), named("plain"))
    steps.delete(f"{path}/plain", f"{path}/plain", f"{path}/many")


def claims(steps: Steps) -> None:
    path, _ = namespace_paths(steps, "claims")
    steps.post(
        path,
        claim("whole", request(count=2), constraints=[{"matchAttribute": "gpu.test/numa"}]),
        claim("default", request()),
        claim("all", request(allocationMode="All")),
        claim("all-count", request(allocationMode="All", count=2)),
        claim("mode", request(allocationMode="Some")),
        claim("negative", request(count=-1)),
        claim("zero", request(count=0)),
        claim("text-count", request(count="1")),
        claim("no-class", {"name": "gpu", "exactly": {}}),
        claim("neither", {"name": "gpu"}),
        claim("no-name", {"exactly": {"deviceClassName": "gpu.test"}}),
        claim("bad-name", request("Upper")),
        claim("twice", request("a"), request("a")),
        claim("none"),
        claim("many", *[request(f"r-{n}") for n in range(33)]),
        claim(
            "first",
            {
                "name": "a",
                "firstAvailable": [
                    {"name": "big", "deviceClassName": "big"},
                    {"name": "small", "deviceClassName": "small", "count": 2},
                ],
            },
        ),
        claim(
            "both",
            {
                "name": "a",
                "exactly": {"deviceClassName": "x"},
                "firstAvailable": [{"name": "b", "deviceClassName": "x"}],
            },
        ),
        claim(
            "nine",
            {"name": "a", "firstAvailable": [{"name": f"s-{n}", "deviceClassName": "x"} for n in range(9)]},
        ),
        claim(
            "constraint-unknown",
            request(),
            constraints=[{"requests": ["absent"], "matchAttribute": "gpu.test/numa"}],
        ),
        claim("constraint-name", request(), constraints=[{"matchAttribute": "numa"}]),
        claim("constraint-none", request(), constraints=[{}]),
        claim("distinct", request(count=2), constraints=[{"distinctAttribute": "gpu.test/numa"}]),
        claim(
            "config",
            request(),
            config=[{"requests": ["gpu"], "opaque": {"driver": "gpu.test", "parameters": {"a": 1}}}],
        ),
        claim(
            "config-unknown",
            request(),
            config=[{"requests": ["absent"], "opaque": {"driver": "gpu.test", "parameters": {"a": 1}}}],
        ),
        claim("capacity", request(capacity={"requests": {"memory": "1.5Gi"}})),
        claim("capacity-text", request(capacity={"requests": {"memory": "lots"}})),
        claim(
            "tolerations",
            request(
                tolerations=[
                    {"key": "a", "operator": "Exists"},
                    {"key": "b", "value": "c", "effect": "NoSchedule"},
                ]
            ),
        ),
        claim("toleration-operator", request(tolerations=[{"key": "a", "operator": "Like"}])),
        claim("toleration-value", request(tolerations=[{"key": "a", "operator": "Exists", "value": "x"}])),
        claim("toleration-key", request(tolerations=[{"operator": "Equal"}])),
        claim("toleration-effect", request(tolerations=[{"key": "a", "effect": "Never"}])),
        claim("admin", request(adminAccess=True)),
        claim("selector", request(selectors=[{"cel": {"expression": "device.driver == 1"}}])),
        claim("derived", request(derivedAttributes=[{"name": "a.test/b", "expression": "device.driver"}])),
        claim("derived-name", request(derivedAttributes=[{"name": "b", "expression": "device.driver"}])),
        {"metadata": {"generateName": "made-"}, "spec": {"devices": {"requests": [request()]}}},
        {
            "metadata": {"name": "elsewhere", "namespace": "default"},
            "spec": {"devices": {"requests": [request()]}},
        },
        {**claim("typed", request()), "apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim"},
        {**claim("kinded", request()), "apiVersion": "resource.k8s.io/v1", "kind": "Pod"},
        "{",
        "null",
        "[]",
    )
    steps.get(
        f"{path}/whole",
        f"{path}/first",
        f"{path}/capacity",
        path,
        f"{RESOURCE}/v1/resourceclaims?fieldSelector=metadata.namespace%3Dclaims",
    )
    steps.get(path, accept=TABLE)
    steps.patch(
        f"{path}/whole",
        {"metadata": {"annotations": {"a": "b"}}},
        {"spec": {"devices": {"requests": []}}},
        {"status": {"reservedFor": []}},
    )
    steps.put(f"{path}/whole", claim("whole", request(count=3)), claim("absent", request()))
    steps.delete(f"{path}/whole", f"{path}/absent")
    steps.delete(f"{path}?labelSelector=absent%3Dx")


def allocation(*devices: str, **more: Json) -> JsonObject:
    results = [
        {"request": "gpu", "driver": "gpu.test", "pool": "pool-1", "device": each, **more} for each in devices
    ]
    return {"devices": {"results": results}}


def claim_status(steps: Steps) -> None:
    path, _ = namespace_paths(steps, "status")
    steps.post(path, claim("a", request(count=2)), claim("b", request()))
    status = f"{path}/a/status"
    user = {"resource": "pods", "name": "p", "uid": "u-1"}
    steps.patch(
        status,
        {"status": {"reservedFor": [user]}},
        {"status": {"allocation": allocation("gpu-0", driver="no driver")}},
        {"status": {"allocation": allocation("gpu-0", request="absent")}},
        {"status": {"allocation": allocation("gpu-0", device="Upper")}},
        {"status": {"allocation": allocation(*[f"gpu-{n}" for n in range(33)])}},
        {"status": {"allocation": allocation("gpu-0", "gpu-1"), "reservedFor": [user]}},
        {"status": {"allocation": allocation("gpu-0", "gpu-2")}},
        {"status": {"reservedFor": [user, user]}},
        {"status": {"reservedFor": [user, {"resource": "", "name": "", "uid": ""}]}},
        {"status": {"reservedFor": [{**user, "uid": f"u-{n}"} for n in range(257)]}},
        {
            "status": {
                "devices": [
                    {
                        "driver": "gpu.test",
                        "pool": "pool-1",
                        "device": "gpu-0",
                        "conditions": [
                            {
                                "type": "Ready",
                                "status": "True",
                                "reason": "Ok",
                                "message": "",
                                "lastTransitionTime": "2026-01-01T00:00:00Z",
                            }
                        ],
                    }
                ]
            }
        },
        {"status": {"devices": [{"driver": "gpu.test", "pool": "pool-1", "device": "absent"}]}},
        {
            "status": {
                "devices": [
                    {
                        "driver": "gpu.test",
                        "pool": "pool-1",
                        "device": "gpu-0",
                        "networkData": {"interfaceName": "eth0", "ips": ["10.0.0.1/24", "nonsense"]},
                    }
                ]
            }
        },
        {
            "status": {
                "devices": [
                    {
                        "driver": "gpu.test",
                        "pool": "pool-1",
                        "device": "gpu-0",
                        "networkData": {
                            "interfaceName": "eth0",
                            "ips": ["10.0.0.1/24"],
                            "hardwareAddress": "ea:9f:cb:40:b1:7b",
                        },
                    }
                ]
            }
        },
        {"status": {"allocation": None}},
        {"status": {"reservedFor": None}},
        {"status": {"allocation": None}},
    )
    steps.get(f"{path}/a", status)
    steps.put(status, {**claim("a", request()), "status": {}})
    steps.patch(f"{path}/b/status", {"spec": {"devices": {}}}, {"metadata": {"labels": {"x": "y"}}})
    steps.get(path, accept=TABLE)


def templates(steps: Steps) -> None:
    _, path = namespace_paths(steps, "templates")

    def template(name: str, *requests: JsonObject, **meta: Json) -> JsonObject:
        spec: JsonObject = {"spec": {"devices": {"requests": list(requests)}}}
        return named(name, spec={**meta, **spec})

    steps.post(
        path,
        template("plain", request()),
        template("labelled", request(), metadata={"labels": {"a": "b"}, "annotations": {"c": "d"}}),
        template("named", request(), metadata={"name": "fixed"}),
        template("labels", request(), metadata={"labels": {"not valid!": "x"}}),
        template("bad", request(count=-1)),
        template("empty"),
    )
    steps.get(f"{path}/plain", f"{path}/labelled", path)
    steps.get(path, accept=TABLE)
    steps.patch(
        f"{path}/plain",
        {"spec": {"spec": {"devices": {"requests": [request(count=5)]}}}},
        {"metadata": {"labels": {"a": "b"}}},
    )
    steps.delete(f"{path}/plain")


def slices(steps: Steps) -> None:
    path = f"{RESOURCE}/v1/resourceslices"

    def device(name: str = "gpu-0", **more: Json) -> JsonObject:
        return {"name": name, **more}

    def counters(name: str = "board", **values: str) -> JsonObject:
        return {"name": name, "counters": {key: {"value": value} for key, value in values.items()}}

    steps.post(
        path,
        resource_slice(
            "plain",
            device(
                attributes={
                    "model": {"string": "x"},
                    "numa": {"int": 1},
                    "ecc": {"bool": True},
                    "fw": {"version": "1.2.3"},
                },
                capacity={"memory": {"value": "80Gi"}},
            ),
        ),
        resource_slice("attribute-none", device(attributes={"a": {}})),
        resource_slice("attribute-two", device(attributes={"a": {"int": 1, "bool": True}})),
        resource_slice("attribute-version", device(attributes={"a": {"version": "1.2"}})),
        resource_slice("attribute-long", device(attributes={"a": {"string": "x" * 65}})),
        resource_slice(
            "attribute-key",
            # One bad key only: upstream reports several in random order.
            device(attributes={"not valid!": {"int": 1}, "a.test/b": {"int": 1}}),
        ),
        resource_slice("attribute-list", device(attributes={"a": {"ints": [1, 2]}, "b": {"strings": []}})),
        resource_slice("attributes-many", device(attributes={f"a{n}": {"int": n} for n in range(33)})),
        resource_slice("capacity-text", device(capacity={"memory": {"value": "lots"}})),
        resource_slice(
            "capacity-policy",
            device(
                allowMultipleAllocations=True,
                capacity={
                    "memory": {
                        "value": "8Gi",
                        "requestPolicy": {
                            "default": "1Gi",
                            "validRange": {"min": "1Gi", "max": "4Gi", "step": "1Gi"},
                        },
                    }
                },
            ),
        ),
        resource_slice(
            "capacity-default",
            device(
                allowMultipleAllocations=True,
                capacity={
                    "memory": {
                        "value": "8Gi",
                        "requestPolicy": {"default": "16Gi", "validRange": {"min": "1Gi", "max": "4Gi"}},
                    }
                },
            ),
        ),
        resource_slice(
            "capacity-values",
            device(
                allowMultipleAllocations=True,
                capacity={
                    "memory": {
                        "value": "8Gi",
                        "requestPolicy": {"default": "1Gi", "validValues": ["2Gi", "4Gi"]},
                    }
                },
            ),
        ),
        resource_slice(
            "capacity-alone",
            device(capacity={"memory": {"value": "8Gi", "requestPolicy": {"default": "1Gi"}}}),
        ),
        resource_slice(
            "taints",
            device(
                taints=[
                    {"key": "a", "effect": "NoSchedule"},
                    {"key": "a", "effect": "NoExecute", "value": "b"},
                ]
            ),
        ),
        resource_slice("taint-effect", device(taints=[{"key": "a", "effect": "Never"}])),
        resource_slice("taint-key", device(taints=[{"effect": "NoSchedule"}])),
        resource_slice("names", device("same"), device("same")),
        resource_slice("name", device("Upper")),
        resource_slice("many", *[device(f"gpu-{n}") for n in range(129)]),
        resource_slice(
            "conditions",
            device(bindsToNode=True, bindingConditions=["ready"], bindingFailureConditions=["failed"]),
        ),
        resource_slice("conditions-alone", device(bindingConditions=["ready"])),
        resource_slice(
            "consumes",
            device(consumesCounters=[{"counterSet": "board", "counters": {"slices": {"value": "1"}}}]),
        ),
        resource_slice(
            "consumes-twice",
            device(consumesCounters=[{"counterSet": "board", "counters": {"a": {"value": "1"}}}] * 2),
        ),
        resource_slice(
            "consumes-nothing", device(consumesCounters=[{"counterSet": "board", "counters": {}}])
        ),
        resource_slice(
            "counters", sharedCounters=[counters(slices="7"), counters("other", memory="40Gi")], devices=None
        ),
        resource_slice("counters-same", sharedCounters=[counters(a="1"), counters(a="1")], devices=None),
        resource_slice("counters-and-devices", device(), sharedCounters=[counters(a="1")]),
        resource_slice("no-node", device(), nodeName=None),
        resource_slice("two-nodes", device(), allNodes=True),
        resource_slice("all-nodes", device(), nodeName=None, allNodes=True),
        resource_slice(
            "selected",
            device(),
            nodeName=None,
            nodeSelector={
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
            },
        ),
        resource_slice("two-terms", device(), nodeName=None, nodeSelector={"nodeSelectorTerms": [{}, {}]}),
        resource_slice(
            "per-device",
            device(nodeName="node-1"),
            device("gpu-1", allNodes=True),
            nodeName=None,
            perDeviceNodeSelection=True,
        ),
        resource_slice("per-device-none", device(), nodeName=None, perDeviceNodeSelection=True),
        resource_slice("driver", device(), driver="no driver"),
        resource_slice("pool", device(), pool={"name": "a//b", "generation": -1, "resourceSliceCount": 0}),
        resource_slice(
            "groups",
            device(
                consumesCounters=[
                    {
                        "counterSet": "board",
                        "counters": {"a": {"value": "1"}},
                        "compatibilityGroups": ["x", "y"],
                    }
                ]
            ),
        ),
        resource_slice("skip", device(), skipNodeOperations=["NodePrepareResources"]),
    )
    steps.get(
        f"{path}/plain",
        f"{path}?fieldSelector=spec.nodeName%3Dnode-1%2Cspec.driver%3Dother",
        f"{path}?fieldSelector=spec.driver%3Dgpu.test&limit=2",
    )
    steps.get(path, accept=TABLE)
    steps.patch(
        f"{path}/plain",
        {"spec": {"pool": {"generation": 2}}},
        {"spec": {"driver": "other.test"}},
        {"spec": {"nodeName": "node-2"}},
        {"spec": {"pool": {"name": "other"}}},
    )
    steps.delete(f"{path}?fieldSelector=spec.nodeName%3Dnode-1")
    steps.get(f"{path}?fieldSelector=spec.nodeName%3Dnode-1")


def taint_rules(steps: Steps) -> None:
    path = f"{RESOURCE}/v1beta2/devicetaintrules"

    def rule(name: str, effect: str = "NoExecute", **selector: Json) -> JsonObject:
        return named(
            name,
            spec={
                "deviceSelector": selector,
                "taint": {
                    "key": "broken.test/fan",
                    "value": "yes",
                    "effect": effect,
                    "timeAdded": "2026-01-02T03:04:05Z",
                },
            },
        )

    steps.post(
        path,
        rule("device", driver="gpu.test", pool="pool-1", device="gpu-0"),
        rule("none", effect="None", driver="gpu.test"),
        rule("effect", effect="Never"),
        rule("driver", driver="no driver"),
        rule("pool", pool="a//b"),
        rule("device-name", device="Upper"),
        named("no-taint", spec={"deviceSelector": {"driver": "gpu.test"}}),
        named("nothing"),
    )
    steps.get(f"{path}/device", path)
    steps.get(path, accept=TABLE)
    steps.patch(f"{path}/device", {"spec": {"taint": {"value": "no"}}}, {"spec": {"taint": {"key": ""}}})
    steps.patch(
        f"{path}/device/status",
        {
            "status": {
                "conditions": [
                    {
                        "type": "EvictionInProgress",
                        "status": "True",
                        "reason": "Evicting",
                        "message": "1 pod",
                        "lastTransitionTime": "2026-01-02T03:04:05Z",
                    }
                ]
            }
        },
    )
    steps.get(f"{path}/device")
    steps.delete(f"{path}/device")


def versions(steps: Steps) -> None:
    v1, _ = namespace_paths(steps, "versions")
    flat = {
        "metadata": {"name": "flat"},
        "spec": {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu.test", "count": 2}]}},
    }
    beta1, beta2 = v1.replace("/v1/", "/v1beta1/"), v1.replace("/v1/", "/v1beta2/")
    steps.post(
        beta1,
        flat,
        {
            **flat,
            "metadata": {"name": "bad"},
            "spec": {"devices": {"requests": [{"name": "gpu", "count": -1}]}},
        },
    )
    steps.post(beta2, claim("nested", request(count=3)))
    for path in (v1, beta1, beta2):
        steps.get(f"{path}/flat", f"{path}/nested", path)
    steps.patch(f"{beta1}/flat", {"metadata": {"labels": {"seen": "beta1"}}})
    steps.get(f"{v1}/flat")
    slices = f"{RESOURCE}/v1beta1/resourceslices"
    basic = {
        "name": "gpu-0",
        "basic": {"attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "1024Mi"}}},
    }
    steps.post(
        slices,
        resource_slice("beta", basic),
        resource_slice("beta-flat", {"name": "gpu-0", "attributes": {"a": {"int": 1}}}),
    )
    steps.get(
        f"{slices}/beta",
        f"{RESOURCE}/v1/resourceslices/beta",
        f"{RESOURCE}/v1beta2/resourceslices/beta",
        f"{RESOURCE}/v1beta9/resourceslices",
    )
    steps.delete(f"{slices}/beta", f"{slices}/beta-flat")


def patches(steps: Steps) -> None:
    path, _ = namespace_paths(steps, "patches")
    steps.post(
        path,
        {
            **claim("a", request()),
            "metadata": {"name": "a", "labels": {"one": "1", "two": "2"}, "finalizers": ["a.test/x"]},
        },
    )
    one = f"{path}/a"
    steps.patch(
        one,
        [{"op": "add", "path": "/metadata/labels/three", "value": "3"}],
        [{"op": "remove", "path": "/metadata/labels/one"}],
        [{"op": "remove", "path": "/metadata/labels/absent"}],
        [
            {"op": "test", "path": "/metadata/labels/two", "value": "2"},
            {"op": "replace", "path": "/metadata/labels/two", "value": "22"},
        ],
        [{"op": "test", "path": "/metadata/labels/two", "value": "no"}],
        [{"op": "move", "from": "/metadata/labels/two", "path": "/metadata/labels/moved"}],
        [{"op": "copy", "from": "/metadata/labels/moved", "path": "/metadata/labels/copied"}],
        [{"op": "add", "path": "/metadata/finalizers/-", "value": "b.test/y"}],
        [{"op": "nothing", "path": "/metadata"}],
        [{"op": "add", "path": "no-slash", "value": 1}],
        [{"op": "replace", "path": "/metadata/name", "value": "b"}],
        {"op": "add"},
        "[",
        kind=JSON_PATCH,
    )
    steps.patch(
        one,
        {"metadata": {"labels": {"merged": "yes", "copied": None}}},
        [],
        "null",
        "{",
        {"metadata": {"labels": "text"}},
        {"nothing": 1},
    )
    steps.patch(
        one,
        {"metadata": {"finalizers": ["c.test/z"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["c.test/z"]}},
        {"metadata": {"labels": {"$patch": "replace", "only": "this"}}},
        {"metadata": {"$patch": "unknown"}},
        kind=STRATEGIC,
    )
    steps.patch(one, {"metadata": {}}, kind="text/plain")
    steps.patch(f"{path}/absent", {"metadata": {"labels": {"a": "b"}}})
    steps.get(one)
    steps.delete(one)
    steps.get(one)
    steps.post(path, claim("a", request()))
    steps.patch(one, {"metadata": {"finalizers": None}})
    steps.get(one)


def applying(steps: Steps) -> None:
    path, _ = namespace_paths(steps, "applying")

    def applied(name: str = "a", **labels: str) -> JsonObject:
        meta = {"name": name, "labels": labels} if labels else {"name": name}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": meta,
            "spec": {"devices": {"requests": [request()]}},
        }

    one = f"{path}/a"
    steps.patch(f"{one}?fieldManager=first", applied(x="1", y="1"), applied(x="1"), kind=APPLY)
    steps.patch(f"{one}?fieldManager=second", applied(x="2"), applied(z="3"), kind=APPLY)
    steps.patch(f"{one}?fieldManager=second&force=true", applied(x="2"), kind=APPLY)
    steps.patch(one, applied(), kind=APPLY)
    steps.patch(
        f"{one}?fieldManager=first",
        applied("b"),
        {**applied(), "kind": "Pod"},
        {"metadata": {"name": "a"}},
        kind=APPLY,
    )
    steps.patch(f"{one}?fieldManager=first", {**applied(), "nothing": 1}, kind=APPLY)
    steps.get(one)
    steps.patch(f"{path}/new?fieldManager=first&dryRun=All", applied("new"), kind=APPLY)
    steps.get(f"{path}/new")


def options(steps: Steps) -> None:
    path, _ = namespace_paths(steps, "options")
    steps.add("POST", f"{path}?dryRun=All", claim("dry", request()))
    steps.add("POST", f"{path}?dryRun=Some", claim("dry", request()))
    steps.add("POST", f"{path}?fieldValidation=Strict", {**claim("strict", request()), "unknown": 1})
    steps.add("POST", f"{path}?fieldValidation=Warn", {**claim("warn", request()), "unknown": 1})
    steps.add("POST", f"{path}?fieldValidation=Ignore", {**claim("ignore", request()), "unknown": 1})
    steps.add("POST", f"{path}?fieldValidation=Maybe", claim("maybe", request()))
    steps.add(
        "POST",
        f"{path}?fieldValidation=Strict",
        '{"metadata":{"name":"dup","name":"dup"},"spec":{"devices":{"requests":[]}}}',
    )
    steps.add("POST", f"{path}?fieldManager={'x' * 129}", claim("manager", request()))
    for number in range(4):
        steps.post(path, claim(f"page-{number}", request()))
    steps.get(
        f"{path}?limit=-1",
        f"{path}?resourceVersion=abc",
        f"{path}?resourceVersionMatch=Exact",
        f"{path}?continue=nonsense",
    )
    steps.get(
        f"{path}?fieldSelector=metadata.name%3Dpage-1",
        f"{path}?fieldSelector=metadata.name!%3Dpage-1",
        f"{path}?fieldSelector=nonsense",
    )
    steps.get(f"{path}/page-1?resourceVersion=abc", f"{path}?timeoutSeconds=x", f"{path}?pretty=true&limit=1")
    steps.delete(f"{path}/page-1", body={"preconditions": {"uid": "wrong"}})
    steps.delete(f"{path}/page-1", body={"preconditions": {"resourceVersion": "1"}})
    steps.delete(f"{path}/page-1", body={"propagationPolicy": "Sideways"})
    steps.delete(f"{path}/page-1", body={"gracePeriodSeconds": -5})
    steps.delete(f"{path}/page-1?dryRun=All", f"{path}/page-1")
    steps.delete(path)
    steps.add("POST", path, "text", "text/plain")
    steps.add("GET", path, accept="application/xml")
    steps.get("/apis/resource.k8s.io/v1/nothing", "/nothing", "/apis/nothing.test/v1", f"{path}/a/nothing")
    steps.add("PUT", path, {})
    steps.add("POST", f"{path}/a", {})


def pods(steps: Steps) -> None:
    steps.post("/api/v1/namespaces", named("pods"))
    path = "/api/v1/namespaces/pods/pods"

    def pod(name: str, *claims: JsonObject, uses: Json = None, **spec: Json) -> JsonObject:
        container: JsonObject = {
            "name": "c",
            "image": "i",
            **({"resources": {"claims": uses}} if uses is not None else {}),
        }
        return named(name, spec={"containers": [container], "resourceClaims": list(claims), **spec})

    steps.post(
        path,
        pod("template", {"name": "g", "resourceClaimTemplateName": "t"}, uses=[{"name": "g"}]),
        pod("direct", {"name": "g", "resourceClaimName": "c"}, uses=[{"name": "g", "request": "r"}]),
        pod("both", {"name": "g", "resourceClaimName": "c", "resourceClaimTemplateName": "t"}),
        pod("neither", {"name": "g"}),
        pod("twice", {"name": "g", "resourceClaimName": "c"}, {"name": "g", "resourceClaimName": "d"}),
        pod("unknown", {"name": "g", "resourceClaimName": "c"}, uses=[{"name": "absent"}]),
        pod("use-twice", {"name": "g", "resourceClaimName": "c"}, uses=[{"name": "g"}, {"name": "g"}]),
        pod("bad-name", {"name": "Bad", "resourceClaimName": "c"}),
        pod("gated", {"name": "g", "resourceClaimName": "c"}, schedulingGates=[{"name": "a.test/wait"}]),
    )
    status = f"{path}/template/status"
    steps.patch(
        status,
        {"status": {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "made-1"}]}},
        {"status": {"resourceClaimStatuses": [{"name": "absent", "resourceClaimName": "made-1"}]}},
        {"status": {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "Bad Name"}]}},
    )
    steps.patch(f"{path}/direct", {"spec": {"resourceClaims": []}}, {"metadata": {"labels": {"a": "b"}}})
    steps.post(
        f"{path}/direct/binding",
        {"target": {"kind": "Node", "name": "node-1"}},
        {"target": {"kind": "Node", "name": "node-2"}},
        {},
    )
    steps.post(f"{path}/gated/binding", {"target": {"kind": "Node", "name": "node-1"}})
    steps.get(f"{path}/template", f"{path}?fieldSelector=spec.nodeName%3Dnode-1")
    steps.delete(f"{path}/template?gracePeriodSeconds=0", f"{path}/direct?gracePeriodSeconds=0")


def discovery(steps: Steps) -> None:
    steps.get(
        f"{RESOURCE}", f"{RESOURCE}/v1", f"{RESOURCE}/v1beta1", f"{RESOURCE}/v1beta2", f"{RESOURCE}/v1alpha3"
    )


SEQUENCES: dict[str, Callable[[Steps], None]] = {
    function.__name__: function
    for function in (
        classes, claims, claim_status, templates, slices, taint_rules, versions, patches, applying, options, pods, discovery,
        *ADMISSION_SEQUENCES,
    )
}  # fmt: skip


def sequences() -> Iterator[tuple[str, list[JsonObject]]]:
    """Yield (name, steps) of every sequence."""
    for name, function in SEQUENCES.items():
        steps = Steps()
        function(steps)
        yield name, steps.requests


# --- playing ----------------------------------------------------------------------

_MOST_TRIES = 50
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_OWN_TIMES = ("2026-01-01T00:00:00Z", "2026-01-02T03:04:05Z")  # those that the sequences send
_MADE_NAME = re.compile(r"made-[bcdfghjklmnpqrstvwxz2456789]{5}")
_RECORD_VERSION = re.compile(r"in record \(\d+\)")
_AGE = re.compile(r"(\d+[smhdy])+")
_LEFT_OUT = frozenset({"managedFields", "remainingItemCount"})
# Nobody here would take these away again.
_PROTECTION = ("kubernetes.io/pv-protection", "kubernetes.io/pvc-protection")
_VERSIONS = frozenset({"resourceVersion", "continue", "storageVersionHash"})


def play(kubeconfig: Path, steps: list[JsonObject]) -> list[JsonObject]:
    """Send the requests of a sequence; return one comparable answer for each."""
    config = yaml.safe_load(kubeconfig.read_text())
    address = urlsplit(config["clusters"][0]["cluster"]["server"])
    # The servers are started by the same test, on loopback.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(
        address.hostname or "", address.port, context=context, timeout=60
    )
    answers = []
    try:
        for step in steps:
            method, path = step["do"].split(" ", 1)
            body = step.get("body")
            text = body if isinstance(body, str) or body is None else json.dumps(body)
            headers = {
                "Authorization": "Bearer admintoken",
                "Accept": step.get("accept") or "application/json",
            }
            if text is not None:
                headers["Content-Type"] = step.get("type") or "application/json"
            for _ in range(_MOST_TRIES):
                connection.request(method, path, text, headers)
                response = connection.getresponse()
                content = response.read()
                if step.get("until") in (None, response.status):
                    break
                time.sleep(0.2)
            answer: JsonObject = {"do": step["do"], "code": response.status, "body": comparable(content)}
            warnings = response.headers.get_all("Warning")
            if warnings:
                answer["warnings"] = warnings
            answers.append(answer)
    finally:
        connection.close()
    return answers


def comparable(content: bytes) -> Json:
    """Return a body with what is random or a matter of time replaced."""
    try:
        return _stable(json.loads(content))
    except ValueError:
        return content.decode(errors="replace").strip()


def _stable(value: Json, key: str = "") -> Json:
    if isinstance(value, dict):
        if value.get("kind") == "Table":
            value = _stable_table(value)
        if value.get("kind") == "CustomResourceDefinition" and "spec" in value:
            # The status is a controller's in one server and the server's own in the other.
            value = {
                "kind": value["kind"],
                "metadata": {"name": value["metadata"]["name"]},
                "spec": value["spec"],
            }
        found = {name: _stable(item, name) for name, item in value.items() if name not in _LEFT_OUT}
        if found.get("finalizers") == []:
            del found["finalizers"]
        return found
    if isinstance(value, list):
        return [_stable(item) for item in value if item not in _PROTECTION]
    if isinstance(value, str):
        if key in _VERSIONS and value:
            return f"<{key}>"
        value = _MADE_NAME.sub("made-<random>", _UID.sub("<uid>", value))
        value = _RECORD_VERSION.sub("in record (<resourceVersion>)", value)
        return _TIME.sub(lambda found: found[0] if found[0] in _OWN_TIMES else "<time>", value)
    return value


def _stable_table(table: JsonObject) -> JsonObject:
    """Leave out the descriptions of columns, which are prose, and the ages in the cells."""
    columns = [{**column, "description": ""} for column in table.get("columnDefinitions") or ()]
    rows = [
        {
            **row,
            "cells": [
                "<age>" if isinstance(cell, str) and _AGE.fullmatch(cell) else cell for cell in row["cells"]
            ],
        }
        for row in table.get("rows") or ()
    ]
    return {**table, **({"columnDefinitions": columns} if columns else {}), "rows": rows}
