"""Schedulers of one name at once, without a lease: all work on every pod, and a conflict costs a retry.

Every pod is bound or told why not, nothing is in use twice at any moment, and of the claims that
schedulers make for extended resources each pod keeps exactly one. Then the same step by step: a
scheduler stops between two writes, another one goes on, the first wakes up and must do no harm. Such a stop is
before a request is sent, so it is always known what the server has done.
"""

import asyncio
import contextlib

import checker
import msgspec
import pytest
from clusters import Cluster
from test_chaos import beat
from test_scheduling_more import _conditional, _report
from use_judge import UseJudge

from dray.api.features import Features
from dray.api.meta import ObjectMeta
from dray.client import Client, ClientError
from dray.client import resources as kinds
from dray.control.scheduling.withdrawing import WITHDRAWN, InUseError

FEATURES = Features.default().switched(["DRAWorkloadResourceClaims"], [])
SPECIAL = "resource.kubernetes.io/extended-resource-claim"
LONG = 60.0  # seconds; on a quiet machine everything here is over in a few


# --- the world --------------------------------------------------------------------------------


async def furnish(cluster, devices, nodes=2):
    """Make nodes with so many devices each, and ways to ask for them."""
    for number in range(nodes):
        node = await cluster.node(f"n{number}", allocatable={"pods": "110"})
        await cluster.devices(node, *(f"g{index}" for index in range(devices)))
    cluster.extended = f"example.com/gpu-{cluster.number}"
    cluster.gpu = await cluster.device_class(extendedResourceName=cluster.extended)
    await cluster.template("one", {"name": "r", "deviceClassName": cluster.gpu})


async def extended_pod(cluster, name, count=1):
    wish = {cluster.extended: str(count)}
    return await cluster.pod(name, resources={"requests": wish, "limits": wish})


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


async def rivals(cluster, count, **options):
    return await asyncio.gather(
        *(cluster.start_scheduler(features=FEATURES, **options) for _ in range(count))
    )


# --- many at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("schedulers", [2, 3])
async def test_rivals_share_pods_with_extended_resources(peer, schedulers):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=4)
        await rivals(cluster, schedulers)
        names = [f"p{index}" for index in range(6)]
        async with judged(cluster, len(names)) as judge:
            for name in names:
                await extended_pod(cluster, name)
            for name in names:
                await cluster.bound(name, LONG)
        await check_specials(cluster, names)
        assert len(judge.bound) == len(names)


