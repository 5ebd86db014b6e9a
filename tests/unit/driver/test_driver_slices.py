"""Pools become slices; the server is changed with the fewest writes."""

import msgspec
import pytest

from dray.api.meta import ObjectMeta
from dray.api.resource import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    ResourceSlice,
)
from dray.driver import DriverError, Pool
from dray.driver.slices import Owner, attachable, plan_writes, same_content, split_pool

OWNER = Owner("lamp.example.com", "worker", "node-uid")


def devices(count, **fields):
    return [Device(name=f"lamp-{index}", **fields) for index in range(count)]


def stored(specs, generation=1, names=None):
    """What the server has after the specs were written."""
    return [
        ResourceSlice(
            metadata=ObjectMeta(
                name=(names or {}).get(index, f"{index:05x}-lamp.example.com-worker-abcde"), uid=f"u{index}"
            ),
            spec=msgspec.structs.replace(
                spec, pool=msgspec.structs.replace(spec.pool, generation=generation)
            ),
        )
        for index, spec in enumerate(specs)
    ]


def verbs(writes):
    return [write.verb for write in writes]


@pytest.mark.parametrize(
    ("count", "fields", "sizes"),
    [
        (0, {}, [0]),
        (1, {}, [1]),
        (128, {}, [128]),
        (129, {}, [128, 1]),
        (64, {"taints": [DeviceTaint(key="a", effect="NoSchedule")]}, [64]),
        (65, {"taints": [DeviceTaint(key="a", effect="NoSchedule")]}, [64, 1]),
        (65, {"attributes": {"tags": DeviceAttribute(strings=["a"])}}, [64, 1]),
        (100, {"attributes": {"tag": DeviceAttribute(string="a")}}, [100]),
    ],
)
def test_devices_are_split_at_the_servers_limits(count, fields, sizes):
    specs = split_pool(Pool(devices=devices(count, **fields)), OWNER)
    assert [len(spec.devices) for spec in specs] == sizes
    assert {spec.pool.resource_slice_count for spec in specs} == {len(sizes)}
    names = [device.name for spec in specs for device in spec.devices]
    assert names == [f"lamp-{index}" for index in range(count)]


def test_one_heavy_device_halves_only_its_own_slice():
    many = [*devices(200), Device(name="hot", taints=[DeviceTaint(key="a", effect="NoSchedule")])]
    sizes = [len(spec.devices) for spec in split_pool(Pool(devices=many), OWNER)]
    assert sizes == [128, 72, 1]  # the 73rd would make a slice with a taint larger than 64


def test_counters_get_slices_of_their_own_before_the_devices():
    counters = [
        CounterSet(name=f"set-{index}", counters={"memory": Counter(value="1Gi")}) for index in range(9)
    ]
    specs = split_pool(Pool(devices=devices(1), counters=counters), OWNER)
    assert [(len(spec.shared_counters), len(spec.devices)) for spec in specs] == [(8, 0), (1, 0), (0, 1)]


def test_duplicate_device_names_are_refused_by_name():
    with pytest.raises(DriverError, match=r"lamp-0"):
        split_pool(Pool(devices=[*devices(1), *devices(1)]), OWNER)


def test_two_placements_are_refused():
    with pytest.raises(DriverError, match="one placement"):
        split_pool(Pool(devices=[], all_nodes=True, node_name="other"), OWNER)


def test_a_new_pool_is_created_with_indexed_names_owned_by_the_node():
    writes = plan_writes(split_pool(Pool(devices=devices(130)), OWNER), [], OWNER)
    assert verbs(writes) == ["create", "create"]
    assert [write.new.metadata.generate_name for write in writes] == [
        "00000-lamp.example.com-worker-",
        "00001-lamp.example.com-worker-",
    ]
    assert {write.new.spec.pool.generation for write in writes} == {1}
    assert writes[0].new.metadata.owner_references[0].uid == "node-uid"


def test_what_is_there_already_is_left_alone():
    specs = split_pool(Pool(devices=devices(130)), OWNER)
    assert plan_writes(specs, stored(specs, generation=7), OWNER) == []


