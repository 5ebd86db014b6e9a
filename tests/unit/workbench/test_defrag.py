"""Plans of moves: few, possible in their order, proved by replay, and never of pods that must stay."""

import contextlib
import json

import pytest
from test_capacity import bound, pod, snapshot_of, template

from dray.cli.main import main
from dray.scheduler.policies import NodePolicy
from dray.sim.hardware import hardware_snapshot, parse_hardware
from dray.workbench.defrag import DefragError, plan_defrag_for, plan_free_nodes
from dray.workbench.defrag_execution import Goal


def cluster(*objects, nodes=2):
    base = hardware_snapshot(parse_hardware([f"workstation:{nodes}"]))
    return snapshot_of(template("one"), template("two", count=2), *objects, base=base)


def half_full(**more):
    """Two nodes of two GPUs, each with one in use: a pod of two GPUs fits on neither."""
    pods = [bound("a", "workstation-1", 0, **more), bound("b", "workstation-2", 0, **more)]
    return [obj for each in pods for obj in each]


def test_one_move_makes_room_for_a_large_pod():
    plan = plan_defrag_for(cluster(*half_full(), pod("large", claim="two")), "default/large")
    assert plan.is_reached
    (move,) = plan.moves
    assert {move.source, move.target} == {"workstation-1", "workstation-2"}
    assert move.frees == (f"gpu.nvidia.com/{move.source}/gpu-0",)
    assert move.devices == (f"gpu.nvidia.com/{move.target}/gpu-1",)
    assert [(each.pod, each.node) for each in plan.result] == [("default/large", move.source)]


def test_planning_leaves_the_snapshot_as_it_was_and_is_repeatable():
    snapshot = cluster(*half_full(), pod("large", claim="two"))
    assert plan_defrag_for(snapshot, "default/large") == plan_defrag_for(snapshot, "default/large")


def test_a_pod_that_fits_needs_no_move():
    plan = plan_defrag_for(cluster(pod("large", claim="two")), "default/large")
    assert (plan.is_reached, plan.moves) == (True, ())


def test_bare_pods_and_pods_under_a_budget_stay():
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 2},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2},
    }
    for objects in ([*half_full(controller=None)], [*half_full(), budget]):
        plan = plan_defrag_for(cluster(*objects, pod("large", claim="two", controller=None)), "default/large")
        assert not plan.is_reached
        assert plan.moves == ()


def test_a_pod_of_a_shared_claim_stays():
    objects = half_full()
    for obj in objects:
        if obj["kind"] == "ResourceClaim":
            obj["status"]["reservedFor"].append({"resource": "pods", "name": "other", "uid": "other"})
    assert not plan_defrag_for(cluster(*objects, pod("large", claim="two")), "default/large").is_reached


def test_moves_are_bounded():
    # Three nodes full of single GPUs but one each: no single move frees two GPUs of one node and keeps room for both.
    pods = [bound(f"p{n}", f"workstation-{n // 2 + 1}", n % 2) for n in range(4)]
    snapshot = cluster(*(obj for each in pods for obj in each), pod("large", claim="two"), nodes=2)
    plan = plan_defrag_for(snapshot, "default/large", max_moves=2)
    assert not plan.is_reached
    assert "moves" in plan.note


def test_whole_nodes_become_free():
    plan = plan_free_nodes(cluster(*half_full()), 1)
    assert plan.is_reached
    assert len(plan.moves) == 1
    assert plan.freed_nodes == (plan.moves[0].source,)
    assert not plan_free_nodes(cluster(*half_full()), 2).is_reached


def test_questions_without_an_answer_are_errors():
    with pytest.raises(DefragError, match="no pod"):
        plan_defrag_for(cluster(), "default/absent")
    with pytest.raises(DefragError, match="already"):
        plan_defrag_for(cluster(*half_full()), "default/a")
    with pytest.raises(DefragError, match="only 2 nodes"):
        plan_free_nodes(cluster(), 3)


def test_the_command_prints_the_plan(tmp_path, capsys):
    path = tmp_path / "cluster.json"
    cluster(*half_full(), pod("large", claim="two")).write(path)
    assert main(["defrag", "--for", "large", "--against", str(path)]) == 0
    out = capsys.readouterr().out
    assert "replayed by the scheduler" in out
    assert "reached with 1 move" in out
    assert main(["defrag", "--for", "large", "--against", str(path), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"] == {"moves": 1, "devices": 1}


class LeastCpu(NodePolicy):
    """The node with the least cpu left."""

    name = "least-cpu"

    def score(self, pod, before, after):
        return -after.cpu


def test_moved_pods_go_where_the_policy_of_the_scheduler_puts_them():
    third = bound("c", "workstation-3", 0)
    busy = pod("busy", cpu="2", node="workstation-3")
    busy["metadata"]["uid"] = "uid-busy"
    snapshot = cluster(*half_full(), *third, busy, pod("large", claim="two"), nodes=3)
    (move,) = plan_defrag_for(snapshot, "default/large").moves
    assert (move.source, move.target) == ("workstation-1", "workstation-2")
    (move,) = plan_defrag_for(snapshot, "default/large", policy=LeastCpu()).moves
    assert (move.source, move.target) == ("workstation-1", "workstation-3")
    (move,) = Goal("default/large", policy=LeastCpu()).plan(snapshot, 2).moves
    assert move.target == "workstation-3"
    assert Goal("default/large", policy="pack").plan(snapshot, 2).is_reached


@pytest.mark.parametrize("policy", ["best", "no_such_module:Policy"])
def test_an_unknown_policy_is_refused_in_one_line(policy, tmp_path, capsys):
    file = tmp_path / "cluster.json"
    cluster(pod("large", claim="two")).write(file)
    with contextlib.suppress(SystemExit):
        assert main(["defrag", "--for", "large", "--policy", policy, "--against", str(file)]) == 2
    error = capsys.readouterr().err
    assert policy.partition(":")[0] in error
    assert "Traceback" not in error
