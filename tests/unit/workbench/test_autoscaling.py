"""Node groups, what grows and what goes, the controller's steps, and the calls of cluster-autoscaler."""

import base64
import itertools
import json
from pathlib import Path

import grpc
import msgspec
import pytest
from small_api import SmallApi

from dray.api.protobuf import MAGIC, encode_field
from dray.api.rpc.generated import cluster_autoscaler_v1_pb2 as messages
from dray.api.rpc.generated import cluster_autoscaler_v1_pb2_grpc as service
from dray.api.schema import schema_of
from dray.client import EventRecorder
from dray.client.resources import CLAIMS, DEVICE_CLASSES, NODES, PODS, SLICES
from dray.drivers.hardware import device_classes
from dray.server.requests.protobuf_bodies import decode_object
from dray.sim.machines import CREATING, DELETING, FAILED, GROUP_LABEL, RUNNING, Instance
from dray.sim.snapshot import Snapshot
from dray.workbench.autoscaling import (
    Autoscaler,
    GroupState,
    NodeGroupError,
    NodeGroups,
    ScalingOptions,
    groups_of,
    plan_scaling,
)
from dray.workbench.autoscaling.decision import KEEP_ANNOTATION
from dray.workbench.autoscaling.external_provider import AddressRefused, serve_provider
from dray.workbench.capacity import CatalogueError, parse_catalogue

DRIVER = "gpu.nvidia.com"
RECORDED = Path(__file__).parents[2] / "recordings" / "autoscaler" / "external_provider.jsonl"


def catalogue(*types, classes=()):
    types = types or (
        {"name": "ws", "profile": "workstation", "price": 2, "max": 4},
        {"name": "l40s", "profile": "l40s-shared", "price": 6, "max": 3},
    )
    return parse_catalogue([{"nodeTypes": list(types), "computeClasses": list(classes)}], "test")


class FakeMachines:
    """Machines that exist as soon as they are asked for; `join` and `leave` say when their nodes come and go."""

    def __init__(self, api=None):
        self.api = api
        self.found = {}
        self.parts = {}
        self.now = 0.0

    def instances(self):
        return list(self.found.values())

    async def start(self, name, group, node, slices):
        assert name not in self.found
        self.found[name] = Instance(name, group, CREATING, self.now)
        self.parts[name] = (node, slices)

    async def stop(self, name):
        found = self.found[name]
        self.found[name] = Instance(name, found.group, DELETING, found.since)

    def join(self, name):
        node, slices = self.parts[name]
        self.found[name] = Instance(name, self.found[name].group, RUNNING, self.found[name].since)
        if self.api is not None:
            store = Snapshot()
            store.add_view(node)
            for each in slices:
                store.add_view(each)
            for obj in store.objects:
                resource = NODES if obj["kind"] == "Node" else SLICES
                self.api.put(f"{resource.path()}/{obj['metadata']['name']}", obj)

    def leave(self, name):
        del self.found[name]


def node_groups(found, machines):
    numbers = itertools.count(1)
    return NodeGroups(groups_of(found), machines, lambda: f"n{next(numbers)}")


def cluster(nodes=(), pods=(), claims=(), found=None):
    """Return a cluster of nodes of a catalogue: (group, name)."""
    snapshot = Snapshot()
    groups = {each.name: each for each in groups_of(found or catalogue())}
    for group, name in nodes:
        node, slices = groups[group].instance(name)
        snapshot.add_view(node)
        for each in slices:
            snapshot.add_view(each)
    for each in device_classes():
        snapshot.add_view(each)
    for each in (*claims, *pods):
        snapshot.add(each)
    return snapshot


def states(*instances, found=None):
    return [
        GroupState(group, tuple(each for each in instances if each.group == group.name))
        for group in groups_of(found or catalogue())
    ]


def claim(name, *, memory="", device=None):
    selectors = [
        {"cel": {"expression": f"device.capacity['{DRIVER}'].memory.compareTo(quantity('{memory}')) >= 0"}}
    ]
    exactly = {"deviceClassName": DRIVER, **({"selectors": selectors} if memory else {})}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": f"claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    if device is not None:
        pool, name = device
        result = {"request": "r", "driver": DRIVER, "pool": pool, "device": name}
        body["status"] = {"allocation": {"devices": {"results": [result]}}}
    return body


