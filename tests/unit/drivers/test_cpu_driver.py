"""Exclusive CPUs: whole cores, one cache, never twice, and the same again after a restart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sysfs_trees import cpu_tree

from dray.api.number_ranges import format_ranges, parse_ranges
from dray.api.resource import ResourceClaim
from dray.driver import AllocatedDevice, ClaimRequest, DriverError, PreparedClaim
from dray.drivers import cpu
from dray.drivers.container_hook import ContainerState
from dray.drivers.cpu import Cpu, CpuDriver, choose_cpus
from dray.drivers.hardware.cpus import CAPACITY


def claim(uid, count, device="cpudevnuma000", share="s"):
    allocated = AllocatedDevice(
        "cpu", "n", device, share_id=f"{uid}-{share}", consumed_capacity={CAPACITY: str(count)}
    )
    return ClaimRequest("default", uid, uid, [allocated], ResourceClaim())


@pytest.fixture
def driver(tmp_path):
    # Two NUMA nodes, each two L3 caches of two cores with two threads.
    node0 = [(0, 0, 0), (4, 0, 0), (1, 1, 0), (5, 1, 0), (2, 2, 1), (6, 2, 1), (3, 3, 1), (7, 3, 1)]
    node1 = [(cpu + 8, core, cache + 2) for cpu, core, cache in node0]
    return CpuDriver(tmp_path / "state", cpu_tree(tmp_path, [node0, node1]))


def cpus_of(prepared):
    return [cpu for device in prepared for cpu in device.private["cpus"]]


def test_a_device_is_published_for_each_numa_node(driver):
    (pool,) = driver.discover()
    assert [device.name for device in pool.devices] == ["cpudevnuma000", "cpudevnuma001"]
    assert pool.devices[0].capacity[CAPACITY].value == "8"
    assert pool.devices[0].capacity[CAPACITY].request_policy is None
    assert pool.devices[0].allow_multiple_allocations
    assert set(pool.devices[0].attributes) == {
        "resource.kubernetes.io/numaNode", "dra.cpu/numaNodeID", "dra.net/numaNode", "dra.cpu/socketID",
        "dra.cpu/numCPUs", "dra.cpu/smtEnabled",
    }  # fmt: skip


def test_two_cpus_are_the_threads_of_one_core(driver):
    assert cpus_of(driver.prepare(claim("a", 2))) == [0, 4]


def test_four_cpus_share_a_cache(driver):
    driver.prepare(claim("a", 2))
    assert cpus_of(driver.prepare(claim("b", 4))) == [2, 3, 6, 7]


def test_no_cpu_is_given_twice_and_all_come_back(driver):
    first, second = cpus_of(driver.prepare(claim("a", 3))), cpus_of(driver.prepare(claim("b", 5)))
    assert sorted(first + second) == list(range(8))
    with pytest.raises(DriverError, match="1 CPUs of NUMA node 0 are wanted, 0 are free"):
        driver.prepare(claim("c", 1))
    driver.unprepare(PreparedClaim("default", "a", "a", []))
    assert len(cpus_of(driver.prepare(claim("c", 3)))) == 3


def test_preparing_again_gives_the_same_cpus(driver):
    assert driver.prepare(claim("a", 3)) == driver.prepare(claim("a", 3))


def test_a_restarted_driver_knows_what_is_held(driver, tmp_path):
    prepared = driver.prepare(claim("a", 8))
    reborn = CpuDriver(tmp_path / "state", tmp_path)
    reborn.recover([PreparedClaim("default", "a", "a", prepared)])
    with pytest.raises(DriverError, match="0 are free"):
        reborn.prepare(claim("b", 1))


def test_a_claim_that_fits_in_part_takes_nothing(driver):
    wanted_request = claim("a", 8)
    more = ClaimRequest(
        "default", "a", "a", [*wanted_request.devices, *claim("a", 9, share="t").devices], ResourceClaim()
    )
    with pytest.raises(DriverError):
        driver.prepare(more)
    assert len(cpus_of(driver.prepare(claim("b", 8)))) == 8


def test_reserved_cpus_are_never_given(tmp_path):
    tree = cpu_tree(tmp_path, [[(0, 0, 0), (1, 1, 0)]])
    driver = CpuDriver(tmp_path / "state", tree, reserved=[0])
    assert cpus_of(driver.prepare(claim("a", 1))) == [1]


def test_a_device_that_does_not_exist_is_refused(driver):
    with pytest.raises(DriverError, match="CPUs are offered per NUMA node"):
        driver.prepare(claim("a", 1, device="gpu-0"))


def test_a_folder_that_is_no_sysfs_is_named(tmp_path):
    with pytest.raises(DriverError, match="is .* a sysfs"):
        CpuDriver(tmp_path / "state", tmp_path / "nothing").discover()


@given(st.sets(st.integers(0, 200)))
def test_cpu_lists_survive_writing_and_reading(cpus):
    assert parse_ranges(format_ranges(cpus)) == sorted(cpus)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=16), st.integers(1, 16))
def test_exactly_as_many_distinct_free_cpus_as_wanted_are_chosen(layout, count):
    free = [Cpu(index, (0, core), cache, 0, 0) for index, (core, cache) in enumerate(layout)]
    chosen = choose_cpus(free, count)
    if count > len(free):
        assert chosen is None
    else:
        assert len(chosen) == len(set(chosen)) == count
        assert set(chosen) <= {cpu.id for cpu in free}


def test_a_container_of_two_claims_runs_on_the_cpus_of_both(driver, monkeypatch):
    pinned = []
    monkeypatch.setattr(
        cpu, "pin_container", lambda container, cpus, *_: pinned.append((container.id, sorted(cpus)))
    )
    driver.prepare(claim("a", 2))
    driver.prepare(claim("b", 2, device="cpudevnuma001"))
    driver._pin("a", ContainerState(7, "box"))
    driver._pin("b", ContainerState(7, "box"))
    driver._pin("b", ContainerState(8, "other"))
    assert pinned == [("box", [0, 4]), ("box", [0, 4, 8, 12]), ("other", [8, 12])]
    driver.unprepare(PreparedClaim("default", "a", "a", []))
    driver._pin("b", ContainerState(7, "box"))  # a restart, after the other claim was given up
    assert pinned[-1] == ("box", [8, 12])
    with pytest.raises(DriverError, match="no CPUs are prepared for claim a"):
        driver._pin("a", ContainerState(7, "box"))
