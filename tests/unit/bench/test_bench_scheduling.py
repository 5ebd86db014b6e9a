"""The scheduling bench asks what can be answered, notices what is wrong, and runs."""

import collections
import re
import sys
import types
from pathlib import Path

import msgspec
import pytest

from dray.api.features import Features
from dray.api.resource import DeviceAttribute, DeviceCapacity
from dray.cel import DeviceInput, compile_selector

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from bench.scheduling import driving, following, judging, objects, preparing, running
from bench.scheduling.contenders import CONTENDERS
from bench.scheduling.measuring import Outcome, run_once
from bench.scheduling.reporting import report
from bench.scheduling.workloads import CLASSES, WORKLOADS

checker = judging.checker
N_NODES = 12
every_workload = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)


def held(workload, place, spec, name):
    status = {"allocation": objects.allocation(place)}
    return {"metadata": {"name": name, "namespace": "x", "uid": name}, "spec": spec, "status": status}


def claims_of(workload):
    """All claims that are there before, and one for every place that is free."""
    layout = workload.room(workload.n_nodes)
    places = [(spec, place) for spec, place in layout.taken]
    places += [(workload.claims[kind], place) for kind, free in layout.free.items() for place in free]
    return [held(workload, place, spec, f"claim-{at}") for at, (spec, place) in enumerate(places)]


def judged(workload, claims):
    return checker.check_state(
        slices=list(objects.slices(workload)),
        classes=[objects.device_class(*each) for each in CLASSES.items()],
        claims=claims, pods=[], nodes=[], matches=judging.matches,
    )  # fmt: skip


@every_workload
def test_what_is_taken_and_what_is_free_fit_beside_one_another(workload):
    claims = claims_of(workload.sized(N_NODES))
    assert claims
    assert judged(workload.sized(N_NODES), claims) == []


@every_workload
@pytest.mark.parametrize("n_nodes", [N_NODES, None])
def test_there_is_room_for_every_pod_that_can_be_bound(workload, n_nodes):
    sized = workload.sized(n_nodes)
    if sized.n_nodes > 500:
        sized = workload.sized(500)
    wanted = collections.Counter(map(sized.kind_of, range(sized.n_pods)))
    free = sized.room(sized.n_nodes).free
    for kind, n_pods in wanted.items():
        if kind not in sized.impossible:
            # who is in flight may have to wait for another to go
            assert len(free[kind]) >= (n_pods if sized.mode == "burst" else 1)


@every_workload
def test_pods_are_impossible_exactly_where_no_node_has_enough_devices(workload):
    sized = workload.sized(N_NODES)
    for kind, spec in sized.claims.items():
        requests_wanted = [
            request.get("exactly") or request["firstAvailable"][-1] for request in spec["devices"]["requests"]
        ]
        n_best = max(n_that_match(sized.hardware(node), requests_wanted[0]) for node in range(N_NODES))
        assert (n_best < sum(wanted_request["count"] for wanted_request in requests_wanted)) == (
            kind in sized.impossible
        )


def n_that_match(parts, wanted_request):
    expressions = [CLASSES[wanted_request["deviceClassName"]]]
    expressions += [each["cel"]["expression"] for each in wanted_request.get("selectors", ())]
    return sum(
        all(judging.matches(expression, objects.DRIVER, device) for expression in expressions)
        for part in parts
        for device in part.get("devices", ())
    )