def pod(name, *, node="", selector=None, daemon=False, phase="Pending", gates=()):
    owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]
    spec = {
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "g"}]}}],
        "resourceClaims": [{"name": "g", "resourceClaimName": name}],
        "schedulingGates": [{"name": gate} for gate in gates],
    }
    if daemon:
        spec = {"containers": [{"name": "c", "image": "i"}]}
    if node:
        spec["nodeName"] = node
    if selector:
        spec["nodeSelector"] = selector
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", **({"ownerReferences": owners} if daemon else {})},
        "spec": spec,
        "status": {"phase": phase},
    }  # fmt: skip


def waiting(count, **more):
    return {
        "pods": [pod(f"p{number}") for number in range(count)],
        "claims": [claim(f"p{number}", **more) for number in range(count)],
    }


# --- the decision -------------------------------------------------------------------


def test_from_zero_the_cheapest_group_that_serves_the_claims_grows():
    plan = plan_scaling(cluster(**waiting(5)), states(), catalogue(), now=0.0)
    assert [(each.group, each.delta, each.size) for each in plan.increases] == [("ws", 3, 0)]
    assert sorted(plan.increases[0].pods) == [f"ns/p{number}" for number in range(5)]
    plan = plan_scaling(cluster(**waiting(1, memory="40Gi")), states(), catalogue(), now=0.0)
    assert [(each.group, each.delta) for each in plan.increases] == [("l40s", 1)]


def test_what_was_asked_for_is_not_asked_for_again_while_it_starts():
    coming = [Instance(f"ws-{number}", "ws", CREATING, 0.0) for number in range(3)]
    cloud = cluster(**waiting(5))
    assert plan_scaling(cloud, states(*coming), catalogue(), now=1.0).increases == ()
    # A node that has joined but whose drivers have not published yet is coming still.
    bare = cluster([("ws", "ws-0")], **waiting(5))
    bare.slices.clear()
    running = [Instance("ws-0", "ws", RUNNING, 0.0), *coming[1:]]
    assert plan_scaling(bare, states(*running), catalogue(), now=1.0).increases == ()


def test_a_group_never_has_more_than_its_most_and_the_rest_is_named_with_the_reason():
    own = catalogue({"name": "ws", "profile": "workstation", "price": 2, "max": 2})
    one = cluster([("ws", "ws-1")], **waiting(5), found=own)
    plan = plan_scaling(one, states(Instance("ws-1", "ws"), found=own), own, now=0.0)
    assert [(each.group, each.delta, each.size, each.most) for each in plan.increases] == [("ws", 1, 1, 2)]
    assert len(plan.unserved) == 1
    assert plan.unserved[0].reasons


def test_the_least_size_is_kept_without_any_pod():
    own = catalogue({"name": "ws", "profile": "workstation", "price": 2, "min": 2, "max": 4})
    plan = plan_scaling(cluster(found=own), states(found=own), own, now=0.0)
    assert [(each.group, each.delta, each.pods) for each in plan.increases] == [("ws", 2, ())]
    # The pods that wait use these nodes first: no third one is bought for four claims.
    plan = plan_scaling(cluster(**waiting(4), found=own), states(found=own), own, now=0.0)
    assert sum(each.delta for each in plan.increases) == 2
    # Four idle nodes: two go.
    nodes = [("ws", f"ws-{number}") for number in range(4)]
    instances = [Instance(name, "ws") for _, name in nodes]
    since = dict.fromkeys((name for _, name in nodes), 0.0)
    plan = plan_scaling(
        cluster(nodes, found=own), states(*instances, found=own), own, now=1000.0, idle_since=since
    )
    assert [each.node for each in plan.removals] == ["ws-0", "ws-1"]


def test_a_node_goes_only_when_nobody_has_used_it_for_the_whole_time():
    nodes = [
        ("ws", name) for name in ("idle", "pod", "claimed", "daemon", "ended", "kept", "leaving", "needed")
    ]
    leaving = pod("l", node="leaving", phase="Failed")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cloud = cluster(
        nodes,
        pods=[
            pod("a", node="pod", phase="Running"),
            pod("b", node="daemon", phase="Running", daemon=True),
            pod("c", node="ended", phase="Succeeded"),
            leaving,
        ],
        claims=[claim("a", device=("pod", "gpu-0")), claim("x", device=("claimed", "gpu-1")), claim("c")],
    )
    kept = next(node for node in cloud.nodes if node.metadata.name == "kept")
    cloud.nodes[cloud.nodes.index(kept)] = msgspec.structs.replace(
        kept,
        metadata=msgspec.structs.replace(kept.metadata, annotations={KEEP_ANNOTATION: "true"}),
    )
    own = catalogue({"name": "ws", "profile": "workstation", "price": 2})
    instances = [Instance(name, "ws") for _, name in nodes]
    first = plan_scaling(cloud, states(*instances, found=own), own, now=100.0)
    assert first.removals == ()
    assert set(first.idle_since) == {"idle", "daemon", "ended", "needed"}
    later = plan_scaling(
        cloud, states(*instances, found=own), own, now=700.0, idle_since={**first.idle_since, "needed": 650.0}
    )
    assert [each.node for each in later.removals] == ["daemon", "ended", "idle"]
    # Use in between begins the time again.
    assert plan_scaling(cloud, states(*instances, found=own), own, now=700.0).removals == ()


