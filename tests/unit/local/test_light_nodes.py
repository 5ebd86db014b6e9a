"""Light nodes write the objects that full nodes write, and keep them as full nodes do."""

import asyncio
import contextlib
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from node_builders import eventually
from small_api import SmallApi

from dray.api.resource import DeviceTaint
from dray.client import Client
from dray.client.resources import NODES
from dray.client.resources import SLICES as RESOURCE_SLICES
from dray.drivers.faults import DeviceFault, FaultFile
from dray.local import light_nodes, node_plans
from dray.local.node_plans import FULL, LIGHT, NodePlan, Places, planned_nodes, refuse_heavy
from dray.local.nodes import host_nodes
from dray.sim.hardware import parse_hardware

NODE = "dgx-h100-1"
NODE_PATH = f"/api/v1/nodes/{NODE}"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
SLICES = "/apis/resource.k8s.io/v1/resourceslices/"
CLAIM_PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/gpu"
POD_PATH = "/api/v1/namespaces/default/pods/worker"
GPU = "gpu.nvidia.com"


@pytest.fixture
def folder():
    """Sockets have short paths."""
    made = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@contextlib.asynccontextmanager
async def hosted(folder, monkeypatch, weight, count=1, api=None):
    """Host nodes on a small API; all are up inside."""
    api = api or SmallApi()
    monkeypatch.setattr(Client, "connect", lambda *_, **__: api.client())
    plans = planned_nodes(parse_hardware([f"dgx-h100:{count}"]), None, "none", "none", weight=weight)
    assert all(plan.is_light is (weight == LIGHT) for plan in plans)
    ready = asyncio.Semaphore(0)
    task = asyncio.create_task(host_nodes(plans, Places(folder / "n", folder / "credentials"), ready))
    try:
        for _ in plans:
            waiting = asyncio.create_task(ready.acquire())
            await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
        await eventually(lambda: len(slices_of(api, None)) >= 3 * count, what="slices")
        yield api
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def slices_of(api, node=NODE):
    found = [obj for path, obj in api.objects.items() if path.startswith(SLICES)]
    return [obj for obj in found if node is None or obj["spec"]["nodeName"] == node]


def add_pod(api):
    """Bind a pod with an allocated claim, as the scheduler does."""
    result = {"request": "gpu", "driver": GPU, "pool": NODE, "device": "gpu-3"}
    pod = api.put(
        POD_PATH,
        {
            "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
            },
            "status": {"phase": "Pending"},
        },
    )
    consumer = {"resource": "pods", "name": "worker", "uid": pod["metadata"]["uid"]}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
    api.put(CLAIM_PATH, {"spec": {}, "status": status})
    bound = {**pod, "spec": {**pod["spec"], "nodeName": NODE}}
    api._store(POD_PATH, bound, "MODIFIED", 200)


def is_reported(api):
    return (
        api.objects[POD_PATH]["status"]["phase"] == "Running"
        and "devices" in api.objects[CLAIM_PATH]["status"]
        and "allocatedResourcesStatus" in api.objects[POD_PATH]["status"]["containerStatuses"][0]
    )


def essence(value):
    """Return an object without what differs from one run to the next: moments, uids, revisions, ports."""
    if isinstance(value, dict):
        left_out = {"uid", "resourceVersion", "generation", "Port"}
        kept = {key: essence(each) for key, each in value.items() if key not in left_out}
        if "generateName" in kept:
            kept.pop("name", None)
        return kept
    if isinstance(value, list):
        return [essence(each) for each in value]
    if isinstance(value, str):
        value = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "MOMENT", value)
        return re.sub(r"00000000-0000-4000-8000-\d{12}", "UID", value)
    return value


async def objects_of(folder, monkeypatch, weight):
    async with hosted(folder / weight[0], monkeypatch, weight) as api:
        add_pod(api)
        await eventually(lambda: is_reported(api), what="pod and claim reported")
        await eventually(lambda: LEASE_PATH in api.objects, what="lease")
        slices = {obj["spec"]["driver"]: essence(obj) for obj in slices_of(api)}
        one = {path: essence(api.objects[path]) for path in (NODE_PATH, LEASE_PATH, POD_PATH, CLAIM_PATH)}
        return one, slices


