"""dray: Dynamic Resource Allocation (DRA), complete, in Python.

The library's main names, loaded when they are first used, so that `import dray` costs nothing:

  allocating   `Allocator` (inventory and ledger; `plan`, `plan_nodes`, `explain`), `Plan`, `Unsatisfied`
  selectors    `compile_selector`, `DeviceInput`
  values       `Quantity`, `parse_quantity`, `Semver`, `parse_semver`, `Features`
  clusters     `Client`, `Informer`, `Snapshot`, `OfflineCluster`, `System`
  hardware     `load_profile`, `profile_names`
  drivers      `dray.driver` is the SDK's own door

docs/python-api.md is the tour.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dray.allocator import Allocator, Plan, Unsatisfied
    from dray.api.features import Features
    from dray.api.quantity import Quantity, parse_quantity
    from dray.api.semver import Semver, parse_semver
    from dray.cel import DeviceInput, compile_selector
    from dray.client import Client, Informer
    from dray.drivers.hardware import load_profile, profile_names
    from dray.local.system import System
    from dray.sim.cluster import OfflineCluster
    from dray.sim.snapshot import Snapshot

__version__ = "0.1.0"

_HOME_OF = {
    name: module
    for module, names in {
        "dray.allocator": ("Allocator", "Plan", "Unsatisfied"),
        "dray.cel": ("compile_selector", "DeviceInput"),
        "dray.api.quantity": ("Quantity", "parse_quantity"),
        "dray.api.semver": ("Semver", "parse_semver"),
        "dray.api.features": ("Features",),
        "dray.client": ("Client", "Informer"),
        "dray.drivers.hardware": ("load_profile", "profile_names"),
        "dray.sim.cluster": ("OfflineCluster",),
        "dray.sim.snapshot": ("Snapshot",),
        "dray.local.system": ("System",),
    }.items()
    for name in names
}

__all__ = [
    "Allocator",
    "Client",
    "DeviceInput",
    "Features",
    "Informer",
    "OfflineCluster",
    "Plan",
    "Quantity",
    "Semver",
    "Snapshot",
    "System",
    "Unsatisfied",
    "__version__",
    "compile_selector",
    "load_profile",
    "parse_quantity",
    "parse_semver",
    "profile_names",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dray' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