def test_a_node_that_a_waiting_pod_will_get_stays():
    own = catalogue({"name": "ws", "profile": "workstation", "price": 2})
    cloud = cluster([("ws", "ws-1")], **waiting(1), found=own)
    plan = plan_scaling(
        cloud, states(Instance("ws-1", "ws"), found=own), own, now=9999.0, idle_since={"ws-1": 0.0}
    )
    assert (plan.increases, plan.removals, dict(plan.idle_since)) == ((), (), {})


def test_gated_ended_and_leaving_pods_want_no_node():
    leaving = pod("c")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pods = [pod("a", gates=["wait"]), pod("b", phase="Failed"), leaving]
    cloud = cluster(pods=pods, claims=[claim("a"), claim("b"), claim("c")])
    assert plan_scaling(cloud, states(), catalogue(), now=0.0).increases == ()


def test_a_machine_that_fails_or_never_joins_is_given_up_and_its_group_does_not_grow():
    broken = [Instance("ws-1", "ws", FAILED, 0.0, "no such device"), Instance("ws-2", "ws", CREATING, 0.0)]
    plan = plan_scaling(cluster(**waiting(1)), states(*broken), catalogue(), now=301.0)
    assert [(each.node, each.is_failure) for each in plan.removals] == [("ws-1", True), ("ws-2", True)]
    assert "no such device" in plan.removals[0].reason
    assert "300 s" in plan.removals[1].reason
    assert [each.group for each in plan.increases] == ["l40s"]  # the next cheapest
    paused = plan_scaling(cluster(**waiting(1)), states(), catalogue(), now=302.0, paused={"ws"})
    assert [each.group for each in paused.increases] == ["l40s"]


def test_pods_of_a_compute_class_get_nodes_with_its_label():
    own = catalogue(
        {"name": "ws", "profile": "workstation", "price": 2},
        {"name": "l40s", "profile": "l40s-shared", "price": 6},
        classes=[{"name": "big", "priorities": [{"nodeTypes": ["l40s"]}]}],
    )
    assert [each.name for each in groups_of(own)] == ["ws", "l40s", "l40s.big"]
    cloud = cluster(
        pods=[pod("a", selector={"dray.dev/compute-class": "big"})], claims=[claim("a")], found=own
    )
    plan = plan_scaling(cloud, states(found=own), own, now=0.0)
    assert [each.group for each in plan.increases] == ["l40s.big"]
    node, _ = groups_of(own)[2].instance("n")
    assert node.metadata.labels["dray.dev/compute-class"] == "big"
    assert node.metadata.labels[GROUP_LABEL] == "l40s.big"


@pytest.mark.parametrize("least", [-1, 5, "x", True])
def test_a_least_size_out_of_bounds_is_refused(least):
    with pytest.raises(CatalogueError, match="min"):
        catalogue({"name": "ws", "profile": "workstation", "price": 2, "min": least, "max": 4})


# --- node groups --------------------------------------------------------------------


@pytest.mark.asyncio
async def test_sizes_have_bounds_and_refusals_change_nothing():
    machines = FakeMachines()
    own = catalogue({"name": "ws", "profile": "workstation", "price": 2, "min": 1, "max": 3})
    groups = node_groups(own, machines)
    assert await groups.increase("ws", 2) == ["ws-n1", "ws-n2"]
    machines.join("ws-n1")
    for refused in (
        groups.increase("ws", 2),
        groups.increase("ws", 0),
        groups.increase("nothing", 1),
        groups.decrease_target("ws", 1),
        groups.decrease_target("ws", -2),
        groups.delete("ws", ["other"]),
        groups.delete("ws", ["ws-n1", "ws-n2"]),
    ):
        with pytest.raises(NodeGroupError):
            await refused
    assert {each.state for each in machines.instances()} == {RUNNING, CREATING}
    await groups.decrease_target("ws", -1)
    assert machines.found["ws-n2"].state == DELETING
    assert (groups.state("ws").size, groups.room("ws")) == (1, 2)
    await groups.delete("ws", ["ws-n2"])  # it goes already
    assert groups.state("ws").size == 1


