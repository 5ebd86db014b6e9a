"""The network driver: offers interfaces, moves them with a hook, reports what the container sees."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dray.api.meta import Condition
from dray.api.resource import NetworkDeviceData
from dray.driver import (
    AllocatedDevice,
    ClaimRequest,
    ContainerEdits,
    DeviceNode,
    DeviceStatus,
    DriverError,
    Hook,
    Pool,
    PreparedClaim,
    PreparedDevice,
)
from dray.drivers import driver_names
from dray.drivers.network.interfaces import Interface, device_of, find_interfaces
from dray.drivers.network.moving import PINS, Move, NetworkConfig, addresses_by_interface, detach

NAME = driver_names.NETWORK
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
            f"interface.name {name!r} is not a name that the kernel allows (1 to 15 letters, no / or space)"
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
    ) -> None:
        self._state = state
        self._sysfs = sysfs
        self._dev = dev
        self._routes = routes
        self._pins = pins
        self._addresses = addresses
        self._lent: dict[str, Interface] = {}  # device name -> what left the host's sysfs

    def _interfaces(self) -> dict[str, Interface]:
        present = {
            interface.device_name: interface for interface in find_interfaces(self._sysfs, self._routes)
        }
        # An interface that is inside a container is not in the host's sysfs, but it is still ours.
        return self._lent | present

    def discover(self) -> list[Pool]:
        """Return one device per interface, lent ones included."""
        addresses = self._addresses()
        return [
            Pool([device_of(interface, addresses) for _, interface in sorted(self._interfaces().items())])
        ]

    def recover(self, known: list[PreparedClaim]) -> None:
        """Remember the interfaces that containers hold."""
        for claim in known:
            for device in claim.devices:
                if device.private:
                    self._lent[device.device] = msgspec.convert(device.private["interface"], Interface)

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
        return [self._prepare_one(claim.uid, *plan) for plan in plans]

    def _prepare_one(
        self, claim_uid: str, allocated: AllocatedDevice, interface: Interface, config: NetworkConfig
    ) -> PreparedDevice:
        wanted = config.interface
        move = Move(
            key=f"{claim_uid}-{allocated.device}",
            host_name=interface.name,
            container_name=wanted.name or interface.name,
            addresses=wanted.addresses or list(self._addresses().get(interface.name, [])),
            mtu=wanted.mtu,
            hardware_addr=wanted.hardware_addr,
            routes=config.routes,
        )
        path = self._state / "moves" / f"{move.key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(move))
        self._lent[allocated.device] = interface
        hook = Hook(
            hook_name="createRuntime",
            path=sys.executable,
            args=["python", "-m", "dray.drivers.network.hook", str(path)],
            env=[f"PYTHONPATH={':'.join(entry for entry in sys.path if entry)}"],
        )
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
            type="Ready", status="True", reason="Prepared", message="moved when the container starts"
        )
        return PreparedDevice.of(
            allocated,
            edits,
            status=DeviceStatus(conditions=[ready], network_data=data),
            private={"move": msgspec.to_builtins(move), "interface": msgspec.to_builtins(interface)},
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

    def unprepare(self, claim: PreparedClaim) -> None:
        """Fetch the interfaces back."""
        for device in claim.devices:
            if device.private:
                detach(msgspec.convert(device.private["move"], Move), self._pins)
            (self._state / "moves" / f"{claim.uid}-{device.device}.json").unlink(missing_ok=True)
            self._lent.pop(device.device, None)
