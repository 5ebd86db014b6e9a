"""Configs of dranet: NetworkConfig, which has neither apiVersion nor kind.

Names of interfaces and MTUs are judged as dranet does; addresses, routes and rules by their types only.
"""

from __future__ import annotations

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


def parse_network_config(parameters: Any) -> None:
    """Check one config; raise OpaqueConfigError with dranet's message. No parameters are no config."""
    if parameters is None:
        return
    config = convert_strictly(parameters, NetworkConfig)
    name, mtu = config.interface.name, config.interface.mtu
    if len(name) > MAX_NAME:
        raise OpaqueConfigError(
            f"interface.name: name '{name}' exceeds maximum length of {MAX_NAME} characters", "interface.name"
        )
    if "/" in name:
        raise OpaqueConfigError(f"interface.name: name '{name}' cannot contain '/'", "interface.name")
    if any(character.isspace() for character in name):
        raise OpaqueConfigError(f"interface.name: name '{name}' cannot contain whitespace", "interface.name")
    if name in (".", ".."):
        raise OpaqueConfigError(f"interface.name: name '{name}' cannot be '.' or '..'", "interface.name")
    if mtu is not None and mtu < MIN_MTU:
        raise OpaqueConfigError(f"interface.mtu: must be at least {MIN_MTU}, got {mtu}", "interface.mtu")
    if config.rules and config.interface.vrf is not None:
        raise OpaqueConfigError("rules are not supported when VRF is enabled", "rules")
