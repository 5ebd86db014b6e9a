"""The chart, installed with helm from the image that `make image` made, on real kubelets and containerd."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from cluster_objects import condition, devices_of, simulated_devices
from cluster_setup import CHART, IMAGE, VALUES

MEGABYTE = 1e6


def test_the_scheduler_runs_twice_and_one_leads(objects):
    pods = objects.until(lambda: schedulers(objects), "two schedulers that are ready")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"workstation-1", "dgx-h100-1"}
    lease = objects.get("lease", "dray-scheduler-dray", "-n", "dray-system")
    assert lease["spec"]["holderIdentity"]


def schedulers(objects):
    """Return the scheduler's pods once both are ready."""
    pods = objects.items("pods", "-n", "dray-system", "-l", "app.kubernetes.io/name=dray-scheduler")
    return pods if [condition(pod, "Ready") for pod in pods] == ["True", "True"] else None


def test_only_the_scheduler_that_leads_tells_who_holds_what(objects):
    def told():
        """Return what /metrics of each scheduler says: whether it leads, and whether it tells of devices."""
        paths = [
            f"/api/v1/namespaces/dray-system/pods/{pod['metadata']['name']}:10259/proxy/metrics"
            for pod in schedulers(objects) or ()
        ]
        texts = [objects.kubectl("get", "--raw", path) for path in paths]
        return [
            ("dray_scheduler_leading 1\n" in text, "kube_resourceslice_device_info{" in text)
            for text in texts
        ]

    # A lease changes hands at times: what is told must agree with who leads.
    objects.until(
        lambda: sorted(told()) == [(False, False), (True, True)], "one leader with series of devices"
    )


def test_each_driver_publishes_the_devices_of_its_own_node(objects):
    found = {(entry["spec"]["driver"], entry["spec"]["nodeName"]) for entry in objects.slices()}
    assert ("gpu.nvidia.com", "workstation-1") in found
    assert {("gpu.nvidia.com", "dgx-h100-1"), ("dra.net", "dgx-h100-1")} <= found


def test_a_pod_with_a_claim_finds_its_device_in_its_container(objects):
    found = simulated_devices(objects.run_pod("first", node="workstation-1"))
    assert found == [f"gpu.nvidia.com/{device}" for device in devices_of(objects.claim_of("first"))]
    assert found[0].startswith("gpu.nvidia.com/workstation-1/")
    objects.remove_pod("first")


def test_kube_scheduler_places_pods_on_the_same_devices(objects):
    assert simulated_devices(objects.run_pod("upstream", scheduler="default-scheduler"))
    objects.remove_pod("upstream")


def test_the_command_is_a_plugin_of_kubectl(rig, objects):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(rig.credentials.kubeconfig("admin"))}
    words = ["get", "devices", "--output", "json"]
    answers = [
        subprocess.run([*program, *words], capture_output=True, text=True, env=environment, check=True).stdout
        for program in (["dray"], [str(rig.peers / "kubectl"), "dray"])
    ]
    assert json.loads(answers[0]) == json.loads(answers[1])
    assert "workstation-1" in answers[0]


def test_programs_run_without_rights_and_cannot_write_their_file_system(rig, objects):
    for component in ("scheduler", "guard"):
        [pod, *_] = objects.items(
            "pods", "-n", "dray-system", "-l", f"app.kubernetes.io/name=dray-{component}"
        )
        node = next(each for each in rig.nodes if each.name == pod["spec"]["nodeName"])
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        [process] = [
            line.split()[1] for line in node.ctr("tasks", "ls").splitlines() if line.startswith(container)
        ]
        status = node.run("cat", f"/proc/{process}/status")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        assert fields["Uid"].split() == ["65532"] * 4
        assert int(fields["CapEff"], 16) == 0
        assert fields["NoNewPrivs"].strip() == "1"


def test_nothing_that_the_programs_need_is_forbidden_to_them(objects):
    for component in ("scheduler", "guard", "driver-workstation", "driver-dgx"):
        log = objects.kubectl(
            "logs", "-n", "dray-system", "-l", f"app.kubernetes.io/name=dray-{component}", "--tail=-1"
        )
        assert "orbidden" not in log, log


# --- the image -------------------------------------------------------------------------


def blobs():
    with tarfile.open(IMAGE) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}


def test_the_image_is_small_labelled_and_lists_what_is_in_it():
    files = blobs()
    [entry] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files["blobs/sha256/" + entry["digest"].removeprefix("sha256:")])
    config = json.loads(files["blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")])
    assert IMAGE.stat().st_size < 60 * MEGABYTE
    names, size = set(), 0
    for layer in manifest["layers"]:
        path = IMAGE.parent / "layer"
        path.write_bytes(files["blobs/sha256/" + layer["digest"].removeprefix("sha256:")])
        with tarfile.open(path) as opened:
            for member in opened:
                names.add(member.name)
                size += member.size
        path.unlink()
    assert size < 150 * MEGABYTE
    assert not {"bin/sh", "usr/bin/sh", "usr/bin/dpkg", "usr/bin/apt-get", "usr/bin/pip3"} & names
    assert {"usr/local/bin/dray", "usr/local/bin/kubectl-dray", "usr/share/sbom/dray.spdx.json"} <= names
    assert any(name.endswith("dist-packages/pynvml.py") for name in names)  # the extra `nvidia`
    assert any(name.endswith("dist-packages/pyroute2") for name in names)  # the extra `network`
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Labels"]["org.opencontainers.image.revision"]
    bill = json.loads((IMAGE.parent / "dray.spdx.json").read_text())
    listed = {package["name"] for package in bill["packages"]}
    assert {"libc6", "python3.11-minimal", "grpcio", "dray-dra", "nvidia-ml-py", "pyroute2"} <= listed
    # Every package of Debian brings its licence.
    debian = {
        package["name"]
        for package in bill["packages"]
        if "pkg:deb" in package["externalRefs"][0]["referenceLocator"]
    }
    licensed = {
        name.split("/")[3] for name in names if name.startswith("usr/share/doc/") and name.count("/") >= 3
    }
    assert not {name for name in debian if name not in licensed and f"usr/share/doc/{name}" not in names}


def test_values_of_the_tests_are_values_of_the_chart(rig):
    rig.helm("lint", "--strict", CHART, "--values", VALUES)
