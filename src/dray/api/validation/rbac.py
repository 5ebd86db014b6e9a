"""Roles and bindings: rules must name verbs and resources, bindings an existing kind of role."""

from __future__ import annotations

from dray.api.json_types import JsonMapping
from dray.api.kinds import RBAC
from dray.api.validation.context import ValidationContext
from dray.api.validation.fields import FieldError, Path, invalid, invalid_each, not_supported, required
from dray.api.validation.formats import dns_subdomain, path_segment
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_immutable,
    validate_new_metadata,
)
from dray.api.validation.selectors import validate_label_selector


def validate_role(role: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a Role."""
    errors = validate_new_metadata(metadata_of(role), namespaced=True, name_format=path_segment)
    return errors + _validate_rules(role, namespaced=True)


def validate_cluster_role(role: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a ClusterRole."""
    errors = validate_new_metadata(metadata_of(role), namespaced=False, name_format=path_segment)
    errors += _validate_rules(role, namespaced=False)
    aggregation, path = role.get("aggregationRule"), Path("aggregationRule.clusterRoleSelectors")
    if aggregation is not None:
        selectors = aggregation.get("clusterRoleSelectors") or []
        if not selectors:
            detail = "at least one clusterRoleSelector required if aggregationRule is non-nil"
            errors.append(required(path, detail))
        for number, selector in enumerate(selectors):
            problems = validate_label_selector(selector, path.at(number))
            errors += problems
            if problems:
                errors.append(invalid(path.at(number), None, "invalid label selector."))
    return errors


def validate_role_binding(binding: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a RoleBinding."""
    return _validate_binding(binding, namespaced=True, kinds=("Role", "ClusterRole"))


def validate_cluster_role_binding(binding: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a ClusterRoleBinding."""
    return _validate_binding(binding, namespaced=False, kinds=("ClusterRole",))


def validate_role_binding_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed RoleBinding; its role stays."""
    return validate_role_binding(new, context) + _validate_binding_change(new, old)


def validate_cluster_role_binding_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed ClusterRoleBinding; its role stays."""
    return validate_cluster_role_binding(new, context) + _validate_binding_change(new, old)


def _validate_binding_change(new: JsonMapping, old: JsonMapping) -> list[FieldError]:
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    return errors + validate_immutable(new.get("roleRef"), old.get("roleRef"), Path("roleRef"))


def _validate_rules(role: JsonMapping, *, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    for number, rule in enumerate(role.get("rules") or []):
        path = Path("rules").at(number)
        if not rule.get("verbs"):
            errors.append(required(path.child("verbs"), "verbs must contain at least one value"))
        urls = rule.get("nonResourceURLs") or []
        if urls:
            here = path.child("nonResourceURLs")
            if namespaced:
                errors.append(invalid(here, urls, "namespaced rules cannot apply to non-resource URLs"))
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                detail = "rules cannot apply to both regular resources and non-resource URLs"
                errors.append(invalid(here, urls, detail))
            continue
        if not rule.get("apiGroups"):
            errors.append(
                required(path.child("apiGroups"), "resource rules must supply at least one api group")
            )
        if not rule.get("resources"):
            errors.append(
                required(path.child("resources"), "resource rules must supply at least one resource")
            )
    return errors


def _validate_binding(binding: JsonMapping, *, namespaced: bool, kinds: tuple[str, ...]) -> list[FieldError]:
    errors = validate_new_metadata(metadata_of(binding), namespaced=namespaced, name_format=path_segment)
    reference, path = binding.get("roleRef") or {}, Path("roleRef")
    group, kind, name = (reference.get(field) or "" for field in ("apiGroup", "kind", "name"))
    if group != RBAC:
        errors.append(not_supported(path.child("apiGroup"), group, (RBAC,)))
    if kind not in kinds:
        errors.append(not_supported(path.child("kind"), kind, kinds))
    errors += (
        invalid_each(path.child("name"), name, path_segment(name)) if name else [required(path.child("name"))]
    )
    for number, subject in enumerate(binding.get("subjects") or []):
        errors += _validate_subject(subject, Path("subjects").at(number), namespaced=namespaced)
    return errors


def _validate_subject(subject: JsonMapping, path: Path, *, namespaced: bool) -> list[FieldError]:
    kind, name, group = (subject.get(field) or "" for field in ("kind", "name", "apiGroup"))
    errors: list[FieldError] = [] if name else [required(path.child("name"))]
    if kind == "ServiceAccount":
        if name:
            errors += invalid_each(path.child("name"), name, dns_subdomain(name))
        if group:
            errors.append(not_supported(path.child("apiGroup"), group, ("",)))
        if not namespaced and not subject.get("namespace"):
            errors.append(required(path.child("namespace")))
    elif kind in ("User", "Group"):
        if group != RBAC:
            errors.append(not_supported(path.child("apiGroup"), group, (RBAC,)))
    else:
        errors.append(not_supported(path.child("kind"), kind, ("ServiceAccount", "User", "Group")))
    return errors
