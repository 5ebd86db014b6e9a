"""ResourceQuota and LimitRange: what a namespace may use, and what a container gets by default."""

from __future__ import annotations

from collections.abc import Mapping

from dray.api.json_types import JsonMapping
from dray.api.quantity import Quantity, QuantityError, parse_quantity
from dray.api.validation.context import ValidationContext
from dray.api.validation.fields import FieldError, Path, duplicate, forbidden, invalid, invalid_each, required
from dray.api.validation.formats import label_key
from dray.api.validation.metadata import metadata_of, validate_changed_metadata, validate_new_metadata
from dray.api.validation.resource_lists import (
    QUOTA_RESOURCES,
    is_huge_pages,
    is_native,
    validate_amount,
    validate_container_resource_name,
    validate_resource_name,
)

_SPEC, _STATUS = Path("spec"), Path("status")
_EXISTENCE_SCOPES = (
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "CrossNamespacePodAffinity",
)
_SCOPES = (*_EXISTENCE_SCOPES, "PriorityClass", "VolumeAttributesClass")
_CONFLICTS = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})
_POD_RESOURCES = frozenset(
    {"pods", *(f"{side}{name}" for side in ("", "requests.", "limits.") for name in ("cpu", "memory"))}
)


# --- ResourceQuota -----------------------------------------------------------------------


