"""The sockets of a driver: registration, DRAPlugin v1 and v1beta1, health v1 and v1alpha1.

Both versions of a protocol carry the same meaning in messages of the same shape,
so one servicer serves both; only the module with the generated classes differs.

Two sockets are made. The one in the node's registry directory is found by the
node, which asks it who we are and where the other one is. Its appearance *is* the
registration, so it is opened last and removed first. Both belong to this process
(see `sockets`): a second instance of the same name is refused, and a socket that
somebody removed is opened again, which makes the node register us anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc

from dray.api.rpc import DRA_V1, DRA_V1BETA1, HEALTH_V1, HEALTH_V1ALPHA1, PLUGIN_TYPE, SOCKET_PATH_MAX
from dray.api.rpc.generated import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_v1_pb2,
    registration_v1_pb2_grpc,
)
from dray.driver.contract import HEALTHY, UNHEALTHY, DeviceHealth, DriverError
from dray.driver.preparing import ClaimRef, Preparer, explain_failure
from dray.driver.state import RecordedDevice
from dray.host.sockets import OwnedSocket, SocketLock, SocketTakenError

log = logging.getLogger("dray.driver")

_HEALTH_NUMBERS = {HEALTHY: 1, UNHEALTHY: 2}  # everything else is 0, unknown
_MESSAGE_BYTES = 1024
_LOOK_SECONDS = 1.0  # how often we look whether our sockets are still there


class DraService:
    """DRAPlugin, for the generated classes of one version."""

    def __init__(self, preparer: Preparer, messages: Any, *, has_share_id: bool) -> None:
        self._preparer = preparer
        self._messages = messages
        self._has_share_id = has_share_id

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802 (gRPC's name)
        """Prepare every claim; each has its own outcome."""
        answer = self._messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            outcome = answer.claims[claim.uid]
            try:
                ref = ClaimRef(claim.namespace, claim.name, claim.uid)
                outcome.devices.extend(self._device(device) for device in await self._preparer.prepare(ref))
            except Exception as error:
                outcome.error = explain_failure("prepare", f"{claim.namespace}/{claim.name}", error)
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Unprepare every claim; each has its own outcome."""
        answer = self._messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            outcome = answer.claims[claim.uid]
            try:
                await self._preparer.unprepare(ClaimRef(claim.namespace, claim.name, claim.uid))
            except Exception as error:
                outcome.error = explain_failure("unprepare", f"{claim.namespace}/{claim.name}", error)
        return answer

    def _device(self, device: RecordedDevice) -> Any:
        made = self._messages.Device(
            request_names=[device.request],
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_device_ids,
        )
        if device.share_id and self._has_share_id:
            made.share_id = device.share_id
        return made


class HealthBoard:
    """The last word on every device, for any number of listeners."""

    def __init__(self) -> None:
        self._devices: Sequence[tuple[DeviceHealth, int]] = ()
        self._changed = asyncio.Condition()
        self._round = 0

    async def post(self, devices: Iterable[DeviceHealth], default_pool: str) -> None:
        """Replace the list and wake the listeners."""
        now = int(time.time())
        async with self._changed:
            self._devices = [
                (device if device.pool else _in_pool(device, default_pool), now) for device in devices
            ]
            self._round += 1
            self._changed.notify_all()

    async def follow(self) -> AsyncIterator[Sequence[tuple[DeviceHealth, int]]]:
        """Yield the current list, and every later one."""
        seen = 0
        while True:
            async with self._changed:
                while self._round <= seen:
                    await self._changed.wait()
                seen, devices = self._round, self._devices
            yield devices


def _in_pool(device: DeviceHealth, pool: str) -> DeviceHealth:
    return DeviceHealth(pool, device.device, device.health, device.message, device.valid_seconds)


