"""The life of claims: made from templates, reserved, released, deallocated, deleted."""

import contextlib

import pytest
from clusters import Cluster, claim_spec

from dray.api.features import Features
from dray.client import NotFound
from dray.client import resources as kinds

FINALIZER = "resource.kubernetes.io/delete-protection"
SOON = 60.0


@contextlib.asynccontextmanager
async def furnished(peer, *, devices=2, scheduler=True, gates=()):
    """A cluster with one node, devices, a class, a template and, usually, a scheduler."""
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), *(f"g{index}" for index in range(devices)))
        cluster.gpu = await cluster.device_class()
        await cluster.template("gpu", {"name": "r", "deviceClassName": cluster.gpu})
        if scheduler:
            await cluster.start_scheduler(features=Features.default().switched(gates, []))
        yield cluster


async def made_claim(cluster, pod, other_than=None):
    """Wait for the claim that a pod's status names."""

    async def condition():
        try:
            claim = await cluster.claim_of(pod)
        except (IndexError, NotFound):
            return None
        return claim if claim["metadata"]["name"] != other_than else None

    return await cluster.until(condition, f"a claim of {pod}", SOON)


async def claim_when(cluster, name, condition, what):
    """Wait until a claim is as it should be."""

    async def check():
        claim = await cluster.get_claim(name)
        return claim if condition(claim) else None

    return await cluster.until(check, f"claim {name} {what}", SOON)


async def claim_gone(cluster, name):
    async def check():
        try:
            await cluster.get_claim(name)
        except NotFound:
            return True
        return False

    await cluster.until(check, f"claim {name} gone", SOON)


def users(claim):
    return [each["name"] for each in (claim.get("status") or {}).get("reservedFor") or ()]


def is_free(claim):
    status = claim.get("status") or {}
    held = status.get("allocation") or status.get("reservedFor")
    return not held and FINALIZER not in (claim["metadata"].get("finalizers") or ())


async def finish(cluster, pod, phase="Succeeded"):
    """Act as kubelet: the pod ran to its end."""
    patch = {"status": {"phase": phase}}
    await cluster.client.patch(kinds.PODS, pod, patch, cluster.namespace, subresource="status")


async def allocate(cluster, name, node, device="g0", users=()):
    """Act as a scheduler: finalizer, then allocation and reservations in one write."""
    patch = {"metadata": {"finalizers": [FINALIZER]}}
    await cluster.client.patch(kinds.CLAIMS, name, patch, cluster.namespace)
    claim = await cluster.get_claim(name)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    result = {"request": "r", "driver": cluster.driver, "pool": node, "device": device}
    claim["status"] = {
        "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}},
        "reservedFor": list(users),
    }
    return await cluster.client.update(kinds.CLAIMS, name, claim, cluster.namespace, subresource="status")


async def test_a_claim_is_made_from_the_template_and_its_name_recorded(controlled):
    async with furnished(controlled, scheduler=False) as cluster:
        body = {
            "metadata": {"name": "labelled"},
            "spec": {
                "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
                "spec": claim_spec({"name": "r", "deviceClassName": cluster.gpu}),
            },
        }
        await cluster.client.create(kinds.CLAIM_TEMPLATES, body, cluster.namespace)
        pod = await cluster.pod("p", templates=["labelled"])
        meta = (await made_claim(cluster, "p"))["metadata"]
        assert meta["name"].startswith("p-labelled-")
        assert meta["labels"] == {"team": "a"}
        assert meta["annotations"] == {"note": "b", "resource.kubernetes.io/pod-claim-name": "labelled"}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
        assert meta["ownerReferences"] == [{**owner, "controller": True}]


async def test_a_claim_that_is_deleted_before_its_use_is_made_anew(controlled):
    async with furnished(controlled, scheduler=False) as cluster:
        await cluster.pod("p", templates=["gpu"])
        first = (await made_claim(cluster, "p"))["metadata"]["name"]
        await cluster.client.delete(kinds.CLAIMS, first, cluster.namespace)
        assert (await made_claim(cluster, "p", other_than=first))["metadata"]["name"] != first


async def test_a_pod_waits_for_a_template_that_comes_later(controlled):
    async with furnished(controlled) as cluster:
        await cluster.pod("p", templates=["late"])
        await cluster.template("late", {"name": "r", "deviceClassName": cluster.gpu})
        assert await cluster.bound("p", SOON) == "a"


async def test_a_pod_of_the_same_name_does_not_inherit(controlled):
    async with furnished(controlled, devices=1) as cluster:
        await cluster.pod("p", templates=["gpu"])
        await cluster.bound("p", SOON)
        first = (await cluster.claim_of("p"))["metadata"]["name"]
        await cluster.delete_pod("p")
        second = await cluster.pod("p", templates=["gpu"])
        claim = await made_claim(cluster, "p", other_than=first)
        assert claim["metadata"]["ownerReferences"][0]["uid"] == second["metadata"]["uid"]
        assert await cluster.bound("p", SOON) == "a"
        await claim_gone(cluster, first)


