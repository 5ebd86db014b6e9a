"""A defragmentation that is carried out: as previewed, within budgets, and safe to kill at every write."""

import asyncio
import itertools

import msgspec
import pytest
from small_api import SmallApi, _status
from test_capacity import bound, pod, snapshot_of, template

from dray.cli.main import main
from dray.client.resources import CLAIMS, NODES, PODS
from dray.sim.cluster import OfflineCluster
from dray.sim.hardware import hardware_snapshot, parse_hardware
from dray.sim.snapshot import KINDS, capture
from dray.workbench.defrag import DefragError
from dray.workbench.defrag_execution import MARK, Executor, Goal, Unfinished, uncordon_nodes

GOAL = Goal("default/large")


class Killed(BaseException):
    """The process is gone."""


class Cluster(SmallApi):
    """A cluster whose controller makes evicted pods again, and whose scheduler is the real one."""

    def __init__(self, *objects, nodes=2):
        super().__init__()
        base = hardware_snapshot(parse_hardware([f"workstation:{nodes}"]))
        snapshot = snapshot_of(template("one"), template("two", count=2), *objects, base=base)
        for view, attribute, resource in KINDS.values():
            for obj in getattr(snapshot, attribute):
                body = msgspec.to_builtins(obj)
                meta = body["metadata"]
                namespace = meta.get("namespace") or ("default" if resource.namespaced else None)
                self.put(resource.path(namespace, meta["name"]), body)
            assert view
        self.evicted = []  # in order
        self.on_the_way = 0  # evicted pods without a placed replacement, at each eviction
        self.cordoned_at_eviction = []
        self.refusals = 0  # evictions that a budget refuses first
        self.leaving = ""  # uid of the pod that was evicted last
        self.claims_stay = self.claims_stay_for = 0  # looks until its claims are released
        self.is_stuck = False  # the controller makes nothing
        self.intruder = None  # takes these devices as soon as a pod is evicted
        self.writes = 0
        self.kill_at, self.kill_after = None, False
        self._numbers = itertools.count(1)

    async def send(self, request):
        if request.method == "GET":
            return await super().send(request)
        self.writes += 1
        if self.writes == self.kill_at and not self.kill_after:
            raise Killed
        is_eviction = request.target.endswith("/eviction")
        answer = self._evict(request.target) if is_eviction else await super().send(request)
        if self.writes == self.kill_at:
            raise Killed
        return answer

    def _evict(self, target):
        if self.refusals:
            self.refusals -= 1
            return _status(429, "TooManyRequests", "the disruption budget all does not allow it")
        path = target.removesuffix("/eviction")
        if path not in self.objects:
            return _status(404, "NotFound", "gone")
        gone = self.objects.pop(path)
        self.on_the_way = max(self.on_the_way, 1 + sum(not p["spec"].get("nodeName") for p in self.workers()))
        self.cordoned_at_eviction.append(gone["spec"]["nodeName"] in self.cordoned())
        self.evicted.append(gone["metadata"]["name"])
        self.leaving = gone["metadata"]["uid"]
        self.claims_stay = self.claims_stay_for
        return _status(201, "Created", "evicted")

    def release_claims(self):
        """Release the claims of the pod that was evicted, some looks after it has gone."""
        self.claims_stay -= 1
        if self.claims_stay >= 0:
            return
        uid = self.leaving
        for key, claim in list(self.objects.items()):
            if any(user["uid"] == uid for user in claim.get("status", {}).get("reservedFor", ())):
                del self.objects[key]

    def all(self, resource):
        return [obj for path, obj in self.objects.items() if f"/{resource.plural}/" in path]

    def workers(self):
        return [each for each in self.all(PODS) if each["metadata"].get("ownerReferences")
                and each["metadata"]["name"] != "large"]  # fmt: skip

    def cordoned(self):
        return {each["metadata"]["name"] for each in self.all(NODES) if each["spec"].get("unschedulable")}

    def node_of(self, name):
        return self.objects[PODS.path("default", name)]["spec"].get("nodeName", "")

    async def react(self, wanted):
        """Be the controllers and the scheduler for a moment."""
        self.release_claims()
        for each in self.all(NODES):
            taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
            each["spec"]["taints"] = [taint] if each["spec"].get("unschedulable") else []
        if self.intruder and self.evicted:
            for obj in self.intruder:
                resource = CLAIMS if obj["kind"] == "ResourceClaim" else PODS
                self.put(resource.path("default", obj["metadata"]["name"]), obj)
            self.intruder = None
        while len(self.workers()) < wanted and not self.is_stuck:
            name = f"new-{next(self._numbers)}"
            self.put(PODS.path("default", name), pod(name, claim="one"))
        cluster = OfflineCluster(await capture(self.client()))
        for each in list(cluster.pods.values()):
            if each.spec.node_name:
                continue
            for placed in cluster.place([each], explains=False).placed:
                self._bind(cluster, placed)

    def _bind(self, cluster, placed):
        name = placed.pod.partition("/")[2]
        path = PODS.path("default", name)
        obj = self.objects[path]
        statuses = msgspec.to_builtins(cluster.pods[placed.pod].status)
        self.objects[path] = {**obj, "spec": {**obj["spec"], "nodeName": placed.node}, "status": statuses}
        for key in placed.devices:
            claim = msgspec.to_builtins(cluster.claims[key])
            self.objects.pop(CLAIMS.path("default", claim["metadata"]["name"]), None)
            self.put(CLAIMS.path("default", claim["metadata"]["name"]), claim)


