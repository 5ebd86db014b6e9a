"""The AI conformance checks: each passes on a cluster that works, and fails by the fault it is there for."""

import dataclasses

import pytest

from dray.client import NotFound
from dray.client.errors import Status
from dray.drivers.hardware import device_classes, load_profile, pool_slices
from dray.sim.snapshot import Snapshot
from dray.workbench.conformance import checks
from dray.workbench.conformance.checks import IMPLEMENTED, NOT, NOT_APPLICABLE, PARTLY, Environment, Verdict
from dray.workbench.conformance.report import as_html, checklist, failed
from dray.workbench.conformance.requirements import REQUIREMENTS, VERSIONS, requirements_of
from dray.workbench.doctor import Finding

HEALTHY = {
    "served": True,  # resource.k8s.io/v1
    "groups": True,  # PodGroups are served
    "places": True,  # pods that fit are bound
    "splits": False,  # a member of a gang is bound alone
    "log": {"holder": "GPU=0\nA=1", "bystander": "A=1"},
    "grows": True,  # nodes come for pods that wait
    "shrinks": True,  # and go again
    "metrics": 'gpu_utilization{gpu="0"} 1\ngpu_memory_used{gpu="0"} 1\n',
}


class Client:
    def __init__(self, faults):
        self.faults = faults

    async def call(self, method, path):
        if not self.faults["served"]:
            raise NotFound(404, Status(), path)
        return {"resources": [{"name": "resourceclaims"}, {"name": "resourceclaims/status"}]}

    async def list(self, resource, namespace=None, **query):
        if not self.faults["groups"]:
            raise NotFound(404, Status(), resource.plural)

    async def answer(self, request):
        return type("Answer", (), {"body": self.faults["metrics"].encode()})


class Trials:
    """A cluster that does what `faults` says."""

    namespace, seconds = "ns", 1.0

    def __init__(self, faults):
        self.faults, self.client = faults, Client(faults)
        self.claims, self.groups = {}, {}
        self.nodes = {"old"}

    async def claim(self, name, class_name, **exactly):
        self.claims[name] = exactly

    async def group(self, name, members):
        self.groups[name] = members

    async def pod(self, name, claims, **options):
        pass

    async def until(self, name, holds, seconds=None):
        bound = self.faults["splits"] if name.startswith("impossible") else self.faults["places"]
        self.nodes |= {"new"} if self.faults["grows"] and name.startswith("scale-") else set()
        pod = {"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}}
        return pod if bound and holds(pod) else None

    async def devices(self, claim):
        other = self.faults.get("apart") and claim.endswith("1")
        return [{"driver": "d", "pool": "p", "device": "other" if other else "one"}]

    async def log(self, pod, container):
        return self.faults["log"][container]

    async def why(self, pod):
        return "FailedScheduling: because"

    async def until_nodes(self, holds, seconds):
        return frozenset(self.nodes) if holds(frozenset(self.nodes)) else None

    async def drop(self, *pods):
        if self.faults["shrinks"]:
            self.nodes = {"old"}


def hardware(*profiles):
    snapshot = Snapshot()
    for name in profiles:
        for found in pool_slices(load_profile(name).pools(f"{name}-1")):
            snapshot.add_view(found)
    for device_class in device_classes():
        snapshot.add_view(device_class)
    return snapshot


async def verdict(name, profile="dgx-h100", **faults):
    profiles = [profile] if profile else []
    return await {**checks.CHECKS, **checks.CHECKS_ON_REQUEST}[name](
        Environment(Trials({**HEALTHY, **faults}), hardware(*profiles))
    )


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("dra_support", "dgx-h100"),
        ("secure_accelerator_access", "dgx-h100"),
        ("gang_scheduling", "dgx-h100"),
        ("gpu_sharing", "dgx-a100-mig"),
        ("gpu_sharing", "l40s-timesliced"),
        ("high_performance_networking", "dgx-h100"),
        ("accelerator_metrics", "dgx-h100"),
        ("cluster_autoscaling", "dgx-h100"),
    ],
)
async def test_a_check_holds_on_a_cluster_that_works(name, profile):
    found = await verdict(name, profile)
    assert found.status == IMPLEMENTED and found.evidence, found