@pytest.mark.asyncio
async def test_groups_of_one_type_share_its_most():
    own = catalogue(
        {"name": "ws", "profile": "workstation", "price": 2, "max": 3},
        classes=[{"name": "a", "priorities": [{"nodeTypes": ["ws"]}]}],
    )
    groups = node_groups(own, FakeMachines())
    await groups.increase("ws", 2)
    with pytest.raises(NodeGroupError):
        await groups.increase("ws.a", 2)
    assert await groups.increase("ws.a", 1) == ["ws-a-n3"]


# --- the controller -----------------------------------------------------------------


class SimulatedCloud:
    """A controller on a small API server, whose machines join when told to."""

    def __init__(self, found=None, **options):
        self.api = SmallApi()
        self.machines = FakeMachines(self.api)
        self.catalogue = found or catalogue()
        self.groups = node_groups(self.catalogue, self.machines)
        self.said = []
        self.now = 0.0
        self.in_between = lambda: None
        client = self.api.client()
        self.recorder = EventRecorder(client, "dray-autoscale")
        self.events = []
        self.recorder.record = lambda *parts: self.events.append((parts[1].name, *parts[3:]))
        self.scaler = Autoscaler(
            client,
            self.groups,
            self.catalogue,
            ScalingOptions(**options),
            self.said.append,
            clock=lambda: self.now,
            pause=self.pause,
            recorder=self.recorder,
        )
        for each in device_classes():
            store = Snapshot()
            store.add_view(each)
            self.api.put(f"{DEVICE_CLASSES.path()}/{each.metadata.name}", store.objects[0])

    async def pause(self, _seconds):
        self.in_between()

    def put(self, *objects):
        for each in objects:
            resource = {"Pod": PODS, "ResourceClaim": CLAIMS}[each["kind"]]
            self.api.put(f"{resource.path('ns')}/{each['metadata']['name']}", each)

    def node(self, name):
        return self.api.objects[f"{NODES.path()}/{name}"]


@pytest.mark.asyncio
async def test_one_two_one():
    cloud = SimulatedCloud(
        catalogue({"name": "ws", "profile": "workstation", "price": 2, "min": 1, "max": 4}), idle_seconds=60
    )
    await cloud.scaler.step()
    assert list(cloud.machines.found) == ["ws-n1"]
    cloud.machines.join("ws-n1")
    cloud.put(*waiting(3)["claims"], *waiting(3)["pods"])
    await cloud.scaler.step()
    assert list(cloud.machines.found) == ["ws-n1", "ws-n2"]
    assert ("p0", "TriggeredScaleUp") in {event[:2] for event in cloud.events} or len(cloud.events) == 1
    cloud.machines.join("ws-n2")
    for number in range(3):
        del cloud.api.objects[f"{PODS.path('ns')}/p{number}"]
        del cloud.api.objects[f"{CLAIMS.path('ns')}/p{number}"]
    await cloud.scaler.step()
    cloud.now = 59.0
    await cloud.scaler.step()
    assert {each.state for each in cloud.machines.instances()} == {RUNNING}
    cloud.now = 61.0
    await cloud.scaler.step()
    assert cloud.groups.state("ws").size == 1
    assert any("goes: nobody has used it for 60 s" in text for text in cloud.said)


@pytest.mark.asyncio
async def test_a_pod_that_comes_between_the_cordon_and_the_last_look_saves_its_node():
    cloud = SimulatedCloud(idle_seconds=60)
    await cloud.groups.increase("ws", 1)
    cloud.machines.join("ws-n1")
    await cloud.scaler.step()
    cloud.now = 100.0

    def bind():
        assert cloud.node("ws-n1")["spec"]["unschedulable"] is True
        cloud.put(claim("late", device=("ws-n1", "gpu-0")), pod("late", node="ws-n1", phase="Running"))

    cloud.in_between = bind
    await cloud.scaler.step()
    assert cloud.machines.found["ws-n1"].state == RUNNING
    assert not cloud.node("ws-n1")["spec"].get("unschedulable")
    assert any("stays: a pod came" in text for text in cloud.said)


