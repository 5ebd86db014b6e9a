"""Which layouts idle GPUs get for the pods that wait; how a change is carried out, and continued after a kill."""

import asyncio

import msgspec
import pytest
from small_api import SmallApi
from test_fleet import DRIVER, fleet, held

from dray.api.resource import ResourceClaim
from dray.client.resources import CLAIMS
from dray.devices import DeviceId
from dray.driver import AllocatedDevice, ClaimRequest, DeviceConfig, DriverError
from dray.drivers.hardware import PoolModel, load_profile, pool_slices
from dray.drivers.hardware.mig_layouts import layout_text, published_gpus
from dray.drivers.simulated_node import simulated_drivers
from dray.sim.snapshot import capture
from dray.workbench.fleet import repartition_plan, repartitioning
from dray.workbench.fleet.probing import ProbeOptions
from dray.workbench.fleet.repartition_plan import RepartitionError, plan_repartition

STATIC = "a100-static-mig"  # gpu-0 is whole, gpu-1 has 3g.20gb and three 1g.5gb


def waiting(name, profile=None, *, device_class="mig.nvidia.com", selector=None, priority=0):
    exactly = {"deviceClassName": device_class}
    if profile:
        selector = f"device.attributes['{DRIVER}'].profile == '{profile}'"
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": f"claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
        "spec": {
            "priority": priority,
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "d", "resourceClaimName": name}],
        },
    }
    return claim, pod


def cluster(*profiles, want=(), used=()):
    claims = [*(each[0] for each in want), *used]
    return fleet(*profiles, claims=claims, pods=[each[1] for each in want])


def changes(plan):
    return {change.place.text: (layout_text(change.layout), sorted(change.pods)) for change in plan.changes}


def test_an_idle_gpu_is_cut_for_the_pods_that_wait():
    want = [waiting("a", "2g.10gb"), waiting("b", "2g.10gb")]
    plan = plan_repartition(cluster(STATIC, want=want))
    # gpu-1 has room for one of them beside its 3g.20gb; the whole gpu-0 has room for both.
    assert {pod for _, pods in changes(plan).values() for pod in pods} == {"ns/a", "ns/b"}
    assert not plan.unserved
    assert not plan.fitting


def test_pods_that_fit_change_nothing():
    plan = plan_repartition(cluster(STATIC, want=[waiting("a", "1g.5gb"), waiting("b", "3g.20gb")]))
    assert not plan.changes
    assert set(plan.fitting) == {"ns/a", "ns/b"}
    assert {each.place.gpu.name: each.reason for each in plan.kept}["gpu-1"].endswith(
        "goes to a pod that waits, as it is"
    )


def test_a_gpu_in_use_keeps_its_layout():
    used = [
        held("busy", "gpu-0", f"{STATIC}-1"),
        held("part", "gpu-1-mig-1g5gb-19-4", f"{STATIC}-1"),
    ]
    plan = plan_repartition(cluster(STATIC, want=[waiting("a", "7g.40gb")], used=used))
    assert not plan.changes
    assert [each.pod for each in plan.unserved] == ["ns/a"]
    assert plan.unserved[0].reason
    assert [each.reason for each in plan.kept] == [
        "gpu-0 is used by ns/busy (busy)",
        "gpu-1-mig-1g5gb-19-4 is used by ns/part (part)",
    ]


def test_admin_access_counts_as_use():
    used = [held("probe", "gpu-0", f"{STATIC}-1", admin=True)]
    plan = plan_repartition(
        cluster(STATIC, want=[waiting("a", "4g.20gb")], used=used),
        only=[DeviceId(DRIVER, f"{STATIC}-1", "gpu-0")],
    )
    assert not plan.changes


def test_partitions_become_whole_for_a_pod_that_wants_all_of_it():
    want = [waiting(name, device_class=DRIVER) for name in ("a", "b")]
    plan = plan_repartition(cluster(STATIC, want=want))
    assert changes(plan) == {f"{DRIVER}/{STATIC}-1/gpu-1": ("whole", ["ns/b"])}
    assert plan.fitting == ("ns/a",)


def test_a_request_by_memory_chooses_the_profile():
    expression = f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('15Gi'))"
    used = [held("busy", "gpu-1-mig-3g20gb-9-0", f"{STATIC}-1")]
    plan = plan_repartition(cluster(STATIC, want=[waiting("a", selector=expression)], used=used))
    ((layout, pods),) = changes(plan).values()
    assert pods == ["ns/a"]
    assert "3g.20gb" in layout or "4g.20gb" in layout


def test_present_partitions_stay_where_there_is_room():
    used = [held("busy", "gpu-0", f"{STATIC}-1")]
    plan = plan_repartition(cluster(STATIC, want=[waiting("a", "2g.10gb")], used=used))
    ((layout, _),) = changes(plan).values()
    assert "3g.20gb" in layout