@pytest.mark.parametrize(
    ("name", "fault", "status", "words"),
    [
        ("dra_support", {"served": False}, NOT, "does not serve"),
        ("dra_support", {"places": False}, NOT, "FailedScheduling"),
        ("secure_accelerator_access", {"log": {"holder": "A=1", "bystander": "A=1"}}, NOT, "sees nothing"),
        ("secure_accelerator_access", {"log": {"holder": "G=0", "bystander": "G=1"}}, PARTLY, "sees more"),
        ("secure_accelerator_access", {"places": False}, NOT, "does not end"),
        ("gang_scheduling", {"groups": False}, NOT, "not served"),
        ("gang_scheduling", {"splits": True}, NOT, "although the other one fits nowhere"),
        ("gang_scheduling", {"places": False}, NOT, "was not placed"),
        ("high_performance_networking", {"places": False}, NOT, "does not run"),
        ("cluster_autoscaling", {"places": False}, NOT, "no node came"),
        ("cluster_autoscaling", {"grows": False}, PARTLY, "no node came: devices became free"),
        ("cluster_autoscaling", {"shrinks": False}, PARTLY, "still there"),
        ("accelerator_metrics", {"metrics": ""}, NOT, "--metrics-url"),
        ("accelerator_metrics", {"metrics": 'x_utilization{device="0"} 1\n'}, PARTLY, "no series for memory"),
    ],
)
async def test_a_check_fails_by_its_fault(name, fault, status, words):
    found = await verdict(name, **fault)
    assert found.status == status and words in found.notes, found


async def test_shares_on_two_devices_are_not_sharing_and_a_share_that_is_refused_fails():
    assert (await verdict("gpu_sharing", "l40s-timesliced", apart=True)).status == PARTLY
    assert (await verdict("gpu_sharing", "l40s-timesliced", places=False)).status == NOT


@pytest.mark.parametrize(
    "name",
    [name for name in checks.CHECKS if name not in ("accelerator_metrics", "driver_runtime_management")],
)
async def test_without_hardware_a_check_does_not_apply(name):
    assert (await verdict(name, "")).status == NOT_APPLICABLE


async def test_autoscaling_asks_for_one_device_more_than_are_free():
    trials = Trials(HEALTHY)
    found = await checks.cluster_autoscaling(Environment(trials, hardware("workstation")))
    assert len(trials.claims) == 3  # two are free
    assert found.evidence[0].endswith("on 2 free devices came new")
    assert (await verdict("cluster_autoscaling", "l40s-timesliced")).status == NOT_APPLICABLE
    assert (await verdict("cluster_autoscaling", "")).status == NOT_APPLICABLE


def facts_of(*findings):
    async def read(_client, _now):
        return findings

    return read


async def test_an_error_of_a_driver_or_a_runtime_is_found_and_another_one_is_not(monkeypatch):
    monkeypatch.setattr(checks, "check_cluster", lambda facts: list(facts))
    wrong = Finding("driver-pod-failing", "pod x", "CrashLoopBackOff", "look at its log")
    for findings, status in (
        ([wrong], NOT),
        ([dataclasses.replace(wrong, code="driver-without-class")], IMPLEMENTED),  # a warning
        ([dataclasses.replace(wrong, code="no-classes")], IMPLEMENTED),
        ([], IMPLEMENTED),
    ):
        monkeypatch.setattr(checks, "read_cluster", facts_of(*findings))
        found = await verdict("driver_runtime_management")
        assert found.status == status, found
        assert status == IMPLEMENTED or "CrashLoopBackOff" in found.notes
    assert (await verdict("driver_runtime_management", "")).status == PARTLY  # nobody publishes a version


def test_every_requirement_is_checked_or_says_why_not():
    for each in REQUIREMENTS:
        assert bool(each.why_not) != (each.id in checks.CHECKS), each.id
    assert set(checks.CHECKS) <= {each.id for each in REQUIREMENTS}
    assert [each.id for each in requirements_of("v1.34")].count("gpu_sharing") == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_checklist_has_the_official_form(version):
    name = "gang_scheduling"
    data = checklist(version, {name: Verdict(NOT, ["<b>"], "no & never")}, {"platformName": "x"})
    assert data["metadata"] == {"kubernetesVersion": version, "platformName": "x"}
    entries = [entry for part in data["spec"].values() for entry in part]
    assert all(set(each) == {"id", "description", "level", "status", "evidence", "notes"} for each in entries)
    assert [each.id for each in failed(version, {name: Verdict(NOT)})] == [name]
    assert failed(version, {name: Verdict(IMPLEMENTED)}) == []
    assert "&lt;b&gt;" in as_html(data) and "no &amp; never" in as_html(data)
