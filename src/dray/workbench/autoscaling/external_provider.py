"""Serve node groups to the Kubernetes cluster-autoscaler, by its protocol for providers in other processes.

cluster-autoscaler (started with --cloud-provider=externalgrpc) decides, and calls; this service only answers and changes the
sizes of the groups, through the same `NodeGroups` as our own controller. What upstream expects and is easily missed:

  * an instance's id equals the node's spec.providerID;
  * the answer of NodeGroupNodes lists machines that have not joined yet, too;
  * NodeGroupDeleteNodes returns when the target size is lower, not when the machines are gone;
  * a node that belongs to no group is answered with a group without id, not with an error;
  * a machine that has not joined is asked for, and removed, by a node that upstream makes up: only its provider id is true.

A template carries the node, and its ResourceSlices in a field that exists upstream since after 1.36: older versions pass it over
and cannot scale up from zero for pods with claims, because they do not know which devices a new node would have.

The calls create and delete machines. Without TLS the service listens on loopback addresses only.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec

from dray.api.core import Node
from dray.api.kinds import RESOURCE
from dray.api.resource import ResourceSlice
from dray.api.rpc.generated import cluster_autoscaler_v1_pb2 as messages
from dray.api.rpc.generated import cluster_autoscaler_v1_pb2_grpc as service
from dray.api.schema import schema_of
from dray.server.requests import encode_message
from dray.sim.machines import CREATING, DELETING, FAILED, RUNNING, Instance
from dray.workbench.autoscaling.node_groups import GroupState, NodeGroup, NodeGroupError, NodeGroups

log = logging.getLogger("dray.autoscale")

TEMPLATE_NAME: Final = "template"
_MOST_CALLS: Final = 64  # at a time
_MOST_BYTES: Final = 4 << 20  # of one call
_OTHER_ERROR: Final = 99  # upstream's class of errors that are neither of quota nor of resources
_STATES: Final = {
    RUNNING: messages.InstanceStatus.RUNNING,
    CREATING: messages.InstanceStatus.CREATING,
    DELETING: messages.InstanceStatus.DELETING,
    FAILED: messages.InstanceStatus.CREATING,  # with an error: the caller then removes it
}


class AddressRefused(ValueError):
    """An address that must not be listened on; the message says why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate and key of the service, and the CA of those who may call."""

    certificate: Path
    key: Path
    client_ca: Path


class ExternalProvider(service.CloudProviderServicer):  # type: ignore[misc]  # generated, without types
    """Answers the calls of cluster-autoscaler."""

    def __init__(self, groups: NodeGroups) -> None:
        self._groups = groups

    # --- groups -------------------------------------------------------------------

    async def NodeGroups(self, _request: Any, _context: Any) -> Any:
        """Return all groups."""
        found = [_group(state.group) for state in self._groups.states()]
        return messages.NodeGroupsResponse(node_groups=found)

    async def NodeGroupForNode(self, request: Any, _context: Any) -> Any:
        """Return the group of a node."""
        group = self._groups.group_of(self._name_of(request.node))
        return messages.NodeGroupForNodeResponse(
            node_group=_group(group) if group is not None else messages.NodeGroup()
        )

    async def NodeGroupTargetSize(self, request: Any, context: Any) -> Any:
        """Return how many nodes a group is to have."""
        state = await self._state(request.id, context)
        return messages.NodeGroupTargetSizeResponse(target_size=state.size)

    async def NodeGroupNodes(self, request: Any, context: Any) -> Any:
        """Return the machines of a group, those among them that have not joined yet."""
        state = await self._state(request.id, context)
        return messages.NodeGroupNodesResponse(instances=[_instance(each) for each in state.instances])

    async def NodeGroupTemplateNodeInfo(self, request: Any, context: Any) -> Any:
        """Return what a new node of a group would be, and what its drivers would publish."""
        state = await self._state(request.id, context)
        node, slices = state.group.instance(f"{TEMPLATE_NAME}-{state.group.name}")
        return messages.NodeGroupTemplateNodeInfoResponse(
            node_bytes=_encoded("", "v1", "Node", node),
            resource_slice_bytes=[_encoded(RESOURCE, "v1", "ResourceSlice", each) for each in slices],
        )

    def _name_of(self, node: Any) -> str:
        """Return the name of a node; of a machine that has not joined the caller knows the id alone, and makes up a name."""
        return self._groups.name_of(node.provider_id) or str(node.name)

    async def _state(self, name: str, context: Any) -> GroupState:
        try:
            return self._groups.state(name)
        except NodeGroupError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise

    # --- sizes --------------------------------------------------------------------

    async def NodeGroupIncreaseSize(self, request: Any, context: Any) -> Any:
        """Add nodes to a group."""
        names = await self._change(context, lambda: self._groups.increase(request.id, request.delta))
        log.info("%s: cluster-autoscaler asked for %d more: %s", request.id, request.delta, ", ".join(names))
        return messages.NodeGroupIncreaseSizeResponse()

    async def NodeGroupDeleteNodes(self, request: Any, context: Any) -> Any:
        """Remove nodes of a group; returns before they are gone."""
        names = [self._name_of(node) for node in request.nodes]
        await self._change(context, lambda: self._groups.delete(request.id, names))
        log.info("%s: cluster-autoscaler removed %s", request.id, ", ".join(names))
        return messages.NodeGroupDeleteNodesResponse()

    async def NodeGroupDecreaseTargetSize(self, request: Any, context: Any) -> Any:
        """Take back machines that have not joined yet."""
        await self._change(context, lambda: self._groups.decrease_target(request.id, request.delta))
        log.info("%s: cluster-autoscaler took back %d", request.id, -request.delta)
        return messages.NodeGroupDecreaseTargetSizeResponse()

    @staticmethod
    async def _change(context: Any, change: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await change()
        except NodeGroupError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise

    # --- the rest -----------------------------------------------------------------

    async def PricingNodePrice(self, request: Any, context: Any) -> Any:
        """Return what a node costs from one moment to another, by the catalogue's price per hour."""
        group = self._groups.group_of(self._name_of(request.node)) or self._of_template(request.node.name)
        if group is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"node {request.node.name} belongs to no node group"
            )
            raise AssertionError
        seconds = request.end_timestamp.seconds - request.start_timestamp.seconds
        return messages.PricingNodePriceResponse(price=group.node_type.price * max(0, seconds) / 3600)

    def _of_template(self, name: str) -> NodeGroup | None:
        """Return the group whose template has this name: the caller asks for its price before a node exists."""
        return next(
            (
                state.group
                for state in self._groups.states()
                if name.startswith(f"{TEMPLATE_NAME}-{state.group.name}")
            ),
            None,
        )

    async def GPULabel(self, _request: Any, _context: Any) -> Any:
        """Return no label: devices are published in ResourceSlices, not as labels."""
        return messages.GPULabelResponse()

    async def GetAvailableGPUTypes(self, _request: Any, _context: Any) -> Any:
        """Return no types, for the same reason."""
        return messages.GetAvailableGPUTypesResponse()

    async def Refresh(self, _request: Any, _context: Any) -> Any:
        """Do nothing: every answer is read from the machines."""
        return messages.RefreshResponse()

    async def Cleanup(self, _request: Any, _context: Any) -> Any:
        """Do nothing: machines outlive the caller."""
        return messages.CleanupResponse()

    async def NodeGroupGetOptions(self, _request: Any, context: Any) -> Any:
        """Refuse, as the protocol allows: the caller then uses its own flags."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "groups have no options of their own")

    async def PricingPodPrice(self, _request: Any, context: Any) -> Any:
        """Refuse, as the protocol allows: a pod has no price here."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "pods have no price")


