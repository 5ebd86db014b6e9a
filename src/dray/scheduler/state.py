"""Nodes and the pods on them, kept up to date change by change.

The problem: a cluster has thousands of nodes, and Python cannot look at each of them
for each pod. Theory of operation: a node is a small integer, a set of nodes is one
Python int used as a bit set, and for every distinct question asked so far ("which
nodes pass these static rules", "which have this much free") the answer is kept as a
set. When a node changes it becomes dirty in every kept answer, and only dirty bits
are judged again when the question comes back. A burst of 2,500 equal pods over 500
nodes therefore judges about one node a pod.

Invariant (tests/property/test_scheduler_state_laws.py): a kept answer equals the
one computed from scratch. Undo of `assume` is `forget`: the state is then as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dray.api.caching import BoundedMap
from dray.api.core import Node, Pod, Taint
from dray.api.meta import NodeSelector
from dray.api.tolerations import NO_SCHEDULE, first_untolerated
from dray.api.well_known import UNSCHEDULABLE_KEY
from dray.scheduler.amounts import CPU, MEMORY, PODS, Amounts, Requests, amounts_of
from dray.scheduler.selecting import matches_node
from dray.scheduler.shape import HostPort, PodShape, shape_of

UNSCHEDULABLE_TAINT = Taint(key=UNSCHEDULABLE_KEY, effect=NO_SCHEDULE)
_MAX_ANSWERS = 64  # kinds of questions whose answers are kept; the oldest go first


@dataclass(slots=True, eq=False)
class PodUse:
    """A pod that uses resources of a node, bound or assumed."""

    uid: str
    key: str  # namespace/name
    namespace: str
    labels: dict[str, str]
    shape: PodShape
    priority: int
    pod: Pod
    node: str
    is_terminating: bool = False
    extra: Requests = ()  # node resources that the pod's devices stand for


@dataclass(slots=True, eq=False)
class NodeState:
    """A node and what is on it."""

    index: int
    name: str
    node: Node
    labels: dict[str, str]
    allocatable: Amounts
    max_pods: int
    used: Amounts = field(default_factory=dict)
    nominal: list[int] = field(default_factory=lambda: [0, 0])  # (millicpu, memory) for scoring
    pods: dict[str, PodUse] = field(default_factory=dict)  # uid -> pod
    ports: dict[HostPort, int] = field(default_factory=dict)  # how many pods bind it

    @property
    def bit(self) -> int:
        """The node as a set of one."""
        return 1 << self.index

    def free(self, resource: str) -> int:
        """How much of a resource is left."""
        return self.allocatable.get(resource, 0) - self.used.get(resource, 0)

    def fits(self, requests: Requests) -> bool:
        """Return whether the requests fit beside what is here."""
        if len(self.pods) >= self.max_pods:
            return False
        allocatable, used = self.allocatable, self.used
        return all(amount <= allocatable.get(name, 0) - used.get(name, 0) for name, amount in requests)

    def shortages(self, requests: Requests) -> list[str]:
        """Name the resources that are short; `pods` when the node is full of pods."""
        short = [PODS] if len(self.pods) >= self.max_pods else []
        return short + [name for name, amount in requests if amount > self.free(name)]


@dataclass(slots=True, eq=False)
class _Answer:
    """A kept set of nodes; bits in `dirty` must be judged again."""

    judge: Callable[[NodeState], bool]
    nodes: int = 0
    dirty: int = 0


class ClusterState:
    """All nodes and pods; updated change by change."""

    def __init__(self, required_by_profile: NodeSelector | None = None) -> None:
        self.required_by_profile = required_by_profile  # what every node must match, whatever the pod says
        self.nodes: dict[str, NodeState] = {}
        self.pods: dict[str, PodUse] = {}  # uid -> pod
        self._by_index: list[NodeState | None] = []
        self._free_indexes: list[int] = []
        self._present = 0  # bit set of nodes that exist
        self._static: BoundedMap[bytes, _Answer] = BoundedMap(_MAX_ANSWERS)
        self._free: BoundedMap[Requests, _Answer] = BoundedMap(_MAX_ANSWERS)
        self._orphans: dict[str, dict[str, PodUse]] = {}  # node name -> pods seen before their node
        self.port_users: dict[tuple[str, int], dict[str, int]] = {}  # (protocol, port) -> address -> nodes
        self._pods_by_priority: dict[int, int] = {}
        self.listeners: list[Callable[[PodUse, int], None]] = []  # told of every pod (+1 here, -1 gone)
        self.node_listeners: list[Callable[[NodeState], None]] = []

    # --- nodes ----------------------------------------------------------------

    @property
    def all_nodes(self) -> int:
        """The bit set of all nodes."""
        return self._present

    def in_set(self, nodes: int, start: int = 0) -> Iterator[NodeState]:
        """Yield the nodes of a bit set, beginning at bit `start` and wrapping around."""
        later, earlier = nodes >> start, nodes & ((1 << start) - 1)
        for rest, offset in ((later, start), (earlier, 0)):
            if not rest:
                continue
            # Thousands of bits are walked sooner as text than as a number.
            digits = bin(rest)[:1:-1]
            place = digits.find("1")
            while place >= 0:
                node = self._by_index[offset + place]
                assert node is not None
                yield node
                place = digits.find("1", place + 1)

    def set_node(self, node: Node) -> None:
        """Add or replace a node; pods on it stay."""
        name = node.metadata.name
        allocatable = amounts_of(
            node.status.allocatable if node.status.allocatable is not None else node.status.capacity
        )
        max_pods = allocatable.get(PODS, 0)
        known = self.nodes.get(name)
        if known is None:
            index = self._free_indexes.pop() if self._free_indexes else len(self._by_index)
            known = NodeState(index, name, node, node.metadata.labels or {}, allocatable, max_pods)
            if index == len(self._by_index):
                self._by_index.append(known)
            else:
                self._by_index[index] = known
            self.nodes[name] = known
            self._present |= known.bit
            self._mark(known, static=True)
            for pod in self._orphans.pop(name, {}).values():
                self._occupy(known, pod)
        else:
            known.node, known.labels = node, node.metadata.labels or {}
            known.allocatable, known.max_pods = allocatable, max_pods
            self._mark(known, static=True)
        for listener in self.node_listeners:
            listener(known)

    def delete_node(self, name: str) -> None:
        """Forget a node; its pods wait for it in case it returns."""
        known = self.nodes.pop(name, None)
        if known is None:
            return
        pods = dict(known.pods)
        for pod in pods.values():
            self._vacate(known, pod)
        if pods:
            self._orphans[name] = pods
        self._by_index[known.index] = None
        self._free_indexes.append(known.index)
        self._present &= ~known.bit
        for kept in (*self._static.values(), *self._free.values()):
            kept.nodes &= ~known.bit
            kept.dirty &= ~known.bit
        for listener in self.node_listeners:
            listener(known)

    # --- pods -----------------------------------------------------------------

    def assume(self, pod: Pod, node: str, shape: PodShape | None = None, extra: Requests = ()) -> PodUse:
        """Let the pod use the resources of its node; an earlier record of the same uid is replaced."""
        uid = pod.metadata.uid
        if uid in self.pods:
            self.forget(uid)
        use = PodUse(
            uid=uid,
            key=f"{pod.metadata.namespace}/{pod.metadata.name}",
            namespace=pod.metadata.namespace,
            labels=pod.metadata.labels or {},
            shape=shape if shape is not None else shape_of(pod),
            priority=pod.spec.priority or 0,
            pod=pod,
            node=node,
            is_terminating=pod.metadata.deletion_timestamp is not None,
            extra=extra,
        )
        self.put_back(use)
        return use

    def put_back(self, use: PodUse) -> None:
        """Let a pod that was forgotten use its node again: the undo of `forget`."""
        self.pods[use.uid] = use
        self._pods_by_priority[use.priority] = self._pods_by_priority.get(use.priority, 0) + 1
        known = self.nodes.get(use.node)
        if known is None:
            self._orphans.setdefault(use.node, {})[use.uid] = use
        else:
            self._occupy(known, use)

    def forget(self, uid: str) -> PodUse | None:
        """Take back a pod, whether assumed or bound; unknown ones are ignored."""
        use = self.pods.pop(uid, None)
        if use is None:
            return None
        self._pods_by_priority[use.priority] -= 1
        if not self._pods_by_priority[use.priority]:
            del self._pods_by_priority[use.priority]
        known = self.nodes.get(use.node)
        if known is not None:
            self._vacate(known, use)
        else:
            waiting = self._orphans.get(use.node, {})
            waiting.pop(uid, None)
            if not waiting:
                self._orphans.pop(use.node, None)
        return use

    def refresh(self, pod: Pod) -> None:
        """Take note of a change that moves nothing (labels, termination)."""
        use = self.pods.get(pod.metadata.uid)
        if use is None:
            return
        labels = pod.metadata.labels or {}
        is_terminating = pod.metadata.deletion_timestamp is not None
        use.pod = pod
        if labels != use.labels or is_terminating != use.is_terminating:
            for listener in self.listeners:
                listener(use, -1)
            use.labels, use.is_terminating = labels, is_terminating
            for listener in self.listeners:
                listener(use, +1)

    def set_terminating(self, use: PodUse, *, is_terminating: bool) -> None:
        """A pod is being evicted, or is not after all; those who count pods are told."""
        if self.pods.get(use.uid) is not use:
            use.is_terminating = is_terminating
            return
        for listener in self.listeners:
            listener(use, -1)
        use.is_terminating = is_terminating
        for listener in self.listeners:
            listener(use, +1)

    def _occupy(self, node: NodeState, use: PodUse) -> None:
        self._count(node, use, +1)
        node.pods[use.uid] = use
        for port in use.shape.ports:
            node.ports[port] = node.ports.get(port, 0) + 1
            addresses = self.port_users.setdefault(port[:2], {})
            addresses[port[2]] = addresses.get(port[2], 0) | node.bit
        self._mark(node, static=False)
        for listener in self.listeners:
            listener(use, +1)

    def _vacate(self, node: NodeState, use: PodUse) -> None:
        self._count(node, use, -1)
        node.pods.pop(use.uid, None)
        for port in use.shape.ports:
            left = node.ports[port] = node.ports[port] - 1
            if not left:
                del node.ports[port]
                self.port_users[port[:2]][port[2]] &= ~node.bit
        self._mark(node, static=False)
        for listener in self.listeners:
            listener(use, -1)

    @staticmethod
    def _count(node: NodeState, use: PodUse, sign: int) -> None:
        used = node.used
        for name, amount in use.shape.requests:
            used[name] = used.get(name, 0) + sign * amount
        for name, amount in use.extra:
            used[name] = used.get(name, 0) + sign * amount
        node.nominal[0] += sign * use.shape.nominal[0]
        node.nominal[1] += sign * use.shape.nominal[1]

    def has_less_important(self, priority: int) -> bool:
        """Return whether any pod has a lower priority."""
        return any(each < priority for each in self._pods_by_priority)

    # --- kept answers ---------------------------------------------------------

    def _mark(self, node: NodeState, *, static: bool) -> None:
        bit = node.bit
        for kept in self._free.values():
            kept.dirty |= bit
        if static:
            for kept in self._static.values():
                kept.dirty |= bit

    def _ask(self, kept: _Answer) -> int:
        if kept.dirty:
            nodes = kept.nodes & ~kept.dirty
            for node in self.in_set(kept.dirty & self._present):
                if kept.judge(node):
                    nodes |= node.bit
            kept.nodes, kept.dirty = nodes, 0
        return kept.nodes

    def with_free_resources(self, requests: Requests) -> int:
        """Return the nodes on which the requests fit."""
        kept = self._free.use(requests)
        if kept is None:
            kept = _Answer(lambda node: node.fits(requests), dirty=self._present)
            self._free[requests] = kept
        return self._ask(kept)

    def passing_static(self, pod: Pod, key: bytes) -> int:
        """Return the nodes whose labels, taints and name the pod accepts."""
        kept = self._static.use(key)
        if kept is None:
            kept = _Answer(lambda node: self.static_refusal(pod, node) is None, dirty=self._present)
            self._static[key] = kept
        return self._ask(kept)

    def static_refusal(self, pod: Pod, node: NodeState) -> str | None:
        """Return why a node can never take the pod as both are now; None when it can."""
        return static_refusal(pod, node, self.required_by_profile)

    def with_free_ports(self, ports: tuple[HostPort, ...]) -> int:
        """Return the nodes where no other pod binds one of the ports."""
        blocked = 0
        for protocol, port, address in ports:
            for other, nodes in self.port_users.get((protocol, port), {}).items():
                if address == other or address in ("", "0.0.0.0") or other in ("", "0.0.0.0"):
                    blocked |= nodes
        return self._present & ~blocked


def static_refusal(pod: Pod, state: NodeState, by_profile: NodeSelector | None = None) -> str | None:
    """Return why a node can never take the pod as both are now; None when it can.

    The order is that of kube-scheduler: unschedulable, name, taints, affinity. The verbs in
    braces are for `explaining`, which knows how many nodes say so.
    """
    spec, node = pod.spec, state.node
    if node.spec.unschedulable and first_untolerated([UNSCHEDULABLE_TAINT], spec.tolerations):
        return "{are} unschedulable"
    if spec.node_name and spec.node_name != state.name:
        return "{are} not the node that the pod names"
    taint = first_untolerated(node.spec.taints, spec.tolerations)
    if taint is not None:
        value = f"={taint.value}" if taint.value else ""
        return f"{{have}} the untolerated taint {taint.key}{value}:{taint.effect}"
    if by_profile is not None and not matches_node(by_profile, state.name, state.labels):
        return "{do} not match the node affinity of the scheduler's profile"
    for key, value in (spec.node_selector or {}).items():
        if state.labels.get(key) != value:
            return f"{{do}} not match nodeSelector {key}={value}"
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is not None and not matches_node(required, state.name, state.labels):
        return "{do} not match the pod's node affinity"
    return None


__all__ = ["CPU", "MEMORY", "ClusterState", "NodeState", "PodUse", "static_refusal"]
