"""Replay a recorded stream of pods against a policy: how full do the GPUs get?

Made for the openb trace (Alibaba, 2023; see FGD, Weng et al., USENIX ATC 2023): nodes with
cpu, memory and GPUs; pods that want cpu, memory and either a share of one GPU or several
whole ones. Pods arrive one at a time and stay; a pod that fits nowhere is dropped.

Theory of operation. 10,800 arrivals times 1,213 nodes are 13 million questions. A full
scheduler is not needed to answer them, because here a node is just (cpu, memory, rooms of
its GPUs) and a claim just (count, parts). So the replay keeps that state itself and uses
the policies' own functions, `Policy.node` and `Policy.device`, on it; every node that has
room is scored and ties go to the first by name. A score is kept until its node changes,
and since an arrival changes one node, most arrivals score only the nodes changed since
the last pod of the same kind. `tests/unit/sim/test_sim_traces.py` checks on a small
cluster that the allocator makes the same choices.

The fragmentation policy comes in three strengths: `frag` is the policy of that name and
expects the usual mix of requests; `frag+mix` expects the mix of the trace; `frag+cpu` knows
the cpu of the requests as well, and counts GPUs as wasted for requests for which the node
has no cpu left, as the published FGD does.
"""

from __future__ import annotations

import csv
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dray.allocator import POLICIES, Demand, NodeLoad, Policy, frag_policy
from dray.allocator.policies import WHOLE, frag_score

WITH_MIX: Final = "frag+mix"
WITH_CPU: Final = "frag+cpu"
POLICY_NAMES: Final = ("first-fit", "pack", "spread", "frag", WITH_MIX, WITH_CPU)


class TraceError(ValueError):
    """A trace that cannot be read; the text says where."""


@dataclass(frozen=True, slots=True)
class TracePod:
    """What one pod asks for."""

    cpu: int  # thousandths
    memory: int  # MiB
    gpus: int
    parts: int  # of each GPU, in thousandths
    models: tuple[str, ...] = ()  # GPU models it accepts; empty means: any

    @property
    def demand(self) -> int:
        """Return the thousandths of GPUs it takes."""
        return self.gpus * self.parts


@dataclass(slots=True)
class TraceNode:
    """One node and what is left of it."""

    name: str
    cpu: int
    memory: int
    model: str
    rooms: list[int] = field(default_factory=list)  # of its GPUs

    def fits(self, pod: TracePod) -> bool:
        """Say whether the pod can run here now."""
        if pod.cpu > self.cpu or pod.memory > self.memory:
            return False
        if not pod.gpus:
            return True
        if pod.models and self.model not in pod.models:
            return False
        parts = pod.parts
        return sum([room >= parts for room in self.rooms]) >= pod.gpus

    def take(self, pod: TracePod, chosen: Iterable[int]) -> None:
        """Book the pod on the GPUs chosen."""
        self.cpu -= pod.cpu
        self.memory -= pod.memory
        for gpu in chosen:
            self.rooms[gpu] -= pod.parts


@dataclass(frozen=True, slots=True)
class Fill:
    """The outcome of one replay."""

    policy: str
    capacity: int  # thousandths of GPUs
    placed: int  # pods
    dropped: int
    allocated_at: dict[float, float]  # arrived demand / capacity -> allocated, in percent of capacity


# --- reading ------------------------------------------------------------------


def read_nodes(path: Path) -> list[TraceNode]:
    """Read a node list, sorted by name. Raises TraceError."""
    rows = _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model"))
    nodes = [
        TraceNode(r["sn"], int(r["cpu_milli"]), int(r["memory_mib"]), r["model"], [WHOLE] * int(r["gpu"]))
        for r in rows
    ]
    return sorted(nodes, key=lambda node: node.name)


