"""The SDK that a device vendor imports: write one small class, `run` does the rest.

See `contract` for what the class looks like and docs/driver-sdk.md for a tour.
"""

from dray.api.cdi import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from dray.driver.contract import (
    HEALTHY,
    UNHEALTHY,
    UNKNOWN,
    AllocatedDevice,
    AnnouncesChanges,
    AttachesToRunningPods,
    ChecksHost,
    ClaimRequest,
    DeviceConfig,
    DeviceHealth,
    DeviceStatus,
    Driver,
    DriverError,
    Pool,
    PreparedClaim,
    PreparedDevice,
    Recovers,
    ReportsHealth,
    RunsBeside,
    UsesApi,
)
from dray.driver.running import RunningDriver, Settings, run, run_all, serve, serving_driver

__all__ = [
    "HEALTHY",
    "UNHEALTHY",
    "UNKNOWN",
    "AllocatedDevice",
    "AnnouncesChanges",
    "AttachesToRunningPods",
    "ChecksHost",
    "ClaimRequest",
    "ContainerEdits",
    "DeviceConfig",
    "DeviceHealth",
    "DeviceNode",
    "DeviceStatus",
    "Driver",
    "DriverError",
    "Hook",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "Pool",
    "PreparedClaim",
    "PreparedDevice",
    "Recovers",
    "ReportsHealth",
    "RunningDriver",
    "RunsBeside",
    "Settings",
    "UsesApi",
    "run",
    "run_all",
    "serve",
    "serving_driver",
]
