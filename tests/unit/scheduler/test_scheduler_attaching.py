"""`decide_attachment`: claims that were added to running pods, one at a time; nothing is taken by deciding."""

import msgspec
import pytest
from scheduler_builders import allocated, claim, device_class, node, pod, resource_slice

from dray.allocator import Plan
from dray.api.core import Pod
from dray.api.features import Features
from dray.scheduler import ClusterSnapshot, SchedulerProfile, decide_attachment, may_lack_claims

ATTACHABLE = {"dray.dev/attachable": {"bool": True}}


def device(name, **attributes):
    return {"name": name, "attributes": {**ATTACHABLE, **attributes}}


def running(name, *claims, on="n1", generation=2, phase="Running"):
    made = msgspec.to_builtins(
        pod(name, nodeName=on, resourceClaims=[{"name": each, "resourceClaimName": each} for each in claims])
    )
    made["metadata"]["generation"] = generation
    made["status"] = {"phase": phase}
    return msgspec.convert(made, Pod)


class Snapshot:
    """Two nodes with two devices each; every decision must leave the devices as they were."""

    def __init__(self, *devices):
        self.inner = ClusterSnapshot(
            SchedulerProfile(features=Features.default()), new_share_id=lambda: "share"
        )
        for name in ("n1", "n2"):
            self.inner.set_node(node(name))
            self.inner.set_slice(resource_slice(name, *(devices or (device("d0"), device("d1")))))
        self.inner.set_class(device_class())

    def decide(self, of):
        before = self.free()
        decision = decide_attachment(of, self.inner)
        assert self.free() == before
        return decision

    def free(self):
        allocator = self.inner.devices.allocator
        return [isinstance(allocator.plan("n1", [claim("probe", count)]), Plan) for count in (1, 2)]

    def take(self, wanted, *users, on="n1"):
        """Allocate a claim on a node and reserve it."""
        (allocation,) = self.inner.devices.allocator.plan(on, [wanted]).allocations
        self.inner.set_claim(allocated(wanted, allocation, *users))


def test_a_claim_gets_devices_of_the_pods_node():
    snapshot = Snapshot()
    snapshot.inner.set_claim(claim("a"))
    placed = snapshot.decide(running("p", "a", on="n2")).placed
    assert placed.placement.node == "n2"
    (allocation,) = placed.placement.allocations
    assert {result.pool for result in allocation.devices.results} == {"n2"}


def test_a_pod_with_all_its_claims_is_settled():
    snapshot = Snapshot()
    snapshot.take(claim("a"), "uid-p")
    assert snapshot.decide(running("p", "a")).is_settled


def test_a_claim_that_cannot_be_attached_does_not_keep_the_next_waiting():
    snapshot = Snapshot()
    snapshot.inner.set_claim(claim("large", 3))
    snapshot.inner.set_claim(claim("small"))
    decision = snapshot.decide(running("p", "large", "small"))
    assert [each.metadata.name for each in decision.placed.placement.claims] == ["small"]
    (refusal,) = decision.refusals
    assert refusal == "claim ns/large cannot be attached: node n1 has only 2 matching devices of the 3 wanted"


def test_an_allocation_that_nobody_uses_is_reserved_as_it_is():
    snapshot = Snapshot()
    snapshot.take(claim("a"))
    placed = snapshot.decide(running("p", "a")).placed
    assert [each.metadata.name for each in placed.claims.allocated] == ["a"]
    assert placed.placement.claims == ()


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ([], "it does not exist"),
        ([(claim("a", deletionTimestamp="2026-01-01T00:00:00Z"), None, None)], "it is being deleted"),
        (
            [(claim("a"), "n1", "other")],
            "it is in use by other, and a claim that is attached to a running pod is not shared",
        ),
        ([(claim("a"), "n2", "")], "node n1 is not where it is allocated, or lacks a feature that it needs"),
        ([(claim("b", 2), "n1", "x"), (claim("a"), None, None)], "all 2 matching devices in use (by ns/b)"),
        ([(claim("a", device_class="none"), None, None)], "none"),
    ],
)
def test_what_cannot_be_attached_is_refused_with_the_reason(claims, reason):
    snapshot = Snapshot()
    for wanted, place, user in claims:
        if place is None:
            snapshot.inner.set_claim(wanted)
        else:
            snapshot.take(wanted, *([user] if user else []), on=place)
    decision = snapshot.decide(running("p", "a"))
    assert decision.placed is None
    assert reason in decision.refusals[0]


@pytest.mark.parametrize("is_allocated", [False, True])
def test_devices_whose_driver_cannot_attach_are_refused(is_allocated):
    snapshot = Snapshot(
        {"name": "d0"}, {"name": "d1", "attributes": {"dray.dev/attachable": {"bool": False}}}
    )
    if is_allocated:
        snapshot.take(claim("a"))
    else:
        snapshot.inner.set_claim(claim("a"))
    (refusal,) = snapshot.decide(running("p", "a")).refusals
    assert "driver gpu.example.com cannot give d0 to a running pod" in refusal


def test_a_claim_that_is_being_allocated_for_another_pod_is_left_alone():
    snapshot = Snapshot()
    snapshot.inner.set_claim(claim("a"))
    placed = snapshot.decide(running("p", "a")).placed
    snapshot.inner.reserve_claims(placed.pod, placed.placement)
    (refusal,) = snapshot.decide(running("q", "a")).refusals
    assert "it is being allocated for another pod" in refusal
    snapshot.inner.unreserve(placed.placement.claims)
    assert snapshot.decide(running("q", "a")).placed


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"generation": 1}, False),  # as it was made: its claims were there before it was bound
        ({"phase": "Pending"}, False),
        ({"on": ""}, False),
    ],
)
def test_only_pods_that_run_and_changed_may_lack_claims(changes, may):
    assert may_lack_claims(running("p", "a", **changes)) is may
