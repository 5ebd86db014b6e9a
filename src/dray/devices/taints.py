"""Device taints: which devices a rule taints, and which tolerations keep running pods.

A taint with the effect NoSchedule or NoExecute keeps new claims away, one with NoExecute also evicts
the pods that use the device; None only informs. Taints come from slices and from DeviceTaintRules.
"""

from __future__ import annotations

from dray.api.resource import DeviceTaint, DeviceTaintRule, DeviceToleration
from dray.api.tolerations import NO_EXECUTE, tolerates


def tolerates_eviction(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Return whether a toleration covers a NoExecute taint for pods that run already.

    Upstream's eviction controller looks only at tolerations that name the effect; one for any effect
    lets a claim be allocated but does not keep its pods.
    """
    return toleration.effect == NO_EXECUTE and tolerates(toleration, taint)


def rule_selects(rule: DeviceTaintRule, driver: str, pool: str, device: str | None) -> bool:
    """Return whether a rule's selector selects a device (None: any device of the pool).

    A rule without selector selects every device. That is what upstream's slice tracker makes of it when it
    schedules; its eviction controller reads the same rule as "no device" and so must its callers here.
    """
    selector = rule.spec.device_selector
    if selector is None:
        return True
    return (
        (selector.driver is None or selector.driver == driver)
        and (selector.pool is None or selector.pool == pool)
        and (device is None or selector.device is None or selector.device == device)
    )
