"""Node groups: equal nodes that can be had in any number between two bounds.

A catalogue of node types (`dray.workbench.capacity`) becomes groups: one for each type, and one more for each compute
class that wants the type, because nodes of a class carry its label. `NodeGroups` is the one interface to change
their sizes. Our own controller uses it, and the service for cluster-autoscaler; both only say how many nodes and which ones.

What a node is made of is hidden behind `Machines`: `dray up` hosts simulated ones (`dray.local.node_host`).

Theory of operation: a node belongs to the group that its label `dray.dev/node-group` names, from its creation on. There is
no second list of sizes: the size of a group is the number of its machines that are not being removed.

Invariants (tests/unit/workbench/test_autoscaling.py):
  * a group never has more machines than its `most`, nor a type more than its `max` over all of its groups;
  * removing never leaves a group with fewer than its `least`;
  * a machine of another group is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dray.api.core import Node
from dray.api.resource import ResourceSlice
from dray.sim.machines import CREATING, DELETING, GROUP_LABEL, Instance, Machines
from dray.workbench.capacity import Catalogue, NodeType


class NodeGroupError(ValueError):
    """A size that a group cannot have, or a group or node that does not exist; the message says which."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes."""

    name: str
    node_type: NodeType
    compute_class: str = ""
    labels: Mapping[str, str] = field(
        default_factory=dict, compare=False
    )  # of nodes, beside those of the type

    @property
    def least(self) -> int:
        """Return how many nodes the group always has; those of a compute class may all go."""
        return 0 if self.compute_class else self.node_type.least

    @property
    def most(self) -> int:
        """Return how many nodes the group may have, when other groups of the same type have none."""
        return self.node_type.most

    def instance(self, name: str) -> tuple[Node, list[ResourceSlice]]:
        """Return a node of this group, as it would join, and the devices that its drivers would publish."""
        return self.node_type.instance(name, {**self.labels, GROUP_LABEL: self.name})


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group and its machines at one moment."""

    group: NodeGroup
    instances: tuple[Instance, ...] = ()

    @property
    def size(self) -> int:
        """Return how many machines the group has, without those that are being removed."""
        return sum(each.state != DELETING for each in self.instances)


def groups_of(catalogue: Catalogue) -> list[NodeGroup]:
    """Return the groups of a catalogue: its types, then the types of each compute class."""
    groups = [NodeGroup(each.name, each) for each in catalogue.types]
    by_name = {each.name: each for each in catalogue.types}
    for found in catalogue.classes:
        names = [name for entry in found.priorities for name in entry]
        names += [each.name for each in catalogue.types if found.may_use_any]
        groups += [
            NodeGroup(f"{name}.{found.name}", by_name[name], found.name, {found.label: found.name})
            for name in dict.fromkeys(names)
        ]
    return groups


class NodeGroups:
    """The groups of a catalogue, on machines."""

    def __init__(
        self, groups: Iterable[NodeGroup], machines: Machines, new_suffix: Callable[[], str]
    ) -> None:
        self._groups = {each.name: each for each in groups}
        self._machines = machines
        self._new_suffix = new_suffix  # a few letters that no other node has

    def states(self) -> list[GroupState]:
        """Return every group with its machines."""
        members: dict[str, list[Instance]] = {name: [] for name in self._groups}
        for each in self._machines.instances():
            if each.group in members:
                members[each.group].append(each)
        return [GroupState(group, tuple(members[name])) for name, group in self._groups.items()]

    def state(self, name: str) -> GroupState:
        """Return one group with its machines; raises NodeGroupError."""
        if name not in self._groups:
            raise NodeGroupError(f"there is no node group {name!r}; known: {', '.join(self._groups)}")
        return next(each for each in self.states() if each.group.name == name)

    def group_of(self, node: str) -> NodeGroup | None:
        """Return the group of a node; None when it is not ours."""
        found = next((each for each in self._machines.instances() if each.name == node), None)
        return self._groups.get(found.group) if found is not None else None

    def name_of(self, provider_id: str) -> str:
        """Return the node of the machine with an id; empty when there is none."""
        return next((each.name for each in self._machines.instances() if each.provider_id == provider_id), "")

    def room(self, name: str) -> int:
        """Return by how many nodes a group may grow."""
        group = self.state(name).group
        used = sum(each.size for each in self.states() if each.group.node_type.name == group.node_type.name)
        return group.most - used

    async def increase(self, name: str, delta: int) -> list[str]:
        """Add nodes to a group; returns their names. Raises NodeGroupError and adds none when there is no room."""
        if delta < 1:
            raise NodeGroupError(f"a group cannot be increased by {delta}")
        group = self.state(name).group
        if delta > self.room(name):
            raise NodeGroupError(
                f"node group {name} cannot get {delta} more: at most {group.most} of type {group.node_type.name}"
            )
        taken = {each.name for each in self._machines.instances()}
        names: list[str] = []
        while len(names) < delta:
            node = f"{group.name.replace('.', '-')[:40].rstrip('-')}-{self._new_suffix()}".lower()
            if node in taken:
                continue
            taken.add(node)
            names.append(node)
            await self._machines.start(node, name, *group.instance(node))
        return names

    async def decrease_target(self, name: str, delta: int) -> None:
        """Take back a part of an increase: `delta` (below 0) machines that have not joined yet. Raises NodeGroupError."""
        state = self.state(name)
        coming = [each for each in state.instances if each.state == CREATING]
        if delta >= 0:
            raise NodeGroupError(f"the change of a target must be below 0, not {delta}")
        if -delta > len(coming):
            raise NodeGroupError(
                f"node group {name}: {len(coming)} nodes have not joined yet, {-delta} cannot be taken back"
            )
        for each in sorted(coming, key=lambda found: -found.since)[:-delta]:
            await self._machines.stop(each.name)

    async def delete(self, name: str, nodes: Sequence[str], *, may_go_below_least: bool = False) -> None:
        """Remove nodes of a group; raises NodeGroupError, and removes none, when one is not its or too few would stay."""
        state = self.state(name)
        own = {each.name: each for each in state.instances}
        for node in nodes:
            if node not in own:
                raise NodeGroupError(f"node {node} does not belong to the node group {name}")
        going = {node for node in nodes if own[node].state != DELETING}
        if not may_go_below_least and state.size - len(going) < state.group.least:
            raise NodeGroupError(f"node group {name} keeps at least {state.group.least} nodes")
        for node in sorted(going):
            await self._machines.stop(node)
