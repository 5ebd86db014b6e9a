"""Gangs: pods with extended resources start together or not at all, and everybody is told what is missing."""

import asyncio
import contextlib

import pytest
from clusters import Cluster
from extended_resources import (
    FEATURES,
    LONG,
    check_specials,
    furnish,
    specials,
)
from test_scheduling_more import _allocated, _conditional, _group, _report

from dray.client import Conflict
from dray.client import resources as kinds

SOON = 20.0  # seconds; far from the half minute for which changed counts are held back


async def member(cluster, name, wanted=None, **more):
    """Make a pod of the gang that asks for one device, by an extended resource."""
    wanted = {wanted or cluster.extended: "1"}
    group = {"podGroupName": "gang"}
    await cluster.pod(name, resources={"requests": wanted, "limits": wanted}, schedulingGroup=group, **more)
    assert (await cluster.get_pod(name))["spec"].get("schedulingGroup"), (
        "the server drops spec.schedulingGroup"
    )


async def nodes_of(cluster, names):
    return [(await cluster.get_pod(name))["spec"].get("nodeName") for name in names]


# --- extended resources -----------------------------------------------------------------------


async def test_a_gang_with_extended_resources_starts_together_or_not_at_all(peer):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=1)
        await _group(cluster, "gang", 3)
        await cluster.start_scheduler()
        names = ["p0", "p1", "p2"]
        implicit = f"deviceclass.resource.kubernetes.io/{cluster.gpu}"
        for name, wanted in zip(names, (None, implicit, None), strict=True):
            await member(cluster, name, wanted)
        for name in names:
            assert "only 2 of the 3 pods" in await cluster.refused(name, words="in use")
        assert await nodes_of(cluster, names) == [None] * 3
        assert await specials(cluster) == {}
        await cluster.devices(await cluster.node("late"), "g0")
        assert sorted([await cluster.bound(name) for name in names]) == ["late", "n0", "n1"]
        await check_specials(cluster, names)
        [mapping] = (await cluster.get_pod("p1"))["status"]["extendedResourceClaimStatus"]["requestMappings"]
        assert mapping == {
            "containerName": "main",
            "resourceName": implicit,
            "requestName": "container-0-request-0",
        }


async def test_a_gang_of_all_kinds_of_pods_shares_plugin_devices_and_claims(peer):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=1)
        await cluster.node("plugin", allocatable={cluster.extended: "1"})
        await _group(cluster, "gang", 4)
        await cluster.start_scheduler()
        await member(cluster, "p0")
        await member(cluster, "p1")
        await cluster.pod("own", templates=["one"], schedulingGroup={"podGroupName": "gang"})
        await cluster.refused("p0", words="waiting for 1 more pod ")
        await cluster.pod("plain", schedulingGroup={"podGroupName": "gang"})
        places = {name: await cluster.bound(name) for name in ("p0", "p1", "own", "plain")}
        by_plugin = [name for name in ("p0", "p1") if places[name] == "plugin"]
        assert len(by_plugin) == 1
        by_devices = [name for name in ("p0", "p1") if name not in by_plugin]
        await check_specials(cluster, by_devices)
        assert "extendedResourceClaimStatus" not in (await cluster.get_pod(by_plugin[0]))["status"]


async def test_a_gang_waits_for_the_class_of_its_extended_resource(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0", "g1")
        cluster.extended = f"example.com/gpu-{cluster.number}"
        await _group(cluster, "gang", 2)
        await cluster.start_scheduler()
        for name in ("p0", "p1"):
            await member(cluster, name)
        for name in ("p0", "p1"):
            assert "only 0 of the 2 pods" in await cluster.refused(
                name, words=f"insufficient {cluster.extended}"
            )
        assert await specials(cluster) == {}
        await cluster.device_class(extendedResourceName=cluster.extended)
        assert [await cluster.bound(name) for name in ("p0", "p1")] == ["a", "a"]
        await check_specials(cluster, ["p0", "p1"])


# --- what a gang must not keep -----------------------------------------------------------------


class NeverBinding:
    """A transport that sends everything but bindings: with those its scheduler waits forever."""

    def __init__(self, inner):
        self.inner, self.arrived = inner, asyncio.Event()

    async def send(self, request):
        if request.method == "POST" and "/binding" in request.target:
            self.arrived.set()
            await asyncio.Event().wait()
        return await self.inner.send(request)

    async def close(self):
        await self.inner.close()


@pytest.mark.parametrize("goes", ["a pod", "the devices"])
async def test_a_gang_that_cannot_start_gives_back_what_an_earlier_attempt_made(peer, goes):
    async with Cluster(peer) as cluster:
        cluster.extended = f"example.com/gpu-{cluster.number}"
        await cluster.device_class(extendedResourceName=cluster.extended)
        await cluster.devices(await cluster.node("a"), "g0")
        labels = {"case-node": "b"}
        await cluster.devices(await cluster.node("b", labels=labels), "g0")
        await _group(cluster, "gang", 2)
        loop = await cluster.start_scheduler(wrap=NeverBinding, features=FEATURES)
        names = ["p0", "p1"]
        for name in names:
            await member(cluster, name, nodeSelector=labels if name == "p1" else None)
        await asyncio.wait_for(loop.client.transport.arrived.wait(), LONG)
        assert sorted(await specials(cluster)) == names
        cluster.stop_scheduler()
        if goes == "a pod":
            await cluster.delete_pod("p1")
            left, words = ["p0"], "waiting for 1 more pod "
        else:
            # Nothing fits where the one claim pins its pod any more.
            node = f"b-{cluster.number}"
            await cluster.client.patch(kinds.NODES, node, {"metadata": {"labels": {"case-node": "gone"}}})
            left, words = names, "of the 2 pods"
        await cluster.start_scheduler(features=FEATURES)

        async def nothing_kept():
            return not await specials(cluster)

        await cluster.until(nothing_kept, "the gang has no claims", LONG)
        for name in left:
            await cluster.refused(name, words=words)
        assert await nodes_of(cluster, left) == [None] * len(left)


# --- what people are told ------------------------------------------------------------------------


async def test_the_pods_of_a_gang_are_told_how_many_are_missing_as_they_come_and_go(peer):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=2)
        await _group(cluster, "gang", 4)
        await cluster.start_scheduler()
        names = ["p0", "p1", "p2"]
        for index, name in enumerate(names):
            await member(cluster, name)
            missing = 3 - index
            for each in names[: index + 1]:
                await cluster.refused(each, SOON, words=f"waiting for {missing} more pod")
        await cluster.delete_pod("p1")
        for each in ("p0", "p2"):
            await cluster.refused(each, SOON, words="waiting for 2 more pods")