class HealthService:
    """DRAResourceHealth, for the generated classes of one version."""

    def __init__(self, board: HealthBoard, messages: Any) -> None:
        self._board = board
        self._messages = messages

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Stream the complete list on every change."""
        async for devices in self._board.follow():
            answer = self._messages.NodeWatchResourcesResponse()
            for device, updated in devices:
                entry = answer.devices.add()
                entry.device.pool_name, entry.device.device_name = device.pool, device.device
                entry.health = _HEALTH_NUMBERS.get(device.health, 0)
                entry.last_updated_time = updated
                entry.health_check_timeout_seconds = device.valid_seconds
                entry.message = device.message.encode()[:_MESSAGE_BYTES].decode(errors="ignore")
            yield answer


class RegistrationService:
    """Registration: who we are, where we serve, what we speak."""

    def __init__(
        self, name: str, endpoint: Path, versions: Sequence[str], on_status: Callable[[bool, str], None]
    ) -> None:
        self._info = registration_v1_pb2.PluginInfo(
            type=PLUGIN_TYPE, name=name, endpoint=str(endpoint), supported_versions=versions
        )
        self._on_status = on_status

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Introduce the driver."""
        return self._info

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Hear whether the node took us."""
        self._on_status(request.plugin_registered, request.error)
        return registration_v1_pb2.RegistrationStatusResponse()


class SocketPaths:
    """Where the two sockets are; with an instance id, two instances can serve side by side."""

    def __init__(self, driver: str, data_dir: Path, registry_dir: Path, instance: str = "") -> None:
        self.service = (data_dir / (f"dra-{instance}.sock" if instance else "dra.sock")).absolute()
        self.registration = registry_dir.absolute() / registration_socket_name(
            driver, registry_dir.absolute(), instance
        )
        for path in (self.service, self.registration):
            if len(str(path).encode()) > SOCKET_PATH_MAX:
                raise DriverError(
                    f"socket path {path} is longer than {SOCKET_PATH_MAX} bytes; choose a shorter directory"
                )


def registration_socket_name(driver: str, registry_dir: Path, instance: str) -> str:
    """Return a name that fits into a socket path: readable if possible, hashed if not.

    >>> registration_socket_name("gpu.example.com", Path("/var/lib/kubelet/plugins_registry"), "")
    'gpu.example.com-reg.sock'
    """
    if not instance:
        return f"{driver}-reg.sock"
    short = _hashed(instance.encode(), 8)
    candidates = (
        f"{driver}-{instance}-reg.sock",
        f"{driver}-{short}-reg.sock",
        f"dra-{_hashed(driver.encode() + bytes(1) + instance.encode(), 16)}-reg.sock",
    )
    fitting = (name for name in candidates if len(str(registry_dir / name).encode()) <= SOCKET_PATH_MAX)
    return next(fitting, candidates[-1])


def _hashed(content: bytes, length: int) -> str:
    return urlsafe_b64encode(hashlib.sha256(content).digest()[:length]).rstrip(b"=").decode()


class Serving:
    """Both sockets of one driver, opened and closed together."""

    def __init__(
        self,
        driver: str,
        paths: SocketPaths,
        preparer: Preparer,
        board: HealthBoard | None,  # None: the driver does not report health
    ) -> None:
        self.is_registered = asyncio.Event()
        self.unregistered_since: float | None = time.monotonic()  # None: registered
        self._driver = driver
        self._paths = paths
        self._preparer = preparer
        self._board = board
        self._lock = SocketLock(
            paths.service.with_name(f".{paths.service.name}.lock"),
            hint="stop it, or give each an instance of its own (--instance)",
        )
        self._service = OwnedSocket(paths.service, self._make_service)
        self._registration = OwnedSocket(paths.registration, self._make_registration)
        self._complaint = ""

    def reserve(self) -> None:
        """Make sure that no other instance of the same name runs, or starts; raises SocketTakenError.

        Before anything that two instances must not do at the same time.
        """
        if not self._lock.is_held:
            self._lock.acquire()

    async def start(self) -> None:
        """Open the service, then the registration that points to it."""
        self.reserve()
        try:
            await self._service.open()
            await self._registration.open()
        except BaseException:
            await self.stop()
            raise

    def _make_service(self) -> Any:
        service = grpc.aio.server()
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(
            DraService(self._preparer, dra_v1_pb2, has_share_id=True), service
        )
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(
            DraService(self._preparer, dra_v1beta1_pb2, has_share_id=False), service
        )
        if self._board is not None:
            health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(
                HealthService(self._board, health_v1_pb2), service
            )
            health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(
                HealthService(self._board, health_v1alpha1_pb2), service
            )
        return service

    def _make_registration(self) -> Any:
        versions = [DRA_V1, DRA_V1BETA1]
        if self._board is not None:
            versions += [HEALTH_V1, HEALTH_V1ALPHA1]
        registration = grpc.aio.server()
        registration_v1_pb2_grpc.add_RegistrationServicer_to_server(
            RegistrationService(self._driver, self._paths.service, versions, self._on_status), registration
        )
        return registration

    async def keep_sockets(self) -> None:
        """Open the sockets again whenever they vanish, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._service.is_own and self._registration.is_own:
                self._complaint = ""
                continue
            # The node forgets a plugin whose registration is gone, and a new endpoint needs a new one.
            self._note_unregistered()
            try:
                await self._reopen()
            except (SocketTakenError, OSError) as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    log.error("%s: a socket was lost and cannot be opened again: %s", self._driver, error)

    async def _reopen(self) -> None:
        lost = [each.path for each in (self._service, self._registration) if not each.is_own]
        self._registration.withdraw()
        if not self._service.is_own:
            await self._service.open()
        await self._registration.open()
        log.warning("%s: sockets that were lost are open again: %s", self._driver, ", ".join(map(str, lost)))

    def _note_unregistered(self) -> None:
        self.is_registered.clear()
        if self.unregistered_since is None:
            self.unregistered_since = time.monotonic()

    def _on_status(self, is_registered: bool, error: str) -> None:
        if is_registered:
            log.info("%s: registered with the node", self._driver)
            self.unregistered_since = None
            self.is_registered.set()
        else:
            self._note_unregistered()
            log.error("%s: the node refused the registration: %s", self._driver, error)

    async def stop(self) -> None:
        """Deregister, let running calls finish, close."""
        await self._registration.close()
        await self._service.close()
        self._lock.release()
