"""On a running system: partitions follow the pods that wait, and replicas follow what pods report."""

import asyncio
import json
import subprocess
import sys

import pytest
from test_autoscaling_system import System

from dray.client import Client, NotFound
from dray.client.resources import CLAIM_TEMPLATES, CLAIMS, DEPLOYMENTS, HORIZONTAL_POD_AUTOSCALERS, PODS

pytestmark = pytest.mark.kubernetes  # it needs no Kubernetes, but as long as tests that do

DRIVER, PROFILE = "gpu.nvidia.com", "a100-static-mig"


@pytest.fixture
def system(tmp_path):
    found = System(tmp_path)
    found.start(
        "dray is up", "up", "--no-host", "--sim", PROFILE, "--secure-port", "0", "--data", str(found.data)
    )
    yield found
    found.close()


async def eventually(look, seconds=120.0):
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await asyncio.sleep(0.2)
    return found


def service(name, selector, replicas=1):
    exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": selector}}]}
    requests = [{"name": "part", "exactly": exactly}]
    template = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": {"claims": [{"name": "part"}]},
    }
    pod = {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "part", "resourceClaimTemplateName": name}],
            "containers": [container],
        },
    }
    selected = {"matchLabels": {"app": name}}
    spec = {"replicas": replicas, "selector": selected, "template": pod}
    return template, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def start(client, name, selector, replicas=1):
    template, deployment = service(name, selector, replicas)
    await client.create(CLAIM_TEMPLATES, template, "default")
    await client.create(DEPLOYMENTS, deployment, "default")


async def running(client, count):
    async def look():
        pods = (await client.list(PODS, "default")).items
        return sum((each.get("status") or {}).get("phase") == "Running" for each in pods) == count

    await eventually(look)


async def objects_of_changes(client):
    found = []
    for resource in (CLAIMS, PODS):
        try:
            found += (await client.list(resource, "dray-fleet")).items
        except NotFound:
            continue
    return found


async def test_partitions_follow_the_pods_that_wait_also_when_the_command_is_killed(system):
    kubeconfig = str(system.data / "admin.kubeconfig")
    command = ["fleet", "repartition", "--kubeconfig", kubeconfig, "-o", "json"]
    async with Client.connect(kubeconfig) as client:
        await start(client, "two", f"device.attributes['{DRIVER}'].profile == '2g.10gb'", replicas=3)

        async def all_wait():
            return len((await client.list(PODS, "default")).items) == 3

        await eventually(all_wait)
        plan = json.loads((await asyncio.to_thread(system.dray, *command)).stdout)
        assert sum(len(change["pods"]) for change in plan["changes"]) == 3
        assert not plan["unserved"]
        assert not await objects_of_changes(client)  # a preview changes nothing

        killed = subprocess.Popen(
            [sys.executable, "-m", "dray", *command, "--execute"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=system.environment,
        )  # fmt: skip
        await eventually(lambda: objects_of_changes(client), 60)
        killed.kill()
        killed.wait()

        done = await asyncio.to_thread(system.dray, *command, "--execute")
        assert done.returncode == 0, done.stderr
        await running(client, 3)
        assert not await objects_of_changes(client)
        again = json.loads((await asyncio.to_thread(system.dray, *command)).stdout)
        assert again["changes"] == []


async def test_a_service_follows_what_its_pods_report(system):
    kubeconfig = str(system.data / "admin.kubeconfig")
    target = {"type": "AverageValue", "averageValue": "10"}
    metric = {"type": "Pods", "pods": {"metric": {"name": "queue"}, "target": target}}
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}
    spec = {"scaleTargetRef": reference, "maxReplicas": 3, "metrics": [metric]}
    async with Client.connect(kubeconfig) as client:
        await start(client, "llm", f"device.attributes['{DRIVER}'].profile == '1g.5gb'")
        await running(client, 1)
        (pod,) = (await client.list(PODS, "default")).items
        reported = {"metadata": {"annotations": {"metrics.dray.dev/queue": "55"}}}
        await client.patch(PODS, pod["metadata"]["name"], reported, "default")
        await client.create(
            HORIZONTAL_POD_AUTOSCALERS, {"metadata": {"name": "llm"}, "spec": spec}, "default"
        )
        await running(client, 3)  # as many partitions as there are

        async def is_limited():
            found = await client.get(HORIZONTAL_POD_AUTOSCALERS, "llm", "default")
            conditions = (found.get("status") or {}).get("conditions") or ()
            return [each for each in conditions if each["reason"] == "TooManyReplicas"]

        (limited,) = await eventually(is_limited)
        assert limited["status"] == "True"
