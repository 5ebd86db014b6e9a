"""The guard and a real kube-apiserver: raw writes that race, and what is not the guard's business."""

import asyncio

import peers
import pytest
from clusters import Cluster
from guards import GuardProcess, Watcher, allocation, give, guarding, unguarded

from dray.client import Conflict, ServerFailed
from dray.client import resources as kinds
from dray.client.resources import CLAIMS
from dray.control.guarding.registering import CONFIGURATION, CONFIGURATIONS

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def guarded_peer():
    """An API server of our own: a guard that fails closed would be in the way of other tests."""
    with peers.kubernetes(controllers="") as peer:
        yield peer


async def _race(cluster, node, device, number):
    """Give one device to two claims at the same moment; return how many writes succeeded."""
    names = [f"race-{number}-{side}" for side in "ab"]
    wish = {"name": "r", "deviceClassName": "any"}
    claims = [await cluster.claim(name, wish) for name in names]
    given = allocation(cluster, device, pool=node)
    answers = await asyncio.gather(*(give(cluster, claim, given) for claim in claims), return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, (dict, Conflict)), answer
    for claim, answer in zip(claims, answers, strict=True):
        if isinstance(answer, dict):
            await give(cluster, answer, None)
        await cluster.client.delete(CLAIMS, claim["metadata"]["name"], cluster.namespace)
    return sum(isinstance(answer, dict) for answer in answers)


async def _races(cluster, rounds):
    """Race for ten devices, each in its own sequence, all sequences at once."""
    node = await cluster.node("a")
    await cluster.devices(node, *(f"g{index}" for index in range(10)))

    async def sequence(device):
        return [
            await _race(cluster, node, f"g{device}", device * 1000 + turn) for turn in range(rounds // 10)
        ]

    async with Watcher(cluster) as watcher:
        winners = [each for turns in await asyncio.gather(*map(sequence, range(10))) for each in turns]
    return winners, watcher.problems


async def test_of_two_writes_that_give_one_device_exactly_one_lands(guarded_peer):
    async with Cluster(guarded_peer) as cluster, guarding(cluster):
        winners, problems = await _races(cluster, 200)
        assert winners == [1] * 200
        assert problems == []


async def test_without_a_guard_both_land(guarded_peer):
    """The negative control: the same races, and the same watcher sees devices given twice."""
    async with Cluster(guarded_peer) as cluster:
        await unguarded(cluster)
        winners, problems = await _races(cluster, 20)
        assert winners == [2] * 20
        assert len(problems) >= 20