def _group(group: NodeGroup) -> Any:
    return messages.NodeGroup(
        id=group.name,
        min_size=group.least,
        max_size=group.most,
        debug=f"{group.name}: {group.least} to {group.most} nodes of type {group.node_type.name}",
    )


def _instance(each: Instance) -> Any:
    status = messages.InstanceStatus(instance_state=_STATES[each.state])
    if each.state == FAILED:
        status.error_info.CopyFrom(
            messages.InstanceErrorInfo(
                error_code="StartFailed", error_message=each.message[:1024], instance_error_class=_OTHER_ERROR
            )
        )
    return messages.Instance(id=each.provider_id, status=status)


def _encoded(group: str, version: str, kind: str, view: Node | ResourceSlice) -> bytes:
    return encode_message(schema_of(group, version, kind), msgspec.to_builtins(view))


async def serve_provider(
    groups: NodeGroups, address: str, tls: TlsFiles | None = None, *, interceptors: Sequence[Any] = ()
) -> tuple[Any, int]:
    """Serve until the returned server is stopped; returns it and its port. Raises AddressRefused and OSError."""
    server = grpc.aio.server(
        interceptors=interceptors,
        maximum_concurrent_rpcs=_MOST_CALLS,
        options=[("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.so_reuseport", 0)],
    )
    service.add_CloudProviderServicer_to_server(ExternalProvider(groups), server)
    try:
        if tls is None:
            _refuse_others(address)
            port = server.add_insecure_port(address)
        else:
            pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
            credentials = grpc.ssl_server_credentials(
                [pair], root_certificates=tls.client_ca.read_bytes(), require_client_auth=True
            )
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise AddressRefused(f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise AddressRefused(f"cannot listen on {address}")
    await server.start()
    return server, port


def _refuse_others(address: str) -> None:
    """Raise AddressRefused unless only this machine can reach the address."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise AddressRefused(
            f"without TLS only a loopback address is served, not {address}: whoever calls can delete nodes"
        )