def validate_quota(quota: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new ResourceQuota."""
    errors = validate_new_metadata(metadata_of(quota), namespaced=True)
    return errors + _validate_quota_spec(quota.get("spec") or {}) + _validate_quota_status(quota)


def validate_quota_update(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a changed ResourceQuota; its scopes stay."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    errors += _validate_quota_spec(spec)
    if set(spec.get("scopes") or []) != set(old_spec.get("scopes") or []):
        errors.append(invalid(_SPEC.child("scopes"), spec.get("scopes"), "field is immutable"))
    return errors


def validate_quota_status(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check what a quota says about its use."""
    return validate_changed_metadata(metadata_of(new), metadata_of(old)) + _validate_quota_status(new)


def _validate_quota_status(quota: JsonMapping) -> list[FieldError]:
    status = quota.get("status") or {}
    return [
        error
        for field in ("hard", "used")
        for error in _validate_quota_amounts(status.get(field) or {}, _STATUS.child(field))
    ]


def _validate_quota_amounts(amounts: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for name, amount in amounts.items():
        here = path.key(name)
        errors += validate_resource_name(name, here)
        if "/" not in name and name not in QUOTA_RESOURCES and not _is_huge_pages_quota(name):
            errors.append(invalid(here, name, "must be a standard resource for quota"))
        errors += validate_amount(name, amount, here)
    return errors


def _is_huge_pages_quota(name: str) -> bool:
    return is_huge_pages(name.removeprefix("requests."))


def _validate_quota_spec(spec: JsonMapping) -> list[FieldError]:
    hard = spec.get("hard") or {}
    errors = _validate_quota_amounts(hard, _SPEC.child("hard"))
    scopes, path = spec.get("scopes") or [], _SPEC.child("scopes")
    for scope in scopes:
        if scope not in _SCOPES:
            errors.append(invalid(path, scopes, "unsupported scope"))
        if _has_unscopable(scope, hard):
            errors.append(invalid(path, scopes, "unsupported scope applied to resource"))
    if any(pair <= set(scopes) for pair in _CONFLICTS):
        errors.append(invalid(path, scopes, "conflicting scopes"))
    selector = spec.get("scopeSelector")
    if selector is not None:
        errors += _validate_scope_selector(selector, hard, _SPEC.child("scopeSelector", "matchExpressions"))
    return errors


def _has_unscopable(scope: str, hard: JsonMapping) -> bool:
    standard = [name for name in hard if name in QUOTA_RESOURCES]
    if scope == "BestEffort":
        return any(name != "pods" for name in standard)
    if scope == "VolumeAttributesClass":
        return any(name not in ("persistentvolumeclaims", "requests.storage") for name in standard)
    return scope in _SCOPES and any(name not in _POD_RESOURCES for name in standard)


def _validate_scope_selector(selector: JsonMapping, hard: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for requirement in selector.get("matchExpressions") or []:
        scope, operator = requirement.get("scopeName") or "", requirement.get("operator") or ""
        values = requirement.get("values") or []
        if scope not in _SCOPES:
            errors.append(invalid(path.child("scopeName"), scope, "unsupported scope"))
        if _has_unscopable(scope, hard):
            errors.append(invalid(path, dict(selector), "unsupported scope applied to resource"))
        if scope in _EXISTENCE_SCOPES and operator != "Exists":
            listed = ", ".join(f"ResourceQuotaScope{name}" for name in _EXISTENCE_SCOPES[:-1])
            detail = f"must be 'Exists' when scope is any of {listed} or ResourceQuotaScopeCrossNamespacePodAffinity"
            errors.append(invalid(path.child("operator"), operator, detail))
        if operator in ("In", "NotIn"):
            if not values:
                detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                errors.append(required(path.child("values"), detail))
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                errors.append(invalid(path.child("values"), values, detail))
        else:
            errors.append(invalid(path.child("operator"), operator, "not a valid selector operator"))
        seen.add(scope)
    if any(pair <= seen for pair in _CONFLICTS):
        errors.append(invalid(path, None, "conflicting scopes"))
    return errors


# --- LimitRange --------------------------------------------------------------------------


def validate_limit_range(limit_range: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a LimitRange."""
    errors = validate_new_metadata(metadata_of(limit_range), namespaced=True)
    seen: set[str] = set()
    for number, limit in enumerate((limit_range.get("spec") or {}).get("limits") or []):
        here, kind = _SPEC.child("limits").at(number), limit.get("type") or ""
        problems = label_key(kind)
        errors += invalid_each(here.child("type"), kind, problems)
        if not problems and "/" not in kind and kind not in ("Pod", "Container", "PersistentVolumeClaim"):
            detail = "must be a standard limit type or fully qualified"
            errors.append(invalid(here.child("type"), kind, detail))
        if kind in seen:
            errors.append(duplicate(here.child("type"), kind))
        seen.add(kind)
        errors += _validate_limit(limit, kind, here)
    return errors


def validate_limit_range_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed LimitRange."""
    return validate_changed_metadata(metadata_of(new), metadata_of(old)) + validate_limit_range(new, context)


def _validate_limit(limit: JsonMapping, kind: str, path: Path) -> list[FieldError]:
    name_rule = validate_container_resource_name if kind in ("Pod", "Container") else validate_resource_name
    errors: list[FieldError] = []
    amounts: dict[str, dict[str, Quantity]] = {}
    for side in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
        entries = limit.get(side) or {}
        amounts[side] = {}
        if kind == "Pod" and side.startswith("default"):
            if entries:
                errors.append(forbidden(path.child(side), "may not be specified when `type` is 'Pod'"))
            continue
        for name, text in entries.items():
            errors += name_rule(name, path.child(side).key(name))
            try:
                amounts[side][name] = parse_quantity(text)
            except (QuantityError, TypeError) as error:
                errors.append(invalid(path.child(side).key(name), text, str(error)))
    if kind == "PersistentVolumeClaim" and "storage" not in amounts["min"] | amounts["max"]:
        detail = "either minimum or maximum storage value is required, but neither was provided"
        errors.append(required(path.child("limits"), detail))
    for name in {name for entries in amounts.values() for name in entries}:
        found = {side: entries.get(name) for side, entries in amounts.items()}
        errors += _validate_limit_order(name, found, path)
    return errors


# (smaller side, larger side, side that is reported, sentence)
_ORDER = (
    ("min", "max", "min", "min value {} is greater than max value {}"),
    ("min", "defaultRequest", "defaultRequest", "min value {} is greater than default request value {}"),
    ("defaultRequest", "max", "defaultRequest", "default request value {} is greater than max value {}"),
    (
        "defaultRequest",
        "default",
        "defaultRequest",
        "default request value {} is greater than default limit value {}",
    ),
    ("min", "default", "default", "min value {} is greater than default value {}"),
    ("default", "max", "default", "default value {} is greater than max value {}"),
)


def _validate_limit_order(name: str, found: Mapping[str, Quantity | None], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for small_side, large_side, reported, sentence in _ORDER:
        small, large = found[small_side], found[large_side]
        if small is not None and large is not None and small > large:
            here = path.child(reported).key(name)
            errors.append(invalid(here, str(found[reported]), sentence.format(small, large)))
    ratio, minimum, maximum = found["maxLimitRequestRatio"], found["min"], found["max"]
    if ratio is not None:
        here = path.child("maxLimitRequestRatio").key(name)
        if ratio < Quantity.of(1):
            errors.append(invalid(here, str(ratio), f"ratio {ratio} is less than 1"))
        if minimum is not None and maximum is not None and minimum.sign != 0:
            most = maximum.nanos / minimum.nanos
            if ratio.nanos / 10**9 > most:
                errors.append(invalid(here, str(ratio), f"ratio {ratio} is greater than max/min = {most:f}"))
    default, request = found["default"], found["defaultRequest"]
    may_overcommit = is_native(name) and not is_huge_pages(name)
    if not may_overcommit and default is not None and request is not None and default != request:
        detail = f"default value {default} must equal to defaultRequest value {request} in {name}"
        errors.append(invalid(path.child("defaultRequest").key(name), str(request), detail))
    return errors