@every_workload
def test_the_checker_reads_selectors_as_cel_does(workload):
    devices = [
        each for node in range(4) for part in workload.hardware(node) for each in part.get("devices", ())
    ]
    classes, selectors = set(), set()
    for spec in workload.claims.values():
        for request in spec["devices"]["requests"]:
            for wanted_request in request.get("firstAvailable") or [request["exactly"]]:
                classes.add(CLASSES[wanted_request["deviceClassName"]])
                selectors |= {each["cel"]["expression"] for each in wanted_request.get("selectors", ())}
    for expression in classes | selectors:
        program = compile_selector(expression, features=Features(["DRAConsumableCapacity"]))
        for device in devices:
            if (
                expression in selectors
                and device["attributes"]["type"]["string"] == "gpu"
                and "profile" in expression
            ):
                continue  # the class has said no
            attributes = msgspec.convert(device.get("attributes") or {}, dict[str, DeviceAttribute])
            capacity = msgspec.convert(device.get("capacity") or {}, dict[str, DeviceCapacity])
            given = DeviceInput.build(
                objects.DRIVER, attributes, capacity, device.get("allowMultipleAllocations", False)
            )
            assert program.evaluate(given) == judging.matches(expression, objects.DRIVER, device), expression


def test_fewer_nodes_have_fewer_pods():
    burst = WORKLOADS["burst"]
    assert burst.sized(50).n_pods == 250
    assert burst.sized(50, 1000).n_pods == 250
    assert burst.sized(is_short=True).n_pods == burst.short < burst.n_pods
    assert WORKLOADS["half"].sized(50, 1000).n_pods == 10


def test_a_device_that_two_held_for_a_moment_is_noticed():
    workload = WORKLOADS["half"].sized(2)
    first = claims_of(workload)[0]
    thief = {**first, "metadata": {**first["metadata"], "name": "thief", "uid": "thief"}}
    events = [{"type": "ADDED", "object": thief}, {"type": "DELETED", "object": thief}]
    lines = [msgspec.json.encode(event) for event in events]
    assert judging.judge_history(workload, [], lines) == []
    problems = judging.judge_history(workload, [first], lines)
    assert len(problems) == 1
    assert "already held" in problems[0]


def watching(notice):
    """A watch since version 5 on a connection of its own, and the requests that it sends."""
    watch, sent = following._Watch("/api/v1/pods", b"5", notice), []
    watch.begin()
    watch.connection_made(types.SimpleNamespace(write=sent.append))
    return watch, sent


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_a_watch_is_read_however_it_is_cut(size):
    events = [b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"%d"}}}' % at for at in (7, 8, 9)]
    body = b"\n".join(events) + b"\n"
    chunks = [body[:20], body[20:90], body[90:]]
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer += b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    seen = []
    watch, sent = watching(seen.append)
    for at in range(0, len(answer), size):
        watch.data_received(answer[at : at + size])
    for at in range(0, len(answer), size):
        watch.data_received(answer[at : at + size])
    assert seen == events * 2
    assert [re.search(rb"resourceVersion=(\d+)", request)[1] for request in sent] == [b"5", b"9", b"9"]


async def test_an_error_in_a_watch_is_raised():
    watch, _ = watching(lambda line: None)
    line = b'{"type":"ERROR","object":{"code":410}}\n'
    watch.data_received(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(line), line)
    )
    with pytest.raises(RuntimeError, match="410"):
        await watch.lost


def bound(mode, seconds, times):
    drive = driving.Drive(None, WORKLOADS[mode], seconds)
    drive.begin, drive.end = 100.0, 100.0 + seconds
    drive.bound = {f"pod-{at}": 100.0 + when for at, when in enumerate(times)}
    drive.created = {name: when - 0.5 for name, when in drive.bound.items()}
    return driving.rates(drive)


def test_rates_leave_out_the_beginning():
    slow_start = [at / 10 for at in range(20)] + [2 + at / 100 for at in range(300)]
    speed = bound("half", 5.0, slow_start)
    assert speed.pods_per_second == pytest.approx(64)
    assert speed.steady == pytest.approx(100)
    assert speed.p50 == pytest.approx(0.5)
    one_straggler = [at / 100 for at in range(99)] + [4.0]
    burst = bound("burst", 4.0, one_straggler)
    assert burst.pods_per_second == pytest.approx(25)
    assert burst.steady == pytest.approx(100)
    assert bound("last-5000", 60.0, [1, 20, 60]).pods_per_second == pytest.approx(2)


