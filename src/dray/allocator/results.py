"""From picked positions to the allocation that is written into a claim.

Three things besides the list of devices: the config the drivers will see (class before
claim, each class once, with the requests it is for), the nodes on which the allocation
is usable, and the traits of devices that later steps need (binding conditions,
tolerations, operations to skip).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from dray.allocator.compiled_claims import CompiledClaims
from dray.allocator.device_facts import DeviceFacts
from dray.allocator.errors import AllocationError
from dray.allocator.pools import NodeView
from dray.allocator.search import Pick, SearchOutcome
from dray.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dray.api.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    QuantityValue,
)


class AllocationBuilder:
    """Turns one outcome into allocations, on any node it holds for."""

    def __init__(
        self, compiled: CompiledClaims, outcome: SearchOutcome, new_share_id: Callable[[], str]
    ) -> None:
        assert outcome.picks is not None
        self._compiled = compiled
        self._picks = outcome.picks
        self._new_share_id = new_share_id
        self._configs = [_config(compiled, claim, outcome.chosen) for claim in range(len(outcome.picks))]

    def build(self, view: object) -> tuple[AllocationResult, ...]:
        """Return one allocation per claim on a node. Raises AllocationError for a selector of many terms."""
        assert isinstance(view, NodeView)
        row = view.row
        allocations = []
        for picks, config in zip(self._picks, self._configs, strict=True):
            devices = [row[pick.position] for pick in picks]
            results = [self._result(pick, device) for pick, device in zip(picks, devices, strict=True)]
            allocations.append(
                AllocationResult(
                    devices=DeviceAllocationResult(results=results, config=config),
                    node_selector=node_selector_of(devices, view),
                )
            )
        return tuple(allocations)

    def _result(self, pick: Pick, facts: DeviceFacts) -> DeviceRequestAllocationResult:
        subrequest = self._compiled.subrequests[pick.subrequest]
        gates = self._compiled.gates
        device, spec = facts.device, facts.resource_slice.spec
        is_share = gates.shares and facts.is_shared
        if not (is_share or subrequest.admin or device.binding_conditions or spec.skip_node_operations):
            return DeviceRequestAllocationResult(
                request=subrequest.full_name,
                driver=spec.driver,
                pool=spec.pool.name,
                device=device.name,
                tolerations=subrequest.tolerations,
            )
        consumed: dict[str, QuantityValue] | None = None
        if is_share and pick.need is not None and pick.need.amounts:
            consumed = {name: str(amount) for name, amount in pick.need.amounts.items()}
        return DeviceRequestAllocationResult(
            request=subrequest.full_name,
            driver=spec.driver,
            pool=spec.pool.name,
            device=device.name,
            admin_access=True if subrequest.admin else None,
            tolerations=subrequest.tolerations,
            binding_conditions=(device.binding_conditions or []) if gates.conditions else [],
            binding_failure_conditions=(device.binding_failure_conditions or []) if gates.conditions else [],
            share_id=self._new_share_id() if is_share else None,
            consumed_capacity=consumed,
            skip_node_operations=spec.skip_node_operations,
        )


# --- config -------------------------------------------------------------------


def _config(
    compiled: CompiledClaims, claim: int, chosen: Sequence[int]
) -> list[DeviceAllocationConfiguration]:
    """List the configs that concern the chosen subrequests; one for all requests names none."""
    subrequests = [compiled.subrequests[chosen[number]] for number in compiled.requests_by_claim[claim]]
    names = [{subrequest.full_name, subrequest.full_name.partition("/")[0]} for subrequest in subrequests]
    configs: list[DeviceAllocationConfiguration] = []
    requests_by_class: dict[str, list[str]] = {}
    for subrequest in subrequests:
        requests_by_class.setdefault(subrequest.class_name, []).append(subrequest.full_name)
    seen: set[str] = set()
    for subrequest in subrequests:
        if subrequest.class_config is None or subrequest.class_name in seen:
            continue
        seen.add(subrequest.class_name)
        configs += [
            DeviceAllocationConfiguration(
                source="FromClass",
                requests=list(requests_by_class[subrequest.class_name]),
                opaque=config.opaque,
            )
            for config in subrequest.class_config.spec.config
        ]
    for claim_config in compiled.specs[claim].devices.config:
        if not claim_config.requests or any(
            request in aliases for request in claim_config.requests for aliases in names
        ):
            configs.append(
                DeviceAllocationConfiguration(
                    source="FromClaim", requests=claim_config.requests, opaque=claim_config.opaque
                )
            )
    return [
        msgspec.structs.replace(config, requests=[])
        if config.requests and all(aliases & set(config.requests) for aliases in names)
        else config
        for config in configs
    ]


# --- node selector ------------------------------------------------------------


def node_selector_of(devices: Sequence[DeviceFacts], view: NodeView) -> NodeSelector | None:
    """Return on which nodes the devices can be used together; None means everywhere.

    One device that belongs (or binds) to a node ties the whole allocation to the node it
    was made for; otherwise the requirements of all devices are joined.
    """
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for facts in devices:
        device, spec = facts.device, facts.resource_slice.spec
        owner = device if facts.resource_slice.per_device else spec
        if owner.node_name is not None or device.binds_to_node:
            return view.here
        terms = owner.node_selector.node_selector_terms if owner.node_selector else []
        if len(terms) > 1:
            raise AllocationError(
                f"create NodeSelector: unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
            )
        for term in terms:
            _join(fields, term.match_fields)
            _join(expressions, term.match_expressions)
    if not fields and not expressions:
        return None
    return NodeSelector(
        node_selector_terms=[NodeSelectorTerm(match_fields=fields, match_expressions=expressions)]
    )


def _join(into: list[NodeSelectorRequirement], new: list[NodeSelectorRequirement]) -> None:
    for requirement in new:
        values = set(requirement.values)
        if not any(
            known.key == requirement.key
            and known.operator == requirement.operator
            and set(known.values) == values
            for known in into
        ):
            into.append(requirement)
