"""Simulations of traces: decided by the scheduler's own code, repeatable, resumable, readable."""

import csv
import json
import re

import pytest
from shared_data import shared

from dray.cli.main import main
from dray.scheduler import Placed
from dray.scheduler.policies import policy_named
from dray.sim.hardware import hardware_snapshot, parse_hardware
from dray.sim.simulation import Settings, SimulatedCluster, Simulation
from dray.sim.statistics import compare, estimate
from dray.sim.trace import Arrival, Trace, TraceError, TraceWriter, read_recording
from dray.sim.trace_csv import (
    ColumnMapping,
    Wanted,
    gpu_class,
    node_of,
    parse_mapping,
    read_nodes,
    read_pods,
    template_of,
)

GIB = 1 << 30
SIZES = [4, 2, 8, 1, 4, 2]
SHARES = [(1, 500), (1, 1000), (2, 1000), (1, 250), (4, 1000)]


def small_trace(pods=60, duration=100.0, gap=5.0, wanted=None):
    trace = Trace(classes=[gpu_class()])
    for index, gpus in enumerate(SIZES):
        node, found = node_of(f"n{index}", 64_000, 65_536, gpus, "A")
        trace.nodes.append(node)
        trace.slices.append(found)
    kinds = wanted or [Wanted(1000, GIB, *each) for each in SHARES]
    trace.templates = [template_of(each) for each in kinds]
    trace.arrivals = [Arrival(gap * n, duration, n % len(kinds)) for n in range(pods)]
    return trace


def run(trace, policy=None, seed=1, **settings):
    chosen = policy_named(policy) if policy else None
    return Simulation(trace, Settings(**settings), chosen, seed, name=policy or "default").run()


@pytest.mark.parametrize("policy", [None, "first-fit", "pack", "spread", "frag"])
def test_devices_are_filled_and_never_beyond(policy):
    result = run(small_trace(), policy, arrivals="fill")
    assert result.dropped > 0
    assert 0.45 < result.allocated_at["1"] <= result.allocated_at["1.3"] <= 1
    assert result.placed + result.dropped == result.pods


@pytest.mark.parametrize("policy", [None, "pack", "frag"])
def test_pods_wait_until_others_leave_and_all_get_their_turn(policy):
    result = run(small_trace(pods=120, gap=1.0), policy, arrivals="trace")
    assert (result.placed, result.never_placed) == (120, 0)
    assert result.waits["max"] > 0
    assert max(result.series.utilisation) <= 1
    assert sum(result.refusals.values()) > 0


def test_an_unloaded_cluster_lets_nobody_wait():
    result = run(small_trace(pods=40, gap=1000.0), arrivals="trace")
    assert result.waits["max"] == 0
    assert result.refusals == {}


def test_a_freed_node_helps_whoever_fits_there():
    # One node of eight GPUs; a pod of eight waits for a pod of one, and is placed when that one leaves.
    trace = small_trace(wanted=[Wanted(1000, GIB, 1, 1000), Wanted(1000, GIB, 8, 1000)])
    trace.nodes, trace.slices = trace.nodes[2:3], trace.slices[2:3]
    trace.arrivals = [Arrival(0, 50, 0), Arrival(1, 10, 1), Arrival(2, 10, 0)]
    result = run(trace, arrivals="trace")
    assert result.placed == 3
    assert result.waits["max"] == 49  # of the large pod: from 1 to 50
    assert result.refusals == {"devices: all in use": 1}


def test_runs_depend_on_the_seed_alone():
    first, again, other = (
        run(small_trace(), "frag", seed, arrivals="poisson", load=0.9, pods=200) for seed in (1, 1, 2)
    )
    assert (first.waits, first.series) == (again.waits, again.series)
    assert first.series != other.series


def test_a_load_stretches_the_times():
    light, heavy = (run(small_trace(), arrivals="shuffle", load=load).utilisation for load in (0.1, 0.4))
    assert 0.05 < light < 0.2 < heavy < 0.6
    with pytest.raises(TraceError, match="cannot be reached"):
        run(small_trace(pods=3), load=50.0)


def test_nodes_fail_and_their_pods_start_again():
    result = run(small_trace(pods=100, gap=20.0), arrivals="trace", mtbf=500.0, mttr=50.0)
    assert result.restarted > 0
    assert result.never_placed == 0
    assert result.placed == 100 + result.restarted


def test_selectors_are_decided_by_cel():
    cluster = SimulatedCluster(
        small_trace(wanted=[Wanted(1, 1, 1, 500, ("B",)), Wanted(1, 1, 1, 500, ("A", "B"))]), None
    )
    assert not isinstance(cluster.place(0, cluster.pod(0, "p0")), Placed)
    assert isinstance(cluster.place(1, cluster.pod(1, "p1")), Placed)


