"""Pools and generations: what counts, and when a pool is complete."""

import msgspec
import pytest

from dray.api.resource import ResourceSlice
from dray.devices import DeviceId, PoolId, Pools, is_complete, newest_generation, pool_id_of, slices_by_pool


def resource_slice(name, *devices, generation=1, count=1, pool="p", driver="d"):
    spec = {"driver": driver, "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}}
    spec["devices"] = [{"name": each} for each in devices]
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


@pytest.mark.parametrize(
    ("generations", "expected"), [((1,), "a"), ((1, 2), "b"), ((2, 1, 2), "ac"), ((3, 3), "ab"), ((), "")]
)
def test_only_the_newest_generation_counts(generations, expected):
    slices = [resource_slice(name, generation=each) for name, each in zip("abc", generations, strict=False)]
    assert [each.metadata.name for each in newest_generation(slices)] == list(expected)


def test_a_generation_is_complete_when_all_announced_slices_are_there():
    one, two = resource_slice("a", count=2), resource_slice("b", count=2)
    assert not is_complete([])
    assert not is_complete([one])
    assert is_complete([one, two])
    assert not is_complete([one, two, resource_slice("c", count=2)])


def test_slices_are_grouped_by_driver_and_pool():
    slices = [resource_slice("a"), resource_slice("b", pool="q"), resource_slice("c", driver="e")]
    assert list(slices_by_pool(slices)) == [PoolId("d", "p"), PoolId("d", "q"), PoolId("e", "p")]
    assert str(pool_id_of(slices[1])) == "d/q"


def test_the_devices_that_are_published_follow_the_slices():
    pools = Pools()
    old, new = resource_slice("a", "gpu-0", "gpu-1"), resource_slice("b", "gpu-2", generation=2)
    pools.set_slice(None, old)
    assert list(pools.published()) == [DeviceId("d", "p", "gpu-0"), DeviceId("d", "p", "gpu-1")]
    pools.set_slice(None, new)
    assert list(pools.published()) == [DeviceId("d", "p", "gpu-2")]
    pools.set_slice(new, None)
    assert pools.device(DeviceId("d", "p", "gpu-1")).name == "gpu-1"
    pools.set_slice(old, None)
    assert list(pools.published()) == []
