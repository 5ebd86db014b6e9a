"""Devices of `compute-domain.nvidia.com`: on each node one channel for a workload and one place for a daemon.

The driver knows 2048 channels of a node, and publishes the first. A workload that wants all of them asks for
`allocationMode: All` in its ComputeDomain, not for more devices.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib import resources

from dray.api import compute_domains
from dray.api.json_types import JsonObject
from dray.api.parsing import load_yaml
from dray.api.resource import Device
from dray.drivers import driver_names
from dray.drivers.hardware.attributes import Entry, number, text
from dray.drivers.hardware.pools import PoolModel

_FILES = ("computedomains.yaml", "computedomaincliques.yaml")


def compute_domain_devices(entry: Entry, node: str) -> PoolModel:
    """Model `compute-domain.nvidia.com`; the entry has no settings."""
    extra = set(entry) - {"kind"}
    if extra:
        raise ValueError(f"unknown settings: {', '.join(sorted(extra))}")
    devices = [
        Device(name=f"{kind}-0", attributes={"type": text(kind), "id": number(0)})
        for kind in (compute_domains.CHANNEL, compute_domains.DAEMON)
    ]
    return PoolModel(driver_names.COMPUTE_DOMAIN, node, tuple(devices), (), node)


@cache
def _definitions() -> tuple[JsonObject, ...]:
    folder = resources.files("dray.drivers.hardware").joinpath("crds")
    return tuple(load_yaml(folder.joinpath(name).read_text("utf-8")) for name in _FILES)


def custom_resources(drivers: Collection[str]) -> tuple[JsonObject, ...]:
    """Return the CustomResourceDefinitions that the installers of these drivers bring."""
    return _definitions() if driver_names.COMPUTE_DOMAIN in drivers else ()
