"""Image locality: nodes that have a pod's images are preferred, by kube-scheduler's numbers."""

import msgspec
import pytest
from scheduler_builders import SmallCluster, container, node, pod

from dray.api.core import Node

MB = 1024 * 1024


def stocked(name, **images):
    found = msgspec.to_builtins(node(name))
    found["status"]["images"] = [
        {"names": [f"{key}:latest", f"registry/{key}@sha256:1"], "sizeBytes": size}
        for key, size in images.items()
    ]
    return msgspec.convert(found, Node)


def using(*images):
    return pod("p", containers=[container(name=f"c{i}") | {"image": each} for i, each in enumerate(images)])


def score(cluster, wanted, name):
    return cluster.placer.images.score(wanted, cluster.state.nodes[name])


def test_a_pod_goes_where_its_image_is():
    cluster = SmallCluster(node("a"), node("b"), stocked("c", train=4000 * MB), node("d"))
    assert cluster.place(using("train")).node == "c"
    assert cluster.place(using("train:v2")).node == "a", "another tag is another image"


@pytest.mark.parametrize(
    ("size", "expected"),
    [(10 * MB, 0), (46 * MB, 0), (2000 * MB, 100), (1023 * MB, 100.0 * (511.5 - 23) / (1000 - 23))],
)
def test_sizes_count_by_the_share_of_nodes_that_have_them(size, expected):
    cluster = SmallCluster(stocked("a", train=size), node("b"))
    assert score(cluster, using("train"), "a") == pytest.approx(expected)
    assert score(cluster, using("train"), "b") == 0


def test_images_that_nodes_lose_are_forgotten():
    cluster = SmallCluster(stocked("a", train=4000 * MB), stocked("b", train=4000 * MB))
    assert score(cluster, using("train"), "a") == 100
    cluster.add(node("a"))
    assert score(cluster, using("train"), "a") == 0
    cluster.state.delete_node("b")
    assert not cluster.placer.images


def test_every_container_counts():
    cluster = SmallCluster(stocked("a", train=2000 * MB, tool=1 * MB))
    assert score(cluster, using("train", "tool"), "a") == pytest.approx(100.0)
    assert score(cluster, using("train", "other", "more"), "a") < 70
