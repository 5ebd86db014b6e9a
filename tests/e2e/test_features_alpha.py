"""Features whose gates are off by default: scheduled on servers that have every gate on."""

import asyncio

from clusters import Cluster
from test_controllers_cluster import pool_status

from dray.api.features import Features
from dray.client import resources as kinds

EVERYTHING = Features.everything()
NUMA = "resource.kubernetes.io/numaNode"


def is_kind(cluster, name):
    """A selector for devices of a kind."""
    return f"device.attributes['{cluster.driver}'].kind == '{name}'"


def device(name, **attributes):
    """A device whose kind is its name without the number."""
    return {"name": name, "attributes": {"kind": {"string": name.rstrip("0123456789")}, **attributes}}


async def results_of(cluster, claim):
    """Return the allocation results of a claim."""
    return (await cluster.get_claim(claim))["status"]["allocation"]["devices"]["results"]


async def test_fractions_of_a_capacity_are_given_in_steps(gated):
    async with Cluster(gated) as cluster:
        policy = {"default": "500m", "validRange": {"min": "500m", "max": "1500m", "step": "250m"}}
        capacity = {"cores": {"value": "2", "requestPolicy": policy}}
        await cluster.devices(
            await cluster.node("a"), {"name": "g0", "allowMultipleAllocations": True, "capacity": capacity}
        )
        gpu = await cluster.device_class()
        await cluster.start_scheduler(features=EVERYTHING)
        for name, asked in (("p", "600m"), ("q", "1100m"), ("r", "1")):
            wanted_request = {"name": "r", "deviceClassName": gpu, "capacity": {"requests": {"cores": asked}}}
            await cluster.claim(name, wanted_request)
        for name, given in (("p", "750m"), ("q", "1250m")):
            await cluster.pod(name, claims=[name])
            await cluster.bound(name)
            assert [each["consumedCapacity"] for each in await results_of(cluster, name)] == [
                {"cores": given}
            ]
        await cluster.pod("r", claims=["r"])
        await cluster.refused("r")
        await cluster.delete_pod("q")
        assert await cluster.bound("r") == "a"


async def test_lists_match_where_they_share_a_value(gated):
    async with Cluster(gated) as cluster:
        await cluster.devices(
            await cluster.node("a"),
            device("gpu0", **{NUMA: {"ints": [0, 1]}}),
            device("nic0", **{NUMA: {"int": 2}}),
            device("nic1", **{NUMA: {"ints": [1, 3]}}),
            device("nic2", **{NUMA: {"ints": [0, 3]}}),
        )
        gpu = await cluster.device_class("gpu", is_kind(cluster, "gpu"))
        nic = await cluster.device_class("nic", is_kind(cluster, "nic"))
        requests_wanted = ({"name": "g", "deviceClassName": gpu}, {"name": "n", "deviceClassName": nic})
        await cluster.claim("close", *requests_wanted, constraints=[{"matchAttribute": NUMA}])
        await cluster.claim(
            "apart",
            {"name": "n", "deviceClassName": nic, "count": 2},
            constraints=[{"distinctAttribute": NUMA}],
        )
        await cluster.start_scheduler(features=EVERYTHING)
        await cluster.pod("p", claims=["close"])
        await cluster.bound("p")
        assert await cluster.held("close") == ["gpu0", "nic1"]
        await cluster.pod("q", claims=["apart"])
        await cluster.bound("q")
        assert await cluster.held("apart") == ["nic0", "nic2"]