async def test_a_light_node_has_the_objects_of_a_full_node(folder, monkeypatch):
    full, full_slices = await objects_of(folder, monkeypatch, FULL)
    light, light_slices = await objects_of(folder, monkeypatch, LIGHT)
    for path, expected in full.items():
        assert light[path] == expected
    assert light_slices == full_slices
    assert len(full_slices) == 3


async def test_a_deleted_pod_is_removed_and_its_claim_unprepared(folder, monkeypatch):
    async with hosted(folder, monkeypatch, LIGHT) as api:
        add_pod(api)
        await eventually(lambda: is_reported(api), what="pod and claim reported")
        pod = api.objects[POD_PATH]
        ending = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 1}
        api._store(POD_PATH, {**pod, "metadata": {**pod["metadata"], **ending}}, "MODIFIED", 200)
        await eventually(lambda: POD_PATH not in api.objects, what="pod removed")


async def test_a_pod_that_asks_for_a_driver_which_is_not_there_is_told_so(folder, monkeypatch):
    async with hosted(folder, monkeypatch, LIGHT) as api:
        add_pod(api)
        claim = api.objects[CLAIM_PATH]
        claim["status"]["allocation"]["devices"]["results"][0]["driver"] = "other.example.com"

        def messages():
            return [obj["message"] for path, obj in api.objects.items() if "/events/" in path]

        await eventually(lambda: any("not registered" in text for text in messages()), what="event")
        assert any(GPU in text for text in messages()), "what is registered is named"


async def test_a_deleted_node_registers_again_and_owns_new_slices(folder, monkeypatch):
    async with hosted(folder, monkeypatch, LIGHT) as api:
        before = api.objects[NODE_PATH]["metadata"]["uid"]
        await eventually(lambda: "GET /api/v1/nodes" in api.requests)
        await api.client().delete(NODES, NODE)

        def is_whole():
            uid = api.objects.get(NODE_PATH, {}).get("metadata", {}).get("uid", before)
            owners = [obj["metadata"]["ownerReferences"][0]["uid"] for obj in slices_of(api)]
            return uid != before and owners == [uid] * 3

        await eventually(is_whole, what="node and slices of the new node")


async def test_a_slice_that_somebody_deletes_comes_back(folder, monkeypatch):
    async with hosted(folder, monkeypatch, LIGHT) as api:
        await eventually(lambda: "GET /apis/resource.k8s.io/v1/resourceslices" in api.requests[-20:])
        # Before the watch begins a deletion is not seen, so it is repeated.
        for _ in range(3):
            gone = slices_of(api)[0]
            await api.client().delete(RESOURCE_SLICES, gone["metadata"]["name"])
            with contextlib.suppress(AssertionError):
                await eventually(lambda: len(slices_of(api)) == 3, seconds=3.0)
                return
        pytest.fail("the slice did not come back")


async def test_a_start_asks_for_no_list_of_all_slices(folder, monkeypatch):
    """Of thousands of nodes they would be most of what this process holds, and of what the server does."""
    api = SmallApi()
    collection = "GET " + SLICES.rstrip("/")
    async with hosted(folder, monkeypatch, LIGHT, count=4, api=api):
        await eventually(lambda: "GET /api/v1/nodes" in api.requests, what="the nodes' informer")
        await eventually(lambda: api.requests.count(collection) >= 3, what="the watch of slices")
        assert api.requests.count(collection) == 3, "is there one, from where to watch, and the watch"