async def test_the_last_user_takes_allocation_and_finalizer_along(controlled):
    async with furnished(controlled) as cluster:
        await cluster.claim("shared", {"name": "r", "deviceClassName": cluster.gpu})
        await cluster.pod("p", claims=["shared"])
        await cluster.pod("q", claims=["shared"])
        for name in ("p", "q"):
            await cluster.bound(name, SOON)
        await cluster.delete_pod("p")
        claim = await claim_when(cluster, "shared", lambda found: users(found) == ["q"], "left to q")
        assert claim["status"]["allocation"]
        await cluster.delete_pod("q")
        await claim_when(cluster, "shared", is_free, "free")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_finished_pod_holds_no_devices(controlled, phase):
    async with furnished(controlled, devices=1) as cluster:
        await cluster.pod("p", templates=["gpu"])
        await cluster.bound("p", SOON)
        name = (await cluster.claim_of("p"))["metadata"]["name"]
        await finish(cluster, "p", phase)
        await claim_gone(cluster, name)
        await cluster.pod("q", templates=["gpu"])
        assert await cluster.bound("q", SOON) == "a"


async def test_an_allocation_that_was_never_reserved_stays_until_the_claim_is_deleted(controlled):
    async with furnished(controlled, scheduler=False) as cluster:
        await cluster.claim("kept", {"name": "r", "deviceClassName": cluster.gpu})
        await allocate(cluster, "kept", f"a-{cluster.number}")
        # Something later is dealt with: so was this.
        await cluster.pod("p", templates=["gpu"])
        await made_claim(cluster, "p")
        assert (await cluster.get_claim("kept"))["status"]["allocation"]
        await cluster.client.delete(kinds.CLAIMS, "kept", cluster.namespace)
        await claim_gone(cluster, "kept")


async def test_a_claim_is_reserved_for_a_pod_that_was_bound_by_hand(controlled):
    async with furnished(controlled, scheduler=False) as cluster:
        node = f"a-{cluster.number}"
        await cluster.claim("mine", {"name": "r", "deviceClassName": cluster.gpu})
        pod = await cluster.pod("p", claims=["mine"], nodeName=node)
        await allocate(cluster, "mine", node)
        claim = await claim_when(cluster, "mine", users, "reserved")
        reference = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
        assert claim["status"]["reservedFor"] == [reference]


async def test_a_claim_in_use_outlives_its_deletion_and_stays_the_pods(controlled):
    async with furnished(controlled) as cluster:
        await cluster.pod("p", templates=["gpu"])
        await cluster.bound("p", SOON)
        name = (await cluster.claim_of("p"))["metadata"]["name"]
        await cluster.client.delete(kinds.CLAIMS, name, cluster.namespace)
        await cluster.pod("q", templates=["gpu"])
        await cluster.bound("q", SOON)
        claim = await cluster.claim_of("p")
        assert claim["metadata"]["name"] == name
        assert claim["metadata"]["deletionTimestamp"]
        assert claim["status"]["allocation"]
        await cluster.delete_pod("p")
        await claim_gone(cluster, name)


async def test_users_of_unknown_kinds_are_left_alone(controlled):
    async with furnished(controlled, scheduler=False) as cluster:
        node = f"a-{cluster.number}"
        await cluster.claim("mixed", {"name": "r", "deviceClassName": cluster.gpu})
        pod = await cluster.pod("p", claims=["mixed"], nodeName=node)
        widget = {"apiGroup": "example.com", "resource": "widgets", "name": "w", "uid": "1"}
        mine = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
        await allocate(cluster, "mixed", node, users=[widget, mine])
        await cluster.delete_pod("p")
        claim = await claim_when(cluster, "mixed", lambda found: users(found) == ["w"], "left to the widget")
        assert claim["status"]["allocation"]


async def test_the_claim_of_an_extended_resource_goes_with_its_pod(controlled):
    async with Cluster(controlled) as cluster:
        await cluster.devices(await cluster.node("a"), "g0")
        name = f"example.com/gpu-{cluster.number}"
        await cluster.device_class(extendedResourceName=name)
        await cluster.start_scheduler()
        await cluster.pod("p", resources={"requests": {name: "1"}, "limits": {name: "1"}})
        await cluster.bound("p", SOON)
        claim = (await cluster.get_pod("p"))["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
        await finish(cluster, "p")
        await claim_gone(cluster, claim)


@pytest.mark.alpha_or_beta("GenericWorkload")
async def test_the_pods_of_a_group_share_the_groups_claim(controlled):
    async with furnished(controlled, gates=["GenericWorkload", "DRAWorkloadResourceClaims"]) as cluster:
        entry = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
        pods = [
            await cluster.pod(name, templates=["gpu"], schedulingGroup={"podGroupName": "g"})
            for name in ("p", "q")
        ]
        body = {
            "metadata": {"name": "g"},
            "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": [entry]},
        }
        group = await cluster.client.create(kinds.POD_GROUPS, body, cluster.namespace)
        claims = [await made_claim(cluster, name) for name in ("p", "q")]
        assert claims[0]["metadata"]["uid"] == claims[1]["metadata"]["uid"]
        assert [each["uid"] for each in claims[0]["metadata"]["ownerReferences"]] == [
            group["metadata"]["uid"]
        ]
        for pod in pods:
            await cluster.bound(pod["metadata"]["name"], SOON)
        listed = (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items
        assert len(listed) == 1, "no pod has a claim of its own"
        assert users(listed[0]) == ["g"]
        for name in ("p", "q"):
            await cluster.delete_pod(name)
        await cluster.client.delete(kinds.POD_GROUPS, "g", cluster.namespace)
        await claim_gone(cluster, listed[0]["metadata"]["name"])
