"""Configs of dranet: NetworkConfig, which has neither apiVersion nor kind.

Judged as dranet does before it touches an interface; the first fault is reported. A device without interface (RDMA only)
takes no settings of interfaces at all, which is known only when the device is (`refuse_for_rdma_only`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from dray.drivers.opaque_configs.decoding import Config, OpaqueConfigError, convert_strictly

MIN_MTU = 68
MAX_NAME = 15  # characters that the kernel takes

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]


class Vrf(Config, frozen=True):
    """A routing domain of its own."""

    name: str = ""
    table: int | None = None


class Interface(Config, frozen=True):
    """What becomes of the interface in the pod."""

    name: str = ""
    addresses: list[str] = []
    dhcp: bool | None = None
    mtu: _Int32 | None = None
    hardware_addr: str | None = None
    gso_max_size: _Int32 | None = None
    gro_max_size: _Int32 | None = None
    gso_ipv4_max_size: _Int32 | None = msgspec.field(default=None, name="gsoIPv4MaxSize")
    gro_ipv4_max_size: _Int32 | None = msgspec.field(default=None, name="groIPv4MaxSize")
    disable_ebpf_programs: bool | None = None
    forwarding: bool | None = None
    arp_ignore: _Int32 | None = None
    arp_announce: _Int32 | None = None
    vrf: Vrf | None = None


class Route(Config, frozen=True):
    """One route of the pod."""

    destination: str = ""
    gateway: str = ""
    source: str = ""
    scope: _Byte = 0
    table: int = 0


class Rule(Config, frozen=True):
    """One rule that chooses a table of routes."""

    priority: int = 0
    source: str = ""
    destination: str = ""
    table: int = 0


class Neighbor(Config, frozen=True):
    """One permanent neighbour."""

    destination: str = ""
    hardware_addr: str = ""


class Ethtool(Config, frozen=True):
    """Features and private flags of the interface."""

    features: dict[str, bool] = {}
    private_flags: dict[str, bool] = {}


class NetworkConfig(Config, frozen=True):
    """Config of an interface."""

    profile: str = ""
    interface: Interface = Interface()
    routes: list[Route] = []
    rules: list[Rule] = []
    neighbors: list[Neighbor] = []
    ethtool: Ethtool | None = None


_MAX_PRIORITY = 32767
_UNIVERSE, _LINK = 0, 253  # scopes of routes
_RESERVED_TABLES = (253, 254, 255)
_ARP_IGNORE = (0, 1, 2, 3, 8)
_MAC = re.compile(
    r"(?:[0-9a-f]{2}(?P<separator>[:-]))(?:[0-9a-f]{2}(?P=separator)){4}(?:(?:[0-9a-f]{2}(?P=separator)){2}"
    r"|(?:[0-9a-f]{2}(?P=separator)){14})?[0-9a-f]{2}|(?:[0-9a-f]{4}\.){2}(?:(?:[0-9a-f]{4}\.)|(?:[0-9a-f]{4}\.){7})?[0-9a-f]{4}",
    re.IGNORECASE,
)
_Fault = tuple[str, str]  # path, and what is wrong there


def parse_network_config(parameters: Any) -> NetworkConfig | None:
    """Check one config; raise OpaqueConfigError with dranet's message. No parameters are no config."""
    if parameters is None:
        return None
    config = convert_strictly(parameters, NetworkConfig)
    for path, message in _faults(config):
        raise OpaqueConfigError(f"{path}{message}" if message.startswith(":") else message, path)
    return config


def refuse_for_rdma_only(config: NetworkConfig) -> None:
    """Raise OpaqueConfigError for settings that need an interface; for a device that has none."""
    plain = Interface(forwarding=config.interface.forwarding, vrf=config.interface.vrf)
    for path, is_set, what in (
        ("interface", config.interface != plain, "interface configuration is"),
        ("routes", bool(config.routes), "routes are"),
        ("rules", bool(config.rules), "rules are"),
        ("ethtool", config.ethtool is not None, "ethtool configuration is"),
        ("neighbors", bool(config.neighbors), "neighbors are"),
    ):
        if is_set:
            raise OpaqueConfigError(
                f"{what} not supported for RDMA-only devices (no network interface present)", path
            )


def _faults(config: NetworkConfig) -> Iterator[_Fault]:
    yield from _interface_faults(config.interface)
    for index, route in enumerate(config.routes):
        yield from _route_faults(route, f"routes[{index}]")
    if config.rules and config.interface.vrf is not None:
        yield "rules", "rules are not supported when VRF is enabled"
    for index, rule in enumerate(config.rules):
        yield from _rule_faults(rule, f"rules[{index}]")
    for index, neighbor in enumerate(config.neighbors):
        yield from _neighbor_faults(neighbor, f"neighbors[{index}]")