def test_a_pod_without_devices_keeps_away_from_free_ones():
    for name in ("pack", "frag"):
        trace = small_trace(wanted=[Wanted(1000, 1, 0, 0), Wanted(1000, 1, 1, 1000)])
        cluster = SimulatedCluster(trace, policy_named(name))
        placed = cluster.place(0, cluster.pod(0, "p"))
        assert isinstance(placed, Placed)
        assert placed.placement.node == "n3"  # the one with a single GPU


# --- reading ------------------------------------------------------------------------


def test_columns_that_vary_between_traces_are_optional(tmp_path):
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,2,1,500\n")
    trace = read_pods(tmp_path / "pods.csv")
    assert trace.arrivals == [Arrival(0.0, None, 0)]
    assert trace.templates[0].demand == 500


def test_a_list_of_gpus_alone_is_enough_and_unknown_columns_are_left_out(tmp_path):
    (tmp_path / "pods.csv").write_text("team,num_gpu,notes\nred,2,x\nblue,0.5,\n")
    (tmp_path / "nodes.csv").write_text("rack,sn,gpu,cpu_milli\nr1,b,2.0,64000.0\nr1,a,,8000\n")
    trace = read_pods(tmp_path / "pods.csv")
    trace.nodes, trace.slices = read_nodes(tmp_path / "nodes.csv")
    assert [each.demand for each in trace.templates] == [2000, 500]
    assert [node.metadata.name for node in trace.nodes] == ["a", "b"]
    result = run(trace, arrivals="trace")
    assert (result.placed, result.never_placed) == (1, 1), "two whole GPUs, then half a GPU has no room"


@pytest.mark.parametrize("row", ["a,x,1", ",1000,1", "a,,1", "a,1000,nan", "a,1000,-1", "a,inf,1", "a"])
def test_unreadable_lists_of_nodes_are_named(row, tmp_path):
    (tmp_path / "nodes.csv").write_text(f"sn,cpu_milli,gpu\n{row}\n")
    with pytest.raises(TraceError, match="node"):
        read_nodes(tmp_path / "nodes.csv")


HELIOS = """job,gpu_num,cpu_num,node_num,state,submit_time,end_time
a,16,64,2,COMPLETED,2020-04-01 00:00:10,2020-04-01 01:00:10
b,1,4,1,FAILED,2020-04-01 00:00:20,2020-04-01 00:00:30
c,1,,1,COMPLETED,2020-04-01 00:01:10,2020-04-01 00:02:10
"""
MAPPING = {
    "columns": {
        "submit": "submit_time",
        "end": "end_time",
        "gpus": "gpu_num",
        "cpus": "cpu_num",
        "nodes": "node_num",
    },
    "time": "%Y-%m-%d %H:%M:%S",
    "keep": {"state": ["COMPLETED"]},
    "defaults": {"cpus": 2},
    "deviceClass": "gpu.nvidia.com",
}


def test_other_tables_are_read_by_a_mapping(tmp_path):
    (tmp_path / "jobs.csv").write_text(HELIOS)
    trace = read_pods(tmp_path / "jobs.csv", parse_mapping(MAPPING, "mapping"))
    assert trace.arrivals == [Arrival(0.0, 3600.0, 0), Arrival(0.0, 3600.0, 0), Arrival(60.0, 60.0, 1)]
    assert [dict(each.shape.requests)["cpu"] for each in trace.templates] == [32_000, 2000]
    assert [each.claims[0][1].devices.requests[0].exactly.count for each in trace.templates] == [8, 1]
    result = run(trace.on(hardware_snapshot(parse_hardware(["dgx-h100:2"]))), arrivals="trace")
    assert (result.placed, result.never_placed) == (3, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column"),
        ("cpu_milli,memory_mib,num_gpu\nx,1,1\n", "line 2"),
        ("cpu_milli,memory_mib,num_gpu\n-5,1,1\n", "line 2"),
        ("num_gpu,creation_time\n1,nan\n", "line 2: submit is 'nan'"),
        ("num_gpu,deletion_time\n1,inf\n", "line 2: end is 'inf'"),
    ],
)
def test_unreadable_tables_are_named(text, message, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TraceError, match=message):
        read_pods(tmp_path / "t.csv")


@pytest.mark.parametrize(
    "document",
    [
        None,
        {"columns": {"nope": "x"}},
        {"columns": {}, "units": {"cpu": "x"}},
        {"columns": {}, "units": {"memory": "zz"}},
    ],
)
def test_bad_mappings_are_named(document):
    with pytest.raises(TraceError, match="mapping"):
        parse_mapping(document, "mapping")
    assert isinstance(parse_mapping({"columns": {}}, "m"), ColumnMapping)


def test_openb_is_read_and_its_first_arrivals_fit():
    folder = shared("data/openb/csv")
    trace = read_pods(folder / "openb_pod_list_multigpu20.csv")
    trace.nodes, trace.slices = read_nodes(folder / "openb_node_list_gpu_node.csv")
    assert len(trace.nodes) == 1213
    result = run(trace, "frag", seed=42, arrivals="fill", fill_until=0.0, pods=150)
    assert (result.pods, result.dropped) == (150, 0)


