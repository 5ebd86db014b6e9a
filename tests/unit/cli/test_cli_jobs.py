"""What the commands around jobs say: arrays by their name, evictions, a queue of others, no cluster at all."""

import argparse

import pytest

from dray.cli import following
from dray.cli.job_lookup import members_of_array, named_jobs
from dray.cli.main import main
from dray.cli.output import CommandError
from dray.cli.queue import _nobody_waits, _short
from dray.client import NotFound
from dray.client.errors import Status
from dray.scheduler.queue_report import JobReport, QueueReport
from dray.workbench.run_manifests import eviction_of


class Cluster:
    """Lists pods; knows no other."""

    def __init__(self, *names):
        self.names = names

    async def list(self, resource, namespace):
        pods = [{"metadata": {"namespace": namespace, "name": name}, "spec": {}} for name in self.names]
        return argparse.Namespace(items=pods if resource.plural == "pods" else [])

    async def get(self, resource, name, namespace):
        raise NotFound(404, Status(404, message=name))


async def test_the_name_of_an_array_stands_for_its_jobs():
    cluster = Cluster("sweep-1", "sweep-2", "sweep-10", "sweep-x", "train", "train-1")
    assert await named_jobs(cluster, "user-ann", ["sweep", "sweep-2"]) == ["sweep-1", "sweep-2", "sweep-10"]
    # A job of this very name goes before an array.
    assert await named_jobs(cluster, "user-ann", ["train", "train"]) == ["train"]
    with pytest.raises(CommandError, match="there is no job user-ann/sweeep"):
        await named_jobs(cluster, "user-ann", ["sweep", "sweeep"])


@pytest.mark.parametrize("name", ["a-", "a-01", "a--1", "a-x", "a-1-1", "b-1", "a-\u0661", "a-" + "1" * 5000])
def test_what_is_not_of_an_array(name):
    assert members_of_array("a", [name]) == []


def evicted(reason="PreemptionByScheduler", status="True"):
    condition = {"type": "DisruptionTarget", "status": status, "reason": reason}
    ended = {"state": {"terminated": {"exitCode": 143}}}
    return {"status": {"phase": "Failed", "conditions": [condition], "containerStatuses": [ended]}}


async def test_a_job_that_was_evicted_says_so(capsys):
    async def printed():
        return None

    await following._report_end(evicted(), printed())
    assert capsys.readouterr().err == "ended: evicted: a job of higher priority needed its devices\n"
    assert eviction_of(evicted("DeletionByTaintManager")) == ""
    assert eviction_of(evicted(status="False")) == ""
    assert eviction_of({}) == ""


def test_an_empty_queue_of_mine_is_not_an_empty_queue():
    assert _nobody_waits(QueueReport()) == "no job waits"
    one = QueueReport({"u": JobReport(1, 1)})
    assert _nobody_waits(one).startswith("none of your jobs waits; 1 job of others")


def test_a_long_reason_ends_with_an_ellipsis():
    assert _short("x " * 300) == ("x " * 300)[:119] + "…"
    assert _short(" short\n one ") == "short one"


def test_without_any_cluster_the_error_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert main(["ps"]) == 2
    assert "no cluster was found: no system of this machine runs" in capsys.readouterr().err
