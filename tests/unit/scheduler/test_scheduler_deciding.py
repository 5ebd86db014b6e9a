"""`decide`: gangs with extended resources start together or not at all, leftovers are released, nothing is taken."""

import msgspec
import pytest
from scheduler_builders import allocated, claim, container, device_class, node, pod, resource_slice

from dray.allocator import Plan
from dray.api.core import PodGroup
from dray.api.features import Features
from dray.api.resource import ResourceClaim
from dray.scheduler import (
    ClusterSnapshot,
    Nomination,
    NotReady,
    ReleaseFirst,
    SchedulerProfile,
    Unplaceable,
    decide,
    special_name,
)
from dray.scheduler.extended import IN_MEMORY_NAME

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"


class Cluster:
    """A snapshot that a test fills by hand; every decision must leave it as it was."""

    def __init__(self, *objects, min_count=2, features=(), without=()):
        gates = Features.default().switched(list(features), list(without))
        self.snapshot = snapshot = ClusterSnapshot(
            SchedulerProfile(features=gates), new_share_id=lambda: "share"
        )
        for each in objects:
            add = {
                "Node": snapshot.set_node,
                "ResourceSlice": snapshot.set_slice,
                "DeviceClass": snapshot.set_class,
            }[type(each).__name__]
            add(each)
        self.group(min_count)

    def group(self, min_count):
        """Let the gang start with so many pods."""
        gang = {"schedulingPolicy": {"gang": {"minCount": min_count}}}
        body = {"metadata": {"name": "gang", "namespace": "ns", "uid": "uid-gang"}, "spec": gang}
        self.snapshot.groups["ns/gang"] = msgspec.convert(body, PodGroup)

    def decide(self, *pods):
        before = self.seen()
        decision = decide(pods[0], self.snapshot, pods)
        assert self.seen() == before, "nothing is taken by deciding"
        return decision

    def seen(self):
        """What the snapshot says of nodes, pods and devices in use."""
        snapshot = self.snapshot
        nodes = {
            name: ({k: v for k, v in node.used.items() if v}, sorted(node.pods))
            for name, node in snapshot.state.nodes.items()
        }
        free = {
            name: isinstance(snapshot.devices.allocator.plan(name, [claim("probe", count)]), Plan)
            for name in snapshot.state.nodes
            for count in (1, 2, 3)
            if snapshot.devices.allocator.classes
        }
        return nodes, free, sorted(snapshot.state.pods), sorted(snapshot.reserved), snapshot.placer.start

    def reserve(self, decision):
        for placed in decision:
            self.snapshot.reserve(placed.pod, placed.shape, placed.placement)

    def keep(self, claim):
        """Let a claim be on the server."""
        self.snapshot.set_claim(claim)


def member(name, resource=GPU, count=1, **more):
    group = {"podGroupName": "gang"}
    return pod(name, containers=[container(**{resource: str(count)})], scheduling_group=group, **more)


def made_for(each, placed):
    """The special claim of a placement, as it is on the server when it was written and its scheduler died."""
    [wanted], [allocation] = placed.placement.claims, placed.placement.allocations
    found = msgspec.to_builtins(allocated(wanted, allocation, each.metadata.uid))
    found["metadata"] |= {
        "name": special_name(each),
        "uid": f"uid-{special_name(each)}",
        "resourceVersion": "7",
    }
    return msgspec.convert(found, ResourceClaim)


def hardware(**devices):
    return [
        device_class(extended_resource_name=GPU),
        *map(node, devices),
        *(resource_slice(name, *(f"g{i}" for i in range(count))) for name, count in devices.items()),
    ]


@pytest.mark.parametrize("resource", [GPU, IMPLICIT])
async def test_every_member_gets_a_claim_of_its_own(resource):
    cluster = Cluster(*hardware(a=1, b=1))
    pods = [member("p0", resource), member("p1", resource)]
    decision = cluster.decide(*pods)
    assert {each.placement.node for each in decision} == {"a", "b"}
    for placed in decision:
        [claim] = placed.placement.claims
        assert claim.metadata.name == IN_MEMORY_NAME
        assert claim.metadata.uid == f"extended:{placed.pod.metadata.uid}"
        [mapping] = placed.mappings
        assert (mapping.resource_name, mapping.request_name) == (resource, "container-0-request-0")
        assert resource not in dict(placed.shape.requests), "the node is not to provide what devices do"


