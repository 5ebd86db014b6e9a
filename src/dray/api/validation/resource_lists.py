"""Lists of resources: requests, limits, capacity, quotas; and references to claims beside them.

Names without a slash are Kubernetes' own and must be known; names with a
domain outside `kubernetes.io` are extended resources, counted in whole numbers
and never overcommitted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.quantity import QuantityError, parse_quantity
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    forbidden,
    invalid,
    invalid_each,
    not_found,
    not_supported,
    required,
)
from dray.api.validation.formats import label_key
from dray.api.validation.names import validate_label

NameRule = Callable[[str, Path], list[FieldError]]

_CONTAINER_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})
_COUNTED = frozenset(
    {
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    }
)
QUOTA_RESOURCES = (
    _CONTAINER_RESOURCES
    | _COUNTED
    | {f"{side}.{name}" for side in ("requests", "limits") for name in _CONTAINER_RESOURCES}
    | {"requests.storage"}
)
_STANDARD_RESOURCES = QUOTA_RESOURCES | {"storage"}
_POD_LEVEL_RESOURCES = ("cpu", "memory")


def is_huge_pages(name: str) -> bool:
    """Return whether a resource is a size of huge pages."""
    return name.startswith("hugepages-")


def is_native(name: str) -> bool:
    """Return whether a resource belongs to Kubernetes itself."""
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    """Return whether a resource is counted by devices or drivers: outside `kubernetes.io`."""
    return not is_native(name) and not name.startswith("requests.") and not label_key(f"requests.{name}")


def validate_amount(name: str, text: Any, path: Path) -> list[FieldError]:
    """Check an amount of a resource: not negative, and whole where things are counted."""
    try:
        amount = parse_quantity(text)
    except (QuantityError, TypeError) as error:
        return [invalid(path, text, str(error))]
    errors = []
    if amount.sign < 0:
        errors.append(invalid(path, str(amount), "must be greater than or equal to 0"))
    if (name in _COUNTED or is_extended(name)) and amount.milli_value() % 1000:
        errors.append(invalid(path, str(amount), "must be an integer"))
    return errors


def validate_resource_name(name: str, path: Path) -> list[FieldError]:
    """Check the name of a resource: well-formed, and known if it has no domain."""
    errors = invalid_each(path, name, label_key(name))
    bare = name.removeprefix("requests.")
    if not errors and "/" not in name and name not in _STANDARD_RESOURCES and not is_huge_pages(bare):
        errors.append(invalid(path, name, "must be a standard resource type or fully qualified"))
    return errors


def validate_container_resource_name(name: str, path: Path) -> list[FieldError]:
    """Check the name of a resource that a container may use."""
    errors = validate_resource_name(name, path)
    if "/" not in name:
        if name not in _CONTAINER_RESOURCES and not is_huge_pages(name):
            errors.append(invalid(path, name, "must be a standard resource for containers"))
    elif not is_native(name) and not is_extended(name):
        errors.append(invalid(path, name, "doesn't follow extended resource name standard"))
    return errors


def validate_pod_resource_name(name: str, path: Path) -> list[FieldError]:
    """Check the name of a resource that a pod may claim as a whole."""
    errors = validate_resource_name(name, path)
    if not errors and name not in _POD_LEVEL_RESOURCES and not is_huge_pages(name):
        errors.append(not_supported(path, name, (*_POD_LEVEL_RESOURCES, "hugepages-")))
    return errors


def validate_requirements(
    requirements: JsonMapping,
    path: Path,
    claim_names: Collection[str],
    name_rule: NameRule = validate_container_resource_name,
) -> list[FieldError]:
    """Check requests and limits against each other, and references to claims of the pod."""
    limits, requests = requirements.get("limits") or {}, requirements.get("requests") or {}
    errors: list[FieldError] = []
    for side, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            here = path.child(side).key(name)
            errors += name_rule(name, here)
            errors += validate_amount(name, text, here)
    errors += _validate_overcommitment(requests, limits, path)
    names = limits.keys() | requests.keys()
    if any(map(is_huge_pages, names)) and not names & {"cpu", "memory"}:
        errors.append(forbidden(path, "HugePages require cpu or memory"))
    return errors + _validate_claim_references(
        requirements.get("claims") or [], path.child("claims"), claim_names
    )


def _validate_overcommitment(requests: JsonMapping, limits: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for name, text in requests.items():
        may_overcommit = is_native(name) and not is_huge_pages(name)
        if name not in limits:
            if not may_overcommit:
                detail = "Limit must be set for non overcommitable resources"
                errors.append(required(path.child("limits"), detail))
            continue
        try:
            request, limit = parse_quantity(text), parse_quantity(limits[name])
        except (QuantityError, TypeError):
            continue  # reported with the amount itself
        if request != limit and not may_overcommit:
            detail = f"must be equal to {name} limit of {limit}"
            errors.append(invalid(path.child("requests"), str(request), detail))
        elif request > limit:
            detail = f"must be less than or equal to {name} limit of {limit}"
            errors.append(invalid(path.child("requests"), str(request), detail))
    return errors


def _validate_claim_references(
    claims: list[JsonMapping], path: Path, claim_names: Collection[str]
) -> list[FieldError]:
    """Check that a container names each claim, or each request of a claim, once and of its own pod."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    n_requests_by_claim: dict[str, int] = {}  # of `seen`, those that name a request
    known = f": {', '.join(sorted(claim_names))}" if claim_names else " which is empty"
    unknown = f"must be one of the names in pod.spec.resourceClaims{known}"
    for number, claim in enumerate(claims):
        here = path.at(number)
        name, request = claim.get("name") or "", claim.get("request") or ""
        if not name:
            errors.append(required(here))
            continue
        if name in seen:
            errors.append(duplicate(here, name))
        else:
            key = f"{name}/{request}" if request else name
            if request:
                errors += validate_label(request, here.child("request"))
            if key in seen:
                errors.append(duplicate(here, key))
            elif not request:
                errors += [duplicate(here, name)] * n_requests_by_claim.get(name, 0)
            if request and key not in seen:
                n_requests_by_claim[name] = n_requests_by_claim.get(name, 0) + 1
            seen.add(key)
        if name not in claim_names:
            errors.append(not_found(here, name, unknown))
    return errors
