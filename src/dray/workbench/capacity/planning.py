"""`plan_capacity(snapshot, pending, catalogue) -> CapacityPlan`: the cheapest nodes with which the pending pods fit.

A pure function: it reads its arguments, changes nothing and knows no clock. Steps:

  1. What fits on the nodes that exist is placed there.
  2. Pods that ask for the same form kinds. A covering problem (`covering`) over fillings of the node types on offer
     (`fillings`) gives the nodes to buy, for each compute class and its alternatives in order.
  3. The nodes are added to the offline cluster and every pod is decided by the scheduler's `decide`. What does not fit
     after all, and pods that cannot be planned by counting (gangs, shared claims, affinity, extended resources, volumes),
     get further nodes one at a time, the cheapest that takes them.
  4. New nodes that turn out to be unnecessary, or larger than necessary, are left out or replaced.

So every placement in the plan is a decision of the scheduler on the planned cluster, devices included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dray.allocator import AllocationError, Policy
from dray.api.core import Pod
from dray.client import key_of
from dray.scheduler import CPU, MEMORY, PodClaims, PodShape, claims_equivalence_key, group_key, shape_of
from dray.scheduler.policies import NodePolicy
from dray.sim.cluster import OfflineCluster, Placed
from dray.sim.snapshot import Snapshot
from dray.workbench.capacity.catalogue import Catalogue, ComputeClass
from dray.workbench.capacity.covering import Counts, Filling, cover
from dray.workbench.capacity.fillings import Offer, PodKind, Probe
from dray.workbench.capacity.moving import Trial

MOST_PENDING: Final = 20_000
_MOST_KINDS: Final = 40  # rows of the covering problem; more kinds are merged
_MOST_IMPROVED: Final = 24  # new nodes that are tried to be left out or replaced
_MOST_REASONS: Final = 12


class CapacityError(ValueError):
    """A question that cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to add, and what the scheduler would put on it."""

    name: str
    pods: tuple[str, ...]
    claims: tuple[str, ...]
    spare: dict[str, int]  # cpu (thousandths), memory (bytes), devices (that nobody holds)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Why a cheaper type was not taken for some of the pods of an addition."""

    node_type: str
    price: float
    pods: int
    example: str
    reason: str


@dataclass(frozen=True, slots=True)
class Addition:
    """Nodes of one type to add."""

    node_type: str
    compute_class: str  # empty: none
    price: float  # of one node
    nodes: tuple[NewNode, ...]
    cheaper: tuple[Comparison, ...] = ()

    @property
    def cost(self) -> float:
        """Return the price of all of them."""
        return self.price * len(self.nodes)


