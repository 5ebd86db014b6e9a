"""The short form of the standing adversary: some thousand hostile requests, some bombs, some damaged files."""

import ast
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from attack import replaying
from attack.wire import json_request

ROOT = Path(__file__).resolve().parents[2]


def test_the_short_attack_finds_nothing(tmp_path):
    command = [sys.executable, "-m", "attack", "--short", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert "0 findings" in done.stdout
    assert "PASS: every limit holds" in done.stdout


CONFIG_MAPS = "/api/v1/namespaces/corpus/configmaps"


def finding(value, sort="status", **more):
    request = json_request("POST", CONFIG_MAPS, value)
    request.shape = "create"
    example = {"before": [], "request": {**request.record(), **more}}
    return {"sort": sort, "cause": "as recorded", "count": 1, "examples": [example]}


async def test_findings_are_replayed_and_made_smaller(tmp_path, monkeypatch, capsys):
    # A healthy server fails in no way that is not expected, so here nothing is.
    monkeypatch.setattr(replaying, "expected_failure", lambda status, message: None)
    failing = {
        "metadata": {"name": "again", "resourceVersion": "17", "labels": {"a": "b", "c": "d"}},
        "data": {"e": "f"},
    }
    mended = {"metadata": {"name": "well"}, "data": {"e": "f"}}
    records = [finding(failing), finding(mended), finding({}, "hang", body="", bomb="json same key x 20000")]
    path = tmp_path / "findings.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    assert await replaying.replay(path, shrink=True) == 1
    first, second, third = capsys.readouterr().out.split("as recorded")[1:]
    assert "-> 500" in first
    assert "resourceVersion should not be set" in first
    smallest = json.loads(ast.literal_eval(first.partition("smallest body: ")[2].splitlines()[0]))
    assert smallest == {"metadata": {"resourceVersion": "17"}} or smallest == {
        "metadata": {"name": "again", "resourceVersion": "17"}
    }
    assert "does not fail" in second
    assert "-> 422" in third  # the bomb's own body was sent, not the empty one of the file
    path.write_text(json.dumps(records[1]) + "\n")
    assert await replaying.replay(path, shrink=True) == 0
