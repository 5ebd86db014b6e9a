"""Volumes in the snapshot: claims, volumes, classes and CSI drivers, and which nodes can be reached from them.

Theory of operation. `VolumeState` keeps the storage objects and what is derived from them: the volumes of each class, the nodes of each selector (as
a set, until a node changes), how many pods use each claim, and what decisions under way have reserved. `volume_matching` gathers
the claims of one pod into `PodVolumes`, which is asked for the nodes, the reason of a refusal, and what must be written when a node is chosen.

Invariant (tests/unit/scheduler/test_scheduler_volumes.py): `release` undoes `reserve`; a volume is never promised to two claims.

What is not done: volumes of in-tree cloud plug-ins are not translated to their CSI drivers, so their limits do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from dray.api.label_selectors import matches_labels
from dray.api.meta import NodeSelector
from dray.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologySelectorTerm,
    VolumeAttachment,
)
from dray.api.well_known import HOSTNAME_LABEL
from dray.scheduler.amounts import amount_of
from dray.scheduler.queue import Hint
from dray.scheduler.selecting import Labels, matches_node
from dray.scheduler.state import ClusterState, NodeState, PodUse

VOLUMES: Final[Hint] = "volumes"  # a volume, class or CSI driver came or changed

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"  # annotation: make the volume for this node
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"  # annotation of a claim that is bound for good
BOUND_BY_CONTROLLER: Final = (
    "pv.kubernetes.io/bound-by-controller"  # annotation: not an administrator's choice
)
_BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"  # annotation, former name of storageClassName
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
STORAGE: Final = "storage"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class VolumeBindings:
    """What must be written for a pod's volumes before it is bound. Falsy when nothing must."""

    matches: tuple[tuple[str, str], ...] = ()  # (claim key, volume) to bind to each other
    provisions: tuple[str, ...] = ()  # keys of claims whose volume is to be made for the node

    def __bool__(self) -> bool:
        return bool(self.matches or self.provisions)


NO_BINDINGS: Final = VolumeBindings()