@dataclass(frozen=True, slots=True)
class Unserved:
    """A pod that no node on offer would take."""

    pod: str
    reasons: tuple[tuple[str, str], ...]  # (node type, why not)


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What to add, what it costs, and what it would do."""

    additions: tuple[Addition, ...]
    fitting: tuple[Placed, ...]  # pods that fit without new nodes
    placed: tuple[Placed, ...]  # pods on new nodes, and where
    unserved: tuple[Unserved, ...]
    currency: str = ""

    @property
    def cost(self) -> float:
        """Return the price of all new nodes, per hour."""
        return sum(each.cost for each in self.additions)


def plan_capacity(
    snapshot: Snapshot,
    pending: Sequence[Pod],
    catalogue: Catalogue,
    *,
    policy: Policy | NodePolicy | None = None,
) -> CapacityPlan:
    """Return which nodes to add so that the pending pods fit, at a low price. Raises CapacityError.

    `pending` are pods of the snapshot that wait, or further ones. Pods and claims of the snapshot keep their places.
    """
    if len(pending) > MOST_PENDING:
        raise CapacityError(f"{len(pending)} pending pods; at most {MOST_PENDING} can be planned at once")
    return _Planner(snapshot, pending, catalogue, policy).plan()


@dataclass(slots=True)
class _Bought:
    offer: Offer
    name: str


@dataclass(slots=True)
class _Planner:
    snapshot: Snapshot
    pending: Sequence[Pod]
    catalogue: Catalogue
    policy: Policy | NodePolicy | None
    cluster: OfflineCluster = field(init=False)
    bought: dict[str, _Bought] = field(default_factory=dict)  # by node name
    probes: dict[tuple[str, str], Probe] = field(default_factory=dict)  # (type, class) -> probe
    places: dict[str, Placed] = field(default_factory=dict)  # pod -> where it is
    reasons: dict[str, str] = field(default_factory=dict)  # pod -> why it is not
    kinds: list[PodKind] = field(default_factory=list)
    shapes: dict[str, PodShape] = field(default_factory=dict)  # by pod
    _numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster = OfflineCluster(self.snapshot, self.policy)
        for pod in self.pending:
            if key_of(pod.metadata) not in self.cluster.pods:
                self.cluster.add_pod(pod)
        for each in self.catalogue.types:
            self.cluster.add_missing_classes(found.spec.driver for found in each.instance("probe")[1])

    def plan(self) -> CapacityPlan:
        keys = [key_of(pod.metadata) for pod in self.pending]
        pods = [self.cluster.pods[key] for key in dict.fromkeys(keys)]
        waiting = self._place([pod for pod in _largest_first(pods) if not pod.spec.node_name])
        fitting = tuple(self.places.values())
        countable: list[Pod] = []
        others: list[Pod] = []
        for pod in waiting:
            (countable if self._is_countable(pod) else others).append(pod)
        self.kinds = self._kinds_of(countable)
        for class_name, kinds in self._by_class().items():
            self._plan_class(class_name, kinds)
        left = self._place(countable) + others
        left = self._place_by_trial(left)
        self._note_gangs()
        self._improve()
        placed = tuple(each for key, each in self.places.items() if each not in fitting and key)
        return CapacityPlan(
            self._additions(), fitting, placed, tuple(map(self._unserved, left)), self.catalogue.currency
        )

    # --- placing ------------------------------------------------------------------

    def _place(self, pods: Sequence[Pod]) -> list[Pod]:
        """Place pods with the scheduler's decisions; return those that do not fit."""
        left = []
        refused: set[bytes] = set()
        for pod in pods:
            key = key_of(pod.metadata)
            if self.cluster.pods[key].spec.node_name:
                continue  # with its gang
            alike = self._equivalence_key(pod)
            # What is placed on the way only makes room scarcer.
            if alike and alike in refused:
                left.append(pod)
                continue
            try:
                outcome = self.cluster.place([self.cluster.pods[key]], explains=False)
            except AllocationError as error:
                self.reasons[key] = str(error)
                left.append(pod)
                continue
            for each in outcome.placed:
                self.places[each.pod] = each
            if outcome.refused:
                left.append(pod)
                refused.add(alike)
        return left

    def _equivalence_key(self, pod: Pod) -> bytes:
        """Return a key that is equal for pods which get equal answers; empty for members of groups."""
        claims = self.cluster.claims_of(pod)
        if group_key(pod) or not isinstance(claims, PodClaims):
            return b""
        return self.cluster.scheduling.equivalence_key(pod, self._shape(pod), claims)

    def _shape(self, pod: Pod) -> PodShape:
        key = key_of(pod.metadata)
        if key not in self.shapes:
            self.shapes[key] = shape_of(pod)
        return self.shapes[key]

    def _note_gangs(self) -> None:
        """Note members of gangs that were placed together with one that was asked for."""
        for pod in self.pending:
            key = key_of(pod.metadata)
            node = self.cluster.pods[key].spec.node_name
            if node and key not in self.places and not pod.spec.node_name:
                self.places[key] = Placed(key, node, {})

    # --- kinds ----------------------------------------------------------------------

    def _is_countable(self, pod: Pod) -> bool:
        """Return whether pods like this can be planned by counting: nothing depends on other pods."""
        shape = self._shape(pod)
        claims = self.cluster.claims_of(pod)
        names = {name for name, _ in shape.requests}
        return (
            shape.is_plain
            and not shape.volumes
            and not group_key(pod)
            and names <= {CPU, MEMORY}
            and isinstance(claims, PodClaims)
            and not claims.allocated
            and all(entry.resource_claim_name is None for entry in pod.spec.resource_claims)
        )

    def _kinds_of(self, pods: Iterable[Pod]) -> list[PodKind]:
        found: dict[tuple[object, ...], PodKind] = {}
        for pod in pods:
            shape = self._shape(pod)
            claims = self.cluster.claims_of(pod)
            assert isinstance(claims, PodClaims)
            key = (shape.static_key, claims_equivalence_key(claims.pending) if claims.pending else b"")
            kind = found.get((shape.requests, *key))
            if kind is None:
                amounts = dict(shape.requests)
                kind = found[shape.requests, *key] = PodKind(
                    pod, shape, claims.pending, [], amounts.get(CPU, 0), amounts.get(MEMORY, 0), key
                )
            kind.pods.append(key_of(pod.metadata))
        return _merged(list(found.values()))

    def _by_class(self) -> dict[str, list[PodKind]]:
        """Return the kinds by the compute class that their pods select, those without a class under an empty name."""
        found: dict[str, list[PodKind]] = {}
        for kind in self.kinds:
            found.setdefault(self._class_of(kind.example), []).append(kind)
        return found

    def _class_of(self, pod: Pod) -> str:
        selector = pod.spec.node_selector or {}
        return next(
            (each.name for each in self.catalogue.classes if selector.get(each.label) == each.name), ""
        )

    def _alternatives(self, class_name: str) -> list[list[Offer]]:
        """Return the offers for a class, the alternatives in order."""
        found = next((each for each in self.catalogue.classes if each.name == class_name), None)
        names = _priorities(found, self.catalogue)
        labels = {found.label: found.name} if found is not None else {}
        numbers = {each.name: number for number, each in enumerate(self.catalogue.types)}
        return [
            [
                Offer(self.catalogue.types[numbers[name]], labels, class_name, numbers[name], rank)
                for name in entry
            ]
            for rank, entry in enumerate(names)
        ]

    def _probe(self, offer: Offer) -> Probe:
        key = (offer.node_type.name, offer.class_name)
        if key not in self.probes:
            self.probes[key] = Probe(offer, self.cluster)
        return self.probes[key]

    # --- buying -----------------------------------------------------------------------

    def _room(self, offer: Offer) -> int:
        used = sum(each.offer.node_type is offer.node_type for each in self.bought.values())
        return offer.node_type.most - used

    def _buy(self, offer: Offer) -> str:
        number = self._numbers[offer.node_type.name] = self._numbers.get(offer.node_type.name, 0) + 1
        name = f"new-{offer.node_type.name}-{number}"
        self.cluster.add_node_with_devices(*offer.node_type.instance(name, offer.labels))
        self.bought[name] = _Bought(offer, name)
        return name

    def _plan_class(self, class_name: str, kinds: list[PodKind]) -> None:
        """Buy nodes for the kinds of one class, alternative by alternative, and place the pods node by node.

        Pods are placed when their node has come, not all in the end: the scheduler would spread small pods over all
        the new nodes, and large ones would find no room.
        """
        left = [list(kind.pods) for kind in kinds]
        for offers in self._alternatives(class_name):
            probes = [self._probe(offer) for offer in offers]
            offer_by_number = {offer.number: offer for offer in offers}

            def generate(
                values: Sequence[float], caps: Counts, probes: list[Probe] = probes
            ) -> list[Filling]:
                return [each for probe in probes for each in probe.fillings(kinds, values, caps)]

            room = {offer.number: self._room(offer) for offer in offers}
            for filling in cover(tuple(map(len, left)), generate, room):
                self._buy(offer_by_number[filling.node_type])
                for keys, count in zip(left, filling.counts, strict=True):
                    some, keys[:count] = keys[:count], []
                    self._place([self.cluster.pods[key] for key in some])

    def _place_by_trial(self, pods: Sequence[Pod]) -> list[Pod]:
        """Buy one node after the other for pods that are left; return those that no node takes."""
        left: list[Pod] = []
        hopeless: set[bytes] = set()
        for pod in self._place(pods):
            key = key_of(pod.metadata)
            if self.cluster.pods[key].spec.node_name:
                continue
            alike = self._equivalence_key(pod)
            # A node that was bought for another pod may take this one.
            if (alike and alike in hopeless) or not self._place([pod]):
                if alike in hopeless:
                    left.append(pod)
                continue
            if not self._buy_for(pod):
                left.append(pod)
                hopeless.add(alike)
        return left

    def _buy_for(self, pod: Pod) -> bool:
        """Buy the cheapest nodes of one type that take a pod, or its whole gang."""
        group = group_key(pod)
        members = [each for each in self.pending if group and group_key(each) == group]
        for offers in self._alternatives(self._class_of(pod)):
            best: tuple[float, Offer, int] | None = None
            for offer in sorted(offers, key=lambda each: each.price):
                for count in _counts(max(1, len(members)), self._room(offer)):
                    if best is not None and offer.price * count >= best[0]:
                        break
                    if self._fits_with(pod, offer, count):
                        best = (offer.price * count, offer, count)
                        break
            if best is not None:
                for _ in range(best[2]):
                    self._buy(best[1])
                return not self._place([pod])
        return False

    def _fits_with(self, pod: Pod, offer: Offer, count: int) -> bool:
        """Return whether the pod would be placed with so many more nodes; changes nothing."""
        names = [self._buy(offer) for _ in range(count)]
        try:
            answer = self.cluster.decide_pod(self.cluster.pods[key_of(pod.metadata)])
        except AllocationError as error:
            self.reasons[key_of(pod.metadata)] = str(error)
            answer = None
        for name in names:
            self.cluster.remove_node(name)
            del self.bought[name]
        self._numbers[offer.node_type.name] -= count
        return isinstance(answer, list)

    # --- improving --------------------------------------------------------------------

    def _improve(self) -> None:
        """Leave out new nodes whose pods fit elsewhere, and replace them by cheaper types where these suffice."""
        order = sorted(self.bought, key=lambda name: (self._fullness(name), -self.bought[name].offer.price))
        for name in order[:_MOST_IMPROVED]:
            trial = Trial(self.cluster, name)
            moved = trial.run()
            if moved is None:
                moved = self._replaced(name)
            else:
                trial.accept()
                del self.bought[name]
            for each in moved or ():
                self.places[each.pod] = each

    def _replaced(self, name: str) -> list[Placed] | None:
        """Try to have a cheaper node instead of this one."""
        bought = self.bought[name]
        offers = [
            offer
            for alternative in self._alternatives(bought.offer.class_name)
            for offer in alternative
            if offer.rank == bought.offer.rank and offer.price < bought.offer.price and self._room(offer) > 0
        ]
        for offer in sorted(offers, key=lambda each: each.price):
            new = self._buy(offer)
            trial = Trial(self.cluster, name)
            moved = trial.run()
            if moved is not None:
                trial.accept()
                del self.bought[name]
                return moved
            self.cluster.remove_node(new)
            del self.bought[new]
            self._numbers[offer.node_type.name] -= 1
        return None

    def _fullness(self, name: str) -> float:
        known = self.cluster.state.nodes[name]
        parts = [known.used.get(each, 0) / (known.allocatable.get(each) or 1) for each in (CPU, MEMORY)]
        free = self.cluster.allocator.free_devices(name)
        if free:
            parts.append(1 - sum(free) / (1000 * len(free)))
        return max(parts)

    # --- the answer -------------------------------------------------------------------

    def _additions(self) -> tuple[Addition, ...]:
        pods_by_node: dict[str, list[Placed]] = {}
        for each in self.places.values():
            pods_by_node.setdefault(each.node, []).append(each)
        groups: dict[tuple[str, str], list[NewNode]] = {}
        for name, bought in self.bought.items():
            placed = pods_by_node.get(name, [])
            known = self.cluster.state.nodes[name]
            free = self.cluster.allocator.free_devices(name)
            spare = {
                "cpu": known.free(CPU),
                "memory": known.free(MEMORY),
                "devices": sum(each == 1000 for each in free),
            }
            claims = tuple(sorted(claim for each in placed for claim in each.devices))
            node = NewNode(name, tuple(sorted(each.pod for each in placed)), claims, spare)
            groups.setdefault((bought.offer.node_type.name, bought.offer.class_name), []).append(node)
        found = []
        for (type_name, class_name), nodes in groups.items():
            node_type = self.catalogue.type_named(type_name)
            assert node_type is not None
            cheaper = self._cheaper(type_name, class_name, {pod for node in nodes for pod in node.pods})
            found.append(Addition(type_name, class_name, node_type.price, tuple(nodes), cheaper))
        return tuple(sorted(found, key=lambda each: (-each.cost, each.node_type, each.compute_class)))

    def _cheaper(self, type_name: str, class_name: str, pods: set[str]) -> tuple[Comparison, ...]:
        """Say of each cheaper type why the pods are not on it."""
        chosen = self.catalogue.type_named(type_name)
        assert chosen is not None
        offers = [offer for entry in self._alternatives(class_name) for offer in entry]
        own = next(offer for offer in offers if offer.node_type is chosen)
        found: list[Comparison] = []
        for offer in sorted(offers, key=lambda each: -each.price):
            if offer.price >= chosen.price or len(found) >= _MOST_REASONS:
                continue
            counts: dict[str, tuple[int, str]] = {}
            for kind in self.kinds:
                here = [pod for pod in kind.pods if pod in pods]
                if here:
                    reason = self._why_not(kind, offer, own)
                    count, example = counts.get(reason, (0, here[0]))
                    counts[reason] = (count + len(here), example)
            for reason, (count, example) in sorted(counts.items(), key=lambda item: -item[1][0])[:3]:
                found.append(Comparison(offer.node_type.name, offer.price, count, example, reason))
        return tuple(found)

    def _why_not(self, kind: PodKind, offer: Offer, chosen: Offer) -> str:
        refusal = self._probe(offer).refusal(kind)
        if refusal is not None:
            return refusal
        if self._room(offer) <= 0:
            return f"all {offer.node_type.most} nodes of this type are used"
        here, there = (self._per_node(kind, each) for each in (offer, chosen))
        if not here or not there:
            return "an estimate is not possible"
        if offer.price / here >= chosen.price / there:
            return (
                f"{here} fit on a node, {there} on a {chosen.node_type.name}: "
                f"{offer.price / here:.3g} each against {chosen.price / there:.3g}"
            )
        return f"fits, but is served as well by room on nodes that are needed anyway ({here} on a node)"

    def _per_node(self, kind: PodKind, offer: Offer) -> int:
        probe = self._probe(offer)
        found = probe.fillings([kind], [1.0], (probe.most_pods,))
        return max((each.counts[0] for each in found), default=0)

    def _unserved(self, pod: Pod) -> Unserved:
        key = key_of(pod.metadata)
        reasons = []
        kind = next((each for each in self.kinds if key in each.pods), None)
        offers = [offer for entry in self._alternatives(self._class_of(pod)) for offer in entry]
        for offer in offers[:_MOST_REASONS]:
            reason = self._probe(offer).refusal(kind) if kind is not None else None
            if reason is None:
                if self._room(offer) <= 0:
                    reason = f"all {offer.node_type.most} nodes of this type are used"
                else:
                    reason = self.reasons.get(key) or self._reason(pod)
            reasons.append((offer.node_type.name, reason))
        return Unserved(key, tuple(reasons))

    def _reason(self, pod: Pod) -> str:
        try:
            outcome = self.cluster.place([self.cluster.pods[key_of(pod.metadata)]])
        except AllocationError as error:
            return str(error)
        return outcome.refused[0].reason if outcome.refused else "fits"


