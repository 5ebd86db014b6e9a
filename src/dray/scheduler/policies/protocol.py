"""What a policy is: how good it would be to put a pod on a node, told from what is free there.

A policy decides between nodes on which a pod fits; it never decides whether it fits. It sees a
pod as a `PodDemand` and a node as a `NodeSupply`, before and after, and returns a number:

    class LeastCpu(NodePolicy):
        name = "least-cpu"

        def score(self, pod, before, after):
            return -after.cpu

Theory of operation. `ranking` keeps the scores of all nodes for each kind of pod and asks again only
about nodes that changed, so `score` must depend on its arguments and on `version` alone. The best nodes by
`score` are compared once more by `refine`, which may be slower: it is asked about `shortlist` different
nodes at most. What the policy wants to learn from arrivals it learns in `observe`, and then raises `version`.

Which devices of the chosen node are taken is the allocator's decision, in the order that `devices` prefers. For
claims on partitions (MIG) and for "all devices" there is no summary; nodes are then compared by `plans`.

Amounts: millicpu, bytes, and thousandths of a device. A device that several claims share has what is left
of its scarcest capacity; any other device has 1000 or 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dray.allocator import POLICIES, RequestFootprint
from dray.allocator import Policy as DevicePolicy

WHOLE = 1000  # thousandths of a device


@dataclass(frozen=True, slots=True, eq=False)
class PodDemand:
    """What pods of one kind ask for; one object per kind."""

    cpu: int
    memory: int
    has_claims: bool = False
    # Hardware number -> what the requests take there; hardware without matching devices is left out.
    footprints: dict[int, tuple[RequestFootprint, ...]] = field(default_factory=dict)

    @property
    def amount(self) -> int:
        """Thousandths of devices in all, on some hardware."""
        for footprints in self.footprints.values():
            total = 0
            for count, amount, _ in footprints:
                total += count * amount
            return total
        return 0


class NodeSupply(NamedTuple):
    """What is free on a node."""

    cpu: int
    memory: int
    devices: tuple[int, ...]  # free thousandths, by position
    hardware: int  # nodes with equal numbers have the same devices in the same positions
    cpu_total: int = 0

    @property
    def free(self) -> int:
        """Free thousandths of all devices."""
        return sum(self.devices)

    def after(self, pod: PodDemand) -> NodeSupply | None:
        """Return what is left with the pod on it, devices chosen best-fit; None where it does not fit."""
        cpu, memory = self.cpu - pod.cpu, self.memory - pod.memory
        if cpu < 0 or memory < 0:
            return None
        if not pod.has_claims:
            return NodeSupply(cpu, memory, self.devices, self.hardware, self.cpu_total)
        footprints = pod.footprints.get(self.hardware)
        if footprints is None:
            return None
        free = list(self.devices)
        for count, amount, matching in footprints:
            if max(free, default=0) < amount:
                return None
            for _ in range(count):
                best, least = -1, WHOLE + 1
                for position, left in enumerate(free):
                    if amount <= left < least and matching >> position & 1:
                        best, least = position, left
                if best < 0:
                    return None
                free[best] -= amount
                matching &= ~(1 << best)  # the devices of one request are different ones
        return NodeSupply(cpu, memory, tuple(free), self.hardware, self.cpu_total)


class NodePolicy:
    """Base of all policies; override `score`, and more where needed. See the module docstring."""

    name: str = ""
    devices: DevicePolicy = POLICIES["pack"]  # order of the devices on a node
    plans: DevicePolicy = POLICIES[
        "pack"
    ]  # compares nodes by the allocator's plans, where there is no summary
    shortlist: int = 0  # nodes compared by `refine`; 0 means: `score` alone decides
    version: int = 0  # raised when earlier scores are no longer true

    def observe(self, pod: PodDemand) -> None:
        """Take note of a pod that arrived; called once per pod."""

    def describe(self, devices_by_hardware: Mapping[int, int]) -> None:
        """Take note of how many devices there are of each hardware; called when that may have changed."""

    def score(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Return how good the node is for the pod; higher is better, equal ones go by name."""
        raise NotImplementedError

    def refine(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Return what to add to the score of a node on the shortlist."""
        return 0.0

    def score_without_devices(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Score a node for a pod without claims: it should keep away from free devices, then fit tightly."""
        return -before.free - after.cpu / (1 + before.cpu_total)
