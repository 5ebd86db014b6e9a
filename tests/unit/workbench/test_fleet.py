"""Draining devices and validating them: what is planned, what is done in which order, and how results are judged."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from small_api import SmallApi

from dray.client import Response
from dray.client.resources import CLAIMS, PODS, SLICES
from dray.drivers.hardware import device_classes, load_profile, pool_slices
from dray.sim.snapshot import Snapshot, capture
from dray.workbench.fleet import draining
from dray.workbench.fleet.reports import as_junit, as_rows
from dray.workbench.fleet.targets import TargetError, resolve
from dray.workbench.fleet.validation import (
    DeviceReport,
    Expected,
    Outcome,
    Result,
    judge_probe,
    judge_published,
    manifests,
    plan_probes,
    to_check,
)
from dray.workbench.inventory import Inventory

DRIVER = "gpu.nvidia.com"


def fleet(*profiles, claims=(), pods=()):
    snapshot = Snapshot()
    for number, name in enumerate(profiles, 1):
        node = f"{name}-{number}"
        allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        status = {"capacity": allocatable, "allocatable": allocatable}
        snapshot.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": status})
        for found in pool_slices(load_profile(name).pools(node)):
            snapshot.add_view(found)
    for device_class in device_classes():
        snapshot.add_view(device_class)
    for each in (*claims, *pods):
        snapshot.add(each)
    return snapshot


def held(name, device, pool="workstation-1", *, admin=False, used=True):
    result = {"request": "r", "driver": DRIVER, "pool": pool, "device": device}
    status = {
        "allocation": {"devices": {"results": [{**result, **({"adminAccess": True} if admin else {})}]}}
    }
    if used:
        status["reservedFor"] = [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]
    exactly = {"deviceClassName": DRIVER}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": f"claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        "status": status,
    }


def pod(name, *, owner=True, phase="Running"):
    owners = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u", "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "ownerReferences": owners if owner else []},
        "spec": {"nodeName": "workstation-1", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": phase},
    }  # fmt: skip


# --- targets ------------------------------------------------------------------------


def test_a_node_a_pool_and_a_device_are_targets():
    inventory = Inventory(fleet("workstation", "workstation"))
    assert [row.device.name for row in resolve("workstation-2", inventory).rows] == ["gpu-0", "gpu-1"]
    assert resolve("workstation-2", inventory).selectors == ({"driver": DRIVER, "pool": "workstation-2"},)
    assert len(resolve(f"{DRIVER}/workstation-1", inventory).rows) == 2
    [row] = resolve(f"{DRIVER}/workstation-1/gpu-1", inventory).rows
    assert str(row.key) == f"{DRIVER}/workstation-1/gpu-1"


@pytest.mark.parametrize(
    "text", ["workstation-9", f"{DRIVER}/nowhere", f"{DRIVER}/workstation-1/gpu-7", "", "/", "a/b/c/d"]
)
def test_a_target_that_does_not_exist_is_refused_with_what_is_known(text):
    with pytest.raises(TargetError) as caught:
        resolve(text, Inventory(fleet("workstation")))
    assert caught.value.known


def test_a_pool_on_several_nodes_is_drained_device_by_device_on_one_of_them():
    snapshot = fleet()
    devices = [{"name": f"d{number}", "nodeName": f"n{number % 2}"} for number in range(4)]
    snapshot.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "s"},
            "spec": {
                "driver": "d",
                "perDeviceNodeSelection": True,
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
    )
    found = resolve("n1", Inventory(snapshot)).selectors
    assert [selector["device"] for selector in found] == ["d1", "d3"]


# --- draining -----------------------------------------------------------------------


def test_holders_are_pods_that_run_not_admins_and_not_those_that_ended():
    snapshot = fleet(
        "workstation",
        claims=[held("a", "gpu-0"), held("admin", "gpu-0", admin=True), held("idle", "gpu-1", used=False)],
        pods=[pod("a"), pod("admin")],
    )
    plan = draining.plan_drain(snapshot, resolve("workstation-1", Inventory(snapshot)))
    assert [holder.key for holder in plan.holders] == ["ns/a"]
    assert plan.idle_claims == ("ns/idle",)
    ended = fleet("workstation", claims=[held("a", "gpu-0")], pods=[pod("a", phase="Succeeded")])
    assert not draining.plan_drain(ended, resolve("workstation-1", Inventory(ended))).holders


class DrainApi(SmallApi):
    """Evicts as a server would: a pod goes, and so does its claim; `budget` evictions are allowed."""

    def __init__(self, snapshot, budget=9):
        super().__init__()
        self.budget, self.effects = budget, []
        for obj in snapshot.objects:
            meta = obj["metadata"]
            resource = {"Pod": PODS, "ResourceClaim": CLAIMS, "ResourceSlice": SLICES}.get(obj["kind"])
            if resource is not None:
                self.put(
                    resource.path(meta.get("namespace"), meta["name"]),
                    json.loads(json.dumps(obj, default=str)),
                )

    async def send(self, request):
        path = request.target.partition("?")[0]
        if path.endswith("/eviction"):
            if self.budget <= 0:
                return Response(429, {}, b'{"kind":"Status","code":429,"reason":"TooManyRequests"}')
            self.budget -= 1
            name = path.split("/")[-2]
            for key in [key for key in self.objects if key.endswith(f"/{name}")]:
                del self.objects[key]
            return Response(201, {}, b"{}")
        if request.method == "PATCH" and "devicetaintrules" in path:
            self.effects.append(json.loads(request.body)["spec"]["taint"]["effect"])
        return await super().send(request)


async def drained(api, target="workstation-1", seconds=5.0, **options):
    client, moment, lines = api.client(), [0.0], []
    found = resolve(target, Inventory(await capture(client)))

    async def pause(length):
        moment[0] += length

    result = await draining.drain(
        client,
        found,
        "fan",
        seconds=seconds,
        report=lines.append,
        pause=pause,
        clock=lambda: moment[0],
        **options,
    )
    return result, lines


async def test_a_drain_taints_first_and_evicts_until_nobody_is_left():
    api = DrainApi(fleet("workstation", claims=[held("a", "gpu-0")], pods=[pod("a")]))
    result, _lines = await drained(api)
    assert result.is_done and result.evicted == ["ns/a"] and api.effects == ["NoSchedule"]
    [rule] = [obj for path, obj in api.objects.items() if "devicetaintrules" in path]
    assert rule["metadata"]["annotations"][draining.REASON_ANNOTATION] == "fan"
    rule_writes = [line for line in api.requests if "devicetaintrules" in line]
    assert rule_writes and not any(
        "evict" in line for line in api.requests[: api.requests.index(rule_writes[0])]
    )


async def test_a_disruption_budget_stops_a_drain_and_a_second_drain_goes_on():
    api = DrainApi(fleet("workstation", claims=[held("a", "gpu-0")], pods=[pod("a")]), budget=0)
    result, lines = await drained(api)
    assert not result.is_done and "budget" in result.left["ns/a"] and len(lines) == 1
    api.budget = 1
    result, _lines = await drained(api)
    assert result.is_done
    assert await draining.undrain(api.client(), "workstation-1") == 1
    assert await draining.drains(api.client()) == []


async def test_a_pod_that_nobody_would_make_again_is_not_evicted_and_nothing_is_tainted():
    api = DrainApi(fleet("workstation", claims=[held("a", "gpu-0")], pods=[pod("a", owner=False)]))
    with pytest.raises(draining.DrainRefused, match="ns/a"):
        await drained(api)
    assert not any("devicetaintrules" in path for path in api.objects)
    result, _lines = await drained(api, force=True)
    assert result.is_done


async def test_no_execute_leaves_the_eviction_to_the_controller():
    api = DrainApi(fleet("workstation", claims=[held("a", "gpu-0")], pods=[pod("a")]))
    result, _lines = await drained(api, no_execute=True)
    assert not result.is_done and api.effects == ["NoExecute"] and "controller" in result.left["ns/a"]


# --- validation ---------------------------------------------------------------------


def planned(snapshot):
    inventory = Inventory(snapshot)
    return plan_probes(snapshot, inventory.pools, to_check(inventory.devices.values()))


def test_each_device_has_a_probe_of_its_own_where_an_attribute_tells_them_apart():
    probes, reasons = planned(fleet("workstation"))
    assert [probe.devices for probe in probes] == [("gpu-0",), ("gpu-1",)] and not reasons
    claim, made = manifests(probes[0], "x", command=["true"], image="i", scheduler="", seconds=9)
    exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly["adminAccess"] is True and exactly["tolerations"] == [{"operator": "Exists"}]
    assert "pciBusID == " in exactly["selectors"][0]["cel"]["expression"]
    fields = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert fields["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["workstation-1"]


def test_partitions_that_do_not_exist_are_not_probed_and_do_not_hide_the_whole_gpus():
    probes, reasons = planned(fleet("dgx-a100-mig"))
    gpus = [probe.devices[0] for probe in probes if probe.driver == DRIVER]
    assert gpus == [f"gpu-{number}" for number in range(8)] and not reasons


def test_a_device_in_use_that_draws_counters_is_left_out_with_the_reason():
    snapshot = fleet("dgx-a100-mig", claims=[held("a", "gpu-3", "dgx-a100-mig-1")], pods=[pod("a")])
    probes, reasons = planned(snapshot)
    assert list(reasons) == [f"{DRIVER}/dgx-a100-mig-1/gpu-3"] and "counters" in next(iter(reasons.values()))
    assert ("gpu-3",) not in [probe.devices for probe in probes]


def test_devices_without_a_class_or_without_a_difference_are_named():
    snapshot = fleet()
    devices = [{"name": f"d{number}", "attributes": {"kind": {"string": "x"}}} for number in range(33)]
    spec = {
        "driver": "d",
        "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    snapshot.add(
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    )
    assert "no DeviceClass" in planned(snapshot)[1]["d/p/d0"]
    selector = {"selectors": [{"cel": {"expression": "device.driver == 'd'"}}]}
    snapshot.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "d"},
            "spec": selector,
        }
    )
    assert "at most 32" in planned(snapshot)[1]["d/p/d0"]
    spec["devices"] = devices[:4]
    small = fleet()
    small.add(
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    )
    small.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "d"},
            "spec": selector,
        }
    )
    [probe], reasons = planned(small)
    assert probe.takes_all and len(probe.devices) == 4 and not reasons


def outcome(*, allocated=True, state=None, health="", events=(), log=""):
    status = {"name": "probe", "state": state or {}}
    if health:
        status["allocatedResourcesStatus"] = [
            {"name": "claim:device", "resources": [{"resourceID": "x/y=gpu-0", "health": health}]}
        ]
    results = [{"device": "gpu-0"}] if allocated else []
    return Outcome(
        {"status": {"allocation": {"devices": {"results": results}}}},
        {"status": {"containerStatuses": [status]}},
        list(events),
        log,
    )


ENDED = {"terminated": {"exitCode": 0}}


@pytest.mark.parametrize(
    ("given", "failed", "evidence"),
    [
        (outcome(allocated=False, events=["FailedScheduling: no"]), "allocated", "FailedScheduling: no"),
        (outcome(events=["FailedPrepareDynamicResources: broken"]), "prepared", "broken"),
        (outcome(state={"waiting": {"message": "no image"}}), "prepared", "no image"),
        (outcome(state=ENDED, health="Unhealthy"), "health", "Unhealthy"),
        (outcome(state={"terminated": {"exitCode": 3}}, log="why\n"), "probe", "exit code 3: why"),
        (outcome(state={"running": {}}), "probe", "did not end"),
    ],
)
def test_every_fault_of_a_probe_fails_its_own_check(given, failed, evidence):
    wrong = [result for result in judge_probe("gpu-0", given) if result.status == "failed"]
    assert [result.name for result in wrong] == [failed] and evidence in wrong[0].evidence


def test_a_probe_that_went_well_fails_nothing():
    assert {result.status for result in judge_probe("gpu-0", outcome(state=ENDED, health="Healthy"))} == {
        "ok"
    }


def test_what_is_published_is_compared_with_a_profile():
    snapshot = fleet("workstation")
    inventory = Inventory(snapshot)
    [pool] = inventory.pools

    def wrong(expected):
        return {
            result.name: result.evidence
            for result in judge_published(pool.devices[0], pool, expected)
            if result.status == "failed"
        }

    def model(name):
        slices = pool_slices(load_profile(name).pools("x"))
        return {(each.spec.driver, device.name): device for each in slices for device in each.spec.devices}

    assert wrong(Expected(model("workstation"))) == {}
    assert "productName" in wrong(Expected(model("dgx-h100")))["attributes"]
    assert "expected 1.2.3" in wrong(Expected(driver_version="1.2.3"))["driver-version"]


def test_junit_counts_failures_and_survives_any_text():
    reports = [
        DeviceReport(
            "n",
            "d",
            "p",
            'x"<',
            [Result("a", "ok"), Result("b", "failed", "\x00<&\ud800"), Result("c", "skipped", "s")],
        )
    ]
    suite = ElementTree.fromstring(as_junit(reports).encode("utf-8")).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert as_rows(reports)[0]["ok"] is False