async def test_the_pods_of_a_gang_are_told_when_the_cause_is_another(peer):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=1, nodes=1)
        await _group(cluster, "gang", 2)
        await cluster.start_scheduler()
        await member(cluster, "p0")
        await cluster.refused("p0", SOON, words="waiting for 1 more pod ")
        await member(cluster, "p1")
        for name in ("p0", "p1"):
            await cluster.refused(name, SOON, words="only 1 of the 2 pods")
        await member(cluster, "p2")
        for name in ("p0", "p1", "p2"):
            await cluster.refused(name, SOON, words="only 1 of the ")
        await cluster.delete_pod("p1")
        await cluster.delete_pod("p2")
        await cluster.refused("p0", SOON, words="waiting for 1 more pod ")


# --- members that fail, groups that go ------------------------------------------------------------


async def test_no_member_is_bound_before_the_drivers_of_all_are_ready(peer):
    async with Cluster(peer) as cluster:
        names = ["p0", "p1"]
        for index in range(2):
            await cluster.devices(await cluster.node(f"n{index}"), _conditional("g0"))
        gpu = await cluster.device_class()
        await _group(cluster, "gang", 2)
        for name in names:
            await cluster.claim(f"claim-{name}", {"name": "req", "deviceClassName": gpu})
        await cluster.start_scheduler()
        for name in names:
            await cluster.pod(name, claims=[f"claim-{name}"], schedulingGroup={"podGroupName": "gang"})
        for name in names:
            await _allocated(cluster, f"claim-{name}")
        await _report(cluster, "claim-p0", "attached")
        await asyncio.sleep(0.5)
        assert await nodes_of(cluster, names) == [None, None], "the other's driver is not ready"
        await _report(cluster, "claim-p1", "failed")

        async def released():
            claims = [await cluster.get_claim(f"claim-{name}") for name in names]
            return not claims[1]["status"].get("allocation") or (
                "failed" not in str(claims[1]["status"].get("devices"))
            )

        await cluster.until(released, "the failed allocation is released")
        assert await nodes_of(cluster, names) == [None, None], "a failed member takes the others along"
        for name in names:

            async def reported(claim=f"claim-{name}"):
                # The scheduler may write the claim between our reading and our writing.
                with contextlib.suppress(Conflict):
                    await _allocated(cluster, claim)
                    await _report(cluster, claim, "attached")
                    return True

            await cluster.until(reported, f"the driver of {name} reports")
        assert sorted([await cluster.bound(name) for name in names]) == ["n0", "n1"]


async def test_pods_of_a_deleted_group_wait_for_it_and_do_not_start_alone(peer):
    async with Cluster(peer) as cluster:
        await cluster.node("a", allocatable={"cpu": "1"})
        await _group(cluster, "gang", 2)
        await cluster.start_scheduler()
        names = ["p0", "p1"]
        for name in names:
            asked = {"requests": {"cpu": "800m"}}
            await cluster.pod(name, resources=asked, schedulingGroup={"podGroupName": "gang"})
        await cluster.refused("p0", words="only 1 of the 2 pods")
        await cluster.delete_group("gang")
        for name in names:
            await cluster.refused(name, words="to be created")
        await cluster.node("b", allocatable={"cpu": "1"})
        await asyncio.sleep(0.5)
        assert await nodes_of(cluster, names) == [None, None]
        await _group(cluster, "gang", 2)
        assert sorted([await cluster.bound(name) for name in names]) == ["a", "b"]


async def test_a_pod_with_which_a_gang_could_not_start_is_tried_again(peer):
    async with Cluster(peer) as cluster:
        await cluster.node("a", allocatable={"cpu": "2"})
        await _group(cluster, "gang", 2)
        # It comes first, so it is the one for which the gang is decided.
        for name, cpu in (("first", "4"), ("g0", "1"), ("g1", "1")):
            resources = {"requests": {"cpu": cpu}}
            await cluster.pod(name, resources=resources, schedulingGroup={"podGroupName": "gang"})
        await cluster.start_scheduler(features=FEATURES)
        assert [await cluster.bound(name) for name in ("g0", "g1")] == ["a", "a"]
        await cluster.refused("first", words="insufficient cpu")
        await cluster.node("b", allocatable={"cpu": "4"})
        assert await cluster.bound("first") == "b"
