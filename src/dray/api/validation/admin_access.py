"""Admin access: who may see devices that others use.

Admin access is granted by the namespace: it must carry the label
`resource.kubernetes.io/admin-access: "true"`, live, at the moment of the
request. So this is authorisation rather than validation, but it is reported
as a field error. Paths leave out `exactly` (and, for templates, the second
`spec`), and only the first offending request is named, as in the reference.
"""

from __future__ import annotations

from collections.abc import Mapping

from dray.api.json_types import JsonMapping
from dray.api.validation.fields import FieldError, Path, forbidden
from dray.api.well_known import ADMIN_ACCESS_LABEL

_DETAIL = (
    f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace"
)


def check_admin_access(obj: JsonMapping, namespace_labels: Mapping[str, str] | None) -> list[FieldError]:
    """Check a new ResourceClaim or ResourceClaimTemplate."""
    spec = obj.get("spec") or {}
    if obj.get("kind") == "ResourceClaimTemplate" or "spec" in spec:
        spec = spec.get("spec") or {}
    for number, request in enumerate((spec.get("devices") or {}).get("requests") or []):
        if (request.get("exactly") or {}).get("adminAccess"):
            path = Path("spec.devices.requests").at(number).child("adminAccess")
            return _unless_granted(path, namespace_labels)
    return []


def check_admin_access_of_status(
    new: JsonMapping, old: JsonMapping, namespace_labels: Mapping[str, str] | None
) -> list[FieldError]:
    """Check a status update of a ResourceClaim; what was granted once stays granted."""
    if _admin_result(old) is not None:
        return []
    number = _admin_result(new)
    if number is None:
        return []
    path = Path("status.allocation.devices.results").at(number).child("adminAccess")
    return _unless_granted(path, namespace_labels)


def _unless_granted(path: Path, namespace_labels: Mapping[str, str] | None) -> list[FieldError]:
    return [] if (namespace_labels or {}).get(ADMIN_ACCESS_LABEL) == "true" else [forbidden(path, _DETAIL)]


def _admin_result(claim: JsonMapping) -> int | None:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or []
    return next((number for number, result in enumerate(results) if result.get("adminAccess")), None)
