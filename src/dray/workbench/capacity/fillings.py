"""What one new node would take: the possible fillings of node types with kinds of pods.

Kinds of pods are judged on a probe, an offline cluster with one empty node of the type, by `decide` itself; the answer is
kept, with the reason of a refusal. How many pods of several kinds share a node is estimated from the allocator's summaries
(`NodeSupply.after`: cpu, memory, what is free of each device); where no summary exists (partitions, "all devices"), the
probe places the pods one by one. An estimate may be wrong where requests have constraints: the planner decides every
pod on the planned nodes afterwards and corrects the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from dray.allocator import AllocationError
from dray.api.core import Pod
from dray.api.meta import OwnerReference
from dray.api.resource import ResourceClaim
from dray.client import key_of
from dray.scheduler import CPU, MEMORY, PodShape
from dray.scheduler.policies import WHOLE, NodeSupply, PodDemand
from dray.sim.cluster import OfflineCluster
from dray.sim.snapshot import Snapshot
from dray.workbench.capacity.catalogue import NodeType
from dray.workbench.capacity.covering import Counts, Filling

_BEAM: Final = 6  # partial fillings kept
_AHEAD: Final = 4  # kinds tried next from a partial filling
_ANSWERS: Final = 2  # fillings returned per type
_PROBE: Final = "probe"


@dataclass(slots=True, eq=False)
class PodKind:
    """Pods that ask for the same, or for so nearly the same that they are planned as the largest of them."""

    example: Pod
    shape: PodShape
    claims: tuple[ResourceClaim, ...]
    pods: list[str]  # namespace/name
    cpu: int
    memory: int
    key: tuple[bytes, bytes] = (b"", b"")  # what must be equal: static rules and claims


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A node type as it is bought for a compute class, or for none."""

    node_type: NodeType
    labels: dict[str, str] = field(default_factory=dict)
    class_name: str = ""
    number: int = 0
    rank: int = 0  # place among the alternatives of the class

    @property
    def price(self) -> float:
        """Return the price of one node."""
        return self.node_type.price


