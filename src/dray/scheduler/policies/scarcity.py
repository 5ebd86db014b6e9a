"""How many of the expected pods can use only some of the hardware: capacity that others should leave to them.

Pods that name a model, or want many devices on one node, fit on part of the cluster only. What others take there
is lost to them, although the others could go elsewhere. The pressure on a kind of hardware is 0 when every
expected pod can use all devices, and grows with the demand that falls on it beyond its share of the capacity.
"""

from __future__ import annotations

from collections.abc import Mapping

from dray.scheduler.policies.request_mix import RequestMix


class Scarcity:
    """The pressure on each kind of hardware, for the mix of pods that is learned."""

    def __init__(self, mix: RequestMix) -> None:
        self._mix = mix
        self._capacity: dict[int, int] = {}  # hardware number -> devices of that kind in the cluster
        self._pressure: dict[
            int, float
        ] = {}  # hardware number -> pressure, for the mix and capacity as they are

    def describe(self, devices_by_hardware: Mapping[int, int]) -> None:
        """Take note of the capacity."""
        self._capacity = dict(devices_by_hardware)
        self.forget()

    def forget(self) -> None:
        """Drop what was computed: the mix has changed."""
        self._pressure.clear()

    def pressure(self, hardware: int) -> float:
        """Return how much more of the expected demand falls on this hardware than its share of the capacity."""
        found = self._pressure.get(hardware)
        if found is None:
            found = self._pressure[hardware] = self._pressed(hardware)
        return found

    def _pressed(self, hardware: int) -> float:
        total = sum(self._capacity.values()) or 1
        demand = sum(weight * pod.amount for pod, weight in self._mix.current) or 1.0
        found = 0.0
        for pod, weight in self._mix.current:
            if hardware not in pod.footprints:
                continue
            reachable = sum(n for number, n in self._capacity.items() if number in pod.footprints)
            if reachable:
                found += weight * pod.amount / demand * (total / reachable - 1.0)
        return found
