"""Changes of a running pod's claims: what pods/resourceclaims accepts (docs/adr/0023-devices-after-pod-start.md).

Only entries of `spec.resourceClaims` come and go, each by the name of a claim; entries that stay are kept as they
are. Whether there are devices for a new one is the scheduler's decision, not validation's.
"""

from __future__ import annotations

from dray.api.json_types import JsonMapping
from dray.api.validation.equality import is_same
from dray.api.validation.fields import FieldError, Path, forbidden, invalid, too_many
from dray.api.validation.metadata import metadata_of, validate_changed_metadata
from dray.api.validation.pods import validate_pod_content

MAX_CLAIMS = 32  # of a pod whose claims change while it runs; drivers are called with all of them
_CLAIMS = Path("spec").child("resourceClaims")


def validate_pod_claims(new: JsonMapping, old: JsonMapping) -> list[FieldError]:
    """Check an update of pods/resourceclaims."""
    why = _why_not_now(old)
    if why:
        return [forbidden(_CLAIMS, why)]
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    entries, before = spec.get("resourceClaims") or [], old_spec.get("resourceClaims") or []
    if len(entries) > MAX_CLAIMS:
        return [too_many(_CLAIMS, len(entries), MAX_CLAIMS)]
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old)) + validate_pod_content(new)
    known = {entry.get("name"): entry for entry in before}
    names = [entry.get("resourceClaimName") for entry in entries]
    for number, entry in enumerate(entries):
        here, was = _CLAIMS.at(number), known.pop(entry.get("name"), None)
        if was is not None and not is_same(entry, was):
            errors.append(
                forbidden(here, "an entry may be removed and another be added, but none be changed")
            )
        elif was is None and entry.get("resourceClaimName") is None:
            errors.append(
                forbidden(here, "a running pod is given claims by resourceClaimName, not from a template")
            )
        elif was is None and names.count(entry["resourceClaimName"]) > 1:
            errors.append(invalid(here, entry["resourceClaimName"], "the pod has this claim already"))
    errors += [error for entry in known.values() for error in _why_not_removed(entry, spec)]
    return errors


def _why_not_now(pod: JsonMapping) -> str:
    """Return why the claims of this pod cannot change now; "" when they can."""
    if metadata_of(pod).get("deletionTimestamp"):
        return "the pod is being deleted"
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    if phase != "Running":
        return f"claims of a pod change only while it runs; this one is {phase}"
    return ""


def _why_not_removed(entry: JsonMapping, spec: JsonMapping) -> list[FieldError]:
    name = entry.get("name") or ""
    if entry.get("resourceClaimName") is None:
        return [forbidden(_CLAIMS, f"{name}: a claim that was made from a template ends with its pod")]
    users = [
        container.get("name") or ""
        for field in ("initContainers", "containers")
        for container in spec.get(field) or ()
        if any(used.get("name") == name for used in (container.get("resources") or {}).get("claims") or ())
    ]
    if users:
        return [
            forbidden(_CLAIMS, f"{name}: container {', '.join(users)} refers to it, so it ends with its pod")
        ]
    return []
