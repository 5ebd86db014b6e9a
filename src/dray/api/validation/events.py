"""Events, old and new.

Events of the core group are nearly free-form: only their namespace must fit
the object they speak of. With `eventTime` set, or through events.k8s.io, they
are judged in full. Both shapes are read here: what events.k8s.io calls
`regarding` and `note` is `involvedObject` and `message` in the core group, and
errors always use the core words.
"""

from __future__ import annotations

from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.validation.context import ValidationContext
from dray.api.validation.equality import is_same
from dray.api.validation.fields import FieldError, Path, invalid, invalid_each, required
from dray.api.validation.formats import label_key, size
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_immutable,
    validate_new_metadata,
)

_LIMITS = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
# Core word -> the word of events.k8s.io.
_NEW_WORDS = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "source": "deprecatedSource",
}
_FROZEN = (
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
)


def validate_core_event(event: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check an event posted to the core group."""
    return _validate_event(event, "reportingComponent")


def validate_core_event_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check an event changed through the core group."""
    return _validate_event(new, "reportingComponent")


def validate_new_event(event: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check an event posted to events.k8s.io."""
    errors = _validate_event(event, "reportingController")
    errors += validate_new_metadata(metadata_of(event), namespaced=True)
    errors += _validate_series(event)
    if not event.get("eventTime"):
        errors.append(required(Path("eventTime")))
    kind = event.get("type") or ""
    if kind not in ("Normal", "Warning"):
        errors.append(invalid(Path("type"), "", f"has invalid value: {kind}"))
    for field in ("firstTimestamp", "lastTimestamp", "count", "source"):
        value = _get(event, field)
        if value and not (isinstance(value, dict) and not any(value.values())):
            errors.append(invalid(Path(field), "", "needs to be unset"))
    return errors


def validate_new_event_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check an event changed through events.k8s.io: only its series may change."""
    errors = _validate_event(new, "reportingController")
    errors += validate_changed_metadata(metadata_of(new), metadata_of(old))
    if not is_same(new.get("series"), old.get("series")):
        errors += _validate_series(new)
    for field in _FROZEN:
        shown = "reportingController" if field == "reportingComponent" else field
        errors += validate_immutable(_get(new, field), _get(old, field), Path(shown))
    return errors


def _get(event: JsonMapping, field: str) -> Any:
    value = event.get(field)
    return event.get(_NEW_WORDS[field]) if value is None and field in _NEW_WORDS else value


def _validate_event(event: JsonMapping, controller_field: str) -> list[FieldError]:
    namespace = metadata_of(event).get("namespace") or ""
    object_namespace = (_get(event, "involvedObject") or {}).get("namespace") or ""
    mismatch = invalid(Path("involvedObject.namespace"), object_namespace, "does not match event.namespace")
    if not event.get("eventTime"):
        # Objects without a namespace may be spoken of in the namespace default.
        fits = namespace == object_namespace if object_namespace else namespace in ("", "default")
        return [] if fits else [mismatch]
    errors: list[FieldError] = []
    if not object_namespace and namespace not in ("default", "kube-system"):
        errors.append(mismatch)
    controller, path = _get(event, "reportingComponent") or "", Path(controller_field)
    if not controller:
        errors.append(required(path))
    errors += invalid_each(path, controller, label_key(controller))
    for field, limit in _LIMITS.items():
        text = _get(event, field) or ""
        if not text and field != "message":
            errors.append(required(Path(field)))
        if size(text) > limit:
            errors.append(invalid(Path(field), "", f"can have at most {limit} characters"))
    return errors


def _validate_series(event: JsonMapping) -> list[FieldError]:
    series = event.get("series")
    if series is None:
        return []
    errors: list[FieldError] = []
    if (series.get("count") or 0) < 2:
        errors.append(invalid(Path("series.count"), "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        errors.append(required(Path("series.lastObservedTime")))
    return errors
