"""Features that are on by default, as a pod meets them: on dray's server and on real Kubernetes.

Together with `test_scheduling_claims`, `test_scheduling_more` and `test_features_alpha` there is a
case for every feature that a scheduler has to do with; docs/scheduler-features.md has the table.
"""

import asyncio
import dataclasses
import random
import time

import pytest
from clusters import Cluster
from test_scheduling_more import _allocated, _attached, _conditional

from dray.client import Forbidden, Invalid
from dray.client import resources as kinds
from dray.client.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, resource_of

ADMIN_LABEL = "resource.kubernetes.io/admin-access"
ACCESS_REVIEWS = resource_of("authorization.k8s.io", "SubjectAccessReview")


async def change_slice(cluster, name, change):
    """Publish a slice anew, as its driver would."""
    found = await cluster.client.get(kinds.SLICES, name)
    change(found["spec"])
    await cluster.client.update(kinds.SLICES, name, found)


# --- core ---------------------------------------------------------------------------------


async def test_all_devices_are_taken_and_only_from_a_complete_pool(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "g0", "g1", count=2)
        gpu = await cluster.device_class()
        await cluster.claim("all", {"name": "r", "deviceClassName": gpu, "allocationMode": "All"})
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["all"])
        await cluster.refused("p", words="currently being updated")
        await cluster.devices(node, "g2", count=2)
        assert await cluster.bound("p") == "a"
        assert await cluster.held("all") == ["g0", "g1", "g2"]


async def test_a_new_generation_replaces_the_devices_of_the_old_one(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "old", generation=1)
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler()
        await cluster.pod("p", templates=["one"])
        await cluster.bound("p")
        await cluster.devices(node, "new-0", "old", generation=2)
        await cluster.pod("q", templates=["one"])
        await cluster.bound("q")
        results = (await cluster.claim_of("q"))["status"]["allocation"]["devices"]["results"]
        assert [each["device"] for each in results] == ["new-0"], "`old` is in use, whatever its generation"
        await cluster.pod("r", templates=["one"])
        await cluster.refused("r", words="in use")


# --- admin access -------------------------------------------------------------------------


async def _label(cluster, value):
    await cluster.client.patch(
        kinds.NAMESPACES, cluster.namespace, {"metadata": {"labels": {ADMIN_LABEL: value}}}
    )