def half_full(nodes=2, **more):
    """Nodes of two GPUs, each with one in use: a pod of two GPUs fits on none."""
    pods = [bound(chr(ord("a") + n), f"workstation-{n + 1}", 0, **more) for n in range(nodes)]
    return [obj for each in pods for obj in each]


def cluster(*more, nodes=2, objects=None):
    objects = half_full(nodes) if objects is None else objects
    return Cluster(*objects, pod("large", claim="two", controller=None), *more, nodes=nodes)


def executor(api, goal=GOAL, max_moves=2, wanted=2, seconds=20.0, said=None):
    ticks = itertools.count()

    async def pause(_seconds):
        await api.react(wanted)
        await asyncio.sleep(0)

    return Executor(
        api.client(), goal, max_moves, seconds=seconds, pause=pause, clock=lambda: float(next(ticks)),
        report=(said if said is not None else []).append,
    )  # fmt: skip


async def test_the_moves_of_the_preview_are_made_and_the_waiting_pod_is_placed():
    api = cluster()
    previews = []
    result = await executor(api).run(previews.append)
    assert result.is_reached
    assert result.is_as_previewed
    [move] = previews[0].moves
    assert [(each.move, each.node) for each in result.moved] == [(move, move.target)]
    assert result.node == api.node_of("large") == move.source
    assert api.cordoned() == set()
    assert api.cordoned_at_eviction == [True]


async def test_claims_that_are_released_later_than_the_pod_ends_are_waited_for():
    api = cluster()
    api.claims_stay_for = 4
    result = await executor(api).run()
    assert result.is_reached, result.reason
    assert result.is_as_previewed


async def test_several_pods_are_moved_one_at_a_time():
    # The GPUs of one node are used by two pods; each of the other two nodes has one free.
    places = [("a", 1, 0), ("b", 1, 1), ("c", 2, 0), ("d", 3, 0)]
    pods = [bound(name, f"workstation-{node}", gpu) for name, node, gpu in places]
    api = cluster(objects=[obj for each in pods for obj in each], nodes=3)
    result = await executor(api, max_moves=2, wanted=4).run()
    assert result.is_reached
    assert len(result.moved) == len(api.evicted)
    assert api.on_the_way == 1, "never two pods without a place"
    assert api.cordoned() == set()


async def test_a_budget_is_waited_for_and_its_last_refusal_stops_the_run():
    api = cluster()
    api.refusals = 3
    said = []
    assert (await executor(api, said=said).run()).is_reached
    assert any("waiting" in text for text in said)
    api = cluster()
    api.refusals = 1000
    result = await executor(api).run()
    assert not result.is_reached
    assert "may not be evicted" in result.reason
    assert (api.evicted, api.cordoned()) == ([], set())