def test_large_parts_are_placed_before_small_ones():
    want = [waiting(f"small-{index}", "1g.5gb") for index in range(7)] + [waiting("large", "4g.20gb")]
    used = [held("busy", "gpu-1-mig-3g20gb-9-0", f"{STATIC}-1")]
    plan = plan_repartition(cluster(STATIC, want=want, used=used))
    # Three fit on gpu-1 as it is; gpu-0 takes the large one and three others.
    assert len(plan.fitting) == 3
    ((layout, pods),) = changes(plan).values()
    assert layout == "4g.20gb + 3 x 1g.5gb"
    assert "ns/large" in pods
    assert len(pods) == 4
    assert len(plan.unserved) == 1


def test_a_pod_of_higher_priority_is_served_first():
    used = [held("part", "gpu-1-mig-3g20gb-9-0", f"{STATIC}-1")]
    want = [waiting("a", "7g.40gb"), waiting("b", "4g.20gb", priority=10)]
    plan = plan_repartition(cluster(STATIC, want=want, used=used))
    assert [pods for _, pods in changes(plan).values()] == [["ns/b"]]


def test_only_allowed_profiles_are_made():
    want = [waiting("a", "2g.10gb"), waiting("b", "7g.40gb")]
    plan = plan_repartition(cluster(STATIC, want=want), allowed=["7g.40gb"])
    assert [(layout, pods) for layout, pods in changes(plan).values()] == [("7g.40gb", ["ns/b"])]
    assert [each.pod for each in plan.unserved] == ["ns/a"]


def test_the_number_of_changes_is_bounded():
    want = [waiting("a", "7g.40gb"), waiting("b", "7g.40gb")]
    assert len(plan_repartition(cluster(STATIC, want=want)).changes) == 2
    plan = plan_repartition(cluster(STATIC, want=want), most=1)
    assert len(plan.changes) == 1
    assert len(plan.unserved) == 1


def test_gpus_that_cannot_be_changed_say_why():
    snapshot = cluster("dgx-a100-mig", "workstation", "l40s-shared", want=[waiting("a", "9g.90gb")])
    reasons = {each.reason for each in plan_repartition(snapshot).kept}
    assert reasons == {
        "it offers all partitions already: the scheduler chooses them",
        "the product has no partitions, or is not known",
    }


def test_a_tainted_gpu_and_a_node_that_is_not_ready_are_left_alone():
    snapshot = cluster(STATIC, want=[waiting("a", "7g.40gb")])
    snapshot.add(
        {
            "apiVersion": "resource.k8s.io/v1beta2",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "rule"},
            "spec": {
                "deviceSelector": {"driver": DRIVER, "pool": f"{STATIC}-1"},
                "taint": {"key": "broken", "effect": "NoSchedule"},
            },
        }
    )
    plan = plan_repartition(snapshot)
    assert not plan.changes
    assert all(each.reason.endswith("has the taint broken") for each in plan.kept)


def test_too_many_waiting_pods_are_refused(monkeypatch):
    monkeypatch.setattr(repartition_plan, "MOST_PENDING", 1)
    with pytest.raises(RepartitionError, match="2 pods wait"):
        plan_repartition(cluster(STATIC, want=[waiting("a", "1g.5gb"), waiting("b", "1g.5gb")]))


# --- carrying it out ------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


class System(SmallApi):
    """A cluster with one node: claims for all devices of an idle GPU get them, and the driver prepares them."""

    def __init__(self, driver, want):
        super().__init__()
        self.driver = driver
        self.writes = 0
        self.kill_at, self.kill_after, self.is_killed = None, False, False
        self.busy = set()  # devices that other claims hold
        snapshot = cluster(STATIC, want=want)
        for obj in snapshot.objects:
            resource = {"Node": "nodes", "DeviceClass": "deviceclasses", "Pod": "pods"}.get(obj["kind"], "")
            if resource:
                group = "/api/v1" if obj["kind"] in ("Node", "Pod") else "/apis/resource.k8s.io/v1"
                inside = f"/namespaces/{obj['metadata']['namespace']}" if obj["kind"] == "Pod" else ""
                self.put(f"{group}{inside}/{resource}/{obj['metadata']['name']}", obj)
        for claim, _ in want:
            self.put(
                f"/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{claim['metadata']['name']}", claim
            )
        self.publish()

    def publish(self):
        pools = [
            PoolModel(DRIVER, pool.name, tuple(pool.devices), (), f"{STATIC}-1")
            for pool in self.driver.discover()
        ]
        for path in [path for path in self.objects if "/resourceslices/" in path]:
            del self.objects[path]
        for found in pool_slices(pools):
            body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **msgspec.to_builtins(found)}
            self.put(f"/apis/resource.k8s.io/v1/resourceslices/{found.metadata.name}", body)

    async def send(self, request):
        if self.is_killed:
            raise Killed
        if request.method == "GET":
            await self.react()
            return await super().send(request)
        self.writes += 1
        is_last = self.writes == self.kill_at
        if not is_last or self.kill_after:
            answer = await super().send(request)
        if is_last:
            self.is_killed = True
            raise Killed
        return answer

    async def react(self):
        """Do what scheduler, node agent and driver do with the pods of changes."""
        for path, pod in list(self.objects.items()):
            if "/namespaces/dray-fleet/pods/" not in path or pod.get("status", {}).get("phase"):
                continue
            name = pod["metadata"]["name"]
            claim = self.objects[f"/apis/resource.k8s.io/v1/namespaces/dray-fleet/resourceclaims/{name}"]
            exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
            config = claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]
            uuid = exactly["selectors"][0]["cel"]["expression"].rpartition('"')[0].rpartition('"')[2]
            names = [
                device.name
                for device in self.driver.models[0].devices
                if uuid in [value.string for value in device.attributes.values()]
            ]
            if self.busy.intersection(names):
                continue
            allocated = [
                AllocatedDevice("device", f"{STATIC}-1", each, configs=[DeviceConfig("FromClaim", config)])
                for each in names
            ]
            request = ClaimRequest("dray-fleet", name, claim["metadata"]["uid"], allocated, ResourceClaim())
            try:
                await self.driver.prepare(request)
            except DriverError as error:
                event = {
                    "reason": "FailedPrepareDynamicResources",
                    "message": str(error),
                    "involvedObject": {"name": name},
                }
                self.put(f"/api/v1/namespaces/dray-fleet/events/{name}", event)
                continue
            pod["status"] = {"phase": "Succeeded"}
            self.publish()

    def left(self):
        return [path for path in self.objects if "/namespaces/dray-fleet/" in path and "/events/" not in path]

    def layouts(self):
        return {gpu.name: layout_text(gpu.layout) for gpu in published_gpus(self.driver.models[0].devices)}


