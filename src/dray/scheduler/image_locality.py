"""Prefer nodes that have the images of a pod: the sizes of those that are there, less for images that few nodes have.

The numbers are kube-scheduler's ImageLocality: an image counts with its size times the share of the nodes that have it, so that one node with a rare image
does not attract all pods of a kind; the sum is scaled to 0..100 between 23 MB and 1000 MB for each container.
"""

from __future__ import annotations

from typing import Final

from dray.api.core import Pod
from dray.scheduler.state import ClusterState, NodeState

_LEAST: Final = 23 * 1024 * 1024  # bytes; less than this is pulled in no time
_MOST: Final = 1000 * 1024 * 1024  # bytes for each container


class ImageLocality:
    """Knows which node has which images."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._images: dict[str, dict[str, int]] = {}  # node -> image -> bytes
        self._counts: dict[str, int] = {}  # image -> nodes
        state.node_listeners.append(self._node_changed)

    def __bool__(self) -> bool:
        """Return whether any node tells of images."""
        return bool(self._images)

    def _node_changed(self, node: NodeState) -> None:
        for image in self._images.pop(node.name, ()):
            self._counts[image] -= 1
            if not self._counts[image]:
                del self._counts[image]
        if self._state.nodes.get(node.name) is not node:
            return
        found = {name: image.size_bytes for image in node.node.status.images for name in image.names}
        if found:
            self._images[node.name] = found
            for image in found:
                self._counts[image] = self._counts.get(image, 0) + 1

    def score(self, pod: Pod, node: NodeState) -> float:
        """Return from 0 to 100 how much of the pod's images the node has."""
        here = self._images.get(node.name)
        if not here:
            return 0.0
        containers = (*pod.spec.init_containers, *pod.spec.containers)
        n_nodes = len(self._state.nodes)
        total = 0.0
        for container in containers:
            image = with_tag(container.image)
            if image in here:
                total += here[image] * self._counts[image] / n_nodes
        most = _MOST * len(containers)
        return 100.0 * (min(max(total, _LEAST), most) - _LEAST) / (most - _LEAST)


def with_tag(image: str) -> str:
    """Return the name under which nodes list an image.

    >>> with_tag("registry.example:5000/train"), with_tag("train:v2")
    ('registry.example:5000/train:latest', 'train:v2')
    """
    return image if ":" in image[image.rfind("/") + 1 :] else f"{image}:latest"
