"""The commands against a running `dray up`: as people type them, in processes of their own."""

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request

import aiohttp
import pytest

from dray.client import Client
from dray.client.kubeconfig import load_kubeconfig
from dray.client.resources import NODES
from dray.sim.snapshot import capture


class Running:
    """A system of one simulated node, and a way to type commands at it."""

    def __init__(self, folder):
        self.data = folder / "data"
        keys = ("PATH", "LANG", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {key: value for key, value in os.environ.items() if key in keys}
        self.environment = {**kept, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        self.process = self.start(
            "up", "--sim", "dgx-h100", "--no-host", "--secure-port", "0", "--data", str(self.data)
        )
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if "dray is up" in line:
                return
        pytest.fail(f"dray up ended: {''.join(lines)}{self.process.stderr.read()}")

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "dray", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def dray(self, *arguments, timeout=120):
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert "Traceback" not in err
        return process.returncode, out, err

    def data_of(self, *arguments):
        code, out, err = self.dray(*arguments, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    def look(self):
        """Return the cluster as it is now, without the cost of a process."""

        async def capture_once():
            async with Client.connect(self.data / "admin.kubeconfig") as client:
                return await capture(client)

        return asyncio.run(capture_once())

    def has_no_claims(self):
        return not self.look().claims

    def eventually(self, question, seconds=60):
        limit = time.monotonic() + seconds
        while not (answer := question()):
            assert time.monotonic() < limit, "did not come true in time"
            time.sleep(0.2)
        return answer


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    system = Running(tmp_path_factory.mktemp("up"))
    yield system
    if system.process.poll() is None:
        system.process.send_signal(signal.SIGINT)
        system.process.communicate(timeout=120)
    system.process.stdout.close()
    system.process.stderr.close()


def test_run_gives_the_output_and_the_exit_code_of_the_command_and_leaves_nothing(up):
    code, out, _ = up.dray(
        "run", "--device", "gpu.nvidia.com", "--min", "memory=40Gi", "--", "sh", "-c", "env; exit 7"
    )
    assert code == 7
    assert "gpu.nvidia.com/dgx-h100-1/gpu-0" in out
    up.eventually(up.has_no_claims)


def test_run_without_devices_has_the_callers_directory_and_environment(up, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text("echo here $MODEL $(pwd) $$; exit 5")
    monkeypatch.setitem(up.environment, "MODEL", "resnet")
    code, out, err = up.dray("run", "--", "sh", "train.sh")
    assert code == 5, err
    assert out.startswith(f"here resnet {tmp_path} ")
    code, out, _ = up.dray("run", "--clean-env", "--workdir", "/", "--", "sh", "-c", "echo [$MODEL] $(pwd)")
    assert (code, out) == (0, "[] /\n")


def test_a_job_ends_when_its_time_is_over(up):
    code, out, err = up.dray(
        "run", "--time", "2s", "--", "sh", "-c", "trap 'echo TERM; exit 3' TERM; sleep 60 & wait"
    )
    assert (code, out) == (3, "TERM\n")
    assert "DeadlineExceeded" in err


def test_the_commands_around_run(up):
    assert (
        up.dray("run", "--detach", "--name", "first", "--time", "1h", "--", "sh", "-c", "echo on; sleep 600")[
            0
        ]
        == 0
    )
    assert (
        up.dray("run", "--detach", "--name", "second", "--after", "first", "--", "sh", "-c", "exit 6")[0] == 0
    )
    up.eventually(lambda: up.dray("logs", "first")[:2] == (0, "on\n"))
    states = {job["name"]: job["state"] for job in up.data_of("ps")}
    assert states == {"first": "running", "second": "after"}
    assert [job["name"] for job in up.data_of("queue")] == ["second"]
    assert up.dray("exec", "first", "--", "sh", "-c", "echo in; exit 9")[:2] == (9, "in\n")
    assert up.dray("exec", "-t", "first", "--", "tty")[1].startswith("/dev/pts/")
    code, _, err = up.dray("stop", "frist")
    assert (code, "did you mean first?" in err) == (2, True)
    assert up.dray("stop", "--now", "first")[0] == 0
    assert up.dray("wait", "second")[0] == 6
    assert up.dray("attach", "second")[0] == 6
    assert up.dray("stop", "second")[0] == 0


def test_kubectl_forwards_a_port_of_a_pod(up):
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl 1.31 or newer")
    port = up.data / "port"
    program = (
        "import http.server as h,sys;s=h.HTTPServer(('127.0.0.1',0),h.SimpleHTTPRequestHandler);"
        "open(sys.argv[1],'w').write(f'{s.server_port} ');s.serve_forever()"
    )
    command = ["run", "--detach", "--name", "web", "--", sys.executable, "-c", program, str(port)]
    assert up.dray(*command)[0] == 0
    up.eventually(lambda: port.exists() and port.read_text().endswith(" "))
    line = [kubectl, "--kubeconfig", str(up.data / "admin.kubeconfig"), "port-forward", "pod/web"]
    forwarding = subprocess.Popen(
        [*line, f":{port.read_text().strip()}"], stdout=subprocess.PIPE, text=True, env=up.environment
    )
    try:
        address = forwarding.stdout.readline().split()[2]
        for _ in range(3):
            with urllib.request.urlopen(f"http://{address}/", timeout=60) as answer:
                assert answer.status == 200
    finally:
        forwarding.terminate()
        forwarding.communicate(timeout=60)
        up.dray("stop", "--now", "web")


def test_nothing_of_a_node_is_readable_by_others(up):
    nodes = up.data / "nodes"
    assert list(nodes.rglob("*.sock")), "the drivers' sockets are looked at, too"
    opened = [
        f"{path.relative_to(nodes)} {path.lstat().st_mode & 0o777:o}"
        for path in nodes.rglob("*")
        if not path.is_symlink() and path.lstat().st_mode & 0o077
    ]
    assert opened == []


def test_a_certificate_without_rights_opens_nothing_on_a_node(up, tmp_path):
    """What `dray kubeconfig --user` writes, and the credentials of another node."""
    made = {}
    for words in (["--user", "eve"], ["--node", "other"]):
        file = tmp_path / f"{words[1]}.kubeconfig"
        assert up.dray("kubeconfig", "--data", str(up.data), *words, "--file", str(file))[0] == 0
        made[words[1]] = file

    async def look():
        async with Client.connect(up.data / "admin.kubeconfig") as client:
            (found,) = (await client.list(NODES)).items
        port = found["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        answers = {}
        for name in (*made, "admin"):
            tls = load_kubeconfig(made.get(name, up.data / "admin.kubeconfig")).tls
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            for path in ("/pods", "/metrics", "/containerLogs/a/b/c", "/exec/a/b/c?command=id"):
                async with (
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
                    session.get(f"https://127.0.0.1:{port}{path}") as answer,
                ):
                    answers[name, path.split("?")[0]] = answer.status
        return answers

    answers = asyncio.run(look())
    assert {status for (name, _), status in answers.items() if name != "admin"} == {403}
    assert {status for (name, _), status in answers.items() if name == "admin"} == {200, 404}


def test_run_says_why_there_are_no_devices_and_gives_up_in_time(up):
    code, _, err = up.dray(
        "run", "--device", "gpu.nvidia.com", "--count", "9", "--timeout", "3", "--", "true"
    )
    assert code == 124
    assert "ask for 8 instead of 9" in err
    up.eventually(up.has_no_claims)


def test_a_command_that_cannot_start_ends_the_run(up):
    code, _, err = up.dray("run", "--device", "gpu.nvidia.com", "--", "/no/such/binary")
    assert code == 127
    assert "not started: RunContainerError" in err
    up.eventually(up.has_no_claims)


def test_ctrl_c_deletes_the_pod_and_the_claim(up):
    process = up.start("run", "--device", "gpu.nvidia.com", "--", "sh", "-c", "echo started; sleep 600")
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping the job" in err
    up.eventually(up.has_no_claims)


def test_a_server_that_died_comes_back_where_everybody_looks_for_it(up):
    def server_of(status):
        return status["parts"]["server"]

    before = up.data_of("status")
    address = (up.data / "admin.kubeconfig").read_text()
    os.kill(server_of(before)["pid"], signal.SIGKILL)

    def is_back():
        code, out, _ = up.dray("status", "-o", "json")
        return code == 0 and server_of(json.loads(out))["pid"] != server_of(before)["pid"]

    up.eventually(is_back)
    assert (up.data / "admin.kubeconfig").read_text() == address
    up.eventually(lambda: up.dray("run", "--device", "gpu.nvidia.com", "--", "true")[0] == 0)
    up.eventually(up.has_no_claims)


def test_a_device_is_drained_given_back_and_validated(up):
    device = "gpu.nvidia.com/dgx-h100-1/gpu-0"
    code, _, err = up.dray("fleet", "drain", device, "--reason", "fan")
    assert code == 0, err
    [drain] = up.data_of("fleet", "drains")
    assert (drain["target"], drain["effect"], drain["reason"]) == (device, "NoSchedule", "fan")
    code, out, _ = up.dray("run", "--device", "gpu.nvidia.com", "--", "env")
    assert code == 0 and "dgx-h100-1/gpu-1" in out and "dgx-h100-1/gpu-0" not in out
    # A device under maintenance can be validated, and a probe that fails is told from one that does not.
    assert up.dray("fleet", "check", device, "--profile", "dgx-h100")[0] == 0
    code, out, _ = up.dray("fleet", "check", device, "--probe", "echo broken; exit 3", "-o", "json")
    [failed] = [each for each in json.loads(out)[0]["results"] if each["status"] == "failed"]
    assert (code, failed["name"], failed["evidence"]) == (1, "probe", "exit code 3: broken")
    assert up.dray("fleet", "undrain", device)[0] == 0
    assert up.data_of("fleet", "drains") == []
    up.eventually(
        lambda: not [each for each in up.look().claims if each.metadata.namespace.startswith("dray-")]
    )


def test_the_conformance_checks_hold_and_leave_nothing(up, tmp_path):
    code, out, err = up.dray(
        *("conformance", "run", "dra_support", "secure_accelerator_access", "high_performance_networking"),
        *("--version", "v1.36", "-o", "json"),
    )
    assert (code, "has no check 'dra_support'" in err) == (2, True)  # v1.36 takes DRA for granted
    page = tmp_path / "c.html"
    checks = ("dra_support", "secure_accelerator_access", "driver_runtime_management")
    code, out, err = up.dray(
        "conformance", "run", *checks, "--version", "v1.35", "-o", "json", "--html", str(page)
    )
    assert code == 0, err
    status = {each["id"]: each["status"] for entries in json.loads(out)["spec"].values() for each in entries}
    assert {status[name] for name in checks} == {"Implemented"} and status["ai_inference"] == ""
    assert "secure_accelerator_access" in page.read_text()
    up.eventually(
        lambda: not [each for each in up.look().claims if each.metadata.namespace.startswith("dray-")]
    )


def test_a_detached_command_goes_on_and_is_seen_by_the_other_commands(up):
    code, out, _ = up.dray(
        "run", "--detach", "--name", "hog", "--device", "gpu.nvidia.com", "--count", "8", "--", "sleep", "600"
    )
    assert (code, out) == (0, "hog\n")
    up.eventually(lambda: any(pod.metadata.name == "hog" and pod.spec.node_name for pod in up.look().pods))
    assert up.data_of("get", "claims", "hog")[0]["state"] == "reserved"
    assert "default/hog (hog)" in up.dray("top", "--once")[1]
    code, text, _ = up.dray("explain", "pod", "hog")
    assert code == 0
    assert "runs on node dgx-h100-1" in text
    assert up.dray("run", "--name", "hog", "--device", "gpu.nvidia.com", "--", "true")[0] == 2


def test_a_device_that_vanishes_is_gone_until_it_is_healed(up):
    def names():
        return {device.name for found in up.look().slices for device in found.spec.devices}

    assert "gpu-7" in names()
    assert up.dray("fault", "dgx-h100-1", "gpu-7", "vanish")[0] == 0
    assert up.data_of("fault")[0]["fault"] == {"vanish": True}
    up.eventually(lambda: "gpu-7" not in names())
    assert up.dray("fault", "dgx-h100-1", "gpu-7", "clear")[0] == 0
    up.eventually(lambda: "gpu-7" in names())


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("fault", "dgx-h100-9", "gpu-0", "vanish"), "did you mean dgx-h100-1?"),
        (("fault", "dgx-h100-1", "gpu0", "vanish"), "did you mean gpu-0?"),
        (("run", "--device", "gpu.nvidia.con", "--", "true"), "did you mean gpu.nvidia.com?"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest(up, words, hint):
    code, _, err = up.dray(*words)
    assert code == 2
    assert hint in err


def test_check_and_snapshot_work_against_it(up, tmp_path):
    manifest = tmp_path / "claim.yaml"
    manifest.write_text(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\n"
        "spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 9}}]}}\n"
    )
    code, out, _ = up.dray("check", str(manifest), "--against", str(up.data / "admin.kubeconfig"))
    assert code == 1
    assert "[never-fits]" in out
    assert up.dray("snapshot", str(tmp_path / "s.json"))[0] == 0
    code, out, _ = up.dray("get", "nodes", "--against", str(tmp_path / "s.json"))
    assert "dgx-h100-1" in out


def test_down_stops_it(up):
    assert up.dray("status")[0] == 0
    stopping = up.start("down")
    up.process.wait(timeout=60)  # we are the parent: until we look, an ended process still counts as one
    # What takes longer than two seconds says so.
    assert stopping.communicate(timeout=60)[1].endswith("stopped\n")
    assert stopping.returncode == 0
    # Of this system: without --data it may be another one of this machine that is meant now.
    assert up.dray("status", "--data", str(up.data))[0] == 1
