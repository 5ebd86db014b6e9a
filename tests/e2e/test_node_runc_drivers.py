"""CPUs and network interfaces in real containers: runc, real cgroups, real network namespaces. Needs root and runc."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from node_builders import NODE, container, eventually, pod, pod_path
from small_api import SmallApi

from dray.client.resources import PODS
from dray.driver import Settings, serving_driver
from dray.drivers.cpu import CpuDriver
from dray.drivers.hardware.cpus import CAPACITY
from dray.drivers.network import NetworkDriver
from dray.node import AgentSettings, running_agent

RUNC = shutil.which("runc") or str(Path.home() / ".cache/dray/peers/runc")
pytestmark = [
    pytest.mark.root,
    pytest.mark.heavy,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not Path(RUNC).exists(), reason="the program runc is not on this machine"),
]
CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/work"
STATUS = "grep Cpus_allowed_list /proc/self/status"


class Cluster:
    """One node with one driver; `runtime` is runc or process."""

    def __init__(self, folder, runtime):
        self.api = SmallApi()
        self.folder = folder
        self.runtime = runtime

    @contextlib.asynccontextmanager
    async def up(self, driver):
        settings = AgentSettings(NODE, self.folder, self.runtime, cdi_dirs=[self.folder / "cdi"])
        driver_settings = Settings(node_name=NODE, kubelet_dir=self.folder, cdi_dir=self.folder / "cdi")
        async with (
            running_agent(self.api.client(), settings) as agent,
            serving_driver(driver, self.api.client(), driver_settings),
        ):
            await eventually(agent.plugins.drivers)
            yield agent

    def run(self, script, driver, device, *, refers=True, lists=True, config=None, **result):
        """Create a pod whose claim `work` has one device; unless it `lists` the claim, it has a network of its own."""
        claims = [{"name": "work"}] if refers else []
        stored = pod(
            "reader",
            claims=("work",) if lists else (),
            containers=[{**container(script=script, claims=claims), "image": "host"}],
        )
        if not lists:
            stored["metadata"]["annotations"] = {"dray.dev/own-network": "true"}
        uid = self.api.put(pod_path(), stored)["metadata"]["uid"]
        allocated = {"request": "it", "driver": driver, "pool": NODE, "device": device, **result}
        devices = {"results": [allocated]}
        if config is not None:
            opaque = {"driver": driver, "parameters": config}
            devices["config"] = [{"source": "FromClaim", "opaque": opaque}]
        claim = {
            "metadata": {"namespace": "default", "name": "work", "uid": "claim-uid"},
            "spec": {"devices": {"requests": [{"name": "it", "exactly": {"deviceClassName": "c"}}]}},
            "status": {
                "allocation": {"devices": devices},
                "reservedFor": [{"resource": "pods", "name": "reader", "uid": uid}],
            },
        }
        self.api.put(CLAIM, claim)
        return uid

    def log(self):
        paths = sorted(self.folder.glob("logs/default_reader_*/main/*.log"))
        lines = [line for path in paths for line in path.read_text().splitlines(keepends=True)]
        return "".join(line.split(" ", 3)[3] for line in lines)

    def waiting(self):
        status = self.api.objects.get(pod_path(), {}).get("status", {})
        return status.get("containerStatuses", [{}])[0].get("state", {}).get("waiting", {}).get("message", "")

    async def delete(self):
        await self.api.client().delete(PODS, "reader", "default", grace_seconds=1)
        await eventually(lambda: pod_path() not in self.api.objects, what="the pod's end")


@pytest.fixture
def cluster(monkeypatch, request):
    monkeypatch.setenv("PATH", f"{Path(RUNC).parent}:{os.environ['PATH']}")
    folder = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    yield Cluster(folder, getattr(request, "param", "runc"))
    shutil.rmtree(folder, ignore_errors=True)


def ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check).stdout


@pytest.fixture
def link():
    ip("link", "add", "draynic0", "type", "veth", "peer", "name", "draynic1")
    yield "draynic0"
    ip("link", "del", "draynic0", check=False)


# --- CPUs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", ["runc", "process"], indirect=True)
async def test_a_container_runs_on_its_cpus_only(cluster):
    driver = CpuDriver(cluster.folder / "plugins/dray-cpu")
    device = driver.discover()[0].devices[0].name
    async with cluster.up(driver) as agent:
        uid = cluster.run(
            f"{STATUS}; (sh -c '{STATUS}'); sleep 600", "dra.cpu", device,
            shareID="9fc2c7a6-5f0b-4f3c-8a76-29d3a5a2a1a1", consumedCapacity={CAPACITY: "1"},
        )  # fmt: skip
        await eventually(lambda: cluster.log().count("Cpus_allowed_list") == 2 or cluster.waiting())
        first, second = [line.split()[1] for line in cluster.log().splitlines()]
        assert first == second
        assert first.isdecimal()  # one CPU, not a range
        if cluster.runtime == "runc":
            # What is started later from outside is bound, too: the cgroup holds it, not only its first process.
            from dray.node.runtime import ContainerId

            later = await agent.pods.runtime.run_in(ContainerId(uid, "main", 0), ["sh", "-c", STATUS], 10)
            assert later.output.split()[1].decode() == first
        await cluster.delete()


async def test_a_container_does_not_start_while_its_driver_is_away(cluster, monkeypatch):
    driver = CpuDriver(cluster.folder / "plugins/dray-cpu")

    async def away():
        await asyncio.Event().wait()

    driver.run_beside = away
    driver._hooks.install()
    script = driver._hooks._folder / "hook.sh"
    script.write_text(script.read_text().replace("-gt 1000", "-gt 5"))
    async with cluster.up(driver):
        device = driver.discover()[0].devices[0].name
        cluster.run(STATUS, "dra.cpu", device, shareID="9fc2c7a6-5f0b-4f3c-8a76-29d3a5a2a1a1")
        await eventually(lambda: "does its pod run on this node?" in cluster.log())
        assert "Cpus_allowed_list" not in cluster.log()
        await cluster.delete()


# --- network interfaces -----------------------------------------------------------------------


@pytest.mark.parametrize("refers", [True, False])
async def test_an_interface_moves_into_the_pod_and_comes_back(cluster, link, refers):
    driver = NetworkDriver(
        state=cluster.folder / "plugins/dray-network", pins=cluster.folder / "pins", addresses=dict
    )
    config = {"interface": {"name": "net1", "addresses": ["10.99.1.2/24"], "mtu": 1400}}
    look = (
        "ip -br addr show net1"
        if refers
        else "until ip -br addr show net1 2>/dev/null | grep 10; do sleep 0.1; done"
    )
    async with cluster.up(driver):
        cluster.run(
            f"{look}; cat /sys/class/net/net1/mtu; ls /sys/class/net; sleep 600",
            "dra.net",
            link,
            config=config,
            refers=refers,
        )
        await eventually(lambda: "net1\n" in cluster.log() or cluster.waiting())
        assert "10.99.1.2/24" in cluster.log()
        assert "1400" in cluster.log()
        assert "eth0" not in cluster.log()
        assert link not in ip("-br", "link")
        await cluster.delete()
        await eventually(lambda: link in ip("-br", "link"))
        assert "mtu 1500" in ip("link", "show", link)
        assert not list((cluster.folder / "pins").iterdir())
        await eventually(lambda: not list((cluster.folder / "networks").iterdir()))


@pytest.mark.parametrize("cluster", ["process"], indirect=True)
async def test_a_runtime_without_network_namespaces_is_told_in_the_pods_status(cluster, link):
    driver = NetworkDriver(
        state=cluster.folder / "plugins/dray-network", pins=cluster.folder / "pins", addresses=dict
    )
    async with cluster.up(driver):
        cluster.run("sleep 600", "dra.net", link)
        await eventually(lambda: "shares the host's network" in cluster.waiting(), what=cluster.waiting())
        assert link in ip("-br", "link")
        await cluster.delete()


async def test_an_interface_comes_into_a_running_container_and_leaves_it_again(cluster, link):
    driver = NetworkDriver(
        state=cluster.folder / "plugins/dray-network", pins=cluster.folder / "pins", addresses=dict
    )

    async def change(generation, *claims):
        entries = [{"name": each, "resourceClaimName": each} for each in claims]
        body = {"metadata": {"generation": generation}, "spec": {"resourceClaims": entries}}
        await cluster.api.client().patch(PODS, "reader", body, "default")

    def status():
        return cluster.api.objects[pod_path()].get("status", {})

    def last_look():
        return cluster.log().rpartition("look")[2].split()

    async with cluster.up(driver):
        config = {"interface": {"name": "net1", "addresses": ["10.99.1.2/24"]}}
        script = "while sleep 0.1; do echo look $(ip -br addr) end; done"
        cluster.run(script, "dra.net", link, config=config, refers=False, lists=False)
        await eventually(lambda: "end" in last_look(), what=cluster.waiting())
        assert "net1" not in cluster.log()
        await change(2, "work")
        await eventually(lambda: "10.99.1.2/24" in last_look())
        await eventually(lambda: status().get("observedGeneration") == 2)
        assert link not in ip("-br", "link")
        await change(3)
        await eventually(lambda: "end" in last_look() and "10.99.1.2/24" not in last_look())
        await eventually(lambda: status().get("observedGeneration") == 3)
        assert link in ip("-br", "link")
        assert status()["containerStatuses"][0]["restartCount"] == 0
        assert not list((cluster.folder / "pins").iterdir())
        await cluster.delete()
