"""`dray convert`: what was counted becomes a claim, and what cannot be said is said so."""

import json
from textwrap import dedent

import pytest
import yaml

from dray.cli.main import main
from dray.drivers.hardware import load_profile
from dray.sim.hardware import hardware_snapshot
from dray.workbench.conversion import convert_objects
from dray.workbench.lint import lint

PRODUCT = 'device.attributes["gpu.nvidia.com"].productName.replace(" ", "-")'


def pod(*containers, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {"containers": list(containers), **spec},
    }


def container(name="main", *, requests=None, **limits):
    resources = {"limits": limits} | ({"requests": requests} if requests else {})
    return {"name": name, "image": "cuda", "resources": resources}


def gpus(name="main", count=1, resource="nvidia.com/gpu"):
    return container(name, **{resource: count})


def convert(*objects, **options):
    """Convert, and make sure that the result is at least valid."""
    conversion = convert_objects(objects, **options)
    text = "---\n".join(yaml.safe_dump(obj) for obj in conversion.objects)
    errors = [f.text() for f in lint({"out": text.encode()}).findings if f.severity == "error"]
    assert errors == []
    return conversion


def one(*objects, **options):
    """Return the requests and the pod of a conversion of one pod."""
    conversion = convert(*objects, **options)
    template = next(obj for obj in conversion.objects if obj["kind"] == "ResourceClaimTemplate")
    return template["spec"]["spec"]["devices"]["requests"], conversion.objects[-1], conversion


def test_a_counted_gpu_becomes_a_claim_of_the_pod():
    requests, changed, conversion = one(pod(gpus(count=2)))
    assert requests == [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]
    assert changed["spec"]["resourceClaims"] == [
        {"name": "devices", "resourceClaimTemplateName": "train-devices"}
    ]
    assert changed["spec"]["containers"][0]["resources"] == {
        "claims": [{"name": "devices", "request": "gpu"}]
    }
    assert conversion.objects[0]["metadata"] == {"name": "train-devices", "namespace": "team"}
    assert conversion.lost == []


def test_the_result_runs_on_the_hardware_it_was_made_for():
    conversion = convert(pod(gpus(count=2), nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}))
    text = "---\n".join(yaml.safe_dump(obj) for obj in conversion.objects)
    cluster = hardware_snapshot([(load_profile("dgx-h100"), 1)])
    assert lint({"out": text.encode()}, against=cluster).findings == []