@pytest.fixture
def system(tmp_path, monkeypatch):
    monkeypatch.setattr(repartitioning, "_PAUSE", 0)
    driver = simulated_drivers(load_profile(STATIC), f"{STATIC}-1", None, tmp_path)[0]
    return System(driver, [waiting("a", "7g.40gb"), waiting("b", "2g.10gb")])


async def carry_out(system, timeout=0.2):
    options = ProbeOptions(("true",), "busybox", seconds=timeout)
    async with system.client() as client:
        await repartitioning.finish_leftovers(client, "dray-fleet", timeout, lambda _: None)
        snapshot = await capture(client)
        plan = plan_repartition(snapshot)
        return await repartitioning.change_layouts(client, snapshot, plan.changes, options, lambda _: None)


WANTED = {"gpu-0": "7g.40gb", "gpu-1": "3g.20gb + 2g.10gb + 1g.5gb"}


async def test_a_plan_is_carried_out_and_leaves_nothing_behind(system):
    results = await carry_out(system)
    assert [(each.is_done, each.message) for each in results] == [(True, "")] * 2
    assert system.layouts() == WANTED
    assert not system.left()
    assert not await carry_out(system)  # nothing waits for another layout


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_run_that_is_killed_at_any_write_is_continued(tmp_path, monkeypatch, after):
    monkeypatch.setattr(repartitioning, "_PAUSE", 0)
    for number in range(1, 100):
        driver = simulated_drivers(load_profile(STATIC), f"{STATIC}-1", None, tmp_path / str(number))[0]
        system = System(driver, [waiting("a", "7g.40gb"), waiting("b", "2g.10gb")])
        system.kill_at, system.kill_after = number, after
        try:
            await carry_out(system)
        except Killed:
            for _ in range(20):
                await asyncio.sleep(0)  # what ran beside it is gone, too
            system.kill_at, system.is_killed = None, False
            await carry_out(system)
            assert system.layouts() == WANTED
            assert not system.left()
        else:
            assert number > 6  # two claims and two pods, made and deleted
            return
    raise AssertionError("the run never came to its end")


async def test_a_gpu_that_is_taken_in_between_keeps_its_layout(system):
    system.busy = {"gpu-0"}  # since the plan was made
    results = {each.change.place.gpu.name: each for each in await carry_out(system)}
    assert (results["gpu-0"].is_done, results["gpu-1"].is_done) == (False, True)
    assert system.layouts() == {**WANTED, "gpu-0": "whole"}
    assert not system.left()


async def test_the_refusal_of_a_driver_is_reported(system, monkeypatch):
    monkeypatch.setattr(system.driver, "_repartition", _refuse)
    results = await carry_out(system, timeout=30)
    assert [each.is_done for each in results] == [False, False]
    assert "FailedPrepareDynamicResources: no such kind" in results[0].message
    assert not system.left()


def _refuse(*_args):
    raise DriverError("no such kind")


async def test_a_second_run_leaves_a_gpu_to_the_first(system):
    async with system.client() as client:
        snapshot = await capture(client)
        plan = plan_repartition(snapshot)
        for change in plan.changes:
            claim, _ = repartitioning.objects_for(change, snapshot, ProbeOptions(("true",), "busybox"))
            await client.create(CLAIMS, claim, "dray-fleet")
        options = ProbeOptions(("true",), "busybox", seconds=0.2)
        results = await repartitioning.change_layouts(client, snapshot, plan.changes, options, lambda _: None)
    assert {each.message for each in results} == {"another run changes it"}
    assert len(system.left()) == 2  # they belong to the other one
