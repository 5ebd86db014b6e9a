"""Every hardware profile, end to end: claim → scheduled → prepared → the container prints its device → released."""

import asyncio
import tempfile
from pathlib import Path

from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.client import Client, NotFound
from dray.client.resources import CLAIMS, DEVICE_CLASSES, PODS
from dray.drivers.hardware import device_classes, load_profile, profile_names
from dray.local.demo_scenes import claim, pod, request
from dray.local.system import Plan, System

PATIENCE = 90.0


async def wait_for(look, what):
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await look()
            if found:
                return found
            await asyncio.sleep(0.2)
    raise AssertionError(what)


async def one_pod(client, profile, driver, nodes_root):
    """Play one life of a pod with one device of a driver; return what its container printed."""
    name = f"{profile}-{driver}".replace(".", "-")[:60]
    # GPUs for virtual machines have a class of their own.
    # A class need not have the name of its driver.
    classes = [each.metadata.name for each in device_classes(frozenset([driver]))]
    if not classes:  # nobody installs one: the manifests of its users bring their own
        classes = [f"of-{driver}"]
        selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        body |= {"metadata": {"name": classes[0]}, "spec": {"selectors": selectors}}
        await client.create(DEVICE_CLASSES, body)
    chosen = "vfio.gpu.nvidia.com" if profile.endswith("-vfio") else classes[0]
    # TPUs are given host by host; of everything else one device is enough.
    amount = {"allocationMode": "All"} if driver == "tpu.google.com" else {}
    wanted = request("device", chosen, **amount)
    body = pod(
        name,
        [name],
        namespace="default",
        nodeSelector={"kubernetes.io/hostname": f"{profile}-1"},
        restartPolicy="Never",
    )
    await client.create(CLAIMS, claim(name, [wanted], namespace="default"), "default")
    await client.create(PODS, body, "default")

    async def running():
        found = await client.get(PODS, name, "default", view=Pod)
        assert found.status.phase != "Failed", found.status
        return found if found.status.phase == "Running" else None

    await wait_for(running, f"{name} never ran")
    held = await client.get(CLAIMS, name, "default", view=ResourceClaim)
    results = held.status.allocation.devices.results
    assert amount or len(results) == 1
    assert {(result.driver, result.pool) for result in results} == {(driver, f"{profile}-1")}
    cdi = nodes_root / f"{profile}-1" / "cdi"
    assert any(held.metadata.uid in path.name for path in cdi.iterdir())

    async def printed():
        log = await client.transport.send(_log_request(name))
        return log.body.decode() if log.status == 200 and b"DRAY_DEVICE" in log.body else None

    output = await wait_for(printed, f"{name} printed nothing")
    await client.delete(PODS, name, "default")

    async def released():
        found = await client.get(CLAIMS, name, "default", view=ResourceClaim)
        return found.status.allocation is None

    await wait_for(released, f"{name} was not released")

    async def pod_gone():
        try:
            await client.get(PODS, name, "default")
        except NotFound:
            return True
        return False

    await wait_for(pod_gone, f"{name} is still there")

    async def unprepared():
        return not any(held.metadata.uid in path.name for path in cdi.iterdir())

    # Without grace a pod leaves the server at once, and the node tidies up after it.
    await wait_for(unprepared, f"{name} left its CDI file behind")
    return results, output


def _log_request(name):
    from dray.client import Request

    return Request("GET", f"/api/v1/namespaces/default/pods/{name}/log")


async def test_every_profile_serves_a_pod_with_each_of_its_drivers():
    profiles = [load_profile(name) for name in profile_names()]
    with tempfile.TemporaryDirectory(prefix="dp-") as folder:
        system = System(Plan(Path(folder), port=0, simulated=[(profile, 1) for profile in profiles]))
        await system.start()
        try:
            async with Client.connect(system.plan.kubeconfig) as client:
                # A channel needs a ComputeDomain: test_compute_domains.py.
                cases = [
                    (profile.name, pool.driver)
                    for profile in profiles
                    for pool in profile.pools("x")
                    if pool.driver != "compute-domain.nvidia.com"
                ]
                limit = asyncio.Semaphore(6)

                async def play(profile, driver):
                    async with limit:
                        return await one_pod(client, profile, driver, Path(folder) / "nodes")

                results = await asyncio.gather(*(play(*case) for case in cases))
        finally:
            await system.stop()
    for (profile, driver), (held, output) in zip(cases, results, strict=True):
        assert all(f"={driver}/{profile}-1/{result.device}" in output for result in held)
        assert output.count("_REQUEST=") == len(held)  # its own devices and no others
