"""Drivers written in Go beside ours, under the same kubelet and with dray's scheduler."""

import pytest
import yaml
from cluster_objects import simulated_devices

CLASSES = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: %s}
spec:
  selectors: [{cel: {expression: "device.driver == '%s'"}}]
"""


@pytest.fixture
def go_driver(rig, objects, request):
    """Start a Go program on the first node; returns the name of its driver and class."""
    program, driver, words = request.param
    node = rig.nodes[0]
    node.start(
        program,
        rig.peers / program,
        *[word.format(config=rig.credentials.kubeconfig("admin"), node=node.name) for word in words],
    )
    objects.apply(yaml.safe_load(CLASSES % (driver, driver)))
    try:
        objects.until(
            lambda: driver in {entry["spec"]["driver"] for entry in objects.slices()},
            f"slices of {driver}: {node.log(program)}",
        )
        yield driver
    finally:
        objects.kubectl("delete", "deviceclass", driver)
        node.stop(program)
        for entry in objects.slices():
            if entry["spec"]["driver"] == driver:
                objects.kubectl("delete", "resourceslice", entry["metadata"]["name"])
        for left in (node.folder / "cdi").glob(
            f"*{driver}*"
        ):  # a spec that the example driver writes at its start
            left.unlink()


PROGRAMS = [
    pytest.param(
        ("go-driver", "go.lamp.example.com", ("--kubeconfig={config}", "--node-name={node}")),
        id="the helper library of Kubernetes",
    ),
    pytest.param(
        (
            "dra-example-kubeletplugin",
            "gpu.example.com",
            (
                "--kubeconfig={config}",
                "--node-name={node}",
                "--cdi-root=/var/run/cdi",
                "--num-devices=4",
                "--device-profile=gpu",
            ),
        ),
        id="dra-example-driver",
    ),
]


@pytest.mark.parametrize("go_driver", PROGRAMS, indirect=True)
def test_a_go_driver_works_beside_ours_with_dray_as_scheduler(objects, go_driver):
    theirs = objects.run_pod("theirs", device_class=go_driver)
    ours = objects.run_pod("ours", node="workstation-1")
    assert any(name.startswith(("GO_LAMP", "GPU_DEVICE")) for name in theirs), theirs
    assert simulated_devices(ours)[0].startswith("gpu.nvidia.com/workstation-1/")
    objects.remove_pod("theirs", "ours")
    objects.until(lambda: not objects.items("resourceclaims"), "the claims to go")
