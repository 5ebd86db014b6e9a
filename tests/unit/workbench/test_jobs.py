"""Jobs as people see them: states, times, devices, the order of the queue."""

import pytest

from dray.workbench.jobs import JobState, holders, job_states, position_text, queue_order


def pod(name="p", namespace="ann", phase="Pending", node="", **more):
    spec = {"containers": [{"name": "main", "command": ["python", "train.py"]}], **more.pop("spec", {})}
    if node:
        spec["nodeName"] = node
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {
        "metadata": {**metadata, **more.pop("metadata", {})},
        "spec": spec,
        "status": {"phase": phase, **more},
    }


def claim(name="p", namespace="ann", devices=()):
    results = [{"driver": "gpu.example.com", "pool": "n", "device": device} for device in devices]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    requests = [{"name": "device", "exactly": {"deviceClassName": "gpu.example.com", "count": 2}}]
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": requests}},
        "status": status,
    }


REFERENCE = {"resourceClaims": [{"name": "devices", "resourceClaimName": "p"}]}
DELETED = {"deletionTimestamp": "2026-01-01T00:00:01Z"}


@pytest.mark.parametrize(
    ("obj", "state"),
    [
        (pod(), "waiting"),
        (pod(spec={"schedulingGates": [{"name": "dray.dev/after"}]}), "after"),
        (pod(spec={"schedulingGates": [{"name": "example.com/other"}]}), "waiting"),
        (pod(node="n"), "starting"),
        (pod(node="n", phase="Running"), "running"),
        (pod(node="n", phase="Running", metadata=DELETED), "stopping"),
        (pod(node="n", phase="Succeeded"), "finished"),
        (pod(node="n", phase="Failed", metadata=DELETED), "failed"),
        ({}, "waiting"),
    ],
)
def test_the_state_of_a_job(obj, state):
    (job,) = job_states([obj], [])
    assert job.state == state


def test_a_running_job_has_devices_and_an_end():
    running = pod(
        node="n",
        phase="Running",
        spec={**REFERENCE, "activeDeadlineSeconds": 60},
        startTime="2026-01-01T01:00:00Z",
    )
    (job,) = job_states([running], [claim(devices=["gpu-0", "gpu-1"])])
    assert job.devices == ("gpu.example.com/n/gpu-0", "gpu.example.com/n/gpu-1")
    assert job.wanted == ("2 gpu.example.com",)
    assert job.ends == job.started + 60
    assert job.to_json()["timeLimitSeconds"] == 60
    (line,) = holders([job])
    assert line.startswith("ann/p holds gpu.example.com/n/gpu-0, gpu.example.com/n/gpu-1, until ")


def test_a_job_that_is_over_holds_nothing():
    ended = [{"state": {"terminated": {"exitCode": 3, "finishedAt": "2026-01-01T02:00:00Z"}}}]
    over = pod(node="n", phase="Failed", spec=REFERENCE, containerStatuses=ended)
    (job,) = job_states([over], [claim(devices=["gpu-0"])])
    assert (job.devices, job.exit_code, job.ends) == ((), 3, None)
    assert holders([job]) == []


def test_the_claim_of_a_template_is_found_by_the_status():
    made = pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
               resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "p-gpu-x"}])  # fmt: skip
    (job,) = job_states([made], [claim("p-gpu-x", devices=["gpu-0"])])
    assert job.devices == ("gpu.example.com/n/gpu-0",)


def test_the_queue_is_as_the_scheduler_says_else_by_priority_then_age():
    jobs = [
        JobState("ann", "old", "waiting", 1.0, uid="1"),
        JobState("bob", "new", "waiting", 2.0, uid="2"),
        JobState("ann", "urgent", "waiting", 3.0, priority=1000),
        JobState("bob", "runs", "running", 0.0),
    ]
    assert [job.name for job in queue_order(jobs)] == ["urgent", "old", "new"]
    assert [job.name for job in queue_order(jobs, {"2": 1, "1": 2})] == ["new", "old", "urgent"]
    assert position_text(queue_order(jobs), "bob/new") == "number 3 of 3 that wait"
    assert position_text(queue_order(jobs), "bob/runs") == ""


def test_many_holders_are_a_few_lines():
    jobs = [JobState("ann", f"j{n}", "running", 0.0, devices=("d",)) for n in range(9)]
    lines = holders(jobs)
    assert len(lines) == 6
    assert lines[-1] == "and 4 more jobs hold devices"
