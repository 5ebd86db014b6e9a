"""The whole way of a pod, on dray's server and on a real kube-apiserver: template → claim → scheduled → prepared →
runs and prints its devices → deleted → unprepared → the claim is gone."""

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from clusters import Cluster
from node_builders import Lamps, eventually

from dray.client import Client, NotFound, Request
from dray.client import resources as kinds
from dray.driver import Settings, serving_driver
from dray.drivers.binding_conditions import satisfy_binding_conditions
from dray.drivers.hardware import load_profile, profile_names
from dray.drivers.simulated import SimulatedDriver
from dray.node import AgentSettings, running_agent


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextlib.asynccontextmanager
async def node_with(cluster, folder, name, drivers, *, serves=False):
    """A node with these drivers; everything talks HTTP and gRPC as in real life."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.connect(cluster.peer.kubeconfig))
        settings = AgentSettings(
            name,
            folder,
            cdi_dirs=[folder / "cdi"],
            serves=serves,
            client_ca=cluster.peer.node_client_ca if serves else None,
        )
        agent = await stack.enter_async_context(running_agent(client, settings))
        for driver in drivers:
            options = Settings(node_name=name, kubelet_dir=folder, cdi_dir=folder / "cdi")
            running = await stack.enter_async_context(serving_driver(driver, client, options))
            await running.publisher.wait_published()
        await eventually(lambda: agent.plugins.drivers() == {driver.name for driver in drivers})
        cluster._made.append((kinds.NODES, name))
        yield agent


def printed(folder, pod):
    return "".join(path.read_text() for path in folder.glob(f"logs/*_{pod}_*/main/0.log"))


async def gone(cluster, resource, name):
    async def check():
        try:
            await cluster.client.get(resource, name, cluster.namespace)
        except NotFound:
            return True
        return False

    await cluster.until(check, f"{resource.plural} {name} is gone")


async def make_class(cluster, body):
    with contextlib.suppress(Exception):
        await cluster.client.create(kinds.DEVICE_CLASSES, body)
    cluster._made.append((kinds.DEVICE_CLASSES, body["metadata"]["name"]))


async def test_a_pod_with_a_template_goes_all_the_way(peer, folder):
    async with Cluster(peer) as cluster:
        await cluster.start_scheduler()
        driver = Lamps(name=cluster.driver)
        async with node_with(cluster, folder, f"way-{cluster.number}", [driver], serves=True) as agent:
            selector = {"cel": {"expression": f'device.driver == "{cluster.driver}"'}}
            await make_class(
                cluster, {"metadata": {"name": cluster.driver}, "spec": {"selectors": [selector]}}
            )
            await cluster.template("light", {"name": "lamp", "deviceClassName": cluster.driver})
            box = {
                "name": "main",
                "image": "busybox",
                "command": ["sh", "-c", "env; sleep 100"],
                "resources": {"claims": [{"name": "light"}]},
            }
            await cluster.pod(
                "reader", templates=["light"], containers=[box], terminationGracePeriodSeconds=1
            )

            async def phase():
                return (await cluster.get_pod("reader"))["status"].get("phase") == "Running"

            await cluster.until(phase, "reader runs")
            await eventually(lambda: "LAMP_0=lamp-0" in printed(folder, "reader"))
            log = Request("GET", kinds.PODS.path(cluster.namespace, "reader", "log"))
            answer = await cluster.client.transport.send(log)
            assert (answer.status, b"LAMP_0=lamp-0" in answer.body) == (200, True), answer.body
            claim = await cluster.claim_of("reader")
            await cluster.client.delete(kinds.PODS, "reader", cluster.namespace)
            await gone(cluster, kinds.PODS, "reader")
            await gone(cluster, kinds.CLAIMS, claim["metadata"]["name"])
            assert agent.records.infos == {}
            assert [call[0] for call in driver.calls] == ["prepare", "unprepare"]
            assert not list((folder / "cdi").glob("*.json"))


@pytest.mark.heavy
@pytest.mark.parametrize("profile", profile_names())
async def test_every_modelled_hardware_reaches_a_container(dray_peer, folder, profile):
    """One device of every driver of the profile, printed by the container that holds it."""
    model = load_profile(profile)
    async with Cluster(dray_peer) as cluster:
        await cluster.start_scheduler()
        node = f"hw-{cluster.number}"
        drivers = [SimulatedDriver(pool) for pool in model.pools(node)]
        async with node_with(cluster, folder, node, drivers) as agent:
            for pool in model.pools(node):
                # Here nobody else plays the part of the driver's controller.
                ready = asyncio.create_task(
                    satisfy_binding_conditions(cluster.client, pool.driver, pool.name)
                )
                await one_device(cluster, folder, agent, pool)
                ready.cancel()


async def one_device(cluster, folder, agent, pool):
    name = f"any-{pool.driver.replace('.', '-')}"
    selector = {"cel": {"expression": f'device.driver == "{pool.driver}"'}}
    await make_class(
        cluster, {"metadata": {"name": f"{name}-{cluster.number}"}, "spec": {"selectors": [selector]}}
    )
    await cluster.template(name, {"name": "it", "deviceClassName": f"{name}-{cluster.number}"})
    box = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", "env; sleep 100"],
        "resources": {"claims": [{"name": name}]},
    }
    await cluster.pod(name, templates=[name], containers=[box], terminationGracePeriodSeconds=0)
    await eventually(lambda: f"={pool.driver}/" in printed(folder, name), what=name)
    await cluster.client.delete(kinds.PODS, name, cluster.namespace)
    await gone(cluster, kinds.PODS, name)
    await eventually(lambda: agent.records.infos == {})