async def test_a_derived_attribute_ties_devices_together(gated):
    async with Cluster(gated) as cluster:
        await cluster.devices(
            await cluster.node("a"),
            device("gpu0", slot={"string": "r0-s1"}),
            device("gpu1", slot={"string": "r1-s1"}),
            device("nic0", place={"string": "r1"}),
        )
        gpu = await cluster.device_class("gpu", is_kind(cluster, "gpu"))
        nic = await cluster.device_class("nic", is_kind(cluster, "nic"))
        rack = "example.com/rack"

        def wanted_request(name, device_class, expression):
            text = f"device.attributes['{cluster.driver}'].{expression}"
            derived = [{"name": rack, "expression": text}]
            return {"name": name, "deviceClassName": device_class, "derivedAttributes": derived}

        await cluster.claim(
            "same-rack",
            wanted_request("g", gpu, "slot.substring(0, 2)"),
            wanted_request("n", nic, "place"),
            constraints=[{"matchAttribute": rack}],
        )
        await cluster.start_scheduler(features=EVERYTHING)
        await cluster.pod("p", claims=["same-rack"])
        await cluster.bound("p")
        assert await cluster.held("same-rack") == ["gpu1", "nic0"]


async def test_incompatible_partitions_do_not_run_beside_each_other(gated):
    async with Cluster(gated) as cluster:
        node, pool = await cluster.node("a"), f"board-{cluster.number}"
        counters = [{"name": "board", "counters": {"memory": {"value": "40Gi"}}}]
        await cluster.devices(node, pool=pool, count=2, sharedCounters=counters)

        def part(name, *groups):
            draws = {"counterSet": "board", "counters": {"memory": {"value": "10Gi"}}}
            return {**device(name), "consumesCounters": [{**draws, "compatibilityGroups": list(groups)}]}

        await cluster.devices(
            node, part("mig0", "mig"), part("mig1", "mig"), part("vgpu0", "vgpu"), pool=pool, count=2
        )
        for name in ("mig", "vgpu"):
            made = await cluster.device_class(name, is_kind(cluster, name))
            await cluster.template(name, {"name": "r", "deviceClassName": made})
        await cluster.start_scheduler(features=EVERYTHING)
        for name in ("m0", "m1"):
            await cluster.pod(name, templates=["mig"])
            await cluster.bound(name)
        await cluster.pod("v", templates=["vgpu"])
        await cluster.refused("v")
        await cluster.delete_pod("m0")
        await asyncio.sleep(0.2)
        assert not (await cluster.get_pod("v"))["spec"].get("nodeName"), "m1 is still there"
        await cluster.delete_pod("m1")
        assert await cluster.bound("v") == "a"
        # Without the gate the pool counts as incomplete, and nobody gets anything of it.
        cluster.scheduler_name += "-plain"
        await cluster.start_scheduler()
        await cluster.pod("m2", templates=["mig"])
        await cluster.refused("m2")


async def test_devices_that_skip_node_operations_need_a_node_that_can(gated):
    async with Cluster(gated) as cluster:
        await cluster.node("old")
        await cluster.node("new", declared=["DRAOptionalNodeOperations"])
        await cluster.devices(None, "vlan0", "vlan1", pool="fabric", allNodes=True, skipNodeOperations=["*"])
        vlan = await cluster.device_class("vlan")
        await cluster.claim("net", {"name": "r", "deviceClassName": vlan})
        await cluster.template("one", {"name": "r", "deviceClassName": vlan})
        await cluster.start_scheduler(features=EVERYTHING)
        old = {"kubernetes.io/hostname": f"old-{cluster.number}"}
        await cluster.pod("stuck", templates=["one"], nodeSelector=old)
        await cluster.refused("stuck")
        await cluster.pod("p", claims=["net"], nodeSelector={"case": cluster.namespace})
        assert await cluster.bound("p") == "new"
        assert [each["skipNodeOperations"] for each in await results_of(cluster, "net")] == [["*"]]
        # The node's kubelet is upgraded: now it can.
        patch = {"status": {"declaredFeatures": ["DRAOptionalNodeOperations"]}}
        await cluster.client.patch(kinds.NODES, f"old-{cluster.number}", patch, subresource="status")
        assert await cluster.bound("stuck") == "old"


