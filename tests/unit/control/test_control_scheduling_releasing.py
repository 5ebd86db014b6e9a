"""A claim is released only at the revision that was judged, and never from a pod that is bound."""

import msgspec
import pytest
from small_api import SmallApi

from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.client import Conflict
from dray.client import resources as kinds
from dray.control.scheduling.releasing import ClaimReleaser, InUseError

DEVICES = {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "g0"}]}


class Known:
    """What the informers know of pods: the members of groups."""

    def __init__(self, *members):
        self.members = members

    def pods_of(self, consumer, namespace):
        return self.members


async def made(client, holder, *, node="", phase="Running"):
    """Make a pod, and a claim that is reserved for a holder; return both as views."""
    body = {
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }
    pod = await client.create(kinds.PODS, body, "ns")
    uid = pod["metadata"]["uid"] if holder["resource"] == "pods" else "uid-group"
    status = {"allocation": {"devices": DEVICES}, "reservedFor": [{**holder, "uid": uid}]}
    body = {"metadata": {"name": "c", "namespace": "ns", "finalizers": ["f"]}, "status": status}
    claim = await client.create(kinds.CLAIMS, body, "ns")
    return msgspec.convert(pod, Pod), msgspec.convert(claim, ResourceClaim)


POD, GROUP = {"resource": "pods", "name": "p"}, {"resource": "podgroups", "name": "g"}


@pytest.fixture
def client():
    return SmallApi().client()


@pytest.mark.parametrize("holder", [POD, GROUP], ids=["pod", "group"])
@pytest.mark.parametrize("action", ["deallocate", "delete", "unreserve"])
async def test_nothing_is_released_while_a_bound_pod_holds_it(client, holder, action):
    pod, claim = await made(client, holder, node="n")
    releaser = ClaimReleaser(client, Known(pod))
    arguments = [claim.status.reserved_for[0].uid] if action == "unreserve" else []
    with pytest.raises(InUseError, match="claim ns/c is in use by pod p"):
        await getattr(releaser, action)(claim, *arguments)
    kept = await client.get(kinds.CLAIMS, "c", "ns")
    assert kept["metadata"]["resourceVersion"] == claim.metadata.resource_version


@pytest.mark.parametrize(("node", "phase"), [("", "Pending"), ("n", "Succeeded"), ("n", "Failed")])
async def test_a_pod_that_is_not_bound_or_has_ended_holds_nothing_back(client, node, phase):
    _, claim = await made(client, POD, node=node, phase=phase)
    await ClaimReleaser(client, Known()).deallocate(claim)
    assert not (await client.get(kinds.CLAIMS, "c", "ns"))["status"]


async def test_a_namesake_of_the_holder_does_not_count(client):
    pod, claim = await made(client, POD)
    await client.delete(kinds.PODS, "p", "ns", uid=pod.metadata.uid)
    await client.create(kinds.PODS, {"metadata": {"name": "p"}, "spec": {"nodeName": "n"}}, "ns")
    await ClaimReleaser(client, Known()).deallocate(claim)
    assert not (await client.get(kinds.CLAIMS, "c", "ns"))["status"]


async def test_a_claim_that_has_changed_meanwhile_is_left_alone(client):
    _, claim = await made(client, POD)
    await client.patch(kinds.CLAIMS, "c", {"metadata": {"labels": {"a": "b"}}}, "ns")
    with pytest.raises(Conflict):
        await ClaimReleaser(client, Known()).deallocate(claim)
    assert (await client.get(kinds.CLAIMS, "c", "ns"))["status"]["allocation"]


async def test_an_unused_claim_is_deleted_without_asking_its_pods(client):
    _, claim = await made(client, POD, node="n")
    await ClaimReleaser(client, Known()).delete(claim, is_unused=True)
    assert not (await client.list(kinds.CLAIMS, "ns")).items
    await ClaimReleaser(client, Known()).delete(claim, is_unused=True)  # gone already: nothing to do
