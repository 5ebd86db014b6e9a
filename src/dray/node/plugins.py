"""The drivers on this node: found by their sockets, asked who they are, called.

A driver registers by putting a socket into the registry directory and leaves by
removing it. Several instances of one driver may be there (a rolling update); the
one that registered last and is connected is used.

The directory is read every 0.2 s: that needs no kernel interface, works on every
filesystem, costs a few microseconds, and is far below the time a driver needs to
start.

A driver is not trusted with the agent's time and memory: sockets of other users are
ignored, names and endpoints are checked, messages, devices and texts are bounded, every
call has a time limit, and a plugin that was refused is asked again only after a minute.

When a driver is away (no instance, or none connected) for 30 s, nobody could
prepare its devices, so its slices are deleted and the scheduler looks elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from dray.api.rpc import CALL_TIMEOUT_SECONDS, DRA_SERVICES, DRA_V1, HEALTH_SERVICES, HEALTH_V1, PLUGIN_TYPE
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
from dray.api.validation.fields import Path as FieldPath
from dray.api.validation.names import validate_driver_name
from dray.host.private_files import make_private_folder
from dray.node.claims import ClaimFacts, HeldDevice

log = logging.getLogger("dray.node")

LOOK_SECONDS = 0.2
WIPE_AFTER_SECONDS = 30.0
_HANDSHAKE_SECONDS = 5.0
_REFUSED_SECONDS = 60.0  # until a plugin that was refused is asked again
_MAX_SOCKETS = 256  # in the registry
_MAX_DEVICES = 1024  # of one claim in an answer; an allocation has at most 32
_MAX_NAMES = 256  # of one device: requests and CDI ids
_NAME_CHARACTERS = 1024
_TEXT_CHARACTERS = 1024
_MESSAGE_BYTES = 4 << 20
_INFO_BYTES = 64 << 10
_SOCKET_PATH_BYTES = 107  # the kernel's limit


Observe = Callable[[str, str, str, float], None]  # driver, method, status code, seconds


def _ignore(driver: str, method: str, code: str, seconds: float) -> None:
    """Measure nothing."""


class PluginError(Exception):
    """A driver is not there, does not answer, or answers nonsense; the text names it."""


def not_registered(driver: str, known: Iterable[str]) -> PluginError:
    """Say that a driver is not there, and which ones are."""
    names = ", ".join(sorted(known)) or "none"
    return PluginError(f"DRA driver {driver} is not registered on this node (registered: {names})")


@dataclass(slots=True)
class Plugin:
    """One instance of a driver."""

    driver: str
    socket: Path  # in the registry
    endpoint: str
    service: str  # v1.DRAPlugin or v1beta1.DRAPlugin
    health_service: str | None
    order: int  # of registration; the highest is the newest
    channel: Any = None
    is_connected: bool = True
    observe: Observe = _ignore
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def prepare(self, claims: Sequence[ClaimFacts]) -> dict[str, list[HeldDevice] | str]:
        """Call NodePrepareResources; per claim UID the devices, or the error's text."""
        messages, stub = self._stub()
        request = messages.NodePrepareResourcesRequest(claims=[_claim(messages, facts) for facts in claims])
        answer = await self._call("NodePrepareResources", stub.NodePrepareResources, request)
        found: dict[str, list[HeldDevice] | str] = {}
        for facts in claims:
            if facts.uid not in answer.claims:
                found[facts.uid] = f"driver {self.driver} did not answer for claim {facts.key}"
                continue
            outcome = answer.claims[facts.uid]
            found[facts.uid] = _shown(outcome.error) or _bounded_devices(self.driver, facts, outcome.devices)
        return found

    async def unprepare(self, claims: Sequence[ClaimFacts]) -> dict[str, str]:
        """Call NodeUnprepareResources; per claim UID the error's text, empty for success."""
        messages, stub = self._stub()
        request = messages.NodeUnprepareResourcesRequest(claims=[_claim(messages, facts) for facts in claims])
        answer = await self._call("NodeUnprepareResources", stub.NodeUnprepareResources, request)
        return {
            facts.uid: _shown(answer.claims[facts.uid].error)
            if facts.uid in answer.claims
            else f"driver {self.driver} did not answer for claim {facts.key}"
            for facts in claims
        }

    def _stub(self) -> tuple[Any, Any]:
        if self.service == DRA_V1:
            return dra_v1_pb2, dra_v1_pb2_grpc.DRAPluginStub(self.channel)
        return dra_v1beta1_pb2, dra_v1beta1_pb2_grpc.DRAPluginStub(self.channel)

    async def _call(self, name: str, method: Any, request: Any) -> Any:
        started = time.monotonic()
        code = "OK"
        try:
            return await method(request, timeout=CALL_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            code = error.code().name
            details = _shown(error.details() or "")
            raise PluginError(f"driver {self.driver}: {error.code().name}: {details}") from error
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            # A driver that registers anew or leaves closes the channel, which cancels the calls on it. Only
            # when somebody cancelled this task is it ours to end; otherwise the caller must hear of it and try again.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            code = "CANCELLED"
            raise PluginError(f"driver {self.driver} went away during the call") from error
        finally:
            self.observe(self.driver, name, code, time.monotonic() - started)

    def watch_health(self) -> Any:
        """Open the health stream; None when the driver has none."""
        if self.health_service is None:
            return None
        if self.health_service == HEALTH_V1:
            stub = health_v1_pb2_grpc.DRAResourceHealthStub(self.channel)
            return stub.NodeWatchResources(health_v1_pb2.NodeWatchResourcesRequest())
        stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(self.channel)
        return stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())