@pytest.mark.parametrize("schedulers", [2, 3])
async def test_rivals_share_a_mixed_load(peer, schedulers):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=5)
        await cluster.claim("shared", {"name": "r", "deviceClassName": cluster.gpu})
        await rivals(cluster, schedulers)
        entry = {"name": "one", "resourceClaimTemplateName": "one"}
        for name, claims in (("gang", []), ("team", [entry])):
            spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": claims}
            await cluster.client.create(
                kinds.POD_GROUPS, {"metadata": {"name": name}, "spec": spec}, cluster.namespace
            )
        async with judged(cluster, pods=10) as judge:
            for index in range(2):
                await extended_pod(cluster, f"extended-{index}")
                await cluster.pod(f"shared-{index}", claims=["shared"])
                await cluster.pod(f"own-{index}", templates=["one"])
                for group in ("gang", "team"):
                    reference = {"podGroupName": group}
                    await cluster.pod(f"{group}-{index}", templates=["one"], schedulingGroup=reference)
            names = [
                f"{kind}-{index}"
                for kind in ("extended", "shared", "own", "gang", "team")
                for index in (0, 1)
            ]
            for name in names:
                await cluster.bound(name, LONG)
        await check_specials(cluster, ["extended-0", "extended-1"])
        assert len(judge.bound) == len(names)
        claims = (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items
        assert len(claims) == 8  # two special, one shared, two own, two of the gang's pods, one of the team


async def test_rivals_share_devices_that_must_be_made_ready(peer):
    async with Cluster(peer) as cluster:
        for number in range(2):
            await cluster.devices(
                await cluster.node(f"n{number}"), *(_conditional(f"g{i}") for i in range(2))
            )
        cluster.extended = f"example.com/gpu-{cluster.number}"
        gpu = await cluster.device_class(extendedResourceName=cluster.extended)
        await cluster.template("one", {"name": "r", "deviceClassName": gpu})
        await rivals(cluster, 2)

        async def drive():
            while True:
                for each in (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items:
                    if checker.results_of(each) and not each["status"].get("devices"):
                        with contextlib.suppress(ClientError, KeyError):
                            await _report(cluster, each["metadata"]["name"], "attached")
                await asyncio.sleep(0.2)

        driver = asyncio.create_task(drive())
        try:
            async with judged(cluster):
                await cluster.pod("a", templates=["one"])
                await cluster.pod("b", templates=["one"])
                await extended_pod(cluster, "c")
                await extended_pod(cluster, "d")
                for name in "abcd":
                    await cluster.bound(name, LONG)
        finally:
            driver.cancel()
        await check_specials(cluster, "cd")


async def test_rivals_tell_those_for_whom_nothing_is_left(peer):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=1)
        await rivals(cluster, 2)
        names = [f"p{index}" for index in range(4)]
        async with judged(cluster):
            for name in names:
                await extended_pod(cluster, name)

            async def has_node(name):
                return bool((await cluster.get_pod(name))["spec"].get("nodeName"))

            async def two_of_four():
                return sum([await has_node(name) for name in names]) == 2

            await cluster.until(two_of_four, "as many pods as devices are bound", LONG)
            first = [name for name in names if await has_node(name)]
            others = [name for name in names if name not in first]
            for name in others:
                assert await cluster.refused(name, LONG)

            async def no_more_specials():
                return sorted(await specials(cluster)) == first

            await cluster.until(no_more_specials, "only bound pods have claims", LONG)
            await asyncio.gather(*(cluster.delete_pod(name) for name in first))
            for name in others:
                await cluster.bound(name, LONG)
        await check_specials(cluster, others)


async def serve_in_turn(peer, schedulers, pods, at_once):
    """Few devices, many pods that come and go: each has its turn, and in the end everything is free."""
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=2)
        await cluster.template("two", {"name": "r", "deviceClassName": cluster.gpu, "count": 2})
        gate = asyncio.Semaphore(at_once)

        async def one(index):
            async with gate:
                name, kind = f"p{index}", index % 4
                if kind in (0, 1):
                    await extended_pod(cluster, name, count=kind + 1)
                else:
                    await cluster.pod(name, templates=["one" if kind == 2 else "two"])
                await cluster.bound(name, 2 * LONG)
                await cluster.delete_pod(name)

        loops = await rivals(cluster, schedulers)
        async with judged(cluster, pods) as judge:
            await asyncio.gather(*map(one, range(pods)))

            async def all_free():
                return not (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items

            await cluster.until(all_free, "no claim is left", LONG)
        assert len(judge.bound) == pods
        return [loop.statistics for loop in loops]


async def test_rivals_serve_a_crowd_in_turn(peer):
    statistics = await serve_in_turn(peer, schedulers=3, pods=40, at_once=12)
    assert sum(each.bound for each in statistics) >= 40
    assert sum(each.conflicts for each in statistics) > 0, "they were never at the same pod"


@pytest.mark.heavy
@pytest.mark.parametrize("schedulers", [2, 3])
async def test_rivals_serve_a_large_crowd_in_turn(peer, schedulers, capsys):
    statistics = await serve_in_turn(peer, schedulers, pods=300, at_once=20)
    with capsys.disabled():
        print(f"\n{schedulers} schedulers: {statistics}")


# --- step by step -------------------------------------------------------------------------------


class Stopping:
    """A transport that waits before it sends the first request of a kind, until it is told to go on."""

    def __init__(self, inner, method, part):
        self.inner, self.method, self.part = inner, method, part
        self.arrived, self.go_on = asyncio.Event(), asyncio.Event()
        self.ended = asyncio.Event()

    async def send(self, request):
        if self.arrived.is_set() or request.method != self.method or self.part not in request.target:
            return await self.inner.send(request)
        self.arrived.set()
        await self.go_on.wait()
        answer = await self.inner.send(request)
        self.ended.set()
        return answer

    async def close(self):
        await self.inner.close()


async def stopping_scheduler(cluster, method, part, **options):
    """Start a scheduler that stops before a request; return its transport."""
    made = []

    def wrap(inner):
        made.append(Stopping(inner, method, part))
        return made[-1]

    loop = await cluster.start_scheduler(wrap=wrap, features=FEATURES, **options)
    return loop, made[0]


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("POST", "/resourceclaims"),
        ("PUT", "/status"),
        ("PATCH", "/pods/p/status"),
        ("POST", "/pods/p/binding"),
    ],
    ids=["before making", "before allocating", "before noting", "before binding"],
)
async def test_what_one_scheduler_began_another_one_finishes(peer, method, part):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=1)
        slow, stop = await stopping_scheduler(cluster, method, part)
        async with judged(cluster):
            await extended_pod(cluster, "p")
            await asyncio.wait_for(stop.arrived.wait(), LONG)
            begun = await specials(cluster)
            await cluster.start_scheduler(features=FEATURES)
            await cluster.bound("p", LONG)
            stop.go_on.set()
            await asyncio.wait_for(stop.ended.wait(), LONG)

            async def gave_up():
                return slow.statistics.conflicts + slow.statistics.bound

            await cluster.until(gave_up, "the first scheduler sees that it is over", LONG)
        await check_specials(cluster, ["p"])
        finished = await specials(cluster)
        if begun:
            assert finished["p"][0]["metadata"]["uid"] == begun["p"][0]["metadata"]["uid"]


