"""Views of storage objects: what a scheduler reads of volumes, their claims, classes and drivers.

PersistentVolumeClaim and PersistentVolume are of the core group, the others of storage.k8s.io. Views, not models: decoding keeps
what decisions need and skips the rest (see `meta`). To change such an object, patch it.
"""

from __future__ import annotations

from dray.api.core import ResourceList
from dray.api.meta import LabelSelector, NodeSelector, ObjectMeta, View
from dray.api.resource import QuantityValue

# --- claims ---------------------------------------------------------------------


class VolumeResources(View, frozen=True):
    """How much storage a claim asks for."""

    requests: ResourceList | None = None


class PersistentVolumeClaimSpec(View, frozen=True):
    """What volume is wanted, or which one it is bound to."""

    access_modes: list[str] = []
    selector: LabelSelector | None = None
    resources: VolumeResources = VolumeResources()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None  # None means: Filesystem
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimStatus(View, frozen=True):
    """What became of the claim."""

    phase: str = ""  # Pending, Bound, Lost


class PersistentVolumeClaim(View, frozen=True):
    """A request for storage."""

    api_version: str = "v1"
    kind: str = "PersistentVolumeClaim"
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


# --- volumes --------------------------------------------------------------------


class ClaimReference(View, frozen=True):
    """The claim that a volume is for; without a uid an administrator has set it aside for that name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeNodeAffinity(View, frozen=True):
    """From which nodes a volume can be reached."""

    required: NodeSelector | None = None


class CSIVolume(View, frozen=True):
    """A volume of a CSI driver."""

    driver: str = ""
    volume_handle: str = ""


class PersistentVolumeSpec(View, frozen=True):
    """A piece of storage."""

    capacity: ResourceList | None = None
    access_modes: list[str] = []
    claim_ref: ClaimReference | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None  # None means: Filesystem
    volume_attributes_class_name: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolume | None = None


class PersistentVolumeStatus(View, frozen=True):
    """What became of the volume."""

    phase: str = ""  # Pending, Available, Bound, Released, Failed


class PersistentVolume(View, frozen=True):
    """A volume of the cluster."""

    api_version: str = "v1"
    kind: str = "PersistentVolume"
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


# --- storage.k8s.io -------------------------------------------------------------


class TopologySelectorRequirement(View, frozen=True):
    """A label of the node must have one of these values."""

    key: str = ""
    values: list[str] = []


class TopologySelectorTerm(View, frozen=True):
    """Requirements joined by AND; a term without any matches nothing."""

    match_label_expressions: list[TopologySelectorRequirement] = []


class StorageClass(View, frozen=True):
    """How volumes of a class are made, and when they are bound."""

    api_version: str = "storage.k8s.io/v1"
    kind: str = "StorageClass"
    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str | None = None  # Immediate, WaitForFirstConsumer
    allowed_topologies: list[TopologySelectorTerm] = []


class CSINodeAllocatable(View, frozen=True):
    """How many volumes of a driver a node takes."""

    count: int | None = None


class CSINodeDriver(View, frozen=True):
    """A CSI driver that is installed on a node."""

    name: str = ""
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(View, frozen=True):
    """The CSI drivers of a node."""

    drivers: list[CSINodeDriver] = []


class CSINode(View, frozen=True):
    """What a node says of its CSI drivers; it has the node's name."""

    api_version: str = "storage.k8s.io/v1"
    kind: str = "CSINode"
    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(View, frozen=True):
    """What a CSI driver wants of the cluster."""

    storage_capacity: bool | None = None  # it publishes CSIStorageCapacity objects
    prevent_pod_scheduling_if_missing: bool | None = None  # only nodes that have the driver


class CSIDriver(View, frozen=True):
    """A CSI driver."""

    api_version: str = "storage.k8s.io/v1"
    kind: str = "CSIDriver"
    metadata: ObjectMeta = ObjectMeta()
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(View, frozen=True):
    """How much storage of a class can be made for some of the nodes."""

    api_version: str = "storage.k8s.io/v1"
    kind: str = "CSIStorageCapacity"
    metadata: ObjectMeta = ObjectMeta()
    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: QuantityValue | None = None
    maximum_volume_size: QuantityValue | None = None


class VolumeAttachmentSource(View, frozen=True):
    """Which volume is attached."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(View, frozen=True):
    """That a volume is to be attached to a node."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(View, frozen=True):
    """A volume that is attached to a node, or about to be."""

    api_version: str = "storage.k8s.io/v1"
    kind: str = "VolumeAttachment"
    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


__all__ = [
    "CSIDriver",
    "CSINode",
    "CSIStorageCapacity",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "VolumeAttachment",
]