@pytest.mark.asyncio
async def test_a_removal_that_a_killed_process_began_is_given_back_or_done():
    cloud = SimulatedCloud(idle_seconds=60)
    await cloud.groups.increase("ws", 1)
    cloud.machines.join("ws-n1")
    node = cloud.node("ws-n1")
    node["metadata"].setdefault("annotations", {})["dray.dev/scale-down"] = "true"
    node["spec"]["unschedulable"] = True
    await cloud.scaler.step()
    assert not cloud.node("ws-n1")["spec"].get("unschedulable")
    assert "dray.dev/scale-down" not in (cloud.node("ws-n1")["metadata"].get("annotations") or {})


@pytest.mark.asyncio
async def test_a_node_that_an_administrator_cordoned_stays_cordoned():
    cloud = SimulatedCloud()
    await cloud.groups.increase("ws", 1)
    cloud.machines.join("ws-n1")
    cloud.node("ws-n1")["spec"]["unschedulable"] = True
    await cloud.scaler.step()
    assert cloud.node("ws-n1")["spec"]["unschedulable"] is True


@pytest.mark.asyncio
async def test_a_pod_that_no_group_serves_is_told_why_once_and_planned_for_once_a_minute(monkeypatch):
    cloud = SimulatedCloud()
    cloud.put(claim("huge", memory="4Ti"), pod("huge"))
    planned = []
    real = plan_scaling

    def counting(snapshot, *args, **kwargs):
        planned.append(sum(not each.spec.node_name for each in snapshot.pods))
        return real(snapshot, *args, **kwargs)

    monkeypatch.setattr("dray.workbench.autoscaling.controller.plan_scaling", counting)
    for cloud.now in (0.0, 5.0, 59.0, 61.0):
        await cloud.scaler.step()
    assert planned == [1, 0, 0, 1]
    [event] = cloud.events
    assert event[:2] == ("huge", "NotTriggerScaleUp")
    assert "l40s" in event[2]


@pytest.mark.asyncio
async def test_a_machine_that_failed_is_removed_even_below_the_least_size():
    cloud = SimulatedCloud(
        catalogue({"name": "ws", "profile": "workstation", "price": 2, "min": 1, "max": 4})
    )
    await cloud.scaler.step()
    cloud.machines.found["ws-n1"] = Instance("ws-n1", "ws", FAILED, 0.0, "port taken")
    await cloud.scaler.step()
    assert cloud.machines.found["ws-n1"].state == DELETING
    assert any("given up: port taken" in text for text in cloud.said)
    cloud.machines.leave("ws-n1")
    await cloud.scaler.step()
    assert cloud.machines.found == {}  # it waits
    cloud.now = 301.0
    await cloud.scaler.step()
    assert list(cloud.machines.found) == ["ws-n2"]


# --- cluster-autoscaler -------------------------------------------------------------


async def called(machines, found=None, suffixes=None):
    """Return the stub of a served provider and what stops it."""
    groups = NodeGroups(groups_of(found or catalogue()), machines, suffixes or itertools.count(1).__next__)
    server, port = await serve_provider(groups, "127.0.0.1:0")
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    return service.CloudProviderStub(channel), (channel, server)


async def stopped(channel, server):
    await channel.close()
    await server.stop(None)


# How the names of the recording's messages are written in the generated classes.
REQUESTS = {
    method.name: method.input_type.name
    for method in messages.DESCRIPTOR.services_by_name["CloudProvider"].methods
}


def recorded():
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


@pytest.mark.asyncio
async def test_the_recorded_calls_of_cluster_autoscaler_are_answered_as_they_were():
    """1 -> 3 -> 1 by cluster-autoscaler 1.36.1; nodes join and leave here when the recording shows that they did."""
    machines = FakeMachines()
    own = catalogue(
        {"name": "ws", "profile": "workstation", "price": 2.1, "min": 1, "max": 4},
        {"name": "l40s", "profile": "l40s-shared", "price": 6.4, "max": 3},
    )
    lines = recorded()
    suffixes = iter(lines[0]["suffixes"])
    stub, server = await called(machines, own, lambda: next(suffixes))
    sizes = []
    try:
        for line in lines[1:]:
            if "node" in line:  # what the machines did
                getattr(machines, line["did"])(line["node"])
                continue
            request = getattr(messages, REQUESTS[line["method"]]).FromString(
                base64.b64decode(line["request"])
            )
            if "refused" in line:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await getattr(stub, line["method"])(request)
                assert caught.value.code().name == line["refused"]
                continue
            answer = await getattr(stub, line["method"])(request)
            assert answer == type(answer).FromString(base64.b64decode(line["answer"])), line
            if line["method"] == "NodeGroupTargetSize" and request.id == "ws":
                sizes.append(answer.target_size)
    finally:
        await stopped(*server)
    assert [size for size, _ in itertools.groupby(sizes)] == [0, 1, 3, 1]


