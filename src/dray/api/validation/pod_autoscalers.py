"""HorizontalPodAutoscaler: what it scales, by which metrics, and how fast."""

from __future__ import annotations

from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.kinds import split_api_version
from dray.api.quantity import parse_quantity
from dray.api.validation.context import ValidationContext
from dray.api.validation.fields import (
    FieldError,
    Path,
    forbidden,
    invalid,
    invalid_each,
    not_supported,
    required,
)
from dray.api.validation.formats import dns_label, path_segment
from dray.api.validation.metadata import metadata_of, validate_changed_metadata, validate_new_metadata
from dray.api.validation.resource_lists import validate_container_resource_name

MOST_PERIOD = 1800  # seconds of a policy
MOST_WINDOW = 3600  # seconds of a stabilization window
_SPEC, _STATUS = Path("spec"), Path("status")
_FIELD_BY_TYPE = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}
# The order in which the server looks for them: only the first one that is there is judged.
_FIELDS = ("object", "external", "pods", "resource", "containerResource")
_SELECT_POLICIES = ("Disabled", "Max", "Min")
_POLICY_TYPES = ("Percent", "Pods")


def validate_pod_autoscaler(obj: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new HorizontalPodAutoscaler."""
    return validate_new_metadata(metadata_of(obj), namespaced=True) + _validate_spec(
        obj.get("spec") or {}, {}
    )


def validate_pod_autoscaler_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed HorizontalPodAutoscaler."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    return errors + _validate_spec(new.get("spec") or {}, old.get("spec") or {})


def validate_pod_autoscaler_status(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed status."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    status = new.get("status") or {}
    for index, condition in enumerate(status.get("conditions") or ()):
        here = _STATUS.child("conditions").at(index)
        errors += _not_negative(condition, "observedGeneration", here)
    for field in ("currentReplicas", "desiredReplicas"):
        errors += _not_negative(status, field, _STATUS)
    return errors


def _not_negative(holder: JsonMapping, field: str, path: Path) -> list[FieldError]:
    value = holder.get(field) or 0
    return [] if value >= 0 else [invalid(path.child(field), value, "must be greater than or equal to 0")]


def _validate_spec(spec: JsonMapping, old: JsonMapping) -> list[FieldError]:
    errors: list[FieldError] = []
    least, most = spec.get("minReplicas"), spec.get("maxReplicas") or 0
    if least is not None and least < 0:
        errors.append(invalid(_SPEC.child("minReplicas"), least, "must be greater than or equal to 0"))
    if most == 0:
        errors.append(required(_SPEC.child("maxReplicas")))
    elif most < 0:
        errors.append(invalid(_SPEC.child("maxReplicas"), most, "must be greater than or equal to 1"))
    if least is not None and most < least:
        detail = "must be greater than or equal to `minReplicas`"
        errors.append(invalid(_SPEC.child("maxReplicas"), most, detail))
    target, before = spec.get("scaleTargetRef") or {}, old.get("scaleTargetRef") or {}
    is_same = bool(old) and all(
        (target.get(f) or "") == (before.get(f) or "") for f in ("apiVersion", "kind")
    )
    errors += _validate_reference(
        target,
        _SPEC.child("scaleTargetRef"),
        needs_group=target.get("kind") != "ReplicationController",
        checks_version=not is_same,
    )
    # An object whose version was invalid before may stay as it is.
    knows_versions = not any(
        _version_problem(((each.get("object") or {}).get("describedObject")) or {}, needs_group=False)
        for each in old.get("metrics") or ()
        if each.get("type") == "Object" and each.get("object") is not None
    )
    errors += _validate_metrics(spec, knows_versions=knows_versions)
    behavior = spec.get("behavior") or {}
    for direction in ("scaleUp", "scaleDown"):
        if behavior.get(direction) is not None:
            errors += _validate_rules(behavior[direction], _SPEC.child("behavior", direction))
    return errors


def _validate_reference(
    reference: JsonMapping, path: Path, *, needs_group: bool, checks_version: bool
) -> list[FieldError]:
    errors: list[FieldError] = []
    for field in ("kind", "name"):
        value = reference.get(field) or ""
        if not value:
            errors.append(required(path.child(field)))
        else:
            errors += invalid_each(path.child(field), value, path_segment(value))
    problem = _version_problem(reference, needs_group=needs_group) if checks_version else ""
    if problem:
        errors.append(invalid(path.child("apiVersion"), reference.get("apiVersion") or "", problem))
    return errors


def _version_problem(reference: JsonMapping, *, needs_group: bool) -> str:
    version = reference.get("apiVersion") or ""
    if version.count("/") > 1:
        return f"unexpected GroupVersion string: {version}"
    if needs_group and not split_api_version(version)[0]:
        return "apiVersion must specify API group"
    return ""


# --- metrics --------------------------------------------------------------------------


def _validate_metrics(spec: JsonMapping, *, knows_versions: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    path, metrics = _SPEC.child("metrics"), spec.get("metrics") or ()
    for index, metric in enumerate(metrics):
        errors += _validate_metric(metric, path.at(index), knows_versions=knows_versions)
    if spec.get("minReplicas") == 0 and not any(
        each.get("type") in ("Object", "External") for each in metrics
    ):
        detail = "must specify at least one Object or External metric to support scaling to zero replicas"
        errors.append(forbidden(path, detail))
    return errors


def _validate_metric(metric: JsonMapping, path: Path, *, knows_versions: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    kind = metric.get("type") or ""
    if not kind:
        errors.append(required(path.child("type"), "must specify a metric source type"))
    if kind not in _FIELD_BY_TYPE:
        errors.append(not_supported(path.child("type"), kind, sorted(_FIELD_BY_TYPE)))
    present = [field for field in _FIELDS if metric.get(field) is not None]
    if present:
        field = present[0]
        errors += _validate_source(metric[field], field, path.child(field), knows_versions=knows_versions)
    expected = _FIELD_BY_TYPE.get(kind, "")
    if expected and expected not in present:
        errors.append(required(path.child(expected), "must populate information for the given metric source"))
    if len(present) != 1:
        errors += [
            forbidden(path.child(field), "must populate the given metric source only")
            for field in present
            if field != expected
        ]
    return errors


def _validate_source(
    source: JsonMapping, field: str, path: Path, *, knows_versions: bool
) -> list[FieldError]:
    errors: list[FieldError] = []
    target, at_target = source.get("target") or {}, path.child("target")
    if field == "object":
        described = source.get("describedObject") or {}
        here = path.child("describedObject")
        errors += _validate_reference(described, here, needs_group=False, checks_version=knows_versions)
    if field in ("resource", "containerResource"):
        errors += _validate_resource(source, field, path)
    else:
        errors += _validate_identifier(source.get("metric") or {}, path.child("metric"))
    errors += _validate_target(target, at_target)
    has = {name: target.get(name) is not None for name in ("value", "averageValue", "averageUtilization")}
    if field == "object" and not (has["value"] or has["averageValue"]):
        detail = "must set either a target value or averageValue"
        errors.append(required(at_target.child("averageValue"), detail))
    if field == "external":
        if not (has["value"] or has["averageValue"]):
            detail = "must set either a target value for metric or a per-pod target"
            errors.append(required(at_target.child("averageValue"), detail))
        if has["value"] and has["averageValue"]:
            detail = "may not set both a target value for metric and a per-pod target"
            errors.append(forbidden(at_target.child("value"), detail))
    if field == "pods" and not has["averageValue"]:
        errors.append(
            required(at_target.child("averageValue"), "must specify a positive target averageValue")
        )
    if field in ("resource", "containerResource"):
        if not (has["averageUtilization"] or has["averageValue"]):
            detail = "must set either a target raw value or a target utilization"
            errors.append(required(at_target.child("averageUtilization"), detail))
        if has["averageUtilization"] and has["averageValue"]:
            detail = "may not set both a target raw value and a target utilization"
            errors.append(forbidden(at_target.child("averageValue"), detail))
    return errors


def _validate_resource(source: JsonMapping, field: str, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    name = source.get("name") or ""
    if not name:
        errors.append(required(path.child("name"), "must specify a resource name"))
    elif field == "containerResource":
        errors += validate_container_resource_name(name, path.child("name"))
    if field == "containerResource":
        container = source.get("container") or ""
        if not container:
            errors.append(required(path.child("container"), "must specify a container"))
        else:
            errors += invalid_each(path.child("container"), container, dns_label(container))
    return errors


def _validate_identifier(metric: JsonMapping, path: Path) -> list[FieldError]:
    name = metric.get("name") or ""
    if not name:
        return [required(path.child("name"), "must specify a metric name")]
    return invalid_each(path.child("name"), name, path_segment(name))


def _validate_target(target: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    kind = target.get("type") or ""
    if not kind:
        errors.append(required(path.child("type"), "must specify a metric target type"))
    if kind not in ("Utilization", "Value", "AverageValue"):
        detail = "must be either Utilization, Value, or AverageValue"
        errors.append(invalid(path.child("type"), kind, detail))
    for field in ("value", "averageValue"):
        quantity = target.get(field)
        if quantity is not None and _sign(quantity) != 1:
            errors.append(invalid(path.child(field), quantity, "must be positive"))
    percent = target.get("averageUtilization")
    if percent is not None and percent < 1:
        errors.append(invalid(path.child("averageUtilization"), percent, "must be greater than 0"))
    return errors


def _sign(quantity: Any) -> int:
    return parse_quantity(quantity).sign


# --- behavior -----------------------------------------------------------------------------


def _validate_rules(rules: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    window, select = rules.get("stabilizationWindowSeconds"), rules.get("selectPolicy")
    here = path.child("stabilizationWindowSeconds")
    if window is not None and window < 0:
        errors.append(invalid(here, window, "must be greater than or equal to zero"))
    if window is not None and window > MOST_WINDOW:
        errors.append(invalid(here, window, f"must be less than or equal to {MOST_WINDOW}"))
    if select is not None and select not in _SELECT_POLICIES:
        errors.append(not_supported(path.child("selectPolicy"), select, _SELECT_POLICIES))
    policies = rules.get("policies") or ()
    if not policies:
        errors.append(required(path.child("policies"), "must specify at least one Policy"))
    for index, policy in enumerate(policies):
        errors += _validate_policy(policy, path.child("policies").at(index))
    tolerance = rules.get("tolerance")
    if tolerance is not None and _sign(tolerance) < 0:
        errors.append(invalid(path.child("tolerance"), tolerance, "must be greater than or equal to 0"))
    return errors


def _validate_policy(policy: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    kind = policy.get("type") or ""
    if kind not in _POLICY_TYPES:
        errors.append(not_supported(path.child("type"), kind, _POLICY_TYPES))
    for field in ("value", "periodSeconds"):
        amount = policy.get(field) or 0
        if amount <= 0:
            errors.append(invalid(path.child(field), amount, "must be greater than zero"))
    period = policy.get("periodSeconds") or 0
    if period > MOST_PERIOD:
        detail = f"must be less than or equal to {MOST_PERIOD}"
        errors.append(invalid(path.child("periodSeconds"), period, detail))
    return errors
