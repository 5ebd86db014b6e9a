"""When a node has failed, and whose pods are evicted: judged only while the API server can be seen to answer."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from node_builders import eventually
from small_api import SmallApi

from dray.api.core import Node, NodeSpec, Taint
from dray.api.well_known import UNREACHABLE_KEY
from dray.client.errors import Conflict, TransportError
from dray.control import node_leases, node_lifecycle
from dray.control.node_leases import Disruption, NodeState, NoExecute, ServerAvailability
from dray.control.node_lifecycle import MONITOR, NodeLifecycle, NodeMonitoring, merged_taints
from dray.control.reconcile_loop import Caches

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVICTING = (UNREACHABLE_KEY, "NoExecute")


# --- time in which a renewal would have been seen -----------------------------------------


def test_only_time_in_which_the_server_answers_counts():
    availability = ServerAvailability(longest_step=10)
    assert availability.seconds(100) == 0, "it has never answered"
    availability.note_answer(100)
    availability.note_answer(105)
    assert availability.seconds(107) == 7
    assert availability.seconds(165) == 15, "no answer for 60 s: one longest step is all that counts"
    availability.note_answer(165)
    assert availability.seconds(166) == 16


def test_availability_never_goes_back():
    availability = ServerAvailability(longest_step=10)
    seen = [0.0]
    for now in (0, 3, 9, 11, 500, 503, 521, 522):
        if now % 2:
            availability.note_answer(now)
        seen.append(availability.seconds(now))
    assert seen == sorted(seen)


def test_after_an_interruption_the_time_without_one_starts_anew():
    availability = ServerAvailability(longest_step=10)
    for now in (0, 5, 10):
        availability.note_answer(now)
    assert availability.uninterrupted(12) == 12
    assert availability.uninterrupted(30) == 0, "it does not answer"
    availability.note_answer(30)
    availability.note_answer(34)
    assert availability.uninterrupted(35) == 5


# --- disruption ---------------------------------------------------------------------------


def states(healthy, failed, zone="z"):
    return [NodeState(zone, is_healthy=True)] * healthy + [NodeState(zone, is_healthy=False)] * failed


@pytest.mark.parametrize(
    ("healthy", "failed", "expected"),
    [
        (3, 0, NoExecute.ADD),
        (1, 1, NoExecute.ADD),
        (1, 2, NoExecute.ADD),  # two are never a disruption
        (2, 3, NoExecute.KEEP),  # 60 %
        (3, 3, NoExecute.ADD),  # 50 %
        (0, 1, NoExecute.REMOVE),
        (0, 9, NoExecute.REMOVE),
    ],
)
def test_how_many_failed_nodes_are_a_disruption(healthy, failed, expected):
    assert Disruption(states(healthy, failed)).no_execute("z", since_last=1e9) is expected


def test_a_zone_without_healthy_nodes_is_evicted_while_another_zone_is_healthy():
    assert Disruption([*states(0, 4, "a"), *states(1, 0, "b")]).no_execute("a", 0) is NoExecute.ADD


def test_in_a_large_cluster_a_disrupted_zone_is_evicted_slowly():
    disruption = Disruption(states(20, 40))
    assert disruption.no_execute("z", node_leases.SECONDARY_PERIOD - 1) is NoExecute.KEEP
    assert disruption.no_execute("z", node_leases.SECONDARY_PERIOD) is NoExecute.ADD


def node_with(*taints):
    return Node(spec=NodeSpec(taints=[Taint(key=key, effect=effect) for key, effect in taints]))


@pytest.mark.parametrize(
    ("no_execute", "had", "has"),
    [
        (NoExecute.ADD, False, True),
        (NoExecute.KEEP, False, False),
        (NoExecute.KEEP, True, True),
        (NoExecute.REMOVE, True, False),
    ],
)
def test_taints_of_a_silent_node_in_a_disruption(no_execute, had, has):
    node = node_with(*([EVICTING] if had else []))
    merged = merged_taints(node, "Unknown", NOON, no_execute)
    found = {(taint["key"], taint["effect"]) for taint in merged}
    assert (UNREACHABLE_KEY, "NoSchedule") in found
    assert (EVICTING in found) is has


# --- the controller, with a clock of the test's own ------------------------------------------


class Monitored:
    """A controller on a small API; time passes when the test says so."""

    def __init__(self, monkeypatch, names):
        self.api = SmallApi()
        self.names = names
        self.steady = 1000.0
        monkeypatch.setattr(node_lifecycle, "steady_now", lambda: self.steady)
        for name in names:
            self.api.put(f"/api/v1/nodes/{name}", {"kind": "Node", "status": ready()})
            self.renew(name)
        self.caches = Caches(self.api.client())
        self.controller = NodeLifecycle(self.caches, self.now, NodeMonitoring())

    def now(self):
        return NOON + timedelta(seconds=self.steady)

    def renew(self, name):
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
        spec = {"renewTime": f"{self.steady}"}
        if path in self.api.objects:
            self.api._store(path, {**self.api.objects[path], "spec": spec}, "MODIFIED", 200)
        else:
            self.api.put(path, {"kind": "Lease", "spec": spec})

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

    async def pass_time(self, seconds, *renewing):
        """Pass time in steps of the monitoring period; the named nodes renew their leases meanwhile."""
        for _ in range(round(seconds / self.controller.monitoring.period)):
            self.steady += self.controller.monitoring.period
            for name in renewing:
                self.renew(name)
            await self.look()

    async def look(self):
        for _ in range(20):
            await asyncio.sleep(0)  # the caches follow
        await self.controller.reconcile(MONITOR)
        for name in self.names:
            for _ in range(3):
                with contextlib.suppress(Conflict):  # the queue would try again as well
                    await self.controller.reconcile(f"node:{name}")
                for _ in range(20):
                    await asyncio.sleep(0)

    def ready(self, name):
        return {each["type"]: each["status"] for each in self.node(name)["status"]["conditions"]}["Ready"]

    def taints(self, name):
        return {(each["key"], each["effect"]) for each in self.node(name).get("spec", {}).get("taints") or ()}

    def node(self, name):
        return self.api.objects[f"/api/v1/nodes/{name}"]


def ready():
    return {"conditions": [{"type": "Ready", "status": "True"}]}


async def test_a_silent_node_fails_after_the_grace_period_and_others_do_not(monkeypatch):
    async with Monitored(monkeypatch, ["a", "b"]).followed() as cluster:
        await cluster.pass_time(50, "b")
        assert cluster.ready("a") == "True"
        await cluster.pass_time(10, "b")
        assert (cluster.ready("a"), cluster.ready("b")) == ("Unknown", "True")
        assert EVICTING in cluster.taints("a")
        assert not cluster.taints("b")


@pytest.mark.parametrize("pause", [60, 600, 86_400])
async def test_a_pause_of_the_server_or_of_this_process_fails_no_node(monkeypatch, pause):
    async with Monitored(monkeypatch, ["a", "b"]).followed() as cluster:
        await cluster.pass_time(20, "a", "b")
        cluster.steady += pause  # nothing runs, nothing is answered
        await cluster.look()
        await cluster.pass_time(10)  # the nodes' first renewals take their time
        await cluster.pass_time(20, "a", "b")
        assert (cluster.ready("a"), cluster.ready("b")) == ("True", "True")
        assert not cluster.taints("a") | cluster.taints("b")


async def test_whether_the_server_answers_is_asked_with_one_request_however_many_nodes_there_are(monkeypatch):
    async with Monitored(monkeypatch, ["a", "b", "c"]).followed() as cluster:
        await cluster.pass_time(20, "a", "b", "c")
        before = len(cluster.api.requests)
        await cluster.controller.reconcile(MONITOR)
        assert cluster.api.requests[before:] == [
            "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        ]


async def test_no_node_fails_while_the_server_cannot_be_reached(monkeypatch):
    async with Monitored(monkeypatch, ["a", "b"]).followed() as cluster:
        await cluster.pass_time(20, "a", "b")

        async def away(*_, **__):
            raise TransportError("nobody there")

        answering, cluster.api.send = cluster.api.send, away
        for _ in range(30):
            cluster.steady += 5
            await cluster.controller.reconcile(MONITOR)
            await cluster.controller.reconcile("node:a")
        cluster.api.send = answering
        await cluster.look()
        assert cluster.ready("a") == "True"


async def test_a_node_that_dies_is_found_although_the_server_paused_before(monkeypatch):
    async with Monitored(monkeypatch, ["a", "b"]).followed() as cluster:
        cluster.steady += 3600
        await cluster.pass_time(60, "b")
        assert cluster.ready("a") == "Unknown"


async def test_a_late_cache_fails_no_node(monkeypatch):
    async with Monitored(monkeypatch, ["a", "b"]).followed() as cluster:
        monkeypatch.setattr(cluster.controller.leases, "_take", lambda line: None)  # the watch is stuck
        await cluster.pass_time(120, "a", "b")
        assert (cluster.ready("a"), cluster.ready("b")) == ("True", "True")


async def test_when_no_node_is_healthy_nobody_is_evicted_and_later_silence_counts_anew(monkeypatch):
    async with Monitored(monkeypatch, ["a", "b"]).followed() as cluster:
        await cluster.pass_time(70)
        assert {cluster.ready("a"), cluster.ready("b")} == {"Unknown"}
        assert cluster.taints("a") == cluster.taints("b") == {(UNREACHABLE_KEY, "NoSchedule")}
        for name in ("a", "b"):
            cluster.renew(name)
            path = f"/api/v1/nodes/{name}"
            cluster.api._store(path, {**cluster.node(name), "status": ready()}, "MODIFIED", 200)
        await cluster.pass_time(15, "b")
        assert cluster.ready("a") == "True"
        assert not cluster.taints("a") | cluster.taints("b")


async def test_nodes_that_stop_together_are_recognised_although_their_heartbeats_were_not_together(
    monkeypatch,
):
    async with Monitored(monkeypatch, ["a", "b"]).followed() as cluster:
        await cluster.pass_time(10, "b")  # b renewed ten seconds later than a
        for _ in range(10):
            await cluster.pass_time(5)
            assert EVICTING not in cluster.taints("a") | cluster.taints("b")
        assert cluster.ready("a") == "Unknown"


async def test_a_pod_is_evicted_only_when_the_node_is_still_tainted_on_the_server(monkeypatch):
    async with Monitored(monkeypatch, ["a", "b"]).followed() as cluster:
        pod = {"kind": "Pod", "spec": {"nodeName": "a", "terminationGracePeriodSeconds": 0}, "status": {}}
        path = "/api/v1/namespaces/default/pods/p"
        cluster.api.put(path, pod)
        await cluster.pass_time(20, "a", "b")
        # The cache shows a taint that was removed from the server.
        late = node_with(EVICTING)
        fresh = cluster.controller.nodes.items["a"]
        cluster.controller.nodes.items["a"] = late
        await cluster.controller.reconcile("pod:default/p")
        assert path in cluster.api.objects
        cluster.controller.nodes.items["a"] = fresh
        await cluster.pass_time(60, "b")
        await cluster.controller.reconcile("pod:default/p")
        assert path not in cluster.api.objects


async def test_after_a_pause_the_nodes_may_report_before_pods_are_evicted(monkeypatch):
    async with Monitored(monkeypatch, ["a", "b"]).followed() as cluster:
        pod = {"kind": "Pod", "spec": {"nodeName": "a", "terminationGracePeriodSeconds": 0}, "status": {}}
        path = "/api/v1/namespaces/default/pods/p"
        cluster.api.put(path, pod)
        await cluster.pass_time(60, "b")
        assert EVICTING in cluster.taints("a")
        cluster.steady += 600
        await cluster.look()
        await cluster.controller.reconcile("pod:default/p")
        assert path in cluster.api.objects
        await cluster.pass_time(20, "b")
        await cluster.controller.reconcile("pod:default/p")
        await eventually(lambda: path not in cluster.api.objects, what="the pod is evicted")
