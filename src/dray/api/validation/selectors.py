"""Node selectors, label selectors and conditions: shapes that many kinds share."""

from __future__ import annotations

from dray.api.json_types import JsonMapping
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    forbidden,
    invalid,
    invalid_each,
    not_supported,
    required,
    too_long,
)
from dray.api.validation.formats import condition_reason, dns_subdomain, label_key, label_value, size
from dray.api.validation.metadata import validate_labels

_REASON_MAX_BYTES = 1024
_MESSAGE_MAX_BYTES = 32 * 1024


def validate_node_selector(selector: JsonMapping, path: Path) -> list[FieldError]:
    """Check a node selector: at least one term."""
    terms, path = selector.get("nodeSelectorTerms") or [], path.child("nodeSelectorTerms")
    if not terms:
        return [required(path, "must have at least one node selector term")]
    return [
        error
        for number, term in enumerate(terms)
        for error in validate_node_selector_term(term, path.at(number))
    ]


def validate_node_selector_term(
    term: JsonMapping, path: Path, *, lax_values: bool = False
) -> list[FieldError]:
    """Check one term: requirements on labels (`lax_values`: any values) and on the node's name."""
    errors: list[FieldError] = []
    for number, requirement in enumerate(term.get("matchExpressions") or []):
        here = path.child("matchExpressions").at(number)
        errors += _validate_node_requirement(requirement, here, lax_values=lax_values)
    for number, requirement in enumerate(term.get("matchFields") or []):
        errors += _validate_node_field(requirement, path.child("matchFields").at(number))
    return errors


def _validate_node_requirement(requirement: JsonMapping, path: Path, *, lax_values: bool) -> list[FieldError]:
    operator, values = requirement.get("operator") or "", requirement.get("values") or []
    key = requirement.get("key") or ""
    errors: list[FieldError] = []
    if operator in ("In", "NotIn"):
        if not values:
            errors.append(
                required(path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'")
            )
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(forbidden(path.child("values"), detail))
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(required(path.child("values"), detail))
    else:
        errors.append(invalid(path.child("operator"), operator, "not a valid selector operator"))
    errors += invalid_each(path.child("key"), key, label_key(key))
    for number, value in enumerate([] if lax_values else values):
        errors += invalid_each(path.child("values").at(number), value, label_value(value))
    return errors


def _validate_node_field(requirement: JsonMapping, path: Path) -> list[FieldError]:
    operator, values = requirement.get("operator") or "", requirement.get("values") or []
    key = requirement.get("key") or ""
    errors: list[FieldError] = []
    if operator not in ("In", "NotIn"):
        errors.append(invalid(path.child("operator"), operator, "not a valid selector operator"))
    elif len(values) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(required(path.child("values"), detail))
    if key != "metadata.name":
        errors.append(invalid(path.child("key"), key, "not a valid field selector key"))
    else:
        for number, value in enumerate(values):
            errors += invalid_each(path.child("values").at(number), value, dns_subdomain(value))
    return errors


def validate_label_selector(
    selector: JsonMapping | None, path: Path, *, lax_values: bool = False
) -> list[FieldError]:
    """Check a label selector; `lax_values` leaves values of expressions alone."""
    if selector is None:
        return []
    errors = validate_labels(selector.get("matchLabels"), path.child("matchLabels"))
    for number, requirement in enumerate(selector.get("matchExpressions") or []):
        here = path.child("matchExpressions").at(number)
        operator, values = requirement.get("operator") or "", requirement.get("values") or []
        key = requirement.get("key") or ""
        if operator in ("In", "NotIn"):
            if not values:
                errors.append(
                    required(here.child("values"), "must be specified when `operator` is 'In' or 'NotIn'")
                )
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                errors.append(forbidden(here.child("values"), detail))
        else:
            errors.append(invalid(here.child("operator"), operator, "not a valid selector operator"))
        errors += invalid_each(here.child("key"), key, label_key(key))
        if not lax_values:
            for position, value in enumerate(values):
                errors += invalid_each(here.child("values").at(position), value, label_value(value))
    return errors


def is_empty_selector(selector: JsonMapping | None) -> bool:
    """Return whether a label selector selects everything."""
    return not selector or not (selector.get("matchLabels") or selector.get("matchExpressions"))


def validate_conditions(conditions: list[JsonMapping] | None, path: Path) -> list[FieldError]:
    """Check a list of conditions; a type may occur once."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for number, condition in enumerate(conditions or []):
        kind = condition.get("type") or ""
        if kind in seen:
            errors.append(duplicate(path.at(number), kind))
        seen.add(kind)
        errors += _validate_condition(condition, path.at(number))
    return errors


def _validate_condition(condition: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    kind, status = condition.get("type") or "", condition.get("status") or ""
    reason, generation = condition.get("reason") or "", condition.get("observedGeneration") or 0
    errors += (
        invalid_each(path.child("type"), kind, label_key(kind))
        if kind
        else [required(path.child("type"), "is required")]
    )
    if not status:
        errors.append(required(path.child("status")))
    elif status not in ("False", "True", "Unknown"):
        errors.append(not_supported(path.child("status"), status, ("False", "True", "Unknown")))
    if generation < 0:
        errors.append(
            invalid(path.child("observedGeneration"), generation, "must be greater than or equal to zero")
        )
    if not condition.get("lastTransitionTime"):
        errors.append(required(path.child("lastTransitionTime")))
    if not reason:
        errors.append(required(path.child("reason")))
    else:
        errors += invalid_each(path.child("reason"), reason, condition_reason(reason))
        if size(reason) > _REASON_MAX_BYTES:
            errors.append(too_long(path.child("reason"), _REASON_MAX_BYTES))
    if size(condition.get("message") or "") > _MESSAGE_MAX_BYTES:
        errors.append(too_long(path.child("message"), _MESSAGE_MAX_BYTES))
    return errors