@pytest.mark.heavy
@pytest.mark.parametrize(("policy", "least", "most"), [("first-fit", 0.938, 0.948), ("frag", 0.958, 0.965)])
def test_openb_fills_the_devices_as_far_as_measured(policy, least, most):
    folder = shared("data/openb/csv")
    trace = read_pods(folder / "openb_pod_list_default.csv")
    trace.nodes, trace.slices = read_nodes(folder / "openb_node_list_gpu_node.csv")
    assert least < run(trace, policy, seed=42, arrivals="fill").allocated_at["1.3"] < most


# --- recordings -----------------------------------------------------------------------


def test_a_recording_is_read_back_as_it_was(tmp_path):
    snapshot = hardware_snapshot(parse_hardware(["workstation"]))
    writer = TraceWriter()
    spec = {
        "devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}]
        }
    }
    pod = {
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {
            "containers": [{"name": "c", "image": "x"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
        },
    }
    lines = [
        *writer.head(snapshot.objects),
        *writer.arrival(pod, [("gpu", spec)], 1.0),
        writer.moment("default/a", "started", 3.0),
    ]
    lines += writer.arrival({**pod, "metadata": {"name": "b", "namespace": "default"}}, [("gpu", spec)], 4.0)
    lines += [writer.moment("default/a", "ended", 10.0)]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(lines) + b'\n{"pod": "cut sho')
    trace = read_recording(path)
    assert trace.arrivals == [Arrival(1.0, 7.0, 0), Arrival(4.0, 6.0, 0)]
    assert len(trace.templates) == len(trace.nodes) == 1
    assert run(trace, arrivals="trace").placed == 2


def test_a_broken_recording_is_named(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"kind": "DrayTrace"}\n{"pod": "a", "template": 7, "at": 1}\n')
    with pytest.raises(TraceError, match="line 2: there is no template 7"):
        read_recording(path)


# --- statistics and the command ---------------------------------------------------------


def test_confidence_intervals():
    found = estimate([10.0, 12.0, 14.0])
    assert found.mean == 12
    assert found.margin == pytest.approx(4.97, abs=0.01)
    assert estimate([1.0]).margin is None


def test_policies_are_compared_seed_by_seed():
    runs = [
        run(small_trace(), policy, seed, arrivals="fill")
        for policy in ("first-fit", "frag")
        for seed in (1, 2, 3)
    ]
    found = {each.measure: each for each in compare(runs)}
    assert found["allocated130"].policy == "frag"
    assert found["allocated130"].difference.n == 3


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [[f"p{n}", 1000, 1024, 1 if n % 4 else 2, 1000, n * 10, n * 10 + 300] for n in range(40)]
    with (tmp_path / "pods.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time"]
        )
        table.writerows(rows)
    (tmp_path / "nodes.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\na,64000,65536,4,A\nb,64000,65536,2,A\n"
    )
    return tmp_path


COMMAND = [
    "sim",
    "run",
    "--trace",
    "pods.csv",
    "--nodes",
    "nodes.csv",
    "--policy",
    "default,pack",
    "--out",
    "out",
]


def test_the_command_writes_json_csv_and_a_report_that_stands_alone(files, capsys):
    assert main([*COMMAND, "--seeds", "2", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["policies"]) == {"default", "pack"}
    assert len(answer["runs"]) == 4
    assert answer == json.loads((files / "out" / "results.json").read_text())
    assert len((files / "out" / "results.csv").read_text().splitlines()) == 5
    page = (files / "out" / "report.html").read_text()
    assert page.count("<svg") == 5
    assert not re.search(r"(src|href)=|<script|@import|url\(", page)


def test_a_command_that_was_interrupted_goes_on_where_it_was(files, capsys, monkeypatch):
    assert main([*COMMAND, "--seeds", "2"]) == 0
    lines = (files / "out" / "runs.jsonl").read_bytes()
    (files / "out" / "runs.jsonl").write_bytes(lines[:-40])  # killed while it wrote the last run
    capsys.readouterr()
    assert main([*COMMAND, "--seeds", "3"]) == 0
    assert "3 of 6 runs are done already" in capsys.readouterr().err
    assert main([*COMMAND, "--seeds", "3", "--drop"]) == 0  # other settings: nothing of it counts
    assert "done already" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "best"], "unknown policy"),
        (["--policy", "topology"], "topology"),
        (["--load", "0"], "0.001"),
        (["--nodes", "nowhere"], "nowhere"),
        (["--mapping", "nodes.csv"], "columns"),
        (["--trace", "absent.csv"], "absent.csv"),
        (["--load", "99"], "cannot be reached"),
    ],
)
def test_bad_input_is_named(words, message, files, capsys):
    try:
        code = main([*COMMAND, *words])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err
