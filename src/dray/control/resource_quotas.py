"""Resource quotas: what a namespace uses, recounted from what exists; admission enforces it.

What pods and claims are charged is defined in `dray.api.quota_charges`.
Objects that no cache here follows (secrets, services, custom kinds) are counted by asking
the server, and asked again every half minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from dray.api.core import Pod, ResourceList, ResourceQuota, ResourceRequirements
from dray.api.pod_resources import is_sidecar, total_limits, total_requests
from dray.api.quantity import parse_quantity
from dray.api.quota_charges import (
    ONE,
    PLAIN_COUNTS,
    Amounts,
    claim_charges,
    owner_charged_first,
    pod_charges,
)
from dray.api.resource import DeviceClass, ResourceClaim
from dray.api.well_known import TERMINAL_PHASES
from dray.client import NotFound, key_of
from dray.client.resources import CLAIMS, DEVICE_CLASSES, PODS, RESOURCE_QUOTAS
from dray.control.garbage_collection import Partial, discover
from dray.control.reconcile_loop import Caches, Clock, Controller, ignoring_absence
from dray.host.clock import utc_now

CLAIM_COUNT = "count/resourceclaims.resource.k8s.io"
RECOUNT = 30.0  # seconds between counts of objects that no cache follows
ZERO = parse_quantity("0")


def charges_of_pod(pod: Pod) -> Amounts:
    """Return what a pod is charged; one that has ended holds nothing, only the object still counts."""
    charges = {"count/pods": ONE}
    if pod.status.phase in TERMINAL_PHASES:
        return charges
    requests, limits = _pod_amounts(pod, "requests"), _pod_amounts(pod, "limits")
    return charges | {"pods": ONE} | pod_charges(requests, limits)


def _pod_amounts(pod: Pod, side: Literal["requests", "limits"]) -> Amounts:
    def own(resources: ResourceRequirements | None) -> Amounts:
        return _quantities(getattr(resources, side, None))

    total = total_requests if side == "requests" else total_limits
    return total(
        [own(container.resources) for container in pod.spec.containers],
        [(is_sidecar(container), own(container.resources)) for container in pod.spec.init_containers],
        own(pod.spec.resources),
        _quantities(pod.spec.overhead),
    )


def _quantities(resources: ResourceList | None) -> Amounts:
    return {name: parse_quantity(value) for name, value in (resources or {}).items()}


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
        self.quotas = caches.of(RESOURCE_QUOTAS, ResourceQuota)
        self.pods = caches.of(PODS, Pod)
        self.claims = caches.of(CLAIMS, ResourceClaim)
        self.classes = caches.of(DEVICE_CLASSES, DeviceClass)
        self._quotas_by_namespace: dict[str, set[str]] = {}

    def watch(self) -> None:
        """Look at quotas when they, or pods and claims of their namespace, change."""

        def quota_changed(old: ResourceQuota | None, new: ResourceQuota | None) -> None:
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
        pods = [pod for pod in self.pods.items.values() if pod.metadata.namespace == namespace]
        charges_by_uid = {pod.metadata.uid: charges_of_pod(pod) for pod in pods}
        for charges in (*charges_by_uid.values(), *self._claims_of(namespace, charges_by_uid)):
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

    def _claims_of(self, namespace: str, pods: Mapping[str, Amounts]) -> Iterable[Amounts]:
        for claim in self.claims.items.values():
            if claim.metadata.namespace == namespace:
                yield {CLAIM_COUNT: ONE} | claim_charges(
                    claim.spec.devices.requests,
                    self._extended_name,
                    self._charged_to_pod(claim, pods),
                )

    def _extended_name(self, class_name: str) -> str:
        found = self.classes.get(class_name)
        return (found.spec.extended_resource_name or "") if found is not None else ""

    def _charged_to_pod(self, claim: ResourceClaim, charges_by_uid: Mapping[str, Amounts]) -> Amounts:
        """Return what the pod behind a scheduler-made claim is charged already."""
        owner = owner_charged_first(claim.metadata)
        pod = self.pods.get(f"{claim.metadata.namespace}/{owner.name}") if owner is not None else None
        if owner is None or pod is None or pod.metadata.uid != owner.uid:
            return {}
        status = pod.status.extended_resource_claim_status
        if status is not None and status.resource_claim_name != claim.metadata.name:
            return {}
        return charges_by_uid.get(owner.uid, {})

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
