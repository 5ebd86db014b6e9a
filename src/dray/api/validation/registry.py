"""Which function judges which kind.

A kind is named as in Kubernetes' messages: `Pod`, `ResourceClaim.resource.k8s.io`.
Kinds that are not listed get the rules that hold for every object: sound
metadata and a name that fits into a URL.

Invariant: one broken rule is one cause. Some rules are reached on two ways
(metadata of a claim is judged as new and as changed); repeated complaints are
dropped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dray.api.json_types import JsonMapping
from dray.api.validation import (
    admission_kinds,
    claim_status,
    claims,
    core_kinds,
    crds,
    events,
    nodes,
    pod_autoscalers,
    pod_changes,
    pods,
    quotas,
    rbac,
    scheduling,
    slices,
    storage_kinds,
    taint_rules,
    workloads,
)
from dray.api.validation.context import ValidationContext
from dray.api.validation.fields import FieldError, Path, invalid
from dray.api.validation.formats import path_segment
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_new_metadata,
    validate_new_name,
)

Create = Callable[[JsonMapping, ValidationContext], list[FieldError]]
Update = Callable[[JsonMapping, JsonMapping, ValidationContext], list[FieldError]]
Warn = Callable[[JsonMapping], list[str]]


@dataclass(frozen=True, slots=True)
class Validators:
    """The functions for one kind; `status` only where there is such a subresource."""

    create: Create
    update: Update | None = None  # None: metadata may change
    status: Update | None = None
    warnings: Warn | None = None
    checks_again: bool = False  # without `update`: a changed object must pass `create`, too
    judges_metadata: bool = True  # `create` asks all that `validate_new_metadata` asks, but for names in URLs


VALIDATORS: dict[str, Validators] = {
    "ResourceClaim.resource.k8s.io": Validators(
        claims.validate_claim, claims.validate_claim_update, claim_status.validate_claim_status
    ),
    "ResourceClaimTemplate.resource.k8s.io": Validators(
        claims.validate_template, claims.validate_template_update
    ),
    "DeviceClass.resource.k8s.io": Validators(claims.validate_class, claims.validate_class_update),
    "ResourceSlice.resource.k8s.io": Validators(
        slices.validate_slice, slices.validate_slice_update, warnings=slices.slice_warnings
    ),
    "DeviceTaintRule.resource.k8s.io": Validators(
        taint_rules.validate_taint_rule,
        taint_rules.validate_taint_rule_update,
        taint_rules.validate_taint_rule_status,
    ),
    "ResourcePoolStatusRequest.resource.k8s.io": Validators(
        taint_rules.validate_pool_status_request,
        taint_rules.validate_pool_status_request_update,
        taint_rules.validate_pool_status_request_status,
    ),
    "Pod": Validators(pods.validate_pod, pod_changes.validate_pod_update, pod_changes.validate_pod_status),
    "Node": Validators(nodes.validate_node, nodes.validate_node_update, nodes.validate_node_status),
    "Namespace": Validators(core_kinds.validate_namespace, status=core_kinds.validate_namespace_status),
    "ConfigMap": Validators(core_kinds.validate_config_map, core_kinds.validate_config_map_update),
    "Secret": Validators(core_kinds.validate_secret, core_kinds.validate_secret_update),
    "ServiceAccount": Validators(core_kinds.validate_service_account),
    "Event": Validators(events.validate_core_event, events.validate_core_event_update, judges_metadata=False),
    "Event.events.k8s.io": Validators(events.validate_new_event, events.validate_new_event_update),
    "ResourceQuota": Validators(
        quotas.validate_quota, quotas.validate_quota_update, quotas.validate_quota_status
    ),
    "LimitRange": Validators(quotas.validate_limit_range, quotas.validate_limit_range_update),
    "Lease.coordination.k8s.io": Validators(core_kinds.validate_lease, core_kinds.validate_lease_update),
    "PriorityClass.scheduling.k8s.io": Validators(
        scheduling.validate_priority_class, scheduling.validate_priority_class_update
    ),
    "PodGroup.scheduling.k8s.io": Validators(
        scheduling.validate_pod_group,
        scheduling.validate_pod_group_update,
        scheduling.validate_pod_group_status,
    ),
    "Workload.scheduling.k8s.io": Validators(
        scheduling.validate_workload, scheduling.validate_workload_update
    ),
    "Deployment.apps": Validators(
        workloads.validate_deployment,
        workloads.validate_deployment_update,
        workloads.validate_deployment_status,
    ),
    "ReplicaSet.apps": Validators(
        workloads.validate_replica_set,
        workloads.validate_replica_set_update,
        workloads.validate_replica_set_status,
    ),
    "DaemonSet.apps": Validators(
        workloads.validate_daemon_set,
        workloads.validate_daemon_set_update,
        workloads.validate_daemon_set_status,
    ),
    "Job.batch": Validators(workloads.validate_job, workloads.validate_job_update),
    "PodDisruptionBudget.policy": Validators(
        workloads.validate_disruption_budget,
        workloads.validate_disruption_budget_update,
        workloads.validate_disruption_budget_status,
        judges_metadata=False,
    ),
    "HorizontalPodAutoscaler.autoscaling": Validators(
        pod_autoscalers.validate_pod_autoscaler,
        pod_autoscalers.validate_pod_autoscaler_update,
        pod_autoscalers.validate_pod_autoscaler_status,
    ),
    "Role.rbac.authorization.k8s.io": Validators(rbac.validate_role, checks_again=True),
    "ClusterRole.rbac.authorization.k8s.io": Validators(rbac.validate_cluster_role, checks_again=True),
    "RoleBinding.rbac.authorization.k8s.io": Validators(
        rbac.validate_role_binding, rbac.validate_role_binding_update
    ),
    "ClusterRoleBinding.rbac.authorization.k8s.io": Validators(
        rbac.validate_cluster_role_binding, rbac.validate_cluster_role_binding_update
    ),
    "PersistentVolume": Validators(storage_kinds.validate_volume, storage_kinds.validate_volume_update),
    "PersistentVolumeClaim": Validators(
        storage_kinds.validate_volume_claim, storage_kinds.validate_volume_claim_update
    ),
    "StorageClass.storage.k8s.io": Validators(
        storage_kinds.validate_storage_class, storage_kinds.validate_storage_class_update
    ),
    "CSINode.storage.k8s.io": Validators(storage_kinds.validate_csi_node, checks_again=True),
    "CSIStorageCapacity.storage.k8s.io": Validators(storage_kinds.validate_capacity, checks_again=True),
    "VolumeAttachment.storage.k8s.io": Validators(
        storage_kinds.validate_attachment, storage_kinds.validate_attachment_update
    ),
    "MutatingWebhookConfiguration.admissionregistration.k8s.io": Validators(
        admission_kinds.validate_webhook_configuration, admission_kinds.validate_webhook_configuration_update
    ),
    "ValidatingWebhookConfiguration.admissionregistration.k8s.io": Validators(
        admission_kinds.validate_webhook_configuration, admission_kinds.validate_webhook_configuration_update
    ),
    "ValidatingAdmissionPolicy.admissionregistration.k8s.io": Validators(
        admission_kinds.validate_policy,
        admission_kinds.validate_policy_update,
        admission_kinds.validate_policy_status,
    ),
    "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io": Validators(
        admission_kinds.validate_binding, admission_kinds.validate_binding_update
    ),
    "CustomResourceDefinition.apiextensions.k8s.io": Validators(
        crds.validate_definition, crds.validate_definition_update
    ),
}


def kind_key(group: str, kind: str) -> str:
    """Return the name of a kind.

    >>> kind_key("resource.k8s.io", "ResourceClaim"), kind_key("", "Pod")
    ('ResourceClaim.resource.k8s.io', 'Pod')
    """
    return f"{kind}.{group}" if group else kind


def validate_create(kind: str, obj: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Judge a new object, after defaults, name generation and removal of fields of disabled features."""
    validators = VALIDATORS.get(kind)
    errors = validators.create(obj, context) if validators is not None else []
    # What holds for every object is asked last, so that kinds can say it in their own words.
    if validators is not None and validators.judges_metadata:
        return _once(errors or validate_new_name(metadata_of(obj), path_segment))
    return _once(errors or _validate_any(obj))


