"""The examples of examples/ on real kubelets, with dray's scheduler, guard and drivers from the chart.

The two nodes have the names and the simulated hardware of two profiles, so an example that uses no other profile runs
unchanged but for two things: its pods name dray's scheduler, and images are never pulled.
"""

import asyncio
import sys

import example_runs as runs
import pytest
from cluster_setup import PATIENCE

from dray.client import Client
from dray.drivers.faults import FaultFile

PROFILES = {"workstation", "dgx-h100"}


def playable():
    """Return the examples that need no other hardware than the two nodes have."""
    return [name for name in runs.example_names() if set(runs.load_example(name).cluster) <= PROFILES]


class ClusterPlayer(runs.Player):
    """Plays an example on the real cluster."""

    def __init__(self, rig, *arguments):
        super().__init__(*arguments)
        self.machines = {node.name: node for node in rig.nodes}
        self.started = []
        self.rig = rig

    async def apply(self, objects):
        for obj in objects:
            for spec in pod_specs(obj):
                spec.setdefault("schedulerName", "dray")
                spec.setdefault("terminationGracePeriodSeconds", 1)
                for container in (*spec.get("initContainers", ()), *spec["containers"]):
                    container["imagePullPolicy"] = "Never"
        await super().apply(objects)

    async def do_run(self, what):
        """Start a driver of the example on its node."""
        node, name = self.machines[what["node"]], f"example-{self.example.name}"
        program = self.example.folder / what["program"]
        node.start(name, sys.executable, program, "--node-name", node.name,
                   environment={"KUBECONFIG": str(self.rig.credentials.kubeconfig("admin"))})  # fmt: skip
        self.started.append((node, name))

    def _fault_file(self, node, driver):
        return FaultFile(self.machines[node].folder / "kubelet/plugins/faults.yaml")

    async def _clean(self):
        for name in self.nodes:
            (self.machines[name].folder / "kubelet/plugins/faults.yaml").unlink(missing_ok=True)
        try:
            await super()._clean()
        finally:
            for node, name in self.started:
                node.stop(name)


def pod_specs(obj):
    """Return the pod specs in an object."""
    if obj["kind"] == "Pod":
        return [obj["spec"]]
    template = (obj.get("spec") or {}).get("template")
    return (
        [template["spec"]] if isinstance(template, dict) and "containers" in template.get("spec", {}) else []
    )


@pytest.mark.parametrize("name", playable())
def test_an_example_does_on_a_real_cluster_what_it_says(rig, objects, tmp_path, name):
    async def play():
        async with Client.connect(str(rig.credentials.kubeconfig("admin"))) as client:
            await ClusterPlayer(rig, runs.load_example(name), client, tmp_path, PATIENCE).play()

    asyncio.run(play())
