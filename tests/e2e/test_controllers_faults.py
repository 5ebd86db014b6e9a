"""Controllers whose requests get lost, are refused or cut off: everything still ends as it should."""

import asyncio
import contextlib
import random
from datetime import UTC, datetime, timedelta

import peers
import pytest
from clusters import Cluster
from test_controllers_claims import SOON
from test_controllers_cluster import gone, rule, tolerant

from dray.client import Client, NotFound, TransportError
from dray.client import resources as kinds
from dray.client.transport import Response
from dray.control.manager import CONTROLLERS, make_controllers
from dray.control.reconcile_loop import Caches, run_controllers

MANY = 12


class Troubled:
    """A transport that loses requests and answers, invents refusals, and cuts watches off."""

    def __init__(self, inner, seed, rate):
        self.inner, self.chance, self.rate = inner, random.Random(seed), rate
        self.faults = 0

    async def send(self, request):
        if self.chance.random() > self.rate:
            response = await self.inner.send(request)
            if request.stream and response.pieces is not None and self.chance.random() < 0.5:
                response.pieces = self._cut(response.pieces, self.chance.randrange(1, 12))
            return response
        self.faults += 1
        return await self.fail(self.draw(), request)

    def draw(self):
        """Choose what goes wrong."""
        return self.chance.choice(["lost request", "lost answer", "conflict", "failure", "busy"])

    async def fail(self, kind, request):
        """Let it go wrong."""
        if kind == "lost request":
            raise TransportError(f"{request}: the connection was reset")
        if kind == "lost answer":
            await (await self.inner.send(request)).close()
            raise TransportError(f"{request}: the answer was lost")
        code, reason = {"conflict": (409, "Conflict"), "failure": (500, "InternalError")}.get(
            kind, (503, "ServiceUnavailable")
        )
        if kind == "conflict" and request.method in ("GET", "POST"):
            code, reason = 500, "InternalError"
        text = f'{{"kind":"Status","code":{code},"reason":"{reason}","message":"invented"}}'
        return Response(code, {}, text.encode())

    async def _cut(self, pieces, count):
        """Hand out a few pieces, then break in the middle of the next."""
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                count -= 1
                if count <= 0:
                    self.faults += 1
                    yield piece[: len(piece) // 2]
                    raise TransportError("the watch was cut off")
                yield piece

    async def close(self):
        await self.inner.close()


@pytest.fixture(scope="module")
def bare_peer():
    """A server without controllers: those of the test are the only ones."""
    with peers.dray_server(controllers="") as peer:
        yield peer


@contextlib.asynccontextmanager
async def controllers(cluster, *, seed=None, rate=0.2, clock=lambda: datetime.now(UTC), names=CONTROLLERS):
    """Run controllers in this process, with a troubled transport when there is a seed."""
    client = Client.connect(cluster.peer.kubeconfig)
    if seed is not None:
        client.transport = Troubled(client.transport, seed, rate)
    caches = Caches(client)
    task = asyncio.create_task(run_controllers(caches, make_controllers(caches, names, clock)))
    try:
        yield client.transport
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


@pytest.mark.parametrize("seed", [5, pytest.param(6, marks=pytest.mark.heavy)])
async def test_lost_answers_and_cut_watches_lose_no_claim_and_leave_none(bare_peer, seed):
    async with Cluster(bare_peer) as cluster:
        await cluster.devices(await cluster.node("a"), *(f"g{index}" for index in range(MANY)))
        gpu = await cluster.device_class()
        await cluster.template("gpu", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler()
        async with controllers(cluster, seed=seed) as troubled:
            for index in range(MANY):
                await cluster.pod(f"p{index}", templates=["gpu"])
            for index in range(MANY):
                await cluster.bound(f"p{index}", 60)
            statuses = [
                (await cluster.get_pod(f"p{index}"))["status"]["resourceClaimStatuses"]
                for index in range(MANY)
            ]
            assert len({names[0]["resourceClaimName"] for names in statuses}) == MANY, f"seed {seed}"
            for index in range(MANY):
                await cluster.delete_pod(f"p{index}")

            async def all_gone():
                # Also claims whose creation was never answered and that no pod knows of.
                return not (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items

            await cluster.until(all_gone, f"all claims gone (seed {seed})", 60)
            assert troubled.faults > 10


async def test_a_service_keeps_its_size_through_lost_answers(bare_peer):
    async with Cluster(bare_peer) as cluster, controllers(cluster, seed=7) as troubled:
        template = {
            "metadata": {"labels": {"app": "x"}},
            "spec": {
                "schedulerName": "nobody",
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i"}],
            },
        }
        spec = {"replicas": 5, "selector": {"matchLabels": {"app": "x"}}, "template": template}
        body = {"metadata": {"name": "web"}, "spec": spec}
        await cluster.client.create(kinds.DEPLOYMENTS, body, cluster.namespace)

        async def size(count):
            async def check():
                sets = (await cluster.client.list(kinds.REPLICA_SETS, cluster.namespace)).items
                pods = (await cluster.client.list(kinds.PODS, cluster.namespace)).items
                told = sum((each.get("status") or {}).get("replicas", 0) for each in sets)
                return len(pods) == told == count and len(sets) == 1

            await cluster.until(check, f"{count} pods", 60)

        for count in (5, 9, 2):
            patch = {"spec": {"replicas": count}}
            await cluster.client.patch(kinds.DEPLOYMENTS, "web", patch, cluster.namespace)
            await size(count)
        await cluster.client.delete(kinds.DEPLOYMENTS, "web", cluster.namespace)

        async def empty():
            return not (await cluster.client.list(kinds.PODS, cluster.namespace)).items

        await cluster.until(empty, "all pods gone", 60)
        assert troubled.faults > 5


async def test_controllers_run_twice_do_everything_once(bare_peer):
    async with Cluster(bare_peer) as cluster:
        await cluster.devices(await cluster.node("a"), *(f"g{index}" for index in range(MANY)))
        gpu = await cluster.device_class()
        await cluster.template("gpu", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler()
        async with controllers(cluster), controllers(cluster):
            for index in range(MANY):
                await cluster.pod(f"p{index}", templates=["gpu"])
            for index in range(MANY):
                await cluster.bound(f"p{index}", 60)
            for index in range(MANY):
                await cluster.delete_pod(f"p{index}")

            async def all_gone():
                return not (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items

            await cluster.until(all_gone, "all claims gone", 60)


async def test_a_clock_put_back_and_forth_evicts_neither_early_nor_never(bare_peer):
    async with Cluster(bare_peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0", "g1")
        cluster.gpu = await cluster.device_class()
        await cluster.template("patient", tolerant(cluster, 3600))
        await cluster.template("gpu", {"name": "r", "deviceClassName": cluster.gpu})
        await cluster.start_scheduler()
        async with controllers(cluster, names=["claims", "garbage-collector"]):
            await cluster.pod("p", templates=["patient"])
            await cluster.bound("p", SOON)
            offset = timedelta(hours=-3)  # the taint seems to be added in three hours
            clock = lambda: datetime.now(UTC) + offset  # noqa: E731
            async with (
                controllers(cluster, names=["device-taint-eviction"], clock=clock),
                rule(cluster) as name,
            ):

                async def reported():
                    return (await cluster.client.get(kinds.TAINT_RULES, name)).get("status")

                await cluster.until(reported, "the rule is seen", SOON)
                assert "deletionTimestamp" not in (await cluster.get_pod("p"))["metadata"]
                offset = timedelta(hours=2)  # and now its hour is over
                patch = {"metadata": {"labels": {"look": "again"}}}
                await cluster.client.patch(kinds.PODS, "p", patch, cluster.namespace)
                await gone(cluster, kinds.PODS, "p", cluster.namespace)


async def test_slices_that_change_while_pods_are_scheduled_confuse_nobody(bare_peer):
    async with Cluster(bare_peer) as cluster:
        node = await cluster.node("a")
        slice_name = await cluster.devices(node, *(f"g{index}" for index in range(MANY)))
        gpu = await cluster.device_class()
        await cluster.template("gpu", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler()

        async def republish():
            generation = 1
            while True:
                generation += 1
                found = await cluster.client.get(kinds.SLICES, slice_name)
                found["spec"]["pool"]["generation"] = generation
                found["spec"]["devices"].reverse()
                with contextlib.suppress(NotFound):
                    await cluster.client.update(kinds.SLICES, slice_name, found)
                await asyncio.sleep(0.02)

        changing = asyncio.create_task(republish())
        try:
            async with controllers(cluster):
                for index in range(MANY):
                    await cluster.pod(f"p{index}", templates=["gpu"])
                for index in range(MANY):
                    await cluster.bound(f"p{index}", 60)
                assert await cluster.problems() == []
        finally:
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)
