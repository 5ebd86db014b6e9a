"""What the node says of itself: repeated when the server's copy says something else."""

import asyncio
import contextlib

import pytest
from node_builders import eventually
from small_api import SmallApi

from dray.node import membership
from dray.node.membership import Membership, NodeFacts

PATH = "/api/v1/nodes/n"
NOON = 1_800_000_000.0


@contextlib.asynccontextmanager
async def running(monkeypatch):
    monkeypatch.setattr(membership, "STATUS_SECONDS", 0.01)
    api = SmallApi()
    moment = [NOON]
    node = Membership(
        api.client(), NodeFacts("n", "10.0.0.1", 10250, capacity={"cpu": "4"}), lambda: moment[0]
    )
    await node.register()
    task = asyncio.create_task(node._repeat_status())
    try:
        yield api, moment
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def condition(api, kind="Ready"):
    return next(each for each in api.objects[PATH]["status"]["conditions"] if each["type"] == kind)


def change(api, **status):
    node = api.objects[PATH]
    api._store(PATH, {**node, "status": {**node["status"], **status}}, "MODIFIED", 200)


def writes(api):
    return sum(request.startswith("PATCH") and request.endswith("/status") for request in api.requests)


async def test_a_node_that_was_marked_unknown_says_soon_that_it_is_ready(monkeypatch):
    async with running(monkeypatch) as (api, moment):
        since = condition(api)["lastTransitionTime"]
        moment[0] += 3600
        network = {"type": "NetworkUnavailable", "status": "False"}
        change(api, conditions=[{"type": "Ready", "status": "Unknown", "lastTransitionTime": since}, network])
        await eventually(lambda: condition(api)["status"] == "True", what="Ready again")
        assert condition(api)["lastTransitionTime"] > since, "the status has changed"
        assert condition(api, "NetworkUnavailable") == network, "a condition of somebody else is kept"


async def test_a_status_that_says_what_we_say_is_not_written_again(monkeypatch):
    async with running(monkeypatch) as (api, _):
        # Servers add what they know and leave out what is empty.
        info = {key: value for key, value in api.objects[PATH]["status"]["nodeInfo"].items() if value}
        change(api, nodeInfo={**info, "swap": {}}, volumesInUse=[])
        before, looks = writes(api), len(api.requests)
        await eventually(lambda: len(api.requests) > looks + 3, what="some more looks")
        assert writes(api) == before


@pytest.mark.parametrize("status", [{"addresses": []}, {"capacity": {"cpu": "1"}}, {"daemonEndpoints": {}}])
async def test_whatever_else_was_changed_is_corrected(monkeypatch, status):
    async with running(monkeypatch) as (api, _):
        right = api.objects[PATH]["status"]
        change(api, **status)
        await eventually(
            lambda: all(api.objects[PATH]["status"][key] == right[key] for key in status), what="corrected"
        )


async def test_the_status_is_repeated_now_and_then_although_nothing_changed(monkeypatch):
    monkeypatch.setattr(membership, "STATUS_REPEAT_SECONDS", 0.05)
    async with running(monkeypatch) as (api, _):
        before = writes(api)
        await eventually(lambda: writes(api) > before + 1, what="repeated")


LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


async def test_a_new_node_makes_its_lease_without_looking_for_one():
    api = SmallApi()
    node = Membership(api.client(), NodeFacts("n", "10.0.0.1", 10250))
    await node.register()
    before = len(api.requests)
    await node.renew_lease()
    await node.renew_lease()
    assert api.requests[before:] == [f"POST {LEASES}", f"PUT {LEASES}/n"]


async def test_a_lease_of_an_earlier_node_of_that_name_is_renewed():
    api = SmallApi()
    api.put(f"{LEASES}/n", {"kind": "Lease", "spec": {"holderIdentity": "n", "renewTime": "before"}})
    node = Membership(api.client(), NodeFacts("n", "10.0.0.1", 10250))
    await node.register()
    await node.renew_lease()
    assert api.objects[f"{LEASES}/n"]["spec"]["renewTime"] != "before"
