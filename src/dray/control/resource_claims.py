"""Claims of pods: made from templates, reserved, released, deallocated, deleted.

For every pod that names a template this controller makes a claim and writes its
name into the pod's status; when no consumer is left it takes the allocation back,
then the finalizer, and deletes claims that were made for a pod which is done.
It never allocates: that is the scheduler's field.

The rules are functions (`claims_to_make`, `still_reserved`, ...) on views; the
controller below only fetches, asks and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dray.api.core import Pod, PodGroup, PodResourceClaim
from dray.api.meta import ObjectMeta
from dray.api.resource import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate
from dray.api.well_known import CLAIM_FINALIZER, POD_CLAIM_ANNOTATION, TERMINAL_PHASES
from dray.client import STRATEGIC_PATCH, Invalid, NotFound, change_metadata, key_of
from dray.client.resources import CLAIM_TEMPLATES, CLAIMS, POD_GROUPS, PODS
from dray.control.reconcile_loop import Caches, Clock, Controller, ignoring_absence
from dray.host.clock import utc_now
from dray.scheduler import may_lack_claims

FIELD_MANAGER = "ResourceClaimController"
MAX_GENERATED_BASE = 57  # leaves a dash and five random characters of 63


def is_done(pod: Pod) -> bool:
    """Return whether the pod will never again use its devices."""
    finished = pod.status.phase in TERMINAL_PHASES
    never_started = pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    return finished or never_started


def has_given_up(pod: Pod, claim: str) -> bool:
    """Return whether a running pod no longer has a claim by this name, and its node has released it.

    The generation that a pod's node has observed tells that it holds no claim which is not in the list any more
    (docs/adr/0023-devices-after-pod-start.md).
    """
    generation = pod.metadata.generation
    if generation < 2 or not pod.spec.node_name or pod.status.observed_generation < generation:
        return False
    names = {entry.resource_claim_name for entry in pod.spec.resource_claims}
    names |= {status.resource_claim_name for status in pod.status.resource_claim_statuses}
    if pod.status.extended_resource_claim_status is not None:
        names.add(pod.status.extended_resource_claim_status.resource_claim_name)
    return claim not in names


def claim_base_name(owner: str, entry: str) -> str:
    """Return the generateName of a claim: both parts cut in proportion when they are too long.

    >>> claim_base_name("trainer-0", "gpu")
    'trainer-0-gpu-'
    """
    longest = MAX_GENERATED_BASE - 2  # two dashes
    if len(owner) + len(entry) > longest:
        keep_owner = max(1, longest * len(owner) // (len(owner) + len(entry)))
        owner, entry = owner[:keep_owner], entry[: longest - keep_owner]
    return f"{owner}-{entry}-"


def claim_from_template(
    template: ResourceClaimTemplate, entry: str, owner: ObjectMeta, owner_kind: str, owner_version: str
) -> dict[str, Any]:
    """Return the claim to create for one entry of a pod or pod group.

    It carries its finalizer from the start: that spares the scheduler a write for every pod, and
    this controller, which takes the finalizer off, is there anyway.
    """
    given = template.spec.metadata
    annotations = dict(given.annotations or {}) | {POD_CLAIM_ANNOTATION: entry}
    metadata: dict[str, Any] = {
        "generateName": claim_base_name(owner.name, entry),
        "namespace": owner.namespace,
        "annotations": annotations,
        "finalizers": [CLAIM_FINALIZER],
        "ownerReferences": [
            {
                "apiVersion": owner_version,
                "kind": owner_kind,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
            }
        ],
    }
    if given.labels:
        metadata["labels"] = given.labels
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": msgspec.to_builtins(template.spec.spec),
    }


def claims_to_make(
    entries: Iterable[PodResourceClaim], recorded: Mapping[str, str | None], owned: Iterable[ResourceClaim]
) -> tuple[list[PodResourceClaim], dict[str, str]]:
    """Split template entries into those that need a claim and those whose claim exists (entry -> name).

    `recorded` is what the status says (None: no claim needed); `owned` are the claims of this
    owner. A claim made earlier whose name was never recorded is found by its annotation; a
    recorded claim that is gone or not ours is made anew. One that is only being deleted still
    is the pod's claim: as long as the pod uses it, it stays.
    """
    by_name = {claim.metadata.name: claim for claim in owned}
    by_entry = {
        (claim.metadata.annotations or {}).get(POD_CLAIM_ANNOTATION): claim
        for claim in by_name.values()
        if claim.metadata.deletion_timestamp is None
    }
    missing: list[PodResourceClaim] = []
    found: dict[str, str] = {}
    for entry in entries:
        if entry.resource_claim_template_name is None:
            continue
        if entry.name in recorded:
            name = recorded[entry.name]
            if name is None or name in by_name:
                continue
        orphan = by_entry.get(entry.name)
        if orphan is not None:
            found[entry.name] = orphan.metadata.name
        else:
            missing.append(entry)
    return missing, found


def pod_reference(pod: Pod) -> dict[str, str]:
    """Return the reservation of a pod."""
    return {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}


class ClaimController(Controller):
    """Makes, reserves, releases and deletes the claims of pods and pod groups."""

    name = "claims"
    workers = 16

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.pods = caches.of(PODS, Pod)
        self.claims = caches.of(CLAIMS, ResourceClaim)
        self.templates = caches.of(CLAIM_TEMPLATES, ResourceClaimTemplate)
        self.groups = caches.of(POD_GROUPS, PodGroup, optional=True)
        self._claims_by_owner: dict[str, dict[str, ResourceClaim]] = {}  # owner uid -> claim key -> claim
        self._pods_by_template: dict[str, set[str]] = {}  # template key -> pod keys that wait for it
        self._pods_by_group: dict[str, set[str]] = {}  # group key -> keys of its pods
        self._released: set[str] = set()  # uids of claims that went with their finalizer; not seen gone yet
        self._waiting_for_claim: dict[str, set[str]] = {}  # claim key -> bound pods that want it reserved

    def watch(self) -> None:
        """Look at pods and claims as they change."""
        self.claims.add_handler(self._claim_changed)
        self.pods.add_handler(self._pod_changed)
        self.templates.add_handler(self._template_changed)
        self.groups.add_handler(self._group_changed)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for claim in (old, new):
            if claim is None:
                continue
            key = key_of(claim.metadata)
            for owner in claim.metadata.owner_references:
                claims_of_owner = self._claims_by_owner.setdefault(owner.uid, {})
                if claim is new:
                    claims_of_owner[key] = claim
                elif new is None:
                    claims_of_owner.pop(key, None)
                    if not claims_of_owner:
                        del self._claims_by_owner[owner.uid]
        current = new or old
        assert current is not None
        key = key_of(current.metadata)
        if new is not None:
            self.enqueue(f"claim:{key}")
            for pod_key in self._waiting_for_claim.pop(key, ()):
                self.enqueue(f"pod:{pod_key}")
        else:
            self._released.discard(current.metadata.uid)
            # A deleted claim may have to be made anew for a pod that still needs it.
            for owner in current.metadata.owner_references:
                if owner.kind == "Pod":
                    self.enqueue(f"pod:{current.metadata.namespace}/{owner.name}")

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        group = new or old
        assert group is not None
        key = key_of(group.metadata)
        if new is not None:
            self.enqueue(f"group:{key}")
            # Its pods may have waited for the group, or for the names of its claims.
            for pod_key in self._pods_by_group.get(key, ()):
                self.enqueue(f"pod:{pod_key}")
        else:
            # What the group had reserved is free.
            for claim_key, claim in self.claims.items.items():
                if any(user.uid == group.metadata.uid for user in claim.status.reserved_for):
                    self.enqueue(f"claim:{claim_key}")

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        group = pod.spec.scheduling_group
        if group is not None and group.pod_group_name:
            members = self._pods_by_group.setdefault(
                f"{pod.metadata.namespace}/{group.pod_group_name}", set()
            )
            (members.discard if new is None else members.add)(key_of(pod.metadata))
        self._enqueue_given_up(old, new)
        if not pod.spec.resource_claims and pod.status.extended_resource_claim_status is None:
            return
        key = key_of(pod.metadata)
        if new is None or is_done(pod):
            for claim_key in self._claim_keys(pod):
                self.enqueue(f"claim:{claim_key}")
        if new is not None:
            self.enqueue(f"pod:{key}")

    def _enqueue_given_up(self, old: Pod | None, new: Pod | None) -> None:
        """A pod's node has acted on a change of its claims: those that it had until then may be free."""
        if old is None or new is None or new.metadata.generation < 2:
            return  # when this controller starts, every claim is looked at in any case
        if old.status.observed_generation == new.status.observed_generation:
            return
        for key, claim in self.claims.items.items():
            if any(user.uid == new.metadata.uid for user in claim.status.reserved_for):
                self.enqueue(f"claim:{key}")

    def _template_changed(
        self, _old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None
    ) -> None:
        if new is not None:
            for key in self._pods_by_template.pop(key_of(new.metadata), ()):
                self.enqueue(f"pod:{key}")

    def _claim_keys(self, pod: Pod) -> set[str]:
        namespace = pod.metadata.namespace
        names = {entry.resource_claim_name for entry in pod.spec.resource_claims}
        names |= {status.resource_claim_name for status in pod.status.resource_claim_statuses}
        if pod.status.extended_resource_claim_status is not None:
            names.add(pod.status.extended_resource_claim_status.resource_claim_name)
        keys = {f"{namespace}/{name}" for name in names if name}
        return keys | set(self._claims_by_owner.get(pod.metadata.uid, ()))

    async def reconcile(self, key: str) -> float | None:
        """Sync one pod, pod group or claim."""
        kind, _, name = key.partition(":")
        if kind == "pod":
            return await self._sync_pod(name)
        if kind == "group":
            return await self._sync_group(name)
        return await self._sync_claim(name)

    # --- making ---------------------------------------------------------------

    async def _sync_pod(self, key: str) -> float | None:
        pod = self.pods.get(key)
        if pod is None or pod.metadata.deletion_timestamp is not None or is_done(pod):
            return None
        if pod.spec.scheduling_group is not None and self.groups.is_available and self._group_of(pod) is None:
            return None  # which claims are the group's, only the group can tell; its arrival wakes us
        group_entries = self._entries_shared_with_group(pod)
        own_entries = [entry for entry in pod.spec.resource_claims if entry.name not in group_entries]
        recorded = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        owned = await self._claims_owned_by(pod.metadata)
        missing, found = claims_to_make(own_entries, recorded, owned)
        for entry in missing:
            name = await self._make(entry, pod.metadata, "Pod", "v1", key)
            if name is None:
                return None
            found[entry.name] = name
        found |= {
            entry: name for entry, name in group_entries.items() if name and recorded.get(entry) != name
        }
        if found:
            statuses = {**recorded, **found}
            await self._record(pod, statuses)
        return await self._reserve_for_bound_pod(pod)

    async def _claims_owned_by(self, owner: ObjectMeta) -> list[ResourceClaim]:
        """Return the owner's claims, ones we have just made included."""
        claims_of_owner = self._claims_by_owner.get(owner.uid, {})
        for key, claim in list(claims_of_owner.items()):
            if key not in self.claims.items:
                # Made by us and not seen yet, or deleted before its creation was answered: ask.
                name, namespace = claim.metadata.name, claim.metadata.namespace
                found = await ignoring_absence(self.client.get(CLAIMS, name, namespace, view=ResourceClaim))
                if found is None or found.metadata.uid != claim.metadata.uid:
                    claims_of_owner.pop(key, None)
        return list(claims_of_owner.values())

    def _entries_shared_with_group(self, pod: Pod) -> dict[str, str | None]:
        """Return the pod's claim entries that its group owns: entry -> claim name, None while not made."""
        group = self._group_of(pod)
        if group is None:
            return {}
        shared = {
            (entry.name, entry.resource_claim_name, entry.resource_claim_template_name)
            for entry in group.spec.resource_claims
        }
        names = {status.name: status.resource_claim_name for status in group.status.resource_claim_statuses}
        return {
            entry.name: names.get(entry.name)
            for entry in pod.spec.resource_claims
            if entry.resource_claim_template_name is not None
            and (entry.name, entry.resource_claim_name, entry.resource_claim_template_name) in shared
        }

    def _group_of(self, pod: Pod) -> PodGroup | None:
        group = pod.spec.scheduling_group
        if group is None or not group.pod_group_name:
            return None
        return self.groups.get(f"{pod.metadata.namespace}/{group.pod_group_name}")

    async def _make(
        self, entry: PodResourceClaim, owner: ObjectMeta, kind: str, version: str, waiting_pod: str | None
    ) -> str | None:
        template_key = f"{owner.namespace}/{entry.resource_claim_template_name}"
        template = self.templates.get(template_key)
        if template is None:
            # Nothing to retry: the template's arrival wakes the pod.
            if waiting_pod is not None:
                self._pods_by_template.setdefault(template_key, set()).add(waiting_pod)
            return None
        body = claim_from_template(template, entry.name, owner, kind, version)
        made = await self.client.create(CLAIMS, body, owner.namespace, view=ResourceClaim)
        # Our own write counts at once: the watch may be behind when we look again.
        self._claims_by_owner.setdefault(owner.uid, {})[key_of(made.metadata)] = made
        return made.metadata.name

    async def _record(self, pod: Pod, name_by_entry: Mapping[str, str | None]) -> None:
        statuses = [
            {"name": entry} | ({"resourceClaimName": name} if name else {})
            for entry, name in sorted(name_by_entry.items())
        ]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.metadata.name,
                "namespace": pod.metadata.namespace,
                "uid": pod.metadata.uid,
            },
            "status": {"resourceClaimStatuses": statuses},
        }
        await ignoring_absence(
            self.client.apply(
                PODS,
                pod.metadata.name,
                body,
                pod.metadata.namespace,
                manager=FIELD_MANAGER,
                force=True,
                subresource="status",
            )
        )

    async def _sync_group(self, key: str) -> float | None:
        group = self.groups.get(key)
        if group is None or group.metadata.deletion_timestamp is not None:
            return None
        recorded = {
            status.name: status.resource_claim_name for status in group.status.resource_claim_statuses
        }
        owned = await self._claims_owned_by(group.metadata)
        missing, found = claims_to_make(group.spec.resource_claims, recorded, owned)
        for entry in missing:
            name = await self._make(entry, group.metadata, "PodGroup", POD_GROUPS.api_version, None)
            if name is None:
                return 5.0
            found[entry.name] = name
        if found:
            statuses = [
                {"name": entry, "resourceClaimName": name}
                for entry, name in sorted({**recorded, **found}.items())
                if name
            ]
            patch = {"status": {"resourceClaimStatuses": statuses}}
            await self.client.patch(
                POD_GROUPS, group.metadata.name, patch, group.metadata.namespace, subresource="status"
            )
        return None

    # --- reserving for pods that were bound without a scheduler -----------------

    async def _reserve_for_bound_pod(self, pod: Pod) -> float | None:
        if not pod.spec.node_name or may_lack_claims(pod):
            return None  # what a running pod is given later, its scheduler decides
        statuses = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        for entry in pod.spec.resource_claims:
            name = entry.resource_claim_name or statuses.get(entry.name)
            if not name:
                continue
            claim_key = f"{pod.metadata.namespace}/{name}"
            claim = self.claims.get(claim_key)
            if claim is None or claim.status.allocation is None:
                self._waiting_for_claim.setdefault(claim_key, set()).add(key_of(pod.metadata))
                continue
            group = self._group_of(pod)
            users = {pod.metadata.uid} | ({group.metadata.uid} if group else set())
            if users & {reference.uid for reference in claim.status.reserved_for}:
                continue
            reserved = [msgspec.to_builtins(reference) for reference in claim.status.reserved_for]
            await self._write_status(claim, {"reservedFor": [*reserved, pod_reference(pod)]})
        return None

    # --- releasing --------------------------------------------------------------

    async def _sync_claim(self, key: str) -> float | None:
        claim = self.claims.get(key)
        if claim is None:
            return None
        valid = [
            reference for reference in claim.status.reserved_for if await self._is_live(claim, reference)
        ]
        protected = CLAIM_FINALIZER in claim.metadata.finalizers
        released = len(valid) < len(claim.status.reserved_for)
        deleting = claim.metadata.deletion_timestamp is not None
        current = claim
        if not valid and self._has_lost_its_pod(claim):
            await self._delete_whole(claim)
            return None
        if released:
            status: dict[str, Any] = {"reservedFor": [msgspec.to_builtins(reference) for reference in valid]}
            if not valid and protected:
                status["allocation"] = None
            current = await self._write_status(claim, status)
        elif deleting and protected and not valid and claim.status.allocation is not None:
            current = await self._write_status(claim, {"allocation": None})
        if protected and not valid and current.status.allocation is None and (released or deleting):
            await self._remove_finalizer(current)
        if not valid and not deleting:
            await self._delete_when_owner_is_done(claim)
        return None

    async def _delete_whole(self, claim: ResourceClaim) -> None:
        """Delete a claim that was made for a pod which is gone, allocation and all: two writes.

        First the deletion, after which nobody may reserve the claim any more; then the finalizer, and
        with it everything goes at once. Both name the revision at which nobody used the claim.
        """
        meta = claim.metadata
        if meta.deletion_timestamp is None:
            answer = await ignoring_absence(
                self.client.delete(
                    CLAIMS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
                )
            )
            if answer is None or answer.get("kind") != "ResourceClaim":
                return  # gone, or the watch will tell
            claim = msgspec.convert(answer, ResourceClaim)
        if CLAIM_FINALIZER in claim.metadata.finalizers and meta.uid not in self._released:
            await self._remove_finalizer(claim)
            # Until the watch shows that it is gone the claim would be looked at again.
            self._released.add(meta.uid)

    def _has_lost_its_pod(self, claim: ResourceClaim) -> bool:
        owners = claim.metadata.owner_references
        return any(owner.controller and self.pods.has_ended(owner.uid) for owner in owners)

    async def _is_live(self, claim: ResourceClaim, reference: ResourceClaimConsumerReference) -> bool:
        namespace = claim.metadata.namespace
        if reference.resource == "pods" and not reference.api_group:
            if self.pods.has_ended(reference.uid):
                return False
            pod = self.pods.get(f"{namespace}/{reference.name}")
            if pod is None or pod.metadata.uid != reference.uid:
                # The cache may be behind; releasing a device that is in use would be worse than asking.
                pod = await ignoring_absence(self.client.get(PODS, reference.name, namespace, view=Pod))
            elif has_given_up(pod, claim.metadata.name):
                pod = await ignoring_absence(self.client.get(PODS, reference.name, namespace, view=Pod))
            if pod is None or pod.metadata.uid != reference.uid or is_done(pod):
                return False
            return not has_given_up(pod, claim.metadata.name)
        if reference.resource == "podgroups":
            group = self.groups.get(f"{namespace}/{reference.name}")
            if group is None or group.metadata.uid != reference.uid:
                group = await ignoring_absence(
                    self.client.get(POD_GROUPS, reference.name, namespace, view=PodGroup)
                )
            return group is not None and group.metadata.uid == reference.uid
        return True  # a consumer of a kind we do not know: its owner releases it

    async def _write_status(self, claim: ResourceClaim, status: dict[str, Any]) -> ResourceClaim:
        patch = {
            "metadata": {"resourceVersion": claim.metadata.resource_version, "uid": claim.metadata.uid},
            "status": status,
        }
        return await self.client.patch(
            CLAIMS,
            claim.metadata.name,
            patch,
            claim.metadata.namespace,
            subresource="status",
            view=ResourceClaim,
        )

    async def _remove_finalizer(self, claim: ResourceClaim) -> None:
        """Let a claim go: the server compares opaque parameters byte by byte, whatever the patch is about.

        A merge patch drops their whitespace, a strategic patch sorts their keys; where one of them looks
        like a change of the immutable spec, the other may not (see `dray.api.raw_json`), and where both
        do, only the binary form is left.
        """
        meta = claim.metadata
        precondition = {"resourceVersion": meta.resource_version}
        patch: dict[str, Any] = {
            "metadata": {**precondition, "$deleteFromPrimitiveList/finalizers": [CLAIM_FINALIZER]}
        }
        try:
            await ignoring_absence(
                self.client.patch(CLAIMS, meta.name, patch, meta.namespace, kind=STRATEGIC_PATCH)
            )
        except Invalid:
            rest = [name for name in meta.finalizers if name != CLAIM_FINALIZER]
            patch = {"metadata": {**precondition, "finalizers": rest or None}}
            try:
                await ignoring_absence(self.client.patch(CLAIMS, meta.name, patch, meta.namespace))
            except Invalid:
                await ignoring_absence(
                    change_metadata(self.client, CLAIMS, meta, without_finalizers=[CLAIM_FINALIZER])
                )

    async def _delete_when_owner_is_done(self, claim: ResourceClaim) -> None:
        for owner in claim.metadata.owner_references:
            if owner.kind != "Pod" or not owner.controller:
                continue
            pod = self.pods.get(f"{claim.metadata.namespace}/{owner.name}")
            if pod is not None and pod.metadata.uid != owner.uid:
                # Replaced, or our cache shows the predecessor: only the server knows.
                pod = await ignoring_absence(
                    self.client.get(PODS, owner.name, claim.metadata.namespace, view=Pod)
                )
            if pod is not None and (pod.metadata.uid != owner.uid or is_done(pod)):
                try:
                    await self.client.delete(
                        CLAIMS, claim.metadata.name, claim.metadata.namespace, uid=claim.metadata.uid
                    )
                except NotFound:
                    pass
