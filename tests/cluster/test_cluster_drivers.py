"""Drivers under a real kubelet: restarts, crashes, upgrades, health, drains, and what is left on a node afterwards."""

import json
from datetime import UTC, datetime

import pytest
import yaml
from cluster_objects import TIMEOUT, cdi_files, condition, devices_of, simulated_devices
from cluster_setup import CHART

from dray.api.times import parse_time

WORKSTATION = "workstation-1"


@pytest.fixture
def node(rig):
    return rig.nodes[0]


@pytest.fixture
def pod(objects, request):
    """A pod that holds a device before the test does something to its driver, and is removed after it."""
    name = "holder"
    objects.run_pod(name, node=WORKSTATION)
    yield name
    objects.kubectl("delete", "pod", "--all", "--wait=true", TIMEOUT)


def new_pod_runs(objects, name="later"):
    """Whether a new pod on the same node gets a device."""
    found = objects.run_pod(name, node=WORKSTATION)
    [device] = simulated_devices(found)
    assert device.startswith(f"gpu.nvidia.com/{WORKSTATION}/")
    objects.remove_pod(name)


def driver_process(node, pod):
    """Return the process of a driver's container, as its node sees it."""
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    [process] = [
        line.split()[1] for line in node.ctr("tasks", "ls").splitlines() if line.startswith(container)
    ]
    return process


# --- prepare and unprepare -------------------------------------------------------------


def test_unprepare_after_deletion_leaves_no_cdi_spec_and_no_claim(objects, node, pod):
    claim = objects.claim_of(pod)
    uid = claim["metadata"]["uid"]
    assert cdi_files(node, uid)
    objects.remove_pod(pod)
    objects.until(lambda: not cdi_files(node, uid), "the CDI spec to go")
    objects.until(lambda: not objects.items("resourceclaims"), "the claim to go")
    assert uid not in "".join(
        path.read_text(errors="replace") for path in node.folder.glob("kubelet/plugins/*/*.json")
    )


# --- the driver ends -------------------------------------------------------------------


def test_a_driver_pod_that_is_deleted_comes_back_and_the_running_pod_does_not_notice(objects, pod):
    before = objects.container_id(pod)
    [driver] = objects.driver_pods("workstation")
    objects.kubectl("delete", "pod", "-n", "dray-system", driver["metadata"]["name"], "--wait=true")
    objects.until(lambda: running(objects, but=driver), "a new driver pod")
    new_pod_runs(objects)
    assert objects.container_id(pod) == before


def test_a_driver_killed_with_signal_9_starts_again_and_serves(objects, node, pod):
    before = objects.container_id(pod)
    [driver] = objects.driver_pods("workstation")
    node.run("kill", "-9", driver_process(node, driver))
    objects.until(lambda: restarts(objects) > restarts_of(driver), "the driver's container to start again")
    new_pod_runs(objects)
    assert objects.container_id(pod) == before


def test_a_driver_pod_deleted_by_force_is_replaced_and_the_claim_is_unprepared_by_the_new_one(
    objects, node, pod
):
    uid = objects.claim_of(pod)["metadata"]["uid"]
    [driver] = objects.driver_pods("workstation")
    objects.kubectl(
        "delete", "pod", "-n", "dray-system", driver["metadata"]["name"], "--force", "--grace-period=0"
    )
    objects.until(lambda: running(objects, but=driver), "a new driver pod")
    objects.remove_pod(pod)
    objects.until(lambda: not cdi_files(node, uid), "the new driver to unprepare what the old one prepared")


def test_an_upgrade_runs_two_instances_side_by_side_and_devices_stay_published(rig, objects, pod):
    before, [driver] = objects.container_id(pod), objects.driver_pods("workstation")
    uids = {entry["metadata"]["uid"] for entry in objects.slices()}
    rig.helm(
        "upgrade",
        "dray",
        CHART,
        "-n",
        "dray-system",
        "--reuse-values",
        "--set",
        "drivers.workstation.env.TURN=two",
    )
    slices = set()

    def is_done():
        found, published = objects.driver_pods("workstation"), objects.slices()
        slices.update(entry["metadata"]["uid"] for entry in published)
        nodes = {entry["spec"]["nodeName"] for entry in published}
        assert WORKSTATION in nodes, "the devices of the node vanished during the upgrade"
        return len(found) == 1 and found[0]["metadata"]["uid"] != driver["metadata"]["uid"]

    objects.until(is_done, "the new driver alone")
    [new] = objects.driver_pods("workstation")
    # By the controller's own record: on a busy machine both pods may be there only between two looks.
    created = objects.until(lambda: event_of(objects, "SuccessfulCreate", new), "the event of the new pod")
    deleted = objects.until(lambda: event_of(objects, "SuccessfulDelete", driver), "the event of the old pod")
    assert created < deleted, "the old pod ended before the new one was ready"
    assert slices == uids, "slices were replaced"
    new_pod_runs(objects)
    assert objects.container_id(pod) == before


