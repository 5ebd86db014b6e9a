"""The PodResources socket: tells monitors (DCGM exporter and the like) which container has which devices.

The service is kubelet's, with its DRA part filled; CPUs, memory and device plugins
are not managed here and stay empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc

from dray.api.podspec import RunPod
from dray.api.rpc.generated import podresources_v1_pb2 as messages
from dray.api.rpc.generated import podresources_v1_pb2_grpc as services
from dray.host.files import PRIVATE_FILE
from dray.host.private_files import make_private_folder
from dray.host.sockets import serving_at
from dray.node.claims import ClaimRecords
from dray.node.preparing import container_references


class PodResourcesService:
    """PodResourcesLister over the claim records."""

    def __init__(self, records: ClaimRecords, pods: Callable[[], Iterable[RunPod]]) -> None:
        self._records = records
        self._pods = pods

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802 (gRPC's name)
        """List all active pods."""
        return messages.ListPodResourcesResponse(pod_resources=[self._of(pod) for pod in self._pods()])

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return one pod."""
        for pod in self._pods():
            if (pod.metadata.namespace, pod.metadata.name) == (request.pod_namespace, request.pod_name):
                return messages.GetPodResourcesResponse(pod_resources=self._of(pod))
        await context.abort(
            grpc.StatusCode.NOT_FOUND,
            f"pod {request.pod_name} in namespace {request.pod_namespace} not found",
        )

    async def GetAllocatableResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Nothing: there are no device plugins here."""
        return messages.AllocatableResourcesResponse()

    def _of(self, pod: RunPod) -> Any:
        found = messages.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace)
        for spec in (*pod.spec.init_containers, *pod.spec.containers):
            if spec in pod.spec.init_containers and spec.restart_policy != "Always":
                continue
            container = found.containers.add(name=spec.name)
            for key, request in container_references(pod, spec.name):
                resource = container.dynamic_resources.add(claim_name=key.name, claim_namespace=key.namespace)
                for driver, device in self._records.devices_for(key, request):
                    entry = resource.claim_resources.add(
                        driver_name=driver, pool_name=device.pool, device_name=device.device
                    )
                    entry.cdi_devices.extend(messages.CDIDevice(name=name) for name in device.cdi_device_ids)
                    if device.share_id:
                        entry.share_id = device.share_id
        return found


def serve_pod_resources(
    socket: Path, service: PodResourcesService
) -> contextlib.AbstractAsyncContextManager[None]:
    """Serve for the length of a `with` block; raises SocketTakenError when another process serves there."""

    def make_server() -> Any:
        server = grpc.aio.server()
        services.add_PodResourcesListerServicer_to_server(service, server)
        return server

    make_private_folder(socket.parent)
    # kubelet's socket, too, is for root only: it tells which pod has which device.
    return serving_at(socket, make_server, PRIVATE_FILE)
