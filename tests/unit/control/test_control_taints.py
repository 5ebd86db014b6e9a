"""When a device taint makes a pod go, and when a node taint does."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from node_builders import eventually
from small_api import SmallApi

from dray.api.core import Node, Pod, Taint
from dray.api.resource import DeviceTaint, DeviceTaintRule, DeviceToleration, ResourceClaim, ResourceSlice
from dray.client.resources import PODS
from dray.control import taint_eviction
from dray.control.node_lifecycle import merged_taints, pod_departure
from dray.control.reconcile_loop import Caches
from dray.control.taint_eviction import (
    DeviceTaints,
    TaintEviction,
    departure_time,
    earliest_departure,
    rule_matches,
)
from dray.control.taint_rule_status import RuleCounts, eviction_condition

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ADDED = "2026-01-01T11:59:00Z"
TAINT = DeviceTaint(key="broken", value="yes", effect="NoExecute", time_added=ADDED)


def toleration(**fields):
    return DeviceToleration(**({"effect": "NoExecute", "key": "broken", "operator": "Exists"} | fields))


@pytest.mark.parametrize(
    ("tolerations", "stay_seconds"),
    [
        ([], 0),
        ([toleration()], None),
        ([toleration(toleration_seconds=90)], 90),
        ([toleration(toleration_seconds=90), toleration(toleration_seconds=30)], 30),
        ([toleration(toleration_seconds=-5)], 0),
        ([toleration(effect="")], 0),  # unlike scheduling, only NoExecute counts here
        ([toleration(effect="NoSchedule")], 0),
        ([toleration(key="other")], 0),
        ([toleration(key="")], None),
        ([toleration(operator="Equal", value="yes")], None),
        ([toleration(operator="Equal", value="no")], 0),
    ],
)
def test_the_shortest_matching_toleration_decides(tolerations, stay_seconds):
    at = departure_time(TAINT, tolerations, NOW)
    if stay_seconds is None:
        assert at is None
    else:
        assert at == datetime(2026, 1, 1, 11, 59, tzinfo=UTC) + timedelta(seconds=stay_seconds)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"driver": "d"}, True),
        ({"driver": "other"}, False),
        ({"driver": "d", "pool": "p", "device": "gpu-0"}, True),
        ({"device": "gpu-1"}, False),
    ],
)
def test_a_rule_without_a_selector_evicts_nobody_and_an_empty_one_everybody(selector, matches):
    rule = msgspec.convert({"spec": {"deviceSelector": selector}}, DeviceTaintRule)
    assert rule_matches(rule, ("d", "p", "gpu-0")) is matches


def published(generation, tainted):
    taints = [{"key": "broken", "effect": "NoExecute", "timeAdded": ADDED}] if tainted else []
    return msgspec.convert(
        {
            "spec": {
                "driver": "d",
                "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0", "taints": taints}],
            }
        },
        ResourceSlice,
    )


CLAIM = msgspec.convert(
    {"status": {"allocation": {"devices": {"results": [{"driver": "d", "pool": "p", "device": "gpu-0"}]}}}},
    ResourceClaim,
)


def test_only_the_newest_generation_of_a_pool_counts():
    taints = DeviceTaints()
    taints.set_slice("old", published(1, tainted=True))
    assert earliest_departure([CLAIM], taints, NOW) is not None
    taints.set_slice("new", published(2, tainted=False))
    assert earliest_departure([CLAIM], taints, NOW) is None


def test_a_rule_counts_even_when_the_device_is_not_published():
    taints = DeviceTaints()
    rule = msgspec.convert(
        {
            "metadata": {"name": "r"},
            "spec": {"deviceSelector": {"driver": "d"}, "taint": msgspec.to_builtins(TAINT)},
        },
        DeviceTaintRule,
    )
    taints.rules["r"] = rule
    departure = earliest_departure([CLAIM], taints, NOW)
    assert departure is not None
    assert departure.rules == {"r"}


def test_a_ready_node_loses_its_lifecycle_taints_and_keeps_the_others():
    node = msgspec.convert(
        {
            "spec": {
                "taints": [
                    {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
                    {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
                ]
            }
        },
        Node,
    )
    assert merged_taints(node, "True", NOW) == [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]


def test_a_silent_node_becomes_unreachable_with_a_time():
    assert {
        (taint["key"], taint["effect"], "timeAdded" in taint)
        for taint in merged_taints(Node(), "Unknown", NOW)
    } == {
        ("node.kubernetes.io/unreachable", "NoSchedule", False),
        ("node.kubernetes.io/unreachable", "NoExecute", True),
    }


def test_a_node_that_is_right_already_is_not_written():
    assert merged_taints(Node(), "True", NOW) is None


def test_a_pod_leaves_after_its_toleration_seconds():
    pod = msgspec.convert(
        {
            "spec": {
                "tolerations": [
                    {"key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                ]
            }
        },
        Pod,
    )
    taint = Taint(key="x", effect="NoExecute", time_added="2026-01-01T12:00:00Z")
    assert pod_departure(pod, [taint], NOW) == NOW + timedelta(seconds=300)
    assert pod_departure(Pod(), [taint], NOW) == NOW
    assert pod_departure(Pod(), [Taint(key="x", effect="NoSchedule")], NOW) is None


# --- the status of rules ---------------------------------------------------------------


RULE = "/apis/resource.k8s.io/v1/devicetaintrules/r"


def rule_of(effect="NoExecute", generation=1):
    spec = {
        "deviceSelector": {"driver": "d"},
        "taint": {"key": "broken", "effect": effect, "timeAdded": ADDED},
    }
    return {"metadata": {"generation": generation}, "spec": spec}


@pytest.mark.parametrize(
    ("effect", "counts", "status", "reason", "message"),
    [
        ("NoExecute", RuleCounts(), "False", "NotStarted", ""),
        (
            "NoExecute",
            RuleCounts(evicted=1),
            "False",
            "Completed",
            "1 pod evicted since starting the controller.",
        ),
        (
            "NoExecute",
            RuleCounts(pending=1, namespaces=1),
            "True",
            "PodsPendingEviction",
            "1 pod needs to be evicted in 1 namespace.",
        ),
        (
            "NoExecute",
            RuleCounts(pending=7, namespaces=2, evicted=3),
            "True",
            "PodsPendingEviction",
            "7 pods need to be evicted in 2 different namespaces. 3 pods evicted since starting the controller.",
        ),
        (
            "NoSchedule",
            RuleCounts(),
            "False",
            "OtherEffect",
            "Eviction only happens for the NoExecute effect.",
        ),
    ],
)
def test_what_the_condition_of_a_rule_says(effect, counts, status, reason, message):
    condition = eviction_condition(msgspec.convert(rule_of(effect), DeviceTaintRule), counts, NOW)
    assert (condition["status"], condition["reason"], condition["message"]) == (status, reason, message)


class Evicting:
    """The controller on a small API with pods that use tainted devices, looked at step by step."""

    def __init__(self, n_pods, grace=30):
        self.api = SmallApi()
        self.names = [f"p{number}" for number in range(n_pods)]
        self.api.put(RULE, rule_of())
        for name in self.names:
            spec = {"nodeName": "n", "terminationGracePeriodSeconds": grace}
            spec |= {"resourceClaims": [{"name": "c", "resourceClaimName": name}]}
            pod = self.api.put(
                f"/api/v1/namespaces/ns/pods/{name}", {"kind": "Pod", "spec": spec, "status": {}}
            )
            reserved = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
            results = [{"driver": "d", "pool": "p", "device": name}]
            status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
            self.api.put(f"/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{name}", {"status": status})
        self.caches = Caches(self.api.client())
        self.controller = TaintEviction(self.caches, lambda: NOW)

    @contextlib.asynccontextmanager
    async def followed(self):
        self.controller.watch()
        task = asyncio.create_task(self.caches.run())
        try:
            await self.caches.wait_synced()
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def condition(self):
        """Let the controller write the status, and return it as the caches see it."""
        await self.controller.reconcile("rule:r")
        [stored] = self.api.objects[RULE]["status"]["conditions"]

        def is_seen():
            conditions = self.controller.taints.rules["r"].status.conditions
            return conditions and conditions[0].message == stored["message"]

        await eventually(is_seen, what="the cache has the status")
        return stored


async def test_a_changed_rule_is_observed_although_nothing_else_changes():
    async with Evicting(0).followed() as cluster:
        first = await cluster.condition()
        assert (first["observedGeneration"], first["message"]) == (1, "")
        cluster.api._store(RULE, {**cluster.api.objects[RULE], **rule_of(generation=2)}, "MODIFIED", 200)
        stored = cluster.api.objects[RULE]
        stored["metadata"] |= {"name": "r", "uid": "u", "resourceVersion": "900"}
        cluster.api._store(RULE, {**stored, "status": {"conditions": [first]}}, "MODIFIED", 200)
        await eventually(
            lambda: cluster.controller.taints.rules["r"].metadata.generation == 2, what="the change is seen"
        )
        assert (await cluster.condition())["observedGeneration"] == 2


async def test_a_pod_is_evicted_and_counted_once_however_late_the_cache_is(monkeypatch):
    monkeypatch.setattr(taint_eviction, "STATUS_PERIOD", 0.0)
    async with Evicting(3).followed() as cluster:
        monkeypatch.setattr(cluster.controller.pods, "_take", lambda line: None)  # shows no deletion
        for _ in range(4):
            for name in cluster.names:
                await cluster.controller.reconcile(f"pod:ns/{name}")
        condition = await cluster.condition()
        assert condition["message"] == "3 pods evicted since starting the controller."
        assert sum(each.startswith("DELETE") for each in cluster.api.requests) == 3


async def test_pods_that_terminate_are_not_to_be_evicted_any_more(monkeypatch):
    monkeypatch.setattr(taint_eviction, "STATUS_PERIOD", 0.0)
    async with Evicting(3).followed() as cluster:
        assert (await cluster.condition())["message"] == "3 pods need to be evicted in 1 namespace."
        await cluster.controller.reconcile("pod:ns/p0")  # evicted here
        await cluster.api.client().delete(PODS, "p1", "ns")  # deleted by somebody else
        pods = cluster.controller.pods.items
        await eventually(lambda: pods["ns/p1"].metadata.deletion_timestamp, what="the deletion is seen")
        assert (await cluster.condition())["message"] == (
            "1 pod needs to be evicted in 1 namespace. 1 pod evicted since starting the controller."
        )


async def test_a_pod_that_somebody_else_deleted_is_not_counted_as_evicted(monkeypatch):
    async with Evicting(1, grace=0).followed() as cluster:
        monkeypatch.setattr(cluster.controller.pods, "_take", lambda line: None)
        await cluster.api.client().delete(PODS, "p0", "ns")
        await cluster.controller.reconcile("pod:ns/p0")
        assert "evicted" not in (await cluster.condition())["message"]
