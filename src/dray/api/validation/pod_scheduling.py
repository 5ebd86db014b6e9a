"""What a pod says about where it wants to run: tolerations, affinity, spreading, gates."""

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
)
from dray.api.validation.formats import dns_label, label_key, label_value
from dray.api.validation.selectors import (
    validate_label_selector,
    validate_node_selector,
    validate_node_selector_term,
)

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_INT64 = range(-(2**63), 2**63)


def validate_tolerations(tolerations: list[JsonMapping], path: Path) -> list[FieldError]:
    """Check the tolerations of a pod."""
    errors: list[FieldError] = []
    for number, toleration in enumerate(tolerations):
        here = path.at(number)
        key, operator = toleration.get("key") or "", toleration.get("operator") or ""
        effect = toleration.get("effect") or ""
        if key:
            errors += invalid_each(here.child("key"), key, label_key(key))
        elif operator != "Exists":
            detail = (
                'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            )
            errors.append(invalid(here.child("operator"), operator, detail))
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            errors.append(invalid(here.child("effect"), effect, detail))
        errors += _validate_toleration_value(operator, toleration.get("value") or "", here)
        if effect and effect not in TAINT_EFFECTS:
            errors.append(not_supported(here.child("effect"), effect, TAINT_EFFECTS))
    return errors


def _validate_toleration_value(operator: str, value: str, path: Path) -> list[FieldError]:
    if operator in ("", "Equal"):
        problems = label_value(value)
        return [invalid(path.child("operator"), value, ";".join(problems))] if problems else []
    if operator == "Exists":
        detail = "value must be empty when `operator` is 'Exists'"
        return [invalid(path.child("operator"), value, detail)] if value else []
    if operator in ("Gt", "Lt"):
        number = value.removeprefix("-")
        if number.isascii() and number.isdigit() and int(value) in _INT64:
            return []
        return [invalid(path.child("value"), value, "must be a decimal integer of 64 bits")]
    return [not_supported(path.child("operator"), operator, ("Equal", "Exists"))]


def validate_affinity(affinity: JsonMapping, path: Path) -> list[FieldError]:
    """Check affinity to nodes and to (or against) other pods."""
    errors: list[FieldError] = []
    node = affinity.get("nodeAffinity") or {}
    here = path.child("nodeAffinity")
    if node.get(_REQUIRED) is not None:
        errors += validate_node_selector(node[_REQUIRED], here.child(_REQUIRED))
    for number, term in enumerate(node.get(_PREFERRED) or []):
        place = here.child(_PREFERRED).at(number)
        errors += _validate_weight(term, place)
        errors += validate_node_selector_term(
            term.get("preference") or {}, place.child("preference"), lax_values=True
        )
    for kind in ("podAffinity", "podAntiAffinity"):
        pods, here = affinity.get(kind) or {}, path.child(kind)
        for number, term in enumerate(pods.get(_REQUIRED) or []):
            errors += _validate_pod_term(term, here.child(_REQUIRED).at(number))
        for number, weighted in enumerate(pods.get(_PREFERRED) or []):
            place = here.child(_PREFERRED).at(number)
            errors += _validate_weight(weighted, place)
            errors += _validate_pod_term(
                weighted.get("podAffinityTerm") or {}, place.child("podAffinityTerm")
            )
    return errors


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _validate_weight(term: JsonMapping, path: Path) -> list[FieldError]:
    weight = term.get("weight") or 0
    return [] if 1 <= weight <= 100 else [invalid(path.child("weight"), weight, "must be in the range 1-100")]


def _validate_pod_term(term: JsonMapping, path: Path) -> list[FieldError]:
    errors = validate_label_selector(term.get("labelSelector"), path.child("labelSelector"))
    errors += validate_label_selector(term.get("namespaceSelector"), path.child("namespaceSelector"))
    for name in term.get("namespaces") or []:
        errors += invalid_each(path.child("namespace"), name, dns_label(name))
    errors += _validate_label_keys(term, path)
    topology_key = term.get("topologyKey") or ""
    if not topology_key:
        errors.append(required(path.child("topologyKey"), "can not be empty"))
    return errors + invalid_each(path.child("topologyKey"), topology_key, label_key(topology_key))


def _validate_label_keys(term: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    wanted, unwanted = term.get("matchLabelKeys") or [], term.get("mismatchLabelKeys") or []
    for field, keys in (("matchLabelKeys", wanted), ("mismatchLabelKeys", unwanted)):
        if keys and term.get("labelSelector") is None:
            errors.append(forbidden(path.child(field), "must not be specified when labelSelector is not set"))
        for number, key in enumerate(keys):
            errors += invalid_each(path.child(field).at(number), key, label_key(key))
    for number, key in enumerate(wanted):
        if key in unwanted:
            detail = "exists in both matchLabelKeys and mismatchLabelKeys"
            errors.append(invalid(path.child("matchLabelKeys").at(number), key, detail))
    return errors


def validate_topology_spread(constraints: list[JsonMapping], path: Path) -> list[FieldError]:
    """Check how pods spread over zones or nodes."""
    errors: list[FieldError] = []
    kinds = [(entry.get("topologyKey") or "", entry.get("whenUnsatisfiable") or "") for entry in constraints]
    last = {kind: number for number, kind in enumerate(kinds)}
    for number, constraint in enumerate(constraints):
        here = path.at(number)
        key, action = kinds[number]
        skew, domains = constraint.get("maxSkew") or 0, constraint.get("minDomains")
        if skew <= 0:
            errors.append(invalid(here.child("maxSkew"), skew, "must be greater than zero"))
        if not key:
            errors.append(required(here.child("topologyKey"), "can not be empty"))
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            here_action = here.child("whenUnsatisfiable")
            errors.append(not_supported(here_action, action, ("DoNotSchedule", "ScheduleAnyway")))
        if last[kinds[number]] > number:
            errors.append(duplicate(here.child("{topologyKey, whenUnsatisfiable}"), f"{{{key}, {action}}}"))
        if domains is not None:
            if domains <= 0:
                errors.append(invalid(here.child("minDomains"), domains, "must be greater than zero"))
            if action != "DoNotSchedule":
                detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                errors.append(invalid(here.child("minDomains"), domains, detail))
        for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            policy = constraint.get(field)
            if policy is not None and policy not in ("Honor", "Ignore"):
                errors.append(not_supported(here.child(field), policy, ("Honor", "Ignore")))
        errors += _validate_label_keys(constraint, here)
        errors += validate_label_selector(constraint.get("labelSelector"), here.child("labelSelector"))
    return errors


def validate_scheduling_gates(gates: list[JsonMapping], path: Path) -> list[FieldError]:
    """Check the gates that hold a pod back."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for number, gate in enumerate(gates):
        name = gate.get("name") or ""
        errors += invalid_each(path.at(number), name, label_key(name))
        if name in seen:
            errors.append(duplicate(path.at(number), name))
        seen.add(name)
    return errors