async def test_admin_access_reaches_devices_in_use_where_the_namespace_allows_it(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0")
        gpu = await cluster.device_class()
        wanted = {"name": "r", "deviceClassName": gpu, "adminAccess": True}
        with pytest.raises((Forbidden, Invalid), match="admin"):
            await cluster.claim("look", wanted)
        await _label(cluster, "true")
        await cluster.claim("look", wanted)
        await cluster.claim("mine", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler()
        await cluster.pod("owner", claims=["mine"])
        await cluster.bound("owner")
        await cluster.pod("admin", claims=["look"])
        assert await cluster.bound("admin") == "a"
        [result] = (await cluster.get_claim("look"))["status"]["allocation"]["devices"]["results"]
        assert (result["device"], result["adminAccess"]) == ("g0", True)
        # Looking takes nothing away: when the owner leaves, the device is free for the next one.
        await cluster.delete_pod("owner")
        await cluster.claim("next", {"name": "r", "deviceClassName": gpu})
        await cluster.pod("successor", claims=["next"])
        assert await cluster.bound("successor") == "a"


async def test_admin_access_that_is_withdrawn_before_the_allocation_is_explained(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0")
        gpu = await cluster.device_class()
        await _label(cluster, "true")
        await cluster.claim("look", {"name": "r", "deviceClassName": gpu, "adminAccess": True})
        await _label(cluster, None)
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["look"])
        await cluster.refused("p", words="admin")
        await _label(cluster, "true")
        assert await cluster.bound("p") == "a"


# --- device status ------------------------------------------------------------------------


async def test_what_drivers_report_of_a_device_survives_further_reservations(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0")
        gpu = await cluster.device_class()
        await cluster.claim("shared", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["shared"])
        await cluster.bound("p")
        found = await cluster.get_claim("shared")
        [result] = found["status"]["allocation"]["devices"]["results"]
        report = {key: result[key] for key in ("driver", "pool", "device")} | {"data": {"serial": "x1"}}
        found["status"]["devices"] = [report]
        await cluster.client.update(kinds.CLAIMS, "shared", found, cluster.namespace, subresource="status")
        await cluster.pod("q", claims=["shared"])
        await cluster.bound("q")
        status = (await cluster.get_claim("shared"))["status"]
        assert sorted(each["name"] for each in status["reservedFor"]) == ["p", "q"]
        assert [each["data"] for each in status["devices"]] == [{"serial": "x1"}]
        for name in ("p", "q"):
            await cluster.delete_pod(name)

        async def cleared():
            left = (await cluster.get_claim("shared")).get("status") or {}
            return not left.get("allocation") and not left.get("devices")

        await cluster.until(cleared, "allocation and reports are gone")


# --- granular authorization -----------------------------------------------------------------


class As:
    """A transport that acts for somebody else."""

    def __init__(self, inner, user):
        self.inner, self.user = inner, user

    async def send(self, request):
        headers = {**request.headers, "Impersonate-User": self.user}
        return await self.inner.send(dataclasses.replace(request, headers=headers))

    async def close(self):
        await self.inner.close()


async def _allow(cluster, name, user, *rules):
    name = f"{name}-{cluster.number}"
    body = {"metadata": {"name": name}, "rules": list(rules)}
    reference = {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": name}
    subject = {"apiGroup": CLUSTER_ROLES.group, "kind": "User", "name": user}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    for resource, content in ((CLUSTER_ROLES, body), (CLUSTER_ROLE_BINDINGS, binding)):
        await cluster.client.create(resource, content)
        cluster._made.append((resource, name))
    asked = {"verb": rules[0]["verbs"][0], "group": rules[0]["apiGroups"][0], "resource": "resourceclaims"}

    async def allowed():
        body = {"spec": {"user": user, "resourceAttributes": asked}}
        return (await cluster.client.create(ACCESS_REVIEWS, body))["status"]["allowed"]

    await cluster.until(allowed, f"{user} may {asked}")


def _rule(verbs, group, *resources):
    return {"verbs": verbs.split(","), "apiGroups": [group], "resources": list(resources)}


async def test_allocating_needs_the_right_to_bind_claims(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0")
        gpu = await cluster.device_class()
        await cluster.claim("c", {"name": "r", "deviceClassName": gpu})
        user = f"scheduler-{cluster.number}"
        dra = "resource.k8s.io"
        await _allow(
            cluster, "almost", user,
            _rule("get,list,watch", "*", "*"),
            _rule("create", "", "pods/binding"),
            _rule("patch,create,update", "", "pods/status", "events"),
            _rule("update,patch", dra, "resourceclaims", "resourceclaims/status"),
        )  # fmt: skip
        loop = await cluster.start_scheduler(wrap=lambda inner: As(inner, user))
        await cluster.pod("p", claims=["c"])
        await cluster.refused("p", words="resourceclaims/binding")
        assert not (await cluster.get_claim("c")).get("status", {}).get("allocation")
        assert loop.statistics.bound == 0
        await _allow(cluster, "binding", user, _rule("update,patch", dra, "resourceclaims/binding"))
        assert await cluster.bound("p") == "a"


# --- taint rules --------------------------------------------------------------------------


async def test_a_taint_rule_keeps_pods_away_until_it_is_gone(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "g0", "g1")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler()
        name = f"rule-{cluster.number}"
        selector = {"driver": cluster.driver, "pool": node, "device": "g0"}
        taint = {"key": "example.com/broken", "effect": "NoSchedule"}
        body = {"metadata": {"name": name}, "spec": {"deviceSelector": selector, "taint": taint}}
        await cluster.client.create(kinds.TAINT_RULES, body)
        cluster._made.append((kinds.TAINT_RULES, name))
        await cluster.pod("p", templates=["one"])
        await cluster.bound("p")
        [result] = (await cluster.claim_of("p"))["status"]["allocation"]["devices"]["results"]
        assert result["device"] == "g1"
        await cluster.pod("q", templates=["one"])
        await cluster.refused("q", words="taint")
        await cluster.client.delete(kinds.TAINT_RULES, name)
        assert await cluster.bound("q") == "a"


# --- extended resources -------------------------------------------------------------------


async def test_init_containers_use_the_devices_of_those_that_come_after_them(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0", "g1")
        name = f"example.com/gpu-{cluster.number}"
        await cluster.device_class(extendedResourceName=name)

        def wants(count):
            return {"requests": {name: count}, "limits": {name: count}}

        init = {"name": "init", "image": "registry.example/pause", "resources": wants("2")}
        await cluster.start_scheduler()
        await cluster.pod("p", resources=wants("1"), initContainers=[init])
        assert await cluster.bound("p") == "a"
        status = (await cluster.get_pod("p"))["status"]["extendedResourceClaimStatus"]
        mappings = {(each["containerName"], each["requestName"]) for each in status["requestMappings"]}
        own, later = "container-0-request-0", "container-1-request-0"
        assert mappings == {("init", own), ("init", later), ("main", later)}
        claim = await cluster.get_claim(status["resourceClaimName"])
        results = claim["status"]["allocation"]["devices"]["results"]
        assert sorted(each["request"] for each in results) == [own, later]


# --- partitions, shares, constraints ------------------------------------------------------


async def test_partitions_on_several_hosts_draw_from_one_counter(peer):
    async with Cluster(peer) as cluster:
        hosts = [await cluster.node(name) for name in ("a", "b")]
        pool = f"board-{cluster.number}"
        board = [{"name": "board", "counters": {"memory": {"value": "40Gi"}}}]
        await cluster.devices(None, pool=pool, count=3, sharedCounters=board, allNodes=True)

        def part(name, size):
            draws = [{"counterSet": "board", "counters": {"memory": {"value": f"{size}Gi"}}}]
            return {"name": name, "attributes": {"size": {"int": size}}, "consumesCounters": draws}

        await cluster.devices(hosts[0], part("left", 20), pool=pool, count=3)
        await cluster.devices(hosts[1], part("right", 20), part("whole", 40), pool=pool, count=3)
        gpu = await cluster.device_class()
        for size in (20, 40):
            selector = {"cel": {"expression": f"device.attributes['{cluster.driver}'].size == {size}"}}
            await cluster.template(
                f"size-{size}", {"name": "r", "deviceClassName": gpu, "selectors": [selector]}
            )
        await cluster.start_scheduler()

        def on(name):
            return {"kubernetes.io/hostname": f"{name}-{cluster.number}"}

        await cluster.pod("left", templates=["size-20"], nodeSelector=on("a"))
        assert await cluster.bound("left") == "a"
        await cluster.pod("whole", templates=["size-40"])
        await cluster.refused("whole")
        await cluster.pod("right", templates=["size-20"])
        assert await cluster.bound("right") == "b"
        await cluster.delete_pod("right")
        await asyncio.sleep(0.2)
        assert not (await cluster.get_pod("whole"))["spec"].get("nodeName"), "the other host still draws"
        await cluster.delete_pod("left")
        assert await cluster.bound("whole") == "b"


async def test_request_policies_round_up_and_refuse(peer):
    async with Cluster(peer) as cluster:
        memory = {
            "value": "16Gi",
            "requestPolicy": {
                "default": "2Gi",
                "validRange": {"min": "2Gi", "max": "8Gi", "step": "1Gi"},
            },
        }
        cores = {"value": "8", "requestPolicy": {"default": "1", "validValues": ["1", "2", "4"]}}
        device = {
            "name": "g0",
            "allowMultipleAllocations": True,
            "capacity": {"memory": memory, "cores": cores},
        }
        await cluster.devices(await cluster.node("a"), device)
        gpu = await cluster.device_class()
        await cluster.start_scheduler()

        async def consumed(name, **requests):
            wanted = {"name": "r", "deviceClassName": gpu}
            if requests:
                wanted["capacity"] = {"requests": requests}
            await cluster.claim(name, wanted)
            await cluster.pod(name, claims=[name])
            await cluster.bound(name)
            [result] = (await cluster.get_claim(name))["status"]["allocation"]["devices"]["results"]
            assert result["shareID"]
            return result["consumedCapacity"]

        assert await consumed("default") == {"memory": "2Gi", "cores": "1"}
        assert await consumed("little", memory="100Mi", cores="3") == {"memory": "2Gi", "cores": "4"}
        assert await consumed("stepped", memory="3500Mi") == {"memory": "4Gi", "cores": "1"}
        await cluster.claim(
            "greedy", {"name": "r", "deviceClassName": gpu, "capacity": {"requests": {"memory": "9Gi"}}}
        )
        await cluster.pod("greedy", claims=["greedy"])
        await cluster.refused("greedy")


async def test_distinct_attributes_spread_a_claim(peer):
    async with Cluster(peer) as cluster:

        def nic(name, port):
            return {"name": name, "attributes": {"port": {"int": port}}, "allowMultipleAllocations": True}

        await cluster.devices(await cluster.node("a"), nic("n0", 0), nic("n1", 0), nic("n2", 1))
        kind = await cluster.device_class("nic")
        apart = [{"distinctAttribute": f"{cluster.driver}/port"}]
        for name, count in (("two", 2), ("three", 3)):
            await cluster.claim(
                name, {"name": "r", "deviceClassName": kind, "count": count}, constraints=apart
            )
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["two"])
        await cluster.bound("p")
        assert await cluster.held("two") == ["n0", "n2"]
        await cluster.pod("q", claims=["three"])
        await cluster.refused("q")


async def test_devices_are_aligned_by_numa_node(peer):
    numa = "resource.kubernetes.io/numaNode"
    async with Cluster(peer) as cluster:

        def device(name, number):
            attributes = {numa: {"int": number}, "kind": {"string": name[:3]}}
            return {"name": name, "attributes": attributes}

        await cluster.devices(
            await cluster.node("a"), device("gpu0", 0), device("gpu1", 1), device("nic0", 1)
        )
        kinds_of = f"device.attributes['{cluster.driver}'].kind"
        gpu = await cluster.device_class("gpu", f"{kinds_of} == 'gpu'")
        nic = await cluster.device_class("nic", f"{kinds_of} == 'nic'")
        requests_wanted = ({"name": "g", "deviceClassName": gpu}, {"name": "n", "deviceClassName": nic})
        await cluster.claim("both", *requests_wanted, constraints=[{"matchAttribute": numa}])
        await cluster.start_scheduler()
        await cluster.pod("p", claims=["both"])
        await cluster.bound("p")
        assert await cluster.held("both") == ["gpu1", "nic0"]


# --- binding conditions ---------------------------------------------------------------------


async def test_a_device_that_is_not_made_ready_in_time_is_allocated_anew(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), _conditional("g0"))
        gpu = await cluster.device_class()
        await cluster.claim("c", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler(binding_timeout=1.2)
        await cluster.pod("p", claims=["c"])
        first = await _allocated(cluster, "c")

        async def anew():
            found = (await cluster.get_claim("c")).get("status", {}).get("allocation")
            return found and found["allocationTimestamp"] != first["allocationTimestamp"]

        await cluster.until(anew, "a second allocation")
        assert not (await cluster.get_pod("p"))["spec"].get("nodeName")
        assert await _attached(cluster, "c", "p") == "a"


# --- filter timeout -------------------------------------------------------------------------


def _puzzle(size, seed=2):
    """Devices of which no choice of `size` differs in all three attributes; a search takes for ever to see it."""
    chance = random.Random(seed)
    return [
        {"name": f"g{index:02}", "attributes": {name: {"int": chance.randrange(size)} for name in "abc"}}
        for index in range(4 * size)
    ]


async def test_a_search_without_end_is_cut_short_and_holds_nobody_up(peer):
    async with Cluster(peer) as cluster:
        size = 16
        node = await cluster.node("a")
        await cluster.devices(node, *_puzzle(size))
        gpu = await cluster.device_class()
        apart = [{"distinctAttribute": f"{cluster.driver}/{name}"} for name in "abc"]
        await cluster.claim("hard", {"name": "r", "deviceClassName": gpu, "count": size}, constraints=apart)
        await cluster.template("easy", {"name": "r", "deviceClassName": gpu})
        loop = await cluster.start_scheduler(filter_timeout=0.3)
        began = time.process_time()  # of this process: what others do on the machine does not count
        await cluster.pod("hard", claims=["hard"])
        await cluster.refused("hard", words="gave up")
        await cluster.pod("first", templates=["easy"])
        assert await cluster.bound("first") == "a"
        assert time.process_time() - began < 4, "a whole search takes some seven seconds"
        # A device that is freed does not make everybody wait for another search.
        tried, decide = [], loop.decide

        def watched(pod, *rest, **more):
            tried.append(pod.metadata.name)
            return decide(pod, *rest, **more)

        loop.decide = watched
        await cluster.delete_pod("first")
        await cluster.pod("second", templates=["easy"])
        await cluster.bound("second")
        assert "hard" not in tried


# --- the queue ------------------------------------------------------------------------------


async def test_a_pod_wakes_by_the_event_that_can_help_and_by_no_other(peer):
    async with Cluster(peer) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "g0")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "r", "deviceClassName": gpu})
        await cluster.claim("held", {"name": "r", "deviceClassName": gpu})
        loop = await cluster.start_scheduler()
        await cluster.pod("holder", claims=["held"])
        await cluster.bound("holder")
        await cluster.pod("wants-device", templates=["one"])
        await cluster.pod("wants-label", nodeSelector={"case": cluster.namespace, "zone": "z"})
        await cluster.pod("wants-claim", claims=["late"])
        for name, words in (("wants-device", "in use"), ("wants-label", "0/"), ("wants-claim", "late")):
            await cluster.refused(name, words=words)
        tried, decide = [], loop.decide

        def watched(pod, *rest, **more):
            tried.append(pod.metadata.name)
            return decide(pod, *rest, **more)

        loop.decide = watched
        # Nothing of this helps anybody.
        await cluster.claim("noise", {"name": "r", "deviceClassName": gpu})
        await cluster.client.patch(
            kinds.PODS, "holder", {"metadata": {"labels": {"a": "b"}}}, cluster.namespace
        )
        await cluster.client.delete(kinds.CLAIMS, "noise", cluster.namespace)
        await asyncio.sleep(0.3)
        assert tried == []
        await cluster.client.patch(kinds.NODES, node, {"metadata": {"labels": {"zone": "z"}}})
        await cluster.bound("wants-label")
        assert set(tried) <= {"wants-label", "wants-device"}, "a node may bring devices, no claim"
        tried.clear()
        admin = {"name": "r", "deviceClassName": gpu, "tolerations": [{"operator": "Exists"}]}
        await cluster.claim("late", admin)

        async def tried_again():
            return tried == ["wants-claim"]

        await cluster.until(tried_again, "the pod whose claim arrived is tried, and only that")
        tried.clear()
        await cluster.delete_pod("holder")
        await cluster.bound("wants-device")
        assert "wants-label" not in tried
