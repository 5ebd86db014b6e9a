"""Scheduling beyond plain claims: extended resources, binding conditions, preemption, gangs."""

import asyncio
import contextlib

import pytest
from clusters import Cluster

from dray.client import Conflict, Invalid, NotFound
from dray.client import resources as kinds


async def test_an_extended_resource_is_served_by_devices(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "g0", "g1", "g2")
        name = f"example.com/gpu-{cluster.number}"
        await cluster.device_class(extendedResourceName=name)
        await cluster.start_scheduler()
        await cluster.pod("p", resources={"requests": {name: "2"}, "limits": {name: "2"}})
        assert await cluster.bound("p") == "a"
        pod = await cluster.get_pod("p")
        status = pod["status"]["extendedResourceClaimStatus"]
        assert status["requestMappings"] == [
            {"containerName": "main", "resourceName": name, "requestName": "container-0-request-0"}
        ]
        claim = await cluster.get_claim(status["resourceClaimName"])
        assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
        assert claim["metadata"]["name"].startswith("p-extended-resources-")
        assert len(claim["status"]["allocation"]["devices"]["results"]) == 2
        assert [each["uid"] for each in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
        await cluster.pod("q", resources={"requests": {name: "2"}, "limits": {name: "2"}})
        await cluster.refused("q")
        await cluster.delete_pod("p")
        assert await cluster.bound("q") == "a"


@pytest.mark.parametrize("n_pods", [3])
async def test_a_pod_that_came_before_nodes_and_slices_is_placed_when_they_come(peer, n_pods):
    async with Cluster(peer) as cluster:
        name = f"example.com/gpu-{cluster.number}"
        await cluster.device_class(extendedResourceName=name)
        await cluster.start_scheduler()
        names = [f"p{number}" for number in range(n_pods)]
        for pod in names:
            await cluster.pod(pod, resources={"requests": {name: "1"}, "limits": {name: "1"}})
        for pod in names:
            await cluster.refused(pod)
        node = await cluster.node("a")
        await asyncio.sleep(0.5)  # the node is seen without devices
        await cluster.devices(node, *(f"g{number}" for number in range(n_pods)))
        for pod in names:
            assert await cluster.bound(pod) == "a"


async def test_the_implicit_name_of_a_class_works_too(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0")
        gpu = await cluster.device_class()
        name = f"deviceclass.resource.kubernetes.io/{gpu}"
        await cluster.start_scheduler()
        await cluster.pod("p", resources={"requests": {name: "1"}, "limits": {name: "1"}})
        assert await cluster.bound("p") == "a"
        assert (await cluster.get_pod("p"))["status"]["extendedResourceClaimStatus"]["resourceClaimName"]


async def test_a_device_plugin_that_has_the_resource_wins(peer):
    async with Cluster(peer) as cluster:
        name = f"example.com/gpu-{cluster.number}"
        await cluster.node("plugin", allocatable={name: "1"})
        await cluster.devices(await cluster.node("devices"), "g0")
        await cluster.device_class(extendedResourceName=name)
        await cluster.start_scheduler()
        await cluster.pod("p", resources={"requests": {name: "1"}, "limits": {name: "1"}})
        assert await cluster.bound("p") == "plugin"
        assert "extendedResourceClaimStatus" not in (await cluster.get_pod("p"))["status"]
        await cluster.pod("q", resources={"requests": {name: "1"}, "limits": {name: "1"}})
        assert await cluster.bound("q") == "devices"


async def _report(cluster, claim, condition, status="True"):
    """Act as a driver: set a condition on the first device of a claim."""
    found = await cluster.get_claim(claim)
    result = found["status"]["allocation"]["devices"]["results"][0]
    found["status"]["devices"] = [
        {
            **{key: result[key] for key in ("driver", "pool", "device")},
            "conditions": [
                {
                    "type": condition,
                    "status": status,
                    "reason": "Test",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        }
    ]
    await cluster.client.update(kinds.CLAIMS, claim, found, cluster.namespace, subresource="status")


async def _attached(cluster, claim, pod):
    """Act as a driver that reports success, and again for every new allocation; return the pod's node."""

    async def bound():
        node = (await cluster.get_pod(pod))["spec"].get("nodeName")
        if not node:
            # Not allocated just now, or changed meanwhile: next time.
            with contextlib.suppress(KeyError, Conflict):
                await _report(cluster, claim, "attached")
        return node

    node = await cluster.until(bound, f"pod {pod} bound when claim {claim} is attached")
    return node.removesuffix(f"-{cluster.number}")


def _conditional(name):
    return {"name": name, "bindingConditions": ["attached"], "bindingFailureConditions": ["failed"]}


async def _allocated(cluster, claim):
    async def condition():
        return (await cluster.get_claim(claim)).get("status", {}).get("allocation")

    return await cluster.until(condition, f"claim {claim} allocated")


async def test_a_pod_is_bound_only_when_its_binding_conditions_are_met(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), _conditional("g0"))
        gpu = await cluster.device_class()
        await cluster.claim("c", {"name": "req", "deviceClassName": gpu})
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["c"])
        allocation = await _allocated(cluster, "c")
        assert allocation["allocationTimestamp"]
        await asyncio.sleep(0.3)
        assert not (await cluster.get_pod("p"))["spec"].get("nodeName")
        assert await _attached(cluster, "c", "p") == "a"


async def test_every_allocation_says_when_it_was_made_with_binding_conditions_or_without(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "g0", "g1")
        gpu = await cluster.device_class()
        await cluster.claim("c", {"name": "req", "deviceClassName": gpu, "allocationMode": "ExactCount"})
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["c"])
        assert await cluster.bound("p") == "a"
        first = (await cluster.get_claim("c"))["status"]["allocation"]["allocationTimestamp"]
        await asyncio.sleep(1.1)
        await cluster.pod("q", claims=["c"])
        assert await cluster.bound("q") == "a"
        assert (await cluster.get_claim("c"))["status"]["allocation"]["allocationTimestamp"] == first


async def test_a_device_that_reports_failure_is_given_back(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), _conditional("g0"))
        gpu = await cluster.device_class()
        await cluster.claim("c", {"name": "req", "deviceClassName": gpu})
        loop = await cluster.start_scheduler()
        await cluster.pod("p", claims=["c"])
        first = await _allocated(cluster, "c")
        await _report(cluster, "c", "failed")

        async def given_back():
            return loop.statistics.failures >= 1 and loop.statistics.placed >= 2

        await cluster.until(given_back, "the failed allocation is cleared and a new one made")
        assert await _attached(cluster, "c", "p") == "a"
        assert first["allocationTimestamp"]


