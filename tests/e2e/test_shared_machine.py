"""One machine, three real Unix users: who they are, what they see of each other, as whom jobs run, what survives kills.

As root: users are made with useradd, `dray up --shared` runs on this machine, and requests go over its Unix socket
from processes of these users.
"""

import http.client
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
from unix_users import root_only, unix_users

pytestmark = [pytest.mark.root, root_only]

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

    def __init__(self, folder):
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
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dray", *command], env=self.environment, stdout=self.log, stderr=self.log
        )
        self.eventually(lambda: "dray is up" in Path(self.log.name).read_text(), 180, "dray up")

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

    def stop(self):
        self.process.terminate()
        self.process.wait(90)
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


@pytest.fixture(scope="module")
def people():
    with unix_users("ann", "bob", "eve") as users:
        yield users


@pytest.fixture(scope="module")
def machine(tmp_path_factory, people):
    made = Machine(tmp_path_factory.mktemp("shared"))
    yield made
    made.stop()


def test_a_job_runs_as_the_person_and_nobody_else_sees_stops_or_reads_it(machine, people):
    ann, bob, eve = people
    secret = "echo hidden >~/result && chmod 600 ~/result; id -u; echo $HOME; ls /dev | sort | tr '\\n' ' '; echo; echo ready; sleep 600"
    status, answer = machine.run(ann, "train", secret)
    assert status == 201, answer
    machine.eventually(lambda: "ready" in machine.log_of(ann, "train"), what="the job of ann")
    told = machine.log_of(ann, "train").splitlines()
    assert told[:2] == [str(ann.pw_uid), ann.pw_dir]
    assert told[2].split() == ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
                               "urandom", "zero"]  # fmt: skip
    for other in (bob, eve):
        for method, target in (
            ("GET", pods_of(ann)),
            ("GET", f"{pods_of(ann)}/train"),
            ("GET", f"{pods_of(ann)}/train/log"),
            ("DELETE", f"{pods_of(ann)}/train"),
            ("POST", f"{pods_of(ann)}/train/exec?{urlencode({'command': 'id'})}"),
            ("POST", f"{pods_of(ann)}/train/attach"),
            ("GET", "/api/v1/pods"),
        ):
            assert machine.ask(other, method, target)[0] == 403, (method, target)
        result = Path(ann.pw_dir, "result")
        assert as_person(other, lambda result=result: _denied(result.read_text))
        job = _process_of(ann)
        assert as_person(other, lambda job=job: _denied(lambda: os.kill(job, signal.SIGTERM)))
        assert as_person(other, lambda job=job: _denied(Path(f"/proc/{job}/environ").read_bytes))
        assert as_person(other, lambda: _denied(lambda: list(machine.data.iterdir())))
    assert machine.phase(ann, "train") == "Running"
    assert machine.ask(ann, "DELETE", f"{pods_of(ann)}/train?gracePeriodSeconds=0")[0] == 200


def _denied(work):
    try:
        work()
    except PermissionError:
        return True
    return False


