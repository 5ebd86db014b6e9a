"""A copy of a running system: snapshot, start the copy, compare what is published, device by device."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

from dray.cli.snapshot import passed_on
from dray.client import Client, NotFound
from dray.client.resources import NODES, PODS, RESOURCE_QUOTAS, SLICES
from dray.drivers.hardware import load_profile, pool_slices
from dray.local.system import Plan, System
from dray.sim.hardware import hardware_node
from dray.sim.snapshot import Snapshot, capture, load_snapshot
from dray.sim.twin import make_twin
from dray.workbench.inventory import Inventory

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": "x",
                "command": ["sleep", "60"],
                "env": [{"name": "TOKEN", "value": "hunter2"}],
                "resources": {"limits": {"nvidia.com/gpu": "2"}},
            }
        ],
    },
}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "q"},
    "spec": {"hard": {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "5"}},
}


async def wait_for(look, what):
    for _ in range(600):
        if await look():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(what)


def published(snapshot):
    return {
        (found.spec.driver, found.spec.pool.name, found.spec.node_name, item.name): item
        for found in snapshot.slices
        for item in (*found.spec.devices, *found.spec.shared_counters)
    }


def is_complete(snapshot, n_pools):
    pools = Inventory(snapshot).pools
    return len(pools) == n_pools and all(pool.is_complete for pool in pools)


async def test_the_copy_of_a_system_has_the_same_devices_nodes_classes_and_quotas():
    profiles = [load_profile(name) for name in ("dgx-a100-mig", "example")]
    with tempfile.TemporaryDirectory(prefix="dt-") as folder:
        root = Path(folder)
        real = System(
            Plan(root / "a", port=0, simulated=[(profile, 1) for profile in profiles], runtime="none")
        )
        copy = None
        try:
            await real.start()
            async with Client.connect(real.plan.kubeconfig) as client:
                await client.create(RESOURCE_QUOTAS, QUOTA, "default")
                await client.create(PODS, POD, "default")

                async def all_complete():
                    return is_complete(await capture(client), n_pools)

                # Nodes are ready before their drivers have published everything.
                n_pools = sum(len(profile.pools("x")) for profile in profiles)
                await wait_for(all_complete, "the system does not publish all pools")
                before = passed_on(await capture(client, complete=True), anonymise=False)
            before.write(root / "s.json")
            await real.stop()
            assert b"hunter2" not in (root / "s.json").read_bytes()

            twin = make_twin(load_snapshot([root / "s.json"]), with_workloads=True)
            copy = System(Plan(root / "b", port=0, twin=twin, snapshot=root / "s.json", runtime="none"))
            await copy.start()
            async with Client.connect(copy.plan.kubeconfig) as client:

                async def all_published():
                    return len(published(await capture(client))) == len(published(before))

                await wait_for(all_published, "the copy does not publish all devices")
                after = await capture(client, complete=True)
                assert published(after) == published(before)
                for mine, theirs in zip(before.nodes, after.nodes, strict=True):
                    assert theirs.metadata.labels == mine.metadata.labels
                    assert theirs.status.allocatable == mine.status.allocatable
                assert [found.spec for found in after.classes] == [found.spec for found in before.classes]
                quota = await client.get(RESOURCE_QUOTAS, "q", "default")
                assert quota["spec"] == QUOTA["spec"]

                async def runs():
                    return (await client.get(PODS, "p", "default"))["status"].get("phase") == "Running"

                await wait_for(runs, "the copied pod does not run")
        finally:
            await asyncio.gather(*(each.stop() for each in (real, copy) if each is not None))


async def test_the_copy_of_what_any_server_stores_publishes_the_same_devices(peer):
    names = [f"twin-{name}" for name in ("dgx-h100", "sriov-nics", "example-shared-partitions")]
    async with Client.connect(peer.kubeconfig) as client:
        try:
            for name in names:
                profile = load_profile(name.removeprefix("twin-"))
                snapshot = Snapshot()
                snapshot.add_view(hardware_node(profile, name))
                for found in pool_slices(profile.pools(name)):
                    snapshot.add_view(found)
                for body in snapshot.objects:
                    await client.create(NODES if body["kind"] == "Node" else SLICES, body)
            captured = passed_on(await capture(client, complete=True), anonymise=False)
            wanted = {key: item for key, item in published(captured).items() if key[2] in names}
            twin = make_twin(captured)
            copied = Snapshot()
            for name, profile in twin.nodes:
                for found in pool_slices(profile.pools(name)):
                    copied.add_view(found)
            assert {key: item for key, item in published(copied).items() if key[2] in names} == wanted
            assert len(wanted) > 100
        finally:
            for body in (await client.list(SLICES)).items:
                if body["spec"].get("nodeName") in names:
                    await client.delete(SLICES, body["metadata"]["name"])
            for name in names:
                with contextlib.suppress(NotFound):
                    await client.delete(NODES, name)
