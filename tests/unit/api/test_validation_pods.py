"""Rules of pods: containers, claims, scheduling constraints, what may change, what a status may say."""

import time

import pytest
from validation_cases import ABSENT, changed, judged, judged_status, judged_update, pod

from dray.api.validation import Path, validate_binding
from dray.api.validation.pod_scheduling import validate_topology_spread

C, C_FIELD = "spec.containers.0", "spec.containers[0]"
CLAIMS_FIELD = f"{C_FIELD}.resources.claims"


def test_a_pod_is_fine():
    assert judged("Pod", pod()) == []


def spread(**fields):
    return [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **fields}]


def pod_term(**fields):
    term = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone", **fields}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


TERM_FIELD = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
NODE_TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def node_affinity(*terms):
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    }


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec", ABSENT, [("Required", "spec.containers")]),
        ("spec.containers", [], [("Required", "spec.containers")]),
        (f"{C}.name", "", [("Required", f"{C_FIELD}.name")]),
        (f"{C}.name", "Main", [("Invalid", f"{C_FIELD}.name")]),
        (f"{C}.name", "init", [("Duplicate", "spec.initContainers[0].name")]),
        (f"{C}.image", "", [("Required", f"{C_FIELD}.image")]),
        (f"{C}.image", " img", [("Invalid", f"{C_FIELD}.image")]),
        ("spec.containers.1", {"name": "main", "image": "i"}, [("Duplicate", "spec.containers[1].name")]),
        ("spec.restartPolicy", "Maybe", [("NotSupported", "spec.restartPolicy")]),
        ("spec.dnsPolicy", "Maybe", [("NotSupported", "spec.dnsPolicy")]),
        ("spec.nodeName", "Node", [("Invalid", "spec.nodeName")]),
        ("spec.activeDeadlineSeconds", 0, [("Invalid", "spec.activeDeadlineSeconds")]),
        ("spec.terminationGracePeriodSeconds", -1, [("Invalid", "spec.terminationGracePeriodSeconds")]),
        ("spec.nodeSelector", {"a b": "c"}, [("Invalid", "spec.nodeSelector")]),
        ("spec.hostname", "a.b", [("Invalid", "spec.hostname")]),
        ("spec.ephemeralContainers", [{"name": "e", "image": "i"}], [("Forbidden", "spec.ephemeralContainers")]),
        ("spec.schedulingGroup", {}, [("Invalid", "spec.schedulingGroup.podGroupName")]),
        ("spec.schedulingGroup", {"podGroupName": "g"}, []),
        # ports
        (f"{C}.ports.0.containerPort", 0, [("Required", f"{C_FIELD}.ports[0].containerPort")]),
        (f"{C}.ports.0.containerPort", 70000, [("Invalid", f"{C_FIELD}.ports[0].containerPort")]),
        (f"{C}.ports.0.protocol", "X", [("NotSupported", f"{C_FIELD}.ports[0].protocol")]),
        (f"{C}.ports.0.name", "HTTP", [("Invalid", f"{C_FIELD}.ports[0].name")] * 2),
        (f"{C}.ports", [{"containerPort": 1, "hostPort": 5}, {"containerPort": 2, "hostPort": 5}], [("Duplicate", f"{C_FIELD}.ports[1].hostPort")]),
        # environment and mounts
        (f"{C}.env.0.name", "", [("Required", f"{C_FIELD}.env[0].name")]),
        (f"{C}.env.0.valueFrom", {}, [("Invalid", f"{C_FIELD}.env[0].valueFrom")]),
        (f"{C}.env.0", {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}, [("Invalid", f"{C_FIELD}.env[0].valueFrom.fieldRef.fieldPath")]),
        (f"{C}.env.0", {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}, [("NotSupported", f"{C_FIELD}.env[0].valueFrom.fieldRef.fieldPath")]),
        (f"{C}.env.0", {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}, []),
        (f"{C}.env.0", {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}, [("Required", f"{C_FIELD}.env[0].valueFrom.secretKeyRef.key")]),
        (f"{C}.envFrom", [{}], [("Invalid", f"{C_FIELD}.envFrom")]),
        (f"{C}.volumeMounts.0.name", "w", [("NotFound", f"{C_FIELD}.volumeMounts[0].name")]),
        (f"{C}.volumeMounts.0.mountPath", "", [("Required", f"{C_FIELD}.volumeMounts[0].mountPath")]),
        (f"{C}.volumeMounts.1", {"name": "v", "mountPath": "/v"}, [("Invalid", f"{C_FIELD}.volumeMounts[1].mountPath")]),
        # probes
        (f"{C}.livenessProbe", {}, [("Required", f"{C_FIELD}.livenessProbe")]),
        (f"{C}.livenessProbe.successThreshold", 2, [("Invalid", f"{C_FIELD}.livenessProbe.successThreshold")]),
        (f"{C}.livenessProbe.periodSeconds", -1, [("Invalid", f"{C_FIELD}.livenessProbe.periodSeconds")]),
        (f"{C}.livenessProbe.tcpSocket", {"port": 1}, [("Forbidden", f"{C_FIELD}.livenessProbe.tcpSocket")]),
        (f"{C}.readinessProbe", {"httpGet": {"path": "/", "port": "x" * 16}}, [("Invalid", f"{C_FIELD}.readinessProbe.httpGet.port")]),
        ("spec.initContainers.0.livenessProbe", {"exec": {"command": ["x"]}}, [("Forbidden", "spec.initContainers[0].livenessProbe")]),
        ("spec.initContainers.0", {"name": "i", "image": "x", "restartPolicy": "Always", "livenessProbe": {"exec": {"command": ["x"]}}}, []),
        (f"{C}.securityContext", {"allowPrivilegeEscalation": False, "privileged": True}, [("Invalid", f"{C_FIELD}.securityContext")]),
        (f"{C}.securityContext", {"runAsUser": -1}, [("Invalid", f"{C_FIELD}.securityContext.runAsUser")]),
        # resources
        (f"{C}.resources.requests", {"cpu": "-1"}, [("Invalid", f"{C_FIELD}.resources.requests[cpu]")]),
        (f"{C}.resources", {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}, [("Invalid", f"{C_FIELD}.resources.requests")]),
        (f"{C}.resources", {"requests": {"a.test/gpu": "1"}}, [("Required", f"{C_FIELD}.resources.limits")]),
        (f"{C}.resources", {"limits": {"a.test/gpu": "500m"}}, [("Invalid", f"{C_FIELD}.resources.limits[a.test/gpu]")]),
        (f"{C}.resources", {"requests": {"a.test/gpu": "1"}, "limits": {"a.test/gpu": "2"}}, [("Invalid", f"{C_FIELD}.resources.requests")]),
        (f"{C}.resources", {"limits": {"gpus": "1"}}, [("Invalid", f"{C_FIELD}.resources.limits[gpus]")] * 2),
        (f"{C}.resources", {"limits": {"hugepages-2Mi": "2Mi"}}, [("Forbidden", f"{C_FIELD}.resources")]),
        # claims
        (f"{C}.resources.claims", [{}], [("Required", f"{CLAIMS_FIELD}[0]")]),
        (f"{C}.resources.claims", [{"name": "tpu"}], [("NotFound", f"{CLAIMS_FIELD}[0]")]),
        (f"{C}.resources.claims", [{"name": "gpu"}, {"name": "gpu"}], [("Duplicate", f"{CLAIMS_FIELD}[1]")]),
        (f"{C}.resources.claims", [{"name": "gpu"}, {"name": "gpu", "request": "a"}], [("Duplicate", f"{CLAIMS_FIELD}[1]")]),
        (f"{C}.resources.claims", [{"name": "gpu", "request": "a"}, {"name": "gpu"}], [("Duplicate", f"{CLAIMS_FIELD}[1]")]),
        (f"{C}.resources.claims", [{"name": "gpu", "request": "a"}, {"name": "gpu", "request": "b"}], []),
        (f"{C}.resources.claims", [{"name": "gpu", "request": "a/b"}], [("Invalid", f"{CLAIMS_FIELD}[0].request")]),
        ("spec.resourceClaims.0", {"name": "gpu"}, [("Invalid", "spec.resourceClaims[0]")]),
        ("spec.resourceClaims.0.resourceClaimTemplateName", "t", [("Invalid", "spec.resourceClaims[0]")]),
        ("spec.resourceClaims.0.resourceClaimName", "A", [("Invalid", "spec.resourceClaims[0].resourceClaimName")]),
        ("spec.resourceClaims.2", {"name": "nic", "resourceClaimName": "c"}, [("Duplicate", "spec.resourceClaims[2].name")]),
        ("spec.resourceClaims.2", {"name": "a.b", "resourceClaimName": "c"}, [("Invalid", "spec.resourceClaims[2].name")]),
        ("metadata|annotations|kubernetes.io/config.mirror", "x", [("Forbidden", "")]),
        # tolerations, affinity, spreading, gates
        ("spec.tolerations.0.key", "", []),
        ("spec.tolerations.0", {"key": ""}, [("Invalid", "spec.tolerations[0].operator")]),
        ("spec.tolerations.0.value", "v", [("Invalid", "spec.tolerations[0].operator")]),
        ("spec.tolerations.0.effect", "X", [("NotSupported", "spec.tolerations[0].effect")]),
        ("spec.tolerations.0.operator", "Foo", [("NotSupported", "spec.tolerations[0].operator")]),
        ("spec.tolerations.0.tolerationSeconds", 5, [("Invalid", "spec.tolerations[0].effect")]),
        ("spec.affinity", node_affinity(), [("Required", NODE_TERMS)]),
        ("spec.affinity", node_affinity({"matchExpressions": [{"key": "a", "operator": "In"}]}), [("Required", f"{NODE_TERMS}[0].matchExpressions[0].values")]),
        ("spec.affinity", node_affinity({"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]}), [("Invalid", f"{NODE_TERMS}[0].matchFields[0].key")]),
        ("spec.affinity", pod_term(topologyKey=""), [("Invalid", f"{TERM_FIELD}.topologyKey")] * 2 + [("Required", f"{TERM_FIELD}.topologyKey")]),
        ("spec.affinity", pod_term(namespaces=["A"]), [("Invalid", f"{TERM_FIELD}.namespace")]),
        ("spec.topologySpreadConstraints", spread(), []),
        ("spec.topologySpreadConstraints", spread(maxSkew=0), [("Invalid", "spec.topologySpreadConstraints[0].maxSkew")]),
        ("spec.topologySpreadConstraints", spread(whenUnsatisfiable="x"), [("NotSupported", "spec.topologySpreadConstraints[0].whenUnsatisfiable")]),
        ("spec.topologySpreadConstraints", spread() * 2, [("Duplicate", "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}")]),
        ("spec.topologySpreadConstraints", spread(whenUnsatisfiable="ScheduleAnyway", minDomains=1), [("Invalid", "spec.topologySpreadConstraints[0].minDomains")]),
        ("spec.schedulingGates", [{"name": "a b"}], [("Invalid", "spec.schedulingGates[0]")]),
        ("spec.schedulingGates", [{"name": "a"}] * 2, [("Duplicate", "spec.schedulingGates[1]")]),
        # volumes
        ("spec.volumes.1", {"name": "w"}, [("Required", "spec.volumes[1]")]),
        ("spec.volumes.1", {"name": "v", "emptyDir": {}}, [("Duplicate", "spec.volumes[1].name")]),
        ("spec.volumes.1", {"name": "w", "emptyDir": {}, "secret": {"secretName": "s"}}, [("Forbidden", "spec.volumes[1].secret")]),
        ("spec.volumes.1", {"name": "w", "secret": {}}, [("Required", "spec.volumes[1].secret.secretName")]),
        ("spec.volumes.1", {"name": "w", "hostPath": {"path": "/a/../b"}}, [("Invalid", "spec.volumes[1].hostPath.path")]),
        ("spec.volumes.1", {"name": "w", "configMap": {"name": "c", "defaultMode": 512}}, [("Invalid", "spec.volumes[1].configMap.defaultMode")]),
    ],
)  # fmt: skip
def test_a_broken_field_of_a_pod_is_named(path, value, expected):
    assert judged("Pod", changed(pod(), (path, value))) == sorted(expected)


def test_a_gated_pod_has_no_node():
    broken = changed(pod(), ("spec.schedulingGates", [{"name": "g"}]), ("spec.nodeName", "n"))
    assert judged("Pod", broken) == [("Forbidden", "spec.nodeName")]


class TestUpdates:
    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            (f"{C}.image", "other", []),
            ("spec.tolerations.1", {"key": "more", "operator": "Exists"}, []),
            ("spec.activeDeadlineSeconds", 5, []),
            ("spec.nodeName", "n", [("Forbidden", "spec")]),
            (f"{C}.name", "other", [("Forbidden", "spec")]),
            ("spec.resourceClaims.0.resourceClaimName", "d", [("Forbidden", "spec")]),
            ("spec.containers.1", {"name": "x", "image": "i"}, [("Forbidden", "spec.containers")]),
            ("spec.tolerations", [], [("Forbidden", "spec.tolerations")]),
            ("spec.schedulingGates", [{"name": "g"}], [("Forbidden", "spec.schedulingGates[0].name")]),
            ("spec.nodeSelector", {"a": "b"}, [("Forbidden", "spec")]),
        ],
    )
    def test_little_may_change(self, path, value, expected):
        assert judged_update("Pod", changed(pod(), (path, value)), pod()) == expected

    def test_tolerations_may_change_their_seconds(self):
        lasting = {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        old = changed(pod(), ("spec.tolerations", [lasting]))
        assert judged_update("Pod", changed(old, ("spec.tolerations.0.tolerationSeconds", 9)), old) == []

    def test_a_deadline_only_shrinks(self):
        old = changed(pod(), ("spec.activeDeadlineSeconds", 10))
        assert judged_update("Pod", changed(old, ("spec.activeDeadlineSeconds", 5)), old) == []
        for value in (11, None):
            new = changed(old, ("spec.activeDeadlineSeconds", value))
            assert judged_update("Pod", new, old) == [("Invalid", "spec.activeDeadlineSeconds")]

    def test_gates_may_be_removed(self):
        old = changed(pod(), ("spec.schedulingGates", [{"name": "g"}, {"name": "h"}]))
        assert judged_update("Pod", changed(old, ("spec.schedulingGates", [{"name": "h"}])), old) == []

    def test_a_gated_pod_may_narrow_its_nodes(self):
        term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
        old = changed(
            pod(),
            ("spec.schedulingGates", [{"name": "g"}]),
            ("spec.nodeSelector", {"a": "b"}),
            ("spec.affinity", node_affinity(term)),
        )
        assert judged_update("Pod", changed(old, ("spec.nodeSelector", {"a": "b", "c": "d"})), old) == []
        assert judged_update("Pod", changed(old, ("spec.nodeSelector", {"a": "x"})), old) == [
            ("Invalid", "spec.nodeSelector")
        ]
        narrower = {"matchExpressions": [*term["matchExpressions"], {"key": "b", "operator": "Exists"}]}
        assert judged_update("Pod", changed(old, ("spec.affinity", node_affinity(narrower))), old) == []
        assert judged_update("Pod", changed(old, ("spec.affinity", node_affinity(term, term))), old) == [
            ("Invalid", NODE_TERMS)
        ]


HEALTH, HEALTH_FIELD = (
    "status.containerStatuses.0.allocatedResourcesStatus.0",
    "status.containerStatuses[0].allocatedResourcesStatus[0]",
)
EXTENDED_FIELD = "status.extendedResourceClaimStatus"
NODE_CLAIM_FIELD = "status.nodeAllocatableResourceClaimStatuses[0]"


def running():
    health = {"name": "claim:gpu", "resources": [{"resourceID": "a", "health": "Healthy"}]}
    mapping = {"containerName": "main", "resourceName": "a.test/gpu", "requestName": "r"}
    status = {
        "phase": "Anything",
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}, {"name": "nic"}],
        "containerStatuses": [{"name": "main", "allocatedResourcesStatus": [health]}],
        "extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": [mapping]},
        "nodeAllocatableResourceClaimStatuses": [
            {
                "resourceClaimName": "c",
                "mapping": [{"name": "cpu", "quantity": "1"}],
                "overhead": [{"name": "cpu", "perPod": "1"}],
            }
        ],
    }
    wanting = changed(
        pod(),
        (f"{C}.resources.requests", {"a.test/gpu": "1"}),
        (f"{C}.resources.limits", {"a.test/gpu": "1"}),
    )
    return {**wanting, "status": status}