async def test_too_few_devices_and_nobody_gets_one():
    cluster = Cluster(*hardware(a=1, b=1), min_count=3)
    refusal = cluster.decide(*(member(f"p{index}") for index in range(3)))
    assert isinstance(refusal, Unplaceable)
    text = refusal.explain()
    assert "only 2 of the 3 pods of the group fit together" in text
    assert "2 have the only matching device in use" in text, "the others' places count while one is explained"
    assert "of the same group" in text
    assert cluster.decide(member("p0"), member("p1")) is not None


async def test_as_many_as_the_gang_needs_start_when_not_all_fit():
    cluster = Cluster(*hardware(a=1, b=1), min_count=2)
    decision = cluster.decide(*(member(f"p{index}") for index in range(3)))
    assert [each.pod.metadata.name for each in decision] == ["p0", "p1"]


async def test_a_plugin_serves_some_and_devices_the_others():
    cluster = Cluster(*hardware(a=1), node("plugin", **{GPU: "1"}))
    decision = cluster.decide(member("p0"), member("p1"))
    by_node = {each.placement.node: each for each in decision}
    assert sorted(by_node) == ["a", "plugin"]
    assert by_node["plugin"].mappings == ()
    assert by_node["plugin"].placement.claims == ()
    assert len(by_node["a"].mappings) == 1


async def test_without_a_class_the_resource_is_one_that_no_node_has():
    cluster = Cluster(node("a"), resource_slice("a", "g0", "g1"))
    refusal = cluster.decide(member("p0"), member("p1"))
    assert f"insufficient {GPU}" in refusal.explain()


async def test_without_the_gate_devices_do_not_stand_behind_resources():
    cluster = Cluster(*hardware(a=2), without=["DRAExtendedResource"])
    assert isinstance(cluster.decide(member("p0"), member("p1")), Unplaceable)


async def test_a_gang_goes_on_with_the_claims_that_it_finds():
    cluster = Cluster(*hardware(a=1, b=1))
    pods = [member("p0"), member("p1")]
    first = {each.pod.metadata.name: each for each in cluster.decide(*pods)}
    made = made_for(pods[1], first["p1"])
    cluster.keep(made)
    again = {each.pod.metadata.name: each for each in cluster.decide(*pods)}
    assert again["p1"].placement.node == first["p1"].placement.node
    assert again["p1"].placement.claims == (), "it is allocated already"
    assert again["p1"].claims.allocated == (made,)
    assert again["p1"].mappings == first["p1"].mappings
    assert again["p0"].placement.node != again["p1"].placement.node


@pytest.mark.parametrize("n_pods", [1, 3], ids=["too few pods", "too few devices"])
async def test_a_gang_that_cannot_start_keeps_no_claims(n_pods):
    cluster = Cluster(*hardware(a=1, b=1), min_count=2)
    pods = [member("p0"), member("p1")]
    placed = cluster.decide(*pods)
    made = made_for(pods[0], placed[0])
    cluster.keep(made)
    cluster.group(3)
    decision = cluster.decide(*[*pods, member("p2")][:n_pods])
    assert isinstance(decision, ReleaseFirst)
    assert (decision.claim, decision.action) == (made, "delete")


async def test_leftovers_are_deleted_before_the_gang_starts():
    cluster = Cluster(*hardware(a=1, b=1))
    pods = [member("p0"), member("p1")]
    made = made_for(pods[1], next(each for each in cluster.decide(*pods) if each.pod is pods[1]))
    other = msgspec.to_builtins(made)
    other["metadata"] |= {"name": "p1-extended-resources-other", "uid": "uid-other"}
    other["status"] = {}
    cluster.keep(made)
    cluster.keep(msgspec.convert(other, ResourceClaim))
    decision = cluster.decide(*pods)
    assert (decision.action, decision.claim.metadata.uid) == ("delete", "uid-other")


async def test_the_missing_pods_are_counted_and_the_group_is_named():
    cluster = Cluster(*hardware(a=1), min_count=3)
    one, two = cluster.decide(member("p0")), cluster.decide(member("p0"), member("p1"))
    assert one.explain() == "waiting for 2 more pods of group ns/gang (it starts with 3)"
    assert two.explain() == "waiting for 1 more pod of group ns/gang (it starts with 3)"
    assert one.cause != two.cause


async def test_a_gang_keeps_off_nodes_that_are_cleared_for_more_important_pods():
    cluster = Cluster(*hardware(a=2, b=2))
    cluster.snapshot.nominated["important"] = Nomination(pod("important", priority=1000), "a")
    decision = cluster.decide(member("p0"), member("p1"))
    assert {each.placement.node for each in decision} == {"b"}