@pytest.mark.parametrize("is_extended", [False, True], ids=["claim", "extended"])
async def test_a_pod_is_not_bound_with_a_claim_that_was_cleared_meanwhile(peer, is_extended):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=1)
        await cluster.claim("c", {"name": "r", "deviceClassName": cluster.gpu})
        _, stop = await stopping_scheduler(cluster, "POST", "/pods/p/binding")
        other = await cluster.start_scheduler(name="other", features=FEATURES)
        async with judged(cluster):
            await (extended_pod(cluster, "p") if is_extended else cluster.pod("p", claims=["c"]))
            await asyncio.wait_for(stop.arrived.wait(), LONG)
            name = (await specials(cluster))["p"][0]["metadata"]["name"] if is_extended else "c"
            claim = await known_to(other, cluster, name)
            await (other.withdrawer.delete(claim) if is_extended else other.withdrawer.deallocate(claim))
            stop.go_on.set()
            await cluster.bound("p", LONG)
        if is_extended:
            await check_specials(cluster, ["p"])
        else:
            assert len(await cluster.held("c")) == 1


@pytest.mark.parametrize("is_extended", [False, True], ids=["claim", "extended"])
async def test_a_claim_is_not_cleared_when_its_pod_was_bound_meanwhile(peer, is_extended):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=1)
        await cluster.claim("c", {"name": "r", "deviceClassName": cluster.gpu})
        _, stop = await stopping_scheduler(cluster, "POST", "/pods/p/binding")
        # It leaves word in the pod and stops before the deed, as if it had died.
        clearing, died = await stopping_scheduler(cluster, "PUT", "/resourceclaims", name="other")
        async with judged(cluster):
            await (extended_pod(cluster, "p") if is_extended else cluster.pod("p", claims=["c"]))
            await asyncio.wait_for(stop.arrived.wait(), LONG)
            name = (await specials(cluster))["p"][0]["metadata"]["name"] if is_extended else "c"
            claim = await known_to(clearing, cluster, name)
            deed = asyncio.create_task(clearing.withdrawer.deallocate(claim))
            await asyncio.wait_for(died.arrived.wait(), LONG)
            assert any(
                key.startswith(WITHDRAWN) for key in (await cluster.get_pod("p"))["metadata"]["annotations"]
            )
            stop.go_on.set()
            await cluster.bound("p", LONG)
            before = await cluster.get_claim(name)
            died.go_on.set()
            with pytest.raises(ClientError):
                await deed
            assert await cluster.get_claim(name) == before
            # Whoever comes later finds the pod bound, and stops before that.
            with pytest.raises(InUseError):
                await clearing.withdrawer.deallocate(await known_to(clearing, cluster, name))
            assert await cluster.get_claim(name) == before


async def known_to(loop, cluster, name):
    """Wait until a scheduler knows a claim as it is now; return its view."""
    meta = msgspec.convert((await cluster.get_claim(name))["metadata"], ObjectMeta)
    assert await loop.caches.seen(meta, LONG)
    return loop.caches.claims.get(f"{cluster.namespace}/{name}")
