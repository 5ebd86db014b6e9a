"""Devices that stand for cpu or memory of the node, or cost some (alpha, gate DRANodeAllocatableResources).

A device may say: "I am four cpus" (mapping: by a consumed capacity, or a fixed amount a device),
or "using me costs 100 MiB per pod and 10 per container" (overhead). When a claim gets such a
device, the pod's demand on the node grows accordingly, and the pod's status says by how
much, so that kubelet and other schedulers count the same.

Pod-level requests are an upper limit: where a pod names a total for a resource, the devices' share must
fit under it together with the containers', and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dray.api.core import Pod
from dray.api.quantity import Quantity, parse_quantity
from dray.api.resource import (
    AllocationResult,
    Device,
    DeviceRequestAllocationResult,
    NodeAllocatableMapping,
    ResourceClaim,
)
from dray.scheduler.amounts import Requests, amount_of, container_requests, pod_requests

DeviceOf = Callable[[DeviceRequestAllocationResult], Device | None]
Held = Sequence[tuple[ResourceClaim, AllocationResult]]

_NANO = 10**9


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a pod's devices add to its demand, and how that is written into its status."""

    extra: Requests = ()
    statuses: tuple[dict[str, Any], ...] = ()
    problem: str = ""  # why the pod cannot have these devices at all


@dataclass(slots=True)
class _Share:
    """The sums of one claim: resource -> amount."""

    mapping: dict[str, Quantity]
    per_pod: dict[str, Quantity]
    per_container: dict[str, Quantity]


def footprint(pod: Pod, held: Held, device_of: DeviceOf) -> Footprint:
    """Add up mappings (once per claim) and overheads (per pod, and per container that uses the claim)."""
    total: dict[str, int] = {}
    statuses = []
    for claim, allocation in held:
        share = _share(allocation, device_of)
        if not (share.mapping or share.per_pod or share.per_container):
            continue
        if share.mapping and any(each.uid != pod.metadata.uid for each in claim.status.reserved_for):
            name = claim.metadata.name
            return Footprint(problem=f"claim {name} maps to node resources and is reserved for another pod")
        containers = list(_users(pod, claim))
        for amounts, times in (
            (share.mapping, 1),
            (share.per_pod, 1),
            (share.per_container, len(containers)),
        ):
            for resource, amount in amounts.items():
                total[resource] = total.get(resource, 0) + amount_of(resource, str(amount)) * times
        statuses.append(_status(claim, share, containers))
    pod_level = container_requests(pod.spec.resources) if pod.spec.resources is not None else {}
    extra = []
    own = dict(_without_pod_level_requests(pod)) if pod_level else {}
    for resource, added in sorted(total.items()):
        if resource not in pod_level:
            extra.append((resource, added))
        elif own.get(resource, 0) + added > amount_of(resource, pod_level[resource]):
            return Footprint(problem=f"the pod-level request for {resource} does not cover its devices")
    return Footprint(tuple(extra), tuple(sorted(statuses, key=lambda each: str(each["resourceClaimName"]))))


def _without_pod_level_requests(pod: Pod) -> Requests:
    return pod_requests(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resources=None)))


def _share(allocation: AllocationResult, device_of: DeviceOf) -> _Share:
    share = _Share({}, {}, {})
    for result in allocation.devices.results:
        device = device_of(result)
        for resource, terms in ((device.node_allocatable_resources if device else None) or {}).items():
            if terms.mapping is not None:
                _add(share.mapping, resource, _mapped(terms.mapping, result))
            if terms.overhead is not None:
                _add(share.per_pod, resource, _quantity(terms.overhead.per_pod))
                _add(share.per_container, resource, _quantity(terms.overhead.per_container))
    return share


def _mapped(mapping: NodeAllocatableMapping, result: DeviceRequestAllocationResult) -> Quantity | None:
    if not mapping.capacity_key:
        return _quantity(mapping.device_multiplier)
    consumed = (result.consumed_capacity or {}).get(mapping.capacity_key)
    if consumed is None:
        return None
    amount = parse_quantity(consumed)
    if mapping.capacity_multiplier is None:
        return amount
    return Quantity(
        amount.nanos * parse_quantity(mapping.capacity_multiplier).nanos // _NANO, amount.notation
    )


def _quantity(value: str | int | float | None) -> Quantity | None:
    return parse_quantity(value) if value is not None else None


def _add(into: dict[str, Quantity], resource: str, amount: Quantity | None) -> None:
    if amount is not None:
        into[resource] = into[resource] + amount if resource in into else amount


def _users(pod: Pod, claim: ResourceClaim) -> Iterator[str]:
    """Yield the containers that use a claim, once per reference."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    entries = {
        entry.name
        for entry in pod.spec.resource_claims
        if (entry.resource_claim_name or made.get(entry.name)) == claim.metadata.name
    }
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for reference in container.resources.claims:
            if reference.name in entries:
                yield container.name


def _status(claim: ResourceClaim, share: _Share, containers: list[str]) -> dict[str, Any]:
    overhead = []
    for resource in sorted({*share.per_pod, *share.per_container}):
        entry = {"name": resource}
        if resource in share.per_pod:
            entry["perPod"] = str(share.per_pod[resource])
        if resource in share.per_container:
            entry["perContainer"] = str(share.per_container[resource])
        overhead.append(entry)
    mapping = [{"name": name, "quantity": str(amount)} for name, amount in sorted(share.mapping.items())]
    return {
        "resourceClaimName": claim.metadata.name,
        "containers": containers,
        "mapping": mapping,
        "overhead": overhead,
    }


def extra_in_status(pod: Pod) -> Requests:
    """Read back what a bound pod's status says of its devices' demand."""
    if not pod.status.node_allocatable_resource_claim_statuses:
        return ()
    pod_level = container_requests(pod.spec.resources) if pod.spec.resources is not None else {}
    total: dict[str, int] = {}
    for status in pod.status.node_allocatable_resource_claim_statuses:
        times = len(status.get("containers") or ())
        entries = [(each["name"], each.get("quantity"), 1) for each in status.get("mapping") or ()]
        for each in status.get("overhead") or ():
            entries += [
                (each["name"], each.get("perPod"), 1),
                (each["name"], each.get("perContainer"), times),
            ]
        for resource, amount, count in entries:
            if amount is not None and resource not in pod_level:
                total[resource] = total.get(resource, 0) + amount_of(resource, amount) * count
    return tuple(sorted(total.items()))