class Probe:
    """An empty node of an offer, on which kinds of pods are tried."""

    def __init__(self, offer: Offer, base: OfflineCluster) -> None:
        self.offer = offer
        known = base.snapshot
        self.cluster = OfflineCluster(
            Snapshot(
                namespaces=known.namespaces,
                classes=list(base.allocator.classes.values()),
                taint_rules=known.taint_rules,
                features=known.features,
            )
        )
        node, slices = offer.node_type.instance(_PROBE, offer.labels)
        self.cluster.add_node_with_devices(node, slices)
        state = self.cluster.state.nodes[_PROBE]
        self.most_pods = state.max_pods
        self.supply = NodeSupply(
            state.free(CPU),
            state.free(MEMORY),
            self.cluster.allocator.free_devices(_PROBE),
            offer.number,
            state.allocatable.get(CPU, 0),
        )
        self._refusals: dict[int, str | None] = {}  # id of the kind -> why it does not fit; None: it does
        self._demands: dict[int, PodDemand | None] = {}  # None: no summary exists
        self._fillings: dict[tuple[object, ...], list[Filling]] = {}

    def refusal(self, kind: PodKind) -> str | None:
        """Return why a pod of this kind does not fit on an empty node; None when it does."""
        found = self._refusals.get(id(kind), "")
        if found == "":
            found = self._try([kind])[1]
            if found is not None:
                found = found.removeprefix("0/1 nodes: 1 ")  # there is only one, and the text is about it
            self._refusals[id(kind)] = found
        return found

    def _try(self, kinds: Sequence[PodKind]) -> tuple[list[PodKind], str | None]:
        """Place one pod of each entry after the other; return those that fit, and the last refusal."""
        placed: list[PodKind] = []
        refusals: dict[int, str] = {}
        made: list[str] = []
        for number, kind in enumerate(kinds):
            if id(kind) in refusals:
                continue
            pod, claims = _numbered(kind, number)
            for claim in claims:
                self.cluster.set_claim(claim)
            pod = self.cluster.add_pod(pod)
            made.append(key_of(pod.metadata))
            try:
                outcome = self.cluster.place([pod])
                reason = outcome.refused[0].reason if outcome.refused else None
            except AllocationError as error:
                reason = str(error)
            if reason is None:
                placed.append(kind)
            else:
                refusals[id(kind)] = reason
        for key in made:
            self.cluster.remove_pod(key)
        return placed, next(reversed(refusals.values()), None)

    def _demand(self, kind: PodKind) -> PodDemand | None:
        if id(kind) not in self._demands:
            demand: PodDemand | None = PodDemand(kind.cpu, kind.memory, has_claims=bool(kind.claims))
            if kind.claims:
                footprints = self.cluster.allocator.footprints(_PROBE, kind.claims)
                if footprints is None or demand is None:
                    demand = None
                else:
                    demand.footprints[self.supply.hardware] = footprints
            self._demands[id(kind)] = demand
        return self._demands[id(kind)]

    def fillings(self, kinds: Sequence[PodKind], values: Sequence[float], caps: Counts) -> list[Filling]:
        """Return the most valuable fillings found, with at most `caps` pods of each kind."""
        wanted = [
            index
            for index, kind in enumerate(kinds)
            if caps[index] and values[index] > 0 and self.refusal(kind) is None
        ]
        if not wanted:
            return []
        if any(self._demand(kinds[index]) is None for index in wanted):
            order = sorted(wanted, key=lambda index: -values[index])
            limited = tuple(min(caps[index], self.most_pods) for index in order)
            memory_key = (tuple(order), limited)
            if memory_key not in self._fillings:
                self._fillings[memory_key] = self._placed_filling(kinds, order, caps)
            return self._fillings[memory_key]
        return self._estimated(kinds, wanted, values, caps)

    def _placed_filling(self, kinds: Sequence[PodKind], order: list[int], caps: Counts) -> list[Filling]:
        asked = [kinds[index] for index in order for _ in range(min(caps[index], self.most_pods))]
        placed, _ = self._try(asked)
        counts = [0] * len(kinds)
        for index in order:
            counts[index] = sum(each is kinds[index] for each in placed)
        return [Filling(self.offer.price, tuple(counts), self.offer.number)]

    def _estimated(
        self, kinds: Sequence[PodKind], wanted: list[int], values: Sequence[float], caps: Counts
    ) -> list[Filling]:
        """Search for valuable combinations: a beam over kinds in the order of value for the room they take."""
        demands = {index: self._demand(kinds[index]) for index in wanted}
        density = {index: values[index] / self._size(demands[index]) for index in wanted}
        order = sorted(wanted, key=lambda index: -density[index])
        # (value, place in the order, free, counts)
        beam: list[tuple[float, int, NodeSupply, tuple[int, ...]]] = [
            (0.0, 0, self.supply, (0,) * len(order))
        ]
        finished: list[tuple[float, tuple[int, ...]]] = []
        for _ in range(self.most_pods):
            following: dict[tuple[int, ...], tuple[float, int, NodeSupply, tuple[int, ...]]] = {}
            for value, place, free, counts in beam:
                steps = 0
                for ahead in range(place, len(order)):
                    index = order[ahead]
                    demand = demands[index]
                    if counts[ahead] >= caps[index] or demand is None:
                        continue
                    after = free.after(demand)
                    if after is None:
                        continue
                    more = (*counts[:ahead], counts[ahead] + 1, *counts[ahead + 1 :])
                    following.setdefault(more, (value + values[index], ahead, after, more))
                    steps += 1
                    if steps >= _AHEAD:
                        break
                if not steps:
                    finished.append((value, counts))
            if not following:
                break
            best_density = density[order[0]]
            beam = sorted(following.values(), key=lambda each: -self._promise(each, best_density))[:_BEAM]
        finished += [(value, counts) for value, _, _, counts in beam]
        finished.sort(key=lambda each: -each[0])
        answers: list[Filling] = []
        for _, counts in finished[:_ANSWERS]:
            wide = [0] * len(kinds)
            for index, count in zip(order, counts, strict=True):
                wide[index] = count
            answers.append(Filling(self.offer.price, tuple(wide), self.offer.number))
        return answers

    def _promise(self, state: tuple[float, int, NodeSupply, tuple[int, ...]], density: float) -> float:
        """Return the value so far and what the room that is left could be worth."""
        value, _, free, _ = state
        return value + density * min(
            free.cpu / (self.supply.cpu or 1), free.free / self.supply.free if self.supply.free else 1.0
        )

    def _size(self, demand: PodDemand | None) -> float:
        """Return how much of a node a pod takes, as the part of its scarcest resource and a little of the others."""
        assert demand is not None
        taken = sum(each.n_devices * each.amount for each in demand.footprints.get(self.supply.hardware, ()))
        total = len(self.supply.devices) * WHOLE
        parts = (
            demand.cpu / (self.supply.cpu or 1),
            demand.memory / (self.supply.memory or 1),
            taken / total if total else 0.0,
        )
        return max(1e-4, max(parts) + 0.25 * sum(parts))


def _numbered(kind: PodKind, number: int) -> tuple[Pod, list[ResourceClaim]]:
    """Return a pod of the kind under a name of its own, with claims of its own."""
    meta = kind.example.metadata
    name = f"{meta.name[:40]}-{id(kind)}-{number}"
    owner = OwnerReference(api_version="v1", kind="Pod", name=name, uid=f"pod:{name}", controller=True)
    statuses, claims = [], []
    for status in kind.example.status.resource_claim_statuses:
        model = next((each for each in kind.claims if each.metadata.name == status.resource_claim_name), None)
        if model is None:
            continue
        own = f"{name}-{status.name}"
        claim_meta = replace(model.metadata, name=own, uid=f"claim:{own}", owner_references=[owner])
        claims.append(replace(model, metadata=claim_meta))
        statuses.append(replace(status, resource_claim_name=own))
    pod = replace(
        kind.example,
        metadata=replace(meta, name=name, uid=f"pod:{name}", owner_references=[]),
        status=replace(kind.example.status, resource_claim_statuses=statuses),
    )
    return pod, claims