def _process_of(account):
    """Return a process of a person's job."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == account.pw_uid and b"sleep" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError(f"no process of {account.pw_name}")


@pytest.mark.parametrize(
    "spec",
    [
        {"securityContext": {"runAsUser": 0}},
        {"hostPID": True},
        {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    ],
    ids=str,
)
def test_nobody_can_ask_for_another_identity(machine, people, spec):
    status, answer = machine.run(people[0], "evil", "id", **spec)
    assert status == 403, answer


def test_devices_are_given_to_people_and_root_sees_everybody(machine, people):
    ann, bob, _ = people
    for person in (ann, bob):
        namespace = f"user-{person.pw_name}"
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
        assert machine.ask(person, "POST", path, TEMPLATE)[0] == 201
        assert machine.run(person, "gpu", "env | grep -i nvidia; echo ready; sleep 600", **GPU_POD)[0] == 201
    seen = []
    for person in (ann, bob):
        machine.eventually(
            lambda person=person: "ready" in machine.log_of(person, "gpu"), 120, "a job with a GPU"
        )
        seen.append(machine.log_of(person, "gpu"))
    assert seen[0] != seen[1]  # different devices
    code, out, err = machine.dray("user", "list", "-o", "json")
    assert code == 0, err
    users = {user["user"]: user for user in json.loads(out)}
    assert {ann.pw_name, bob.pw_name} <= set(users)
    assert users[ann.pw_name]["running"] == 1
    code, out, err = machine.dray("user", "limit", ann.pw_name, "--devices", "2", "-o", "json")
    assert (code, json.loads(out)["limits"]) == (0, {"devices": 2}), err
    for person in (ann, bob):
        assert machine.ask(person, "DELETE", f"{pods_of(person)}/gpu?gracePeriodSeconds=0")[0] == 200


def test_a_device_node_of_the_host_that_was_not_given_cannot_be_opened(machine, people):
    node = f"/dev/dray-test-{secrets.token_hex(3)}"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.chmod(node, 0o666)
    try:
        ann = people[0]
        assert as_person(ann, lambda: Path(node).write_text("x")) == 1  # outside of a job anybody may
        assert machine.run(ann, "peek", f"echo x >{node} && echo opened || echo refused")[0] == 201
        machine.eventually(lambda: machine.phase(ann, "peek") == "Succeeded", what="the job ends")
        assert machine.log_of(ann, "peek").splitlines()[-1] == "refused"
    finally:
        os.unlink(node)


def test_the_longest_time_of_a_job_holds(machine, people):
    eve = people[2]
    assert machine.dray("user", "limit", eve.pw_name, "--longest", "2")[0] == 0
    status, answer = machine.run(eve, "long", "sleep 600", activeDeadlineSeconds=3)
    assert status == 403
    assert "the longest time of a job is 2s" in answer["message"]
    assert machine.run(eve, "long", "sleep 600")[0] == 201
    machine.eventually(lambda: machine.phase(eve, "long") == "Failed", what="the job is ended")
    pod = machine.ask(eve, "GET", f"{pods_of(eve)}/long")[1]
    assert pod["status"]["reason"] == "DeadlineExceeded"


def test_an_administrator_is_made_and_unmade(machine, people):
    eve = people[2]
    assert machine.ask(eve, "GET", "/api/v1/pods")[0] == 403
    assert machine.dray("user", "admin", eve.pw_name)[0] == 0
    assert machine.ask(eve, "GET", "/api/v1/pods")[0] == 200
    status, _ = machine.run(eve, "evil", "id", securityContext={"runAsUser": 0})
    assert status == 403  # still a person: jobs run as that person
    assert machine.dray("user", "admin", eve.pw_name, "--remove")[0] == 0
    assert machine.ask(eve, "GET", "/api/v1/pods")[0] == 403
    assert machine.dray("user", "admin", eve.pw_name, "--remove")[0] == 1


def test_a_login_is_the_same_person_over_https(machine, people):
    ann = people[0]
    status, answer = machine.ask(ann, "POST", "/dray/v1/login?seconds=600")
    assert status == 201
    config = machine.folder / "ann.kubeconfig"
    config.write_text(answer["kubeconfig"])
    code, _, err = machine.dray("get", "nodes", "--kubeconfig", str(config))
    assert code == 0, err
    code, _, err = machine.dray("user", "list", "--kubeconfig", str(config))
    assert code == 1
    assert "403" in err


def test_a_killed_server_and_a_killed_agent_lose_no_job(machine, people):
    bob = people[1]
    assert machine.run(bob, "long", "echo begun; sleep 20; echo done")[0] == 201
    machine.eventually(lambda: "begun" in machine.log_of(bob, "long"), what="the job of bob")
    state = json.loads((machine.data / "system.json").read_text())
    for part in ("nodes", "server"):
        os.kill(state["parts"][part]["pid"], signal.SIGKILL)

    def is_done():
        try:
            return machine.phase(bob, "long") == "Succeeded"
        except (AssertionError, AttributeError):
            return False  # the server is not back yet

    machine.eventually(is_done, 180, "the job ends after the kills")
    assert machine.log_of(bob, "long").split() == ["begun", "done"]


def _gpu_job(machine, account, name, script="echo ready; sleep 600", count=1, **spec):
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


def _end_job(machine, account, name):
    machine.ask(account, "DELETE", f"{pods_of(account)}/{name}?gracePeriodSeconds=0")
    path = f"/apis/resource.k8s.io/v1/namespaces/user-{account.pw_name}/resourceclaims"
    machine.ask(account, "DELETE", f"{path}/{name}")


def _waits(machine, account, name):
    """Return why a job waits."""
    pod = machine.ask(account, "GET", f"{pods_of(account)}/{name}")[1]
    return next((each.get("message", "") for each in pod["status"].get("conditions", [])), "")


def test_limits_hold_and_the_queue_says_so(machine, people):
    ann, bob, _ = people
    assert machine.dray("user", "limit", ann.pw_name, "--devices", "2")[0] == 0
    names = ["one", "two", "three"]
    for name in names[:2]:
        _gpu_job(machine, ann, name)
        machine.eventually(lambda name=name: machine.phase(ann, name) == "Running", 120, name)
    _gpu_job(machine, ann, "three")
    machine.eventually(lambda: "limit: 2 devices are held" in _waits(machine, ann, "three"), what="the limit")
    _gpu_job(machine, bob, "free")  # devices are left, for others
    machine.eventually(lambda: machine.phase(bob, "free") == "Running", 120, "the job of bob")

    def told():
        code, out, err = machine.dray("queue", "-o", "json")
        assert code == 0, err
        return [(job["name"], job["heldBack"]) for job in json.loads(out) if job.get("heldBack")]

    assert machine.eventually(told, 60, "the report")[0][0] == "three"
    assert machine.ask(bob, "GET", "/api/v1/namespaces/kube-system/configmaps/dray-queue")[0] == 200
    _, out, _ = machine.dray("explain", "pod", "three", "-n", f"user-{ann.pw_name}")
    assert "limits: devices 2 of 2" in out
    assert "share:" in out
    assert machine.dray("user", "limit", ann.pw_name, "--devices", "3")[0] == 0
    machine.eventually(lambda: machine.phase(ann, "three") == "Running", 120, "the limit was raised")
    for name in names:
        _end_job(machine, ann, name)
    _end_job(machine, bob, "free")


def test_a_second_stop_with_less_grace_ends_a_job_that_ignores_the_first(machine, people):
    ann = people[0]
    script = "trap '' TERM; echo ready; while :; do sleep 0.2; done"
    assert machine.run(ann, "stubborn", script, terminationGracePeriodSeconds=600)[0] == 201
    machine.eventually(lambda: "ready" in str(machine.log_of(ann, "stubborn")), what="the job runs")
    assert machine.ask(ann, "DELETE", f"{pods_of(ann)}/stubborn")[0] == 200
    assert machine.ask(ann, "DELETE", f"{pods_of(ann)}/stubborn?gracePeriodSeconds=1")[0] == 200
    gone = f"{pods_of(ann)}/stubborn"
    machine.eventually(lambda: machine.ask(ann, "GET", gone)[0] == 404, 60, "it is ended")


def test_a_container_engine_gets_the_devices_of_the_job(machine):
    folder = machine.folder / "bin"
    folder.mkdir()
    engine = folder / "podman"
    engine.write_text('#!/bin/sh\nfor word in "$@"; do echo "[$word]"; done\nexit 9\n')
    engine.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    code, out, err = machine.dray(
        "hold", "--device", "gpu.nvidia.com", "--", "podman", "run", "x", "ls", path=path
    )
    assert code == 9, err
    words = out.splitlines()
    assert words[:2] == ["[run]", "[--env]"]
    assert words[2].startswith("[DRAY_DEVICE_GPU_0=gpu.nvidia.com/dgx-h100-1/gpu-")
    assert words[-2:] == ["[x]", "[ls]"]
    code, out, err = machine.dray("run", "--image", "x", "--device", "gpu.nvidia.com", "--", "ls", path=path)
    assert code == 9, err
    assert out.splitlines()[-2:] == ["[x]", "[ls]"]
    assert "DRAY_DEVICE_GPU_0=" in out
    code, _, err = machine.dray("run", "--image", "x", "--", "ls", path=str(machine.folder))
    assert code == 2
    assert "needs a container engine" in err


def test_fair_share_orders_and_a_low_job_is_evicted_with_notice(machine, people):
    ann, bob, eve = people
    assert machine.dray("user", "limit", ann.pw_name, "--clear")[0] == 0
    assert machine.dray("user", "limit", eve.pw_name, "--clear")[0] == 0
    script = "trap 'echo told to end >~/told; exit 0' TERM; echo ready; sleep 600 & wait"
    _gpu_job(machine, eve, "low", script, 2, priorityClassName="dray-low", terminationGracePeriodSeconds=20)
    machine.eventually(lambda: machine.phase(eve, "low") == "Running", 120, "the low job")
    _gpu_job(machine, ann, "most", "echo ready; sleep 600", 6)
    machine.eventually(lambda: machine.phase(ann, "most") == "Running", 120, "the job of ann")
    machine.eventually(lambda: "ready" in machine.log_of(eve, "low"), what="the low job runs")
    _gpu_job(machine, ann, "normal", count=2)  # evicts the low job
    machine.eventually(lambda: machine.phase(ann, "normal") == "Running", 120, "the eviction")
    assert Path(eve.pw_dir, "told").read_text() == "told to end\n"
    status, events = machine.ask(eve, "GET", f"/api/v1/namespaces/user-{eve.pw_name}/events")
    assert status == 200
    assert [each for each in events["items"] if each["reason"] == "Preempted"]
    # ann holds everything: of two equal jobs, that of bob goes first, although it is younger
    _gpu_job(machine, ann, "next-ann", count=2)
    machine.eventually(lambda: _waits(machine, ann, "next-ann"), what="ann waits")
    _gpu_job(machine, bob, "next-bob", count=2)
    machine.eventually(lambda: _waits(machine, bob, "next-bob"), what="bob waits")
    _end_job(machine, ann, "normal")
    machine.eventually(lambda: machine.phase(bob, "next-bob") == "Running", 120, "the job of bob")
    assert machine.phase(ann, "next-ann") == "Pending"
    for person, name in ((ann, "most"), (ann, "next-ann"), (bob, "next-bob"), (eve, "low")):
        _end_job(machine, person, name)


def test_a_job_that_waits_is_not_told_the_names_of_other_peoples_jobs(machine, people):
    ann, bob, _ = people
    _gpu_job(machine, ann, "secret-plan", count=8)
    machine.eventually(lambda: machine.phase(ann, "secret-plan") == "Running", 120, "the job of ann")
    _gpu_job(machine, bob, "asks")
    reason = machine.eventually(lambda: _waits(machine, bob, "asks"), 60, "the reason")
    assert f"in use (by user-{ann.pw_name})" in reason
    for target in (f"{pods_of(bob)}/asks", f"/api/v1/namespaces/user-{bob.pw_name}/events",
                   "/api/v1/namespaces/kube-system/configmaps/dray-queue"):  # fmt: skip
        status, answer = machine.ask(bob, "GET", target)
        assert status == 200
        assert "secret-plan" not in json.dumps(answer)
    _end_job(machine, bob, "asks")
    _end_job(machine, ann, "secret-plan")


def test_after_kills_and_a_reboot_jobs_queue_and_records_are_back(tmp_path_factory, people):
    ann, bob, _ = people
    machine = Machine(tmp_path_factory.mktemp("reboot"))
    try:
        _gpu_job(machine, ann, "all", "echo begun; sleep 600", 8, restartPolicy="Always")
        machine.eventually(lambda: "begun" in str(machine.log_of(ann, "all")), 120, "the job of ann")
        assert machine.run(bob, "short", "echo kept")[0] == 201
        machine.eventually(lambda: machine.phase(bob, "short") == "Succeeded", 60, "a job that has ended")
        _gpu_job(machine, bob, "waits")
        machine.eventually(lambda: _waits(machine, bob, "waits"), 60, "a job that waits")
        before = _process_of(ann)

        machine.kill_everything(people, jobs=False)  # server, scheduler, controllers, agents
        assert _process_of(ann) == before
        machine.start()
        machine.eventually(lambda: machine.phase(ann, "all") == "Running", 120, "the job lives on")
        assert _process_of(ann) == before, "the process that ran runs on"
        assert machine.phase(bob, "short") == "Succeeded"
        assert machine.phase(bob, "waits") == "Pending"

        machine.kill_everything(people, jobs=True)  # the whole machine
        machine.start()

        def is_back():
            pod = machine.ask(ann, "GET", f"{pods_of(ann)}/all")[1]
            boxes = pod["status"].get("containerStatuses") or [{}]
            return pod["status"]["phase"] == "Running" and boxes[0].get("restartCount", 0) >= 1

        machine.eventually(is_back, 120, "the job with a restart policy is started again")
        assert machine.phase(bob, "short") == "Succeeded"
        machine.eventually(lambda: machine.log_of(bob, "short") == "kept\n", 60, "its log")
        _end_job(machine, ann, "all")
        machine.eventually(lambda: machine.phase(bob, "waits") == "Running", 120, "the queue goes on")
    finally:
        machine.stop()