def _counts(members: int, room: int) -> list[int]:
    """Return how many nodes to try for a gang: 1, 2, 4 … and each number near the end."""
    found = list(range(1, min(members, 16) + 1))
    while found and found[-1] * 2 <= members:
        found.append(found[-1] * 2)
    return [count for count in dict.fromkeys([*found, members]) if count <= room]


def _priorities(found: ComputeClass | None, catalogue: Catalogue) -> list[tuple[str, ...]]:
    everything = tuple(each.name for each in catalogue.types)
    if found is None:
        return [everything]
    return [*found.priorities, *([everything] if found.may_use_any else [])]


def _largest_first(pods: Iterable[Pod]) -> list[Pod]:
    """Return the important pods first, then those that are hard to place."""

    def size(pod: Pod) -> tuple[int, int, int]:
        amounts = dict(shape_of(pod).requests)
        return (-(pod.spec.priority or 0), -len(pod.spec.resource_claims), -amounts.get(CPU, 0))

    return sorted(pods, key=size)


def _merged(kinds: list[PodKind]) -> list[PodKind]:
    """Merge kinds of the same claims until few are left; a merged kind asks for the most of its members."""
    groups: dict[tuple[bytes, bytes], list[PodKind]] = {}
    for kind in kinds:
        groups.setdefault(kind.key, []).append(kind)
    if len(kinds) <= _MOST_KINDS:
        return kinds
    result: list[PodKind] = []
    share = max(1, _MOST_KINDS // len(groups))
    for members in groups.values():
        members.sort(key=lambda each: (each.cpu, each.memory))
        size = -(-len(members) // share)
        for start in range(0, len(members), size):
            some = members[start : start + size]
            largest = some[-1]
            largest.memory = max(each.memory for each in some)
            largest.pods = [pod for each in some for pod in each.pods]
            result.append(largest)
    return sorted(result, key=lambda each: -len(each.pods))[: 2 * _MOST_KINDS]
