"""The allocator: inventory (slices, classes, nodes), ledger of use, and plans for claims.

An `Allocator` is fed with objects as they change and asked for plans. Feeding is
incremental: a slice re-parses itself and drops the views of its pool, a claim flips a
few bits; views of nodes are put together when somebody asks about the node. Nothing
is ever rebuilt because of one pod.

It is not thread safe and owned by one loop. It knows no clock and no chance: ids of
shares come from the `new_share_id` it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count

import msgspec

from dray.allocator.answers import Explanation, NodePlans, Plan, RequestReasons, Unsatisfied
from dray.allocator.compiled_claims import CompiledClaims, claim_label, expressions_of
from dray.allocator.device_choice import choose_devices
from dray.allocator.device_facts import SliceFacts, SliceInterner
from dray.allocator.errors import AllocationError
from dray.allocator.explanation import explain_node
from dray.allocator.expressions import (
    Derivation,
    EvaluationBudget,
    Expression,
    PendingWork,
    Selector,
    VerdictMemory,
)
from dray.allocator.gates import Gates
from dray.allocator.node_sweep import NodeSweep, Refusals
from dray.allocator.policies import Policy
from dray.allocator.pools import NodeView, PoolRecord
from dray.allocator.problem import FatalFound
from dray.allocator.query_cache import (
    BaselineClasses,
    CachedQuery,
    CachedResult,
    ChangeLog,
    NodeClasses,
    new_matches_cache,
)
from dray.allocator.results import AllocationBuilder
from dray.allocator.supply import RequestFootprint, footprints, free_devices
from dray.api.core import Node
from dray.api.features import Features
from dray.api.meta import ObjectMeta
from dray.api.resource import AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dray.cel import takes_long
from dray.devices import Amounts, DeviceId, DeviceUse, Hold, Ledger, PoolId, Undo, holds_of

DEFAULT_BUDGET = 100_000  # search steps per node; a step takes some microseconds
DEFAULT_TOTAL = 400_000  # search steps for all nodes of one query, some seconds
INVALID_POOLS = "invalid resource pools were encountered"

_MOST_QUERIES = 512
_MOST_CHARACTERS = 16 << 20  # of all expressions
_LEAST_CHARACTERS = 500  # what a short expression counts
_MOST_NODE_CLASSES = 64
_LONGEST_CHANGE_LOG = 100_000


class Allocator:
    """Incremental inventory and one ledger; answers plans; owned by one loop, not thread safe."""

    def __init__(
        self,
        features: Features | None = None,
        *,
        new_share_id: Callable[[], str] | None = None,
        is_late: Callable[[], bool] | None = None,
    ) -> None:
        """Start empty. `features` None means the defaults of v1.37.

        `new_share_id` makes the ids of shares of multi-allocatable devices; an allocator without
        one numbers them deterministically (good for tests and what-if, not for a cluster).
        `is_late` says that the time for a query is over: long searches then end as if their
        budget were spent. Without it only the budget counts, and answers depend on nothing else.
        """
        self.features = Features.default() if features is None else features
        self.gates = Gates.of(self.features)
        self.new_share_id = new_share_id or _numbered_shares()
        self._is_late = is_late
        self.ledger = Ledger(on_change=self._use_changed)
        self._slice_interner = SliceInterner()
        self._slices: dict[str, SliceFacts] = {}
        self._sources: dict[str, ResourceSlice] = {}
        self._pools: dict[PoolId, PoolRecord] = {}
        self._pools_by_node: dict[str, dict[PoolId, PoolRecord]] = {}  # pools with slices of the node
        self._pools_without_node: dict[PoolId, PoolRecord] = {}  # pools with slices without a node name
        self._classes: dict[str, DeviceClass] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._nodes: dict[str, Node] = {}
        self._views: dict[str, NodeView] = {}
        self._claims: dict[str, tuple[AllocationResult, Undo]] = {}
        self.evaluation_budget = (
            EvaluationBudget()
        )  # how long one query may evaluate expressions; without limit at first
        self._selectors: dict[str, Selector] = {}
        self._derivations: dict[str, Derivation] = {}
        self._verdicts = VerdictMemory()
        self._n_characters = 0  # of all expressions
        self._queries: dict[bytes, CachedQuery] = {}
        self._matches = new_matches_cache()  # of all queries
        # (attributes that are read, whether devices in use are looked at) -> classes
        self._node_classes_by_reads: dict[tuple[tuple[str, ...] | None, bool], NodeClasses] = {}
        self._change_log = ChangeLog()
        self._baseline = BaselineClasses(sees_operations=self.gates.optional_operations)

    # --- what there is ---------------------------------------------------------

    def set_slice(self, resource_slice: ResourceSlice, *, key: str | None = None) -> None:
        """Add or replace a ResourceSlice, by name (or by `key`, where names are not unique).

        Raises ValueError for amounts that are no quantities; the old slice then stays.
        """
        name = key if key is not None else resource_slice.metadata.name
        facts = self._slice_interner.slice_facts(name, resource_slice, self._rules.values())
        old = self._slices.get(name)
        if old is not None and (old.driver, old.pool, old.node_name) != (
            facts.driver,
            facts.pool,
            facts.node_name,
        ):
            self._remove(old)
        self._slices[name] = facts
        self._sources[name] = resource_slice
        pool_id = PoolId(facts.driver, facts.pool)
        record = self._pools.get(pool_id)
        if record is None:
            record = self._pools[pool_id] = PoolRecord(
                pool_id, self.gates, self._slice_interner.intern, self.ledger.pools
            )
        record.add(facts)
        if facts.node_name:
            self._pools_by_node.setdefault(facts.node_name, {})[pool_id] = record
        else:
            self._pools_without_node[pool_id] = record
        self._forget_views(record)

    def delete_slice(self, name: str) -> None:
        """Forget a ResourceSlice; unknown names are ignored."""
        facts = self._slices.pop(name, None)
        if facts is not None:
            del self._sources[name]
            self._remove(facts)

    def _remove(self, facts: SliceFacts) -> None:
        pool_id = PoolId(facts.driver, facts.pool)
        record = self._pools[pool_id]
        self._forget_views(record)
        record.remove(facts)
        if facts.node_name and facts.node_name not in record.by_node:
            self._pools_by_node[facts.node_name].pop(pool_id)
        if not record.without_node:
            self._pools_without_node.pop(pool_id, None)
        if not record.by_key:
            del self._pools[pool_id]

    def _forget_views(self, record: PoolRecord) -> None:
        if record.without_node:
            self._views.clear()
            self._note_all()
            return
        for node in record.by_node:
            self._forget_view(node)

    def _forget_view(self, node: str) -> None:
        # Answers are kept only of nodes that have a view: without one there is nothing to forget.
        if self._views.pop(node, None) is not None:
            self._note(node)

    def _note(self, node: str) -> None:
        """Note that the answers for a node are outdated."""
        self._baseline.forget(node)
        nodes = self._change_log.nodes
        nodes.append(node)
        if len(nodes) > _LONGEST_CHANGE_LOG:
            self._change_log = ChangeLog()

    def _note_all(self) -> None:
        """Note that the answers for all nodes are outdated."""
        self._baseline.forget_all()
        self._change_log = ChangeLog()

    def set_class(self, device_class: DeviceClass) -> None:
        """Add or replace a DeviceClass."""
        old = self._classes.get(device_class.metadata.name)
        if old is not None and old.spec == device_class.spec:
            return
        self._classes[device_class.metadata.name] = device_class
        self._queries.clear()

    def delete_class(self, name: str) -> None:
        """Forget a DeviceClass."""
        if self._classes.pop(name, None) is not None:
            self._queries.clear()

    def set_taint_rule(self, rule: DeviceTaintRule) -> None:
        """Add or replace a DeviceTaintRule; its taint joins those in the slices."""
        old = self._rules.get(rule.metadata.name)
        if old is not None and old.spec == rule.spec:
            self._rules[rule.metadata.name] = rule
            return
        self._rules[rule.metadata.name] = rule
        self._taints_changed(rule, old)

    def delete_taint_rule(self, name: str) -> None:
        """Forget a DeviceTaintRule."""
        old = self._rules.pop(name, None)
        if old is not None:
            self._taints_changed(old)

    def _taints_changed(self, *rules: DeviceTaintRule | None) -> None:
        for rule in rules:
            if rule is None:
                continue
            selector = rule.spec.device_selector
            for name, facts in list(self._slices.items()):
                if selector is None or (
                    selector.driver in (None, facts.driver) and selector.pool in (None, facts.pool)
                ):
                    self.set_slice(self._sources[name], key=name)

    def set_node(self, node: Node) -> None:
        """Add or replace a Node (name, labels, declared features)."""
        name = node.metadata.name
        old = self._nodes.get(name)
        self._nodes[name] = node
        if old is None or _node_traits(old) != _node_traits(node):
            self._forget_view(name)

    def delete_node(self, name: str) -> None:
        """Forget a Node."""
        self._nodes.pop(name, None)
        self._forget_view(name)

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """Return the known classes by name."""
        return self._classes

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Return the known nodes by name."""
        return self._nodes

    # --- what is in use --------------------------------------------------------

    def set_claim(self, claim: ResourceClaim) -> None:
        """Enter the allocation in the claim's status (keyed by uid); no-op when it did not change."""
        uid = claim.metadata.uid or claim_label(claim)
        allocation = claim.status.allocation
        known = self._claims.get(uid)
        if known is not None:
            if allocation is not None and known[0] == allocation:
                return
            known[1]()
            del self._claims[uid]
        if allocation is not None:
            self._claims[uid] = (allocation, self.take(claim_label(claim), allocation))

    def delete_claim(self, uid: str) -> None:
        """Unbook a claim."""
        known = self._claims.pop(uid, None)
        if known is not None:
            known[1]()

    def take(self, owner: str, allocation: AllocationResult) -> Undo:
        """Enter an in-flight allocation until the returned undo is called (calling twice is harmless).

        When the claim comes back allocated through `set_claim`, both bookings stand until
        the undo is called: confirm by `set_claim` first, then undo. `owner` is for people.
        """
        holds = holds_of(allocation.devices.results, with_shares=self.gates.shares)
        return self.ledger.take(owner, holds)

    def seed(
        self,
        dedicated: Iterable[DeviceId] = (),
        shares: Iterable[tuple[DeviceId, str]] = (),
        consumed: Iterable[tuple[DeviceId, Amounts]] = (),
        owner: str = "unknown claim",
    ) -> Undo:
        """Enter bare use, without claims: whole devices, shares, and capacity in nanos."""
        undos = [self.ledger.take(owner, {device: Hold((), {})}) for device in dedicated]
        undos += [self.ledger.take(owner, {device: Hold((share,), {})}) for device, share in shares]
        undos += [self.ledger.take(owner, {device: Hold(("",), amounts)}) for device, amounts in consumed]

        def undo() -> None:
            while undos:
                undos.pop()()

        return undo

    def _use_changed(self, pool_id: PoolId, device: str, use: DeviceUse | None) -> None:
        record = self._pools.get(pool_id)
        if record is None:
            return
        for node in record.set_use(device, use):
            if node:
                self._note(node)
            else:
                self._note_all()

    # --- queries -------------------------------------------------------------

    def plan(
        self,
        node: str,
        claims: Sequence[ResourceClaim],
        *,
        budget: int = DEFAULT_BUDGET,
        policy: Policy | None = None,
    ) -> Plan | Unsatisfied:
        """Allocate all claims on one node, or none.

        Raises AllocationError where no node can help; never for lack of devices. The
        claims' own status is not looked at: pass only claims without an allocation.
        `policy` chooses among the devices; it never changes whether the claims fit.
        """
        query = self._query(claims)
        view = self.view(node)
        result, steps = query.result(view, budget)
        if result.fatal is not None:
            raise _error(result.fatal, view, claims)
        assert result.outcome is not None
        if result.outcome.picks is not None:
            outcome = result.outcome
            if policy is not None and policy.node is not None:
                outcome = choose_devices(query, view, policy, outcome).outcome
            builder = AllocationBuilder(query.compiled, outcome, self.new_share_id)
            return Plan(node, steps, view, builder.build)
        return self._refusal(query, node, result, steps, claims)

    def plan_nodes(
        self,
        claims: Sequence[ResourceClaim],
        nodes: Iterable[str] | None = None,
        *,
        first: int | None = None,
        budget: int = DEFAULT_BUDGET,
        total: int = DEFAULT_TOTAL,
        policy: Policy | None = None,
    ) -> NodePlans:
        """Allocate on each of many nodes (None: all known), equal nodes sharing one search.

        No search takes more than `budget` steps; once all together have taken `total`, the
        remaining nodes get short searches only, and `NodePlans.gave_up` names those cut off.
        With `first`, stop after so many feasible nodes. With `policy`, devices are chosen by it
        and the best nodes come first. Raises AllocationError as `plan`.
        """
        query = self._query(claims)
        sweep = NodeSweep(query, self.view, self.new_share_id, first=first, budget=budget, total=total)

        def fail(node: str, result: CachedResult) -> AllocationError:
            assert result.fatal is not None
            return _error(result.fatal, self.view(node), claims)

        if first is None or nodes is None or isinstance(nodes, Sequence):
            sweep.ask_all(list(self._nodes if nodes is None else nodes), fail)
        else:
            sweep.ask_each(nodes, fail)
        plans = sweep.plans
        if policy is not None and policy.node is not None:
            plans = self._by_policy(query, plans, policy)
        refusals = Refusals(sweep, lambda node, v: self._refusal(query, node, v, 0, claims))
        return NodePlans(tuple(plans), refusals, sweep.steps, sweep.gave_up())

    def explain(self, claims: Sequence[ResourceClaim], nodes: Iterable[str] | None = None) -> Explanation:
        """Return where the claims fit and, per request, why not elsewhere; never raises AllocationError."""
        fits: list[str] = []
        errors: dict[str, str] = {}
        nodes_by_reasons: dict[tuple[RequestReasons, ...], list[str]] = {}
        for node in list(self._nodes) if nodes is None else nodes:
            try:
                answer = self.plan(node, claims)
            except AllocationError as error:
                errors[node] = str(error)
                continue
            if isinstance(answer, Plan):
                fits.append(node)
                continue
            if answer.error or answer.gave_up:
                errors[node] = answer.summary
            nodes_by_reasons.setdefault(answer.reasons, []).append(node)
        if errors and len(set(errors.values())) == 1 and not fits and not nodes_by_reasons:
            errors = {"": next(iter(errors.values()))}
        return Explanation(
            tuple(fits), errors, tuple((tuple(names), reasons) for reasons, names in nodes_by_reasons.items())
        )

    def view(self, node: str) -> NodeView:
        """Return the node with its pools, as of now. Unknown nodes have no labels."""
        found = self._views.get(node)
        if found is None:
            known = self._nodes.get(node) or Node(metadata=ObjectMeta(name=node))
            records = {**self._pools_by_node.get(node, {}), **self._pools_without_node}
            views = [record.view_for(known) for record in records.values()]
            found = NodeView(known, [view for view in views if view is not None])
            self._views[node] = found
            self._baseline.group(found)
            for pool in found.pools:
                pool.prepare()
        return found

    # --- summaries for node policies ---------------------------------------------

    def free_devices(self, node: str) -> tuple[int, ...]:
        """Return the free thousandths of all devices of a node, by position."""
        return free_devices(self.view(node))

    def attributes_read(self, claims: Sequence[ResourceClaim]) -> tuple[str, ...] | None:
        """Return the attributes that the selectors and constraints of claims read; None means: any."""
        return self._query(claims).compiled.reads

    def hardware_of(self, node: str, reads: Sequence[str] | None) -> Hashable:
        """Return a key that is equal for nodes whose devices look the same to selectors that read these."""
        return tuple(
            [
                (pool.structure, *((pool.all_attributes(),) if reads is None else map(pool.column, reads)))
                for pool in self.view(node).pools
            ]
        )

    def footprints(self, node: str, claims: Sequence[ResourceClaim]) -> tuple[RequestFootprint, ...] | None:
        """Return what each request takes of the devices of a node; None where a summary cannot tell."""
        return footprints(self._query(claims), self.view(node))

    @property
    def change_log(self) -> ChangeLog:
        """Return the log of nodes whose devices changed; another log means: any may have."""
        return self._change_log

    def _query(self, claims: Sequence[ResourceClaim]) -> CachedQuery:
        key = b"\n".join([msgspec.json.encode(claim.spec) for claim in claims])
        query = self._queries.get(key)
        if query is None:
            self._compile_in_time(claims)
            if len(self._queries) >= _MOST_QUERIES:
                self._queries.clear()
            compiled = CompiledClaims(
                [claim.spec for claim in claims],
                self.gates,
                self._classes,
                self._selector,
                self._derivation,
            )
            query = self._queries[key] = CachedQuery(
                compiled,
                self._node_classes(compiled),
                self._is_late,
                self.evaluation_budget,
                self._matches,
            )
        query.node_classes.catch_up(self._change_log)
        return query

    def _compile_in_time(self, claims: Sequence[ResourceClaim]) -> None:
        """Leave it to the caller if the expressions of claims take long to compile. Raises PendingWork."""
        if self.evaluation_budget.cost_left is None:
            return
        missing = [
            (text, is_derived)
            for text, is_derived in expressions_of([claim.spec for claim in claims], self._classes)
            if text not in (self._derivations if is_derived else self._selectors)
        ]
        if takes_long(text for text, _ in missing):
            raise PendingWork(partial(self._compile, missing))

    def _compile(self, expressions: Sequence[tuple[str, bool]]) -> None:
        made = [
            (Derivation if is_derived else Selector)(text, self.features, self._verdicts)
            for text, is_derived in expressions
        ]
        # All of a claim or nothing: else those kept first could make room for the last.
        self._keep(*made)
        for expression in made:
            if isinstance(expression, Selector):
                self._selectors[expression.text] = expression
            elif isinstance(expression, Derivation):
                self._derivations[expression.text] = expression

    def _node_classes(self, compiled: CompiledClaims) -> NodeClasses:
        reads, looks_at_used = compiled.reads, compiled.looks_at_used
        found = self._node_classes_by_reads.get((reads, looks_at_used))
        if found is None:
            if len(self._node_classes_by_reads) >= _MOST_NODE_CLASSES:
                # Queries keep theirs; forgetting them only makes the next ones start anew.
                self._node_classes_by_reads.clear()
            found = NodeClasses(self._baseline, reads, looks_at_used=looks_at_used)
            self._node_classes_by_reads[reads, looks_at_used] = found
        return found

    def _selector(self, text: str) -> Selector:
        found = self._selectors.get(text)
        if found is None:
            found = Selector(text, self.features, self._verdicts)
            self._keep(found)
            self._selectors[text] = found
        return found

    def _derivation(self, text: str) -> Derivation:
        found = self._derivations.get(text)
        if found is None:
            found = Derivation(text, self.features, self._verdicts)
            self._keep(found)
            self._derivations[text] = found
        return found

    def _keep(self, *expressions: Expression) -> None:
        """Forget all expressions if more of them would take too much memory; queries keep theirs."""
        n_characters = sum(max(len(each.text), _LEAST_CHARACTERS) for each in expressions)
        if self._n_characters + n_characters > _MOST_CHARACTERS:
            self._selectors.clear()
            self._derivations.clear()
            self._n_characters = 0
        self._n_characters += n_characters

    # --- answers ---------------------------------------------------------------

    def _refusal(
        self, query: CachedQuery, node: str, result: CachedResult, steps: int, claims: Sequence[ResourceClaim]
    ) -> Unsatisfied:
        outcome = result.outcome
        assert outcome is not None
        view = self.view(node)
        return Unsatisfied(
            node,
            steps or outcome.steps,
            lambda: explain_node(self.ledger, query, view, [claim_label(claim) for claim in claims]),
            error=INVALID_POOLS if view.has_invalid and not outcome.gave_up else None,
            gave_up=outcome.gave_up,
        )

    def _by_policy(self, query: CachedQuery, plans: Iterable[Plan], policy: Policy) -> list[Plan]:
        """Choose the devices anew by the policy, and put the best nodes first."""
        scored: list[Plan] = []
        builders: dict[int, AllocationBuilder] = {}  # by identity: equal nodes share one outcome
        for plan in plans:
            view = self.view(plan.node)
            result, _ = query.result(view, 0)
            assert result.outcome is not None
            found = choose_devices(query, view, policy, result.outcome)
            builder = builders.get(id(found))
            if builder is None:
                builder = AllocationBuilder(query.compiled, found.outcome, self.new_share_id)
                builders[id(found)] = builder
            scored.append(Plan(plan.node, plan.steps, view, builder.build, found.score))
        scored.sort(key=lambda plan: -plan.score)
        return scored


def _error(found: FatalFound, view: NodeView, claims: Sequence[ResourceClaim]) -> AllocationError:
    device = None
    if found.position is not None:
        row = [
            pool.device_id(bit) for pool in view.pools if pool.is_usable for bit in range(len(pool.devices))
        ]
        device = row[found.position]
    elif found.pool is not None:
        device = DeviceId(*view.pools[found.pool].id, "")
    return found.fatal.error(claim_label(claims[found.claim]), device)


def _node_traits(node: Node) -> tuple[object, ...]:
    return (node.metadata.labels or {}, node.status.declared_features)


def _numbered_shares() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012x}"
