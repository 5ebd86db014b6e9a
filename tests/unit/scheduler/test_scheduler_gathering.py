"""Policies on clusters larger than a sample: packing gathers, spreading spreads."""

import pytest

from dray.allocator import policy_named
from dray.drivers.hardware import load_profile
from dray.local.demo_scenes import claim, pod, request
from dray.sim.cluster import OfflineCluster
from dray.sim.snapshot import Snapshot


def nodes_used(policy):
    snapshot = Snapshot()
    for number in range(24):
        snapshot.add(claim(f"c{number}", [request("g", "gpu.nvidia.com")]))
        snapshot.add(pod(f"c{number}", [f"c{number}"]))
    cluster = OfflineCluster(snapshot, policy_named(policy))
    profile = load_profile("workstation")
    for number in range(200):
        cluster.add_hardware(profile, f"n{number:03}")
    outcome = cluster.place(list(cluster.pods.values()))
    assert len(outcome.placed) == 24
    return len({placed.node for placed in outcome.placed})


@pytest.mark.parametrize(("policy", "nodes"), [("pack", 12), ("frag", 12), ("spread", 24)])
def test_a_policy_keeps_its_word_beyond_one_sample(policy, nodes):
    assert nodes_used(policy) == nodes
