"""Return whether a node has failed: decided from its lease, and only from time in which a renewal could be seen.

A node shows that it lives by renewing its Lease. A lease that was not renewed means something only if
the renewal would have been noticed: while the API server does not answer, or while this process itself
does not run, no node can be judged. So silence is not measured with a clock but in `ServerAvailability`:
seconds during which the server is known to have answered. A pause of the server, of the network before
it or of this process adds at most `longest_step` to the silence of every node, however long it lasts.

When no node at all is healthy the fault is more likely in what they share than in each of them, so no pod
is evicted then (`Disruption`). The rules are those of kube-controller-manager's node lifecycle controller:

| state | NoExecute taints of failed nodes |
|---|---|
| no healthy node in the cluster | are removed |
| no healthy node in this zone | are added |
| more than two failed nodes in this zone, 55 % of it or more | are kept; new ones once in 100 s, in clusters of up to 50 nodes never |
| otherwise | are added |

Pure: moments are arguments, in seconds of a clock that does not go back.
Tests: tests/unit/control/test_control_nodes.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

UNHEALTHY_FRACTION = 0.55  # of a zone's nodes; kube-controller-manager's --unhealthy-zone-threshold
LARGE_CLUSTER = 50  # nodes; --large-cluster-size-threshold
SECONDARY_PERIOD = 100.0  # seconds between two nodes; 1 / --secondary-node-eviction-rate
_FEWEST_FAILED = 2  # so many failed nodes, or fewer, are never called a disruption of part of a zone


class ServerAvailability:
    """Seconds during which the API server was seen to answer.

    `longest_step` is the longest time between two answers that still counts as uninterrupted.
    """

    def __init__(self, longest_step: float) -> None:
        self._longest_step = longest_step
        self._counted = 0.0
        self._answered_at: float | None = None
        self._uninterrupted_since = math.inf

    def note_answer(self, now: float) -> None:
        """Note that the server has just answered."""
        if self._answered_at is None or now - self._answered_at > self._longest_step:
            self._uninterrupted_since = now
        self._counted = self.seconds(now)
        self._answered_at = now

    def seconds(self, now: float) -> float:
        """Return the seconds of availability so far; never goes back."""
        if self._answered_at is None:
            return 0.0
        return self._counted + min(max(0.0, now - self._answered_at), self._longest_step)

    def uninterrupted(self, now: float) -> float:
        """Return for how long the server has been answering, counted from the last interruption."""
        if self._answered_at is None or now - self._answered_at > self._longest_step:
            return 0.0
        return max(0.0, now - self._uninterrupted_since)


class NoExecute(Enum):
    """What may be done with the NoExecute taints of a failed node."""

    ADD = "add"
    KEEP = "keep"  # add none, remove none
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class NodeState:
    """What counts of a node when a disruption is to be recognised."""

    zone: str
    is_healthy: bool


class Disruption:
    """Which failed nodes may be tainted NoExecute, given how many nodes have failed."""

    def __init__(self, nodes: Iterable[NodeState] = ()) -> None:
        healthy: dict[str, int] = {}
        failed: dict[str, int] = {}
        for node in nodes:
            for counts, amount in ((healthy, node.is_healthy), (failed, not node.is_healthy)):
                counts[node.zone] = counts.get(node.zone, 0) + amount
        self.is_total = any(failed.values()) and not any(healthy.values())
        self._is_large = sum(healthy.values()) + sum(failed.values()) > LARGE_CLUSTER
        self._partial = {
            zone
            for zone, count in failed.items()
            if healthy[zone]
            and count > _FEWEST_FAILED
            and count / (count + healthy[zone]) >= UNHEALTHY_FRACTION
        }

    def no_execute(self, zone: str, since_last: float) -> NoExecute:
        """Return what may be done in a zone whose last node was tainted `since_last` seconds ago."""
        if self.is_total:
            return NoExecute.REMOVE
        if zone not in self._partial:
            return NoExecute.ADD
        is_due = self._is_large and since_last >= SECONDARY_PERIOD
        return NoExecute.ADD if is_due else NoExecute.KEEP
