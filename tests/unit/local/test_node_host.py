"""Nodes that come and go in one process: what starts, what a restart finds, and that a removal leaves nothing."""

import asyncio

import pytest
from small_api import SmallApi

from dray.client.resources import CLUSTER_ROLES, LEASES, NODES, SLICES
from dray.drivers.hardware import load_profile, pool_slices
from dray.local import credentials
from dray.local.node_host import NodeHost
from dray.local.node_plans import Places
from dray.sim.hardware import hardware_node
from dray.sim.machines import CREATING, DELETING, FAILED, GROUP_LABEL, RUNNING

DRIVER = "gpu.nvidia.com"


def parts(name, group="ws"):
    profile = load_profile("workstation")
    node = hardware_node(profile, name)
    node.metadata.labels[GROUP_LABEL] = group
    return node, pool_slices(profile.pools(name))


class Hosting:
    """A host whose nodes are objects only; `broken` nodes end with an error before they join."""

    def __init__(self, folder, monkeypatch):
        self.api = SmallApi()
        self.folder = folder
        self.broken = set()
        self.plans = {}
        self.now = 0.0
        for name in ("write_node_kubeconfig", "write_driver_kubeconfig"):
            monkeypatch.setattr(credentials, name, lambda _data, _user, path: path.write_text("secret"))
        self.host = self.new_host()

    def new_host(self):
        places = Places(self.folder / "nodes", self.folder / "autoscaled")
        return NodeHost(
            self.api.client(), self.folder, places, "none", clock=lambda: self.now, host=self.be_node
        )

    async def be_node(self, plan, places, ready):
        if plan.name in self.broken:
            raise OSError("address in use")
        self.plans[plan.name] = plan
        places.node_root(plan.name).mkdir(parents=True, exist_ok=True)
        if f"{NODES.path()}/{plan.name}" not in self.api.objects:
            self.api.put(
                f"{NODES.path()}/{plan.name}",
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"labels": plan.labels},
                    "spec": {"providerID": plan.provider_id},
                },
            )
            self.api.put(f"{LEASES.path('kube-node-lease')}/{plan.name}", {"spec": {}})
            self.api.put(f"{SLICES.path()}/slice-{plan.name}", {"spec": {"nodeName": plan.name}})
        ready.release()
        try:
            await asyncio.Event().wait()
        finally:
            del self.plans[plan.name]

    def states(self):
        return {each.name: each.state for each in self.host.instances()}

    async def until(self, states):
        async with asyncio.timeout(20):
            while self.states() != states:
                await asyncio.sleep(0)

    def left(self):
        found = [
            path
            for path in self.api.objects
            if path.split("/")[-2] in ("nodes", "leases", "resourceslices") or "kube-node-lease" in path
        ]
        return found + [str(path) for place in ("nodes", "autoscaled") for path in (self.folder / place).glob("*") if "driver-" not in path.name]  # fmt: skip


@pytest.fixture
async def hosting(tmp_path, monkeypatch):
    found = Hosting(tmp_path, monkeypatch)
    yield found
    await found.host.close()


@pytest.mark.asyncio
async def test_a_machine_joins_with_the_id_and_labels_of_its_group(hosting):
    await hosting.host.start("a", "ws", *parts("a"))
    assert hosting.states() == {"a": CREATING}
    await hosting.until({"a": RUNNING})
    node = hosting.api.objects[f"{NODES.path()}/a"]
    assert node["spec"]["providerID"] == "dray://ws/a"
    assert node["metadata"]["labels"][GROUP_LABEL] == "ws"
    assert [device.name for device in hosting.plans["a"].profile.pools("a")[0].devices] == ["gpu-0", "gpu-1"]
    # The driver has a role, once.
    assert f"{CLUSTER_ROLES.path()}/dray:driver:{DRIVER}" in hosting.api.objects
    await hosting.host.start("b", "ws", *parts("b"))
    await hosting.until({"a": RUNNING, "b": RUNNING})
    created = [each for each in hosting.api.requests if each == f"POST {CLUSTER_ROLES.path()}"]
    assert len(created) == 1


@pytest.mark.asyncio
async def test_what_is_removed_leaves_nothing(hosting):
    await hosting.host.start("a", "ws", *parts("a"))
    await hosting.until({"a": RUNNING})
    assert len(hosting.left()) == 5
    await hosting.host.stop("a")
    assert hosting.states() == {"a": DELETING}
    await hosting.until({})
    assert hosting.left() == []
    assert hosting.plans == {}
    await hosting.host.stop("a")  # gone already


@pytest.mark.asyncio
async def test_a_machine_that_has_not_joined_can_be_removed(hosting):
    await hosting.host.start("a", "ws", *parts("a"))
    await hosting.host.stop("a")
    await hosting.until({})
    assert hosting.left() == []


@pytest.mark.asyncio
async def test_two_machines_never_have_one_name(hosting):
    await hosting.host.start("a", "ws", *parts("a"))
    with pytest.raises(ValueError, match="a machine a already"):
        await hosting.host.start("a", "ws", *parts("a"))


@pytest.mark.asyncio
async def test_a_machine_that_ends_by_itself_has_failed_and_can_be_removed(hosting):
    hosting.broken.add("a")
    await hosting.host.start("a", "ws", *parts("a"))
    await hosting.until({"a": FAILED})
    assert hosting.host.instances()[0].message == "address in use"
    await hosting.host.stop("a")
    await hosting.until({})
    assert hosting.left() == []


@pytest.mark.asyncio
async def test_a_new_process_goes_on_with_the_nodes_and_finishes_removals(hosting):
    for name in ("kept", "going", "unknown"):
        await hosting.host.start(
            name, "old" if name == "unknown" else "ws", *parts(name, "old" if name == "unknown" else "ws")
        )
    await hosting.until(dict.fromkeys(("kept", "going", "unknown"), RUNNING))
    await hosting.host.close()  # as a kill: nothing is written
    assert hosting.plans == {}
    hosting.api.objects[f"{NODES.path()}/going"]["metadata"]["annotations"] = {"dray.dev/removal": "true"}
    (hosting.folder / "autoscaled" / "node-half.kubeconfig").write_text("made before its node")
    hosting.host = hosting.new_host()
    await hosting.host.adopt(lambda group, name: parts(name) if group == "ws" else None)
    await hosting.until({"kept": RUNNING})
    names = {path.rsplit("/", 1)[1] for path in hosting.api.objects if path.startswith(NODES.path())}
    assert names == {"kept", "unknown"}
    assert not (hosting.folder / "autoscaled" / "node-half.kubeconfig").exists()
    assert not (hosting.folder / "nodes" / "going").exists()


@pytest.mark.asyncio
async def test_a_removal_is_tried_again_while_the_server_is_away(hosting, monkeypatch):
    monkeypatch.setattr("dray.local.node_host._RETRY_SECONDS", 0)
    await hosting.host.start("a", "ws", *parts("a"))
    await hosting.until({"a": RUNNING})
    hosting.api.is_away = True
    await hosting.host.stop("a")
    for _ in range(50):
        await asyncio.sleep(0)
    assert hosting.states() == {"a": DELETING}
    hosting.api.is_away = False
    await hosting.until({})
    assert hosting.left() == []