def test_other_resources_stay_and_empty_ones_go():
    requests, changed, _ = one(pod(container(**{"nvidia.com/gpu": 1, "cpu": "4", "memory": "8Gi"})))
    assert changed["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "4", "memory": "8Gi"}
    assert requests[0]["exactly"] == {"deviceClassName": "gpu.nvidia.com"}


def test_requests_equal_to_limits_are_counted_once():
    requests, changed, _ = one(pod(container(requests={"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu": "1"})))
    assert len(requests) == 1
    assert "limits" not in changed["spec"]["containers"][0]["resources"]


def test_requests_that_differ_from_limits_are_noted():
    _, _, conversion = one(pod(container(requests={"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu": "2"})))
    assert any("differ" in note for note in conversion.notes)


@pytest.mark.parametrize(
    ("resource", "device_class", "selector"),
    [
        (
            "nvidia.com/mig-1g.5gb",
            "mig.nvidia.com",
            'device.attributes["gpu.nvidia.com"].profile == "1g.5gb"',
        ),
        (
            "nvidia.com/mig-1g.10gb.me",
            "mig.nvidia.com",
            'device.attributes["gpu.nvidia.com"].profile == "1g.10gb+me"',
        ),
        ("amd.com/gpu", "gpu.amd.com", None),
        (
            "amd.com/cpx_nps4",
            "gpu.amd.com",
            'device.attributes["gpu.amd.com"].partitionProfile == "cpx_nps4"',
        ),
        ("google.com/tpu", "tpu.google.com", None),
        ("gpu.intel.com/xe", "gpu.intel.com", 'device.attributes["gpu.intel.com"].driver == "xe"'),
        ("habana.ai/gaudi", "gaudi.intel.com", None),
        (
            "qat.intel.com/dc",
            "qat.intel.com",
            'device.attributes["qat.intel.com"].services.contains("dc")',
        ),
    ],
)
def test_each_vendors_resource_becomes_its_class_and_selector(resource, device_class, selector):
    requests, _, _ = one(pod(gpus(resource=resource)))
    exactly = requests[0]["exactly"]
    assert exactly["deviceClassName"] == device_class
    found = [entry["cel"]["expression"] for entry in exactly.get("selectors", [])]
    assert found == ([selector] if selector else [])


def test_every_container_has_a_request_of_its_own():
    requests, changed, _ = one(pod(gpus("a", 1), gpus("b", 2)))
    assert [(r["name"], r["exactly"].get("count", 1)) for r in requests] == [("a-gpu", 1), ("b-gpu", 2)]
    uses = [c["resources"]["claims"][0]["request"] for c in changed["spec"]["containers"]]
    assert uses == ["a-gpu", "b-gpu"]


def test_two_resources_of_one_container_are_two_requests():
    requests, changed, _ = one(pod(container(**{"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 1})))
    assert [r["name"] for r in requests] == ["gpu", "mig"]
    assert len(changed["spec"]["containers"][0]["resources"]["claims"]) == 2


def test_an_init_container_shares_the_devices_of_a_container():
    requests, changed, conversion = one(pod(gpus("main", 2), initContainers=[gpus("warm", 1)]))
    assert [r["name"] for r in requests] == ["gpu"]
    assert changed["spec"]["initContainers"][0]["resources"]["claims"] == [
        {"name": "devices", "request": "gpu"}
    ]
    assert any("warm asked for 1" in note for note in conversion.notes)


def test_an_init_container_that_needs_more_has_its_own_request():
    requests, _, conversion = one(pod(gpus("main", 1), initContainers=[gpus("warm", 4)]))
    assert [(r["name"], r["exactly"].get("count", 1)) for r in requests] == [("warm-gpu", 4), ("gpu", 1)]
    assert any("holds both" in note for note in conversion.notes)


def test_a_sidecar_keeps_devices_of_its_own():
    sidecar = {**gpus("agent"), "restartPolicy": "Always"}
    requests, _, _ = one(pod(gpus("main"), initContainers=[sidecar]))
    assert [r["name"] for r in requests] == ["agent-gpu", "main-gpu"]


@pytest.mark.parametrize("kind", ["Deployment", "Job", "DaemonSet", "StatefulSet", "ReplicaSet"])
def test_workloads_are_converted_inside_their_template(kind):
    group = "batch/v1" if kind == "Job" else "apps/v1"
    workload = {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": "serve"},
        "spec": {"template": {"spec": {"containers": [gpus()], "restartPolicy": "Never"}}},
    }
    conversion = convert_objects([workload])
    template, changed = conversion.objects
    assert template["metadata"] == {"name": "serve-devices"}
    inner = changed["spec"]["template"]["spec"]
    assert inner["resourceClaims"][0]["resourceClaimTemplateName"] == "serve-devices"


def test_custom_resources_with_several_templates_get_a_claim_template_each():
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p"},
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"template": {"spec": {"containers": [gpus()]}}},
                "Worker": {"template": {"spec": {"containers": [gpus(count=8)]}}},
            }
        },
    }
    conversion = convert(job)
    assert [obj["metadata"]["name"] for obj in conversion.objects] == ["p-devices-1", "p-devices-2", "p"]


# --- labels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "value", "expression"),
    [
        (
            "nvidia.com/gpu.product",
            "NVIDIA-A100-SXM4-40GB",
            f'{PRODUCT} == "NVIDIA-A100-SXM4-40GB"',
        ),
        (
            "nvidia.com/gpu.family",
            "hopper",
            'device.attributes["gpu.nvidia.com"].architecture.lowerAscii() == "hopper"',
        ),
        (
            "nvidia.com/gpu.compute.major",
            "9",
            'device.attributes["gpu.nvidia.com"].cudaComputeCapability.major() == 9',
        ),
    ],
)
def test_node_selectors_on_gpu_labels_become_selectors(label, value, expression):
    requests, changed, conversion = one(pod(gpus(), nodeSelector={label: value, "zone": "a"}))
    assert requests[0]["exactly"]["selectors"] == [{"cel": {"expression": expression}}]
    assert changed["spec"]["nodeSelector"] == {"zone": "a"}
    assert conversion.lost == []


