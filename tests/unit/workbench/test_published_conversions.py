"""Published device-plugin manifests: labels of clouds, texts with manifests, values of the wrong kind, ComputeDomains."""

from textwrap import dedent

import pytest
import yaml

from dray.drivers.hardware import device_classes, load_profile
from dray.sim.hardware import hardware_snapshot
from dray.workbench.conversion import convert_objects
from dray.workbench.lint import lint
from dray.workbench.workload_pods import templates_of


def pod(resource="nvidia.com/gpu", **spec):
    container = {"name": "main", "image": "busybox", "resources": {"limits": {resource: "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [container], **spec},
    }


def request_of(conversion):
    (template, _) = conversion.objects
    return template["spec"]["spec"]["devices"]["requests"][0]


def test_a_label_that_a_cloud_sets_stays_without_being_a_loss():
    selector = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    conversion = convert_objects([pod(nodeSelector=dict(selector))])
    assert conversion.lost == []
    assert conversion.objects[1]["spec"]["nodeSelector"] == selector
    assert any("the cloud sets it" in note for note in conversion.notes)


def test_a_label_of_feature_discovery_without_counterpart_is_still_a_loss():
    conversion = convert_objects([pod(nodeSelector={"nvidia.com/gpu.machine": "DGX"})])
    assert len(conversion.lost) == 1


@pytest.mark.parametrize(
    ("resource", "device_class"),
    [
        ("vpc.amazonaws.com/efa", "dra.net"),
        ("intel.com/gpu", "gpu.intel.com"),
        ("intel.com/qat", "qat.intel.com"),
        ("huawei.com/Ascend310P", "npu-ascend310p.project-hami.io"),
    ],
)
def test_resources_with_a_modelled_driver_become_claims(resource, device_class):
    conversion = convert_objects([pod(resource)])
    assert conversion.lost == []
    assert request_of(conversion)["exactly"]["deviceClassName"] == device_class
    assert device_class in {found.metadata.name for found in device_classes()}


def test_a_converted_request_for_efa_finds_its_devices():
    cluster = hardware_snapshot([(load_profile("eks-p4d"), 1)])
    text = yaml.safe_dump_all(convert_objects([pod("vpc.amazonaws.com/efa")]).objects)
    assert [
        f for f in lint({"f.yaml": text.encode()}, against=cluster).findings if f.severity != "info"
    ] == []


def test_a_manifest_inside_a_text_is_told():
    inner = yaml.safe_dump(pod())
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w"}}
    workflow["spec"] = {"templates": [{"name": "t", "resource": {"action": "create", "manifest": inner}}]}
    (loss,) = convert_objects([workflow]).lost
    assert loss.startswith("nvidia.com/gpu stays at spec.templates[0].resource.manifest")


def test_a_text_that_names_a_resource_without_asking_for_it_is_no_loss():
    settings = "sharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n"
    settings_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m"},
        "data": {"any": settings},
    }
    assert convert_objects([settings_map]).lost == []


def test_names_with_a_slash_that_are_no_resources_are_no_loss():
    network = {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "n"},
    }
    constraint = {"matchAttribute": "gpu.intel.com/pciRoot"}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
    claim["spec"] = {"devices": {"requests": [], "constraints": [constraint]}}
    assert convert_objects([network, claim]).lost == []


PLACEHOLDER = "${VALUES}"


@pytest.mark.parametrize(
    "spec",
    [
        {"tolerations": PLACEHOLDER},
        {"tolerations": [PLACEHOLDER]},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": PLACEHOLDER}}},
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PLACEHOLDER]}}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": PLACEHOLDER}]
                    }
                }
            }
        },
    ],
)
def test_a_placeholder_where_a_list_belongs_does_not_keep_a_pod_from_being_converted(spec):
    conversion = convert_objects([pod(**spec)])
    assert conversion.changed == 1


def test_a_list_of_claims_that_is_no_list_is_told_and_nothing_changes():
    before = pod(resourceClaims=PLACEHOLDER)
    conversion = convert_objects([before])
    assert conversion.objects == [before]
    assert any("spec.resourceClaims is not a list" in loss for loss in conversion.lost)


DOMAIN = """\
    apiVersion: resource.nvidia.com/v1beta1
    kind: ComputeDomain
    metadata: {name: d}
    spec: {numNodes: 1, channel: {resourceClaimTemplate: {name: train-channel}}}
    ---
    apiVersion: resource.k8s.io/v1
    kind: ResourceClaimTemplate
    metadata: {name: train-channels}
    spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
    ---
    apiVersion: v1
    kind: Pod
    metadata: {name: p}
    spec:
      resourceClaims: [{name: c, resourceClaimTemplateName: train-channel}]
      containers: [{name: m, image: i, resources: {claims: [{name: c, request: channel}]}}]
    """


@pytest.mark.parametrize("profile", ["", "gb200-tray"])
def test_the_template_of_a_compute_domain_exists(profile):
    cluster = hardware_snapshot([(load_profile(profile), 1)]) if profile else None
    found = lint({"f.yaml": dedent(DOMAIN).encode()}, against=cluster).findings
    assert [(each.code, each.severity) for each in found] == [("not-checked", "info")]


def test_a_wrong_request_of_a_domains_channel_is_found():
    text = dedent(DOMAIN).replace("request: channel", "request: channels")
    assert "unknown-request" in [each.code for each in lint({"f.yaml": text.encode()}).findings]


@pytest.mark.parametrize("spec", [None, "text", {"channel": []}, {"channel": {}}])
def test_a_compute_domain_that_names_no_template_makes_none(spec):
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "d"},
        "spec": spec,
    }
    assert templates_of(domain) == []
