"""A shared system on this machine, and what people do with it, for tests."""

import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

GPU_POD = {
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
    "restartPolicy": "Never",
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu"},
    "spec": {
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    },
}


class _Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def _request(path, method, target, body):
    with closing(_Connection(path)) as connection:
        text = None if body is None else json.dumps(body)
        connection.request(method, target, text, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def as_person(account, work):
    """Do some work in a child process that is this person, and return what it returns (JSON)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
            os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
            os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
            try:
                result = {"result": work()}
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
            with os.fdopen(writing, "w") as out:
                json.dump(result, out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        answer = json.load(told)
    os.waitpid(child, 0)
    assert "error" not in answer, answer["error"]
    return answer["result"]


class Machine:
    """A shared system on this machine."""

    def __init__(self, folder, *flags):
        self.flags = flags
        self.folder = folder
        place = Path("/run") / f"dray-{secrets.token_hex(3)}"
        place.mkdir(mode=0o755)
        self.socket = str(place / "api.sock")
        self.data = folder / "data"
        self.environment = {**os.environ, "DRAY_SOCKET": self.socket, "HOME": str(folder)}
        for name in ("KUBECONFIG", "XDG_RUNTIME_DIR"):
            self.environment.pop(name, None)
        self.log = (folder / "up.log").open("w+")
        self.start()

    def start(self):
        """Start the system, on the data that there is."""
        self.log.truncate(0)
        command = [
            "up",
            "--shared",
            "--sim",
            "dgx-h100",
            "--no-host",
            "--secure-port",
            "0",
            "--data",
            str(self.data),
            *self.flags,
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dray", *command], env=self.environment, stdout=self.log, stderr=self.log
        )
        self.eventually(lambda: "dray is up" in self.log_text(), 180, "dray up")

    def log_text(self):
        return Path(self.log.name).read_text()

    def kill_everything(self, accounts, *, jobs):
        """End all processes at once as a failing machine does; without `jobs` those of people live on."""
        parts = json.loads((self.data / "system.json").read_text())["parts"]
        pids = {self.process.pid, *(part["pid"] for part in parts.values())}
        uids = {account.pw_uid for account in accounts}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    is_ours = str(self.data).encode() in (entry / "cmdline").read_bytes()
                    is_job = b"shim" in (entry / "cmdline").read_bytes() or entry.stat().st_uid in uids
                except OSError:
                    continue
                if (is_ours or entry.stat().st_uid in uids) and (jobs or not is_job):
                    pids.add(int(entry.name))
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(30)

    def end_up(self, number=signal.SIGTERM):
        """End `dray up` and wait for it."""
        self.process.send_signal(number)
        self.process.wait(90)

    def stop(self):
        self.end_up()
        self.log.close()
        assert not Path(self.socket).exists()
        for left in Path(self.socket).parent.iterdir():
            left.unlink()
        Path(self.socket).parent.rmdir()

    def dray(self, *words, path=None):
        environment = {**self.environment, **({"PATH": path} if path else {})}
        done = subprocess.run(
            [sys.executable, "-m", "dray", *words],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def ask(self, account, method, target, body=None):
        """Send a request as a person; return the status and the answer."""
        path = self.socket
        status, text = as_person(account, lambda: _request(path, method, target, body))
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def run(self, account, name, script, **spec):
        """Make a pod of a person; return the status of the request and the answer."""
        box = {"name": "main", "image": "x", "command": ["sh", "-c", script]}
        if "resourceClaims" in spec:
            box["resources"] = {"claims": [{"name": "gpu"}]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [box], "restartPolicy": "Never", **spec},
        }
        return self.ask(account, "POST", f"{pods_of(account)}", pod)

    def phase(self, account, name):
        return self.ask(account, "GET", f"{pods_of(account)}/{name}")[1].get("status", {}).get("phase")

    def log_of(self, account, name):
        return self.ask(account, "GET", f"{pods_of(account)}/{name}/log")[1]

    @staticmethod
    def eventually(check, seconds=60, what=""):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = check()
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError(f"not within {seconds} s: {what}")


def pods_of(account):
    return f"/api/v1/namespaces/user-{account.pw_name}/pods"


def process_of(account):
    """Return a process of a person's job."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == account.pw_uid and b"sleep" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError(f"no process of {account.pw_name}")


def gpu_job(machine, account, name, script="echo ready; sleep 600", count=1, **spec):
    """Make a job of a person with some GPUs."""
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": count, "allocationMode": "ExactCount"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    path = f"/apis/resource.k8s.io/v1/namespaces/user-{account.pw_name}/resourceclaims"
    status, answer = machine.ask(account, "POST", path, claim)
    assert status == 201, answer
    references = [{"name": "gpu", "resourceClaimName": name}]
    status, answer = machine.run(account, name, script, resourceClaims=references, **spec)
    assert status == 201, answer


def waits(machine, account, name):
    """Return why a job waits."""
    pod = machine.ask(account, "GET", f"{pods_of(account)}/{name}")[1]
    return next((each.get("message", "") for each in pod["status"].get("conditions", [])), "")


def end_job(machine, account, name):
    machine.ask(account, "DELETE", f"{pods_of(account)}/{name}?gracePeriodSeconds=0")
    path = f"/apis/resource.k8s.io/v1/namespaces/user-{account.pw_name}/resourceclaims"
    machine.ask(account, "DELETE", f"{path}/{name}")
