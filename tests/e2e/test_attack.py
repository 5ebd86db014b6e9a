"""The short form of the standing adversary: some thousand hostile requests, some bombs, some damaged files."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_short_attack_finds_nothing(tmp_path):
    command = [sys.executable, "-m", "attack", "--short", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert "0 findings" in done.stdout
