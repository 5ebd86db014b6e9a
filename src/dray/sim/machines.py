"""Machines that can be had: what `dray autoscale` asks for, and what whoever hosts nodes provides.

A machine becomes one node of a node group. Its node carries the group's name as a label and, as spec.providerID, the
id by which node and machine are matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dray.api.core import Node
from dray.api.resource import ResourceSlice

GROUP_LABEL: Final = "dray.dev/node-group"
PROVIDER: Final = "dray"
CREATING: Final = "creating"
RUNNING: Final = "running"
DELETING: Final = "deleting"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine of a group."""

    name: str  # of its node
    group: str
    state: str = RUNNING  # creating, running, deleting, failed
    since: float = 0.0  # when it was asked for, in seconds of the same clock as `now`
    message: str = ""  # why it failed

    @property
    def provider_id(self) -> str:
        """Return what its node has as spec.providerID."""
        return provider_id(self.group, self.name)


def provider_id(group: str, name: str) -> str:
    """Return the id by which node and machine are matched.

    >>> provider_id("l40s", "l40s-x2b4d")
    'dray://l40s/l40s-x2b4d'
    """
    return f"{PROVIDER}://{group}/{name}"


class Machines(Protocol):
    """What starts and stops machines."""

    def instances(self) -> Sequence[Instance]:
        """Return all machines that were started and are not gone."""

    async def start(self, name: str, group: str, node: Node, slices: Sequence[ResourceSlice]) -> None:
        """Begin to start a machine whose node is to look like this; returns before it has joined."""

    async def stop(self, name: str) -> None:
        """Begin to remove a machine with its node; returns before it is gone. One that is gone already is fine."""