def affinity(*terms, preferred=()):
    required = {"nodeSelectorTerms": [{"matchExpressions": list(term)} for term in terms]}
    return {
        "nodeAffinity": {
            **({"requiredDuringSchedulingIgnoredDuringExecution": required} if terms else {}),
            **({"preferredDuringSchedulingIgnoredDuringExecution": list(preferred)} if preferred else {}),
        }
    }


def condition(key, operator, *values):
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def test_affinities_on_gpu_labels_become_selectors_and_the_rest_stays():
    term = [
        condition("nvidia.com/gpu.memory", "Gt", "40000"),
        condition("nvidia.com/gpu.product", "In", "A", "B"),
        condition("nvidia.com/gpu.present", "Exists"),
        condition("zone", "In", "a"),
    ]
    requests, changed, conversion = one(pod(gpus(), affinity=affinity(term)))
    assert [entry["cel"]["expression"] for entry in requests[0]["exactly"]["selectors"]] == [
        'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40000Mi")) > 0',
        f'{PRODUCT} in ["A", "B"]',
    ]
    left = changed["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert left["nodeSelectorTerms"] == [{"matchExpressions": [condition("zone", "In", "a")]}]
    assert conversion.lost == []


def test_alternative_terms_that_can_be_said_become_one_selector():
    terms = [
        [condition("nvidia.com/gpu.product", "In", "A")],
        [
            condition("nvidia.com/gpu.product", "In", "B"),
            condition("nvidia.com/gpu.memory", "Gt", "1"),
        ],
    ]
    requests, changed, _ = one(pod(gpus(), affinity=affinity(*terms)))
    (selector,) = requests[0]["exactly"]["selectors"]
    assert selector["cel"]["expression"].startswith(f'{PRODUCT} == "A" || (')
    assert "affinity" not in changed["spec"]


def test_alternative_terms_that_cannot_be_said_stay_whole():
    terms = [[condition("nvidia.com/gpu.product", "In", "A")], [condition("zone", "In", "b")]]
    before = affinity(*terms)
    requests, changed, conversion = one(pod(gpus(), affinity=before))
    assert changed["spec"]["affinity"] == before
    assert "selectors" not in requests[0]["exactly"]
    assert len(conversion.lost) == 1


def test_preferences_and_unknown_labels_are_reported_as_not_carried_over():
    preferred = [
        {"weight": 1, "preference": {"matchExpressions": [condition("nvidia.com/gpu.product", "In", "A")]}}
    ]
    _, changed, conversion = one(
        pod(gpus(), nodeSelector={"nvidia.com/gpu.count": "8"}, affinity=affinity(preferred=preferred))
    )
    assert changed["spec"]["nodeSelector"] == {"nvidia.com/gpu.count": "8"}
    assert len(conversion.lost) == 2


def test_labels_of_a_vendor_whose_devices_are_not_asked_for_stay():
    _, changed, _ = one(
        pod(gpus(resource="amd.com/gpu"), nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"})
    )
    assert changed["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_tolerations_stay_and_are_explained():
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    _, changed, conversion = one(pod(gpus(), tolerations=tolerations))
    assert changed["spec"]["tolerations"] == tolerations
    assert any("node taints" in note for note in conversion.notes)
    _, _, conversion = one(pod(gpus()))
    assert any("add a toleration" in note for note in conversion.notes)


# --- what has no counterpart ------------------------------------------------------------------------


def test_unknown_resources_stay_and_are_reported():
    conversion = convert_objects([pod(gpus(resource="example.com/npu"))])
    assert conversion.changed == 0
    assert conversion.objects == [pod(gpus(resource="example.com/npu"))]
    assert "name one with --map" in conversion.lost[0]


def test_mapped_resources_use_the_given_class():
    requests, _, _ = one(pod(gpus(resource="example.com/npu")), mapped={"example.com/npu": "npu.example.com"})
    assert requests == [{"name": "npu", "exactly": {"deviceClassName": "npu.example.com"}}]


def test_hami_shares_become_capacity_requests():
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
    requests, _, _ = one(pod(container(**limits)))
    exactly = requests[0]["exactly"]
    assert exactly["deviceClassName"] == "hami-core-gpu.project-hami.io"
    assert exactly["capacity"] == {"requests": {"memory": "3000Mi", "cores": "30"}}


def test_quotas_count_devices_of_the_class_too():
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "8", "pods": "10"}},
    }
    conversion = convert(quota)
    hard = conversion.objects[0]["spec"]["hard"]
    assert hard["gpu.nvidia.com.deviceclass.resource.k8s.io/devices"] == "8"
    assert hard["requests.nvidia.com/gpu"] == "8"


