"""ComputeDomain and ComputeDomainClique of `resource.nvidia.com/v1beta1`: GPUs of several nodes that share memory.

A ComputeDomain stands for the nodes on which one multi-node workload runs. NVIDIA's DRA driver starts an IMEX
daemon on each of them; daemons on nodes of one NVLink partition (a clique) find each other through a
ComputeDomainClique. Controller, simulated driver and installer agree on the names below; they are those of
kubernetes-sigs/dra-driver-nvidia-gpu (August 2026).
"""

from __future__ import annotations

from typing import Final

import msgspec

from dray.api.meta import ObjectMeta, View

DRIVER: Final = "compute-domain.nvidia.com"
DAEMON_CLASS: Final = "compute-domain-daemon.nvidia.com"
CHANNEL_CLASS: Final = "compute-domain-default-channel.nvidia.com"
CHANNEL: Final = "channel"  # value of the attribute `type`
DAEMON: Final = "daemon"

GROUP: Final = "resource.nvidia.com"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CHANNEL_CONFIG: Final = "ComputeDomainChannelConfig"
DAEMON_CONFIG: Final = "ComputeDomainDaemonConfig"
ALL_CHANNELS: Final = "All"  # allocationMode; the other one is Single
READY: Final = "Ready"
NOT_READY: Final = "NotReady"

NAMESPACE: Final = "dra-driver-nvidia-gpu"  # where the driver is installed, and its daemons run
SERVICE_ACCOUNT: Final = "compute-domain-daemon-service-account"
DOMAIN_LABEL: Final = (
    "resource.nvidia.com/computeDomain"  # value: uid of the ComputeDomain; also the finalizer
)
POD_CLIQUE_LABEL: Final = "resource.nvidia.com/computeDomain.cliqueID"
TARGET_LABEL: Final = "resource.nvidia.com/computeDomainTarget"  # of a claim template
DAEMON_TARGET: Final = "Daemon"
WORKLOAD_TARGET: Final = "Workload"
NODE_CLIQUE_LABEL: Final = "nvidia.com/gpu.clique"  # absent: the node has no NVLink fabric
MAX_NODES: Final = 18  # daemons in one clique; NVL72 has so many trays
MAX_CHANNELS: Final = 2048  # of one node


class TemplateName(View, frozen=True):
    """The ResourceClaimTemplate that the controller makes for the workload."""

    name: str = ""


class ChannelSpec(View, frozen=True):
    """What a pod of the workload gets."""

    resource_claim_template: TemplateName = TemplateName()
    allocation_mode: str = "Single"


class ComputeDomainSpec(View, frozen=True):
    """What is asked for; immutable."""

    num_nodes: int = 0  # only decides when the status says Ready
    channel: ChannelSpec = ChannelSpec()


class DomainNode(View, frozen=True, omit_defaults=False):
    """One node of a ComputeDomain."""

    name: str
    ip_address: str = ""
    clique_id: str = msgspec.field(default="", name="cliqueID")  # empty: no fabric
    index: int = 0  # within the clique; -1 without fabric
    status: str = NOT_READY


class ComputeDomainStatus(View, frozen=True):
    """What came of it."""

    status: str = ""
    nodes: list[DomainNode] = []


class ComputeDomain(View, frozen=True):
    """A ComputeDomain."""

    api_version: str = API_VERSION
    kind: str = "ComputeDomain"
    metadata: ObjectMeta = ObjectMeta()
    spec: ComputeDomainSpec = ComputeDomainSpec()
    status: ComputeDomainStatus = ComputeDomainStatus()


class CliqueDaemon(View, frozen=True, omit_defaults=False):
    """One IMEX daemon of a clique."""

    node_name: str
    ip_address: str = ""
    clique_id: str = msgspec.field(default="", name="cliqueID")
    index: int = 0
    status: str = NOT_READY


class ComputeDomainClique(View, frozen=True):
    """The daemons of one domain in one NVLink partition; named `<uid of the domain>.<clique>`."""

    api_version: str = API_VERSION
    kind: str = "ComputeDomainClique"
    metadata: ObjectMeta = ObjectMeta()
    daemons: list[CliqueDaemon] = []


def clique_name(domain_uid: str, clique: str) -> str:
    """Return the name of the object that holds a domain's daemons in a clique."""
    return f"{domain_uid}.{clique}"
