"""The simulated driver `compute-domain.nvidia.com`: what its kubelet plugin does with channels and daemons.

A channel is handed out in steps, and each failed step is tried again by the node:

    the claim's ComputeDomain is in the claim's namespace  →  the node gets the domain's label
    →  a daemon comes up there (the controller's DaemonSet)  →  the domain calls the node ready  →  prepared

Unpreparing the channel takes the label away, and with it the daemon. A daemon is prepared at once; its container
is told its domain and clique. Device nodes of channels do not exist here: on runtimes with mounts a container sees
plain files in their place.
"""

from __future__ import annotations

from pathlib import Path

from dray.api.cdi import ContainerEdits, Mount
from dray.api.compute_domains import (
    ALL_CHANNELS,
    DOMAIN_LABEL,
    GROUP,
    MAX_CHANNELS,
    NAMESPACE,
    NODE_CLIQUE_LABEL,
    READY,
    VERSION,
    ComputeDomain,
    ComputeDomainClique,
    clique_name,
)
from dray.api.core import Node
from dray.client import Client, ClientError, Conflict, NotFound
from dray.client.resources import NODES, Resource
from dray.driver import AllocatedDevice, ClaimRequest, DriverError, PreparedClaim
from dray.drivers.opaque_configs import OpaqueConfigError
from dray.drivers.opaque_configs.compute_domains import ChannelConfig, DaemonConfig, parse_domain_config
from dray.drivers.simulated import SimulatedDriver

CHANNELS_FOLDER = "/dev/nvidia-caps-imex-channels"
DAEMON_FOLDER = "/imexd"
_DOMAINS = Resource(GROUP, VERSION, "computedomains", "ComputeDomain")
_CLIQUES = Resource(GROUP, VERSION, "computedomaincliques", "ComputeDomainClique")
# What the driver needs beside the rights of every driver.
ACCESS_RULES = (
    {
        "apiGroups": [GROUP],
        "resources": [_DOMAINS.plural, _CLIQUES.plural],
        "verbs": ["get", "list", "watch"],
    },
    {"apiGroups": [""], "resources": [NODES.plural], "verbs": ["get", "patch", "update"]},
)


