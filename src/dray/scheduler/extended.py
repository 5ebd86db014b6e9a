"""Extended resources that devices stand behind: `nvidia.com/gpu: 1` without writing a claim.

A DeviceClass may name an extended resource, and every class has an implicit name
(`deviceclass.resource.kubernetes.io/<class>`). When a pod asks for such a resource, a node
that advertises it through a device plugin serves it the old way; on every other node the
scheduler makes one claim for the whole pod and allocates devices to it.

Which containers share devices: ordinary init containers end before the others start, so
they first use what longer-living containers after them will hold; only what is missing
then is asked for in addition, once, for the hungriest of them.

One claim per pod, requests named `container-<i>-request-<j>`: i counts init containers,
then containers; j is the place of the resource among the container's sorted requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dray.api.core import Container, ContainerExtendedResourceRequest, Pod
from dray.api.meta import ObjectMeta, OwnerReference
from dray.api.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from dray.scheduler.amounts import amount_of, container_requests, is_sidecar
from dray.scheduler.claims import EXTENDED_RESOURCE_CLAIM
from dray.scheduler.state import ClusterState

IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"
IN_MEMORY_NAME = "<extended-resources>"  # no valid name, so it can meet no real claim

ClassOf = Callable[[str], str | None]  # extended resource -> device class


class ExtendedResources:
    """Which class stands behind which extended resource."""

    def __init__(self) -> None:
        self._classes: dict[str, DeviceClass] = {}
        self._by_resource: dict[str, str] = {}

    def set_class(self, device_class: DeviceClass) -> None:
        """Add or replace a class."""
        before = self._classes.get(device_class.metadata.name)
        self._classes[device_class.metadata.name] = device_class
        if before is None or before.spec.extended_resource_name != device_class.spec.extended_resource_name:
            self._index()

    def delete_class(self, name: str) -> None:
        """Forget a class."""
        if self._classes.pop(name, None) is not None:
            self._index()

    def _index(self) -> None:
        """Of two classes with one name the later created wins, then the one first in the alphabet."""
        by_name = sorted(self._classes.values(), key=lambda each: each.metadata.name, reverse=True)
        by_age = sorted(by_name, key=lambda each: each.metadata.creation_timestamp or "")
        self._by_resource = {
            each.spec.extended_resource_name: each.metadata.name
            for each in by_age
            if each.spec.extended_resource_name
        }

    def class_of(self, resource: str) -> str | None:
        """Return the class behind a resource, None when there is none."""
        if resource.startswith(IMPLICIT_PREFIX):
            name = resource.removeprefix(IMPLICIT_PREFIX)
            return name if name in self._classes else None
        return self._by_resource.get(resource)

    def asked_by(self, pod: Pod) -> frozenset[str]:
        """Return the resources of the pod that some class stands behind."""
        if not self._classes:
            return frozenset()
        return frozenset(
            name
            for container in (*pod.spec.init_containers, *pod.spec.containers)
            for name, value in container_requests(container.resources).items()
            if "/" in name and self.class_of(name) is not None and amount_of(name, value) > 0
        )


def variants(state: ClusterState, asked: frozenset[str]) -> list[tuple[int, frozenset[str]]]:
    """Split the nodes by the resources that devices must provide there; plugin nodes come first."""
    groups: dict[frozenset[str], int] = {}
    for node in state.nodes.values():
        by_devices = frozenset(name for name in asked if node.allocatable.get(name, 0) == 0)
        groups[by_devices] = groups.get(by_devices, 0) | node.bit
    return [(nodes, names) for names, nodes in sorted(groups.items(), key=lambda item: len(item[0]))]


@dataclass(slots=True)
class _Wanted:
    """What one container asks of one resource."""

    index: int
    container: Container
    count: int
    request: str  # the name its own request would have


def special_claim(
    pod: Pod, names: frozenset[str], class_of: ClassOf
) -> tuple[ResourceClaim, tuple[ContainerExtendedResourceRequest, ...]]:
    """Make the claim of a pod for these resources, and say which request serves which container."""
    containers = [*pod.spec.init_containers, *pod.spec.containers]
    n_init = len(pod.spec.init_containers)
    requests: list[DeviceRequest] = []
    mappings: list[ContainerExtendedResourceRequest] = []
    for resource in sorted(names):
        device_class = class_of(resource)
        if device_class is None:
            continue
        wanted = [found for each in enumerate(containers) if (found := _wanted(*each, resource)) is not None]
        brief = [each for each in wanted if each.index < n_init and not is_sidecar(each.container)]
        lasting = [each for each in wanted if each not in brief]
        added, brief_mappings = _serve_brief(brief, lasting, resource)
        for each in (*([added] if added else []), *lasting):
            requests.append(_request(each.request, device_class, each.count))
        mappings += [_mapping(each, resource, each.request) for each in lasting]
        mappings += brief_mappings
    requests.sort(key=lambda each: each.name)
    return _claim(pod, requests), tuple(mappings)


def _wanted(index: int, container: Container, resource: str) -> _Wanted | None:
    asked = container_requests(container.resources)
    if resource not in asked:
        return None
    count = amount_of(resource, asked[resource])
    name = f"container-{index}-request-{sorted(asked).index(resource)}"
    return _Wanted(index, container, count, name) if count > 0 else None


def _serve_brief(
    brief: Sequence[_Wanted], lasting: Sequence[_Wanted], resource: str
) -> tuple[_Wanted | None, list[ContainerExtendedResourceRequest]]:
    """Let short-lived containers reuse later ones' devices; return the one request that is missing."""
    missing: list[_Wanted] = []
    mappings: list[ContainerExtendedResourceRequest] = []
    for each in brief:
        covered = 0
        for later in lasting:
            if later.index >= each.index and covered < each.count:
                covered += later.count
                mappings.append(_mapping(each, resource, later.request))
        if covered < each.count:
            missing.append(_Wanted(each.index, each.container, each.count - covered, each.request))
            mappings.append(_mapping(each, resource, each.request))
    if not missing:
        return None, mappings
    hungriest = max(missing, key=lambda each: each.count)  # the first of equals
    others = {each.request for each in missing} - {hungriest.request}
    return hungriest, [
        ContainerExtendedResourceRequest(
            container_name=each.container_name,
            resource_name=each.resource_name,
            request_name=hungriest.request if each.request_name in others else each.request_name,
        )
        for each in mappings
    ]


