"""Pods: spec, resource claims, and the pod templates of workloads.

Depth follows use: everything that decides where a pod runs and which devices
it gets is judged as the reference does; corners that this cluster does not
serve (Windows, most volume types) are let through.
"""

from __future__ import annotations

from dray.api.json_types import JsonMapping
from dray.api.validation.containers import validate_containers, validate_init_containers
from dray.api.validation.context import ValidationContext
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    forbidden,
    invalid,
    invalid_each,
    not_supported,
    required,
)
from dray.api.validation.formats import dns_label, dns_subdomain, ip_address, label_key
from dray.api.validation.metadata import (
    metadata_of,
    validate_annotations,
    validate_labels,
    validate_new_metadata,
)
from dray.api.validation.names import validate_label, validate_subdomain
from dray.api.validation.pod_scheduling import (
    validate_affinity,
    validate_scheduling_gates,
    validate_tolerations,
    validate_topology_spread,
)
from dray.api.validation.resource_lists import validate_pod_resource_name, validate_requirements
from dray.api.validation.volumes import validate_volumes
from dray.api.well_known import MIRROR_POD_ANNOTATION

_INT32_MAX = 2**31 - 1
_SPEC = Path("spec")


def validate_pod(pod: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new pod."""
    spec, accepted = pod.get("spec") or {}, context.accepted
    # Pods of one workload are equal but for their metadata; of that, the spec's rules see one annotation.
    seal = None
    if accepted is not None and not _is_mirror(metadata_of(pod)):
        seal = accepted.seal("Pod", context.version, spec)
    if seal is not None and accepted is not None and seal in accepted:
        return validate_new_metadata(metadata_of(pod), namespaced=True)
    metadata_errors, errors = _validate_parts(pod)
    errors += _validate_new_only(spec)
    if seal is not None and accepted is not None and not errors:
        accepted.add(seal)
    return metadata_errors + errors


def _validate_new_only(spec: JsonMapping) -> list[FieldError]:
    errors: list[FieldError] = []
    if spec.get("ephemeralContainers"):
        errors.append(forbidden(_SPEC.child("ephemeralContainers"), "cannot be set on create"))
    if spec.get("nodeName") and spec.get("schedulingGates"):
        detail = "cannot be set until all schedulingGates have been cleared"
        errors.append(forbidden(_SPEC.child("nodeName"), detail))
    return errors


def validate_pod_content(pod: JsonMapping) -> list[FieldError]:
    """Check metadata and spec of a pod, new or changed."""
    metadata_errors, errors = _validate_parts(pod)
    return metadata_errors + errors


def _validate_parts(pod: JsonMapping) -> tuple[list[FieldError], list[FieldError]]:
    metadata, spec = metadata_of(pod), pod.get("spec") or {}
    metadata_errors = validate_new_metadata(metadata, namespaced=True)
    errors = validate_pod_spec(spec, _SPEC, metadata)
    grace = spec.get("terminationGracePeriodSeconds") or 0
    if grace < 0:
        here = _SPEC.child("terminationGracePeriodSeconds")
        errors.append(invalid(here, grace, "must be greater than or equal to 0"))
    for field in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(field) or []):
            image = container.get("image") or ""
            if image != image.strip():
                here = _SPEC.child(field).at(number).child("image")
                errors.append(invalid(here, image, "must not have leading or trailing whitespace"))
    return metadata_errors, errors


def _is_mirror(metadata: JsonMapping) -> bool:
    return MIRROR_POD_ANNOTATION in (metadata.get("annotations") or {})


def validate_pod_template(template: JsonMapping, path: Path) -> list[FieldError]:
    """Check the template of a workload's pods."""
    metadata = template.get("metadata") or {}
    errors = validate_labels(metadata.get("labels"), path.child("labels"))
    errors += validate_annotations(metadata.get("annotations"), path.child("annotations"))
    spec = template.get("spec") or {}
    errors += validate_pod_spec(spec, path.child("spec"), {})
    if spec.get("ephemeralContainers"):
        detail = "ephemeral containers not allowed in pod template"
        errors.append(forbidden(path.child("spec", "ephemeralContainers"), detail))
    return errors


def validate_pod_spec(spec: JsonMapping, path: Path, metadata: JsonMapping) -> list[FieldError]:
    """Check the spec of a pod or of a pod template."""
    volume_names, errors = validate_volumes(spec.get("volumes") or [], path.child("volumes"))
    claims = spec.get("resourceClaims") or []
    claim_names = {claim["name"] for claim in claims if claim.get("name")}
    containers, inits = spec.get("containers") or [], spec.get("initContainers") or []
    errors += _validate_resource_claims(claims, path.child("resourceClaims"), metadata)
    errors += validate_containers(
        containers, path.child("containers"), volume_names=volume_names, claim_names=claim_names
    )
    errors += validate_init_containers(
        inits, containers, path.child("initContainers"), volume_names=volume_names, claim_names=claim_names
    )
    if spec.get("resources") is not None:
        errors += _validate_pod_resources(spec["resources"], path.child("resources"))
    errors += _validate_policies(spec, path)
    errors += validate_labels(spec.get("nodeSelector"), path.child("nodeSelector"))
    errors += validate_affinity(spec.get("affinity") or {}, path.child("affinity"))
    errors += validate_scheduling_gates(spec.get("schedulingGates") or [], path.child("schedulingGates"))
    errors += validate_topology_spread(
        spec.get("topologySpreadConstraints") or [], path.child("topologySpreadConstraints")
    )
    errors += validate_tolerations(spec.get("tolerations") or [], path.child("tolerations"))
    errors += _validate_names(spec, path)
    errors += _validate_network(spec, path)
    return errors + _validate_scheduling_group(spec, path.child("schedulingGroup"))


def _validate_resource_claims(
    claims: list[JsonMapping], path: Path, metadata: JsonMapping
) -> list[FieldError]:
    if claims and _is_mirror(metadata):
        # Once per claim, and on no field at all: that is how the reference says it.
        return [forbidden(Path(""), "static pods do not support resource claims")]
    return validate_claim_sources(claims, path)


def validate_claim_sources(claims: list[JsonMapping], path: Path) -> list[FieldError]:
    """Check the claims of a pod: a name each, and either a claim or a template."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for number, claim in enumerate(claims):
        here, name = path.at(number), claim.get("name") or ""
        if not name:
            errors.append(required(here.child("name")))
        elif name in seen:
            errors.append(duplicate(here.child("name"), name))
        else:
            errors += validate_label(name, here.child("name"))
            seen.add(name)
        given = [
            field
            for field in ("resourceClaimName", "resourceClaimTemplateName")
            if claim.get(field) is not None
        ]
        if len(given) > 1:
            detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            errors.append(invalid(here, dict(claim), detail))
        elif not given:
            detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            errors.append(invalid(here, dict(claim), detail))
        for field in given:
            errors += validate_subdomain(claim[field], here.child(field))
    return errors


def _validate_pod_resources(resources: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    if resources.get("claims") is not None:
        detail = "claims may not be set for Resources at pod-level"
        errors.append(forbidden(path.child("claims"), detail))
    amounts = {side: resources.get(side) for side in ("requests", "limits")}
    return errors + validate_requirements(amounts, path, (), validate_pod_resource_name)


_CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
}


def _validate_policies(spec: JsonMapping, path: Path) -> list[FieldError]:
    errors = [
        not_supported(path.child(field), spec[field], known)
        for field, known in _CHOICES.items()
        if spec.get(field) and spec[field] not in known
    ]
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _INT32_MAX:
        here = path.child("activeDeadlineSeconds")
        errors.append(invalid(here, deadline, f"must be between 1 and {_INT32_MAX}, inclusive"))
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        detail = "ShareProcessNamespace and HostPID cannot both be enabled"
        errors.append(invalid(path.child("shareProcessNamespace"), True, detail))
    os_name = (spec.get("os") or {}).get("name")
    if spec.get("os") is not None:
        if not os_name:
            errors.append(required(path.child("os", "name"), "cannot be empty"))
        elif os_name not in ("linux", "windows"):
            errors.append(not_supported(path.child("os"), os_name, ("linux", "windows")))
    return errors


def _validate_names(spec: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for field in ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"):
        if spec.get(field):
            errors += invalid_each(path.child(field), spec[field], dns_subdomain(spec[field]))
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            errors += invalid_each(path.child(field), spec[field], dns_label(spec[field]))
    for number, gate in enumerate(spec.get("readinessGates") or []):
        name = gate.get("conditionType") or ""
        here = path.child("readinessGates").at(number).child("conditionType")
        errors += invalid_each(here, name, label_key(name))
    return errors


def _validate_network(spec: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for number, alias in enumerate(spec.get("hostAliases") or []):
        here = path.child("hostAliases").at(number)
        errors += invalid_each(here.child("ip"), alias.get("ip") or "", ip_address(alias.get("ip") or ""))
        for position, hostname in enumerate(alias.get("hostnames") or []):
            errors += validate_subdomain(hostname, here.child("hostnames").at(position))
    if spec.get("dnsPolicy") == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        if spec.get("dnsConfig") is None:
            detail = "must provide `dnsConfig` when `dnsPolicy` is None"
            return [*errors, required(path.child("dnsConfig"), detail)]
        detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        errors.append(required(path.child("dnsConfig", "nameservers"), detail))
    return errors


def _validate_scheduling_group(spec: JsonMapping, path: Path) -> list[FieldError]:
    group = spec.get("schedulingGroup")
    if group is None:
        return []
    name = group.get("podGroupName")
    if name is None:
        return [invalid(path.child("podGroupName"), None, "must specify one of: `podGroupName`")]
    return validate_subdomain(name, path.child("podGroupName"))


def validate_binding(binding: JsonMapping) -> list[FieldError]:
    """Check the assignment of a pod to a node."""
    target = binding.get("target") or {}
    kind, name, path = target.get("kind") or "", target.get("name") or "", Path("target")
    errors: list[FieldError] = []
    if kind and kind != "Node":
        errors.append(not_supported(path.child("kind"), kind, ("Node", "<empty>")))
    if not name:
        errors.append(required(path.child("name")))
    elif kind in ("", "Node"):
        errors += validate_subdomain(name, path.child("name"))
    return errors
