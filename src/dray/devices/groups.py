"""Compatibility groups: which devices may draw from one counter set at the same time.

Devices that draw from one counter set and are in use together must have a group in common; those
without groups go with those without groups only. The groups that all devices in use agree on are folded
device by device: `admits_groups` asks whether one more may join, `narrow_groups` makes it join.
"""

from __future__ import annotations

from typing import Final

Groups = frozenset[str] | None  # None: no device in use yet; empty: only devices without groups

_NOTHING_IN_COMMON: Final = frozenset({""})  # no real group has an empty name, so nobody is admitted


def admits_groups(running: Groups, groups: frozenset[str]) -> bool:
    """Return whether a device with these groups may join those in use."""
    if running is None:
        return True
    if not running or not groups:
        return not running and not groups
    return bool(running & groups)


def narrow_groups(running: Groups, groups: frozenset[str]) -> Groups:
    """Return the groups that are left in common when a device with these groups joins.

    Devices in use that do not go together were not allocated together; their slices have changed since. Then
    the order of the slices decides what is left, as upstream.
    """
    if running is None:
        return groups
    if not running or not groups:
        return running
    return running & groups or _NOTHING_IN_COMMON