def test_classes_are_written_when_the_cluster_lacks_them():
    assert [o["kind"] for o in convert(pod(gpus()), known_classes=frozenset()).objects] == [
        "DeviceClass",
        "ResourceClaimTemplate",
        "Pod",
    ]
    kinds = [o["kind"] for o in convert(pod(gpus()), known_classes=frozenset({"gpu.nvidia.com"})).objects]
    assert kinds == ["ResourceClaimTemplate", "Pod"]


def test_converting_twice_changes_nothing_more():
    first = convert(pod(gpus(count=2))).objects
    assert convert(*first).objects == first


# --- the command --------------------------------------------------------------------------------------


def test_the_command_writes_yaml_with_notes_as_comments(tmp_path, capsys):
    path = tmp_path / "pod.yaml"
    path.write_text(
        dedent(
            """\
            apiVersion: v1
            kind: Pod
            metadata: {name: p}
            spec:
              containers:
              - name: main
                image: x
                command: ["sh", "-c", "echo a\\necho b"]
                resources: {limits: {nvidia.com/gpu: 1, cpu: 0.5}}
            """
        )
    )
    assert main(["convert", str(path)]) == 0
    captured = capsys.readouterr()
    template, changed = yaml.safe_load_all(captured.out)
    assert template["kind"] == "ResourceClaimTemplate"
    assert changed["spec"]["containers"][0]["command"][2] == "echo a\necho b"
    assert changed["spec"]["containers"][0]["resources"]["limits"] == {"cpu": 0.5}
    assert "# note: if nodes are tainted" in captured.out
    assert "note: if nodes are tainted" in captured.err
    assert "1 pod template converted" in captured.err


def test_the_exit_code_tells_that_something_stayed(tmp_path, capsys):
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(pod(gpus(resource="example.com/npu"))))
    assert main(["convert", str(path), "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["lost"]
    assert main(["convert", str(path), "--map", "example.com/npu=npu.example.com"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["convert"], "nothing to convert"),
        (["convert", "/no/such"], "No such file"),
        (["convert", "--map", "nonsense", "/dev/null"], "RESOURCE=CLASS"),
    ],
)
def test_bad_usage_is_refused(arguments, words, capsys):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_broken_yaml_names_the_line(tmp_path, capsys):
    path = tmp_path / "x.yaml"
    path.write_text("a: [1\nb: 2")
    assert main(["convert", str(path)]) == 2
    assert "x.yaml:2" in capsys.readouterr().err