def _shown(text: str) -> str:
    """Return a driver's text as it may stand in logs, events and statuses: one line, bounded."""
    line = " ".join(text[: 2 * _TEXT_CHARACTERS].split())
    printable = "".join(character if character.isprintable() else "?" for character in line)
    return printable if len(printable) <= _TEXT_CHARACTERS else printable[:_TEXT_CHARACTERS] + "..."


def _bounded_devices(driver: str, facts: ClaimFacts, devices: Any) -> list[HeldDevice] | str:
    """Return the devices of an answer, or why it is not taken."""
    if len(devices) > _MAX_DEVICES:
        return f"driver {driver} answered with {len(devices)} devices for claim {facts.key}, at most {_MAX_DEVICES} are taken"
    for device in devices:
        texts = (device.pool_name, device.device_name, *device.request_names, *device.cdi_device_ids)
        if len(texts) > _MAX_NAMES or any(len(text) > _NAME_CHARACTERS for text in texts):
            return (
                f"driver {driver} answered for claim {facts.key} with a device of more than {_MAX_NAMES} names, "
                f"or with a name of more than {_NAME_CHARACTERS} characters"
            )
    return [_held(device) for device in devices]


def _claim(messages: Any, facts: ClaimFacts) -> Any:
    return messages.Claim(namespace=facts.key.namespace, name=facts.key.name, uid=facts.uid)


def _held(device: Any) -> HeldDevice:
    has_share = "share_id" in device.DESCRIPTOR.fields_by_name and device.HasField("share_id")
    return HeldDevice(
        pool=device.pool_name,
        device=device.device_name,
        share_id=device.share_id if has_share else None,
        requests=tuple(device.request_names),
        cdi_device_ids=tuple(device.cdi_device_ids),
    )


def choose_service(supported: Sequence[str]) -> str:
    """Return the first service of the plugin's list that we speak; raise PluginError if there is none."""
    for service in supported:
        if service in DRA_SERVICES:
            return service
    # Drivers from before 1.34 gave plain version numbers; they spoke v1beta1.
    if supported and all(version[:1].isdigit() for version in supported):
        return DRA_SERVICES[-1]
    raise PluginError(
        f"it offers {list(supported) or 'no services'}; this node speaks {', '.join(DRA_SERVICES)}"
    )


def choose_health_service(supported: Sequence[str]) -> str | None:
    """Return the health service in our order of preference."""
    return next((service for service in HEALTH_SERVICES if service in supported), None)


