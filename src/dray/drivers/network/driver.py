"""The network driver: offers interfaces, moves them into the pod that claims them, reports what the pod sees.

An interface belongs to the pod's network namespace, which all its containers share. Two events tell the driver
that the namespace is there, whichever comes first:

  * a container that refers to the claim is made: its hook (`container_hook`) waits until the interface is in;
  * a process of the pod is seen in /proc: so a claim works that the pod lists and no container refers to,
    as with dranet. No container waits for this one; it takes a fraction of a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dray.api.cdi import NEEDS_POD_NETWORK
from dray.api.meta import Condition
from dray.api.resource import NetworkDeviceData
from dray.api.well_known import OWN_NETWORK_ANNOTATION
from dray.driver import (
    AllocatedDevice,
    ClaimRequest,
    ContainerEdits,
    DeviceNode,
    DeviceStatus,
    DriverError,
    Pool,
    PreparedClaim,
    PreparedDevice,
)
from dray.drivers import driver_names
from dray.drivers.container_hook import ContainerState, HookServer, PodView, check_pod
from dray.drivers.network.interfaces import Interface, device_of, find_interfaces
from dray.drivers.network.moving import PINS, Move, NetworkConfig, addresses_by_interface, attach, detach
from dray.drivers.network.pod_processes import PodProcesses
from dray.host.namespaces import is_shared_mount

log = logging.getLogger("dray.driver")

NAME = driver_names.NETWORK
_LOOK_SECONDS = 0.2  # for the first process of a pod whose containers do not refer to the claim
_INTERFACE_NAME = re.compile(r"^[^\s/:]{1,15}$")


def parse_config(parameters: Any) -> NetworkConfig:
    """Decode a claim's config strictly; raises DriverError that names what is wrong."""
    try:
        config: NetworkConfig = msgspec.convert(parameters, NetworkConfig)
    except msgspec.ValidationError as error:
        raise DriverError(f"strict decoding error: {error}") from error
    name = config.interface.name
    if name and (not _INTERFACE_NAME.match(name) or name in (".", "..")):
        raise DriverError(
            f"interface.name {name!r} is not a name that the kernel allows (1 to 15 characters, no / or space)"
        )
    for address in config.interface.addresses:
        if "/" not in address:
            raise DriverError(f"interface.addresses: {address!r} needs a prefix length, like 10.0.0.2/24")
    return config


