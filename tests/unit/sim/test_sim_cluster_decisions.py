"""The offline cluster decides as the scheduler does: it would preempt, release, and keep extended resources apart."""

import msgspec
from scheduler_builders import allocated, claim, container, device_class, node, pod, resource_slice

from dray.api.resource import ResourceClaim
from dray.sim.cluster import OfflineCluster
from dray.sim.snapshot import Snapshot

GPU = "example.com/gpu"


def cluster(*pods, claims=(), **devices):
    snapshot = Snapshot()
    snapshot.nodes += map(node, devices)
    snapshot.slices += [
        resource_slice(name, *(f"g{index}" for index in range(count))) for name, count in devices.items()
    ]
    snapshot.classes.append(device_class(extended_resource_name=GPU))
    snapshot.claims += claims
    snapshot.pods += pods
    return OfflineCluster(snapshot)


def with_claim(name, **more):
    return pod(name, resource_claims=[{"name": "c", "resourceClaimName": f"of-{name}"}], **more)


def test_a_refusal_names_the_pods_that_would_be_preempted():
    low, high = with_claim("low", priority=1), with_claim("high", priority=10)
    offline = cluster(low, high, claims=[claim("of-low"), claim("of-high")], a=1)
    assert [each.node for each in offline.place([low]).placed] == ["a"]
    [refused] = offline.place([high]).refused
    assert refused.reason.endswith("; preemption would evict ns/low from node a")
    assert offline.pods["ns/low"].spec.node_name == "a", "it would, and it has not"


def test_an_allocation_that_cannot_be_used_is_released_and_made_anew():
    waiting = with_claim("p")
    first = cluster(waiting, claims=[claim("of-p")], a=1)
    [placed] = first.place([waiting]).placed
    body = msgspec.to_builtins(allocated(claim("of-p"), first.claims["ns/of-p"].status.allocation))
    gone = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "values": ["gone"]}]}]}
    body["status"]["allocation"]["nodeSelector"] = gone
    offline = cluster(waiting, claims=[msgspec.convert(body, ResourceClaim)], a=1)
    assert offline.place([waiting]).placed == [placed]


def test_pods_with_extended_resources_keep_the_devices_of_each_other():
    pods = [pod(f"p{index}", containers=[container(**{GPU: "1"})]) for index in range(3)]
    outcome = cluster(*pods, a=2).place(pods)
    devices = [name for each in outcome.placed for found in each.devices.values() for name in found]
    assert len(devices) == len(set(devices)) == 2
    assert [each.pod for each in outcome.refused] == ["ns/p2"]
    assert all("<" not in key for each in outcome.placed for key in each.devices)
