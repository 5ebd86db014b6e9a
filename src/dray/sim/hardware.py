"""A cluster of modelled hardware as a snapshot: what nodes with these profiles would publish."""

from __future__ import annotations

from collections.abc import Iterable

from dray.api.core import Node, NodeStatus
from dray.api.meta import Condition, ObjectMeta
from dray.drivers.hardware import Profile, device_classes, pool_slices
from dray.sim.snapshot import Snapshot


def hardware_node(profile: Profile, name: str) -> Node:
    """Return the node that a machine with this hardware would register."""
    return Node(
        metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **profile.labels}),
        status=NodeStatus(
            capacity=dict(profile.allocatable),
            allocatable=dict(profile.allocatable),
            conditions=[Condition(type="Ready", status="True")],
        ),
    )


def hardware_snapshot(profiles: Iterable[tuple[Profile, int]]) -> Snapshot:
    """Return a cluster with `count` empty nodes of each profile, and the classes of their drivers."""
    snapshot = Snapshot()
    drivers: set[str] = set()
    for profile, count in profiles:
        for number in range(1, count + 1):
            name = f"{profile.name}-{number}"
            snapshot.add_view(hardware_node(profile, name))
            pools = profile.pools(name)
            drivers |= {pool.driver for pool in pools}
            for found in pool_slices(pools):
                snapshot.add_view(found)
    for device_class in device_classes(frozenset(drivers)):
        snapshot.add_view(device_class)
    return snapshot