class VolumeState:
    """Storage objects and what pods and decisions take of them; updated change by change."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        # False: storage is not followed (files without any), and the volumes of pods are not judged.
        self.is_followed = False
        self.claims: dict[str, PersistentVolumeClaim] = {}  # by namespace/name
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.csi_nodes: dict[str, CSINode] = {}
        self.csi_drivers: dict[str, CSIDriver] = {}
        self.capacities: dict[str, CSIStorageCapacity] = {}  # by namespace/name
        self.attachments: dict[str, VolumeAttachment] = {}
        self._volumes_by_class: dict[str, dict[str, PersistentVolume]] = {}
        self._attached: dict[str, set[str]] = {}  # node -> names of attachments
        self._users: dict[str, int] = {}  # claim key -> pods on nodes that use it
        self._claims_on_node: dict[str, dict[str, int]] = {}  # node -> claim key -> pods
        self._nodes_by_selector: dict[bytes, int] = {}  # until a node changes
        self._nodes_by_hostname: dict[str, list[NodeState]] = {}  # until a node changes
        self._limits: dict[str, dict[str, int]] = {}  # node -> CSI driver -> volumes
        self._reserved: dict[str, tuple[str, VolumeBindings]] = {}  # pod uid -> node, what is being written
        self._promised: dict[str, str] = {}  # volume -> claim key, of what is reserved
        self._selected: dict[str, str] = {}  # claim key -> node, of what is reserved
        state.listeners.append(self._count)
        state.node_listeners.append(self._node_changed)

    # --- objects ------------------------------------------------------------------

    def set_volume(self, volume: PersistentVolume) -> None:
        """Add or replace a volume."""
        self.delete_volume(volume.metadata.name)
        self.volumes[volume.metadata.name] = volume
        self._volumes_by_class.setdefault(class_of_volume(volume), {})[volume.metadata.name] = volume

    def delete_volume(self, name: str) -> None:
        """Forget a volume."""
        before = self.volumes.pop(name, None)
        if before is not None:
            of_class = self._volumes_by_class[class_of_volume(before)]
            del of_class[name]
            if not of_class:
                del self._volumes_by_class[class_of_volume(before)]

    def set_csi_node(self, csi_node: CSINode) -> None:
        """Add or replace what a node says of its CSI drivers."""
        name = csi_node.metadata.name
        self.csi_nodes[name] = csi_node
        limits = {
            each.name: each.allocatable.count
            for each in csi_node.spec.drivers
            if each.allocatable is not None and each.allocatable.count is not None
        }
        self._limits.pop(name, None)
        if limits:
            self._limits[name] = limits

    def delete_csi_node(self, name: str) -> None:
        """Forget the CSI drivers of a node."""
        self.csi_nodes.pop(name, None)
        self._limits.pop(name, None)

    def set_attachment(self, attachment: VolumeAttachment) -> None:
        """Add or replace an attachment."""
        self.delete_attachment(attachment.metadata.name)
        self.attachments[attachment.metadata.name] = attachment
        self._attached.setdefault(attachment.spec.node_name, set()).add(attachment.metadata.name)

    def delete_attachment(self, name: str) -> None:
        """Forget an attachment."""
        before = self.attachments.pop(name, None)
        if before is not None:
            names = self._attached[before.spec.node_name]
            names.discard(name)
            if not names:
                del self._attached[before.spec.node_name]

    def _count(self, use: PodUse, sign: int) -> None:
        for name, _ in use.shape.volumes:
            key = f"{use.namespace}/{name}"
            for counts in (self._users, self._claims_on_node.setdefault(use.node, {})):
                counts[key] = counts.get(key, 0) + sign
                if not counts[key]:
                    del counts[key]
            if not self._claims_on_node[use.node]:
                del self._claims_on_node[use.node]

    def _node_changed(self, _: NodeState) -> None:
        self._nodes_by_selector.clear()
        self._nodes_by_hostname.clear()

    # --- what decisions under way take ----------------------------------------------

    def reserve(self, uid: str, node: str, bindings: VolumeBindings) -> None:
        """Let later decisions see which volumes a pod takes, and where others are made."""
        if bindings:
            self._reserved[uid] = (node, bindings)
            self._index_reserved()

    def release(self, uid: str) -> bool:
        """End the reservation of a pod, if there is one."""
        if self._reserved.pop(uid, None) is None:
            return False
        self._index_reserved()
        return True

    def _index_reserved(self) -> None:
        """Derive the two maps anew: there are as many reservations as commits under way, a few."""
        self._promised = {
            volume: claim for _, bindings in self._reserved.values() for claim, volume in bindings.matches
        }
        self._selected = {
            claim: node for node, bindings in self._reserved.values() for claim in bindings.provisions
        }

    def selected_node(self, key: str, claim: PersistentVolumeClaim) -> str | None:
        """Return the node for which the claim's volume is being made."""
        return self._selected.get(key) or (claim.metadata.annotations or {}).get(SELECTED_NODE)

    # --- questions ------------------------------------------------------------------

    def is_used(self, key: str) -> bool:
        """Return whether a pod on a node uses the claim."""
        return key in self._users

    def volumes_of_class(self, name: str) -> Iterator[PersistentVolume]:
        """Yield the volumes of a class."""
        yield from self._volumes_by_class.get(name, {}).values()

    def is_for(self, volume: PersistentVolume, key: str, claim: PersistentVolumeClaim) -> bool:
        """Return whether the volume is set aside for the claim, on the server or by a decision."""
        promised = self._promised.get(volume.metadata.name)
        if promised is not None:
            return promised == key
        reference = volume.spec.claim_ref
        return (
            reference is not None
            and (reference.namespace, reference.name) == (claim.metadata.namespace, claim.metadata.name)
            and (not reference.uid or reference.uid == claim.metadata.uid)
        )

    def is_taken(self, volume: PersistentVolume) -> bool:
        """Return whether the volume is set aside for some claim."""
        return volume.spec.claim_ref is not None or volume.metadata.name in self._promised

    def nodes_of(self, volume: PersistentVolume) -> int:
        """Return the nodes from which the volume can be reached; only their labels count."""
        affinity = volume.spec.node_affinity
        required = affinity.required if affinity is not None else None
        if required is None:
            return self.state.all_nodes
        return self._matching(required)

    def _matching(self, selector: NodeSelector) -> int:
        key = _encode(selector)
        found = self._nodes_by_selector.get(key)
        if found is None:
            found = sum(
                node.bit for node in self._pinned(selector) if matches_node(selector, "", node.labels)
            )
            self._nodes_by_selector[key] = found
        return found

    def _pinned(self, selector: NodeSelector) -> Iterable[NodeState]:
        """Return the only nodes that a selector can match, where it pins them by hostname, as local volumes do; else all."""
        names: set[str] = set()
        for term in selector.node_selector_terms:
            pins = [
                need.values
                for need in term.match_expressions
                if need.key == HOSTNAME_LABEL and need.operator == "In"
            ]
            if not pins:
                return self.state.nodes.values()
            names.update(pins[0])
        if not self._nodes_by_hostname:
            for node in self.state.nodes.values():
                self._nodes_by_hostname.setdefault(node.labels.get(HOSTNAME_LABEL, ""), []).append(node)
        return [node for name in names for node in self._nodes_by_hostname.get(name, ())]

    def nodes_to_provision(self, storage_class: StorageClass) -> int:
        """Return the nodes for which volumes of the class can be made, capacity aside."""
        if storage_class.provisioner in ("", NO_PROVISIONER):
            return 0
        terms = storage_class.allowed_topologies
        if not terms:
            return self.state.all_nodes
        key = b"topology" + _encode(terms)
        found = self._nodes_by_selector.get(key)
        if found is None:
            found = sum(node.bit for node in self.state.nodes.values() if _in_topology(terms, node.labels))
            self._nodes_by_selector[key] = found
        return found

    def has_capacity(
        self, storage_class: StorageClass, claim: PersistentVolumeClaim, node: NodeState
    ) -> bool:
        """Return whether the driver of the class can make a volume of this size for the node; many do not say."""
        size = (claim.spec.resources.requests or {}).get(STORAGE)
        if size is None or not self.publishes_capacity(storage_class):
            return True
        wanted = amount_of(STORAGE, size)
        for each in self.capacities.values():
            limit = each.maximum_volume_size if each.maximum_volume_size is not None else each.capacity
            if (
                each.storage_class_name == storage_class.metadata.name
                and limit is not None
                and amount_of(STORAGE, limit) >= wanted
                and matches_labels(each.node_topology, node.labels)
            ):
                return True
        return False

    def publishes_capacity(self, storage_class: StorageClass) -> bool:
        """Return whether the driver of the class publishes how much it can make."""
        driver = self.csi_drivers.get(storage_class.provisioner)
        return driver is not None and bool(driver.spec.storage_capacity)

    # --- limits of CSI drivers --------------------------------------------------------

    def csi_volume(self, key: str) -> tuple[str, str] | None:
        """Return driver and handle of a claim's volume; one that is not made yet counts under the claim's name."""
        claim = self.claims.get(key)
        if claim is None:
            return None
        volume = self.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            csi = volume.spec.csi
            return (csi.driver, csi.volume_handle) if csi is not None else None
        storage_class = self.classes.get(class_of_claim(claim))
        return (storage_class.provisioner, f"claim {key}") if storage_class is not None else None

    def drivers_matter(self, drivers: set[str]) -> bool:
        """Return whether some node limits the volumes of these drivers, or lacks one that must be there."""
        return any(not drivers.isdisjoint(limits) for limits in self._limits.values()) or any(
            self._must_be_installed(driver) for driver in drivers
        )

    def _must_be_installed(self, name: str) -> bool:
        driver = self.csi_drivers.get(name)
        return driver is not None and bool(driver.spec.prevent_pod_scheduling_if_missing)

    def driver_refusal(self, node: str, wanted: set[tuple[str, str]]) -> str | None:
        """Return why the node does not take these further CSI volumes (driver, handle)."""
        csi_node = self.csi_nodes.get(node)
        installed = {each.name for each in csi_node.spec.drivers} if csi_node is not None else set()
        for driver in sorted({driver for driver, _ in wanted}):
            if self._must_be_installed(driver) and driver not in installed:
                return f"{driver} CSI driver is not installed on the node"
        limits = self._limits.get(node)
        if not limits:
            return None
        there = {found for key in self._claims_on_node.get(node, ()) if (found := self.csi_volume(key))}
        there |= {found for name in self._attached.get(node, ()) if (found := self._attached_volume(name))}
        after = there | wanted
        for driver in {driver for driver, _ in wanted - there}:
            if driver in limits and sum(each == driver for each, _ in after) > limits[driver]:
                return "node(s) exceed max volume count"
        return None

    def _attached_volume(self, name: str) -> tuple[str, str] | None:
        source = self.attachments[name].spec.source.persistent_volume_name
        volume = self.volumes.get(source) if source else None
        csi = volume.spec.csi if volume is not None else None
        return (csi.driver, csi.volume_handle) if csi is not None else None


def class_of_claim(claim: PersistentVolumeClaim) -> str:
    """Return the name of the claim's storage class, empty when it has none."""
    old = (claim.metadata.annotations or {}).get(_BETA_CLASS)
    return old if old is not None else claim.spec.storage_class_name or ""


def class_of_volume(volume: PersistentVolume) -> str:
    """Return the name of the volume's storage class, empty when it has none."""
    old = (volume.metadata.annotations or {}).get(_BETA_CLASS)
    return old if old is not None else volume.spec.storage_class_name


def is_fully_bound(claim: PersistentVolumeClaim) -> bool:
    """Return whether the claim has its volume for good."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in (claim.metadata.annotations or {})


def _in_topology(terms: list[TopologySelectorTerm], labels: Labels) -> bool:
    return any(
        term.match_label_expressions
        and all(labels.get(need.key) in need.values for need in term.match_label_expressions)
        for term in terms
    )
