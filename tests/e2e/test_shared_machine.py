"""One machine, three real Unix users: who they are, what they see of each other, as whom jobs run, limits, fair share.

As root: users are made with useradd, `dray up --shared` runs on this machine, and requests go over its Unix socket
from processes of these users.
"""

import json
import os
import secrets
import signal
import stat
from pathlib import Path
from urllib.parse import urlencode

import pytest
from shared_system import GPU_POD, TEMPLATE, Machine, as_person, end_job, gpu_job, pods_of, process_of, waits
from unix_users import root_only, unix_users

pytestmark = [pytest.mark.root, root_only]


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
        job = process_of(ann)
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
    assert machine.dray("user", "limit", eve.pw_name, "--longest", "2s")[0] == 0
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


def test_limits_hold_and_the_queue_says_so(machine, people):
    ann, bob, _ = people
    assert machine.dray("user", "limit", ann.pw_name, "--devices", "2")[0] == 0
    names = ["one", "two", "three"]
    for name in names[:2]:
        gpu_job(machine, ann, name)
        machine.eventually(lambda name=name: machine.phase(ann, name) == "Running", 120, name)
    gpu_job(machine, ann, "three")
    machine.eventually(lambda: "limit: 2 devices are held" in waits(machine, ann, "three"), what="the limit")
    gpu_job(machine, bob, "free")  # devices are left, for others
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
        end_job(machine, ann, name)
    end_job(machine, bob, "free")


def test_an_array_is_waited_for_and_stopped_by_its_name(machine):
    script = 'echo "number $DRAY_ARRAY_INDEX"; exit $DRAY_ARRAY_INDEX'
    code, out, err = machine.dray(
        "run", "--array", "1-3", "--name", "sweep", "--detach", "--", "sh", "-c", script
    )
    assert (code, out.split()) == (0, ["sweep-1", "sweep-2", "sweep-3"]), err
    assert machine.dray("wait", "sweep", "--timeout", "100")[0] == 3
    assert machine.dray("logs", "sweep-2")[1] == "number 2\n"
    code, _, err = machine.dray("stop", "sweep")
    assert (code, err.count("stopped job default/sweep-")) == (0, 3), err
    code, _, err = machine.dray("stop", "sweep")
    assert (code, "there is no job default/sweep" in err) == (2, True), err


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
    gpu_job(machine, eve, "low", script, 2, priorityClassName="dray-low", terminationGracePeriodSeconds=20)
    machine.eventually(lambda: machine.phase(eve, "low") == "Running", 120, "the low job")
    gpu_job(machine, ann, "most", "echo ready; sleep 600", 6)
    machine.eventually(lambda: machine.phase(ann, "most") == "Running", 120, "the job of ann")
    machine.eventually(lambda: "ready" in machine.log_of(eve, "low"), what="the low job runs")
    gpu_job(machine, ann, "normal", count=2)  # evicts the low job
    machine.eventually(lambda: machine.phase(ann, "normal") == "Running", 120, "the eviction")
    assert Path(eve.pw_dir, "told").read_text() == "told to end\n"
    status, events = machine.ask(eve, "GET", f"/api/v1/namespaces/user-{eve.pw_name}/events")
    assert status == 200
    assert [each for each in events["items"] if each["reason"] == "Preempted"]
    # ann holds everything: of two equal jobs, that of bob goes first, although it is younger
    gpu_job(machine, ann, "next-ann", count=2)
    machine.eventually(lambda: waits(machine, ann, "next-ann"), what="ann waits")
    gpu_job(machine, bob, "next-bob", count=2)
    machine.eventually(lambda: waits(machine, bob, "next-bob"), what="bob waits")
    end_job(machine, ann, "normal")
    machine.eventually(lambda: machine.phase(bob, "next-bob") == "Running", 120, "the job of bob")
    assert machine.phase(ann, "next-ann") == "Pending"
    for person, name in ((ann, "most"), (ann, "next-ann"), (bob, "next-bob"), (eve, "low")):
        end_job(machine, person, name)


def test_a_job_that_waits_is_not_told_the_names_of_other_peoples_jobs(machine, people):
    ann, bob, _ = people
    gpu_job(machine, ann, "secret-plan", count=8)
    machine.eventually(lambda: machine.phase(ann, "secret-plan") == "Running", 120, "the job of ann")
    gpu_job(machine, bob, "asks")
    reason = machine.eventually(lambda: waits(machine, bob, "asks"), 60, "the reason")
    assert f"in use (by user-{ann.pw_name})" in reason
    for target in (f"{pods_of(bob)}/asks", f"/api/v1/namespaces/user-{bob.pw_name}/events",
                   "/api/v1/namespaces/kube-system/configmaps/dray-queue"):  # fmt: skip
        status, answer = machine.ask(bob, "GET", target)
        assert status == 200
        assert "secret-plan" not in json.dumps(answer)
    end_job(machine, bob, "asks")
    end_job(machine, ann, "secret-plan")
