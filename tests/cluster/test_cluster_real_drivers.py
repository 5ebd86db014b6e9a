"""The CPU and network drivers on real kubelets with containerd: CPUs are pinned, interfaces move and come back."""

import pytest
from cluster_objects import TIMEOUT, pod_with_device
from cluster_setup import CHART

WORKSTATION = "workstation-1"
INTERFACES = ("nic0", "nic1")  # two ends of one cable


@pytest.fixture(scope="module")
def drivers(rig, objects):
    """Switch the two drivers on, on one node that has an interface to give away."""
    node = rig.nodes[0]
    node.run("ip", "link", "add", INTERFACES[0], "type", "veth", "peer", "name", INTERFACES[1])
    switches = [
        f"drivers.{name}.{value}" for name in ("cpu", "network") for value in ("enabled=true", SELECTED)
    ]
    words = [word for switch in switches for word in ("--set", switch)]
    rig.helm("upgrade", "dray", CHART, "-n", "dray-system", "--reuse-values", *words)
    for name in ("cpu", "network"):
        rig.kubectl("-n", "dray-system", "rollout", "status", f"daemonset/dray-driver-{name}", TIMEOUT)
        driver = {"cpu": "dra.cpu", "network": "dra.net"}[name]
        objects.until(lambda driver=driver: published(objects, driver), f"slices of {driver}")
    yield node
    off = [word for name in ("cpu", "network") for word in ("--set", f"drivers.{name}.enabled=false")]
    rig.helm("upgrade", "dray", CHART, "-n", "dray-system", "--reuse-values", *off)
    node.run("ip", "link", "delete", INTERFACES[0])
    # kubelet deletes the slices of a driver half a minute after it is gone; other tests compare slices.
    objects.until(
        lambda: not published(objects, "dra.cpu") and not published(objects, "dra.net"),
        "the slices of both drivers to be deleted",
    )


SELECTED = r"nodeSelector.kubernetes\.io/hostname=" + WORKSTATION


def published(objects, driver):
    return [
        entry
        for entry in objects.slices()
        if entry["spec"]["driver"] == driver and entry["spec"]["nodeName"] == WORKSTATION
    ]


def pod_of(name, device_class, command):
    template, pod = pod_with_device(name, device_class=device_class, node=WORKSTATION)
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", f"{command}; echo started; exec sleep 3600"]
    return template, pod


def test_a_container_runs_on_the_cpus_of_its_claim_and_on_no_others(objects, drivers):
    command = "env | grep DRAY_; echo ALLOWED=$(grep Cpus_allowed_list /proc/self/status | cut -f2)"
    objects.apply(*pod_of("pinned", "dra.cpu", command))
    found = objects.until(lambda: objects.environment("pinned"), "the pod with CPUs")
    cpusets = [value for name, value in found.items() if name.startswith("DRAY_CPUSET_")]
    assert cpusets and found["ALLOWED"] == ",".join(cpusets), found
    objects.remove_pod("pinned")


def test_an_interface_moves_into_the_pod_and_comes_back(objects, drivers):
    objects.apply(*pod_of("wired", "dra.net", "echo FOUND=$(ls /sys/class/net | grep ^nic)"))
    found = objects.until(lambda: objects.environment("wired"), "the pod with an interface")
    assert found["FOUND"] in INTERFACES
    assert f" {found['FOUND']}" not in drivers.run("ip", "-o", "link")
    objects.remove_pod("wired")
    objects.until(
        lambda: f" {found['FOUND']}" in drivers.run("ip", "-o", "link"), "the interface to come back"
    )
