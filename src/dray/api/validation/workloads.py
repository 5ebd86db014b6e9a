"""Workloads that make pods: Deployment, ReplicaSet, DaemonSet, Job; and PodDisruptionBudget.

All of them carry a pod template and a selector that must fit it. Selectors
cannot change once pods may carry the labels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dray.api.json_types import JsonMapping
from dray.api.label_selectors import matches_label_object
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
from dray.api.validation.formats import dns_label, percent
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_immutable,
    validate_new_metadata,
)
from dray.api.validation.pods import validate_pod_template
from dray.api.validation.selectors import (
    is_empty_selector,
    validate_conditions,
    validate_label_selector,
)

_SPEC, _STATUS = Path("spec"), Path("status")
INDEXED_PARALLELISM_MAX = FAILED_INDEXES_MAX = MANY_COMPLETIONS = 100_000
LIMIT_WITH_MANY_COMPLETIONS = 10_000


# --- Deployment and ReplicaSet -----------------------------------------------------------


SpecCheck = Callable[[JsonMapping], list[FieldError]]
Create = Callable[[JsonMapping, ValidationContext], list[FieldError]]
Update = Callable[[JsonMapping, JsonMapping, ValidationContext], list[FieldError]]


def _for_new(check_spec: SpecCheck) -> Create:
    """Return the check of a new object that makes pods from a template."""
    return lambda obj, _context: (
        validate_new_metadata(metadata_of(obj), namespaced=True) + check_spec(obj.get("spec") or {})
    )


def _for_changed(check_spec: SpecCheck) -> Update:
    """Return the check of a changed object; its selector stays."""
    return lambda new, old, _context: (
        validate_changed_metadata(metadata_of(new), metadata_of(old))
        + check_spec(new.get("spec") or {})
        + _keep_selector(new, old)
    )


def _keep_selector(new: JsonMapping, old: JsonMapping) -> list[FieldError]:
    selector, old_selector = ((obj.get("spec") or {}).get("selector") for obj in (new, old))
    return validate_immutable(selector, old_selector, _SPEC.child("selector"))


def _validate_deployment_spec(spec: JsonMapping) -> list[FieldError]:
    errors = _validate_replicas_of_template(spec)
    strategy, path = spec.get("strategy") or {}, _SPEC.child("strategy")
    kind = strategy.get("type") or "RollingUpdate"
    rolling = strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is not None:
            detail = "may not be specified when strategy `type` is 'Recreate'"
            errors.append(forbidden(path.child("rollingUpdate"), detail))
    elif kind != "RollingUpdate":
        errors.append(not_supported(path, dict(strategy), ("Recreate", "RollingUpdate")))
    elif rolling is not None:
        errors += _validate_rolling_update(rolling, path.child("rollingUpdate"))
    errors += _not_negative(spec, ("revisionHistoryLimit", "progressDeadlineSeconds"), _SPEC)
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= (spec.get("minReadySeconds") or 0):
        here = _SPEC.child("progressDeadlineSeconds")
        errors.append(invalid(here, deadline, "must be greater than minReadySeconds"))
    return errors


def _validate_rolling_update(rolling: JsonMapping, path: Path) -> list[FieldError]:
    unavailable, surge = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    errors = _validate_share(unavailable, path.child("maxUnavailable"))
    errors += _validate_share(surge, path.child("maxSurge"))
    if unavailable is not None and surge is not None and _number(unavailable) == 0 and _number(surge) == 0:
        here = path.child("maxUnavailable")
        errors.append(invalid(here, unavailable, "may not be 0 when `maxSurge` is 0"))
    return errors + _at_most_everything(unavailable, path.child("maxUnavailable"))


def _validate_replicas_of_template(spec: JsonMapping) -> list[FieldError]:
    errors = _not_negative(spec, ("replicas", "minReadySeconds"), _SPEC)
    selector = spec.get("selector")
    if selector is None:
        errors.append(required(_SPEC.child("selector")))
    else:
        problems = validate_label_selector(selector, _SPEC.child("selector"))
        errors += problems
        if is_empty_selector(selector):
            detail = "empty selector is invalid for deployment"
            errors.append(invalid(_SPEC.child("selector"), dict(selector), detail))
        if problems:
            # Nobody can tell whether the template fits, so the template is not looked at.
            return [*errors, invalid(_SPEC.child("selector"), dict(selector), "invalid label selector")]
    return errors + _validate_lasting_template(spec, "ReplicaSet")


def _validate_lasting_template(spec: JsonMapping, owner: str) -> list[FieldError]:
    """Check the template of pods that shall run forever."""
    template, path = spec.get("template") or {}, _SPEC.child("template")
    labels = (template.get("metadata") or {}).get("labels") or {}
    errors: list[FieldError] = []
    selector = spec.get("selector")
    is_sound = not validate_label_selector(selector, path)
    # No selector at all selects nothing; an empty one selects everything.
    if selector is None or (is_sound and not matches_label_object(selector, labels)):
        detail = "`selector` does not match template `labels`"
        errors.append(invalid(path.child("metadata", "labels"), labels, detail))
    errors += validate_pod_template(template, path)
    pod_spec = template.get("spec") or {}
    policy = pod_spec.get("restartPolicy") or "Always"
    if policy != "Always":
        errors.append(not_supported(path.child("spec", "restartPolicy"), policy, ("Always",)))
    if pod_spec.get("activeDeadlineSeconds") is not None:
        here = path.child("spec", "activeDeadlineSeconds")
        errors.append(forbidden(here, f"activeDeadlineSeconds in {owner} is not Supported"))
    return errors


def _validate_counters(
    new: JsonMapping, old: JsonMapping, context: ValidationContext, *, parts: tuple[str, ...]
) -> list[FieldError]:
    """Check that no counter of a status is negative, and that none of the parts exceeds `replicas`."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    status, old_status = new.get("status") or {}, old.get("status") or {}
    counters = [
        name for name, value in status.items() if isinstance(value, int) and not isinstance(value, bool)
    ]
    errors += _not_negative(status, tuple(counters), _STATUS)
    count = {
        field: status.get(field) or 0 for field in ("replicas", "readyReplicas", "availableReplicas", *parts)
    }
    for field in parts:
        if count[field] > count["replicas"]:
            errors.append(
                invalid(_STATUS.child(field), count[field], "cannot be greater than status.replicas")
            )
    if parts and count["availableReplicas"] > count["readyReplicas"]:
        here = _STATUS.child("availableReplicas")
        errors.append(invalid(here, count["availableReplicas"], "cannot be greater than readyReplicas"))
    if (status.get("collisionCount") or 0) < (old_status.get("collisionCount") or 0):
        here = _STATUS.child("collisionCount")
        errors.append(invalid(here, status.get("collisionCount") or 0, "cannot be decremented"))
    return errors