def outcome(contender, speed, cpu, round_number=0, **more):
    return Outcome(
        "burst", contender, round_number, 500, 2500, bound=2500, pods_per_second=speed,
        cpu_ms={"scheduler": cpu}, megabytes={"scheduler": 60.0, "server": 400.0}, **more,
    )  # fmt: skip


def test_a_missed_target_is_called_missed():
    text = report(
        [
            outcome("kube", 44, 15),
            outcome("floor", 141, 1),
            outcome("dray", 115, 2),
            outcome("dray-stack", 250, 2),
        ]
    )
    row = next(line for line in text.splitlines() if line.startswith("| burst | 44.0"))
    assert row.split(" | ")[4:] == ["0.82 missed", "2.61", "2.00 met", "250", "5.68 met |"]
    assert "within 15 % of the floor: 0 of 1; little CPU: 1 of 1; whole stack: 1 of 1" in text


def test_a_busy_machine_is_mentioned():
    assert "other processes" not in report([outcome("dray", 100, 2, other_load=0.05)])
    assert "up to 40% of the machine" in report([outcome("dray", 100, 2, other_load=0.4)])


def test_ratios_are_taken_within_a_round():
    rounds = [
        outcome("floor", 100, 1),
        outcome("dray", 90, 2),
        outcome("floor", 10, 1, 1),
        outcome("dray", 9, 2, 1),
    ]
    assert "| 0.90 met |" in report(rounds)


def test_a_run_that_failed_has_a_row_and_no_figures():
    failed = Outcome("burst", "kube", 0, 500, 2500, error="kube-scheduler ended with 1")
    text = report([failed, outcome("dray", 100, 2)])
    assert "| burst | kube-scheduler on kube-apiserver | failed: kube-scheduler ended with 1 |" in text
    assert "| burst | – | – | 100 | – | – | 2.00 met | – | – |" in text


def test_runs_that_were_kept_make_the_same_tables(tmp_path, capsys):
    kept = [outcome("floor", 100, 1), outcome("dray", 90, 2)]
    keep = running._keeper(tmp_path / "runs")
    for each in kept:
        keep(each)
    assert running.main(["--tables", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().out == report(kept) + "\n"


def test_an_error_with_a_long_log_is_two_lines():
    assert running._shortened(RuntimeError("etcd ended with 1:\nusage\n\nno such flag\n")) == (
        "etcd ended with 1: … no such flag"
    )


def test_without_kubernetes_dray_runs_alone(monkeypatch, capsys):
    monkeypatch.setattr(running, "kubernetes_binaries", lambda: None)
    assert running.possible(["kube", "dray", "dray-stack"]) == ["dray-stack"]
    assert "tools/peers/build" in capsys.readouterr().err


async def test_a_tiny_run_works(monkeypatch):
    monkeypatch.setattr(preparing, "SETTLING", 0.0)
    monkeypatch.setattr(driving, "EXPLAINING", 60.0)
    found = await run_once(CONTENDERS["dray-stack"], WORKLOADS["impossible"].sized(10), 0, 1.0)
    assert (found.bound, found.pods) == (18, 20)
    assert (found.problems, found.unexplained) == ([], 0)
    assert set(found.cpu_ms) == {"scheduler", "server", "controllers", "load"}
    assert all(found.cpu_ms.values())
    assert 0 < found.p50 <= found.p99


@pytest.mark.heavy
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("contender", ["floor-stack", "dray-stack"])
async def test_every_workload_runs(name, contender, monkeypatch):
    monkeypatch.setattr(preparing, "SETTLING", 0.0)
    found = await run_once(CONTENDERS[contender], WORKLOADS[name].sized(N_NODES), 0, 2.0)
    assert found.bound
    assert (found.problems, found.unexplained) == ([], 0)
