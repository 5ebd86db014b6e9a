"""The volumes of one pod: which nodes they allow, why the others not, and what must be written first.

A claim is bound (its volume allows some nodes), or it waits for the pod's node (class with WaitForFirstConsumer): then a free volume that is reachable
from the node is bound to it, the smallest that is large enough, or one is made for the node. Everything else is a problem of the pod as a whole: a
claim that is missing, lost, on its way out, or should have been bound long ago.

The rules and their words are those of kube-scheduler's VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dray.api.core import Pod
from dray.api.label_selectors import matches_labels
from dray.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from dray.api.well_known import REGION_LABEL, ZONE_LABEL
from dray.scheduler.amounts import amount_of
from dray.scheduler.queue import Hint, QueueingHint
from dray.scheduler.selecting import Labels
from dray.scheduler.shape import PodShape
from dray.scheduler.state import NodeState
from dray.scheduler.volumes import (
    STORAGE,
    VOLUMES,
    VolumeBindings,
    VolumeState,
    class_of_claim,
    is_fully_bound,
)

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
TOO_LITTLE_SPACE = "node(s) did not have enough free storage"
VOLUME_MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
ZONE_CONFLICT = "node(s) had no available volume zone"
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use"
    " by another pod"
)
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"

_GA_LABELS = {
    "failure-domain.beta.kubernetes.io/zone": ZONE_LABEL,
    "failure-domain.beta.kubernetes.io/region": REGION_LABEL,
    ZONE_LABEL: ZONE_LABEL,
    REGION_LABEL: REGION_LABEL,
}


@dataclass(slots=True)
class _Delayed:
    """A claim that waits for the pod's node."""

    key: str
    claim: PersistentVolumeClaim
    storage_class: StorageClass
    selected: str | None  # the node for which its volume is being made
    candidates: list[tuple[PersistentVolume, int]] = field(default_factory=list)  # with nodes; smallest first
    to_provision: int = 0  # nodes for which a volume can be made, capacity aside


@dataclass(slots=True)
class PodVolumes:
    """See the module docstring. Reads the state as it is now: do not keep."""

    state: VolumeState
    problem: str = ""  # why no node at all can take the pod
    hints: frozenset[Hint] = frozenset()  # what can help
    is_in_use: bool = False  # a claim for one pod only has its pod
    misses_volume: bool = False
    bound: list[PersistentVolume] = field(default_factory=list)
    delayed: list[_Delayed] = field(default_factory=list)
    zones: list[tuple[str, frozenset[str]]] = field(default_factory=list)  # label of the node, allowed values
    csi: set[tuple[str, str]] = field(default_factory=set)  # driver, handle

    def nodes(self, among: int) -> int:
        """Return which of these nodes can take the pod, as far as its volumes go."""
        if self.problem or self.is_in_use or self.misses_volume:
            return 0
        for volume in self.bound:
            among &= self.state.nodes_of(volume)
        for each in self.delayed:
            among &= self._possible(each)
        if not self._needs_each_node():
            return among
        return sum(node.bit for node in self.state.state.in_set(among) if self.refusal(node) is None)

    def _possible(self, each: _Delayed) -> int:
        """Return the nodes for which one claim alone may find a volume."""
        if each.selected is not None:
            node = self.state.state.nodes.get(each.selected)
            return each.to_provision & node.bit if node is not None else 0
        nodes = each.to_provision
        for _, reachable in each.candidates:
            nodes |= reachable
        return nodes

    def _needs_each_node(self) -> bool:
        """Return whether sets of nodes do not tell everything."""
        return (
            len(self.delayed) > 1
            or any(self.state.publishes_capacity(each.storage_class) for each in self.delayed)
            or bool(self.zones)
            or self.state.drivers_matter({driver for driver, _ in self.csi})
        )

    def refusal(self, node: NodeState) -> str | None:
        """Return why the node cannot take the pod; None when it can."""
        if self.is_in_use:
            return IN_USE
        refusal = self.state.driver_refusal(node.name, self.csi)
        if refusal is not None:
            return refusal
        if self.misses_volume:
            return VOLUME_MISSING
        if any(not self.state.nodes_of(volume) & node.bit for volume in self.bound):
            return NODE_CONFLICT
        found = self.bindings(node)
        if isinstance(found, str):
            return found
        return None if _in_zones(self.zones, node.labels) else ZONE_CONFLICT

    def bindings(self, node: NodeState) -> VolumeBindings | str:
        """Return what must be written if the pod is to run on the node, or why that is not possible."""
        taken: set[str] = set()
        matches, provisions = [], []
        for each in self.delayed:
            if each.selected is not None and each.selected != node.name:
                return BIND_CONFLICT
            volume = None if each.selected is not None else _first_free(each.candidates, node.bit, taken)
            if volume is None:
                provisions.append(each)
            else:
                taken.add(volume)
                matches.append((each.key, volume))
        for each in provisions:
            if not each.to_provision & node.bit:
                return BIND_CONFLICT
            if not self.state.has_capacity(each.storage_class, each.claim, node):
                return TOO_LITTLE_SPACE
        return VolumeBindings(tuple(matches), tuple(each.key for each in provisions))


def _first_free(candidates: Sequence[tuple[PersistentVolume, int]], bit: int, taken: set[str]) -> str | None:
    for volume, nodes in candidates:
        if nodes & bit and volume.metadata.name not in taken:
            return volume.metadata.name
    return None


# --- gathering --------------------------------------------------------------------


