"""Mistakes of published manifests: patches, values that nobody filled in, classes and attributes of former versions."""

import json
from textwrap import dedent

import pytest

from dray.drivers.hardware import load_profile
from dray.sim.hardware import hardware_snapshot
from dray.workbench.lint import lint


def check(text, against=None):
    return lint({"f.yaml": dedent(text).encode()}, against=against).findings


def codes(text, against=None):
    return [finding.code for finding in check(text, against)]


def claim(request):
    return f"""\
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaim
        metadata: {{name: c}}
        spec: {{devices: {{requests: [{{name: a, exactly: {{{request}}}}}]}}}}
        """


PATCH = """\
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: server}
    spec:
      template:
        spec:
          containers:
          - name: main
            resources: {limits: {nvidia.com/gpu: "1"}}
    """


def test_a_patch_of_kustomize_is_one_finding_with_the_way_out():
    (found,) = check(PATCH)
    assert (found.severity, found.code) == ("error", "patch")
    assert "kubectl kustomize" in found.hint


def test_what_else_is_wrong_in_a_patch_is_still_told():
    broken = PATCH.replace("- name: main", "- name: Main_")
    assert codes(broken) == ["patch", "invalid"]


def test_a_job_without_images_and_restart_policy_is_a_patch():
    job = PATCH.replace("apps/v1", "batch/v1").replace("Deployment", "Job")
    assert codes(job) == ["patch"]


@pytest.mark.parametrize(
    "part",
    [
        "selector: {matchLabels: {app: a}}\n      template:\n        metadata: {labels: {app: a}}",
        "template:\n        metadata: {labels: {app: a}}",
    ],
)
def test_a_whole_workload_that_lacks_one_thing_is_no_patch(part):
    text = PATCH.replace("template:", part)
    if "selector" not in part:
        text = text.replace("- name: main", "- name: main\n            image: busybox")
    assert "patch" not in codes(text)
    assert "invalid" in codes(text)


def test_a_pod_without_image_is_no_patch():
    assert codes("{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}") == [
        "invalid"
    ]


POD = "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{serviceAccountName: '{}', containers: [{{name: c, image: i}}]}}}}"


@pytest.mark.parametrize("name", ["$KSA_NAME", "V_KSA", "FILLED BY THE OPERATOR"])
def test_a_name_that_was_not_filled_in_is_called_a_template(name):
    (found,) = check(POD.format(name))
    assert found.code == "template"
    assert name in found.message


@pytest.mark.parametrize("name", ["Frontend", "my_account", "GPU", "$5"])
def test_a_name_that_is_merely_wrong_stays_invalid(name):
    assert codes(POD.format(name)) == ["invalid"]


def test_the_refusal_of_a_name_in_capitals_is_still_told():
    (found,) = check(POD.format("MY_ACCOUNT"))
    assert "lowercase RFC 1123" in found.message


def test_a_key_that_was_not_filled_in_is_a_template_too():
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i, resources: {limits: {FILLED_BY_OPERATOR: 1}}}]}}"
    assert set(codes(pod)) == {"template"}


def test_a_secret_with_a_shell_variable_is_a_template():
    secret = "{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {token: $HF_TOKEN}}"
    assert codes(secret) == ["template"]


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        ("<your-namespace>", ["template", "not-checked"]),
        ("Mine", ["invalid", "not-checked"]),
        ("mine", ["not-checked"]),
    ],
)
def test_names_of_unknown_kinds_are_judged(namespace, expected):
    text = f"{{apiVersion: example.com/v1, kind: Training, metadata: {{name: t, namespace: '{namespace}'}}}}"
    assert sorted(codes(text)) == sorted(expected)


def test_an_unknown_kind_without_name_is_not_judged():
    assert codes("{apiVersion: example.com/v1, kind: Configuration, metadata: {}}") == ["not-checked"]


def test_a_class_that_its_driver_gave_up_is_named_with_what_replaced_it():
    (found,) = check(claim("deviceClassName: imex.nvidia.com"))
    assert (found.severity, found.code) == ("warning", "dropped-class")
    assert "ComputeDomain" in found.hint


def test_a_given_up_class_that_the_manifests_make_themselves_is_fine():
    made = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: imex.nvidia.com}\nspec: {}\n---\n"
    assert codes(made + dedent(claim("deviceClassName: imex.nvidia.com"))) == []


def selecting(expression):
    return claim(f"deviceClassName: dra.net, selectors: [{{cel: {{expression: '{expression}'}}}}]")


