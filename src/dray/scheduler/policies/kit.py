"""A test kit for policies: what every policy must do, whatever it prefers.

    from dray.scheduler.policies.kit import check_policy

    def test_my_policy():
        check_policy(MyPolicy)

The kit asks the policy about small nodes of two kinds of hardware, empty, half full and full, for pods with
shares, whole devices, several devices and none, and lets it observe a thousand arrivals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from dray.allocator import RequestFootprint
from dray.scheduler.policies.protocol import WHOLE, NodePolicy, NodeSupply, PodDemand


def check_policy(make: Callable[[], NodePolicy]) -> None:
    """Raise AssertionError, with the reason, if the policy breaks a rule."""
    policy, twin = make(), make()
    pods = list(_pods())
    for each in (policy, twin):
        each.describe({0: 8, 1: 4})
    for number in range(1000):
        before = policy.version
        policy.observe(pods[number % len(pods)])
        twin.observe(pods[number % len(pods)])
        assert policy.version >= before, "version must not go back"
    assert policy.version == twin.version, "equal arrivals must lead to equal versions"
    for pod in pods:
        for supply in _supplies():
            after = supply.after(pod)
            if after is not None:
                _check_scores(policy, twin, pod, supply, after)


def _check_scores(
    policy: NodePolicy, twin: NodePolicy, pod: PodDemand, supply: NodeSupply, after: NodeSupply
) -> None:
    version = policy.version
    names = ("score", "refine") if pod.has_claims else ("score_without_devices",)
    for name in names:
        found = getattr(policy, name)(pod, supply, after)
        where = f"{name} of {pod} on {supply}"
        assert isinstance(found, int | float), f"{where}: {found!r} is not a number"
        assert math.isfinite(found), f"{where} is {found}"
        assert found == getattr(policy, name)(pod, supply, after), f"{where} changes without a new version"
        assert found == getattr(twin, name)(pod, supply, after), (
            f"{where} depends on more than what was observed"
        )
    assert policy.version == version, "scoring must not change the version"


def _pods() -> Iterator[PodDemand]:
    for n_devices, amount in ((1, 250), (1, 500), (1, WHOLE), (2, WHOLE), (4, WHOLE)):
        footprint = RequestFootprint(n_devices, amount, 0b1111)
        yield PodDemand(
            1000 * n_devices, 1 << 30, has_claims=True, footprints={0: (footprint,), 1: (footprint,)}
        )
    yield PodDemand(4000, 1 << 30, has_claims=True, footprints={1: (RequestFootprint(1, WHOLE, 0b1111),)})
    yield PodDemand(2000, 1 << 30)


def _supplies() -> Iterator[NodeSupply]:
    for hardware in (0, 1):
        for devices in ((WHOLE,) * 4, (0, 0, WHOLE, WHOLE), (0, 250, 500, 750), (0, 0, 0, 0)):
            for cpu in (0, 4000, 64_000):
                yield NodeSupply(cpu, 64 << 30, devices, hardware, 64_000)