def read_pods(path: Path) -> list[TracePod]:
    """Read a pod list, sorted by name. Raises TraceError."""
    rows = _rows(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"))
    return [
        TracePod(
            int(r["cpu_milli"]),
            int(r["memory_mib"]),
            int(r["num_gpu"]),
            int(r["gpu_milli"]) if int(r["num_gpu"]) else 0,
            tuple(r["gpu_spec"].split("|")) if r["gpu_spec"] else (),
        )
        for r in sorted(rows, key=lambda row: row["name"])
    ]


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    for column in columns:
        if rows and column not in rows[0]:
            raise TraceError(f"{path}: no column {column!r}; is this a list of the openb trace?")
    return rows


def arrivals(pods: Sequence[TracePod], capacity: int, seed: int, until: float = 1.3) -> list[TracePod]:
    """Shuffle the pods and append clones of random ones until the demand reaches `until` times the capacity."""
    chance = random.Random(seed)
    stream = list(pods)
    chance.shuffle(stream)
    demand = sum(pod.demand for pod in stream)
    if pods and not demand:
        raise TraceError("no pod of the trace wants a GPU")
    while demand < until * capacity:
        clone = chance.choice(pods)
        stream.append(clone)
        demand += clone.demand
    return stream


# --- choosing -----------------------------------------------------------------


class Chooser:
    """One policy on the state of a trace: the GPUs it takes on a node, and how it likes that."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def policy_for(self, node: TraceNode, pod: TracePod) -> Policy:
        """Return the policy to judge the node by."""
        return self._policy

    def gpus(self, node: TraceNode, pod: TracePod) -> list[int]:
        """Return the GPUs that the pod gets; call only where it fits."""
        candidates = [index for index, room in enumerate(node.rooms) if room >= pod.parts]
        device = self.policy_for(node, pod).device
        if device is not None and len(candidates) > pod.gpus:
            rooms = node.rooms
            costs = {room: device(rooms, rooms.index(room), pod.parts) for room in set(rooms)}
            candidates.sort(key=lambda index: costs[rooms[index]])
        return candidates[: pod.gpus]

    def score(self, node: TraceNode, pod: TracePod) -> float:
        """Return how the policy likes the node with the pod on it."""
        score = self.policy_for(node, pod).node
        if score is None:
            return 0.0
        after = list(node.rooms)
        if pod.gpus:
            for gpu in self.gpus(node, pod):
                after[gpu] -= pod.parts
        return score(NodeLoad(tuple(node.rooms), tuple(after)))


class CpuAware(Chooser):
    """Fragmentation as the published FGD has it: a request that finds no cpu finds no GPU either."""

    def __init__(self, pods: Iterable[TracePod]) -> None:
        super().__init__(POLICIES["frag"])
        self._kinds = Counter(pods)
        self._total = sum(self._kinds.values())
        self._levels = sorted({pod.cpu for pod in self._kinds})
        self._demands: dict[tuple[str, int], Demand] = {}

    def _demand(self, model: str, cpu: int) -> Demand:
        level = bisect_left(self._levels, cpu + 1)  # cpu requests up to this one are met
        found = self._demands.get((model, level))
        if found is None:
            served = [
                (kind, count)
                for kind, count in self._kinds.items()
                if kind.cpu <= cpu and kind.gpus and (not kind.models or model in kind.models)
            ]
            weight = sum(count for _, count in served) / self._total
            found = self._demands[model, level] = Demand.of(
                [(count / self._total, kind.gpus, kind.parts) for kind, count in served],
                elsewhere=1.0 - weight,
            )
        return found

    def policy_for(self, node: TraceNode, pod: TracePod) -> Policy:
        """Judge devices by the demand that can still run once the pod has its cpu."""
        return frag_policy(self._demand(node.model, node.cpu - pod.cpu))

    def score(self, node: TraceNode, pod: TracePod) -> float:
        """Compare the waste before, with all of the cpu, to that after."""
        after = list(node.rooms)
        if pod.gpus:
            for gpu in self.gpus(node, pod):
                after[gpu] -= pod.parts
        before = self._demand(node.model, node.cpu).waste(node.rooms)
        gain = before - self._demand(node.model, node.cpu - pod.cpu).waste(after)
        return frag_score(gain, sum(node.rooms))


def chooser_for(name: str, pods: Iterable[TracePod]) -> Chooser:
    """Return a policy by name, tuned to the pods of a trace. Raises ValueError for an unknown name."""
    if name == WITH_CPU:
        return CpuAware(pods)
    if name == WITH_MIX:
        kinds = Counter((pod.gpus, pod.parts) for pod in pods if pod.gpus)
        total = sum(kinds.values()) or 1
        return Chooser(frag_policy(Demand.of([(n / total, *kind) for kind, n in kinds.items()])))
    if name not in POLICIES:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join((*POLICIES, WITH_MIX, WITH_CPU))}")
    return Chooser(POLICIES[name])


# --- replaying ----------------------------------------------------------------


class Replay:
    """The nodes of a trace, filled pod by pod."""

    def __init__(self, nodes: Sequence[TraceNode], chooser: Chooser) -> None:
        self.nodes = [TraceNode(n.name, n.cpu, n.memory, n.model, list(n.rooms)) for n in nodes]
        self._chooser = chooser
        self._changed: list[int] = []  # nodes in the order in which they changed
        self._scores: dict[TracePod, _Scores] = {}

    def place(self, pod: TracePod) -> tuple[str, list[int]] | None:
        """Put a pod on the best node; return it and the GPUs, or None when no node has room."""
        scores = self._scores.get(pod)
        if scores is None:
            scores = self._scores[pod] = _Scores([None] * len(self.nodes), 0)
            fresh: Iterable[int] = range(len(self.nodes))
        else:
            fresh = set(self._changed[scores.page :])
        scores.page = len(self._changed)
        row = scores.by_node
        for number in fresh:
            node = self.nodes[number]
            row[number] = self._chooser.score(node, pod) if node.fits(pod) else None
        best, best_score = -1, float("-inf")
        for number, score in enumerate(row):
            if score is not None and score > best_score:
                best, best_score = number, score
        if best < 0:
            return None
        node = self.nodes[best]
        chosen = self._chooser.gpus(node, pod) if pod.gpus else []
        node.take(pod, chosen)
        self._changed.append(best)
        return node.name, chosen


@dataclass(slots=True)
class _Scores:
    by_node: list[float | None]  # None: no room
    page: int  # how many of the changes are in


def replay(
    nodes: Sequence[TraceNode],
    stream: Iterable[TracePod],
    policy: str,
    *,
    at: Sequence[float] = (1.0, 1.3),
    on_arrival: Callable[[float, float], None] = lambda arrived, allocated: None,
) -> Fill:
    """Replay a stream of pods and say how much of the GPUs was allocated when so much had arrived.

    `on_arrival` is told both, as parts of the capacity, after every pod.
    """
    pods = list(stream)
    capacity = sum(sum(node.rooms) for node in nodes)
    if not capacity:
        raise TraceError("no node of the trace has a GPU")
    state = Replay(nodes, chooser_for(policy, pods))
    arrived = allocated = placed = 0
    waiting = sorted(at)
    marks: dict[float, float] = {}
    for pod in pods:
        arrived += pod.demand
        if state.place(pod) is not None:
            placed += 1
            allocated += pod.demand
        on_arrival(arrived / capacity, allocated / capacity)
        while waiting and arrived >= waiting[0] * capacity:
            marks[waiting.pop(0)] = 100 * allocated / capacity
    return Fill(policy, capacity, placed, len(pods) - placed, marks)
