"""Pods with claims land on the right node: on dray's server and on real Kubernetes."""

from clusters import Cluster

from dray.client import resources as kinds


async def test_a_pod_without_claims_is_bound(peer):
    async with Cluster(peer) as cluster:
        await cluster.node("a")
        await cluster.start_scheduler()
        await cluster.pod("p", nodeSelector={"case": cluster.namespace})
        assert await cluster.bound("p") == "a"


async def test_a_claim_from_a_template_is_made_allocated_reserved_and_released(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "gpu-0")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "req", "deviceClassName": gpu})
        await cluster.start_scheduler()
        pod = await cluster.pod("p", templates=["one"])
        assert await cluster.bound("p") == "a"
        claim = await cluster.claim_of("p")
        assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert claim["status"]["reservedFor"] == [
            {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
        ]
        assert claim["status"]["allocation"]["nodeSelector"] == {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
            ]
        }
        await cluster.delete_pod("p")

        async def gone():
            return not (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items

        await cluster.until(gone, "the claim goes with its pod")


async def test_the_last_device_goes_to_one_pod_and_then_to_the_next(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "gpu-0")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "req", "deviceClassName": gpu})
        await cluster.start_scheduler()
        await cluster.pod("first", templates=["one"])
        await cluster.bound("first")
        await cluster.pod("second", templates=["one"])
        assert "nodes" in await cluster.refused("second", words="in use")
        await cluster.delete_pod("first")
        assert await cluster.bound("second") == "a"


async def test_a_shared_claim_brings_pods_to_one_node(peer):
    async with Cluster(peer) as cluster:
        for name in ("a", "b"):
            await cluster.devices(await cluster.node(name), "gpu-0")
        gpu = await cluster.device_class()
        await cluster.claim("shared", {"name": "req", "deviceClassName": gpu})
        await cluster.start_scheduler()
        for name in ("p", "q", "r"):
            await cluster.pod(name, claims=["shared"])
        nodes = {await cluster.bound(name) for name in ("p", "q", "r")}
        assert len(nodes) == 1
        claim = await cluster.get_claim("shared")
        assert {each["name"] for each in claim["status"]["reservedFor"]} == {"p", "q", "r"}


async def test_selectors_constraints_and_counts_are_kept(peer):
    async with Cluster(peer) as cluster:

        def device(name, root, size):
            return {
                "name": name,
                "attributes": {"root": {"string": root}, "size": {"int": size}},
            }

        small = await cluster.node("small")
        await cluster.devices(small, device("g0", "r0", 1), device("g1", "r1", 1), device("g2", "r0", 1))
        big = await cluster.node("big")
        await cluster.devices(big, device("g0", "r0", 2), device("g1", "r1", 2), device("g2", "r1", 2))
        gpu = await cluster.device_class()
        selector = {"cel": {"expression": f"device.attributes['{cluster.driver}'].size > 1"}}
        await cluster.claim(
            "two",
            {"name": "x", "deviceClassName": gpu, "count": 2, "selectors": [selector]},
            constraints=[{"requests": ["x"], "matchAttribute": f"{cluster.driver}/root"}],
        )
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["two"])
        assert await cluster.bound("p") == "big"
        assert await cluster.held("two") == ["g1", "g2"]


async def test_the_first_alternative_that_fits_anywhere_is_preferred(peer):
    async with Cluster(peer) as cluster:
        poor = await cluster.node("poor")
        await cluster.devices(poor, {"name": "g0", "attributes": {"kind": {"string": "plain"}}})
        rich = await cluster.node("rich")
        await cluster.devices(rich, {"name": "g0", "attributes": {"kind": {"string": "fancy"}}})
        fancy = await cluster.device_class("fancy", f"device.attributes['{cluster.driver}'].kind == 'fancy'")
        plain = await cluster.device_class("plain", f"device.attributes['{cluster.driver}'].kind == 'plain'")
        await cluster.claim(
            "either",
            {
                "name": "req",
                "firstAvailable": [
                    {"name": "best", "deviceClassName": fancy},
                    {"name": "other", "deviceClassName": plain},
                ],
            },
        )
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["either"])
        assert await cluster.bound("p") == "rich"


async def test_partitions_share_counters(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(
            node, count=2, sharedCounters=[{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
        )

        def part(name, memory):
            draw = [{"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}]
            return {"name": name, "consumesCounters": draw, "capacity": {"memory": {"value": memory}}}

        await cluster.devices(
            node, part("whole", "40Gi"), part("half-0", "20Gi"), part("half-1", "20Gi"), count=2
        )
        gpu = await cluster.device_class()
        half = {
            "cel": {"expression": f"device.capacity['{cluster.driver}'].memory.isLessThan(quantity('30Gi'))"}
        }
        await cluster.template("half", {"name": "req", "deviceClassName": gpu, "selectors": [half]})
        await cluster.template("any", {"name": "req", "deviceClassName": gpu})
        await cluster.start_scheduler()
        for name in ("p", "q"):
            await cluster.pod(name, templates=["half"])
            await cluster.bound(name)
        await cluster.pod("r", templates=["any"])
        await cluster.refused("r")


async def test_shares_of_a_device_fit_until_its_capacity_is_used_up(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(
            node,
            {"name": "g0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}},
        )
        gpu = await cluster.device_class()
        wanted = {"name": "req", "deviceClassName": gpu, "capacity": {"requests": {"memory": "4Gi"}}}
        await cluster.template("share", wanted)
        await cluster.start_scheduler()
        for name in ("p", "q"):
            await cluster.pod(name, templates=["share"])
            await cluster.bound(name)
        await cluster.pod("r", templates=["share"])
        await cluster.refused("r")
        await cluster.delete_pod("p")
        await cluster.bound("r")


async def test_a_tainted_device_needs_a_toleration(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
        await cluster.devices(node, {"name": "g0", "taints": [taint]})
        gpu = await cluster.device_class()
        await cluster.claim("plain", {"name": "req", "deviceClassName": gpu})
        toleration = {"key": "broken", "operator": "Exists"}
        await cluster.claim("tolerant", {"name": "req", "deviceClassName": gpu, "tolerations": [toleration]})
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["plain"])
        await cluster.refused("p", words="taint")
        await cluster.pod("q", claims=["tolerant"])
        assert await cluster.bound("q") == "a"


async def test_devices_of_the_network_serve_every_matching_node(peer):
    async with Cluster(peer) as cluster:
        await cluster.node("a", labels={"rack": "r1"})
        await cluster.node("b", labels={"rack": "r2"})
        selector = {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r2"]}]}]
        }
        await cluster.devices(None, "nic-0", pool="fabric", nodeSelector=selector)
        nic = await cluster.device_class("nic")
        await cluster.claim("net", {"name": "req", "deviceClassName": nic})
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["net"], nodeSelector={"case": cluster.namespace})
        assert await cluster.bound("p") == "b"
        claim = await cluster.get_claim("net")
        assert claim["status"]["allocation"]["nodeSelector"] == selector


async def test_a_slice_that_comes_later_wakes_the_pod(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "req", "deviceClassName": gpu})
        await cluster.start_scheduler()
        await cluster.pod("p", templates=["one"])
        await cluster.refused("p")
        await cluster.devices(node, "gpu-0")
        assert await cluster.bound("p") == "a"


async def test_a_missing_claim_is_named_and_waited_for(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "gpu-0")
        gpu = await cluster.device_class()
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["late"])
        await cluster.refused("p", words="late")
        await cluster.claim("late", {"name": "req", "deviceClassName": gpu})
        assert await cluster.bound("p") == "a"
