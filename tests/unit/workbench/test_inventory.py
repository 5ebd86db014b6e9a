"""Which devices are free: counted by the allocator from what drivers publish, not guessed."""

import json

import msgspec
import pytest

from dray.api.resource import DeviceRequestAllocationResult
from dray.scheduler.queue_report import HeldDevices
from dray.sim.other_users import claims_of_others
from dray.sim.snapshot import Snapshot, load_snapshot
from dray.workbench.inventory import Inventory
from dray.workbench.pictures import draw_text

META = {"apiVersion": "resource.k8s.io/v1"}


def resource_slice(name, *, pool="p", count=2, node="n1", **spec):
    where = {"nodeName": node} if node else {"allNodes": True}
    return {
        **META,
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "d.example.com",
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": count},
            **where,
            **spec,
        },
    }


def partition(name, memory, counter_set="gpu", **more):
    draws = [{"counterSet": counter_set, "counters": {"memory": {"value": memory}}, **more}]
    return {"name": name, "consumesCounters": draws}


def counters(memory, *names):
    return [{"name": name, "counters": {"memory": {"value": memory}}} for name in names or ("gpu",)]


def claim(name, *devices, pool="p", **more):
    results = [
        {"request": "r", "driver": "d.example.com", "pool": pool, "device": device, **more}
        for device in devices
    ]
    return {
        **META,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def states(*objects):
    snapshot = Snapshot()
    for obj in objects:
        snapshot.add(obj)
    return {row.device.name: row.state for row in Inventory(snapshot).devices.values()}


def test_partitions_that_still_fit_are_free_although_no_device_draws_everything():
    """The budget is 80Gi and the largest partition 20Gi: three more fit beside the first."""
    found = states(
        resource_slice("s1", sharedCounters=counters("80Gi")),
        resource_slice("s2", devices=[partition(f"part-{n}", "20Gi") for n in range(5)]),
        claim("c", "part-0"),
    )
    assert found == {"part-0": "used", "part-1": "free", "part-2": "free", "part-3": "free", "part-4": "free"}


def test_partitions_that_no_longer_fit_are_blocked():
    found = states(
        resource_slice("s1", sharedCounters=counters("80Gi")),
        resource_slice(
            "s2", devices=[partition("whole", "80Gi"), partition("half", "40Gi"), partition("bit", "5Gi")]
        ),
        claim("c", "half"),
    )
    assert found == {"whole": "blocked", "half": "used", "bit": "free"}


def test_a_blocked_device_names_what_stands_in_its_way_and_other_counter_sets_are_left_alone():
    snapshot = Snapshot()
    for obj in (
        resource_slice("s1", sharedCounters=counters("80Gi", "gpu-0", "gpu-1")),
        resource_slice(
            "s2",
            devices=[partition(f"{kind}-{n}", size, f"gpu-{n}") for n in (0, 1) for kind, size in
                     (("whole", "80Gi"), ("half", "40Gi"))],
        ),
        claim("c", "half-0"),
    ):  # fmt: skip
        snapshot.add(obj)
    rows = {row.device.name: row for row in Inventory(snapshot).devices.values()}
    assert rows["whole-0"].state == "blocked"
    assert rows["whole-0"].blocked_by == "half-0"
    assert rows["whole-1"].state == rows["half-1"].state == "free"


def test_admin_access_draws_nothing():
    found = states(
        resource_slice("s1", sharedCounters=counters("80Gi")),
        resource_slice("s2", devices=[partition("whole", "80Gi"), partition("half", "40Gi")]),
        claim("c", "half", adminAccess=True),
    )
    assert found == {"whole": "free", "half": "free"}


def test_pools_of_no_single_node_are_counted_too():
    found = states(
        resource_slice("s1", node="", sharedCounters=counters("80Gi")),
        resource_slice("s2", node="", devices=[partition("whole", "80Gi"), partition("half", "40Gi")]),
        claim("c", "half"),
    )
    assert found == {"whole": "blocked", "half": "used"}


def test_an_incomplete_pool_is_shown_as_it_is():
    found = states(
        resource_slice("s2", count=3, devices=[partition("whole", "80Gi"), partition("half", "40Gi")]),
        claim("c", "half"),
    )
    assert found == {"whole": "free", "half": "used"}


@pytest.mark.parametrize("parameters", [{"b": 1, "a": "<x>"}, [1, 2.50, "é"], {"deep": [[[{"a": None}]]]}])
def test_a_snapshot_with_opaque_parameters_is_written_and_read_again(parameters, tmp_path):
    written = Snapshot()
    config = [{"opaque": {"driver": "d.example.com", "parameters": parameters}}]
    wanted = claim("c", "x")
    wanted["spec"]["devices"]["config"] = config
    written.add(wanted)
    written.write(tmp_path / "snapshot.json")
    document = json.loads((tmp_path / "snapshot.json").read_text())
    assert document["items"][0]["spec"]["devices"]["config"] == config
    found = load_snapshot([tmp_path / "snapshot.json"])
    assert msgspec.to_builtins(found.claims[0].spec) == msgspec.to_builtins(written.claims[0].spec)
    assert found.merged(Snapshot()).claims


def test_what_another_user_holds_is_shown_without_invented_names():
    held = HeldDevices("user-ann", None, (DeviceRequestAllocationResult("", "d.example.com", "p", "g0"),))
    snapshot = Snapshot()
    snapshot.add(resource_slice("s", count=1, devices=[{"name": "g0"}]))
    for obj in claims_of_others([held], "user-bob"):
        snapshot.add(obj)
    (row,) = Inventory(snapshot).devices.values()
    (use,) = row.uses
    assert str(use) == "user-ann (no time limit)"
    assert use.owner == "user-ann"
    assert "held-" not in draw_text(Inventory(snapshot), width=80)
