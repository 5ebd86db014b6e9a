"""Replaying traces: the model chooses as the allocator does, and the openb trace fills the GPUs as published."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from shared_data import shared

from dray.allocator import POLICIES, Plan, Policy, World
from dray.api.core import Node
from dray.api.meta import ObjectMeta
from dray.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dray.sim.traces import (
    Chooser,
    Replay,
    TraceError,
    TraceNode,
    TracePod,
    arrivals,
    chooser_for,
    read_nodes,
    read_pods,
    replay,
)

SIZES = [4, 2, 8, 1, 4, 2]
SHARES = [(1, 250), (1, 470), (1, 1000), (2, 1000), (1, 810), (1, 100), (4, 1000), (1, 320)]


def small_nodes() -> list[TraceNode]:
    return [TraceNode(f"n{i}", 64_000, 65_536, "A", [1000] * gpus) for i, gpus in enumerate(SIZES)]


def small_pods() -> list[TracePod]:
    return [TracePod(1000, 1024, *SHARES[i % len(SHARES)]) for i in range(40)]


def same_cluster() -> World:
    """The small nodes as the allocator sees them: GPUs that are shared by capacity."""
    world = World()
    world.set_class(DeviceClass(metadata=ObjectMeta(name="gpu")))
    for node in small_nodes():
        world.set_node(Node(metadata=ObjectMeta(name=node.name)))
        devices = [
            {"name": f"g{i}", "allowMultipleAllocations": True, "capacity": {"gpu": {"value": "1"}}}
            for i in range(len(node.rooms))
        ]
        pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d", "nodeName": node.name, "pool": pool, "devices": devices}
        world.set_slice(msgspec.convert({"metadata": {"name": node.name}, "spec": spec}, ResourceSlice))
    return world


def as_claim(pod: TracePod) -> ResourceClaim:
    exactly = {
        "deviceClassName": "gpu",
        "count": pod.gpus,
        "capacity": {"requests": {"gpu": f"{pod.parts}m"}},
    }
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return msgspec.convert({"metadata": {"name": "c"}, "spec": spec}, ResourceClaim)


def choices_of_the_allocator(policy: Policy) -> list[tuple[str, list[int]] | None]:
    world = same_cluster()
    found: list[tuple[str, list[int]] | None] = []
    for number, pod in enumerate(small_pods()):
        plans = world.plan_nodes([as_claim(pod)], policy=policy).plans
        if not plans:
            found.append(None)
            continue
        best: Plan = plans[0]
        world.take(f"c-{number}", best.allocations[0])
        gpus = [int(result.device[1:]) for result in best.allocations[0].devices.results]
        found.append((best.node, gpus))
    return found


@pytest.mark.parametrize("name", ["first-fit", "pack", "spread", "frag"])
def test_the_model_chooses_the_nodes_and_devices_of_the_allocator(name: str) -> None:
    policy = POLICIES[name]
    model = Replay(small_nodes(), Chooser(policy))
    expected = choices_of_the_allocator(policy)
    assert [model.place(pod) for pod in small_pods()] == expected
    assert None in expected, "the cluster is filled to the end"


def test_a_pod_that_fits_nowhere_is_dropped_and_changes_nothing() -> None:
    state = Replay([TraceNode("n", 1000, 1024, "A", [1000])], chooser_for("pack", []))
    assert state.place(TracePod(2000, 1, 1, 500)) is None
    assert state.place(TracePod(1000, 1, 1, 500, models=("B",))) is None
    assert state.place(TracePod(1000, 1, 1, 500, models=("B", "A"))) == ("n", [0])


def test_frag_with_cpu_counts_gpus_without_cpu_as_waste() -> None:
    # The first node would be left with a GPU and no cpu; the fullest node alone is no argument.
    nodes = [TraceNode("a", 8_000, 1024, "A", [1000, 1000]), TraceNode("b", 64_000, 1024, "A", [1000] * 4)]
    greedy = TracePod(8_000, 1, 1, 1000)
    assert Replay(nodes, chooser_for("frag+cpu", [greedy])).place(greedy) == ("b", [0])
    assert Replay(nodes, chooser_for("frag+mix", [greedy])).place(greedy) == ("a", [0])


def test_clones_are_added_until_the_demand_is_reached() -> None:
    pods = small_pods()
    stream = arrivals(pods, 100_000, seed=1)
    assert sum(pod.demand for pod in stream) >= 130_000
    assert sum(pod.demand for pod in stream[:-1]) < 130_000
    assert stream == arrivals(pods, 100_000, seed=1) != arrivals(pods, 100_000, seed=2)


def test_unreadable_traces_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read .*absent.csv"):
        read_nodes(tmp_path / "absent.csv")
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="no column 'sn'"):
        read_nodes(tmp_path / "odd.csv")
    with pytest.raises(TraceError, match="no pod of the trace wants a GPU"):
        arrivals([TracePod(1, 1, 0, 0)], 1000, seed=1)
    with pytest.raises(TraceError, match="no node of the trace has a GPU"):
        replay([], [], "pack")
    with pytest.raises(ValueError, match="unknown policy 'best'; known: first-fit, pack"):
        chooser_for("best", [])


def test_the_first_arrivals_of_openb_all_fit() -> None:
    csv = shared("data/openb/csv")
    nodes = read_nodes(csv / "openb_node_list_gpu_node.csv")
    pods = read_pods(csv / "openb_pod_list_default.csv")
    assert (len(nodes), len(pods), sum(sum(node.rooms) for node in nodes)) == (1213, 8152, 6_212_000)
    fill = replay(nodes, arrivals(pods, 6_212_000, seed=42)[:300], "frag", at=(0.02,))
    assert fill.dropped == 0
    assert 2.0 <= fill.allocated_at[0.02] < 2.2


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("policy", "least", "most"),
    [("first-fit", 93.8, 94.8), ("pack", 93.5, 95.5), ("spread", 80.0, 85.0), ("frag+cpu", 94.8, 95.9)],
)
def test_openb_fills_the_gpus_as_far_as_published(policy: str, least: float, most: float) -> None:
    csv = shared("data/openb/csv")
    nodes = read_nodes(csv / "openb_node_list_gpu_node.csv")
    pods = read_pods(csv / "openb_pod_list_default.csv")
    fill = replay(nodes, arrivals(pods, 6_212_000, seed=42), policy)
    assert least < fill.allocated_at[1.3] < most
