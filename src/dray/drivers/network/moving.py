"""Moving an interface into a container's network namespace, and back.

`attach` gives an interface to the namespace of a process, renames it, sets address,
MTU and routes, and pins the namespace with a bind mount, so that it outlives the
container: a physical interface would fall back to the host when its namespace is removed,
a virtual one would be removed with it. `detach` fetches the interface from the pinned
namespace, gives it its old name, and removes the pin.

Both are idempotent: done twice, or after a crash in between, they end in the same
state. Netlink is spoken through pyroute2 (`pip install 'dray-dra[network]'`).
"""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dray.driver import DriverError
from dray.host.namespaces import (
    OWN_NETWORK,
    in_network_namespace,
    is_namespace,
    is_same_namespace,
    pin,
    unpin,
)

T = TypeVar("T")

PINS = Path("/run/dray/netns")


class Route(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One route inside the container."""

    destination: str = "default"
    gateway: str = ""
    source: str = ""


class InterfaceConfig(
    msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How the interface looks inside the container."""

    name: str = ""  # empty means: as on the host
    addresses: list[str] = []  # CIDR; empty means: those it had on the host
    mtu: int | None = None
    hardware_addr: str = ""


class NetworkConfig(
    msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The driver's opaque config: as dranet's, the part that this driver supports."""

    interface: InterfaceConfig = InterfaceConfig()
    routes: list[Route] = []


class Move(msgspec.Struct, rename="camel", frozen=True):
    """All that attach and detach need to know; written down at prepare."""

    key: str  # names the pinned namespace: claim and device
    host_name: str
    container_name: str
    addresses: list[str]
    mac: str = ""  # on the host
    host_mtu: int | None = None
    mtu: int | None = None
    hardware_addr: str = ""
    routes: list[Route] = []


def netlink() -> Any:
    """Open a netlink socket in the namespace of this thread."""
    try:
        module: Any = importlib.import_module("pyroute2")
    except ImportError:
        raise DriverError(
            "the package pyroute2 is not installed; try: pip install 'dray-dra[network]'"
        ) from None
    return module.IPRoute()


def in_namespace(namespace: Path, work: Callable[[Any], T]) -> T:
    """Do some work with a netlink socket of another network namespace."""

    def with_link() -> T:
        with netlink() as link:
            return work(link)

    return in_network_namespace(namespace, with_link)


def addresses_by_interface() -> dict[str, list[str]]:
    """Return the host's IP addresses (CIDR) by interface; empty where netlink is not to be had."""
    found: dict[str, list[str]] = {}
    try:
        with netlink() as link:
            names = {entry["index"]: entry.get_attr("IFLA_IFNAME") for entry in link.get_links()}
            for entry in link.get_addr():
                address = f"{entry.get_attr('IFA_ADDRESS')}/{entry['prefixlen']}"
                found.setdefault(names.get(entry["index"], ""), []).append(address)
    except (DriverError, OSError):
        return {}
    return found


def _index(link: Any, name: str) -> int | None:
    found = link.link_lookup(ifname=name)
    return int(found[0]) if found else None


def attach(move: Move, pid: int, pins: Path = PINS) -> None:
    """Move the interface into the namespace of the process."""
    namespace = Path(f"/proc/{pid}/ns/net")
    if is_same_namespace(namespace, OWN_NETWORK):
        raise DriverError(
            f"the container shares the host's network, so {move.host_name} cannot be moved into it; "
            "use a pod without hostNetwork, on a runtime with network namespaces"
        )
    pin_file = pins / move.key
    if is_namespace(pin_file) and not is_same_namespace(pin_file, namespace):
        detach(move, pins)  # it is in an earlier sandbox of the pod
    if not is_namespace(pin_file):
        pin(namespace, pin_file)
    with netlink() as link:
        index = _index(link, move.host_name)
        if index is not None:
            link.link("set", index=index, state="down")
            link.link("set", index=index, net_ns_pid=pid)
    in_namespace(pin_file, lambda inside: _furnish(inside, move))


def _furnish(inside: Any, move: Move) -> None:
    index = _index(inside, move.host_name)
    if index is None:
        index = _index(inside, move.container_name)
    if index is None:
        raise DriverError(f"interface {move.host_name} is neither on the host nor in the container")
    _configure(inside, index, move)


def _configure(link: Any, index: int, move: Move) -> None:
    changes: dict[str, Any] = {"ifname": move.container_name}
    if move.mtu is not None:
        changes["mtu"] = move.mtu
    if move.hardware_addr:
        changes["address"] = move.hardware_addr
    link.link("set", index=index, **changes)
    link.link("set", index=index, state="up")
    for cidr in move.addresses:
        address, _, prefix = cidr.partition("/")
        _tolerating_exists(link.addr, "add", index=index, address=address, prefixlen=int(prefix or 32))
    for route in move.routes:
        options: dict[str, Any] = {"dst": route.destination, "oif": index}
        if route.gateway:
            options["gateway"] = route.gateway
        if route.source:
            options["prefsrc"] = route.source
        _tolerating_exists(link.route, "add", **options)


def _tolerating_exists(call: Any, *args: Any, **kwargs: Any) -> None:
    try:
        call(*args, **kwargs)
    except Exception as error:
        if getattr(error, "code", None) != errno.EEXIST:
            raise


def detach(move: Move, pins: Path = PINS) -> None:
    """Fetch the interface back to the host and remove the pin; nothing to fetch is fine."""
    pin_file = pins / move.key
    if is_namespace(pin_file):
        in_namespace(pin_file, lambda inside: _return_to_host(inside, move))
    elif move.mac and move.container_name != move.host_name and os.geteuid() == 0:
        # Its namespace died unpinned (a reboot, a driver without shared mounts): the kernel put it back as it was.
        _rename_returned(move)
    unpin(pin_file)


def _rename_returned(move: Move) -> None:
    with netlink() as link:
        index = _index(link, move.container_name)
        if index is None or _index(link, move.host_name) is not None:
            return
        if link.get_links(index)[0].get_attr("IFLA_ADDRESS") in (move.mac, move.hardware_addr):
            link.link("set", index=index, state="down")
            link.link("set", index=index, ifname=move.host_name)


def _return_to_host(inside: Any, move: Move) -> None:
    index = _index(inside, move.container_name) or _index(inside, move.host_name)
    if index is not None:
        inside.link("set", index=index, state="down")
        changes: dict[str, Any] = {"ifname": move.host_name}
        if move.hardware_addr and move.mac:
            changes["address"] = move.mac
        if move.mtu and move.host_mtu:
            changes["mtu"] = move.host_mtu
        inside.link("set", index=index, **changes)
        inside.link("set", index=index, net_ns_pid=os.getpid())
