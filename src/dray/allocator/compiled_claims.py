"""Claims as the search wants them: a flat list of subrequests, checked once.

A claim has requests, a request one or several alternatives; each alternative is a
`Subrequest` (a request without alternatives has exactly one). What can be said without looking at a node is said here: gates, classes,
modes, constraints. A finding is kept with the subrequest and not raised, because upstream
looks at requests in order and an earlier one may fail on a node first ("all devices"
of a pool that is being updated).

`CompiledClaims` has no claim names, so that the claims of a thousand pods made from one
template compile to one object; errors get the names when they are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dray.allocator.capacity import parse_amounts
from dray.allocator.errors import AllocationError, InvalidRequestError
from dray.allocator.expressions import Derivation, Selector
from dray.allocator.gates import Gates
from dray.api.quantity import Quantity, QuantityError
from dray.api.resource import (
    DeviceClass,
    DeviceRequest,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from dray.devices import DeviceId

RESULTS_MAX = 32  # devices per claim


@dataclass(frozen=True, slots=True)
class Fatal:
    """An error to be raised once claim and device are known."""

    kind: type[AllocationError]
    text: Callable[[str, DeviceId | None], str]  # (claim as namespace/name, device) -> message
    cause: Exception | None = None

    def error(self, claim: str, device: DeviceId | None = None) -> AllocationError:
        """Make the error."""
        made = self.kind(self.text(claim, device))
        made.__cause__ = self.cause
        return made


@dataclass(frozen=True, slots=True)
class SelectorUse:
    """A selector with its place, for error texts."""

    selector: Selector
    index: int
    class_name: str  # empty means: the claim's own selector


class Subrequest:
    """One alternative of one request."""

    __slots__ = (
        "admin",
        "amounts",
        "claim",
        "class_config",
        "class_name",
        "constraints",
        "count",
        "derived",
        "full_name",
        "name",
        "number",
        "problem",
        "request",
        "selectors",
        "tolerations",
        "wants_all",
    )

    def __init__(self, number: int, claim: int, request: int, name: str, parent: str) -> None:
        self.number = number  # position in CompiledClaims.subrequests
        self.claim = claim
        self.request = request  # position in CompiledClaims.requests
        self.name = name
        self.full_name = f"{parent}/{name}" if parent else name
        self.class_name = ""
        self.class_config: DeviceClass | None = None
        self.selectors: tuple[SelectorUse, ...] = ()
        self.wants_all = False
        self.count = 1
        self.admin = False
        self.tolerations: list[DeviceToleration] = []
        self.amounts: Mapping[str, Quantity] | None = None
        self.derived: dict[str, Derivation] = {}
        self.constraints: tuple[int, ...] = ()  # numbers of the claim's constraints that cover it
        self.problem: Fatal | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its alternatives, in order of preference."""

    claim: int
    name: str
    subrequests: tuple[Subrequest, ...]
    has_alternatives: bool
    problem: Fatal | None  # found before its subrequests are looked at


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A constraint on devices of one claim."""

    claim: int
    attribute: str
    distinct: bool
    requests: frozenset[str]

    def covers(self, subrequest: Subrequest) -> bool:
        """Return whether devices of the subrequest are judged; no names means: all."""
        if not self.requests or subrequest.full_name in self.requests:
            return True
        return subrequest.full_name.partition("/")[0] in self.requests


class CompiledClaims:
    """All claims of a pod, compiled."""

    def __init__(
        self,
        specs: Sequence[ResourceClaimSpec],
        gates: Gates,
        classes: Mapping[str, DeviceClass],
        selector: Callable[[str], Selector],
        derivation: Callable[[str], Derivation],
    ) -> None:
        self.specs = specs
        self.gates = gates
        self.subrequests: list[Subrequest] = []
        self.requests: list[Request] = []
        self.requests_by_claim: list[range] = []
        self.constraints: list[ConstraintSpec] = []
        self.claim_problems: list[Fatal | None] = []  # found after the requests of the claim
        self._classes = classes
        self._selector = selector
        self._derivation = derivation
        for number, spec in enumerate(specs):
            self._add_claim(number, spec)
        self.reads = self._reads()

    def with_specs(self, specs: Sequence[ResourceClaimSpec]) -> CompiledClaims:
        """Compile other specs with the same classes, gates and expressions."""
        return CompiledClaims(specs, self.gates, self._classes, self._selector, self._derivation)

    def _add_claim(self, claim: int, spec: ResourceClaimSpec) -> None:
        start = len(self.requests)
        for request in spec.devices.requests:
            self._add_request(claim, request)
        self.requests_by_claim.append(range(start, len(self.requests)))
        problem: Fatal | None = None
        for index, constraint in enumerate(spec.devices.constraints):
            attribute = constraint.match_attribute or constraint.distinct_attribute
            if constraint.match_attribute is None and constraint.distinct_attribute is None:
                problem = _invalid(
                    f"claim {{}}, constraint #{index}: empty constraint (unsupported constraint type?)"
                )
                break
            found = ConstraintSpec(
                claim, attribute or "", constraint.match_attribute is None, frozenset(constraint.requests)
            )
            self.constraints.append(found)
            for group in self.requests[start:]:
                for subrequest in group.subrequests:
                    if found.covers(subrequest):
                        subrequest.constraints += (len(self.constraints) - 1,)
        self.claim_problems.append(problem)

    def _add_request(self, claim: int, request: DeviceRequest) -> None:
        position = len(self.requests)
        gates = self.gates
        problem: Fatal | None = None
        alternatives = request.first_available
        if alternatives and not gates.prioritized_list:
            problem = _invalid(
                f"claim {{}}, request {request.name}: has subrequests, but the DRAPrioritizedList feature is disabled"
            )
        elif not gates.shares and request.exactly is not None and request.exactly.capacity is not None:
            problem = _invalid(
                f"claim {{}}, request {request.name}: has capacity requests,"
                " but the DRAConsumableCapacity feature is disabled"
            )
        elif not gates.shares and (named := next((s for s in alternatives if s.capacity is not None), None)):
            problem = _invalid(
                f"claim {{}}, subrequest {named.name}: has capacity requests,"
                " but the DRAConsumableCapacity feature is disabled"
            )
        subrequests: tuple[Subrequest, ...]
        if alternatives:
            subrequests = tuple(
                self._add_subrequest(claim, position, sub.name, request.name, sub) for sub in alternatives
            )
        else:
            exactly = request.exactly or ExactDeviceRequest()
            subrequests = (self._add_subrequest(claim, position, request.name, "", exactly),)
        self.requests.append(Request(claim, request.name, subrequests, bool(alternatives), problem))

    def _add_subrequest(
        self, claim: int, request: int, name: str, parent: str, wanted: ExactDeviceRequest | DeviceSubRequest
    ) -> Subrequest:
        subrequest = Subrequest(len(self.subrequests), claim, request, name, parent)
        self.subrequests.append(subrequest)
        subrequest.tolerations = wanted.tolerations
        if isinstance(wanted, ExactDeviceRequest):
            subrequest.admin = bool(wanted.admin_access)
        subrequest.problem = self._fill(subrequest, wanted)
        return subrequest

    def _fill(self, subrequest: Subrequest, wanted: ExactDeviceRequest | DeviceSubRequest) -> Fatal | None:
        """Fill in the subrequest as far as it can be understood; return what is wrong, in upstream's order."""
        head = f"claim {{}}, request {subrequest.name}"
        if wanted.derived_attributes and not self.gates.derived:
            return _invalid(f"{head}: cannot handle request with derived attributes, the feature is disabled")
        subrequest.derived = {d.name: self._derivation(d.expression) for d in wanted.derived_attributes}
        for index, selector in enumerate(wanted.selectors):
            if selector.cel is None:
                return _invalid(
                    f"{head}, selector #{index}: CEL expression empty (unsupported selector type?)"
                )
        if (
            isinstance(wanted, ExactDeviceRequest)
            and wanted.admin_access is not None
            and not self.gates.admin_access
        ):
            return _invalid(f"{head}: admin access is requested, but the feature is disabled")
        subrequest.class_name = wanted.device_class_name
        if not subrequest.class_name:
            return _invalid(f"{head}: missing device class name (unsupported request type?)")
        device_class = self._classes.get(subrequest.class_name)
        if device_class is None:
            # kube-scheduler ends with what its class lister says; users search for the text.
            return _invalid(
                f"{head}: could not retrieve device class {subrequest.class_name}:"
                f' deviceclass.resource.k8s.io "{subrequest.class_name}" not found'
            )
        subrequest.class_config = device_class
        subrequest.selectors = (
            *(
                SelectorUse(self._selector(s.cel.expression if s.cel else ""), i, subrequest.class_name)
                for i, s in enumerate(device_class.spec.selectors)
            ),
            *(
                SelectorUse(self._selector(s.cel.expression if s.cel else ""), i, "")
                for i, s in enumerate(wanted.selectors)
            ),
        )
        if wanted.capacity is not None:
            try:
                subrequest.amounts = parse_amounts(wanted.capacity.requests)
            except QuantityError as error:
                return _invalid(f"{head}: capacity: {error}")
        # The API server fills in these defaults; objects from files may lack them.
        mode = wanted.allocation_mode or "ExactCount"
        if mode == "ExactCount":
            subrequest.count = wanted.count or 1
        elif mode == "All":
            subrequest.wants_all = True
        else:
            return _invalid(f"{head}: unsupported count mode {mode}")
        return None

    @property
    def looks_at_used(self) -> bool:
        """Return whether devices that somebody holds as a whole make a difference."""
        return any(subrequest.wants_all or subrequest.admin for subrequest in self.subrequests)

    @property
    def has_slow_expressions(self) -> bool:
        """Return whether some expression may take long to evaluate."""
        return any(
            use.selector.is_slow for subrequest in self.subrequests for use in subrequest.selectors
        ) or any(
            derivation.is_slow
            for subrequest in self.subrequests
            for derivation in subrequest.derived.values()
        )

    def _reads(self) -> tuple[str, ...] | None:
        """Return all attributes that selectors and constraints look at; None means: any."""
        names: set[str] = {constraint.attribute for constraint in self.constraints}
        for subrequest in self.subrequests:
            for expression in [*(use.selector for use in subrequest.selectors), *subrequest.derived.values()]:
                if expression.reads is None:
                    return None
                names |= expression.reads
        return tuple(sorted(names))


def expressions_of(
    specs: Iterable[ResourceClaimSpec], classes: Mapping[str, DeviceClass]
) -> Iterator[tuple[str, bool]]:
    """Yield the expressions that a query about claims compiles, and whether each is a derived attribute."""
    for spec in specs:
        for request in spec.devices.requests:
            wanted: list[ExactDeviceRequest | DeviceSubRequest] = [*request.first_available]
            if request.exactly is not None:
                wanted.append(request.exactly)
            for each in wanted:
                device_class = classes.get(each.device_class_name)
                of_class = device_class.spec.selectors if device_class is not None else []
                for selector in [*of_class, *each.selectors]:
                    if selector.cel is not None:
                        yield selector.cel.expression, False
                for attribute in each.derived_attributes:
                    yield attribute.expression, True


def _invalid(text: str) -> Fatal:
    return Fatal(InvalidRequestError, lambda claim, _device: text.replace("{}", claim, 1))


def claim_label(claim: ResourceClaim) -> str:
    """Return the claim's name as it is written in errors."""
    metadata = claim.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
