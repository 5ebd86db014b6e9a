"""How much fits into one ResourceSlice: for validation, and for all who divide pools into slices."""

from __future__ import annotations

from typing import Final

from dray.api.resource import Device

MOST_DEVICES: Final = 128
MOST_WITH_RICH_DEVICES: Final = 64  # where one of them is rich
MOST_COUNTER_SETS: Final = 8


def is_rich(device: Device) -> bool:
    """Return whether the device has taints, counters or list values: fewer of those fit."""
    return bool(device.taints or device.consumes_counters) or any(
        values is not None
        for value in (device.attributes or {}).values()
        for values in (value.ints, value.bools, value.strings, value.versions)
    )
