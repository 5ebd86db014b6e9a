"""How much of each node resource a pod needs, and a node has, as plain integers.

Units: thousandths for cpu, whole units (bytes, pods, devices) for the rest,
rounded up. Requests are kept as a sorted tuple so that pods which ask for the same
are the same dictionary key; that is what makes the fit of 5,000 nodes a lookup.

How the requests of a pod follow from those of its containers is defined in
`dray.api.pod_resources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from dray.api.core import Container, Pod, ResourceList, ResourceRequirements
from dray.api.pod_resources import is_sidecar, total_requests
from dray.api.quantity import parse_quantity

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"

Amounts = dict[str, int]
Requests = tuple[tuple[str, int], ...]  # sorted by name, no zeros

# What scoring assumes for containers that ask for nothing, so that such pods spread.
NOMINAL_MILLICPU = 100
NOMINAL_MEMORY = 200 * 1024 * 1024


@lru_cache(maxsize=16384)
def _amount(is_cpu: bool, text: str | int | float) -> int:
    quantity = parse_quantity(text)
    return quantity.milli_value() if is_cpu else quantity.ceil_value()


def amount_of(name: str, value: str | int | float) -> int:
    """Convert one quantity into the integer unit of its resource."""
    return _amount(name == CPU, value)


def amounts_of(resources: ResourceList | None) -> Amounts:
    """Convert a resource list, e.g. a node's allocatable."""
    if not resources:
        return {}
    return {name: _amount(name == CPU, value) for name, value in resources.items()}


def container_requests(resources: ResourceRequirements) -> ResourceList:
    """Return a container's requests; a limit without a request counts as one, as the API defaults it."""
    if not resources.limits:
        return resources.requests or {}
    return {**resources.limits, **(resources.requests or {})}


def pod_requests(pod: Pod, *, without: frozenset[str] = frozenset()) -> Requests:
    """Return what the pod needs of a node, all rules applied.

    `without` names resources that others account for (extended resources backed by devices). A pod that is being resized in
    place needs, per resource, the most of what its spec says, what its node has allocated and what its containers run with.
    """
    spec = pod.spec
    containers = _container_level(pod, _wanted)
    pod_level = amounts_of(container_requests(spec.resources)) if spec.resources is not None else {}
    if has_resources_in_status(pod):
        is_infeasible = _is_resize_infeasible(pod)
        allocated, actual = _status_amounts(pod, is_infeasible=is_infeasible)
        containers = _most_of(*([] if is_infeasible else [containers]), allocated, actual)
        if pod_level and pod.status.resources is not None:
            in_status = (
                amounts_of(pod.status.resources.requests),
                amounts_of(pod.status.allocated_resources),
            )
            pod_level = _most_of(*([] if is_infeasible else [pod_level]), *in_status)
    total = total_requests([containers], [], pod_level, amounts_of(spec.overhead))
    return tuple(sorted((name, value) for name, value in total.items() if value > 0 and name not in without))


def has_resources_in_status(pod: Pod) -> bool:
    """Return whether the node has told what the pod's containers have been given."""
    status = pod.status
    return (
        status.allocated_resources is not None
        or status.resources is not None
        or any(
            each.allocated_resources is not None or each.resources is not None
            for each in (*status.container_statuses, *status.init_container_statuses)
        )
    )


def _wanted(container: Container) -> Amounts:
    return amounts_of(container_requests(container.resources))


def _container_level(pod: Pod, amounts: Callable[[Container], Amounts]) -> Amounts:
    """Return what the containers need together, without pod-level resources and overhead."""
    return total_requests(
        [amounts(container) for container in pod.spec.containers],
        [(is_sidecar(container), amounts(container)) for container in pod.spec.init_containers],
        {},
        {},
    )


def _status_amounts(pod: Pod, *, is_infeasible: bool) -> tuple[Amounts, Amounts]:
    """Return what the node has allocated to the containers, and what they run with."""
    status = pod.status
    if (
        status.allocated_resources is not None
        and status.resources is not None
        and status.resources.requests is not None
    ):
        return amounts_of(status.allocated_resources), amounts_of(status.resources.requests)
    known = {each.name: each for each in (*status.container_statuses, *status.init_container_statuses)}

    def allocated(container: Container) -> Amounts:
        found = known.get(container.name)
        if found is not None and found.allocated_resources is not None:
            return amounts_of(found.allocated_resources)
        return {} if is_infeasible else _wanted(container)

    def actual(container: Container) -> Amounts:
        found = known.get(container.name)
        if found is not None and found.resources is not None and found.resources.requests is not None:
            return amounts_of(found.resources.requests)
        return allocated(container)

    return _container_level(pod, allocated), _container_level(pod, actual)


def _is_resize_infeasible(pod: Pod) -> bool:
    """Return whether the node has said that it can never give what the spec says."""
    return any(
        each.type == "PodResizePending" and each.reason == "Infeasible" for each in pod.status.conditions
    )


def _most_of(*many: Amounts) -> Amounts:
    most: Amounts = {}
    for amounts in many:
        for name, value in amounts.items():
            most[name] = max(most.get(name, 0), value)
    return most


def nominal_requests(pod: Pod, requests: Requests) -> tuple[int, int]:
    """Return (millicpu, memory) for scoring: containers without requests count a nominal amount."""
    found = dict(requests)
    missing_cpu = sum(CPU not in (container.resources.requests or {}) for container in pod.spec.containers)
    missing_memory = sum(
        MEMORY not in (container.resources.requests or {}) for container in pod.spec.containers
    )
    return (
        found.get(CPU, 0) + missing_cpu * NOMINAL_MILLICPU,
        found.get(MEMORY, 0) + missing_memory * NOMINAL_MEMORY,
    )


def sum_requests(many: Iterable[Requests]) -> Requests:
    """Add up the requests of several pods."""
    total: Amounts = {}
    for requests in many:
        for name, value in requests:
            total[name] = total.get(name, 0) + value
    return tuple(sorted(total.items()))
