"""Extended resources that devices stand behind: `nvidia.com/gpu: 1` without writing a claim.

A DeviceClass may name an extended resource, and every class has an implicit name
(`deviceclass.resource.kubernetes.io/<class>`). When a pod asks for such a resource, a node
that advertises it through a device plugin serves it the old way; on every other node the
scheduler makes one claim for the whole pod and allocates devices to it.

Which containers share devices: ordinary init containers end before the others start, so
they first use what longer-living containers after them will hold; only what is missing
then is asked for in addition, once, for the largest of them.

One claim per pod, requests named `container-<i>-request-<j>`: i counts init containers,
then containers; j is the place of the resource among the container's sorted requests.

The claim's own name follows from the pod's uid, so a scheduler that takes over finds what its predecessor made
and goes on with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dray.api.core import Container, ContainerExtendedResourceRequest, Pod
from dray.api.meta import ObjectMeta, OwnerReference
from dray.api.pod_resources import is_sidecar
from dray.api.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from dray.api.well_known import DEVICE_CLASS_RESOURCE_PREFIX, EXTENDED_CLAIM_ANNOTATION
from dray.scheduler.amounts import amount_of, container_requests
from dray.scheduler.state import ClusterState

IN_MEMORY_NAME = "<extended-resources>"  # no valid name, so it can meet no real claim
_LONGEST_NAME = 63  # as the server keeps to when it makes names
_MARK = 10  # characters of a name that stand for the pod's uid

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
        if resource.startswith(DEVICE_CLASS_RESOURCE_PREFIX):
            name = resource.removeprefix(DEVICE_CLASS_RESOURCE_PREFIX)
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
    largest = max(missing, key=lambda each: each.count)  # the first of equals
    others = {each.request for each in missing} - {largest.request}
    return largest, [
        ContainerExtendedResourceRequest(
            container_name=each.container_name,
            resource_name=each.resource_name,
            request_name=largest.request if each.request_name in others else each.request_name,
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
            uid=f"extended:{meta.uid}",  # stands for the claim in reservations until the server gives it a real one
            annotations={EXTENDED_CLAIM_ANNOTATION: "true"},
            owner_references=[owner],
        ),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)),
    )


def special_name(pod: Pod) -> str:
    """Return the name that the claim of this very pod has on the server."""
    mark = hashlib.sha256(pod.metadata.uid.encode()).hexdigest()[:_MARK]
    return f"{pod.metadata.name}-extended-resources-"[: _LONGEST_NAME - _MARK] + mark


def special_owner(claim: ResourceClaim) -> str | None:
    """Return the uid of the pod for whose extended resources a claim was made, None for other claims."""
    if (claim.metadata.annotations or {}).get(EXTENDED_CLAIM_ANNOTATION) != "true":
        return None
    return next((owner.uid for owner in claim.metadata.owner_references if owner.controller), None)


def choose_special(
    pod: Pod, made: Iterable[ResourceClaim]
) -> tuple[ResourceClaim | None, list[ResourceClaim]]:
    """Of the claims made for a pod say which one to go on with, and which are left over.

    The order is: what the pod's status names, else what has the
    right name, else the oldest. One that is being deleted is of no use to anybody.
    """
    status = pod.status.extended_resource_claim_status
    named = status.resource_claim_name if status is not None else ""
    right = special_name(pod)

    def rank(claim: ResourceClaim) -> tuple[bool, bool, bool, str, str]:
        meta = claim.metadata
        is_dying = meta.deletion_timestamp is not None
        return is_dying, meta.name != named, meta.name != right, meta.creation_timestamp or "", meta.name

    ranked = sorted(made, key=rank)
    if ranked and ranked[0].metadata.deletion_timestamp is None:
        return ranked[0], ranked[1:]
    return None, ranked


def serves(made: ResourceClaim, wanted: ResourceClaim) -> bool:
    """Return whether a claim that was found asks for what this one would."""
    return _asked(made) == _asked(wanted)


def _asked(claim: ResourceClaim) -> list[tuple[str, str, int] | None]:
    """What matters of the requests that `special_claim` makes; None stands for any other."""
    return [
        (each.name, each.exactly.device_class_name, each.exactly.count) if each.exactly is not None else None
        for each in claim.spec.devices.requests
    ]
