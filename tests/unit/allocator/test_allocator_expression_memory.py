"""What many distinct expressions cost: programs are bounded in sum, verdicts too, and every claim is still answered."""

import gc
import tracemalloc

import pytest

from dray.allocator import Allocator
from dray.allocator.expressions import Selector, VerdictMemory
from dray.api.caching import BoundedCache
from dray.api.core import Node
from dray.api.features import Features
from dray.api.meta import ObjectMeta
from dray.api.resource import (
    CELDeviceSelector,
    Device,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dray.cel import program

N_SELECTORS = 24
N_DEVICES = 6


def allocator() -> Allocator:
    made = Allocator()
    pool = ResourcePool(name="p", generation=1, resource_slice_count=1)
    devices = [
        Device(name=f"g{i}", attributes={"index": DeviceAttribute(int_value=i)}) for i in range(N_DEVICES)
    ]
    spec = ResourceSliceSpec(driver="d", node_name="n", pool=pool, devices=devices)
    made.set_slice(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec))
    made.set_node(Node(metadata=ObjectMeta(name="n")))
    made.set_class(DeviceClass(metadata=ObjectMeta(name="any")))
    return made


def long_selector(number: int) -> str:
    """Return a selector of more than a thousand nodes, which takes all devices but the first."""
    return " && ".join([f'{number} < 1000 && device.attributes["d"].index > 0', *["1 + 2 * 3 < 9"] * 140])


def claim(*selectors: str) -> ResourceClaim:
    found = [DeviceSelector(cel=CELDeviceSelector(expression=text)) for text in selectors]
    exactly = ExactDeviceRequest(device_class_name="any", count=1, selectors=found)
    requests = [DeviceRequest(name="r", exactly=exactly)]
    return ResourceClaim(
        metadata=ObjectMeta(name="c", namespace="n"),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)),
    )


def test_the_programs_of_a_claim_with_many_long_selectors_are_not_all_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "_PROGRAMS", BoundedCache(5_000))
    compiled: list[str] = []
    compile_anew = program._compile_anew

    def counted(expression: str, *args: object, **kwargs: object) -> program.Program:
        compiled.append(expression)
        return compile_anew(expression, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(program, "_compile_anew", counted)
    made = allocator()
    wanted = claim(*(long_selector(number) for number in range(N_SELECTORS)))
    gc.collect()
    tracemalloc.start()
    try:
        answer = made.plan("n", [wanted])
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert answer
    assert [result.device for result in answer.allocations[0].devices.results] == ["g1"]
    assert kept < 5 << 20, "all programs would take 9 MB"
    # Once to know what it reads, once more for all devices: not once for every device.
    assert len(compiled) <= 2 * N_SELECTORS


def test_verdicts_of_all_expressions_together_are_bounded() -> None:
    memory = VerdictMemory(limit=10)
    features = Features.default()
    selectors = [
        Selector(f'device.attributes["d"].index >= {number}', features, memory) for number in range(4)
    ]
    view = allocator().view("n").pools[0]
    for selector in selectors:
        for device, facts in enumerate(view.devices):
            assert selector.verdict(facts) is (device >= selectors.index(selector))
    assert sum(len(selector._verdicts) for selector in selectors) <= 10


def test_a_pool_with_more_verdicts_than_are_kept_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.allocator.query_cache._MOST_MATCHES", 2)
    made = allocator()
    made._verdicts._limit = 3
    assert made.plan("n", [claim(*(long_selector(number) for number in range(3)))])


def test_an_expression_is_given_only_what_it_reads() -> None:
    attributes = {f"a{i}": DeviceAttribute(int_value=i) for i in range(9)}
    spec = ResourceSliceSpec(
        driver="d",
        node_name="n",
        pool=ResourcePool(name="p", generation=1, resource_slice_count=1),
        devices=[
            Device(name="plain", attributes=attributes),
            Device(name="odd", attributes={**attributes, "bad": DeviceAttribute(version="x")}),
        ],
    )
    found = Allocator()
    found.set_slice(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec))
    found.set_node(Node(metadata=ObjectMeta(name="n")))
    plain, odd = found.view("n").pools[0].devices
    selector = Selector('device.attributes["d"].a3 == 3', Features.default())
    seen = selector.device_input(plain, selector.values(plain))
    assert seen.attributes == {"d": {"a3": 3}}
    assert seen.capacity == {}
    assert selector.verdict(plain) is True
    # An attribute that cannot be read spoils its device for every expression, read or not.
    assert isinstance(selector.verdict(odd), Exception)