class NetworkDriver:
    """Hands out network interfaces."""

    name = NAME

    def __init__(
        self,
        *,
        state: Path,
        sysfs: Path = Path("/sys"),
        dev: Path = Path("/dev"),
        routes: Path = Path("/proc/net/route"),
        pins: Path = PINS,
        addresses: Callable[[], Mapping[str, list[str]]] = addresses_by_interface,
        proc: Path = Path("/proc"),
    ) -> None:
        self._hooks = HookServer(state / "hooks", self._attach)
        self._proc = proc
        self._sysfs = sysfs
        self._dev = dev
        self._routes = routes
        self._pins = pins
        self._addresses = addresses
        self._assigned: dict[str, Interface] = {}  # device name -> what left the host's sysfs
        self._moves: dict[str, Move] = {}  # by key
        self._waiting: dict[
            str, list[str]
        ] = {}  # key of a move that was not made yet -> UIDs of the claim's pods
        self._lock = threading.Lock()  # hook, look at processes and unprepare: one at a time

    def _interfaces(self) -> dict[str, Interface]:
        present = {
            interface.device_name: interface for interface in find_interfaces(self._sysfs, self._routes)
        }
        # An interface that is inside a container is not in the host's sysfs, but it is still ours.
        return self._assigned | present

    def discover(self) -> list[Pool]:
        """Return one device per interface, those in use included."""
        addresses = self._addresses()
        return [
            Pool([device_of(interface, addresses) for _, interface in sorted(self._interfaces().items())])
        ]

    def recover(self, known: list[PreparedClaim]) -> None:
        """Remember the interfaces that containers hold."""
        for claim in known:
            for device in claim.devices:
                if device.private:
                    self._assigned[device.device] = msgspec.convert(device.private["interface"], Interface)
                    move = msgspec.convert(device.private["move"], Move)
                    self._remember(move, device.private.get("pods", []))

    def check_host(self) -> None:
        """Refuse to start where interfaces could not be moved."""
        needed = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE")
        view = PodView(self._proc)
        check_pod("network", needed, view, host_network=True)
        if not view.is_pod and os.geteuid() != 0:
            raise DriverError("the network driver moves interfaces between namespaces; run it as root")
        self._pins.mkdir(parents=True, exist_ok=True)
        if view.is_pod and not is_shared_mount(self._pins):
            raise DriverError(
                f"{self._pins} is not shared with the host: mount the host path {self._pins} there with"
                " mountPropagation: Bidirectional (and privileged: true, which that needs)"
            )

    async def run_beside(self) -> None:
        """Answer hooks, and look for pods whose containers do not refer to their claim."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hooks.run())
            tasks.create_task(self._look_for_pods())

    async def _look_for_pods(self) -> None:
        processes = PodProcesses(self._proc)
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            waiting = {uid: key for key, uids in self._waiting.items() for uid in uids}
            if not waiting:
                continue
            for uid, pid in (await asyncio.to_thread(processes.find, list(waiting))).items():
                try:
                    await asyncio.to_thread(self._attach, waiting[uid], ContainerState(pid))
                except OSError as error:
                    log.info("claim device %s: pod %s is not ready: %s", waiting[uid], uid, error)
                except DriverError as error:
                    self._waiting.pop(waiting[uid], None)
                    log.warning("claim device %s: not moved into pod %s: %s", waiting[uid], uid, error)

    def _remember(self, move: Move, pod_uids: list[str]) -> None:
        self._moves[move.key] = move
        self._waiting[move.key] = pod_uids

    def _attach(self, key: str, container: ContainerState) -> None:
        with self._lock:
            move = self._moves.get(key)
            if move is None:
                raise DriverError(f"there is no prepared network device {key}")
            attach(move, container.pid, self._pins)
            self._waiting.pop(key, None)

    def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Write down each move; the hook makes it when the container is there."""
        interfaces = self._interfaces()
        plans = []
        for allocated in claim.devices:
            config = NetworkConfig()
            for given in allocated.configs:
                config = parse_config(given.parameters)
            interface = interfaces.get(allocated.device)
            if interface is None:
                raise DriverError(f"there is no network device {allocated.device} on this node")
            plans.append((allocated, interface, config))
        names = [config.interface.name or interface.name for _, interface, config in plans]
        if len(set(names)) != len(names):
            raise DriverError(
                f"two interfaces of the claim would have the name {max(names, key=names.count)!r}"
            )
        return [self._prepare_one(claim, *plan) for plan in plans]

    def _prepare_one(
        self, claim: ClaimRequest, allocated: AllocatedDevice, interface: Interface, config: NetworkConfig
    ) -> PreparedDevice:
        wanted = config.interface
        move = Move(
            key=f"{claim.uid}-{allocated.device}",
            host_name=interface.name,
            container_name=wanted.name or interface.name,
            addresses=wanted.addresses or list(self._addresses().get(interface.name, [])),
            mtu=wanted.mtu,
            hardware_addr=wanted.hardware_addr,
            routes=config.routes,
            mac=interface.mac,
            host_mtu=interface.mtu,
        )
        pod_uids = [user.uid for user in claim.claim.status.reserved_for if user.resource == "pods"]
        self._assigned[allocated.device] = interface
        self._moves[move.key] = move  # not before `attach` is the move on disk, so nothing may happen yet
        name, _, value = NEEDS_POD_NETWORK.partition("=")
        hook = self._hooks.hook(move.key, {name: value})
        nodes = self._rdma_nodes(interface)
        variable = re.sub(r"[^A-Z0-9]", "_", allocated.request.upper())
        edits = ContainerEdits(
            env=[f"DRANET_{variable}_INTERFACE={move.container_name}"], hooks=[hook], device_nodes=nodes
        )
        data = NetworkDeviceData(
            interface_name=move.container_name,
            ips=move.addresses,
            hardware_address=wanted.hardware_addr or interface.mac,
        )
        ready = Condition(
            type="Ready", status="True", reason="Prepared", message="moved when the pod's network is there"
        )
        return PreparedDevice.of(
            allocated,
            edits,
            status=DeviceStatus(conditions=[ready], network_data=data),
            private={
                "move": msgspec.to_builtins(move),
                "interface": msgspec.to_builtins(interface),
                "pods": pod_uids,
            },
        )

    def _rdma_nodes(self, interface: Interface) -> list[DeviceNode]:
        if not interface.rdma_device:
            return []
        folder = self._sysfs / "class/infiniband_verbs"
        nodes = ["infiniband/rdma_cm"]
        for entry in sorted(folder.glob("uverbs*")):
            if (entry / "device/infiniband" / interface.rdma_device).exists():
                nodes.append(f"infiniband/{entry.name}")
        return [
            DeviceNode(path=f"/dev/{node}", host_path=str(self._dev / node))
            for node in nodes
            if (self._dev / node).exists()
        ]

    def attach(self, claim: PreparedClaim, pod_uids: Sequence[str]) -> None:
        """Move the interfaces into pods that run already; those of a pod that starts wait for its first process."""
        processes = PodProcesses(self._proc)
        pids = processes.find(pod_uids)
        if not pids and processes.in_own_network:
            raise DriverError(
                "the pod shares the host's network, so no interface can be moved into it; a pod of a node with the"
                f' runtime runc has a network of its own with the annotation {OWN_NETWORK_ANNOTATION}: "true"'
            )
        for device in claim.devices:
            key = f"{claim.uid}-{device.device}"
            for pid in pids.values():
                self._attach(key, ContainerState(pid))
            if not pids:
                self._waiting[key] = list(pod_uids)

    def unprepare(self, claim: PreparedClaim) -> None:
        """Fetch the interfaces back."""
        for device in claim.devices:
            key = f"{claim.uid}-{device.device}"
            with self._lock:
                self._moves.pop(key, None)
                self._waiting.pop(key, None)
                if device.private:
                    detach(msgspec.convert(device.private["move"], Move), self._pins)
            self._assigned.pop(device.device, None)
