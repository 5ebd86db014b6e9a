"""A cluster of modelled hardware as a snapshot: what nodes with these profiles would publish."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dray.api.core import Node, NodeSpec, NodeStatus, Taint
from dray.api.meta import Condition, ObjectMeta
from dray.api.well_known import NODE_FEATURES
from dray.drivers.hardware import Profile, ProfileError, device_classes, load_profile, pool_slices
from dray.sim.snapshot import Snapshot

MOST_NODES = 10_000  # of modelled hardware in one cluster; twice what Kubernetes supports

_COUNT = re.compile(r"(?P<name>.*?)(:(?P<count>[0-9]+))?", re.DOTALL)


def parse_hardware(texts: Iterable[str]) -> list[tuple[Profile, int]]:
    """Read `PROFILE[:COUNT]` words; raise ProfileError for unknown profiles and for too many nodes.

    >>> [(profile.name, count) for profile, count in parse_hardware(["dgx-h100:2", "cpu-numa"])]
    [('dgx-h100', 2), ('cpu-numa', 1)]
    """
    found = []
    for text in texts:
        match = _COUNT.fullmatch(text)
        assert match is not None  # both parts may be empty
        digits = match["count"] or "1"
        # Longer numbers are not converted: that alone takes long for millions of digits.
        count = int(digits) if len(digits.lstrip("0")) <= len(str(MOST_NODES)) else MOST_NODES + 1
        found.append((load_profile(match["name"]), count))
        if sum(count for _, count in found) > MOST_NODES:
            raise ProfileError(f"{text[:60]}: more than {MOST_NODES} nodes in all")
    return found


def hardware_node(profile: Profile, name: str) -> Node:
    """Return the node that a machine with this hardware would register."""
    return Node(
        metadata=ObjectMeta(name=name, labels=profile.node_labels(name)),
        spec=NodeSpec(taints=[Taint(**taint) for taint in profile.taints]),
        status=NodeStatus(
            capacity=dict(profile.allocatable),
            allocatable=dict(profile.allocatable),
            conditions=[Condition(type="Ready", status="True")],
            declared_features=list(NODE_FEATURES),
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
