"""Wall clocks that jump by an hour, or are wrong all the time: nothing ends early, nothing never."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

import peers
import pytest
from clusters import Cluster
from test_controllers_cluster import gone, rule, tolerant
from test_scheduling_more import _allocated, _attached, _conditional, _report

from dray.client import Client, LeaderElection
from dray.client import resources as kinds
from dray.client.transport import Response
from dray.control.manager import make_controllers
from dray.control.reconcile_loop import Caches, run_controllers
from dray.control.server_clock import ServerClock

HOUR = timedelta(hours=1)


class WallClock:
    """A clock that can be put forward and back."""

    def __init__(self, offset=timedelta(0)):
        self.offset = offset

    def __call__(self):
        return datetime.now(UTC) + self.offset


async def _waiting(cluster):
    """Let a pod wait for a driver's report on its device."""
    await cluster.devices(await cluster.node("a"), _conditional("g0"))
    gpu = await cluster.device_class()
    await cluster.claim("c", {"name": "req", "deviceClassName": gpu})
    await cluster.pod("p", claims=["c"])


async def _same_allocation(cluster, first, loop):
    # A report wakes the wait, which then looks at its clocks.
    await _report(cluster, "c", "on-its-way")
    await asyncio.sleep(0.25)
    assert (await cluster.get_claim("c"))["status"]["allocation"] == first
    assert loop.statistics.failures == 0
    assert not (await cluster.get_pod("p"))["spec"].get("nodeName")


async def test_a_clock_that_jumps_ends_no_wait_for_drivers(peer):
    async with Cluster(peer) as cluster:
        clock = WallClock()
        loop = await cluster.start_scheduler(now=clock, binding_timeout=60)
        await _waiting(cluster)
        first = await _allocated(cluster, "c")
        for offset in (HOUR, -HOUR, 24 * HOUR):
            clock.offset = offset
            await _same_allocation(cluster, first, loop)
        assert await _attached(cluster, "c", "p") == "a"


async def test_a_clock_put_back_does_not_make_a_wait_endless(peer):
    async with Cluster(peer) as cluster:
        clock = WallClock()
        loop = await cluster.start_scheduler(now=clock, binding_timeout=1.2)
        await _waiting(cluster)
        await _allocated(cluster, "c")
        clock.offset = -HOUR

        async def timed_out():
            return loop.statistics.failures >= 1 and loop.statistics.placed >= 2

        await cluster.until(timed_out, "the wait ends and the claim is allocated anew")
        await _allocated(cluster, "c")
        assert await _attached(cluster, "c", "p") == "a"


@pytest.mark.parametrize("offset", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_successor_whose_clock_is_wrong_goes_on_waiting(peer, offset):
    async with Cluster(peer) as cluster:
        await cluster.start_scheduler(binding_timeout=60)
        await _waiting(cluster)
        first = await _allocated(cluster, "c")
        cluster.stop_scheduler()
        await asyncio.sleep(0.1)
        loop = await cluster.start_scheduler(now=WallClock(offset), binding_timeout=60)
        await _same_allocation(cluster, first, loop)
        assert await _attached(cluster, "c", "p") == "a"


class FailingBindings:
    """A transport that refuses the first bindings."""

    def __init__(self, inner, failures):
        self.inner, self.failures = inner, failures

    async def send(self, request):
        if request.method == "POST" and "/binding" in request.target and self.failures > 0:
            self.failures -= 1
            body = b'{"kind":"Status","code":500,"reason":"InternalError","message":"invented"}'
            return Response(500, {}, body)
        return await self.inner.send(request)

    async def close(self):
        await self.inner.close()


async def test_a_clock_that_jumps_changes_no_pause_between_attempts(peer):
    async with Cluster(peer) as cluster:
        await cluster.node("a")
        clock = WallClock()
        loop = await cluster.start_scheduler(now=clock, wrap=lambda inner: FailingBindings(inner, 1))
        began = asyncio.get_running_loop().time()
        await cluster.pod("p", nodeSelector={"case": cluster.namespace})

        async def failed():
            return loop.statistics.failures == 1

        await cluster.until(failed, "a failed binding")
        clock.offset = -HOUR
        assert await cluster.bound("p") == "a"
        # A second, more or less by chance, half of it at least.
        assert asyncio.get_running_loop().time() - began >= 0.5, "the pause is kept, too"


async def test_leaders_are_judged_by_renewals_and_not_by_their_clocks(peer):
    async with Cluster(peer) as cluster:
        leading = []

        def candidate(name, clock):
            async def lead():
                leading.append(name)
                try:
                    await asyncio.Event().wait()
                finally:
                    leading.remove(name)

            client = Client.connect(peer.kubeconfig)
            election = LeaderElection(
                client, "clocks", name, cluster.namespace,
                lease_duration=3, renew_deadline=2.5, retry_period=0.1, now=clock,
            )  # fmt: skip

            async def run():
                async with client:
                    await election.run(lead)

            return asyncio.create_task(run())

        async def leads(name):
            return name in leading

        clock = WallClock(-HOUR)  # every renewal looks an hour old
        first = candidate("first", clock)
        await cluster.until(lambda: leads("first"), "the first leads")
        second = candidate("second", WallClock(HOUR))
        try:
            for offset in (-HOUR, HOUR, -24 * HOUR):
                clock.offset = offset
                await asyncio.sleep(1.1)  # thrice: longer than the lease
                assert leading == ["first"]
            lease = await cluster.client.get(kinds.LEASES, "clocks", cluster.namespace)
            assert lease["spec"]["leaseTransitions"] == 0
            first.cancel()
            await cluster.until(lambda: leads("second"), "the second takes over")
        finally:
            for task in (first, second):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


@pytest.fixture(scope="module")
def lonely_server():
    with peers.dray_server(controllers="") as peer:
        yield peer


@pytest.fixture(params=["dray", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
def untended(request):
    """A server on which nobody but the test evicts pods."""
    return request.getfixturevalue("lonely_server" if request.param == "dray" else "kubernetes_peer")


@contextlib.asynccontextmanager
async def _eviction(cluster, local):
    """Run the taint eviction as `dray controllers` does, on a machine whose clock is wrong."""
    async with Client.connect(cluster.peer.kubeconfig) as client:
        clock, caches = ServerClock(client, local), Caches(client)
        await clock.ask()
        work = run_controllers(caches, make_controllers(caches, ["device-taint-eviction"], clock))
        task = asyncio.create_task(work)
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("offset", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_toleration_seconds_are_counted_by_the_servers_clock(untended, offset):
    async with Cluster(untended) as cluster:
        await cluster.devices(await cluster.node("a"), "g0", "g1")
        cluster.gpu = await cluster.device_class()
        await cluster.claim("brief", tolerant(cluster, 1))
        await cluster.claim("patient", tolerant(cluster, 1800))
        await cluster.start_scheduler()
        for name in ("brief", "patient"):
            await cluster.pod(name, claims=[name])
            await cluster.bound(name)
        local = WallClock(offset)
        async with _eviction(cluster, local), rule(cluster) as name:
            local.offset = -offset
            added = (await cluster.client.get(kinds.TAINT_RULES, name))["spec"]["taint"]["timeAdded"]
            await gone(cluster, kinds.PODS, "brief", cluster.namespace)
            stayed = datetime.now(UTC) - datetime.fromisoformat(added.replace("Z", "+00:00"))
            assert stayed >= timedelta(seconds=1)
            assert "deletionTimestamp" not in (await cluster.get_pod("patient"))["metadata"]
