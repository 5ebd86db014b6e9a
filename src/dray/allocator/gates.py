"""The feature gates that change an allocation, as plain attributes.

Reading `"DRADeviceTaints" in features` in an inner loop is slow and hides which
gates matter; here they are named after what they allow.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.features import Features


@dataclass(frozen=True, slots=True)
class Gates:
    """Which optional behaviour is on."""

    admin_access: bool
    prioritized_list: bool
    partitionable: bool
    taints: bool
    conditions: bool  # binding conditions need the device status gate, too
    shares: bool  # consumable capacity
    fractional: bool  # ranges in thousandths
    list_attributes: bool
    optional_operations: bool
    derived: bool
    groups: bool  # compatibility groups

    @classmethod
    def of(cls, features: Features) -> Gates:
        """Read the gates out of the set of features that are on."""
        return cls(
            admin_access="DRAAdminAccess" in features,
            prioritized_list="DRAPrioritizedList" in features,
            partitionable="DRAPartitionableDevices" in features,
            taints="DRADeviceTaints" in features,
            conditions="DRADeviceBindingConditions" in features
            and "DRAResourceClaimDeviceStatus" in features,
            shares="DRAConsumableCapacity" in features,
            fractional="DRAFractionalCapacityRange" in features,
            list_attributes="DRAListTypeAttributes" in features,
            optional_operations="DRAOptionalNodeOperations" in features,
            derived="DRADerivedAttributes" in features,
            groups="DRADeviceCompatibilityGroups" in features,
        )