def _interface_faults(interface: Interface) -> Iterator[_Fault]:
    yield from _name_faults(interface.name, "interface.name")
    for index, address in enumerate(interface.addresses):
        if _prefix(address) is None:
            yield f"interface.addresses[{index}]", f": invalid IP CIDR format '{address}'"
    if interface.dhcp and interface.addresses:
        yield "interface.dhcp", "interface: dhcp and addresses are mutually exclusive"
    if interface.mtu is not None and interface.mtu < MIN_MTU:
        yield "interface.mtu", f": must be at least {MIN_MTU}, got {interface.mtu}"
    if interface.hardware_addr is not None and not _MAC.fullmatch(interface.hardware_addr):
        yield "interface.hardwareAddr", f": invalid Hardware Address format '{interface.hardware_addr}'"
    for name, size in (
        ("gsoMaxSize", interface.gso_max_size),
        ("groMaxSize", interface.gro_max_size),
        ("gsoIPv4MaxSize", interface.gso_ipv4_max_size),
        ("groIPv4MaxSize", interface.gro_ipv4_max_size),
    ):
        if size is not None and size <= 0:
            yield f"interface.{name}", f": must be positive, got {size}"
    if interface.arp_ignore is not None and interface.arp_ignore not in _ARP_IGNORE:
        yield "interface.arpIgnore", f": must be one of 0, 1, 2, 3, or 8, got {interface.arp_ignore}"
    if interface.arp_announce is not None and not 0 <= interface.arp_announce <= 2:
        yield "interface.arpAnnounce", f": must be between 0 and 2, got {interface.arp_announce}"
    if interface.vrf is not None:
        yield from _vrf_faults(interface.vrf)


def _name_faults(name: str, path: str) -> Iterator[_Fault]:
    if len(name) > MAX_NAME:
        yield path, f": name '{name}' exceeds maximum length of {MAX_NAME} characters"
    if "/" in name:
        yield path, f": name '{name}' cannot contain '/'"
    if any(character.isspace() for character in name):
        yield path, f": name '{name}' cannot contain whitespace"
    if name in (".", ".."):
        yield path, f": name '{name}' cannot be '.' or '..'"
    for character in name:
        if not character.isalnum() and character not in "-_.":
            yield (
                path,
                f": name '{name}' contains invalid character '{character}'. "
                "Only letters, digits, '-', '_', '.' are recommended",
            )


def _vrf_faults(vrf: Vrf) -> Iterator[_Fault]:
    if not vrf.name:
        yield "interface.vrf.name", ": cannot be empty"
    if vrf.table is not None and vrf.table <= 0:
        yield "interface.vrf.table", f": must be a positive integer, got {vrf.table}"
    if vrf.table in _RESERVED_TABLES:
        yield "interface.vrf.table", f": cannot use reserved table ID {vrf.table}"


def _route_faults(route: Route, path: str) -> Iterator[_Fault]:
    destination = _prefix(route.destination)
    if not route.destination:
        yield f"{path}.destination", ": cannot be empty"
    elif destination is None:
        yield (
            f"{path}.destination",
            f": invalid CIDR format '{route.destination}' (host routes use /32 or /128)",
        )
    if route.scope not in (_UNIVERSE, _LINK):
        yield (
            f"{path}.scope",
            f": invalid scope '{route.scope}', only Link ({_LINK}) or Universe ({_UNIVERSE}) allowed",
        )
    if not route.gateway and route.scope != _LINK:
        yield f"{path}.gateway", ": must be specified for Universe scope routes"
    for name, value in (("gateway", route.gateway), ("source", route.source)):
        address = _address(value)
        if value and address is None:
            yield f"{path}.{name}", f": invalid IP address format '{value}'"
        elif address is not None and destination is not None and address.version != destination.version:
            yield (
                f"{path}.{name}",
                f": '{value}' must be the same IP family as destination '{route.destination}'",
            )
    if route.table < 0:
        yield f"{path}.table", f": must be a non-negative integer, got {route.table}"


def _rule_faults(rule: Rule, path: str) -> Iterator[_Fault]:
    if not 0 <= rule.priority <= _MAX_PRIORITY:
        yield (
            f"{path}.priority",
            f": must be an integer between 0 and {_MAX_PRIORITY}, got {rule.priority}",
        )
    if rule.table < 0:
        yield f"{path}.table", f": must be a non-negative integer, got {rule.table}"
    ends = {"source": rule.source, "destination": rule.destination}
    prefixes = {name: _prefix(value) for name, value in ends.items()}
    for name, value in ends.items():
        if value and prefixes[name] is None:
            yield f"{path}.{name}", f": invalid CIDR format '{value}'"
    versions = {prefix.version for prefix in prefixes.values() if prefix is not None}
    if len(versions) > 1:
        yield (
            path,
            f": source '{rule.source}' and destination '{rule.destination}' must be the same IP family",
        )


def _neighbor_faults(neighbor: Neighbor, path: str) -> Iterator[_Fault]:
    if not neighbor.destination:
        yield f"{path}.destination", ": cannot be empty"
    elif _address(neighbor.destination) is None:
        yield f"{path}.destination", f": invalid IP address format '{neighbor.destination}'"
    if not neighbor.hardware_addr:
        yield f"{path}.hardwareAddr", ": cannot be empty"
    elif not _MAC.fullmatch(neighbor.hardware_addr):
        yield f"{path}.hardwareAddr", f": invalid Hardware Address format '{neighbor.hardware_addr}'"


def _prefix(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    """Return an address with the length of its network; None for another text, also for one with a netmask."""
    address, separator, length = text.partition("/")
    if not separator or not length.isdecimal() or (length[0] == "0" and length != "0") or "%" in address:
        return None
    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        return None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text) if "%" not in text else None
    except ValueError:
        return None
