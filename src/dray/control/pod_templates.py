"""What the workload controllers share: pods made from a template, owned, counted, and chosen for removal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from dray.api.conditions import is_true
from dray.api.core import Pod
from dray.api.json_types import JsonObject
from dray.api.meta import ObjectMeta
from dray.api.well_known import NAME_CHARACTERS, TERMINAL_PHASES
from dray.client import Conflict, Informer, NotFound, key_of
from dray.client.resources import PODS, Resource
from dray.control.reconcile_loop import Controller


def controller_of(meta: ObjectMeta) -> str | None:
    """Return the uid of the controlling owner."""
    return next((owner.uid for owner in meta.owner_references if owner.controller), None)


def owner_reference(resource: Resource, meta: ObjectMeta) -> JsonObject:
    """Return the reference that makes `meta`'s object the controlling owner."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_from_template(
    template: JsonObject, resource: Resource, owner: ObjectMeta, *, base: str | None = None
) -> JsonObject:
    """Return a pod to create for an owner; `base` overrides the generated name's beginning."""
    given = template.get("metadata") or {}
    metadata: JsonObject = {
        "generateName": f"{base or owner.name}-",
        "namespace": owner.namespace,
        "ownerReferences": [owner_reference(resource, owner)],
    }
    for field in ("labels", "annotations"):
        if given.get(field):
            metadata[field] = dict(given[field])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec") or {}}


def template_hash(template: JsonObject) -> str:
    """Return a short stable name for a pod template."""
    text = msgspec.json.encode(template, order="sorted")
    digest = hashlib.sha256(text).digest()
    return "".join(NAME_CHARACTERS[byte % len(NAME_CHARACTERS)] for byte in digest[:10])


def is_active(pod: Pod) -> bool:
    """Return whether the pod counts towards the wanted number."""
    return pod.status.phase not in TERMINAL_PHASES and pod.metadata.deletion_timestamp is None


def is_ready(pod: Pod) -> bool:
    """Return whether the pod serves."""
    return is_true(pod.status.conditions, "Ready")


def removal_order(pods: Iterable[Pod]) -> list[Pod]:
    """Sort pods, the ones to remove first: unscheduled, then pending, then not ready, then youngest."""

    def rank(pod: Pod) -> tuple[bool, bool, bool]:
        return bool(pod.spec.node_name), pod.status.phase == "Running", is_ready(pod)

    youngest_first = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    return sorted(youngest_first, key=rank)


class PodsByOwner:
    """An index of pods by their controlling owner, which also wakes the owner's controller."""

    def __init__(self, pods: Informer[Pod]) -> None:
        self._pods = pods
        self._keys: dict[str, set[str]] = {}

    def attach(self, controller: Controller, kind: str) -> None:
        """Enqueue `namespace/name` of the owner of that kind at every change of one of its pods."""

        def changed(old: Pod | None, new: Pod | None) -> None:
            for pod in (old, new):
                if pod is None:
                    continue
                owner = next((entry for entry in pod.metadata.owner_references if entry.controller), None)
                if owner is None:
                    continue
                keys = self._keys.setdefault(owner.uid, set())
                if pod is new:
                    keys.add(key_of(pod.metadata))
                elif new is None:
                    keys.discard(key_of(pod.metadata))
                if owner.kind == kind:
                    controller.enqueue(f"{pod.metadata.namespace}/{owner.name}")

        self._pods.add_handler(changed)

    def of(self, uid: str) -> Iterator[Pod]:
        """Yield the live pods of an owner."""
        for key in self._keys.get(uid, ()):
            pod = self._pods.get(key)
            if pod is not None:
                yield pod


class Expectations:
    """Writes that the caches do not show yet, so that no pod is made or removed twice.

    Between our create and the watch event the cache undercounts; a controller that
    looked then would make too many. It therefore waits until it has seen what it asked
    for, or `PATIENCE` seconds have passed: a pod that came and went while nobody looked
    is never seen.
    """

    PATIENCE = 5.0  # seconds

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, float]] = {}  # owner -> entry -> until when to wait

    def expect(self, owner: str, name: str, now: float) -> None:
        """Remember a pod that was made or is being removed, at these steady seconds."""
        self._pending.setdefault(owner, {})[name] = now + self.PATIENCE

    def settle(self, owner: str, visible: Mapping[str, bool], now: float) -> float | None:
        """Forget what has become visible (name -> is still active); return how long to wait for the rest.

        None means that the cache shows all that was done.
        """
        pending = self._pending.get(owner, {})
        for entry, until in list(pending.items()):
            kind, _, name = entry.partition(":")
            seen = name in visible if kind == "made" else not visible.get(name, False)
            if seen or until <= now:
                del pending[entry]
        if not pending:
            self._pending.pop(owner, None)
            return None
        return min(pending.values()) - now

    def forget(self, owner: str) -> None:
        """Drop all expectations of an owner."""
        self._pending.pop(owner, None)


async def delete_pod(controller: Controller, pod: Pod) -> None:
    """Delete exactly this pod; being late is fine."""
    try:
        await controller.client.delete(PODS, pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)
    except (NotFound, Conflict):
        pass