def _mapping(wanted: _Wanted, resource: str, request: str) -> ContainerExtendedResourceRequest:
    return ContainerExtendedResourceRequest(
        container_name=wanted.container.name, resource_name=resource, request_name=request
    )


def _request(name: str, device_class: str, count: int) -> DeviceRequest:
    exactly = ExactDeviceRequest(device_class_name=device_class, allocation_mode="ExactCount", count=count)
    return DeviceRequest(name=name, exactly=exactly)


def _claim(pod: Pod, requests: list[DeviceRequest]) -> ResourceClaim:
    meta = pod.metadata
    owner = OwnerReference(api_version="v1", kind="Pod", name=meta.name, uid=meta.uid, controller=True)
    return ResourceClaim(
        metadata=ObjectMeta(
            name=IN_MEMORY_NAME,
            generate_name=f"{meta.name}-extended-resources-",
            namespace=meta.namespace,
            uid=f"extended:{meta.uid}",  # stands for the claim in bookings until the server gives it a real one
            annotations={EXTENDED_RESOURCE_CLAIM: "true"},
            owner_references=[owner],
        ),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)),
    )


def is_leftover(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether a claim was made for this pod's extended resources by an earlier attempt."""
    return (claim.metadata.annotations or {}).get(EXTENDED_RESOURCE_CLAIM) == "true" and any(
        owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references
    )