async def test_new_nodes_are_registered_with_few_requests_and_untainted_afterwards(folder, monkeypatch):
    """The node lifecycle controller removes the first taint, too: of two writers one meets a conflict."""
    api = SmallApi()
    tainted = set()

    def taint_once(obj):
        name = obj["metadata"].get("name", "")
        if obj.get("kind") == "Node" and name not in tainted:
            tainted.add(name)
            taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
            obj["spec"] = {**(obj.get("spec") or {}), "taints": [taint]}

    api.on_stored = taint_once
    async with hosted(folder, monkeypatch, LIGHT, count=3, api=api):
        nodes = [f"/api/v1/nodes/dgx-h100-{number}" for number in (1, 2, 3)]
        leases = [LEASE_PATH[:-1] + str(number) for number in (1, 2, 3)]

        def untainted():
            return not any(api.objects[path].get("spec", {}).get("taints") for path in nodes)

        await eventually(untainted, what="nodes without the taint of new ones")
        assert len(tainted) == 3
        listed = api.requests.index("GET /api/v1/nodes")
        assert not [request for request in api.requests[:listed] if request.startswith("PATCH")]
        assert not [request for request in api.requests if request.removeprefix("GET ") in leases]


async def test_a_node_that_was_marked_unknown_says_that_it_is_ready(folder, monkeypatch):
    async with hosted(folder, monkeypatch, LIGHT) as api:
        node = api.objects[NODE_PATH]
        unknown = [{"type": "Ready", "status": "Unknown"}]
        api._store(NODE_PATH, {**node, "status": {**node["status"], "conditions": unknown}}, "MODIFIED", 200)

        def is_ready():
            conditions = api.objects[NODE_PATH]["status"]["conditions"]
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

        await eventually(is_ready, what="Ready again")


async def test_a_fault_taints_the_device_and_is_told_to_its_pod(folder, monkeypatch):
    monkeypatch.setattr(light_nodes, "_LOOK_SECONDS", 0.02)
    async with hosted(folder, monkeypatch, LIGHT) as api:
        add_pod(api)
        await eventually(lambda: is_reported(api), what="pod and claim reported")
        taint = DeviceTaint(key="broken", effect="NoSchedule")
        file = FaultFile(folder / "n" / NODE / "faults" / f"{GPU}.yaml")
        file.change("gpu-3", DeviceFault(health="Unhealthy", message="gone", taint=taint))

        def tainted():
            return [
                device["name"]
                for obj in slices_of(api)
                for device in obj["spec"]["devices"]
                if device.get("taints")
            ]

        def health():
            container = api.objects[POD_PATH]["status"]["containerStatuses"][0]
            return container["allocatedResourcesStatus"][0]["resources"][0]["health"]

        await eventually(lambda: tainted() == ["gpu-3"] and health() == "Unhealthy", what="the fault")


async def test_a_second_start_finds_its_slices_and_writes_none(folder, monkeypatch):
    api = SmallApi()
    async with hosted(folder, monkeypatch, LIGHT, api=api):
        first = {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in slices_of(api)}
    async with hosted(folder, monkeypatch, LIGHT, api=api):
        again = {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in slices_of(api)}
    assert again == first


def test_nodes_are_light_beyond_a_number_and_where_they_can_be():
    few, many = parse_hardware(["dgx-h100:2"]), parse_hardware([f"dgx-h100:{node_plans.MOST_FULL_NODES + 1}"])

    def weights(simulated, runtime, weight="auto", host=None):
        return {plan.is_light for plan in planned_nodes(simulated, host, runtime, runtime, weight=weight)}

    assert weights(few, "none") == {False}
    assert weights(many, "none") == {True}
    assert weights(many, "none", "full") == {False}
    assert weights(many, "process") == {False}
    assert weights(few, "none", "light") == {True}
    assert weights(few, "none", "light", host="here") == {True, False}, "this machine is never light"


def test_a_node_that_cannot_be_light_is_named_with_the_reason():
    (profile, _), *_ = parse_hardware(["dgx-h100"])
    with pytest.raises(ValueError, match="node n cannot be light: its containers run"):
        refuse_heavy([NodePlan("n", profile, "process")])
    refuse_heavy([NodePlan("this-machine")])