validate_deployment = _for_new(_validate_deployment_spec)
validate_deployment_update = _for_changed(_validate_deployment_spec)
validate_deployment_status = partial(
    _validate_counters, parts=("updatedReplicas", "readyReplicas", "availableReplicas")
)
validate_replica_set = _for_new(_validate_replicas_of_template)
validate_replica_set_update = _for_changed(_validate_replicas_of_template)
validate_replica_set_status = partial(
    _validate_counters, parts=("fullyLabeledReplicas", "readyReplicas", "availableReplicas")
)


# --- DaemonSet ---------------------------------------------------------------------------


def _validate_daemon_set_spec(spec: JsonMapping) -> list[FieldError]:
    selector = spec.get("selector")
    errors = validate_label_selector(selector, _SPEC.child("selector"))
    if selector is not None and is_empty_selector(selector):
        detail = "empty selector is invalid for daemonset"
        errors.append(invalid(_SPEC.child("selector"), dict(selector), detail))
    errors += _validate_lasting_template(spec, "DaemonSet")
    errors += _not_negative(spec, ("minReadySeconds", "revisionHistoryLimit"), _SPEC)
    strategy, path = spec.get("updateStrategy") or {}, _SPEC.child("updateStrategy")
    kind = strategy.get("type") or "RollingUpdate"
    if kind not in ("RollingUpdate", "OnDelete"):
        errors.append(not_supported(path, dict(strategy), ("RollingUpdate", "OnDelete")))
    elif kind == "RollingUpdate" and strategy.get("rollingUpdate") is not None:
        rolling = strategy["rollingUpdate"]
        for field in ("maxUnavailable", "maxSurge"):
            errors += _validate_share(rolling.get(field), path.child("rollingUpdate", field))
            errors += _at_most_everything(rolling.get(field), path.child("rollingUpdate", field))
        unavailable, surge = (
            bool(_number(rolling.get(field) or 0)) for field in ("maxUnavailable", "maxSurge")
        )
        if unavailable and surge:
            here = path.child("rollingUpdate", "maxSurge")
            errors.append(
                invalid(here, rolling["maxSurge"], "may not be set when maxUnavailable is non-zero")
            )
        elif not unavailable and not surge:
            here = path.child("rollingUpdate", "maxUnavailable")
            errors.append(required(here, "cannot be 0 when maxSurge is 0"))
    return errors