async def _allocate_by_hand(cluster, name, node):
    """Allocate g0 of a node, as a scheduler that died before binding would have left it."""
    results = [{"request": "req", "driver": cluster.driver, "pool": node, "device": "g0"}]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}

    async def written():
        claim = await cluster.get_claim(name)
        if claim["status"].get("allocation"):
            return True
        claim["status"]["allocation"] = {"devices": {"results": results}, "nodeSelector": selector}
        try:
            await cluster.client.update(kinds.CLAIMS, name, claim, cluster.namespace, subresource="status")
        except Conflict:
            return False  # the claim controller was at it
        return True

    await cluster.until(written, f"claim {name} allocated by hand")


async def test_an_allocation_on_a_lost_node_is_made_anew_elsewhere(peer):
    async with Cluster(peer) as cluster:
        gone = await cluster.node("gone")
        await cluster.devices(gone, "g0")
        gpu = await cluster.device_class()
        await cluster.claim("c", {"name": "req", "deviceClassName": gpu})
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["c"], nodeSelector={"case": cluster.namespace})
        assert await cluster.bound("p") == "gone"
        await cluster.delete_pod("p")

        async def unreserved():
            return not (await cluster.get_claim("c")).get("status", {}).get("reservedFor")

        await cluster.until(unreserved, "the claim is released")
        await _allocate_by_hand(cluster, "c", gone)
        await cluster.client.delete(kinds.NODES, gone)
        await cluster.devices(await cluster.node("here"), "g0")
        await cluster.pod("q", claims=["c"], nodeSelector={"case": cluster.namespace})
        assert await cluster.bound("q") == "here"


async def test_the_least_important_pod_is_evicted_for_a_device(peer):
    async with Cluster(peer) as cluster:
        for value, name in ((10, "low"), (20, "middle"), (1000, "high")):
            body = {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": f"{name}-{cluster.number}"},
                "value": value,
            }
            await cluster.client.create(kinds.PRIORITY_CLASSES, body)
            cluster._made.append((kinds.PRIORITY_CLASSES, f"{name}-{cluster.number}"))
        for name in ("a", "b"):
            await cluster.devices(await cluster.node(name), "g0")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "req", "deviceClassName": gpu})
        await cluster.start_scheduler()
        middle = f"middle-{cluster.number}"
        await cluster.pod("m", templates=["one"], priorityClassName=middle)
        await cluster.bound("m")
        await cluster.pod("l", templates=["one"], priorityClassName=f"low-{cluster.number}")
        node = await cluster.bound("l")
        await cluster.pod("h", templates=["one"], priorityClassName=f"high-{cluster.number}")
        assert await cluster.bound("h") == node
        assert (await cluster.get_pod("m"))["spec"]["nodeName"]
        with pytest.raises(NotFound):
            await cluster.get_pod("l")


async def _group(cluster, name, size):
    body = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }
    try:
        await cluster.client.create(kinds.POD_GROUPS, body, cluster.namespace)
    except (NotFound, Invalid) as error:
        pytest.skip(f"this server has no pod groups: {error}")


async def test_a_gang_starts_together_or_not_at_all(peer):
    async with Cluster(peer) as cluster:
        first = await cluster.node("a")
        await cluster.devices(first, "g0", "g1")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "req", "deviceClassName": gpu})
        await _group(cluster, "gang", 3)
        await cluster.start_scheduler()
        for index in range(3):
            await cluster.pod(f"p{index}", templates=["one"], schedulingGroup={"podGroupName": "gang"})
        pod = await cluster.get_pod("p0")
        assert pod["spec"].get("schedulingGroup"), "the server drops spec.schedulingGroup"
        await cluster.refused("p2", words="group")
        pods = [await cluster.get_pod(f"p{index}") for index in range(3)]
        assert [pod["spec"].get("nodeName") for pod in pods] == [None, None, None]
        await cluster.devices(await cluster.node("b"), "g0")
        nodes = [await cluster.bound(f"p{index}") for index in range(3)]
        assert sorted(nodes) == ["a", "a", "b"]
