"""The demo as a newcomer runs it: every scene ends as it should, and the processes are gone afterwards."""

import json
import subprocess
import sys


def test_every_scene_of_the_demo_ends_as_expected(tmp_path):
    picture = tmp_path / "map.svg"
    done = subprocess.run(
        [sys.executable, "-m", "dray", "demo", "--no-wait", "--output", "json", "--svg", str(picture)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert [scene for scene in report["scenes"] if not scene["ok"]] == []
    assert done.returncode == 0
    assert len(report["scenes"]) == 13
    assert picture.read_text().startswith("<svg")
    lines = {scene["title"]: scene["lines"] for scene in report["scenes"]}
    assert "H200" in " ".join(lines["An impossible claim, and why"])
    assert "broken on purpose" in " ".join(lines["A device fails, and its pod moves"])