def test_an_attribute_given_as_domain_is_found_without_a_cluster():
    (found,) = check(selecting('device.attributes["dra.net/rdma"].bool == true'))
    assert (found.severity, found.code) == ("warning", "cel-fails")
    assert '["dra.net"].rdma' in found.hint


@pytest.mark.parametrize(
    "expression",
    ['device.attributes["dra.net"].rdma', 'device.attributes["dra.net/rdma"].?bool.orValue(false)'],
)
def test_an_attribute_that_can_be_read_or_is_optional_is_no_wrong_domain(expression):
    assert "cel-fails" not in codes(selecting(expression))


def test_a_capacity_that_devices_lack_is_named_with_those_that_they_have():
    cluster = hardware_snapshot([(load_profile("example-shared"), 1)])
    wanted = "deviceClassName: gpu.example.com, capacity: {requests: {gpu.example.com/memory: 4Gi}}"
    (found,) = check(claim(wanted), cluster)
    assert found.code == "never-fits"
    assert "it has no capacity gpu.example.com/memory (it has: compute, memory)" in found.message


def test_a_config_of_a_former_version_is_told_the_one_of_today():
    config = {
        "driver": "gpu.nvidia.com",
        "parameters": {"apiVersion": "gpu.nvidia.com/v1alpha1", "kind": "GpuConfig"},
    }
    text = (
        claim("deviceClassName: gpu.nvidia.com").rstrip().removesuffix("}}")
        + f", config: [{{opaque: {json.dumps(config)}}}]}}}}\n"
    )
    (found,) = check(text)
    assert (found.code, found.hint) == ("opaque-config", "write apiVersion: resource.nvidia.com/v1beta1")


ADMIN = "deviceClassName: gpu.nvidia.com, adminAccess: true, allocationMode: All"


def test_admin_access_in_a_namespace_that_nobody_described_is_a_note():
    (found,) = check(claim(ADMIN))
    assert (found.severity, found.code) == ("info", "admin-namespace")
    assert "kubectl label namespace default" in found.hint


def test_admin_access_in_a_namespace_of_the_same_files_is_judged():
    space = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n---\n"
    assert codes(space + dedent(claim(ADMIN))) == ["admin-namespace"]
    labelled = space.replace(
        "name: default", "name: default, labels: {resource.kubernetes.io/admin-access: 'true'}"
    )
    assert codes(labelled + dedent(claim(ADMIN))) == []


def test_what_the_pages_of_kubernetes_io_ask_for_is_in_a_profile():
    cluster = hardware_snapshot([(load_profile("kubernetes-docs"), 1)])
    device_class = """\
        apiVersion: resource.k8s.io/v1
        kind: DeviceClass
        metadata: {name: documented}
        spec: {selectors: [{cel: {expression: device.driver == "driver.example.com"}}]}
        ---
        """
    gpu = 'device.attributes["driver.example.com"].type == "gpu" && device.capacity["driver.example.com"].memory == quantity("64Gi")'
    wanted = f"deviceClassName: documented, selectors: [{{cel: {{expression: '{gpu}'}}}}]"
    assert codes(dedent(device_class) + dedent(claim(wanted)), cluster) == []


def alternatives(*models):
    wanted = ", ".join(
        f"""{{name: m{number}, deviceClassName: gpu.example.com, selectors: [{{cel: {{expression: 'device.attributes["gpu.example.com"].model == "{model}"'}}}}]}}"""
        for number, model in enumerate(models)
    )
    return f"""\
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaim
        metadata: {{name: c}}
        spec: {{devices: {{requests: [{{name: a, firstAvailable: [{wanted}]}}]}}}}
        """


def test_an_alternative_that_matches_nothing_is_a_note_while_another_one_matches():
    cluster = hardware_snapshot([(load_profile("example"), 1)])
    found = check(alternatives("NEXT-GPU-MODEL", "LATEST-GPU-MODEL"), cluster)
    assert [(each.severity, each.code) for each in found] == [("info", "matches-nothing")]


def test_alternatives_none_of_which_matches_are_warnings():
    cluster = hardware_snapshot([(load_profile("example"), 1)])
    found = check(alternatives("NEXT-GPU-MODEL", "LAST-GPU-MODEL"), cluster)
    assert [(each.severity, each.code) for each in found] == [("warning", "matches-nothing")] * 2


def test_pods_that_ask_for_local_storage_fit_a_modelled_node():
    cluster = hardware_snapshot([(load_profile("example"), 1)])
    pod = POD.format("default").replace(
        "image: i", "image: i, resources: {requests: {ephemeral-storage: 100Gi}}"
    )
    assert codes(pod, cluster) == []
    assert codes(pod.replace("100Gi", "100Ti"), cluster) == ["never-fits"]