def validate_update(
    kind: str, new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Judge an object that replaces another; the server already kept what clients may not change silently."""
    validators = VALIDATORS.get(kind)
    errors = _identity(new, old)
    if validators is not None and validators.update is not None:
        return _once(errors + validators.update(new, old, context))
    if validators is not None and validators.checks_again:
        errors += validators.create(new, context)
    return _once(errors + validate_changed_metadata(metadata_of(new), metadata_of(old)))


def validate_status_update(
    kind: str, new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Judge a new status; metadata and spec of `new` are those of `old`."""
    validators = VALIDATORS.get(kind)
    if validators is None or validators.status is None:
        return _once(validate_changed_metadata(metadata_of(new), metadata_of(old)))
    return _once(validators.status(new, old, context))


def warnings_create(kind: str, obj: JsonMapping) -> list[str]:
    """Return the warnings that a new object deserves."""
    validators = VALIDATORS.get(kind)
    return validators.warnings(obj) if validators is not None and validators.warnings is not None else []


def warnings_update(kind: str, new: JsonMapping, old: JsonMapping) -> list[str]:
    """Return the warnings that a changed object deserves."""
    return warnings_create(kind, new)


def allows_unconditional_update(kind: str, version: str) -> bool:
    """Return whether an update may leave out `metadata.resourceVersion`."""
    if kind == "DeviceTaintRule.resource.k8s.io":
        return version != "v1"
    return kind not in _ALWAYS_CONDITIONAL


_ALWAYS_CONDITIONAL = frozenset(
    {
        "ResourcePoolStatusRequest.resource.k8s.io",
        "Lease.coordination.k8s.io",
        "CustomResourceDefinition.apiextensions.k8s.io",
        "MutatingWebhookConfiguration.admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration.admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy.admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io",
        "PodDisruptionBudget.policy",
        "CSIDriver.storage.k8s.io",
        "CSINode.storage.k8s.io",
        "CSIStorageCapacity.storage.k8s.io",
        "VolumeAttachment.storage.k8s.io",
    }
)


def missing_resource_version() -> FieldError:
    """Return the error for an update that must name the version it replaces, and does not."""
    return invalid("metadata.resourceVersion", 0, "must be specified for an update")


def _validate_any(obj: JsonMapping) -> list[FieldError]:
    metadata = metadata_of(obj)
    return validate_new_metadata(
        metadata,
        namespaced=bool(metadata.get("namespace")),
        name_format=path_segment,
        qualified_finalizers=False,
    )


def _identity(new: JsonMapping, old: JsonMapping) -> list[FieldError]:
    """Refuse another uid; it would be another object."""
    new_uid, old_uid = metadata_of(new).get("uid"), metadata_of(old).get("uid")
    if new_uid == old_uid:
        return []
    return [invalid(Path("metadata.uid"), new_uid, "field is immutable")]


def _once(errors: Iterable[FieldError]) -> list[FieldError]:
    return list({(error.kind, error.message()): error for error in errors}.values())
