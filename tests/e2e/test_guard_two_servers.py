"""Two kube-apiservers on one etcd: each has a cache of its own, and the guard judges for both."""

import asyncio
import contextlib
import random
from pathlib import Path

import peers
import pytest
from clusters import Cluster
from guards import PATIENCE, Watcher, allocation, give, guarding, in_force, is_early, is_free, metrics_of

from dray.client import Client, Conflict, NotFound
from dray.client.resources import CLAIMS

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def two_servers():
    """The usual peer, and the kubeconfig of a second API server that shares its etcd."""
    with peers.kubernetes(controllers="") as peer:
        [first] = [process for name, process in peer.processes._running if name == "apiserver"]
        port, folder = peers.free_port(), peer.processes.folder
        changed = {"--secure-port": str(port), "--cert-dir": str(folder / "certs-2")}
        command = [
            f"{key}={changed[key]}" if (key := part.split("=")[0]) in changed else part for part in first.args
        ]
        peer.processes.start("apiserver-2", *command)
        peers._until_ready(f"https://127.0.0.1:{port}/readyz", peer.processes)
        kubeconfig = Path(folder / "kubeconfig-2")
        kubeconfig.write_text(peers.KUBECONFIG % port)
        yield peer, kubeconfig


async def _race(cluster, clients, device, node, number, chance):
    """Give a device to two claims, each by way of another server, in the ways that writers have."""
    names = [f"c{number}-{side}" for side in "ab"]
    for name in names:
        await cluster.claim(name, {"name": "r", "deviceClassName": "any"})
    given = allocation(cluster, device, pool=node)

    async def write(client, claim):
        name = claim["metadata"]["name"]
        await asyncio.sleep(chance.uniform(0, 0.003))
        if chance.random() < 0.5:
            body = {"status": {"allocation": given}}
            return await client.patch(CLAIMS, name, body, cluster.namespace, subresource="status")
        return await give(cluster, claim, given, client=client)

    async def disturb(client, claim):
        """Change the claim meanwhile, so that the server that writes has an old one in its cache."""
        body = {"metadata": {"labels": {"turn": str(chance.random())[2:9]}}}
        await client.patch(CLAIMS, claim["metadata"]["name"], body, cluster.namespace)

    async def decided():
        claims = [await cluster.get_claim(name) for name in names]
        work = [write(client, claim) for client, claim in zip(clients, claims, strict=True)]
        work += [disturb(client, claim) for client, claim in zip(reversed(clients), claims, strict=True)]
        answers = (await asyncio.gather(*work, return_exceptions=True))[:2]
        if any(isinstance(each, dict) for each in answers) or not any(
            is_early(each, names) for each in answers
        ):
            return answers
        return None  # the guard had not heard yet that the race before this one is over

    answers = await cluster.until(decided, f"race {number}", PATIENCE)
    for answer in answers:
        assert isinstance(answer, (dict, Conflict)), answer
    for name in names:
        with contextlib.suppress(NotFound):
            patch = {"status": {"allocation": None}}
            await cluster.client.patch(CLAIMS, name, patch, cluster.namespace, subresource="status")
            await cluster.client.delete(CLAIMS, name, cluster.namespace)
    return sum(isinstance(answer, dict) for answer in answers)


async def test_two_api_servers_cannot_give_one_device_twice(two_servers):
    peer, second = two_servers
    chance = random.Random(4)
    async with Cluster(peer) as cluster, Client.connect(second) as other, guarding(cluster) as guard:
        node = await cluster.node("a")
        await cluster.devices(node, *(f"g{index}" for index in range(8)))
        await is_free(cluster, "g0", node)
        # The second server follows the configuration a moment later than the first.
        await in_force(cluster, other)

        async def sequence(index):
            return [
                await _race(cluster, [cluster.client, other], f"g{index}", node, index * 100 + turn, chance)
                for turn in range(25)
            ]

        async with Watcher(cluster) as watcher:
            winners = [each for turns in await asyncio.gather(*map(sequence, range(8))) for each in turns]
        numbers = await metrics_of(guard)
        assert watcher.problems == []
        assert set(winners) <= {0, 1}
        print(winners.count(1))
        assert winners.count(1) > 100
        assert numbers["dray_guard_unguarded_total"] == 0
