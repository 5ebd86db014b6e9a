"""Resource quotas: what a namespace uses, recounted from what exists; admission enforces it.

Claims are charged by what they may take at most: every device an All request could get,
the worst alternative per class. A claim that the scheduler made for an extended resource
is charged only for what its pod is not charged for already, so nothing counts twice.
Objects that no cache here follows (secrets, services, custom kinds) are counted by asking
the server, and asked again every half minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dray.api.core import Container, Pod
from dray.api.meta import ObjectMeta, View
from dray.api.quantity import Quantity, parse_quantity
from dray.api.resource import DeviceClass, ResourceClaim
from dray.api.well_known import DEVICE_CLASS_RESOURCE_PREFIX, EXTENDED_CLAIM_ANNOTATION
from dray.client import NotFound, key_of
from dray.client.resources import CLAIMS, DEVICE_CLASSES, PODS, RESOURCE_QUOTAS
from dray.control.collecting import Partial, discover
from dray.control.reconciling import Caches, Clock, Controller, ignoring_absence, utc_now

ALL_MODE_CHARGE = 32  # what an All request may take at most
CLAIM_COUNT = "count/resourceclaims.resource.k8s.io"
RECOUNT = 30.0  # seconds between counts of objects that no cache follows
ZERO = parse_quantity("0")

# Core objects with a quota name of their own, beside count/<plural>.
PLAIN_COUNTS = {
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
}

Amounts = dict[str, Quantity]


class QuotaSpec(View, frozen=True):
    """What may be used at most."""

    hard: dict[str, str] | None = None


class QuotaStatus(View, frozen=True):
    """What is used."""

    hard: dict[str, str] | None = None
    used: dict[str, str] | None = None


class Quota(View, frozen=True):
    """v1 ResourceQuota."""

    metadata: ObjectMeta = ObjectMeta()
    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()


def claim_charges(
    claim: ResourceClaim, classes: Mapping[str, DeviceClass], pod: Mapping[str, Quantity] | None = None
) -> Amounts:
    """Return what a claim costs, by quota name: itself, its devices per class, and their extended resources.

    `pod` is what the pod of an extended resource's claim is charged for.
    """
    per_class: dict[str, int] = {}
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            options = [
                (request.exactly.device_class_name, request.exactly.allocation_mode, request.exactly.count)
            ]
        else:
            options = [
                (sub.device_class_name, sub.allocation_mode, sub.count) for sub in request.first_available
            ]
        worst: dict[str, int] = {}
        for class_name, mode, count in options:
            worst[class_name] = max(
                worst.get(class_name, 0), ALL_MODE_CHARGE if mode == "All" else max(1, count)
            )
        for class_name, count in worst.items():
            per_class[class_name] = per_class.get(class_name, 0) + count
    charges = {CLAIM_COUNT: parse_quantity(1)}
    extended: Amounts = {}
    for class_name, count in per_class.items():
        amount = parse_quantity(count)
        charges[f"{class_name}.deviceclass.resource.k8s.io/devices"] = amount
        extended[f"requests.{DEVICE_CLASS_RESOURCE_PREFIX}{class_name}"] = amount
        found = classes.get(class_name)
        if found is not None and found.spec.extended_resource_name:
            name = f"requests.{found.spec.extended_resource_name}"
            extended[name] = extended.get(name, ZERO) + amount
    for name, amount in extended.items():
        left = amount - (pod or {}).get(name, ZERO)
        if left > ZERO:
            charges[name] = left
    return charges


def _add(into: Amounts, more: Mapping[str, Any] | None) -> None:
    for name, amount in (more or {}).items():
        into[name] = into.get(name, ZERO) + (
            amount if isinstance(amount, Quantity) else parse_quantity(amount)
        )


def _most(into: Amounts, other: Amounts) -> None:
    for name, amount in other.items():
        into[name] = max(into.get(name, ZERO), amount)


def pod_amounts(pod: Pod, field: str) -> Amounts:
    """Return the requests or limits of a pod: its containers, or its hungriest moment of start-up."""

    def of(container: Container) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = getattr(container.resources, field)
        return found

    total: Amounts = {}
    for container in pod.spec.containers:
        _add(total, of(container))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers:
        moment = dict(sidecars)
        _add(moment, of(container))
        if container.restart_policy == "Always":
            sidecars = moment
        _most(peak, moment)
    _add(total, sidecars)
    _most(total, peak)
    _add(total, pod.spec.overhead)
    return total


def pod_charges(pod: Pod) -> Amounts:
    """Return what a pod costs: itself, its cpu and memory, its extended resources."""
    charges = {"pods": parse_quantity(1), "count/pods": parse_quantity(1)}
    for field in ("requests", "limits"):
        for name, amount in pod_amounts(pod, field).items():
            charges[f"{field}.{name}"] = amount
    for name in ("cpu", "memory", "ephemeral-storage"):
        if f"requests.{name}" in charges:
            charges[name] = charges[f"requests.{name}"]
    return charges


def counted_kind(name: str) -> str | None:
    """Return `plural` or `plural.group` of a quota name that counts objects.

    >>> counted_kind("count/deployments.apps"), counted_kind("secrets"), counted_kind("requests.cpu")
    ('deployments.apps', 'secrets', None)
    """
    if name in PLAIN_COUNTS:
        return name
    return name.removeprefix("count/") if name.startswith("count/") else None


class QuotaController(Controller):
    """Keeps `status.used` of quotas true."""

    name = "quotas"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.quotas = caches.of(RESOURCE_QUOTAS, Quota)
        self.pods = caches.of(PODS, Pod)
        self.claims = caches.of(CLAIMS, ResourceClaim)
        self.classes = caches.of(DEVICE_CLASSES, DeviceClass)
        self._quotas_by_namespace: dict[str, set[str]] = {}

    def watch(self) -> None:
        """Look at quotas when they, or pods and claims of their namespace, change."""

        def quota_changed(old: Quota | None, new: Quota | None) -> None:
            changed = new or old
            assert changed is not None
            keys = self._quotas_by_namespace.setdefault(changed.metadata.namespace, set())
            if new is None:
                keys.discard(key_of(changed.metadata))
            else:
                keys.add(key_of(new.metadata))
                self.enqueue(key_of(new.metadata))

        def content_changed(old: Any, new: Any) -> None:
            for key in self._quotas_by_namespace.get((new or old).metadata.namespace, ()):
                self.enqueue(key, 0.1)  # one recount for a burst of changes

        self.quotas.add_handler(quota_changed)
        self.pods.add_handler(content_changed)
        self.claims.add_handler(content_changed)

    async def reconcile(self, key: str) -> float | None:
        """Recount one quota."""
        quota = self.quotas.get(key)
        if quota is None:
            return None
        hard = quota.spec.hard or {}
        used = dict.fromkeys(hard, ZERO)
        namespace = quota.metadata.namespace
        pods = {pod.metadata.uid: pod_charges(pod) for pod in self._running(namespace)}
        for charges in (*pods.values(), *self._claims_of(namespace, pods)):
            for name, amount in charges.items():
                if name in used:
                    used[name] = used[name] + amount
        others = await self._count_others(namespace, hard)
        used |= others
        texts = {name: str(amount) for name, amount in used.items()}
        again = RECOUNT if others else None
        if quota.status.used == texts and quota.status.hard == hard:
            return again
        meta = quota.metadata
        patch = {"status": {"hard": hard, "used": texts}}
        await ignoring_absence(
            self.client.patch(RESOURCE_QUOTAS, meta.name, patch, meta.namespace, subresource="status")
        )
        return again

    def _running(self, namespace: str) -> Iterable[Pod]:
        for pod in self.pods.items.values():
            if pod.metadata.namespace == namespace and pod.status.phase not in ("Succeeded", "Failed"):
                yield pod

    def _claims_of(self, namespace: str, pods: Mapping[str, Amounts]) -> Iterable[Amounts]:
        for claim in self.claims.items.values():
            if claim.metadata.namespace != namespace:
                continue
            pod: Amounts | None = None
            if (claim.metadata.annotations or {}).get(EXTENDED_CLAIM_ANNOTATION) == "true":
                owner = next((entry for entry in claim.metadata.owner_references if entry.controller), None)
                pod = pods.get(owner.uid) if owner is not None else None
            yield claim_charges(claim, self.classes.items, pod)

    async def _count_others(self, namespace: str, hard: Iterable[str]) -> Amounts:
        """Count objects that no cache here follows."""
        wanted = {name: kind for name in hard if (kind := counted_kind(name)) is not None}
        wanted = {name: kind for name, kind in wanted.items() if name not in ("count/pods", CLAIM_COUNT)}
        if not wanted:
            return {}
        served = {
            f"{each.plural}.{each.group}" if each.group else each.plural: each
            for each in (await discover(self.client)).resources
        }
        counts: Amounts = {}
        for name, kind in wanted.items():
            if kind in served:
                try:
                    found = await self.client.list(served[kind], namespace, view=Partial, limit=500)
                except NotFound:
                    continue
                counts[name] = parse_quantity(len(found.items))
        return counts
