"""Objects in another version: stored once, spoken in several.

Of resource.k8s.io, v1, v1beta2 and v1alpha3 have the same shape on the wire; only
v1beta1 differs, and only in two places:

  * a device is `{name, basic: {everything else}}`;
  * a request has the fields of `exactly` flat beside `firstAvailable`.

Going to v1, `exactly` appears as soon as one flat field is set, even a senseless one,
so that validation can complain about it. Going to v1beta1, every device gets a `basic`.
Plain `nodeName: ""` and `allNodes: false` mean "not set" in v1beta1; reading already
leaves them out there.

An event is one object that two groups show: core/v1 says `involvedObject` and `message`
where events.k8s.io/v1 says `regarding` and `note`.

Functions return new objects; parts that do not change are shared with the input.
Invariants (tests/property/test_api_conversion_laws.py): there and back again gives the
same object, for every object that validation accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dray.api.json_types import JsonObject
from dray.api.kinds import RESOURCE
from dray.api.reading import read
from dray.api.schema import schema_of

__all__ = ["FLAT_REQUEST_FIELDS", "convert", "convert_event"]

_BETA1: Final = "v1beta1"
# What v1beta1 writes directly into a request, and later versions into `exactly`.
FLAT_REQUEST_FIELDS: Final = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
)


def convert(group: str, kind: str, obj: JsonObject, from_version: str, to_version: str) -> JsonObject:
    """Return the object in another version of its group, with that apiVersion if it had one."""
    result = dict(obj)
    if from_version != to_version and "apiVersion" in result:
        result["apiVersion"] = f"{group}/{to_version}" if group else to_version
    if group != RESOURCE or (from_version == _BETA1) == (to_version == _BETA1):
        return result
    change = _CHANGES.get(kind)
    if change is not None:
        change(result, to_version == _BETA1)
    return result


def _change_claim(claim: JsonObject, flat: bool) -> None:
    if claim.get("spec"):
        claim["spec"] = _changed_claim_spec(claim["spec"], flat)


def _change_template(template: JsonObject, flat: bool) -> None:
    spec = template.get("spec")
    if spec and spec.get("spec"):
        template["spec"] = {**spec, "spec": _changed_claim_spec(spec["spec"], flat)}


def _changed_claim_spec(spec: JsonObject, flat: bool) -> JsonObject:
    requests = (spec.get("devices") or {}).get("requests")
    if not requests:
        return spec
    change = _flattened if flat else _nested
    return {**spec, "devices": {**spec["devices"], "requests": [change(request) for request in requests]}}


def _flattened(request: JsonObject) -> JsonObject:
    rest = {name: value for name, value in request.items() if name != "exactly"}
    # v1beta1 writes the class even where there is none.
    return {**rest, "deviceClassName": "", **(request.get("exactly") or {})}


def _nested(request: JsonObject) -> JsonObject:
    rest = {name: value for name, value in request.items() if name not in FLAT_REQUEST_FIELDS}
    exactly = {name: request[name] for name in FLAT_REQUEST_FIELDS if name in request}
    # What a pointer leads to counts even when it is empty; empty texts, numbers and lists do not.
    if any(value or value is False or isinstance(value, dict) for value in exactly.values()):
        return {**rest, "exactly": {"deviceClassName": "", **exactly}}
    return rest


def _change_slice(resource_slice: JsonObject, flat: bool) -> None:
    spec = resource_slice.get("spec")
    if spec and spec.get("devices"):
        change = _with_basic if flat else _without_basic
        resource_slice["spec"] = {**spec, "devices": [change(device) for device in spec["devices"]]}


def _with_basic(device: JsonObject) -> JsonObject:
    basic = {name: value for name, value in device.items() if name != "name"}
    return {"name": device.get("name", ""), "basic": basic}


def _without_basic(device: JsonObject) -> JsonObject:
    return {"name": device.get("name", ""), **(device.get("basic") or {})}


_CHANGES: Final[dict[str, Callable[[JsonObject, bool], None]]] = {
    "ResourceClaim": _change_claim,
    "ResourceClaimTemplate": _change_template,
    "ResourceSlice": _change_slice,
}


# --- events -------------------------------------------------------------------

_EVENT_NAMES: Final = {  # events.k8s.io/v1 -> core/v1
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_CORE_EVENT_NAMES: Final = {core: new for new, core in _EVENT_NAMES.items()}


def convert_event(event: JsonObject, to_group: str) -> JsonObject:
    """Return an event as core/v1 (empty group) or events.k8s.io/v1 shows it."""
    names = _CORE_EVENT_NAMES if to_group else _EVENT_NAMES
    renamed = {names.get(name, name): value for name, value in event.items()}
    if "apiVersion" in renamed:
        renamed["apiVersion"] = f"{to_group}/v1" if to_group else "v1"
    # The groups also differ in which empty fields they write; reading settles that.
    return read(schema_of(to_group, "v1", "Event"), renamed)[0]
