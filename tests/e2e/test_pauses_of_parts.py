"""Every part of `dray up` is stopped for a minute (SIGSTOP, then SIGCONT): nothing is lost, and nobody has to help.

Afterwards every node is Ready without a taint within 15 s, the job that ran still runs as the same pod, and a new one is run.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from test_cli_up import Running

PAUSE = 60.0
READY_WITHIN = 15.0
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    system = Running(tmp_path_factory.mktemp("up"))
    yield system
    system.process.send_signal(signal.SIGINT)
    system.process.communicate(timeout=120)


def parts_of(pid):
    """Return the processes below one, by the command of dray that each runs."""
    found = {}
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        if "dray" in words:  # not what runs in pods
            found[words[words.index("dray") + 1]] = child
        found |= {key: value for key, value in parts_of(child).items() if key not in found}
    return found


def problems(system, before):
    """Return what is not as it should be."""
    seen = system.look()
    nodes = [
        f"node {node.metadata.name} is not ready"
        for node in seen.nodes
        if node.spec.taints
        or not any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
    ]
    pods = {pod.metadata.uid: pod for pod in seen.pods}
    lost = [
        f"pod {uid} is gone or ended"
        for uid in before
        if uid not in pods or pods[uid].status.phase != "Running"
    ]
    return nodes + lost


def test_a_minute_without_each_part_costs_nothing(up):
    code, _, err = up.dray("run", "--detach", "--device", "gpu.nvidia.com", "--", "sleep", "3600")
    assert code == 0, err
    running = up.eventually(
        lambda: {pod.metadata.uid for pod in up.look().pods if pod.status.phase == "Running"}
    )
    parts = parts_of(up.process.pid)
    assert {"server", "scheduler", "controllers"} <= set(parts), parts
    for name, pid in parts.items():
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(PAUSE)
        finally:
            os.kill(pid, signal.SIGCONT)
        began = time.monotonic()
        found = ["not asked yet"]
        while found and time.monotonic() - began < READY_WITHIN:
            with contextlib.suppress(Exception):  # the server needs a moment itself
                found = problems(up, running)
            time.sleep(0.2)
        assert not found, f"{READY_WITHIN} s after {name} went on: {found}"
        took = time.monotonic() - began
        code, out, err = up.dray("run", "--device", "gpu.nvidia.com", "--", "echo", "works", timeout=60)
        assert (code, "works" in out) == (0, True), f"after the pause of {name}: {err}"
        print(f"{name}: all well {took:.1f} s after {PAUSE:.0f} s of pause")
