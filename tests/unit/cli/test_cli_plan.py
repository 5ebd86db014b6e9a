"""`dray plan` as a filter: lines in, lines out, whatever is wrong with some of them."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.cli.main import main

CASE: dict[str, Any] = {
    "name": "two gpus",
    "nodes": ["n1", "n2"],
    "classes": [{"metadata": {"name": "gpu"}}],
    "slices": [
        {
            "metadata": {"name": f"s-{node}"},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"gpu-{i}"} for i in range(count)],
            },
        }
        for node, count in (("n1", 1), ("n2", 2))
    ],
    "claims": [
        {
            "metadata": {"name": "c"},
            "spec": {
                "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}}]}
            },
        }
    ],
}


def plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, *args: str
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    code = main(["plan", *args])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda text, *args: plan(monkeypatch, capsys, text, *args)


def test_every_line_gets_a_line(run: Any) -> None:
    code, out, _ = run(json.dumps(CASE) + "\n" + json.dumps({**CASE, "name": "again"}) + "\n")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [answer["name"] for answer in answers] == ["two gpus", "again"]
    assert set(answers[0]) == {"name", "nodes", "steps", "ms"}
    first, second = answers[0]["nodes"]
    assert first["node"] == "n1"
    assert first["results"] is None
    assert first["error"] is None
    assert first["reasons"][0]["usable"] == 1
    assert [r["device"] for r in second["results"][0]["devices"]["results"]] == ["gpu-0", "gpu-1"]


def test_the_same_slices_are_kept_and_use_is_not(run: Any) -> None:
    used = [{"driver": "gpu.example.com", "pool": "n2", "device": "gpu-0"}]
    lines = [
        CASE,
        {
            "name": "full",
            "slices": "same",
            "nodes": ["n2"],
            "claims": CASE["claims"],
            "allocatedDevices": used,
        },
        {"name": "free", "slices": "same", "nodes": ["n2"], "claims": CASE["claims"]},
        {"name": "all nodes", "slices": "same", "claims": CASE["claims"]},
        {"name": "other gates", "slices": "same", "features": [], "node": "n2", "claims": CASE["claims"]},
    ]
    code, out, _ = run("\n".join(json.dumps(line) for line in lines))
    answers = {answer["name"]: answer for answer in map(json.loads, out.splitlines())}
    assert code == 0
    assert answers["full"]["nodes"][0]["results"] is None
    assert answers["free"]["nodes"][0]["results"] is not None
    assert [node["node"] for node in answers["all nodes"]["nodes"]] == ["n1", "n2"]
    assert answers["other gates"]["nodes"][0]["results"] is not None


def test_a_bad_line_is_reported_and_the_others_go_on(run: Any) -> None:
    code, out, err = run(
        "{broken\n" + json.dumps(CASE) + "\n[1]\n" + json.dumps({"claims": 7, "node": "n"}) + "\n"
    )
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 2
    assert "not JSON" in answers[0]["error"]
    assert answers[1]["name"] == "two gpus"
    assert "Expected `array" in answers[-1]["error"]
    assert "standard input, line 1" in err


def test_same_without_a_case_before_is_an_error(run: Any) -> None:
    code, out, _ = run(json.dumps({**CASE, "slices": "same"}))
    assert code == 2
    assert "no case before" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "best"}, "unknown policy"),
        ({"features": ["Nope"]}, "unknown feature gate"),
        ({"slices": "other"}, 'or "same"'),
        ({"nodes": None}, "names no node"),
    ],
)
def test_a_case_that_makes_no_sense_says_what_to_do(run: Any, change: dict[str, Any], message: str) -> None:
    code, out, err = run(json.dumps({**CASE, **change}))
    assert code == 2
    assert message in json.loads(out)["error"]
    assert message in err


def test_errors_of_the_claim_are_answers_not_failures(run: Any) -> None:
    claims = [
        {
            "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}},
        }
    ]
    code, out, _ = run(json.dumps({**CASE, "claims": claims}))
    answer = json.loads(out)
    assert code == 0
    assert [node["results"] for node in answer["nodes"]] == [None, None]
    assert "could not retrieve device class x" in answer["nodes"][0]["error"]


def test_first_stops_after_so_many_nodes(run: Any) -> None:
    one = json.loads(json.dumps(CASE["claims"]))
    one[0]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 1
    _, out, _ = run(json.dumps({**CASE, "claims": one, "first": 1}))
    assert [node["node"] for node in json.loads(out)["nodes"]] == ["n1"]
    _, out, _ = run(json.dumps({**CASE, "claims": one, "policy": "spread"}))
    assert [node["node"] for node in json.loads(out)["nodes"]] == ["n2", "n1"]


def test_yaml_documents_and_files_are_read(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(yaml.safe_dump_all([CASE, {**CASE, "name": "second"}]))
    pretty = tmp_path / "one.json"
    pretty.write_text(json.dumps(CASE, indent=2))
    code, out, _ = run("", str(path), str(pretty))
    assert code == 0
    assert [json.loads(line)["name"] for line in out.splitlines()] == ["two gpus", "second", "two gpus"]
    code, _, err = run("", str(tmp_path / "absent"))
    assert code == 2
    assert "cannot read" in err


def test_explain_prints_for_people(run: Any) -> None:
    _, out, _ = run(json.dumps(CASE), "--explain")
    assert "n1: does not fit" in out
    assert "r: gpu.example.com/n2/gpu-1" in out
    assert "hint:" in out


def test_yaml_as_people_write_it(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(
        """
# bare timestamps and numbers are common in manifests
name: as written
node: n1
classes: [{metadata: {name: gpu, creationTimestamp: 2026-11-16T01:02:03Z}}]
slices:
- metadata: {name: s}
  spec:
    driver: d
    nodeName: n1
    pool: {name: p, generation: 1, resourceSliceCount: 1}
    devices:
    - name: x
      allowMultipleAllocations: true
      capacity: {mem: {value: 2.5}, cores: {value: 4}}
      taints: [{key: k, effect: NoSchedule, timeAdded: 2026-11-16T01:02:03Z}]
claims:
- metadata: {name: c}
  spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu, tolerations: [{operator: Exists}]}}]}}
"""
    )
    code, out, _ = run("", str(path))
    assert code == 0
    [result] = json.loads(out)["nodes"][0]["results"][0]["devices"]["results"]
    assert result["consumedCapacity"] == {"mem": "2500m", "cores": "4"}