async def test_devices_that_stand_for_cpus_use_up_the_node(gated):
    async with Cluster(gated) as cluster:
        gate = "DRANodeAllocatableResources"
        node = await cluster.node("a", declared=[gate], allocatable={"cpu": "8"})
        terms = {
            "cpu": {"mapping": {"deviceMultiplier": "4"}},
            "memory": {"overhead": {"perPod": "1Gi", "perContainer": "512Mi"}},
        }
        await cluster.devices(
            node, *({"name": f"c{index}", "nodeAllocatableResources": terms} for index in range(3))
        )
        cpus = await cluster.device_class("cpus")
        await cluster.template("four", {"name": "r", "deviceClassName": cpus})
        await cluster.start_scheduler(features=EVERYTHING)
        await cluster.pod("p", templates=["four"], resources={"requests": {"cpu": "1"}})
        assert await cluster.bound("p") == "a"
        [told] = (await cluster.get_pod("p"))["status"]["nodeAllocatableResourceClaimStatuses"]
        assert told["mapping"] == [{"name": "cpu", "quantity": "4"}]
        assert told["overhead"] == [{"name": "memory", "perPod": "1Gi", "perContainer": "512Mi"}]
        # A device is free, but the cpus it stands for are not: 1 + 4 + 4 is more than 8.
        await cluster.pod("q", templates=["four"])
        await cluster.refused("q", words="cpu")
        await cluster.pod(
            "plain", resources={"requests": {"cpu": "3"}}, nodeSelector={"case": cluster.namespace}
        )
        assert await cluster.bound("plain") == "a"
        await cluster.delete_pod("p")
        assert await cluster.bound("q") == "a"


async def test_the_pool_status_counts_what_partitions_of_each_type_are_left(gated):
    async with Cluster(gated) as cluster:
        node, pool = await cluster.node("a"), f"board-{cluster.number}"
        counters = [{"name": "board", "counters": {"memory": {"value": "40Gi"}}}]
        await cluster.devices(node, pool=pool, count=2, sharedCounters=counters)

        def part(name, profile, size):
            draws = [{"counterSet": "board", "counters": {"memory": {"value": size}}}]
            return {"name": name, "attributes": {"profile": {"string": profile}}, "consumesCounters": draws}

        parts = (part("whole", "7g", "40Gi"), part("left", "3g", "20Gi"), part("right", "3g", "20Gi"))
        kind = f"{cluster.driver}/profile"
        await cluster.devices(node, *parts, pool=pool, count=2, partitionTypeAttribute=kind)
        half = f"device.attributes['{cluster.driver}'].profile == '3g'"
        gpu = await cluster.device_class("half", half)
        await cluster.claim("half", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler(features=EVERYTHING)

        async def left(**wanted):
            async def counted():
                async with pool_status(cluster) as status:
                    return [
                        {each["type"]: (each["total"], each.get("allocatable", 0)) for each in summary}
                        for summary in (pool.get("partitionSummary") or () for pool in status["pools"])
                    ] == [wanted]

            await cluster.until(counted, f"partitions {wanted}")

        await left(**{"7g": (1, 1), "3g": (2, 2)})
        await cluster.pod("p", claims=["half"])
        await cluster.bound("p")
        await left(**{"7g": (1, 0), "3g": (2, 1)})


async def test_a_gang_shares_the_claim_of_its_group(gated):
    async with Cluster(gated) as cluster:
        for name in ("a", "b"):
            await cluster.devices(await cluster.node(name), "g0")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "r", "deviceClassName": gpu})
        entry = {"name": "one", "resourceClaimTemplateName": "one"}
        policy = {"gang": {"minCount": 3}}
        body = {
            "metadata": {"name": "gang"},
            "spec": {"schedulingPolicy": policy, "resourceClaims": [entry]},
        }
        group = await cluster.client.create(kinds.POD_GROUPS, body, cluster.namespace)
        await cluster.start_scheduler(features=EVERYTHING)
        for index in range(3):
            await cluster.pod(f"p{index}", templates=["one"], schedulingGroup={"podGroupName": "gang"})
        nodes = {await cluster.bound(f"p{index}") for index in range(3)}
        assert len(nodes) == 1
        [claim] = (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items
        [holder] = claim["status"]["reservedFor"]
        assert (holder["resource"], holder["uid"]) == ("podgroups", group["metadata"]["uid"])
