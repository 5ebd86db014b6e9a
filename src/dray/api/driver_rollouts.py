"""DriverRollout of `fleet.dray.dev/v1alpha1`: a driver that is replaced node by node.

The object is the whole state of a rollout: `spec` says what is wanted, `status` how far each node is. Whoever drives
it may be killed at any moment; the next one goes on from the status (`dray.workbench.fleet.rollout`).
"""

from __future__ import annotations

from typing import Final

from dray.api.meta import ObjectMeta, View

GROUP: Final = "fleet.dray.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "DriverRollout"
PLURAL: Final = "driverrollouts"
API_VERSION: Final = f"{GROUP}/{VERSION}"
VERSION_ANNOTATION: Final = "dray.dev/driver-version"  # of the DaemonSet's template, and so of its pods

# What happens to pods that use the devices of a node while its driver is replaced.
KEEP: Final = "Keep"  # they stay; nothing new is allocated there
WAIT: Final = "Wait"  # their end is waited for
EVICT: Final = "Evict"  # they are evicted within their disruption budgets


class DaemonSetReference(View, frozen=True):
    """The DaemonSet (with `updateStrategy: OnDelete`) whose pods are the driver."""

    namespace: str = ""
    name: str = ""
    container: str = ""  # whose image changes; empty means: the first


class DriverTemplate(View, frozen=True):
    """What differs between two versions in the DaemonSet's template."""

    version: str = ""
    image: str = ""  # empty means: the image does not change


class DriverRolloutSpec(View, frozen=True):
    """What is wanted; only `paused` and `abort` change later."""

    driver: str = ""
    daemon_set: DaemonSetReference = DaemonSetReference()
    to: DriverTemplate = DriverTemplate()
    pods: str = WAIT
    max_unavailable: int = 1  # nodes at work at a time
    canary: int = 1  # nodes that go first, before all others
    max_failures: int = 1  # so many failed nodes end the rollout
    roll_back: bool = True  # what to do then
    expect_published_version: bool = False  # devices must publish `driverVersion: <to.version>`
    step_seconds: int = 600  # for one step of one node
    pause_after_canary: bool = False
    paused: bool = False
    abort: bool = False


class NodeRollout(View, frozen=True):
    """How far one node is."""

    name: str = ""
    step: str = "Pending"
    reverting: bool = False
    since: str = ""  # when the step began
    message: str = ""  # what is waited for
    evidence: str = ""  # of the last failure; it stays when the node is reverted


class DriverRolloutStatus(View, frozen=True):
    """How far all nodes are."""

    phase: str = ""
    message: str = ""
    previous: DriverTemplate | None = None  # what a rollback returns to
    nodes: list[NodeRollout] = []


class DriverRollout(View, frozen=True):
    """One rollout."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DriverRolloutSpec = DriverRolloutSpec()
    status: DriverRolloutStatus = DriverRolloutStatus()
