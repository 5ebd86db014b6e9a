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

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
RUN_MANAGER: Final = "dray-run"  # of the pods of `dray run`

# Start of the name of the lease that a scheduler of dray holds; the name that pods choose it by (spec.schedulerName) follows.
SCHEDULER_LEASE_PREFIX: Final = "dray-scheduler-"

# Jobs: what `dray run` writes, and who comes first.
AFTER_ANNOTATION: Final = "dray.dev/after"  # of a pod: the pod of its namespace that must have ended first
AFTER_GATE: Final = "dray.dev/after"  # the scheduling gate that keeps it from being placed meanwhile
LOW_PRIORITY_CLASS: Final = "dray-low"
HIGH_PRIORITY_CLASS: Final = "dray-high"

# Characters of the random endings of generated names: no vowels, so no words come about.
NAME_CHARACTERS: Final = "bcdfghjklmnpqrstvwxz2456789"

# Phases of pods that have ended: no container of theirs runs, or will run again.
TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})

# Keys of the taints of nodes.
NOT_READY_KEY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE_KEY: Final = "node.kubernetes.io/unreachable"
UNSCHEDULABLE_KEY: Final = "node.kubernetes.io/unschedulable"

# Attributes of devices that do not belong to one driver.
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"

# What dray's nodes declare in status.declaredFeatures: gates of Kubernetes whose meaning for nodes they keep whether the
# cluster has them or not. They skip what an allocation says to skip, and never refuse a pod for CPU or memory, which the
# scheduler has charged to its claims.
# The first is dray's own gate (see `features`): claims come and go while a pod runs.
NODE_FEATURES: Final = (
    "DRADevicesAfterPodStart",
    "DRANodeAllocatableResources",
    "DRAOptionalNodeOperations",
)
# Set by the driver SDK on each device that a running pod can be given: its driver declares it.
ATTACHABLE_ATTRIBUTE: Final = "dray.dev/attachable"
# Condition of a pod whose claims changed while it ran: whether its node has prepared those that it has now.
CLAIMS_PREPARED: Final = "dray.dev/ClaimsPrepared"
# Annotation of a pod, "true": on a node whose runtime is runc it has a network namespace without a network claim.
OWN_NETWORK_ANNOTATION: Final = "dray.dev/own-network"

# Start of the extended resource's name that every device class has; its own name follows.
DEVICE_CLASS_RESOURCE_PREFIX: Final = "deviceclass.resource.kubernetes.io/"

# Extra fields of a service account token's user.
CREDENTIAL_ID_EXTRA: Final = "authentication.kubernetes.io/credential-id"
NODE_NAME_EXTRA: Final = "authentication.kubernetes.io/node-name"

# Where a pod finds the token of its service account.
SERVICE_ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


def well_known_labels(node: str, arch: str) -> dict[str, str]:
    """Return the labels that kubelet gives every node on Linux."""
    return {
        HOSTNAME_LABEL: node,
        OS_LABEL: "linux",
        ARCH_LABEL: arch,
        BETA_OS_LABEL: "linux",
        BETA_ARCH_LABEL: arch,
    }


# Words that no name in an expression may be.
CEL_RESERVED: Final = frozenset(
    {
        "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let",
        "loop", "namespace", "null", "package", "return", "true", "var", "void", "while",
    }
)  # fmt: skip