def volumes_of(state: VolumeState, pod: Pod, shape: PodShape) -> PodVolumes | None:
    """Gather the volumes of a pod; None when nothing depends on them."""
    if not shape.volumes or not state.is_followed:
        return None
    keys = [f"{pod.metadata.namespace}/{name}" for name, _ in shape.volumes]
    found = PodVolumes(
        state,
        hints=frozenset(
            (VOLUMES, QueueingHint.NODES, QueueingHint.RESOURCES, *(f"volume-claim:{key}" for key in keys))
        ),
    )
    for check in (_missing, _unusable, _sort_claims):
        found.problem = check(found, pod, shape)
        if found.problem:
            break
    return found


def _missing(found: PodVolumes, pod: Pod, shape: PodShape) -> str:
    for name, is_ephemeral in shape.volumes:
        if not is_ephemeral and f"{pod.metadata.namespace}/{name}" not in found.state.claims:
            return f'persistentvolumeclaim "{name}" not found'
    return ""


def _unusable(found: PodVolumes, pod: Pod, shape: PodShape) -> str:
    for name, is_ephemeral in shape.volumes:
        claim = found.state.claims.get(f"{pod.metadata.namespace}/{name}")
        if claim is None:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        if claim.status.phase == "Lost":
            volume = claim.spec.volume_name
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"'
        if claim.metadata.deletion_timestamp is not None:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if is_ephemeral and not _is_controlled_by(claim, pod):
            namespace = pod.metadata.namespace
            return (
                f"PVC {namespace}/{name} was not created for pod {namespace}/{pod.metadata.name}"
                " (pod is not owner)"
            )
    return ""


def _is_controlled_by(claim: PersistentVolumeClaim, pod: Pod) -> bool:
    return any(each.controller and each.uid == pod.metadata.uid for each in claim.metadata.owner_references)


def _sort_claims(found: PodVolumes, pod: Pod, shape: PodShape) -> str:
    """Sort the claims into bound ones and those that wait for the node; return the problem if there is one."""
    state, problem = found.state, ""
    for name, is_ephemeral in shape.volumes:
        key = f"{pod.metadata.namespace}/{name}"
        claim = state.claims[key]
        if not is_ephemeral and "ReadWriteOncePod" in claim.spec.access_modes and state.is_used(key):
            found.is_in_use = True
        csi = state.csi_volume(key)
        if csi is not None:
            found.csi.add(csi)
        if is_fully_bound(claim):
            problem = _add_bound(found, claim, is_ephemeral=is_ephemeral) or problem
            continue
        storage_class = state.classes.get(class_of_claim(claim))
        if storage_class is not None and storage_class.volume_binding_mode is None:
            return f'VolumeBindingMode not set for StorageClass "{storage_class.metadata.name}"'
        if (
            storage_class is None
            or storage_class.volume_binding_mode != "WaitForFirstConsumer"
            or claim.spec.volume_name
        ):
            return UNBOUND
        found.delayed.append(_delayed(state, key, claim, storage_class))
    found.delayed.sort(key=lambda each: _size(each.claim))
    return problem


def _add_bound(found: PodVolumes, claim: PersistentVolumeClaim, *, is_ephemeral: bool) -> str:
    volume = found.state.volumes.get(claim.spec.volume_name)
    if volume is None:
        if not is_ephemeral:
            return f'persistentvolume "{claim.spec.volume_name}" not found'
        found.misses_volume = True
        return ""
    found.bound.append(volume)
    if not is_ephemeral:
        for label, value in (volume.metadata.labels or {}).items():
            if label in _GA_LABELS:
                found.zones.append((label, frozenset(value.split("__"))))
    return ""


def _delayed(
    state: VolumeState, key: str, claim: PersistentVolumeClaim, storage_class: StorageClass
) -> _Delayed:
    each = _Delayed(key, claim, storage_class, state.selected_node(key, claim))
    each.to_provision = state.nodes_to_provision(storage_class)
    if each.selected is not None:
        return each
    fits = _matcher(claim)
    of_class = state.volumes_of_class(storage_class.metadata.name)
    volumes = [volume for volume in of_class if fits(volume)]
    own = [volume for volume in volumes if state.is_for(volume, key, claim)]
    # One that was set aside for this claim is taken, or none.
    chosen = own or [volume for volume in volumes if not state.is_taken(volume) and _is_free(claim, volume)]
    chosen.sort(key=lambda volume: (_capacity(volume), volume.metadata.name))
    each.candidates = [(volume, state.nodes_of(volume)) for volume in chosen]
    return each


def _matcher(claim: PersistentVolumeClaim) -> Callable[[PersistentVolume], bool]:
    """Return what a volume must have for this claim, whether it is set aside for it or not."""
    size, mode = _size(claim), claim.spec.volume_mode or "Filesystem"
    attributes = claim.spec.volume_attributes_class_name or ""

    def fits(volume: PersistentVolume) -> bool:
        spec = volume.spec
        return (
            _capacity(volume) >= size
            and (spec.volume_mode or "Filesystem") == mode
            and (spec.volume_attributes_class_name or "") == attributes
            and volume.metadata.deletion_timestamp is None
        )

    return fits


def _is_free(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    selector = claim.spec.selector
    return (
        volume.status.phase == "Available"
        and (selector is None or matches_labels(selector, volume.metadata.labels))
        and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
    )


def _size(claim: PersistentVolumeClaim) -> int:
    return amount_of(STORAGE, (claim.spec.resources.requests or {}).get(STORAGE, 0))


def _capacity(volume: PersistentVolume) -> int:
    return amount_of(STORAGE, (volume.spec.capacity or {}).get(STORAGE, 0))


def _in_zones(zones: Sequence[tuple[str, frozenset[str]]], labels: Labels) -> bool:
    """Return whether a node is in the zones of the volumes; a node that tells no zone is in all of them."""
    if not zones or not any(label in labels for label in _GA_LABELS):
        return True
    return all(labels.get(label, labels.get(_GA_LABELS[label])) in values for label, values in zones)
