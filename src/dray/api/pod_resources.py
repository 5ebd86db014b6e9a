"""Requests and limits of a pod as a whole, from those of its containers.

Ordinary init containers run one after the other and release what they used; sidecars
(init containers with `restartPolicy: Always`) keep running. So a pod needs, per
resource, the larger of two amounts: that of all containers and sidecars together, and
the peak during initialization, which is an init container plus the sidecars before it.
What `spec.resources` names at pod level replaces that sum; the overhead of the runtime
class is added at the end: to every request, but only to limits that are set, because no
limit means unlimited.

The rules are generic over the number type: the scheduler counts in integers, quotas and
limit ranges in exact quantities.

Invariant: scheduler, admission and quota controller find the same amounts for a pod
(tests/property/test_pod_charges_agree.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from dray.api.core import Container
from dray.api.quantity import Quantity

__all__ = ["HUGEPAGES_PREFIX", "add_amounts", "is_sidecar", "total_limits", "total_requests"]

HUGEPAGES_PREFIX: Final = "hugepages-"

Amount = TypeVar("Amount", int, Quantity)


def is_sidecar(container: Container) -> bool:
    """Return whether an init container keeps running beside the others."""
    return container.restart_policy == "Always"


def total_requests(
    containers: Iterable[Mapping[str, Amount]],
    init_containers: Iterable[tuple[bool, Mapping[str, Amount]]],
    pod_level: Mapping[str, Amount],
    overhead: Mapping[str, Amount],
) -> dict[str, Amount]:
    """Return the requests of a pod by resource name; init containers come as (is a sidecar, requests).

    >>> total_requests([{"cpu": 1}, {"cpu": 2}], [(True, {"cpu": 1}), (False, {"cpu": 4})], {}, {})
    {'cpu': 5}
    """
    total = _total(containers, init_containers, pod_level)
    add_amounts(total, overhead)
    return total


def total_limits(
    containers: Iterable[Mapping[str, Amount]],
    init_containers: Iterable[tuple[bool, Mapping[str, Amount]]],
    pod_level: Mapping[str, Amount],
    overhead: Mapping[str, Amount],
) -> dict[str, Amount]:
    """Return the limits of a pod by resource name; init containers come as (is a sidecar, limits)."""
    total = _total(containers, init_containers, pod_level)
    add_amounts(total, {name: amount for name, amount in overhead.items() if total.get(name)})
    return total


def add_amounts(total: dict[str, Amount], more: Mapping[str, Amount]) -> None:
    """Add amounts by resource name, in place."""
    if not total:
        total.update(more)
        return
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _total(
    containers: Iterable[Mapping[str, Amount]],
    init_containers: Iterable[tuple[bool, Mapping[str, Amount]]],
    pod_level: Mapping[str, Amount],
) -> dict[str, Amount]:
    total: dict[str, Amount] = {}
    for amounts in containers:
        add_amounts(total, amounts)
    sidecars: dict[str, Amount] = {}
    peak: dict[str, Amount] = {}
    for stays, amounts in init_containers:
        if stays:
            add_amounts(sidecars, amounts)
            _raise_to(peak, sidecars)
        else:
            together = dict(sidecars)
            add_amounts(together, amounts)
            _raise_to(peak, together)
    if peak:
        add_amounts(total, sidecars)
        _raise_to(total, peak)
    if pod_level:
        total.update({name: amount for name, amount in pod_level.items() if _is_pod_level(name)})
    return total


def _is_pod_level(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith(HUGEPAGES_PREFIX)


def _raise_to(total: dict[str, Amount], least: Mapping[str, Amount]) -> None:
    for name, amount in least.items():
        if name not in total or total[name] < amount:
            total[name] = amount