def event_of(objects, reason, pod):
    """Return when the DaemonSet's controller created or deleted a pod: the revision of its event, 0 while there is none."""
    events = objects.items("events", "-n", "dray-system", "--field-selector", f"reason={reason}")
    found = [
        int(each["metadata"]["resourceVersion"])
        for each in events
        if pod["metadata"]["name"] in each["message"]
    ]
    return min(found, default=0)


def running(objects, but):
    """Return the driver's pods that run, if there is one and it is not the given one."""
    found = [pod for pod in objects.driver_pods("workstation") if condition(pod, "Ready") == "True"]
    return [pod for pod in found if pod["metadata"]["uid"] != but["metadata"]["uid"]]


def restarts_of(pod):
    return pod["status"]["containerStatuses"][0]["restartCount"]


def restarts(objects):
    return max((restarts_of(pod) for pod in objects.driver_pods("workstation")), default=0)


def renewed(objects):
    """Return when the node's lease was renewed last."""
    lease = objects.get("lease", WORKSTATION, "-n", "kube-node-lease")
    return parse_time(lease["spec"]["renewTime"])


# --- kubelet and the node --------------------------------------------------------------


def test_a_kubelet_that_restarts_finds_the_driver_and_leaves_the_pod_alone(rig, objects, node, pod):
    before = objects.container_id(pod)
    node.stop("kubelet")
    stopped = datetime.now(UTC)
    node.start_kubelet()
    # What the API says of the node until then is what the kubelet before said.
    objects.until(lambda: renewed(objects) > stopped, "a sign of life of the new kubelet")
    objects.until(lambda: rig.is_ready(node), "the node to be ready")
    new_pod_runs(objects)
    assert objects.container_id(pod) == before
    assert objects.get("pod", pod)["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_claim_whose_pod_went_while_kubelet_was_down_is_unprepared_after_it_comes_back(objects, node, pod):
    uid = objects.claim_of(pod)["metadata"]["uid"]
    node.stop("kubelet")
    objects.remove_pod(pod, wait=False)
    assert cdi_files(node, uid)
    node.start_kubelet()
    objects.until(lambda: not cdi_files(node, uid), "the CDI spec to go")
    objects.until(lambda: not objects.items("resourceclaims"), "the claim to go")


def test_a_drained_node_keeps_its_driver_and_its_pods_go_to_the_other_node(rig, objects, pod):
    deployment = yaml.safe_load(
        """
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: service}
        spec:
          replicas: 2
          selector: {matchLabels: {app: service}}
          template:
            metadata: {labels: {app: service}}
            spec:
              schedulerName: dray
              terminationGracePeriodSeconds: 1
              containers:
              - name: main
                image: busybox
                imagePullPolicy: Never
                command: [sleep, "3600"]
                resources: {claims: [{name: device}]}
              resourceClaims: [{name: device, resourceClaimTemplateName: 1-gpu.nvidia.com}]
        """
    )
    objects.apply(deployment)
    objects.kubectl("rollout", "status", "deployment/service", TIMEOUT)
    try:
        objects.kubectl(
            "drain", WORKSTATION, "--ignore-daemonsets", "--delete-emptydir-data", "--force", TIMEOUT
        )
        assert objects.driver_pods("workstation"), "a driver must stay to unprepare"
        objects.kubectl("rollout", "status", "deployment/service", TIMEOUT)
        pods = objects.items("pods", "-l", "app=service")
        where = {each["spec"]["nodeName"] for each in pods if "deletionTimestamp" not in each["metadata"]}
        assert where == {"dgx-h100-1"}
        objects.until(lambda: objects.guard_judges(), "a guard on the other node to judge")
    finally:
        objects.kubectl("uncordon", WORKSTATION)
        objects.kubectl("delete", "deployment", "service", "--wait=true")
    objects.until(lambda: not objects.items("pods"), "the pods to go")
    objects.kubectl("-n", "dray-system", "rollout", "status", "deployment/dray-scheduler", TIMEOUT)


# --- health ----------------------------------------------------------------------------


def test_a_device_that_fails_is_shown_in_the_pods_status_and_recovers(objects, node, pod):
    [device] = devices_of(objects.claim_of(pod))
    faults = node.folder / "kubelet/plugins/faults.yaml"

    def health():
        status = objects.get("pod", pod)["status"]["containerStatuses"][0]
        return [
            entry["health"]
            for found in status.get("allocatedResourcesStatus", ())
            for entry in found["resources"]
        ]

    objects.until(lambda: health() == ["Healthy"], "the device to be shown as healthy")
    faults.write_text(
        json.dumps({"devices": {device.rpartition("/")[2]: {"health": "Unhealthy", "message": "too hot"}}})
    )
    try:
        objects.until(lambda: health() == ["Unhealthy"], "the device to be shown as unhealthy")
    finally:
        faults.unlink()
    objects.until(lambda: health() == ["Healthy"], "the device to be shown as healthy again")
