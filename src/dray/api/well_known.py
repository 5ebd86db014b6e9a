"""Names that the parts of a cluster agree on: finalizers, annotations, labels, taints, device attributes.

They are Kubernetes' own. A name that only one module uses is defined there.
"""

from __future__ import annotations

from typing import Final

# Finalizers.
CLAIM_FINALIZER: Final = "resource.kubernetes.io/delete-protection"
FOREGROUND_FINALIZER: Final = "foregroundDeletion"
ORPHAN_FINALIZER: Final = "orphan"

# Annotations.
EXTENDED_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"
MIRROR_POD_ANNOTATION: Final = "kubernetes.io/config.mirror"
POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"  # value: name of spec.resourceClaims

# Labels of nodes; those with "beta" are their former names.
ARCH_LABEL: Final = "kubernetes.io/arch"
BETA_ARCH_LABEL: Final = "beta.kubernetes.io/arch"
BETA_OS_LABEL: Final = "beta.kubernetes.io/os"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
OS_LABEL: Final = "kubernetes.io/os"
REGION_LABEL: Final = "topology.kubernetes.io/region"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"

# Labels of other objects.
ADMIN_ACCESS_LABEL: Final = "resource.kubernetes.io/admin-access"  # of a namespace
JOB_CONTROLLER_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"
JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"

# Keys of the taints of nodes.
NOT_READY_KEY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE_KEY: Final = "node.kubernetes.io/unreachable"
UNSCHEDULABLE_KEY: Final = "node.kubernetes.io/unschedulable"

# Attributes of devices that do not belong to one driver.
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"

# Start of the extended resource's name that every device class has; its own name follows.
DEVICE_CLASS_RESOURCE_PREFIX: Final = "deviceclass.resource.kubernetes.io/"

# Extra fields of a service account token's user.
CREDENTIAL_ID_EXTRA: Final = "authentication.kubernetes.io/credential-id"
NODE_NAME_EXTRA: Final = "authentication.kubernetes.io/node-name"

# Where a pod finds the token of its service account.
SERVICE_ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
