"""Pods inside custom kinds: found by shape, counted, converted, and never left behind in silence."""

import json

import pytest
import yaml

from dray.cli.main import main
from dray.sim.snapshot import SnapshotError
from dray.workbench.conversion import convert_objects
from dray.workbench.pod_templates import containers_of, pod_templates
from dray.workbench.workload_pods import pods_of


def container(resource="nvidia.com/gpu", count=1, **more):
    return {"name": "main", "image": "x", "resources": {"limits": {resource: count}}, **more}


def template(**spec):
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container()], **spec}}


def custom(api_version, kind, spec):
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}


RAY = custom(
    "ray.io/v1",
    "RayCluster",
    {
        "headGroupSpec": {"template": template()},
        "workerGroupSpecs": [{"replicas": 2, "numOfHosts": 3, "template": template()}],
    },
)
CASES = {
    "ray": (RAY, [1, 6]),
    "mpi": (
        custom("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": {"Worker": {"replicas": 4, "template": template()}}}),
        [4],
    ),
    "jobset": (
        custom(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 4, "template": template()}}}]},
        ),
        [8],
    ),
    "lws": (
        custom(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": template(), "workerTemplate": template()}},
        ),
        [2, 6],
    ),
    "kserve custom": (
        custom("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"minReplicas": 2, "containers": [container()]}}),
        [2],
    ),
    "knative": (custom("serving.knative.dev/v1", "Service", {"template": template()}), [1]),
    "unheard of": (custom("x.example.com/v1", "Thing", {"a": [{"b": {"podTemplate": template()}}]}), [1]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_pods_of_a_custom_kind_are_counted(name):
    obj, counts = CASES[name]
    pods = pods_of(obj)
    assert len(pods) == sum(counts)
    assert len({pod["metadata"]["name"] for pod in pods}) == len(pods)


@pytest.mark.parametrize("name", CASES)
def test_devices_of_a_custom_kind_are_converted_and_nothing_remains(name):
    obj, counts = CASES[name]
    conversion = convert_objects([obj])
    assert conversion.changed == len(counts)
    assert conversion.lost == []
    converted = conversion.objects[-1]
    for found in pod_templates(converted):
        assert found.spec["resourceClaims"]
        for _, each in containers_of(found.spec):
            assert each["resources"] == {"claims": [{"name": "devices", "request": "gpu"}]}


def test_the_only_container_of_a_kserve_model_is_converted():
    obj = custom(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {
            "predictor": {
                "model": {"modelFormat": {"name": "onnx"}, "resources": {"limits": {"nvidia.com/gpu": 2}}}
            }
        },
    )
    conversion = convert_objects([obj])
    assert conversion.lost == []
    predictor = conversion.objects[-1]["spec"]["predictor"]
    assert predictor["resourceClaims"][0]["resourceClaimTemplateName"] == "w-devices"
    assert predictor["model"]["resources"] == {"claims": [{"name": "devices", "request": "gpu"}]}


def test_a_step_of_argo_gets_its_claim_by_a_patch_of_the_pod():
    obj = custom(
        "argoproj.io/v1alpha1",
        "Workflow",
        {"templates": [{"name": "t", "container": container(), "podSpecPatch": "hostNetwork: true"}]},
    )
    conversion = convert_objects([obj])
    assert conversion.lost == []
    (step,) = conversion.objects[-1]["spec"]["templates"]
    patch = yaml.safe_load(step["podSpecPatch"])
    assert patch["hostNetwork"] is True
    assert patch["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": "w-devices"}]
    assert "limits" not in step["container"]["resources"]


def test_a_patch_with_parameters_is_left_alone_and_told():
    step = {"name": "t", "container": container(), "podSpecPatch": "nodeName: {{inputs.parameters.n}}"}
    conversion = convert_objects([custom("argoproj.io/v1alpha1", "Workflow", {"templates": [step]})])
    assert "podSpecPatch" in conversion.lost[0]


@pytest.mark.parametrize(
    ("obj", "place"),
    [
        (custom("kubevirt.io/v1", "VirtualMachine", {"template": {"spec": {"domain": {"devices": {"gpus": [
            {"name": "g", "deviceName": "nvidia.com/GV100GL_Tesla_V100"}]}}}}}), "deviceName"),
        (custom("kueue.x-k8s.io/v1beta1", "ClusterQueue", {"resourceGroups": [
            {"coveredResources": ["cpu", "nvidia.com/gpu"]}]}), "coveredResources[1]"),
        (custom("trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": {"resourcesPerNode": {
            "limits": {"nvidia.com/gpu": 4}}}}), "resourcesPerNode.limits"),
        (custom("x.example.com/v1", "Thing", {"resources": {"limits": {"habana.ai/gaudi": 1}}}), "spec.resources.limits"),
        (custom("x.example.com/v1", "Thing", {"resources": {"limits": {"aws.amazon.com/neuron": 1}}}), "neuron"),
    ],
)  # fmt: skip
def test_a_resource_that_remains_anywhere_is_told_and_is_not_success(obj, place, tmp_path, capsys):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(obj))
    assert main(["convert", str(path)]) == 1
    assert place in capsys.readouterr().err


