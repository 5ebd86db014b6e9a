"""deploy/kubernetes on a real kube-apiserver: accepted as it is, and its rights suffice and are few."""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import peers
import pytest
from clusters import Cluster
from test_controllers_claims import SOON
from test_controllers_cluster import gone, rule

from dray.client import Client, Forbidden, Invalid
from dray.client import resources as kinds

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def deployed(kubernetes_peer):
    kubectl = peers.kubernetes_binaries() / "kubectl"
    if not kubectl.exists():
        pytest.skip("kubectl is not built: run tools/peers/build")
    for folder in (DEPLOY, DEPLOY / "controllers", DEPLOY / "driver"):
        command = [kubectl, "--kubeconfig", kubernetes_peer.kubeconfig, "apply", "-k", folder]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert answer.returncode == 0, answer.stderr
    return kubernetes_peer


async def kubeconfig_of(cluster, account, namespace, **bound):
    """Write a kubeconfig with a token of a service account."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound}
    answer = await cluster.client.create(
        kinds.SERVICE_ACCOUNTS, body, namespace, name=account, subresource="token"
    )
    text = Path(cluster.peer.kubeconfig).read_text()
    file = cluster.peer.processes.folder / f"{account}-{cluster.number}.kubeconfig"
    file.write_text(text.replace("token: admintoken", f"token: {answer['status']['token']}"))
    return file


@contextlib.asynccontextmanager
async def running(cluster, name, *arguments):
    """Run a command of dray and make sure that nothing was forbidden to it."""
    processes = cluster.peer.processes
    process = processes.start(name, sys.executable, "-m", "dray", *arguments)
    try:
        yield
    finally:
        process.terminate()
        process.wait(SOON)
        processes._running.remove((name, process))
    assert "orbidden" not in processes.log(name), processes.log(name)


async def test_the_schedulers_rights_suffice(deployed):
    async with Cluster(deployed) as cluster:
        cluster.scheduler_name = "dray"
        await cluster.devices(await cluster.node("a"), "g0", "g1", "g2")
        resource = f"example.com/gpu-{cluster.number}"
        gpu = await cluster.device_class(extendedResourceName=resource)
        await cluster.template("gpu", {"name": "r", "deviceClassName": gpu})
        await cluster.template("many", {"name": "r", "deviceClassName": gpu, "count": 9})
        await cluster.claim("shared", {"name": "r", "deviceClassName": gpu})
        config = await kubeconfig_of(cluster, "dray-scheduler", "dray-system")
        flags = ("--leader-elect", "--leader-namespace", "dray-system", "-vv")
        async with running(cluster, "rbac-scheduler", "scheduler", "--kubeconfig", config, *flags):
            await cluster.pod("plain", templates=["gpu"])
            await cluster.pod("one", claims=["shared"])
            await cluster.pod("two", claims=["shared"])
            await cluster.pod("extended", resources={"requests": {resource: "1"}, "limits": {resource: "1"}})
            for name in ("plain", "one", "two", "extended"):
                assert await cluster.bound(name, SOON) == "a"
            # Refusals are written down, lower priorities evicted: those are rights as well.
            await cluster.pod("too-much", templates=["many"])
            await cluster.refused("too-much")

            async def told():
                events = (await cluster.client.list(kinds.EVENTS, cluster.namespace)).items
                return any(each["involvedObject"]["name"] == "too-much" for each in events)

            await cluster.until(told, "an event", SOON)
            await cluster.pod("urgent", templates=["gpu"], priorityClassName=await urgent(cluster))
            assert await cluster.bound("urgent", SOON) == "a"
        async with Client.connect(config) as client:
            for verb in (client.list(kinds.SECRETS), client.list(kinds.CONFIG_MAPS, "kube-system")):
                with pytest.raises(Forbidden):
                    await verb
            with pytest.raises(Forbidden):
                await client.delete(kinds.NODES, f"a-{cluster.number}")


async def urgent(cluster):
    name = f"urgent-{cluster.number}"
    await cluster.client.create(kinds.PRIORITY_CLASSES, {"metadata": {"name": name}, "value": 1000})
    cluster._made.append((kinds.PRIORITY_CLASSES, name))
    return name


async def test_the_controllers_rights_suffice(deployed):
    async with Cluster(deployed) as cluster:
        await cluster.devices(await cluster.node("a"), "g0")
        gpu = await cluster.device_class()
        await cluster.template("gpu", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler()
        await cluster.pod("p", templates=["gpu"])
        await cluster.bound("p", SOON)
        config = await kubeconfig_of(cluster, "dray-controllers", "dray-system")
        flags = ("--controllers", "device-taint-eviction,pool-status", "--leader-elect")
        flags += ("--leader-namespace", "dray-system", "--kubeconfig", config, "-v")
        async with running(cluster, "rbac-controllers", "controllers", *flags), rule(cluster) as name:
            await gone(cluster, kinds.PODS, "p", cluster.namespace)

            async def reported():
                return (await cluster.client.get(kinds.TAINT_RULES, name)).get("status")

            await cluster.until(reported, "a status of the rule", SOON)


async def test_a_controller_without_its_rights_says_so_with_a_hint(deployed):
    async with Cluster(deployed) as cluster:
        config = await kubeconfig_of(cluster, "dray-controllers", "dray-system")
        command = (
            sys.executable,
            "-m",
            "dray",
            "controllers",
            "--controllers",
            "quotas",
            "--kubeconfig",
            config,
        )
        process = await asyncio.create_subprocess_exec(*map(str, command), stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(process.communicate(), SOON)
        assert process.returncode == 1
        [line, hint] = said.decode().splitlines()
        assert line.startswith("error: ")
        assert hint.startswith("hint: ")
        assert "forbidden" in line


async def test_a_driver_publishes_devices_of_its_own_node_only(deployed):
    async with Cluster(deployed) as cluster:
        mine, other = await cluster.node("mine"), await cluster.node("other")
        spec = {
            "serviceAccountName": "dray-driver",
            "nodeName": mine,
            "containers": [{"name": "c", "image": "i"}],
            "terminationGracePeriodSeconds": 0,
        }
        name = f"driver-{cluster.number}"
        body = {"metadata": {"name": name}, "spec": spec}
        pod = await cluster.client.create(kinds.PODS, body, "dray-drivers")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}
        config = await kubeconfig_of(cluster, "dray-driver", "dray-drivers", boundObjectRef=bound)

        def publish(client, node):
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            devices = {"driver": cluster.driver, "pool": pool, "nodeName": node, "devices": [{"name": "d"}]}
            meta = {"name": f"{node}-slice"}
            return client.create(kinds.SLICES, {"metadata": meta, "spec": devices})

        async with Client.connect(config) as client:

            async def refused():
                """The policy takes a moment to be in force."""
                try:
                    await publish(client, other)
                except (Forbidden, Invalid) as error:
                    return str(error)
                await client.delete(kinds.SLICES, f"{other}-slice")
                return None

            assert "may not touch slices of" in await cluster.until(refused, "a refusal", SOON)
            await publish(client, mine)
            await client.delete(kinds.SLICES, f"{mine}-slice")
        await cluster.client.delete(kinds.PODS, name, "dray-drivers", grace_seconds=0)
