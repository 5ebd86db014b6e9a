"""Specs of ResourceClaim and ResourceClaimTemplate, and DeviceClass's share of them.

A claim names requests; constraints and configuration refer to requests by
name, derived attributes exist for the sake of constraints. Most of this file
is about such references. What can be said of one field alone is declared in
`resource_rules.py`.

The spec of a claim is frozen at birth: an update may only touch metadata, and
nothing else is looked at again, so that claims stay updatable when rules
become stricter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dray.api.json_types import JsonMapping
from dray.api.kinds import RESOURCE
from dray.api.schema import schema_of
from dray.api.validation.context import ValidationContext
from dray.api.validation.declared import check_declared
from dray.api.validation.equality import is_same
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    forbidden,
    internal,
    invalid,
    not_supported,
    required,
    too_long,
)
from dray.api.validation.formats import label_value, long_name, size
from dray.api.validation.internal_forms import internal_form
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_new_metadata,
    validate_template_metadata,
)
from dray.api.validation.names import validate_label, validate_subdomain
from dray.api.validation.raw_objects import validate_raw_object
from dray.api.validation.resource_rules import (
    ALLOCATION_MODES,
    DEVICE_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
)

EXPRESSION_MAX_BYTES = 10 * 1024
EXPRESSION_MAX_COST = 1_000_000
PARAMETERS_MAX_BYTES = 10 * 1024
REQUESTS_MAX = CONSTRAINTS_MAX = CONFIG_MAX = SELECTORS_MAX = 32
SUBREQUESTS_MAX = 8

_BAD_REFERENCE = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)
_SPEC = Path("spec")


# --- kinds -------------------------------------------------------------------------------


def validate_claim(claim: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new ResourceClaim."""
    errors = validate_new_metadata(metadata_of(claim), namespaced=True)
    accepted = context.accepted
    if accepted is None:
        return errors + _validate_new_spec(claim, context)
    seal = accepted.seal("ResourceClaim", context.version, claim.get("spec"))
    if seal in accepted:
        return errors
    found = _validate_new_spec(claim, context)
    if not found:
        accepted.add(seal)
    return errors + found


def _validate_new_spec(claim: JsonMapping, context: ValidationContext) -> list[FieldError]:
    errors = validate_claim_spec(claim.get("spec") or {}, _SPEC, context)
    # The status of a new claim is thrown away, so nobody shall be told that it is wrong.
    fresh = {"spec": claim.get("spec")}
    return errors + check_declared(
        RESOURCE_CLAIM, fresh, None, features=context.features, version=context.version
    )


