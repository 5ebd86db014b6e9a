"""DeviceTaintRule and ResourcePoolStatusRequest: small kinds with little to go wrong."""

from __future__ import annotations

from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.validation.context import ValidationContext
from dray.api.validation.declared import check_declared
from dray.api.validation.fields import FieldError, Path, too_many
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_immutable,
    validate_new_metadata,
)
from dray.api.validation.names import validate_driver_name, validate_label, validate_pool_name
from dray.api.validation.resource_rules import DEVICE_TAINT_RULE, RESOURCE_POOL_STATUS_REQUEST
from dray.api.validation.selectors import validate_conditions
from dray.api.validation.slices import validate_taint

RULE_CONDITIONS_MAX = 8

_SPEC, _STATUS = Path("spec"), Path("status")


def validate_taint_rule(rule: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new DeviceTaintRule."""
    errors = validate_new_metadata(metadata_of(rule), namespaced=False)
    return errors + _validate_rule_spec(rule) + _declared(DEVICE_TAINT_RULE, rule, None, context)


def validate_taint_rule_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check an update of a DeviceTaintRule; an effect that is unknown today may stay."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    return errors + _validate_rule_spec(new) + _declared(DEVICE_TAINT_RULE, new, old, context)


def validate_taint_rule_status(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check an update of a DeviceTaintRule's conditions."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    conditions, path = (new.get("status") or {}).get("conditions") or [], _STATUS.child("conditions")
    errors += validate_conditions(conditions, path)
    if len(conditions) > RULE_CONDITIONS_MAX:
        errors.append(too_many(path, len(conditions), RULE_CONDITIONS_MAX))
    return errors


def _validate_rule_spec(rule: JsonMapping) -> list[FieldError]:
    spec = rule.get("spec") or {}
    selector, path = spec.get("deviceSelector") or {}, _SPEC.child("deviceSelector")
    errors: list[FieldError] = []
    if selector.get("driver") is not None:
        errors += validate_driver_name(selector["driver"], path.child("driver"))
    if selector.get("pool") is not None:
        errors += validate_pool_name(selector["pool"], path.child("pool"))
    if selector.get("device") is not None:
        errors += validate_label(selector["device"], path.child("device"))
    return errors + validate_taint(spec.get("taint") or {}, _SPEC.child("taint"))


def validate_pool_status_request(request: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new ResourcePoolStatusRequest."""
    errors = validate_new_metadata(metadata_of(request), namespaced=False)
    fresh = {"spec": request.get("spec")}
    return errors + _declared(RESOURCE_POOL_STATUS_REQUEST, fresh, None, context)


def validate_pool_status_request_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check an update of a ResourcePoolStatusRequest; its spec may not change."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    return errors + _declared(RESOURCE_POOL_STATUS_REQUEST, new, old, context)


def validate_pool_status_request_status(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check the answer to a ResourcePoolStatusRequest; it is given once and then frozen."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    if old.get("status") is not None:
        errors += validate_immutable(new.get("status"), old.get("status"), _STATUS)
    elif new.get("status") is not None:
        errors += validate_conditions(new["status"].get("conditions"), _STATUS.child("conditions"))
    return errors + _declared(RESOURCE_POOL_STATUS_REQUEST, new, old, context)


def _declared(
    table: Any, new: JsonMapping, old: JsonMapping | None, context: ValidationContext
) -> list[FieldError]:
    return check_declared(table, new, old, features=context.features, version=context.version)