async def test_a_replacement_that_never_comes_stops_the_run_and_uncordons_the_node():
    api = cluster()
    api.is_stuck = True
    result = await executor(api).run()
    assert "has no node" in result.reason
    assert (len(api.evicted), api.cordoned()) == (1, set())


async def test_drift_is_noticed_and_a_new_plan_is_followed():
    api = cluster(nodes=3)
    plan = GOAL.plan(await capture(api.client()), 2)
    [move] = plan.moves
    # Somebody takes the target of the move at the moment of the eviction.
    index = int(move.devices[0][-1])
    api.intruder = bound("intruder", move.target, index, controller=None)
    said = []
    result = await executor(api, wanted=3, said=said).run()
    assert not result.is_as_previewed
    assert any("not on" in text for text in said)
    assert result.is_reached
    assert api.cordoned() == set()


async def test_what_must_stay_is_never_evicted():
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 2},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2},
    }
    shared = half_full()
    for obj in shared:
        if obj["kind"] == "ResourceClaim":
            obj["status"]["reservedFor"].append({"resource": "pods", "name": "other", "uid": "other"})
    gang = half_full()
    for obj in gang:
        if obj["kind"] == "Pod":
            obj["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    for api in (
        cluster(objects=half_full(controller=None)),
        cluster(budget),
        cluster(objects=shared),
        cluster(objects=gang),
    ):
        result = await executor(api).run()
        assert not result.is_reached
        assert result.reason
        assert (api.evicted, api.cordoned()) == ([], set())


async def test_a_node_that_somebody_else_cordoned_stays_cordoned():
    api = cluster()
    plan = GOAL.plan(await capture(api.client()), 2)
    path = NODES.path(None, plan.moves[0].source)

    executing = executor(api)
    cordon = executing._cordon

    async def cordoned_meanwhile(node, mark):
        api.objects[path] = {**api.objects[path], "spec": {"unschedulable": True}}
        await cordon(node, mark)

    executing._cordon = cordoned_meanwhile
    result = await executing.run()
    assert "cordoned by somebody else" in result.reason
    assert (api.evicted, api.cordoned()) == ([], {plan.moves[0].source})


async def test_a_second_goal_waits_for_the_first():
    api = cluster()
    api.kill_at, api.kill_after = 1, True
    with pytest.raises(Killed):
        await executor(api).run()
    assert len(api.cordoned()) == 1
    with pytest.raises(Unfinished, match="room for default/large"):
        await executor(api, Goal(free_nodes=1)).run()
    assert await uncordon_nodes(api.client()) == ["workstation-1"]
    assert not any(MARK in (each["metadata"].get("annotations") or {}) for each in api.all(NODES))


async def test_a_question_without_an_answer_changes_nothing():
    api = cluster()
    with pytest.raises(DefragError, match="no pod"):
        await executor(api, Goal("default/absent")).run()
    assert api.writes == 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("reacts", [False, True])
async def test_a_run_that_is_killed_at_any_write_is_continued(after, reacts):
    """`reacts`: the controller and the scheduler have done their part before the next run begins."""
    for number in itertools.count(1):
        api = cluster()
        api.kill_at, api.kill_after = number, after
        try:
            await executor(api).run()
        except Killed:
            pass
        else:
            assert number > 3, "cordoning, evicting and uncordoning were killed"
            return
        api.kill_at = None
        if reacts:
            await api.react(2)
        if api.node_of("large") and not api.cordoned():
            with pytest.raises(DefragError, match="already"):  # the last write had been made
                await executor(api).run()
        else:
            result = await executor(api).run()
            assert result.is_reached, (number, result.reason)
        assert len(api.evicted) == 1, "nobody is evicted twice"
        assert (api.cordoned(), api.node_of("large") != "") == (set(), True)


def test_execute_needs_a_running_cluster(tmp_path, capsys):
    path = tmp_path / "cluster.json"
    base = hardware_snapshot(parse_hardware(["workstation:1"]))
    snapshot_of(pod("large"), base=base).write(path)
    assert main(["defrag", "--for", "large", "--execute", "--against", str(path)]) == 2
    assert "running cluster" in capsys.readouterr().err
