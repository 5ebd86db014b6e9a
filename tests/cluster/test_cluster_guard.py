"""The guard between kube-scheduler and dray's scheduler: both want the same few devices, none is given twice."""

import asyncio
from collections import Counter

from cluster_objects import devices_of, pod_with_device

from dray.client import Client
from dray.client import resources as kinds

PODS = 24  # of each scheduler; ten devices on two nodes
SECONDS = 900.0  # half a minute on a machine that has nothing else to do


def test_two_schedulers_that_fight_for_devices_never_hold_one_twice(rig, objects):
    before = refused(objects)
    asyncio.run(fight(rig.credentials.kubeconfig("admin")))
    after = refused(objects)
    print(f"{PODS * 2} pods served; the guard refused {after - before:.0f} allocations")
    assert unguarded(objects) == 0


async def fight(config):
    """Create pods of both schedulers at once; each ends by itself after a moment and makes room for the next."""
    async with Client.connect(str(config)) as client:
        template, _ = pod_with_device("x")
        template["metadata"]["name"] = "fight"
        await client.create(kinds.CLAIM_TEMPLATES, template, "default")
        names = [f"{scheduler[0]}{number}" for number in range(PODS) for scheduler in ("dray", "upstream")]
        await asyncio.gather(*(client.create(kinds.PODS, short_pod(name), "default") for name in names))
        done: set[str] = set()
        try:
            async with asyncio.timeout(SECONDS):
                while len(done) < len(names):
                    await check_holders(client)
                    pods = (await client.list(kinds.PODS, "default")).items
                    for pod in pods:
                        assert pod["status"]["phase"] != "Failed", pod["status"]
                        if pod["status"]["phase"] == "Succeeded":
                            done.add(pod["metadata"]["name"])
                            await client.delete(kinds.PODS, pod["metadata"]["name"], "default")
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"{len(done)} of {len(names)} pods were served\n") from None
        finally:
            await client.delete(kinds.CLAIM_TEMPLATES, "fight", "default")


def short_pod(name):
    _, pod = pod_with_device(name, scheduler="dray" if name.startswith("d") else "default-scheduler")
    pod["spec"]["restartPolicy"] = "Never"
    pod["spec"]["containers"][0]["command"] = ["sleep", "1"]
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "fight"
    return pod


async def check_holders(client):
    claims = (await client.list(kinds.CLAIMS, "default")).items
    held = Counter(device for claim in claims for device in devices_of(claim))
    twice = [device for device, count in held.items() if count > 1]
    assert not twice, f"given twice: {twice}"


def metric(objects, name):
    """Return a counter of the guard that judges."""
    pods = objects.items("pods", "-n", "dray-system", "-l", "app.kubernetes.io/name=dray-guard")
    total = 0.0
    for pod in pods:
        path = f"/api/v1/namespaces/dray-system/pods/https:{pod['metadata']['name']}:8443/proxy/metrics"
        text = objects.kubectl("get", "--raw", path, check=False)
        total += sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))
    return total


def refused(objects):
    return metric(objects, 'dray_guard_reviews_total{verdict="refused"')


def unguarded(objects):
    return metric(objects, "dray_guard_unguarded_total")