class PluginRegistry:
    """Follows the registry directory and keeps connections."""

    def __init__(
        self,
        folder: Path,
        *,
        on_away: Callable[[str], Awaitable[None]],  # a driver was away for too long
        on_registered: Callable[[Plugin], None] = lambda _: None,
        observe: Observe = _ignore,
        wipe_after_seconds: float = WIPE_AFTER_SECONDS,
    ) -> None:
        self.folder = folder
        self._on_away = on_away
        self._on_registered = on_registered
        self._observe = observe
        self._wipe_after = wipe_after_seconds
        self._plugins: dict[Path, Plugin] = {}
        # Inode and time of creation of the sockets: a new one under an old name is a new plugin.
        self._inodes: dict[Path, tuple[int, int]] = {}
        self._handshakes: dict[Path, asyncio.Task[None]] = {}
        self._refused: dict[Path, tuple[tuple[int, int], float]] = {}  # -> inode, when it may be asked again
        self._complained: set[str] = set()
        self._wipes: dict[str, asyncio.Task[None]] = {}
        self._order = itertools.count(1)

    def drivers(self) -> set[str]:
        """Return the names of the registered drivers."""
        return {plugin.driver for plugin in self._plugins.values()}

    def find(self, driver: str) -> Plugin:
        """Return the instance to call; raise PluginError when the driver is not registered."""
        instances = [plugin for plugin in self._plugins.values() if plugin.driver == driver]
        if not instances:
            raise not_registered(driver, self.drivers())
        # A disconnected instance is better than none: the call may wake the connection up.
        return max(instances, key=lambda plugin: (plugin.is_connected, plugin.order))

    async def run(self) -> None:
        """Follow the directory until cancelled."""
        make_private_folder(self.folder)
        try:
            while True:
                self._look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._close()

    def _look(self) -> None:
        sockets = self._sockets()
        now = time.monotonic()
        for path, inode in sockets.items():
            known = self._plugins.get(path)
            if known is not None and self._inodes.get(path) != inode:
                self._deregister(path)  # the driver restarted under the same name
                known = None
            refused = self._refused.get(path)
            if refused is not None and refused[0] == inode and now < refused[1]:
                continue
            if known is None and path not in self._handshakes:
                self._inodes[path] = inode
                self._handshakes[path] = asyncio.create_task(self._register(path))
        for path in [path for path in self._plugins if path not in sockets]:
            self._deregister(path)
        for path in [path for path in self._refused if path not in sockets]:
            del self._refused[path]

    def _sockets(self) -> dict[Path, tuple[int, int]]:
        """Return the sockets in the registry that are asked who they are, with their inodes."""
        sockets: dict[Path, tuple[int, int]] = {}
        for entry in self.folder.glob("*.sock"):
            with contextlib.suppress(OSError):  # it may vanish between two looks, or be a loop of links
                found = entry.stat()
                if not stat.S_ISSOCK(found.st_mode):
                    continue
                if found.st_uid not in (0, os.geteuid()):
                    self._complain(f"{entry} belongs to user {found.st_uid}, not to root or the agent's user")
                    continue
                if len(sockets) >= _MAX_SOCKETS:
                    self._complain(f"there are more than {_MAX_SOCKETS} sockets in {self.folder}")
                    break
                sockets[entry] = (found.st_ino, found.st_mtime_ns)
        return sockets

    def _complain(self, text: str) -> None:
        """Say once why a socket is ignored."""
        if text not in self._complained and len(self._complained) < _MAX_SOCKETS:
            self._complained.add(text)
            log.warning("a socket in the plugin registry is ignored: %s", text)

    async def _register(self, path: Path) -> None:
        pause = 0.1
        try:
            while path.exists():
                try:
                    await self._handshake(path)
                    return
                except PluginError as error:
                    log.error("plugin %s refused: %s", path.name, error)
                    self._refused[path] = (self._inodes[path], time.monotonic() + _REFUSED_SECONDS)
                    return
                except (grpc.RpcError, TimeoutError, OSError) as error:
                    # The socket may be there before anybody listens, or be left by a dead process.
                    code = error.code().name if isinstance(error, grpc.RpcError) else type(error).__name__
                    log.debug("plugin %s does not answer (%s); again in %.1f s", path.name, code, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)
        finally:
            self._handshakes.pop(path, None)

    async def _handshake(self, path: Path) -> None:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=_REGISTRATION_OPTIONS) as channel:
            stub = registration_v1_pb2_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=_HANDSHAKE_SECONDS)
            try:
                plugin = self._accept(path, info)
            except PluginError as error:
                refusal = registration_v1_pb2.RegistrationStatus(plugin_registered=False, error=str(error))
                await stub.NotifyRegistrationStatus(refusal, timeout=_HANDSHAKE_SECONDS)
                raise
            plugin.channel = grpc.aio.insecure_channel(f"unix:{plugin.endpoint}", options=_CHANNEL_OPTIONS)
            status = registration_v1_pb2.RegistrationStatus(plugin_registered=True)
            await stub.NotifyRegistrationStatus(status, timeout=_HANDSHAKE_SECONDS)
        self._plugins[path] = plugin
        plugin.tasks.append(asyncio.create_task(self._follow_connection(plugin)))
        self._judge(plugin.driver)
        log.info("driver %s registered: %s, %s", plugin.driver, plugin.service, plugin.endpoint)
        self._on_registered(plugin)

    def _accept(self, path: Path, info: Any) -> Plugin:
        if info.type != PLUGIN_TYPE:
            kind = _shown(info.type)
            raise PluginError(f"plugins of type {kind!r} are not supported here, only {PLUGIN_TYPE}")
        if not info.name:
            raise PluginError("it gives no driver name")
        problems = validate_driver_name(info.name, FieldPath("name"))
        if problems:
            raise PluginError(_shown(", ".join(problem.message() for problem in problems)))
        endpoint = info.endpoint or str(path)
        if (
            not endpoint.startswith("/")
            or len(os.fsencode(endpoint)) > _SOCKET_PATH_BYTES
            or "\0" in endpoint
        ):
            raise PluginError(f"its endpoint {_shown(endpoint)!r} is not the absolute path of a socket")
        versions = list(info.supported_versions)
        return Plugin(
            info.name,
            path,
            endpoint,
            choose_service(versions),
            choose_health_service(versions),
            next(self._order),
            observe=self._observe,
        )

    async def _follow_connection(self, plugin: Plugin) -> None:
        channel = plugin.channel
        while True:
            state = channel.get_state(try_to_connect=True)
            is_connected = state is grpc.ChannelConnectivity.READY
            if is_connected != plugin.is_connected and state not in (
                grpc.ChannelConnectivity.CONNECTING,
                grpc.ChannelConnectivity.IDLE,
            ):
                plugin.is_connected = is_connected
                log.info("driver %s is %s", plugin.driver, "connected" if is_connected else "disconnected")
                self._judge(plugin.driver)
            await channel.wait_for_state_change(state)

    def _deregister(self, path: Path) -> None:
        plugin = self._plugins.pop(path)
        log.info("driver %s deregistered (%s)", plugin.driver, path.name)
        for task in plugin.tasks:
            task.cancel()
        closing = asyncio.ensure_future(plugin.channel.close())
        plugin.tasks.append(closing)
        self._judge(plugin.driver)

    def _judge(self, driver: str) -> None:
        """Start or stop the clock after which the driver's slices are deleted."""
        is_here = any(plugin.driver == driver and plugin.is_connected for plugin in self._plugins.values())
        if is_here:
            waiting = self._wipes.pop(driver, None)
            if waiting is not None:
                waiting.cancel()
        elif driver not in self._wipes:
            self._wipes[driver] = asyncio.create_task(self._wipe_later(driver))

    async def _wipe_later(self, driver: str) -> None:
        await asyncio.sleep(self._wipe_after)
        log.warning("driver %s is away for %.0f s; deleting its slices", driver, self._wipe_after)
        await self._on_away(driver)

    async def _close(self) -> None:
        for task in [*self._handshakes.values(), *self._wipes.values()]:
            task.cancel()
        for plugin in self._plugins.values():
            for task in plugin.tasks:
                task.cancel()
            await plugin.channel.close()


# What a driver answers is bounded; one that restarts should be found again within a second, not after gRPC's two minutes.
_REGISTRATION_OPTIONS = [("grpc.max_receive_message_length", _INFO_BYTES)]
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