@pytest.mark.parametrize("n_pods", [1, 2], ids=["too few pods", "too few devices"])
async def test_a_gang_that_cannot_start_keeps_no_allocations_either(n_pods):
    def with_claim(name):
        entry = {"name": "c", "resourceClaimName": f"of-{name}"}
        return pod(name, scheduling_group={"podGroupName": "gang"}, resource_claims=[entry])

    cluster = Cluster(*hardware(a=1))
    pods = [with_claim("p0"), with_claim("p1")]
    special = cluster.decide(member("x"), pod("y", scheduling_group={"podGroupName": "gang"}))[0]
    [allocation] = special.placement.allocations
    first = msgspec.to_builtins(allocated(claim("of-p0"), allocation))
    selector = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "values": ["a"]}]}]}
    first["status"]["allocation"]["nodeSelector"] = selector
    first["metadata"]["resourceVersion"] = "7"
    cluster.keep(msgspec.convert(first, ResourceClaim))
    cluster.keep(claim("of-p1", resourceVersion="8"))
    decision = cluster.decide(*pods[:n_pods])
    assert (decision.action, decision.claim.metadata.name) == ("deallocate", "of-p0")


# --- one pod --------------------------------------------------------------------


def with_claim(name, **more):
    return pod(name, resource_claims=[{"name": "c", "resourceClaimName": f"of-{name}"}], **more)


async def test_what_was_reserved_is_seen_by_the_next_decision():
    cluster = Cluster(*hardware(a=1))
    cluster.keep(claim("of-p"))
    cluster.keep(claim("of-q"))
    [placed] = first = cluster.decide(with_claim("p"))
    cluster.reserve(first)
    refusal = cluster.decide(with_claim("q"))
    assert isinstance(refusal, Unplaceable) and "in use (by ns/of-p (being allocated))" in refusal.explain()
    assert isinstance(cluster.decide(with_claim("p")), NotReady), "its claim is being allocated"
    assert cluster.snapshot.unreserve(placed.placement.claims) == list(placed.placement.claims)
    cluster.snapshot.forget_pod("uid-p")
    assert cluster.decide(with_claim("q"))[0].placement.node == "a"


async def test_a_claim_that_comes_back_allocated_ends_its_reservation():
    cluster = Cluster(*hardware(a=1))
    cluster.keep(claim("of-p"))
    [placed] = first = cluster.decide(with_claim("p"))
    cluster.reserve(first)
    assert not cluster.snapshot.set_claim(allocated(claim("of-p"), placed.placement.allocations[0], "uid-p"))
    assert cluster.snapshot.reserved == {}
    assert [each.metadata.name for each in cluster.snapshot.claims_reserved_for("uid-p")] == ["of-p"]
    assert cluster.snapshot.delete_claim("ns/of-p"), "its device is free again"
    assert cluster.snapshot.claims_reserved_for("uid-p") == []


async def test_a_namesake_of_a_claim_does_not_inherit_its_devices():
    cluster = Cluster(*hardware(a=1))
    cluster.keep(claim("of-p"))
    [placed] = cluster.decide(with_claim("p"))
    cluster.keep(allocated(claim("of-p"), placed.placement.allocations[0]))
    assert cluster.snapshot.set_claim(claim("of-p", uid="another")), "the device of the first is free"
    assert cluster.decide(with_claim("p"))[0].placement.node == "a"


async def test_a_refusal_names_the_pods_whose_eviction_would_help():
    cluster = Cluster(*hardware(a=1))
    cluster.keep(claim("of-low"))
    [placed] = first = cluster.decide(with_claim("low", priority=1))
    cluster.reserve(first)
    cluster.keep(allocated(claim("of-low"), placed.placement.allocations[0], "uid-low"))
    cluster.keep(claim("of-high"))
    high = with_claim("high", priority=10)
    refusal = cluster.decide(high)
    assert [each.key for each in refusal.preemption.victims] == ["ns/low"]
    assert cluster.decide(with_claim("high", priority=1)).preemption is None
    for victim in refusal.preemption.victims:
        victim.is_terminating = True
    cluster.snapshot.nominated["uid-high"] = Nomination(high, "a")
    assert cluster.decide(high).preemption is None, "those that were evicted are on their way out"


async def test_a_pod_without_its_claim_is_not_ready():
    decision = Cluster(*hardware(a=1)).decide(with_claim("p"))
    assert isinstance(decision, NotReady) and decision.waits_for == {"ns/of-p"}
