"""Changes of pods: which parts of a spec may change, and what a status may say.

A pod's spec is nearly frozen: images, the deadline (down), tolerations (more)
and scheduling gates (fewer) may change; a gated pod may also narrow its node
selection. A status is hardly judged, except where it speaks of devices: claim
statuses, extended claims and device health must match the spec.
"""

from __future__ import annotations

from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.quantity import parse_quantity
from dray.api.validation.context import ValidationContext
from dray.api.validation.declared import Declared, check_declared
from dray.api.validation.equality import is_same
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
from dray.api.validation.formats import dns_subdomain, label_key, size
from dray.api.validation.metadata import metadata_of, validate_changed_metadata, validate_immutable
from dray.api.validation.names import validate_label, validate_subdomain
from dray.api.validation.pod_quality import quality_of_service
from dray.api.validation.pod_scheduling import validate_tolerations
from dray.api.validation.pods import validate_pod_content
from dray.api.well_known import MIRROR_POD_ANNOTATION

HEALTH_MESSAGE_MAX_BYTES = 1024
_SPEC, _STATUS = Path("spec"), Path("status")
_UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` "
    "(allow it to be set to 1 if it was previously negative)"
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NODE_CLAIMS = "nodeAllocatableResourceClaimStatuses"
_amount_name = Declared(required=True)
_node_claim = Declared(
    fields={
        "resourceClaimName": Declared(required=True),
        "containers": Declared(unique_by=()),
        "mapping": Declared(
            unique_by=("name",),
            each=Declared(fields={"name": _amount_name, "quantity": Declared(required=True, nullable=True)}),
        ),
        "overhead": Declared(unique_by=("name",), each=Declared(fields={"name": _amount_name})),
    }
)
POD_STATUS = Declared(
    fields={
        "status": Declared(
            fields={_NODE_CLAIMS: Declared(unique_by=("resourceClaimName",), each=_node_claim)}
        )
    }
)
_SYSTEM_CONDITIONS = frozenset({"PodScheduled", "Ready", "Initialized"})


def validate_pod_update(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check an update of a pod."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    errors += validate_pod_content(new)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    for field in ("containers", "initContainers"):
        if len(spec.get(field) or []) != len(old_spec.get(field) or []):
            errors.append(forbidden(_SPEC.child(field), "pod updates may not add or remove containers"))
            return errors
    deadline_errors = _validate_deadline(
        spec.get("activeDeadlineSeconds"), old_spec.get("activeDeadlineSeconds")
    )
    errors += deadline_errors
    if deadline_errors and spec.get("activeDeadlineSeconds") is not None:
        return errors
    errors += _validate_added_tolerations(spec.get("tolerations") or [], old_spec.get("tolerations") or [])
    errors += _validate_removed_gates(
        spec.get("schedulingGates") or [], old_spec.get("schedulingGates") or []
    )
    frozen, gate_errors = _without_allowed_changes(spec, old_spec)
    errors += gate_errors
    if not is_same(frozen, old_spec):
        errors.append(forbidden(_SPEC, f"pod updates may not change fields other than {_UPDATABLE}"))
    return errors


def validate_pod_resize(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check an update of pods/resize: only amounts of cpu and memory change, and none is taken away."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old)) + validate_pod_content(new)
    if MIRROR_POD_ANNOTATION in (metadata_of(old).get("annotations") or {}):
        return [forbidden("", "static pods cannot be resized")]
    spec, old_spec, status = new.get("spec") or {}, old.get("spec") or {}, old.get("status") or {}
    if (old_spec.get("os") or {}).get("name") == "windows":
        return [forbidden("", "windows pods cannot be resized")]
    before = status.get("qosClass") or quality_of_service(old_spec)
    if before != quality_of_service(spec):
        why = "Pod QOS Class may not change as a result of resizing"
        errors.append(invalid(_SPEC, (new.get("status") or {}).get("qosClass") or "", why))
    running = [
        each for each in status.get("containerStatuses") or () if (each.get("state") or {}).get("running")
    ]
    if running and running[0].get("resources") is None:
        errors.append(forbidden(_SPEC, "Pod running on node without support for resize"))
    order = [
        error for field in ("containers", "initContainers") for error in _resize_order(spec, old_spec, field)
    ]
    return errors + (order or _resize_amounts(spec, old_spec))


def _resize_order(spec: JsonMapping, old_spec: JsonMapping, field: str) -> list[FieldError]:
    path, containers, before = _SPEC.child(field), spec.get(field) or [], old_spec.get(field) or []
    if len(containers) != len(before):
        return [forbidden(path, f"{field} may not be added or removed on resize")]
    why = f"{field} may not be renamed or reordered on resize"
    return [
        forbidden(path.at(number).child("name"), why)
        for number, (one, other) in enumerate(zip(containers, before, strict=True))
        if one.get("name") != other.get("name")
    ]


def _resize_amounts(spec: JsonMapping, old_spec: JsonMapping) -> list[FieldError]:
    errors: list[FieldError] = []
    for field in ("initContainers", "containers"):
        pairs = zip(spec.get(field) or (), old_spec.get(field) or (), strict=True)
        for number, (container, before) in enumerate(pairs):
            path = _SPEC.child(field).at(number)
            for part in ("requests", "limits"):
                kept = (container.get("resources") or {}).get(part) or {}
                if set((before.get("resources") or {}).get(part) or {}) - set(kept):
                    why = f"resource {part} cannot be removed"
                    errors.append(forbidden(path.child("resources", part), why))
            if not is_same(_without_compute(container), _without_compute(before)):
                if field == "containers":
                    errors.append(forbidden(_SPEC, "only cpu and memory resources are mutable"))
                else:
                    why = "only cpu and memory resources for init or sidecar containers are mutable"
                    errors.append(forbidden(path, why))
            restarts = any(
                x.get("restartPolicy") == "RestartContainer" for x in before.get("resizePolicy") or ()
            )
            is_plain = field == "initContainers" and before.get("restartPolicy") != "Always"
            if is_plain and restarts and not is_same(container, before):
                why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
                errors.append(forbidden(path, why))
    return errors


def _without_compute(container: JsonMapping) -> dict[str, Any]:
    """Return a container without what a resize may change."""
    resources = container.get("resources") or {}
    kept = {part: value for part, value in resources.items() if part not in ("requests", "limits")}
    for part in ("requests", "limits"):
        others = {name: x for name, x in (resources.get(part) or {}).items() if name not in ("cpu", "memory")}
        kept |= {part: others} if others else {}
    return {**container, "resources": kept}


def _validate_deadline(new: int | None, old: int | None) -> list[FieldError]:
    path = _SPEC.child("activeDeadlineSeconds")
    if new is None:
        detail = "must not update from a positive integer to nil value"
        return [] if old is None else [invalid(path, None, detail)]
    if not 0 <= new < 2**31:
        return [invalid(path, new, f"must be between 0 and {2**31 - 1}, inclusive")]
    if old is not None and old < new:
        return [invalid(path, new, "must be less than or equal to previous value")]
    return []


def _validate_added_tolerations(new: list[JsonMapping], old: list[JsonMapping]) -> list[FieldError]:
    path = _SPEC.child("tolerations")

    def lasting(toleration: JsonMapping) -> dict[str, Any]:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    for toleration in old:
        if not any(is_same(lasting(toleration), lasting(other)) for other in new):
            detail = "existing toleration can not be modified except its tolerationSeconds"
            return [forbidden(path, detail)]
    return validate_tolerations(new, path)


def _validate_removed_gates(new: list[JsonMapping], old: list[JsonMapping]) -> list[FieldError]:
    known = {gate.get("name") for gate in old}
    return [
        forbidden(
            _SPEC.child("schedulingGates").at(number).child("name"),
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name') or ''}'",
        )
        for number, gate in enumerate(new)
        if gate.get("name") not in known
    ]


def _without_allowed_changes(
    spec: JsonMapping, old_spec: JsonMapping
) -> tuple[dict[str, Any], list[FieldError]]:
    """Return the new spec with everything undone that may change, and complaints about gated changes."""
    frozen: dict[str, Any] = dict(spec)
    for field in ("containers", "initContainers"):
        pairs = zip(spec.get(field) or [], old_spec.get(field) or [], strict=True)
        frozen[field] = [{**container, "image": old.get("image")} for container, old in pairs]
    for field in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        frozen[field] = old_spec.get(field)
    if (old_spec.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get(
        "terminationGracePeriodSeconds"
    ) == 1:
        frozen["terminationGracePeriodSeconds"] = old_spec["terminationGracePeriodSeconds"]
    if not old_spec.get("schedulingGates"):
        return frozen, []
    errors = _validate_narrower_selector(spec.get("nodeSelector") or {}, old_spec.get("nodeSelector") or {})
    frozen["nodeSelector"] = old_spec.get("nodeSelector")
    affinity, old_affinity = spec.get("affinity") or {}, old_spec.get("affinity") or {}
    node, old_node = affinity.get("nodeAffinity"), old_affinity.get("nodeAffinity")
    if not is_same(node, old_node):
        errors += _validate_narrower_affinity(node or {}, old_node or {})
        frozen["affinity"] = {**affinity, "nodeAffinity": old_node}
    return frozen, errors


def _validate_narrower_selector(new: JsonMapping, old: JsonMapping) -> list[FieldError]:
    if all(new.get(key) == value for key, value in old.items()):
        return []
    detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
    return [invalid(_SPEC.child("nodeSelector"), dict(new), detail)]


def _validate_narrower_affinity(new: JsonMapping, old: JsonMapping) -> list[FieldError]:
    old_terms = (old.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    new_terms = (new.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    path = _SPEC.child("affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    if not old_terms:
        return []
    if len(old_terms) != len(new_terms):
        detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid(path, new_terms, detail)]
    errors: list[FieldError] = []
    for number, (new_term, old_term) in enumerate(zip(new_terms, old_terms, strict=True)):
        if not _only_adds(new_term, old_term):
            detail = "only additions are allowed (no mutations or deletions)"
            errors.append(invalid(path.at(number), new_term, detail))
    return errors


def _only_adds(new_term: JsonMapping, old_term: JsonMapping) -> bool:
    fields = ("matchExpressions", "matchFields")
    # A term without requirements matches nothing; filling it would widen the choice.
    if not any(old_term.get(field) for field in fields):
        return not any(new_term.get(field) for field in fields)
    for field in fields:
        old, new = old_term.get(field) or [], new_term.get(field) or []
        if len(new) < len(old) or not is_same(new[: len(old)], old):
            return False
    return True


# --- status ------------------------------------------------------------------------------


def validate_pod_status(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new status of a pod."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    spec, status, old_status = new.get("spec") or {}, new.get("status") or {}, old.get("status") or {}
    for number, condition in enumerate(status.get("conditions") or []):
        kind = condition.get("type") or ""
        if kind not in _SYSTEM_CONDITIONS:
            errors += invalid_each(
                _STATUS.child("conditions").at(number).child("Type"), kind, label_key(kind)
            )
    errors += _validate_nomination(status, old_status, bool((old.get("spec") or {}).get("nodeName")))
    # A status that leaves its class out keeps it.
    if status.get("qosClass"):
        errors += validate_immutable(
            status["qosClass"], old_status.get("qosClass"), _STATUS.child("qosClass")
        )
    for field in ("containerStatuses", "initContainerStatuses"):
        errors += _validate_transitions(field, status, old_status, spec)
    errors += _validate_claim_statuses(status, spec)
    errors += _validate_extended_claim(status.get("extendedResourceClaimStatus"), spec)
    errors += _validate_node_allocatable(status, spec)
    for field, containers in (
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
    ):
        errors += _validate_device_health(field, status, spec.get(containers) or [])
    for number, container in enumerate(status.get("ephemeralContainerStatuses") or []):
        if container.get("allocatedResourcesStatus"):
            here = _STATUS.child("ephemeralContainerStatuses").at(number).child("allocatedResourcesStatus")
            errors.append(forbidden(here, "must not be specified in container status"))
    shown = {"status": {_NODE_CLAIMS: status.get(_NODE_CLAIMS)}}
    return errors + check_declared(
        POD_STATUS, shown, None, features=context.features, version=context.version
    )


def _validate_nomination(status: JsonMapping, old_status: JsonMapping, is_bound: bool) -> list[FieldError]:
    name, path = status.get("nominatedNodeName") or "", _STATUS.child("nominatedNodeName")
    if not name or name == (old_status.get("nominatedNodeName") or ""):
        return []
    errors = invalid_each(path, name, dns_subdomain(name))
    if is_bound:
        errors.append(forbidden(path, "may not be set on pods that are already bound to a node"))
    return errors


def _validate_transitions(
    field: str, status: JsonMapping, old_status: JsonMapping, spec: JsonMapping
) -> list[FieldError]:
    """Refuse that a container that ended for good runs again."""
    policy = spec.get("restartPolicy") or "Always"
    sidecars = {
        container.get("name")
        for container in spec.get("initContainers") or []
        if container.get("restartPolicy") == "Always"
    }
    if policy == "Always":
        return []
    now = {container.get("name"): container for container in status.get(field) or []}
    errors: list[FieldError] = []
    for number, before in enumerate(old_status.get(field) or []):
        ended = (before.get("state") or {}).get("terminated")
        if ended is None or before.get("name") in sidecars:
            continue
        if policy == "OnFailure" and (ended.get("exitCode") or 0) != 0:
            continue
        after = now.get(before.get("name"))
        if after is not None and (after.get("state") or {}).get("terminated") is None:
            detail = "may not be transitioned to non-terminated state"
            errors.append(forbidden(_STATUS.child(field).at(number).child("state"), detail))
    return errors


def _validate_claim_statuses(status: JsonMapping, spec: JsonMapping) -> list[FieldError]:
    known = {claim.get("name") for claim in spec.get("resourceClaims") or []}
    errors: list[FieldError] = []
    seen: set[str] = set()
    for number, entry in enumerate(status.get("resourceClaimStatuses") or []):
        here, name = _STATUS.child("resourceClaimStatuses").at(number), entry.get("name") or ""
        if name not in known:
            detail = "must match the name of an entry in `spec.resourceClaims`"
            errors.append(invalid(here.child("name"), name, detail))
        if name in seen:
            errors.append(duplicate(here.child("name"), name))
        seen.add(name)
        if entry.get("resourceClaimName") is not None:
            errors += validate_subdomain(entry["resourceClaimName"], here.child("resourceClaimName"))
    return errors


def _validate_extended_claim(claim: JsonMapping | None, spec: JsonMapping) -> list[FieldError]:
    if claim is None:
        return []
    path = _STATUS.child("extendedResourceClaimStatus")
    mappings, name = claim.get("requestMappings") or [], claim.get("resourceClaimName") or ""
    both = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    container_by_name = {container.get("name"): container for container in both}
    errors: list[FieldError] = []
    if not mappings:
        errors.append(required(path.child("requestMappings"), "at least one request mapping is required"))
    seen: set[tuple[str, ...]] = set()
    for number, mapping in enumerate(mappings):
        here = path.child("requestMappings").at(number)
        fields = ("containerName", "resourceName", "requestName")
        key = tuple(mapping.get(field) or "" for field in fields)
        container = container_by_name.get(key[0])
        if container is None:
            detail = "must match the name of an entry in spec.initContainers.name or spec.containers.name"
            errors.append(invalid(here.child("containerName"), key[0], detail))
        elif key[1] not in ((container.get("resources") or {}).get("requests") or {}):
            detail = (
                "must match the extended resource name of an entry in spec.initContainers.resources.requests "
                "or spec.containers.resources.requests"
            )
            errors.append(invalid(here.child("resourceName"), key[1], detail))
        errors += validate_label(key[2], path.child("requestName"))
        if key in seen:
            errors += [duplicate(here.child(field), value) for field, value in zip(fields, key, strict=True)]
        seen.add(key)
    name_path = path.child("resourceClaimName")
    return errors + (validate_subdomain(name, name_path) if name else [required(name_path)])


def _validate_node_allocatable(status: JsonMapping, spec: JsonMapping) -> list[FieldError]:
    known = {claim.get("resourceClaimName") for claim in spec.get("resourceClaims") or []}
    known |= {entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or []}
    errors: list[FieldError] = []
    for number, entry in enumerate(status.get("nodeAllocatableResourceClaimStatuses") or []):
        here = _STATUS.child("nodeAllocatableResourceClaimStatuses").at(number)
        name = entry.get("resourceClaimName") or ""
        if not name:
            continue
        if name not in known:
            errors.append(invalid(here.child("resourceClaimName"), name, "no mapping found in pod reference"))
        for field, amounts in (("mapping", ("quantity",)), ("overhead", ("perPod", "perContainer"))):
            for position, item in enumerate(entry.get(field) or []):
                errors += _validate_mapped_amounts(item, amounts, here.child(field).at(position))
    return errors


def _validate_mapped_amounts(item: JsonMapping, amounts: tuple[str, ...], path: Path) -> list[FieldError]:
    name = item.get("name") or ""
    errors: list[FieldError] = []
    if name not in ("cpu", "memory") and not name.startswith("hugepages-"):
        errors.append(invalid(path.child("name"), name, "must be a node allocatable resource name"))
    given = [amount for amount in amounts if item.get(amount) is not None]
    if len(amounts) > 1 and not given:
        errors.append(invalid(path, "", "at least one of perPod or perContainer must be set"))
    for amount in given:
        quantity = parse_quantity(item[amount])
        if quantity.sign < 0:
            errors.append(invalid(path.child(amount), str(quantity), "must be non-negative"))
    return errors


def _validate_device_health(
    field: str, status: JsonMapping, containers: list[JsonMapping]
) -> list[FieldError]:
    container_by_name = {container.get("name"): container for container in containers}
    extended = status.get("extendedResourceClaimStatus") or {}
    errors: list[FieldError] = []
    for number, container_status in enumerate(status.get(field) or []):
        container = container_by_name.get(container_status.get("name"))
        for position, entry in enumerate(container_status.get("allocatedResourcesStatus") or []):
            here = _STATUS.child(field).at(number).child("allocatedResourcesStatus").at(position)
            if container is not None:
                errors += _validate_health_name(
                    entry.get("name") or "", container, extended, here.child("name")
                )
            errors += _validate_health_entries(entry.get("resources") or [], here.child("resources"))
    return errors


def _validate_health_name(
    name: str, container: JsonMapping, extended: JsonMapping, path: Path
) -> list[FieldError]:
    resources = container.get("resources") or {}
    if not name.startswith("claim:"):
        if name in (resources.get("requests") or {}):
            return []
        return [invalid(path, name, "must match one of the container's resource requests")]
    for claim in resources.get("claims") or []:
        request = f"/{claim['request']}" if claim.get("request") else ""
        if name == f"claim:{claim.get('name') or ''}{request}":
            return []
    claim_name, _, request = name.removeprefix("claim:").partition("/")
    if request and claim_name == extended.get("resourceClaimName"):
        for mapping in extended.get("requestMappings") or []:
            wanted = (resources.get("requests") or {}).get(mapping.get("resourceName"))
            matches = (mapping.get("containerName"), mapping.get("requestName")) == (
                container.get("name"),
                request,
            )
            if matches and wanted is not None and parse_quantity(wanted):
                return []
    detail = (
        "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when "
        "container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty"
    )
    return [invalid(path, name, detail)]


def _validate_health_entries(entries: list[JsonMapping], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        here, health, message = path.at(number), entry.get("health") or "", entry.get("message")
        if health not in ("Healthy", "Unhealthy", "Unknown"):
            errors.append(not_supported(here.child("health"), health, ("Healthy", "Unhealthy", "Unknown")))
        if message == "":
            errors.append(required(here.child("message"), "must be non-empty if specified"))
        elif message is not None and size(message) > HEALTH_MESSAGE_MAX_BYTES:
            errors.append(too_long(here.child("message"), HEALTH_MESSAGE_MAX_BYTES))
        resource_id = entry.get("resourceID") or ""
        if resource_id in seen:
            errors.append(duplicate(here.child("resourceID"), resource_id))
        seen.add(resource_id)
    return errors
