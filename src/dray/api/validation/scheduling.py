"""scheduling.k8s.io: PriorityClass, PodGroup and Workload.

The rules of PodGroup and Workload are nearly all declared; the tables below
follow v1beta1. What needs two templates at once (names over several lists,
equal priorities) is written by hand.
"""

from __future__ import annotations

from dray.api.json_types import JsonMapping
from dray.api.validation.context import ValidationContext
from dray.api.validation.declared import (
    Declared,
    at_least,
    at_most,
    check_declared,
    formatted,
    one_of,
)
from dray.api.validation.fields import FieldError, Path, forbidden, invalid, not_supported, required
from dray.api.validation.formats import long_name, path_segment, short_name
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_immutable,
    validate_new_metadata,
)
from dray.api.validation.selectors import validate_conditions

HIGHEST_USER_PRIORITY = 1_000_000_000
SYSTEM_PREFIX = "system-"
_SYSTEM_CLASSES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}

_claim = Declared(
    union=("resourceClaimName", "resourceClaimTemplateName"),
    fields={
        "name": Declared(required=True, checks=(formatted(short_name),)),
        "resourceClaimName": Declared(nullable=True, checks=(formatted(long_name),)),
        "resourceClaimTemplateName": Declared(nullable=True, checks=(formatted(long_name),)),
    },
)
_policy = Declared(
    union=("basic", "gang"),
    fields={
        "basic": Declared(nullable=True),
        "gang": Declared(nullable=True, fields={"minCount": Declared(required=True, checks=(at_least(1),))}),
    },
)
_disruption_mode = Declared(nullable=True, immutable=True, union=("single", "all"))
_group_fields = {
    "schedulingPolicy": _policy,
    "resourceClaims": Declared(immutable=True, max_items=4, unique_by=("name",), each=_claim),
    "disruptionMode": _disruption_mode,
    "priorityClassName": Declared(immutable=True, checks=(formatted(long_name),)),
    "priority": Declared(nullable=True, immutable=True, checks=(at_most(HIGHEST_USER_PRIORITY),)),
    "preemptionPolicy": Declared(
        nullable=True, immutable=True, checks=(one_of("Never", "PreemptLowerPriority"),)
    ),
}
_template = Declared(
    fields={"name": Declared(required=True, checks=(formatted(short_name),)), **_group_fields}
)
_controller = Declared(
    nullable=True,
    immutable=True,
    fields={
        "apiGroup": Declared(checks=(formatted(long_name),)),
        "kind": Declared(required=True, checks=(formatted(path_segment),)),
        "name": Declared(required=True, checks=(formatted(path_segment),)),
    },
)
_workload_reference = Declared(
    nullable=True,
    immutable=True,
    fields={
        "workloadName": Declared(checks=(formatted(long_name),)),
        "templateName": Declared(checks=(formatted(short_name),)),
    },
)
POD_GROUP = Declared(fields={"spec": Declared(fields={"workloadRef": _workload_reference, **_group_fields})})
WORKLOAD = Declared(
    fields={
        "spec": Declared(
            union=("podGroupTemplates", "compositePodGroupTemplates"),
            fields={
                "controllerRef": _controller,
                "podGroupTemplates": Declared(max_items=8, unique_by=("name",), each=_template),
                "compositePodGroupTemplates": Declared(gate="CompositePodGroup"),
            },
        )
    }
)


def validate_priority_class(priority_class: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new PriorityClass; names and values of the system are reserved."""
    errors = validate_new_metadata(metadata_of(priority_class), namespaced=False)
    name, value = metadata_of(priority_class).get("name") or "", priority_class.get("value") or 0
    if name.startswith(SYSTEM_PREFIX):
        if _SYSTEM_CLASSES.get(name) != value or priority_class.get("globalDefault"):
            detail = (
                f"priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. "
                f"error: {name} is not a known system priority class"
            )
            errors.append(forbidden(Path("metadata.name"), detail))
    elif value > HIGHEST_USER_PRIORITY:
        detail = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        errors.append(forbidden(Path("value"), detail))
    policy = priority_class.get("preemptionPolicy")
    if policy == "":
        errors.append(required(Path("preemptionPolicy")))
    elif policy is not None and policy not in ("PreemptLowerPriority", "Never"):
        errors.append(not_supported(Path("preemptionPolicy"), policy, ("PreemptLowerPriority", "Never")))
    return errors


def validate_priority_class_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed PriorityClass; value and preemption policy stay."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    if (new.get("value") or 0) != (old.get("value") or 0):
        errors.append(forbidden(Path("value"), "may not be changed in an update."))
    return errors + validate_immutable(
        new.get("preemptionPolicy"), old.get("preemptionPolicy"), Path("preemptionPolicy")
    )


def validate_pod_group(group: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new PodGroup."""
    errors = validate_new_metadata(metadata_of(group), namespaced=True)
    spec = group.get("spec") or {}
    if spec.get("parentCompositePodGroupName") is not None and spec.get("workloadRef") is None:
        detail = "must be set when parentCompositePodGroupName is set"
        errors.append(required(Path("spec.workloadRef"), detail))
    return errors + check_declared(POD_GROUP, group, None, features=context.features, version=context.version)


def validate_pod_group_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed PodGroup; its claims stay."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    return errors + check_declared(POD_GROUP, new, old, features=context.features, version=context.version)


def validate_pod_group_status(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check what a PodGroup says about its conditions and claims."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    status, spec = new.get("status") or {}, new.get("spec") or {}
    errors += validate_conditions(status.get("conditions"), Path("status.conditions"))
    known = {claim.get("name") for claim in spec.get("resourceClaims") or []}
    for number, entry in enumerate(status.get("resourceClaimStatuses") or []):
        if entry.get("name") not in known:
            here = Path("status.resourceClaimStatuses").at(number).child("name")
            detail = "must match the name of an entry in `spec.resourceClaims`"
            errors.append(invalid(here, entry.get("name") or "", detail))
    return errors


def validate_workload(workload: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new Workload."""
    errors = validate_new_metadata(metadata_of(workload), namespaced=True)
    errors += _validate_equal_priorities(workload.get("spec") or {})
    return errors + check_declared(
        WORKLOAD, workload, None, features=context.features, version=context.version
    )


def validate_workload_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed Workload; templates may neither come nor go."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    errors += _validate_equal_priorities(new.get("spec") or {})
    names = [{template.get("name") for template in _templates(workload)} for workload in (new, old)]
    path = Path("spec.podGroupTemplates")
    for number, template in enumerate(_templates(new)):
        if template.get("name") not in names[1]:
            errors.append(forbidden(path.at(number), "item may not be added"))
    if names[1] - names[0]:
        errors.append(forbidden(path, "item may not be removed"))
    return errors + check_declared(WORKLOAD, new, old, features=context.features, version=context.version)


def _templates(workload: JsonMapping) -> list[JsonMapping]:
    return (workload.get("spec") or {}).get("podGroupTemplates") or []


def _validate_equal_priorities(spec: JsonMapping) -> list[FieldError]:
    templates = spec.get("podGroupTemplates") or []
    kinds = {(template.get("priorityClassName") or "", template.get("priority")) for template in templates}
    if len(kinds) <= 1:
        return []
    return [invalid(Path("spec"), None, "detected multiple priority configurations")]