validate_daemon_set = _for_new(_validate_daemon_set_spec)
validate_daemon_set_update = _for_changed(_validate_daemon_set_spec)
validate_daemon_set_status = partial(_validate_counters, parts=())


# --- Job ---------------------------------------------------------------------------------


def validate_job(job: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new Job; its selector and the labels that belong to it are generated before."""
    errors = validate_new_metadata(metadata_of(job), namespaced=True)
    spec = job.get("spec") or {}
    errors += _validate_job_spec(spec)
    name, completions = metadata_of(job).get("name") or "", spec.get("completions") or 0
    if spec.get("completionMode") == "Indexed" and completions > 0:
        hostname = f"{name}-{completions - 1}"
        if dns_label(hostname):
            detail = f"will not able to create pod with invalid DNS label: {hostname}"
            errors.append(invalid(Path("metadata.name"), name, detail))
    return errors


def validate_job_update(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a changed Job; what its pods are made of stays."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    errors += _validate_job_spec(spec)
    fields = [
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ]
    # A suspended job that never started may still move its pods elsewhere.
    if not old_spec.get("suspend"):
        fields.append("template")
    if spec.get("completionMode") != "Indexed" or spec.get("completions") != spec.get("parallelism"):
        fields.append("completions")
    for field in fields:
        errors += validate_immutable(spec.get(field), old_spec.get(field), _SPEC.child(field))
    return errors


def _validate_job_spec(spec: JsonMapping) -> list[FieldError]:
    counters = (
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    )
    errors = _not_negative(spec, counters, _SPEC)
    errors += _validate_completion(spec)
    errors += validate_label_selector(spec.get("selector"), _SPEC.child("selector"))
    template, path = spec.get("template") or {}, _SPEC.child("template")
    labels = (template.get("metadata") or {}).get("labels") or {}
    if spec.get("selector") is not None and not matches_label_object(spec["selector"], labels):
        detail = "`selector` does not match template `labels`"
        errors.append(invalid(path.child("metadata", "labels"), labels, detail))
    errors += validate_pod_template(template, path)
    policy, here = (
        (template.get("spec") or {}).get("restartPolicy") or "",
        path.child("spec", "restartPolicy"),
    )
    if policy in ("", "Always"):
        errors.append(required(here, 'valid values: "OnFailure", "Never"'))
    elif policy not in ("OnFailure", "Never"):
        errors.append(not_supported(here, policy, ("OnFailure", "Never")))
    elif spec.get("podFailurePolicy") is not None and policy != "Never":
        errors.append(invalid(here, policy, 'only "Never" is supported when podFailurePolicy is specified'))
    return errors


def _validate_completion(spec: JsonMapping) -> list[FieldError]:
    mode = "NonIndexed" if spec.get("completionMode") is None else spec["completionMode"]
    errors: list[FieldError] = []
    if mode not in ("NonIndexed", "Indexed"):
        errors.append(not_supported(_SPEC.child("completionMode"), mode, ("NonIndexed", "Indexed")))
    if mode == "Indexed":
        if spec.get("completions") is None:
            errors.append(required(_SPEC.child("completions"), "when completion mode is Indexed"))
        parallelism = spec.get("parallelism") or 0
        if parallelism > INDEXED_PARALLELISM_MAX:
            detail = (
                f"must be less than or equal to {INDEXED_PARALLELISM_MAX} when completion mode is Indexed"
            )
            errors.append(invalid(_SPEC.child("parallelism"), parallelism, detail))
        failed, completions = spec.get("maxFailedIndexes"), spec.get("completions")
        if failed is not None and completions is not None and failed > completions:
            here = _SPEC.child("maxFailedIndexes")
            errors.append(invalid(here, failed, "must be less than or equal to completions"))
        if failed is not None and failed > FAILED_INDEXES_MAX:
            detail = f"must be less than or equal to {FAILED_INDEXES_MAX}"
            errors.append(invalid(_SPEC.child("maxFailedIndexes"), failed, detail))
        errors += _validate_many_completions(spec)
    for field in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
        # Of an unknown mode only the success policy is known to be wrong.
        is_wrong = mode == "NonIndexed" or (mode != "Indexed" and field == "successPolicy")
        if is_wrong and spec.get(field) is not None:
            errors.append(invalid(_SPEC.child(field), spec[field], "requires indexed completion mode"))
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        errors.append(required(_SPEC.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
    return errors


def _validate_many_completions(spec: JsonMapping) -> list[FieldError]:
    """Check that a huge job that retries by index keeps its status small."""
    if (spec.get("completions") or 0) <= MANY_COMPLETIONS or spec.get("backoffLimitPerIndex") is None:
        return []
    errors: list[FieldError] = []
    if spec.get("maxFailedIndexes") is None:
        detail = f"must be specified when completions is above {MANY_COMPLETIONS}"
        errors.append(required(_SPEC.child("maxFailedIndexes"), detail))
    for field in ("parallelism", "maxFailedIndexes"):
        if (spec.get(field) or 0) > LIMIT_WITH_MANY_COMPLETIONS:
            detail = (
                f"must be less than or equal to {LIMIT_WITH_MANY_COMPLETIONS} when completions are above "
                f"{MANY_COMPLETIONS} and used with backoff limit per index"
            )
            errors.append(invalid(_SPEC.child(field), spec[field], detail))
    return errors


# --- PodDisruptionBudget -----------------------------------------------------------------


def validate_disruption_budget(budget: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new PodDisruptionBudget."""
    # Its name may be whatever fits into a URL; that is checked for every kind.
    return _validate_budget_spec(budget.get("spec") or {})


def validate_disruption_budget_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed PodDisruptionBudget."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old), qualified_finalizers=False)
    return errors + _validate_budget_spec(new.get("spec") or {})


def validate_disruption_budget_status(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check what a PodDisruptionBudget says about its pods."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old), qualified_finalizers=False)
    status = new.get("status") or {}
    errors += validate_conditions(status.get("conditions"), _STATUS.child("conditions"))
    counters = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
    return errors + _not_negative(status, counters, _STATUS)


def _validate_budget_spec(spec: JsonMapping) -> list[FieldError]:
    errors: list[FieldError] = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        errors.append(invalid(_SPEC, dict(spec), "minAvailable and maxUnavailable cannot be both set"))
    for field in ("minAvailable", "maxUnavailable"):
        errors += _validate_share(spec.get(field), _SPEC.child(field))
        errors += _at_most_everything(spec.get(field), _SPEC.child(field))
    errors += validate_label_selector(spec.get("selector"), _SPEC.child("selector"))
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in ("AlwaysAllow", "IfHealthyBudget"):
        here = _SPEC.child("unhealthyPodEvictionPolicy")
        errors.append(not_supported(here, policy, ("AlwaysAllow", "IfHealthyBudget")))
    return errors


# --- numbers and shares ------------------------------------------------------------------


def _not_negative(holder: JsonMapping, fields: tuple[str, ...], path: Path) -> list[FieldError]:
    return [
        invalid(path.child(field), holder[field], "must be greater than or equal to 0")
        for field in fields
        if (holder.get(field) or 0) < 0
    ]


def _validate_share(share: int | str | None, path: Path) -> list[FieldError]:
    """Check a number of pods or a percentage of them."""
    if isinstance(share, str):
        return invalid_each(path, share, percent(share))
    if share is not None and share < 0:
        return [invalid(path, share, "must be greater than or equal to 0")]
    return []


def _at_most_everything(share: int | str | None, path: Path) -> list[FieldError]:
    if isinstance(share, str) and not percent(share) and _number(share) > 100:
        return [invalid(path, share, "must not be greater than 100%")]
    return []


def _number(share: int | str) -> int:
    if isinstance(share, int):
        return share
    return int(share[:-1]) if not percent(share) else 0