def validate_claim_update(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check an update of a ResourceClaim's metadata; its spec may not change."""
    errors = validate_changed_metadata_strictly(new, old)
    if not is_same(new.get("spec"), old.get("spec")):
        errors.append(invalid(_SPEC, None, "field is immutable"))
    return errors


def validate_changed_metadata_strictly(new: JsonMapping, old: JsonMapping) -> list[FieldError]:
    """Check changed metadata by the rules for new and for changed objects; each complaint counts once."""
    created = validate_new_metadata(metadata_of(new), namespaced="namespace" in metadata_of(old))
    changed = validate_changed_metadata(metadata_of(new), metadata_of(old))
    return created + changed


def validate_template(template: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new ResourceClaimTemplate."""
    errors = _validate_template(template, context)
    return errors + check_declared(
        RESOURCE_CLAIM_TEMPLATE, template, None, features=context.features, version=context.version
    )


def _validate_template(template: JsonMapping, context: ValidationContext) -> list[FieldError]:
    errors = validate_new_metadata(metadata_of(template), namespaced=True)
    spec = template.get("spec") or {}
    errors += validate_template_metadata(spec.get("metadata"), _SPEC.child("metadata"))
    return errors + validate_claim_spec(spec.get("spec") or {}, _SPEC.child("spec"), context)


def validate_template_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check an update of a ResourceClaimTemplate; its spec may not change, and is judged all the same."""
    errors = _validate_template(new, context)
    errors += validate_changed_metadata(metadata_of(new), metadata_of(old))
    if not is_same(new.get("spec"), old.get("spec")):
        shown = internal_form(
            new.get("spec"), schema_of(RESOURCE, "v1", "ResourceClaimTemplate").fields["spec"].type
        )
        errors.append(invalid(_SPEC, shown, "field is immutable"))
    return errors + check_declared(
        RESOURCE_CLAIM_TEMPLATE, new, old, features=context.features, version=context.version
    )


def validate_class(device_class: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new DeviceClass."""
    errors = validate_new_metadata(
        metadata_of(device_class),
        namespaced=False,
        name_format=long_name,
        checks_prefix=False,
    )
    errors += _validate_class_spec(device_class.get("spec") or {}, None, context)
    return errors + check_declared(
        DEVICE_CLASS, device_class, None, features=context.features, version=context.version
    )


def validate_class_update(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check an update of a DeviceClass; unchanged selectors and configuration count as stored."""
    errors = validate_new_metadata(
        metadata_of(new),
        namespaced=False,
        name_format=long_name,
        checks_prefix=False,
        qualified_finalizers=False,
    )
    errors += validate_changed_metadata(metadata_of(new), metadata_of(old))
    errors += _validate_class_spec(new.get("spec") or {}, old.get("spec") or {}, context)
    return errors + check_declared(DEVICE_CLASS, new, old, features=context.features, version=context.version)


def expressions_of(obj: JsonMapping) -> Iterator[str]:
    """Yield the CEL expressions of a claim, a template of claims or a class."""
    stack: list[object] = [obj.get("spec")]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            expression = value.get("expression")
            if isinstance(expression, str):
                yield expression
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _validate_class_spec(
    spec: JsonMapping, old: JsonMapping | None, context: ValidationContext
) -> list[FieldError]:
    selectors, config = spec.get("selectors") or [], spec.get("config") or []
    stored = old is not None and is_same(selectors, old.get("selectors"))
    walk = _ClaimWalk(context, stored=stored)
    errors = walk.selectors(selectors, _SPEC.child("selectors"))
    if len(config) <= CONFIG_MAX:
        stored = old is not None and is_same(config, old.get("config"))
        for number, entry in enumerate(config):
            errors += validate_configuration(entry, _SPEC.child("config").at(number), stored=stored)
    return errors


# --- the spec of a claim -----------------------------------------------------------------


class RequestNames:
    """The requests of a claim and the subrequests of each."""

    def __init__(self, device_claim: JsonMapping) -> None:
        self._subrequests_by_request: dict[str, frozenset[str]] = {
            request.get("name") or "": frozenset(
                subrequest.get("name") or "" for subrequest in request.get("firstAvailable") or []
            )
            for request in device_claim.get("requests") or []
        }

    def has(self, reference: str) -> bool:
        """Return whether `request` or `request/subrequest` exists."""
        request, slash, subrequest = reference.partition("/")
        names = self._subrequests_by_request.get(request)
        return names is not None and (not slash or subrequest in names)

    def validate(self, reference: str, path: Path) -> list[FieldError]:
        """Check a reference to a request or a subrequest."""
        parts = reference.split("/")
        if len(parts) > 2:
            return [invalid(path, reference, _BAD_REFERENCE)]
        errors = [error for part in parts for error in validate_label(part, path)]
        return errors if self.has(reference) else [*errors, invalid(path, reference, _BAD_REFERENCE)]

    def validate_all(self, references: list[str], path: Path) -> list[FieldError]:
        """Check a list of references; a list that is too long is left to the declared rules."""
        if len(references) > REQUESTS_MAX:
            return []
        return [
            error
            for number, reference in enumerate(references)
            for error in self.validate(reference, path.at(number))
        ]


def validate_claim_spec(spec: JsonMapping, path: Path, context: ValidationContext) -> list[FieldError]:
    """Check the spec of a new claim."""
    device_claim, path = spec.get("devices") or {}, path.child("devices")
    requests = device_claim.get("requests") or []
    constraints = device_claim.get("constraints") or []
    config = device_claim.get("config") or []
    names = RequestNames(device_claim)
    walk = _ClaimWalk(context, stored=False, attributes_by_target=_constrained_attributes(constraints))
    errors: list[FieldError] = []
    if len(requests) <= REQUESTS_MAX:
        for number, request in enumerate(requests):
            errors += walk.request(request, path.child("requests").at(number))
    if len(constraints) <= CONSTRAINTS_MAX:
        for number, constraint in enumerate(constraints):
            here = path.child("constraints").at(number)
            errors += names.validate_all(constraint.get("requests") or [], here.child("requests"))
            errors += _validate_constraint_kind(constraint, here, context)
    if len(config) <= CONFIG_MAX:
        for number, entry in enumerate(config):
            here = path.child("config").at(number)
            errors += names.validate_all(entry.get("requests") or [], here.child("requests"))
            errors += validate_configuration(entry, here)
    if walk.derived_cost > EXPRESSION_MAX_COST:
        detail = (
            "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit"
        )
        errors.append(forbidden(path, detail))
    return errors


def _constrained_attributes(constraints: list[JsonMapping]) -> dict[str, set[str]]:
    """Map each target of constraints ("" means every request) to the attributes they compare."""
    attributes_by_target: dict[str, set[str]] = {}
    for constraint in constraints:
        attribute = constraint.get("matchAttribute")
        if attribute is None:
            attribute = constraint.get("distinctAttribute")
        if attribute is not None:
            for target in constraint.get("requests") or [""]:
                attributes_by_target.setdefault(target, set()).add(attribute)
    return attributes_by_target


def _validate_constraint_kind(
    constraint: JsonMapping, path: Path, context: ValidationContext
) -> list[FieldError]:
    if constraint.get("matchAttribute") is not None or constraint.get("distinctAttribute") is not None:
        return []
    if "DRAConsumableCapacity" not in context.features:
        return [required(path.child("matchAttribute"))]
    # The sentence is the reference's, although nothing is set here.
    detail = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
    return [required(path, detail)]


def validate_configuration(entry: JsonMapping, path: Path, *, stored: bool = False) -> list[FieldError]:
    """Check the configuration of a class, claim or allocation; the driver's name is a declared rule."""
    opaque, path = entry.get("opaque"), path.child("opaque")
    if opaque is None:
        return [required(path)]
    return validate_raw_object(
        opaque.get("parameters"), path.child("parameters"), limit=PARAMETERS_MAX_BYTES, stored=stored
    )


def validate_toleration_value(toleration: JsonMapping, path: Path) -> list[FieldError]:
    """Check that the value of a toleration suits its operator; all else about it is declared."""
    operator, value = toleration.get("operator") or "", toleration.get("value") or ""
    if operator == "Exists" and value:
        return [invalid(path.child("value"), value, "must be empty for operator `Exists`")]
    if operator == "Equal":
        return [invalid(path.child("value"), value, problem) for problem in label_value(value)]
    return []


def validate_toleration_values(tolerations: list[JsonMapping] | None, path: Path) -> list[FieldError]:
    """Check the values of all tolerations."""
    return [
        error
        for number, toleration in enumerate(tolerations or [])
        for error in validate_toleration_value(toleration, path.at(number))
    ]


@dataclass(slots=True)
class _ClaimWalk:
    """One walk over the requests of a claim; counts what derived attributes cost together."""

    context: ValidationContext
    stored: bool
    attributes_by_target: dict[str, set[str]] = field(default_factory=dict)
    derived_cost: int = 0

    def request(self, request: JsonMapping, path: Path) -> list[FieldError]:
        name = request.get("name") or ""
        errors = validate_label(name, path.child("name"))
        exactly, alternatives = request.get("exactly"), request.get("firstAvailable") or []
        rule = "exactly one of `exactly` or `firstAvailable` is required"
        if exactly is not None and alternatives:
            return [*errors, invalid(path, None, f"{rule}, but multiple fields are set")]
        if exactly is not None:
            class_path = path.child("exactly", "deviceClassName")
            class_name = exactly.get("deviceClassName") or ""
            errors += validate_subdomain(class_name, class_path) if class_name else [required(class_path)]
            return errors + self._selection(exactly, path.child("exactly"), name)
        if not alternatives:
            return [*errors, required(path, rule)]
        if len(alternatives) <= SUBREQUESTS_MAX:
            for number, subrequest in enumerate(alternatives):
                here = path.child("firstAvailable").at(number)
                inner_name = subrequest.get("name") or ""
                errors += validate_label(inner_name, here.child("name"))
                errors += self._selection(subrequest, here, f"{name}/{inner_name}")
        return errors

    def _selection(self, request: JsonMapping, path: Path, target: str) -> list[FieldError]:
        errors = self.selectors(request.get("selectors") or [], path.child("selectors"))
        errors += self._derived_attributes(request, path.child("derivedAttributes"), target)
        errors += _validate_count(request, path)
        return errors + validate_toleration_values(request.get("tolerations"), path.child("tolerations"))

    def selectors(self, selectors: list[JsonMapping], path: Path) -> list[FieldError]:
        if len(selectors) > SELECTORS_MAX:
            return []
        errors: list[FieldError] = []
        for number, selector in enumerate(selectors):
            here = path.at(number).child("cel")
            cel = selector.get("cel")
            if cel is None:
                errors.append(required(here))
            else:
                errors += self._expression(
                    cel.get("expression") or "", here.child("expression"), derived=False
                )
        return errors

    def _derived_attributes(self, request: JsonMapping, path: Path, target: str) -> list[FieldError]:
        errors: list[FieldError] = []
        seen: set[str] = set()
        for number, attribute in enumerate(request.get("derivedAttributes") or []):
            here = path.at(number)
            name, expression = attribute.get("name") or "", attribute.get("expression") or ""
            if name and not self._is_constrained(name, target):
                detail = (
                    "must be referenced by at least one matchAttribute or distinctAttribute constraint "
                    "targeting this request"
                )
                errors.append(invalid(here.child("name"), name, detail))
            if expression:
                errors += self._expression(expression, here.child("expression"), derived=True)
            if name in seen:
                errors.append(duplicate(here, name))
            seen.add(name)
        return errors

    def _is_constrained(self, attribute: str, target: str) -> bool:
        parent = target.partition("/")[0]
        return any(attribute in self.attributes_by_target.get(place, ()) for place in ("", target, parent))

    def _expression(self, expression: str, path: Path, *, derived: bool) -> list[FieldError]:
        if self.stored:
            return []
        # Too long is not even compiled.
        if size(expression) > EXPRESSION_MAX_BYTES:
            return [too_long(path, EXPRESSION_MAX_BYTES)]
        verdict = self.context.cel.check(expression, stored=False, derived=derived)
        if verdict.error is not None:
            if verdict.is_internal:
                return [internal(path, verdict.error)]
            return [invalid(path, expression, verdict.error)]
        if derived:
            self.derived_cost += verdict.max_cost
        if verdict.max_cost > EXPRESSION_MAX_COST:
            return [forbidden(path, "too complex, exceeds cost limit")]
        return []


def _validate_count(request: JsonMapping, path: Path) -> list[FieldError]:
    mode, count = request.get("allocationMode") or "", request.get("count") or 0
    if mode == "All" and count != 0:
        return [invalid(path.child("count"), count, "must not be specified when allocationMode is 'All'")]
    if mode == "ExactCount" and count <= 0:
        return [invalid(path.child("count"), count, "must be greater than zero")]
    # Unknown modes are a declared error; none at all means that nobody applied the defaults.
    return [] if mode else [not_supported(path.child("allocationMode"), mode, ALLOCATION_MODES)]