def test_labels_taints_and_classes_do_not_request_anything():
    obj = custom(
        "x.example.com/v1",
        "Thing",
        {
            "nodeSelector": {"nvidia.com/gpu.present": "true", "nvidia.com/gpu": "true"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    )
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "c"},
        "spec": {"extendedResourceName": "nvidia.com/gpu"},
    }
    assert convert_objects([obj, device_class]).lost == []


@pytest.mark.parametrize(
    ("resource", "device_class", "words"),
    [
        ("rdma/hca_shared_devices_a", "dra.net", ".rdma == true"),
        (
            "intel.com/sriov_netdevice",
            "sriovnetwork.k8snetworkplumbingwg.io",
            '== "intel.com/sriov_netdevice"',
        ),
        ("openshift.io/radio_uplink", "sriovnetwork.k8snetworkplumbingwg.io", "openshift.io/radio_uplink"),
        ("intel.com/gaudi", "gaudi.intel.com", ""),
    ],
)
def test_names_that_a_site_chose_become_selectors_with_a_note(resource, device_class, words):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [container(resource)]},
    }
    conversion = convert_objects([pod])
    (request,) = conversion.objects[0]["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == device_class
    assert words in json.dumps(request).replace('\\"', '"')
    assert conversion.lost == []


def test_a_custom_workload_can_be_tried(tmp_path, capsys):
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [
            {"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}]}}},
    }  # fmt: skip
    worker = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"containers": [worker], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]}
    job = custom(
        "kubeflow.org/v1",
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": {"spec": spec}}}},
    )
    path = tmp_path / "m.json"
    path.write_text(json.dumps([claim, job]))
    assert main(["whatif", str(path), "--add-node", "dgx-h100:2"]) == 0
    assert "3 of 3 pods fit" in capsys.readouterr().out
    assert main(["whatif", str(path), "--add-node", "dgx-h100:1"]) == 1
    assert "2 of 3 pods fit" in capsys.readouterr().out


def test_absurd_numbers_of_pods_are_refused():
    with pytest.raises(SnapshotError, match="at most"):
        pods_of(custom("x.example.com/v1", "Thing", {"replicas": 10**9, "template": template()}))
    with pytest.raises(SnapshotError, match="whole number"):
        pods_of(custom("x.example.com/v1", "Thing", {"replicas": "many", "template": template()}))


def test_another_thing_that_is_called_like_a_number_of_copies_is_none():
    spec = {"replicas": 2, "parallelism": {"data": 16, "expert": True}, "template": {"containers": []}}
    spec["template"]["containers"] = [{"name": "main", "image": "i"}]
    assert len(pods_of(custom("serving.kserve.io/v1alpha1", "LLMInferenceService", spec))) == 2
