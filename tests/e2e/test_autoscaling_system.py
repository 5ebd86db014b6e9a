"""`dray autoscale` beside a running system: nodes come for claims that wait, from zero too, and idle ones go."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.kubernetes  # it needs no Kubernetes, but as long as tests that do

CATALOGUE = """\
kind: NodeCatalogue
nodeTypes:
- {name: ws, profile: workstation, price: 2.1, min: 1, max: 4}
- {name: l40s, profile: l40s-shared, price: 6.4, max: 2}
"""


class System:
    """A system without nodes, and an autoscaler."""

    def __init__(self, folder):
        self.folder = folder
        self.data = folder / "data"
        self.catalogue = folder / "catalogue.yaml"
        self.catalogue.write_text(CATALOGUE)
        kept = {
            key: os.environ[key] for key in ("PATH", "LANG", "PYTHONPATH", "VIRTUAL_ENV") if key in os.environ
        }
        self.environment = {**kept, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "DRAY_SOCKET": ""}
        self.processes = []

    def start(self, word, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "dray", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment,
        )  # fmt: skip
        self.processes.append(process)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if word in line:
                return process
        return pytest.fail(f"{arguments[0]} ended: {''.join(lines)}")

    def autoscale(self):
        return self.start(
            "ready", "autoscale", "--data", str(self.data), "--catalogue", str(self.catalogue), "--idle", "3", "--interval", "0.5"
        )  # fmt: skip

    def dray(self, *arguments):
        result = subprocess.run(
            [sys.executable, "-m", "dray", *arguments], capture_output=True, text=True, timeout=120, env=self.environment, check=False,
        )  # fmt: skip
        assert "Traceback" not in result.stderr
        return result

    def nodes(self):
        """Return how many nodes of each group are there."""
        found = json.loads(
            self.dray("get", "nodes", "--against", str(self.data / "admin.kubeconfig"), "-o", "json").stdout
        )
        names = [each["node"] if "node" in each else each["name"] for each in found]
        return {group: sum(name.startswith(f"{group}-") for name in names) for group in ("ws", "l40s")}

    def eventually(self, wanted, seconds=120):
        limit = time.monotonic() + seconds
        while (found := self.nodes()) != wanted:
            assert time.monotonic() < limit, f"{found} instead of {wanted}"
            time.sleep(0.5)

    def close(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=120)
            process.stdout.close()


@pytest.fixture
def system(tmp_path):
    found = System(tmp_path)
    found.start("dray is up", "up", "--no-host", "--secure-port", "0", "--data", str(found.data))
    yield found
    found.close()


def test_one_three_one_and_zero_one_zero_over_a_kill(system):
    scaler = system.autoscale()
    system.eventually({"ws": 1, "l40s": 0})
    for number in range(5):
        result = system.dray("run", "--detach", "--name", f"job{number}", "--device", "gpu.nvidia.com", "--time", "1h", "--", "sleep", "600")  # fmt: skip
        assert result.returncode == 0, result.stderr
    system.eventually({"ws": 3, "l40s": 0})
    # No workstation has 40 GiB: a group that was empty grows.
    result = system.dray("run", "--detach", "--name", "big", "--device", "gpu.nvidia.com", "--min", "memory=40Gi", "--time", "1h", "--", "sleep", "600")  # fmt: skip
    assert result.returncode == 0, result.stderr
    system.eventually({"ws": 3, "l40s": 1})

    def running():
        return sum(each["state"] == "running" for each in json.loads(system.dray("ps", "-o", "json").stdout))

    limit = time.monotonic() + 120
    while running() < 6:
        assert time.monotonic() < limit
        time.sleep(0.5)

    second = system.dray("autoscale", "--data", str(system.data), "--catalogue", str(system.catalogue))
    assert second.returncode == 1
    assert "another instance runs already" in second.stderr

    scaler.kill()
    scaler.wait()
    system.autoscale()  # the jobs still run: containers outlive the process that hosts their nodes
    assert running() == 6
    assert system.dray("run", "--device", "gpu.nvidia.com", "--", "true").returncode == 0
    time.sleep(3)  # until the drivers of all nodes have registered again
    names = [f"job{number}" for number in range(5)] + ["big"]
    assert system.dray("stop", "--now", *names).returncode == 0
    system.eventually({"ws": 1, "l40s": 0})
    left = {path.name for path in (system.data / "nodes").iterdir()}
    assert len(left) == 1