class TestStatus:
    def test_a_status_is_fine(self):
        assert judged_status("Pod", running(), pod()) == []

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("status.phase", "Whatever", []),
            ("status.podIP", "no address", []),
            ("status.conditions", [{"type": "a b"}], [("Invalid", "status.conditions[0].Type")]),
            ("status.nominatedNodeName", "Node", [("Invalid", "status.nominatedNodeName")]),
            ("status.resourceClaimStatuses.0.name", "tpu", [("Invalid", "status.resourceClaimStatuses[0].name")]),
            ("status.resourceClaimStatuses.1.name", "gpu", [("Duplicate", "status.resourceClaimStatuses[1].name")]),
            ("status.resourceClaimStatuses.0.resourceClaimName", "Bad", [("Invalid", "status.resourceClaimStatuses[0].resourceClaimName")]),
            (f"{HEALTH}.name", "claim:tpu", [("Invalid", f"{HEALTH_FIELD}.name")]),
            (f"{HEALTH}.name", "claim:nic/r", []),
            (f"{HEALTH}.name", "claim:nic", [("Invalid", f"{HEALTH_FIELD}.name")]),
            (f"{HEALTH}.name", "claim:x/r", []),
            (f"{HEALTH}.name", "a.test/gpu", []),
            (f"{HEALTH}.name", "a.test/tpu", [("Invalid", f"{HEALTH_FIELD}.name")]),
            (f"{HEALTH}.resources.0.health", "", [("NotSupported", f"{HEALTH_FIELD}.resources[0].health")]),
            (f"{HEALTH}.resources.0.message", "", [("Required", f"{HEALTH_FIELD}.resources[0].message")]),
            (f"{HEALTH}.resources.0.message", "x" * 1025, [("TooLong", f"{HEALTH_FIELD}.resources[0].message")]),
            (f"{HEALTH}.resources.1", {"resourceID": "a", "health": "Unknown"}, [("Duplicate", f"{HEALTH_FIELD}.resources[1].resourceID")]),
            ("status.extendedResourceClaimStatus.requestMappings", [], [("Required", f"{EXTENDED_FIELD}.requestMappings")]),
            ("status.extendedResourceClaimStatus.requestMappings.0.containerName", "none", [("Invalid", f"{EXTENDED_FIELD}.requestMappings[0].containerName")]),
            ("status.extendedResourceClaimStatus.requestMappings.0.resourceName", "x", [("Invalid", f"{EXTENDED_FIELD}.requestMappings[0].resourceName")]),
            ("status.extendedResourceClaimStatus.resourceClaimName", "", [("Required", f"{EXTENDED_FIELD}.resourceClaimName")]),
            ("status.nodeAllocatableResourceClaimStatuses.0.resourceClaimName", "z", [("Invalid", f"{NODE_CLAIM_FIELD}.resourceClaimName")]),
            ("status.nodeAllocatableResourceClaimStatuses.0.mapping.0.name", "pods", [("Invalid", f"{NODE_CLAIM_FIELD}.mapping[0].name")]),
            ("status.nodeAllocatableResourceClaimStatuses.0.mapping.0.quantity", "-1", [("Invalid", f"{NODE_CLAIM_FIELD}.mapping[0].quantity")]),
            ("status.nodeAllocatableResourceClaimStatuses.0.mapping.0.quantity", ABSENT, [("Required", f"{NODE_CLAIM_FIELD}.mapping[0].quantity")]),
            ("status.nodeAllocatableResourceClaimStatuses.0.overhead.0.perPod", ABSENT, [("Invalid", f"{NODE_CLAIM_FIELD}.overhead[0]")]),
        ],
    )  # fmt: skip
    def test_a_broken_field_of_a_pod_status_is_named(self, path, value, expected):
        assert judged_status("Pod", changed(running(), (path, value)), pod()) == sorted(expected)

    def test_a_container_that_ended_for_good_does_not_run_again(self):
        old = changed(
            pod(),
            ("spec.restartPolicy", "Never"),
            ("status.containerStatuses", [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]),
        )
        new = changed(old, ("status.containerStatuses.0.state", {"running": {}}))
        assert judged_status("Pod", new, old) == [("Forbidden", "status.containerStatuses[0].state")]
        assert judged_status("Pod", changed(new, ("spec.restartPolicy", "Always")), old) == []

    def test_a_bound_pod_takes_no_nomination(self):
        old = changed(pod(), ("spec.nodeName", "n"))
        assert judged_status("Pod", changed(old, ("status.nominatedNodeName", "m")), old) == [
            ("Forbidden", "status.nominatedNodeName")
        ]


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ({"kind": "Node", "name": "n"}, []),
        ({"name": "n"}, []),
        ({}, ["target.name"]),
        ({"kind": "Pod", "name": "n"}, ["target.kind"]),
        ({"name": "UP"}, ["target.name"]),
    ],
)
def test_a_binding_names_a_node(target, fields):
    assert [error.field for error in validate_binding({"target": target})] == fields


def test_many_spread_constraints_are_compared_once_each():
    constraints = [
        {"maxSkew": 1, "topologyKey": f"k{n}", "whenUnsatisfiable": "DoNotSchedule"} for n in range(20_000)
    ]
    began = time.process_time()
    assert validate_topology_spread(constraints, Path("spec")) == []
    found = validate_topology_spread([constraints[0], constraints[1], constraints[0]], Path("spec"))
    assert [problem.field for problem in found] == ["spec[0].{topologyKey, whenUnsatisfiable}"]
    assert time.process_time() - began < 5, "it took 14 s when each was compared with all after it"
