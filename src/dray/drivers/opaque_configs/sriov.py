"""Configs of the SR-IOV driver: VfConfig, which names the network that a virtual function joins."""

from __future__ import annotations

from typing import Any

from dray.drivers.driver_names import SRIOV
from dray.drivers.opaque_configs.decoding import ConfigKind, decode

API_VERSION = f"{SRIOV}/v1alpha1"


class VfConfig(ConfigKind, frozen=True):
    """Config of virtual functions; the network itself is looked up at prepare and is not modelled."""

    driver: str = ""  # of the kernel: default, vfio-pci, ...
    add_vhost_mount: bool = False
    if_name: str = ""
    net_attach_def_name: str = ""
    net_attach_def_namespace: str = ""


def parse_vf_config(parameters: Any) -> None:
    """Check one config; raise OpaqueConfigError with the driver's message."""
    decode(parameters, API_VERSION, {"VfConfig": VfConfig})
