"""How much of each node resource a pod needs, and a node has, as plain integers.

Units: thousandths for cpu, whole units (bytes, pods, devices) for the rest,
rounded up. Requests are kept as a sorted tuple so that pods which ask for the same
are the same dictionary key; that is what makes the fit of 5,000 nodes a lookup.

How the requests of a pod follow from those of its containers is defined in
`dray.api.pod_resources`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from dray.api.core import Container, Pod, ResourceList, ResourceRequirements
from dray.api.pod_resources import is_sidecar, total_requests
from dray.api.quantity import parse_quantity

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
EPHEMERAL_STORAGE = "ephemeral-storage"

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

    `without` names resources that others account for (extended resources backed by devices).
    """
    spec = pod.spec
    total = total_requests(
        [_container_amounts(container) for container in spec.containers],
        [(is_sidecar(container), _container_amounts(container)) for container in spec.init_containers],
        amounts_of(container_requests(spec.resources)) if spec.resources is not None else {},
        amounts_of(spec.overhead),
    )
    return tuple(sorted((name, value) for name, value in total.items() if value > 0 and name not in without))


def _container_amounts(container: Container) -> Amounts:
    return amounts_of(container_requests(container.resources))


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
