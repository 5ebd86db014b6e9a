"""What survives on a shared machine: kills of all parts, of the one that watches them, a restart of the service, a reboot."""

import os
import signal

import pytest
from shared_system import Machine, end_job, gpu_job, pods_of, process_of, waits
from unix_users import root_only, unix_users

pytestmark = [pytest.mark.root, root_only]


@pytest.fixture(scope="module")
def people():
    with unix_users("ann", "bob") as users:
        yield users


def test_after_kills_and_a_reboot_jobs_queue_and_records_are_back(tmp_path_factory, people):
    ann, bob = people
    machine = Machine(tmp_path_factory.mktemp("reboot"))
    try:
        gpu_job(machine, ann, "all", "echo begun; sleep 600", 8, restartPolicy="Always")
        machine.eventually(lambda: "begun" in str(machine.log_of(ann, "all")), 120, "the job of ann")
        assert machine.run(bob, "short", "echo kept")[0] == 201
        machine.eventually(lambda: machine.phase(bob, "short") == "Succeeded", 60, "a job that has ended")
        gpu_job(machine, bob, "waits")
        machine.eventually(lambda: waits(machine, bob, "waits"), 60, "a job that waits")
        before = process_of(ann)

        machine.kill_everything(people, jobs=False)  # server, scheduler, controllers, agents
        assert process_of(ann) == before
        machine.start()
        machine.eventually(lambda: machine.phase(ann, "all") == "Running", 120, "the job lives on")
        assert process_of(ann) == before, "the process that ran runs on"
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
        end_job(machine, ann, "all")
        machine.eventually(lambda: machine.phase(bob, "waits") == "Running", 120, "the queue goes on")
    finally:
        machine.stop()


def test_a_killed_dray_up_and_a_restart_of_the_service_end_no_job(tmp_path_factory, people):
    ann, _ = people
    machine = Machine(tmp_path_factory.mktemp("restart"), "--keep-jobs")
    try:
        gpu_job(machine, ann, "train", "echo begun; sleep 600")
        machine.eventually(lambda: "begun" in str(machine.log_of(ann, "train")), 120, "the job of ann")
        job = process_of(ann)

        machine.end_up(signal.SIGKILL)  # its parts live on without it
        machine.start()
        assert "ended what a killed `dray up` left behind: " in machine.log_text()
        assert process_of(ann) == job
        machine.eventually(lambda: machine.phase(ann, "train") == "Running", 60, "the job lives on")

        machine.end_up()  # as `systemctl restart` does
        assert process_of(ann) == job
        machine.start()
        assert process_of(ann) == job
        machine.eventually(lambda: machine.phase(ann, "train") == "Running", 60, "the job lives on")

        machine.end_up(signal.SIGKILL)
        code, _, err = machine.dray("down", "--data", str(machine.data))
        assert code == 0, err
        assert "stopped what a killed `dray up` left behind: controllers, " in err
        machine.eventually(lambda: not os.path.exists(f"/proc/{job}"), 30, "down ends jobs too")
        assert machine.dray("down", "--data", str(machine.data))[0] == 1
        machine.start()
    finally:
        machine.stop()
