"""Feature gates, with the defaults of Kubernetes v1.37.

A gate is a name in a frozen set: `Features({"DRAPartitionableDevices"})`. What is
not in the set is off. Gates that are GA and locked upstream can still be switched
off here, because the allocator's test vectors do so.
"""

from __future__ import annotations

from collections.abc import Iterable

# Of dray alone, also the name under which its nodes declare the ability: docs/adr/0023-devices-after-pod-start.md
DEVICES_AFTER_POD_START = "DRADevicesAfterPodStart"

# Gate -> on by default in v1.37.
KNOWN_GATES: dict[str, bool] = {
    "DynamicResourceAllocation": True,
    "DRAAdminAccess": True,
    "DRAPrioritizedList": True,
    "DRAResourceClaimDeviceStatus": True,
    "DRAResourceClaimGranularStatusAuthorization": True,
    "DRADeviceTaints": True,
    "DRADeviceTaintRules": True,
    "DRAExtendedResource": True,
    "DRAPartitionableDevices": True,
    "DRAConsumableCapacity": True,
    "DRAFractionalCapacityRange": False,
    "DRADeviceBindingConditions": True,
    "DRASchedulerFilterTimeout": True,
    "DRAWorkloadResourceClaims": False,
    "DRAListTypeAttributes": False,
    "DRADerivedAttributes": False,
    "DRADeviceCompatibilityGroups": False,
    "DRAOptionalNodeOperations": False,
    "DRANodeAllocatableResources": False,
    "DRAResourcePoolStatus": False,
    "DRAPartitionableDevicesType": False,
    "ResourceHealthStatus": True,
    "ResourceHealthStatusMessage": True,
    "GenericWorkload": False,
    DEVICES_AFTER_POD_START: False,
    "NodeDeclaredFeatures": True,
}


class Features(frozenset[str]):
    """The gates that are on."""

    __slots__ = ()

    @classmethod
    def default(cls) -> Features:
        """Return the gates of a plain v1.37 cluster."""
        return cls(name for name, on in KNOWN_GATES.items() if on)

    @classmethod
    def everything(cls) -> Features:
        """Return all gates, alpha ones included."""
        return cls(KNOWN_GATES)

    def switched(self, on: Iterable[str] = (), off: Iterable[str] = ()) -> Features:
        """Return these gates with some switched on and others off."""
        return Features((self | frozenset(on)) - frozenset(off))
