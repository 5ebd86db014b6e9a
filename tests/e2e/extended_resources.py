"""Helpers for tests of extended resources: make them, find the claims behind them, judge who holds what."""

import asyncio
import contextlib

import checker
from test_chaos import beat
from use_judge import UseJudge

from dray.api.features import Features
from dray.client import Client
from dray.client import resources as kinds

FEATURES = Features.default().switched(["DRAWorkloadResourceClaims"], [])
SPECIAL = "resource.kubernetes.io/extended-resource-claim"
LONG = 60.0  # seconds; on a quiet machine everything here is over in a few


async def furnish(cluster, devices, nodes=2):
    """Make nodes with so many devices each, and a class with an extended resource."""
    for number in range(nodes):
        node = await cluster.node(f"n{number}", allocatable={"pods": "110"})
        await cluster.devices(node, *(f"g{index}" for index in range(devices)))
    cluster.extended = f"example.com/gpu-{cluster.number}"
    cluster.gpu = await cluster.device_class(extendedResourceName=cluster.extended)
    await cluster.template("one", {"name": "r", "deviceClassName": cluster.gpu})


async def extended_pod(cluster, name, count=1):
    wanted = {cluster.extended: str(count)}
    return await cluster.pod(name, resources={"requests": wanted, "limits": wanted})


async def specials(cluster):
    """Return the claims that were made for extended resources, by the name of their pod."""
    found = {}
    for each in (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items:
        if SPECIAL in (each["metadata"].get("annotations") or {}):
            [owner] = each["metadata"]["ownerReferences"]
            found.setdefault(owner["name"], []).append(each)
    return found


async def check_specials(cluster, pods):
    """Each of these pods has one claim: named in its status, allocated, reserved for it alone."""

    async def all_there():
        found = await specials(cluster)
        return found if sorted(found) == sorted(pods) else None

    found = await cluster.until(all_there, f"these pods have special claims and no others: {pods}", LONG)
    for name in pods:
        pod, [claim] = await cluster.get_pod(name), found[name]
        assert pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == claim["metadata"]["name"]
        assert [each["uid"] for each in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
        assert claim["status"]["allocation"]["devices"]["results"]


@contextlib.asynccontextmanager
async def judged(cluster, pods=0):
    """Let a judge follow everything that happens meanwhile, until it has heard of so many bound pods."""
    listed = (await cluster.client.list(kinds.SLICES)).items
    slices = [each for each in listed if each["spec"]["driver"] == cluster.driver]
    client = Client.connect(cluster.peer.kubeconfig)
    judge = UseJudge(client, cluster.namespace, checker.Inventory(slices))
    watching = [asyncio.create_task(each) for each in (judge.run(), beat(cluster))]

    async def all_seen():
        return len(judge.heard) >= pods

    try:
        yield judge
        await cluster.until(all_seen, f"the judge has heard of {pods} bound pods", LONG)
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await client.close()
    judge.finish()
    assert judge.problems == []
