"""Rollouts never exceed their surge nor undercut what must be available; quotas and pools are counted right."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.api.core import Node, NodeSpec, Pod, PodDisruptionBudget, Taint
from dray.api.label_selectors import matches_labels
from dray.api.meta import ObjectMeta
from dray.api.number_ranges import format_ranges, parse_ranges
from dray.api.resource import ResourceClaim, ResourceSlice
from dray.api.workloads import (
    DeploymentStrategy,
    Job,
    ReplicaSet,
    ReplicaSetSpec,
    ReplicaSetStatus,
    RollingUpdate,
)
from dray.control.deployments import plan_rollout, resolve_amount
from dray.control.disruption_budgets import budget_status
from dray.control.jobs import daemon_fits, next_index, successes
from dray.control.manager import UnknownController, chosen_controllers
from dray.control.pod_templates import Expectations, removal_order, template_hash
from dray.control.pool_status import pool_status, usage_of
from dray.control.resource_quotas import charges_of_pod, counted_kind


def replica_set(name, replicas, available):
    return ReplicaSet(
        metadata=ObjectMeta(name=name),
        spec=ReplicaSetSpec(replicas=replicas),
        status=ReplicaSetStatus(replicas=replicas, available_replicas=min(replicas, available)),
    )


@given(
    wanted=st.integers(1, 12),
    new=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    old=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3),
    surge=st.sampled_from([0, 1, "25%", "50%"]),
    unavailable=st.sampled_from([0, 1, "25%", "100%"]),
)
def test_a_rollout_step_keeps_its_promises(wanted, new, old, surge, unavailable):
    strategy = DeploymentStrategy(rolling_update=RollingUpdate(max_surge=surge, max_unavailable=unavailable))
    current = replica_set("new", *new)
    others = [replica_set(f"old-{index}", *sizes) for index, sizes in enumerate(old)]
    steps = plan_rollout(wanted, current, others, strategy)
    before = {found.metadata.name: found.spec.replicas for found in (current, *others)}
    after = before | steps
    most = wanted + resolve_amount(surge, wanted, round_up=True)
    assert sum(after.values()) <= max(most, sum(before.values()))
    floor = wanted - max(resolve_amount(unavailable, wanted, round_up=False), 1 if surge == 0 else 0)
    healthy = sum(found.status.available_replicas for found in (current, *others))
    left = sum(min(found.status.available_replicas, after[found.metadata.name]) for found in others)
    left += min(current.status.available_replicas, after["new"])
    # A new set larger than wanted shrinks to what is wanted; otherwise nothing available is given away below the floor.
    if new[0] <= wanted:
        assert left >= min(floor, healthy)


def test_a_rollout_ends_with_only_the_new_set():
    current, old = replica_set("new", 0, 0), replica_set("old", 4, 4)
    for _ in range(20):
        steps = plan_rollout(4, current, [old], DeploymentStrategy())
        if not steps:
            break
        current = replica_set("new", steps.get("new", current.spec.replicas), 99)
        old = replica_set("old", steps.get("old", old.spec.replicas), 99)
    assert (current.spec.replicas, old.spec.replicas) == (4, 0)


def test_recreate_waits_until_the_old_pods_are_gone():
    recreate = DeploymentStrategy(type="Recreate")
    assert plan_rollout(3, replica_set("new", 0, 0), [replica_set("old", 2, 2)], recreate) == {"old": 0}
    assert plan_rollout(3, replica_set("new", 0, 0), [replica_set("old", 0, 0)], recreate) == {"new": 3}


def test_pods_that_serve_least_are_removed_first():
    def pod(name, **status):
        node = status.pop("node", "n")
        return msgspec.convert(
            {"metadata": {"name": name}, "spec": {"nodeName": node}, "status": status}, Pod
        )

    ready = pod("ready", phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    order = removal_order(
        [ready, pod("running", phase="Running"), pod("unscheduled", phase="Pending", node="")]
    )
    assert [found.metadata.name for found in order] == ["unscheduled", "running", "ready"]


def test_a_controller_waits_until_it_has_seen_its_own_writes():
    expectations = Expectations()
    expectations.expect("owner", "made:a", now=0.0)
    assert expectations.settle("owner", {}, now=1.0) == 4.0
    assert expectations.settle("owner", {"a": True}, now=1.0) is None
    expectations.expect("owner", "gone:a", now=1.0)
    assert expectations.settle("owner", {"a": True}, now=2.0) == 4.0
    assert expectations.settle("owner", {"a": False}, now=2.0) is None


def test_a_pod_that_came_and_went_unseen_is_not_waited_for_for_ever():
    expectations = Expectations()
    expectations.expect("owner", "made:a", now=0.0)
    assert expectations.settle("owner", {}, now=4.9) is not None
    assert expectations.settle("owner", {}, now=5.0) is None


def test_a_budget_counts_the_pods_that_should_be_there():
    now = datetime(2026, 11, 16, tzinfo=UTC)

    def pod(name, owner="set"):
        references = [{"uid": owner, "controller": True}]
        condition = {"type": "Ready", "status": "True"}
        return msgspec.convert(
            {
                "metadata": {"name": name, "ownerReferences": references},
                "status": {"conditions": [condition]},
            },
            Pod,
        )

    def allowed(pods, wanted, disrupted=None, **spec):
        found = {"spec": spec, "status": {"disruptedPods": disrupted}}
        status = budget_status(msgspec.convert(found, PodDisruptionBudget), pods, wanted, now)
        return status["disruptionsAllowed"]

    both = [pod("a"), pod("b")]
    assert allowed(both, {"set": ("deployment", 3)}, maxUnavailable=1) == 0, "the third is missing already"
    assert allowed([*both, pod("c")], {"set": ("deployment", 3)}, maxUnavailable=1) == 1
    assert allowed(both, {"set": ("set", 4)}, minAvailable="50%") == 0
    assert allowed(both, {"set": ("set", 4)}, minAvailable=1) == 1
    assert allowed([pod("x", "unknown"), pod("y", "unknown")], {}, maxUnavailable=1) == 1
    assert allowed(both, {}, {"a": "2026-11-15T23:59:30Z"}, minAvailable=1) == 0, "a is about to go"
    assert allowed(both, {}, {"a": "2026-11-15T23:00:00Z"}, minAvailable=1) == 1, (
        "that eviction never happened"
    )


def test_indexes_of_a_job_are_counted_once_even_when_their_pods_are_gone():
    def pod(index, phase="Succeeded"):
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        return msgspec.convert({"metadata": {"annotations": annotations}, "status": {"phase": phase}}, Pod)

    found = {"spec": {"completionMode": "Indexed", "completions": 5}, "status": {"completedIndexes": "0-1"}}
    job = msgspec.convert(found, Job)
    assert successes(job, [pod(1), pod(3), pod(3), pod(7), pod(2, "Failed")]) == {0, 1, 3}
    assert next_index([pod(3)], 5, parse_ranges("0-1")) == 2
    assert format_ranges({4, 0, 1, 3}) == "0-1,3-4"


def test_the_lowest_free_index_is_next():
    def pod(index, phase):
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        return msgspec.convert({"metadata": {"annotations": annotations}, "status": {"phase": phase}}, Pod)

    assert next_index([pod(0, "Succeeded"), pod(1, "Failed"), pod(2, "Running")], 4) == 1
    assert next_index([pod(0, "Succeeded")], 1) is None


def test_equal_templates_have_equal_hashes_whatever_their_order():
    assert template_hash({"a": 1, "b": 2}) == template_hash({"b": 2, "a": 1}) != template_hash({"a": 1})


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        ({"key": "a", "operator": "In", "values": ["1"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "a", "operator": "DoesNotExist"}, False),
    ],
)
def test_label_selectors(requirement, matches):
    from dray.api.meta import LabelSelector

    selector = msgspec.convert({"matchExpressions": [requirement]}, LabelSelector)
    assert matches_labels(selector, {"a": "1"}) is matches
    assert not matches_labels(None, {"a": "1"})


def claim(requests, results=()):
    allocation = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    return msgspec.convert({"spec": {"devices": {"requests": requests}}, "status": allocation}, ResourceClaim)


def test_a_pod_is_charged_for_its_hungriest_moment():
    def container(cpu, **more):
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), container("500m")],
        "initContainers": [container("250m", restartPolicy="Always"), container("3")],
        "overhead": {"cpu": "100m"},
    }
    charges = charges_of_pod(msgspec.convert({"spec": spec}, Pod))
    assert str(charges["cpu"]) == "3350m"
    assert charges["requests.cpu"] == charges["cpu"]


def test_a_pod_is_charged_for_its_pod_level_resources_and_overhead_only_where_limited():
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}],
        "resources": {"requests": {"cpu": "4"}},
        "overhead": {"cpu": "100m", "memory": "1Gi"},
    }
    charges = charges_of_pod(msgspec.convert({"spec": spec}, Pod))
    assert {name: str(amount) for name, amount in charges.items()} == {
        "count/pods": "1",
        "pods": "1",
        "cpu": "4100m",
        "requests.cpu": "4100m",
        "memory": "1Gi",
        "requests.memory": "1Gi",
        "limits.cpu": "2100m",
    }


def test_a_pod_that_has_ended_is_charged_only_as_an_object():
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    ended = msgspec.convert({"spec": {"containers": [container]}, "status": {"phase": "Failed"}}, Pod)
    assert {name: str(amount) for name, amount in charges_of_pod(ended).items()} == {"count/pods": "1"}


def test_quota_names_that_count_objects():
    assert counted_kind("count/widgets.example.com") == "widgets.example.com"
    assert counted_kind("requests.nvidia.com/gpu") is None


def pool_slices(devices, count=1):
    spec = {
        "driver": "d",
        "nodeName": "n",
        "pool": {"name": "p", "generation": 3, "resourceSliceCount": count},
        "devices": devices,
    }
    return [msgspec.convert({"spec": spec}, ResourceSlice)]


def test_a_pool_is_counted_with_its_shares():
    devices = [
        {"name": "free"},
        {"name": "used"},
        {"name": "tainted", "taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"name": "shared", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}},
    ]
    results = [
        {"driver": "d", "pool": "p", "device": "used"},
        {"driver": "d", "pool": "p", "device": "free", "adminAccess": True},
        {
            "driver": "d",
            "pool": "p",
            "device": "shared",
            "shareID": "s",
            "consumedCapacity": {"memory": "4Gi"},
        },
    ]
    status = pool_status("d", "p", pool_slices(devices), usage_of([claim([], results)]))
    assert (status["totalDevices"], status["allocatedDevices"], status["unavailableDevices"]) == (4, 2, 1)
    assert status["availableDevices"] == 1
    assert status["nodeName"] == "n"
    (memory,) = status["shareableSummary"]["capacity"]
    assert memory == {"name": "memory", "total": "10Gi", "consumed": "4Gi", "available": "6Gi"}
    assert status["shareableSummary"]["partiallyAvailableDevices"] == 1


def test_an_incomplete_pool_says_so():
    status = pool_status("d", "p", pool_slices([{"name": "a"}], count=2), usage_of([]))
    assert "1 of 2 slices" in status["validationError"]


@pytest.mark.parametrize(
    ("template", "taints", "fits"),
    [
        ({}, [], (True, True)),
        ({}, [("example.com/x", "NoSchedule")], (False, True)),
        ({}, [("example.com/x", "NoExecute")], (False, False)),
        ({}, [("example.com/x", "PreferNoSchedule")], (True, True)),
        ({}, [("node.kubernetes.io/unschedulable", "NoSchedule")], (True, True)),
        ({}, [("node.kubernetes.io/not-ready", "NoExecute")], (True, True)),
        ({"tolerations": [{"operator": "Exists"}]}, [("example.com/x", "NoExecute")], (True, True)),
        ({"nodeSelector": {"zone": "a"}}, [], (True, True)),
        ({"nodeSelector": {"zone": "b"}}, [], (False, False)),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [
                {"key": "zone", "operator": "NotIn", "values": ["a"]}]}]}}}}, [], (False, False)),
    ],
)  # fmt: skip
def test_where_a_daemon_is_made_and_where_it_stays(template, taints, fits):
    node = Node(
        metadata=ObjectMeta(name="n", labels={"zone": "a"}),
        spec=NodeSpec(taints=[Taint(key=key, effect=effect) for key, effect in taints]),
    )
    assert daemon_fits({"spec": template}, node) == fits


def test_controllers_are_chosen_as_with_kube_controller_manager():
    assert "jobs" not in chosen_controllers(["*", "-jobs"])
    assert chosen_controllers(["claims"]) == ["claims"]
    with pytest.raises(UnknownController, match="there are: claims"):
        chosen_controllers(["clams"])