class ComputeDomainDriver(SimulatedDriver):
    """Channels and daemons of one node."""

    _client: Client | None = None

    def connect(self, client: Client) -> None:
        """Take the driver's access to the API."""
        self._client = client

    @property
    def client(self) -> Client:
        """Return the access to the API; DriverError without it."""
        if self._client is None:
            raise DriverError("ComputeDomains need an API server, and this driver is not connected to one")
        return self._client

    async def apply(self, claim: ClaimRequest, allocated: AllocatedDevice) -> ContainerEdits:
        """Prepare a channel or a daemon."""
        config = _config_of(allocated)
        try:
            if isinstance(config, ChannelConfig):
                return await self._channel(claim, config)
            return await self._daemon(config)
        except NotFound as error:
            raise DriverError(
                f"{error}; is the CustomResourceDefinition of {_DOMAINS.kind} installed?"
            ) from error
        except ClientError as error:
            raise DriverError(f"ComputeDomain {config.domain_id}: {error}") from error

    async def unprepare(self, claim: PreparedClaim) -> None:
        """Take the domain's label off the node when its channel goes."""
        await super().unprepare(claim)
        if not any(device.device.startswith("channel-") for device in claim.devices):
            return
        # The node has one channel, so the label can only be that of the claim's domain.
        node = await self._node()
        if node is not None and DOMAIN_LABEL in (node.metadata.labels or {}):
            await self._set_label(node, None)

    # --- steps ------------------------------------------------------------------------

    async def _channel(self, claim: ClaimRequest, config: ChannelConfig) -> ContainerEdits:
        domain = await self._domain(config.domain_id)
        if domain.metadata.namespace != claim.namespace:
            raise DriverError(
                "error asserting ComputeDomain's namespace: "
                "the ResourceClaim's namespace is different than the ComputeDomain's namespace"
            )
        node = await self._node()
        if node is None:
            raise DriverError(f"node {self.model.node_name} does not exist")
        labels = node.metadata.labels or {}
        if labels.get(DOMAIN_LABEL, config.domain_id) != config.domain_id:
            raise DriverError(
                "error adding Node label for ComputeDomain: label already exists for a different ComputeDomain"
            )
        if DOMAIN_LABEL not in labels:
            await self._set_label(node, config.domain_id)
        clique = labels.get(NODE_CLIQUE_LABEL, "")
        if not await self._is_ready(domain, clique):
            raise DriverError(
                "error asserting ComputeDomain Ready: current node not ready in ComputeDomain "
                f"{domain.metadata.namespace}/{domain.metadata.name}"
            )
        if not clique:
            return ContainerEdits()  # without fabric there are no channels
        count = MAX_CHANNELS if config.allocation_mode == ALL_CHANNELS else 1
        return ContainerEdits(env=[f"DRAY_IMEX_CHANNELS={count}"], mounts=self._channel_files(count))

    async def _daemon(self, config: DaemonConfig) -> ContainerEdits:
        domain, node = await self._domain(config.domain_id), await self._node()
        labels = (node.metadata.labels or {}) if node is not None else {}
        variables = {
            "CLIQUE_ID": labels.get(NODE_CLIQUE_LABEL, ""),
            "COMPUTE_DOMAIN_UUID": domain.metadata.uid,
            "COMPUTE_DOMAIN_NAME": domain.metadata.name,
            "COMPUTE_DOMAIN_NAMESPACE": domain.metadata.namespace,
            "NVIDIA_VISIBLE_DEVICES": "void",
        }
        mounts = []
        if self.folder is not None:
            own = self.folder / "domains" / domain.metadata.uid
            own.mkdir(parents=True, exist_ok=True)
            mounts.append(_bind(own, DAEMON_FOLDER))
        return ContainerEdits(env=[f"{name}={value}" for name, value in variables.items()], mounts=mounts)

    async def _domain(self, uid: str) -> ComputeDomain:
        domains = (await self.client.list(_DOMAINS, view=ComputeDomain)).items
        found = next((domain for domain in domains if domain.metadata.uid == uid), None)
        if found is None:
            raise DriverError(f"ComputeDomain not found: {uid}")
        return found

    async def _is_ready(self, domain: ComputeDomain, clique: str) -> bool:
        """Return whether the daemon of this node serves: by its clique, or (without fabric) by the status."""
        name = self.model.node_name
        if clique:
            try:
                found = await self.client.get(
                    _CLIQUES, clique_name(domain.metadata.uid, clique), NAMESPACE, view=ComputeDomainClique
                )
            except NotFound:
                return False
            return any(each.node_name == name and each.status == READY for each in found.daemons)
        return any(each.name == name and each.status == READY for each in domain.status.nodes)

    async def _node(self) -> Node | None:
        assert self.model.node_name is not None  # channels belong to nodes
        try:
            return await self.client.get(NODES, self.model.node_name, view=Node)
        except NotFound:
            return None

    async def _set_label(self, node: Node, domain: str | None) -> None:
        meta = node.metadata
        patch = {"metadata": {"resourceVersion": meta.resource_version, "labels": {DOMAIN_LABEL: domain}}}
        try:
            await self.client.patch(NODES, meta.name, patch)
        except Conflict as error:
            raise DriverError(f"node {meta.name} changed meanwhile: {error}") from error

    def _channel_files(self, count: int) -> list[Mount]:
        if self.folder is None:
            return []
        folder = self.folder / ("all-channels" if count > 1 else "channel-0")
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (folder / f"channel{number}").touch()
        return [_bind(folder, CHANNELS_FOLDER)]


def _bind(host: Path, container: str) -> Mount:
    return Mount(
        host_path=str(host.absolute()),
        container_path=container,
        options=["rw", "nosuid", "nodev", "bind"],
    )


def _config_of(allocated: AllocatedDevice) -> ChannelConfig | DaemonConfig:
    """Return the config of a device: the last one of its kind, because claims come after classes."""
    wanted = ChannelConfig if allocated.device.startswith("channel-") else DaemonConfig
    configs = [parse_domain_config(config.parameters) for config in allocated.configs]
    found = next((config for config in reversed(configs) if isinstance(config, wanted)), None)
    if found is not None:
        return found
    if configs:
        raise OpaqueConfigError(f"cannot apply {configs[-1].kind} to request: {allocated.request}", "kind")
    raise OpaqueConfigError("error validating config: domainID cannot be empty")