def enveloped(api_version, kind, message):
    types = encode_field(1, api_version.encode()) + encode_field(2, kind.encode())
    return MAGIC + encode_field(1, types) + encode_field(2, message)


@pytest.mark.asyncio
async def test_the_template_of_an_empty_group_carries_its_slices():
    stub, server = await called(FakeMachines())
    try:
        answer = await stub.NodeGroupTemplateNodeInfo(messages.NodeGroupTemplateNodeInfoRequest(id="l40s"))
    finally:
        await stopped(*server)
    assert len(answer.resource_slice_bytes) == 1
    # Both are Kubernetes messages without envelope: put into one they are read as the server reads them.
    node = decode_object(schema_of("", "v1", "Node"), enveloped("v1", "Node", answer.node_bytes))
    assert node["metadata"]["labels"][GROUP_LABEL] == "l40s"
    assert node["status"]["allocatable"]["pods"] == "110"
    body = enveloped("resource.k8s.io/v1", "ResourceSlice", answer.resource_slice_bytes[0])
    found = decode_object(schema_of("resource.k8s.io", "v1", "ResourceSlice"), body)
    assert found["spec"]["driver"] == DRIVER
    assert len(found["spec"]["devices"]) == 4


@pytest.mark.asyncio
async def test_calls_that_cannot_be_served_are_refused_with_the_reason():
    machines = FakeMachines()
    stub, server = await called(machines)
    cases = [
        (stub.NodeGroupTargetSize, messages.NodeGroupTargetSizeRequest(id="x"), "NOT_FOUND"),
        (stub.NodeGroupIncreaseSize, messages.NodeGroupIncreaseSizeRequest(id="ws", delta=5), "FAILED_PRECONDITION"),
        (stub.NodeGroupIncreaseSize, messages.NodeGroupIncreaseSizeRequest(id="ws", delta=-1), "FAILED_PRECONDITION"),
        (
            stub.NodeGroupDeleteNodes,
            messages.NodeGroupDeleteNodesRequest(id="ws", nodes=[messages.ExternalGrpcNode(name="foreign")]),
            "FAILED_PRECONDITION",
        ),
        (stub.PricingPodPrice, messages.PricingPodPriceRequest(), "UNIMPLEMENTED"),
        (
            stub.PricingNodePrice,
            messages.PricingNodePriceRequest(node=messages.ExternalGrpcNode(name="foreign")),
            "NOT_FOUND",
        ),
    ]  # fmt: skip
    try:
        for call, request, code in cases:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request)
            assert caught.value.code().name == code, request
        foreign = await stub.NodeGroupForNode(
            messages.NodeGroupForNodeRequest(node=messages.ExternalGrpcNode(name="foreign"))
        )
        assert foreign.node_group.id == ""
        await stub.NodeGroupIncreaseSize(messages.NodeGroupIncreaseSizeRequest(id="ws", delta=2))
        first, second = machines.found
        # Of a machine that has not joined upstream knows the provider id, and takes it for the name.
        made_up = messages.ExternalGrpcNode(name=f"dray://ws/{first}", provider_id=f"dray://ws/{first}")
        answer = await stub.NodeGroupForNode(messages.NodeGroupForNodeRequest(node=made_up))
        assert answer.node_group.id == "ws"
        await stub.NodeGroupDeleteNodes(messages.NodeGroupDeleteNodesRequest(id="ws", nodes=[made_up]))
        assert [machines.found[name].state for name in (first, second)] == [DELETING, CREATING]
        price = messages.PricingNodePriceRequest(node=messages.ExternalGrpcNode(name=second))
        price.end_timestamp.seconds = 7200
        assert (await stub.PricingNodePrice(price)).price == 4.0
    finally:
        await stopped(*server)
    assert len(machines.found) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:0", "example.com:0", ":0", "nonsense"])
async def test_without_tls_nobody_else_can_reach_the_provider(address):
    with pytest.raises(AddressRefused):
        await serve_provider(node_groups(catalogue(), FakeMachines()), address)