def test_quantities_and_taint_times_of_the_server_are_no_difference():
    wanted = split_pool(
        Pool(
            devices=devices(
                1,
                capacity={"memory": DeviceCapacity(value="1024Mi")},
                taints=[DeviceTaint(key="a", effect="None")],
            )
        ),
        OWNER,
    )
    there = split_pool(
        Pool(
            devices=devices(
                1,
                capacity={"memory": DeviceCapacity(value="1Gi")},
                taints=[DeviceTaint(key="a", effect="None", time_added="2026-01-01T00:00:00Z")],
            )
        ),
        OWNER,
    )
    assert same_content(wanted[0], there[0])
    assert not same_content(
        wanted[0],
        split_pool(Pool(devices=devices(1, capacity={"memory": DeviceCapacity(value="2Gi")})), OWNER)[0],
    )


def test_one_changed_slice_is_updated_in_place_without_a_new_generation():
    before = split_pool(Pool(devices=devices(130)), OWNER)
    after = split_pool(Pool(devices=[*devices(129), Device(name="other")]), OWNER)
    writes = plan_writes(after, stored(before, generation=3), OWNER)
    assert [(w.verb, w.new.metadata.name[:5], w.new.spec.pool.generation) for w in writes] == [
        ("update", "00001", 3)
    ]


def test_two_changed_slices_make_a_new_generation_of_all():
    before = split_pool(Pool(devices=devices(300)), OWNER)
    after = split_pool(Pool(devices=list(reversed(devices(300)))), OWNER)
    writes = plan_writes(after, stored(before, generation=3), OWNER)
    assert verbs(writes) == ["update"] * 3
    assert {write.new.spec.pool.generation for write in writes} == {4}


def test_growing_rewrites_all_slices_because_the_count_changes():
    before, after = (split_pool(Pool(devices=devices(count)), OWNER) for count in (100, 200))
    writes = plan_writes(after, stored(before, generation=1), OWNER)
    assert [(w.verb, w.new.spec.pool.generation) for w in writes] == [("update", 2), ("create", 2)]


def test_shrinking_deletes_the_surplus_first():
    before, after = (split_pool(Pool(devices=devices(count)), OWNER) for count in (200, 100))
    writes = plan_writes(after, stored(before), OWNER)
    assert verbs(writes) == ["delete", "update"]


def test_old_generations_and_foreign_names_are_deleted():
    specs = split_pool(Pool(devices=devices(1)), OWNER)
    old = stored(specs, generation=1)
    odd = stored(specs, generation=2, names={0: "worker-gpu-xyz"})
    writes = plan_writes(specs, [*old, *odd], OWNER)
    assert verbs(writes) == ["delete", "delete", "create"]
    assert writes[-1].new.spec.pool.generation == 3


def test_a_pool_that_is_gone_is_deleted():
    specs = split_pool(Pool(devices=devices(200)), OWNER)
    assert verbs(plan_writes([], stored(specs), OWNER)) == ["delete", "delete"]


def test_an_update_keeps_the_time_of_a_taint():
    taint = DeviceTaint(key="broken", effect="NoSchedule")
    there = stored(
        split_pool(
            Pool(
                devices=devices(1, taints=[msgspec.structs.replace(taint, time_added="2026-01-01T00:00:00Z")])
            ),
            OWNER,
        )
    )
    wanted = split_pool(
        Pool(devices=[*devices(1, taints=[taint]), Device(name="new", taints=[taint])]), OWNER
    )
    (write,) = plan_writes(wanted, there, OWNER)
    assert [device.taints[0].time_added for device in write.new.spec.devices] == [
        "2026-01-01T00:00:00Z",
        None,
    ]


def test_devices_of_a_driver_that_can_attach_say_so():
    own = DeviceAttribute(string="x")
    (pool,) = attachable([Pool([Device(name="d", attributes={"model": own}), Device(name="e")])])
    mark = DeviceAttribute(bool_value=True)
    assert pool.devices[0].attributes == {"model": own, "dray.dev/attachable": mark}
    assert pool.devices[1].attributes == {"dray.dev/attachable": mark}
