"""Status of ResourceClaim: allocation, reservations and what drivers say about devices.

Three writers meet here: the scheduler writes `allocation` and `reservedFor`,
drivers write `devices`. An allocation is written once; it may be cleared, but
only when nobody holds a reservation. Because rules for new allocations may be
stricter than those that admitted an old one, an allocation that is already
there is never judged again.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.api.json_types import JsonMapping
from dray.api.validation.claims import RequestNames, validate_configuration, validate_toleration_values
from dray.api.validation.context import ValidationContext
from dray.api.validation.declared import check_declared
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    forbidden,
    invalid,
    invalid_each,
    required,
    too_many,
)
from dray.api.validation.formats import interface_address, label_key
from dray.api.validation.metadata import metadata_of, validate_changed_metadata
from dray.api.validation.names import validate_driver_name, validate_label, validate_pool_name
from dray.api.validation.raw_objects import validate_raw_object
from dray.api.validation.resource_rules import RESOURCE_CLAIM
from dray.api.validation.selectors import validate_conditions, validate_node_selector

RESERVED_FOR_MAX = 256
RESULTS_MAX = 32
ALLOCATION_CONFIG_MAX = 64
DEVICE_CONDITIONS_MAX = 8
BINDING_CONDITIONS_MAX = 4
DATA_MAX_BYTES = 10 * 1024
IPS_MAX = 16

_STATUS = Path("status")


class SharedDevice(NamedTuple):
    """A device, or one share of it, in the words of a status."""

    driver: str
    pool: str
    device: str
    share: str

    @classmethod
    def of(cls, entry: JsonMapping) -> SharedDevice:
        """Read the identity from an allocation result or a device status."""
        return cls(*(entry.get(name) or "" for name in ("driver", "pool", "device", "shareID")))

    def shown(self) -> dict[str, str]:
        """Return the identity as error texts show it."""
        return {"Driver": self.driver, "Pool": self.pool, "Device": self.device, "ShareID": self.share}


def validate_claim_status(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check an update of a claim's status; metadata and spec are those of the stored claim."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    status, old_status = new.get("status") or {}, old.get("status") or {}
    spec = new.get("spec") or {}
    names = RequestNames(spec.get("devices") or {})
    allocation = status.get("allocation")
    errors += _validate_reservations(
        status, old_status, is_deleted=bool(metadata_of(new).get("deletionTimestamp"))
    )
    errors += _validate_devices(status.get("devices") or [], _allocated(status))
    if allocation is not None and old_status.get("allocation") is None:
        errors += _validate_allocation(allocation, _STATUS.child("allocation"), names)
    return errors + check_declared(
        RESOURCE_CLAIM, new, old, features=context.features, version=context.version
    )


def _allocated(status: JsonMapping) -> set[SharedDevice]:
    devices = (status.get("allocation") or {}).get("devices") or {}
    return {SharedDevice.of(result) for result in devices.get("results") or []}


def _validate_reservations(
    status: JsonMapping, old_status: JsonMapping, *, is_deleted: bool
) -> list[FieldError]:
    consumers, path = status.get("reservedFor") or [], _STATUS.child("reservedFor")
    errors: list[FieldError] = []
    if len(consumers) <= RESERVED_FOR_MAX:
        for number, consumer in enumerate(consumers):
            missing = (name for name in ("resource", "name", "uid") if not consumer.get(name))
            errors += [required(path.at(number).child(name)) for name in missing]
    if not consumers:
        return errors
    if status.get("allocation") is None:
        errors.append(forbidden(path, "may not be specified when `allocated` is not set"))
    elif is_deleted and _has_new(consumers, old_status.get("reservedFor") or []):
        detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        errors.append(forbidden(path, detail))
    return errors


def _has_new(consumers: list[JsonMapping], old_consumers: list[JsonMapping]) -> bool:
    def identity(consumer: JsonMapping) -> tuple[str, ...]:
        return tuple(consumer.get(name) or "" for name in ("apiGroup", "resource", "name", "uid"))

    return not {identity(consumer) for consumer in consumers} <= {
        identity(consumer) for consumer in old_consumers
    }


# --- allocation --------------------------------------------------------------------------


def _validate_allocation(allocation: JsonMapping, path: Path, names: RequestNames) -> list[FieldError]:
    devices = allocation.get("devices") or {}
    results, config = devices.get("results") or [], devices.get("config") or []
    errors: list[FieldError] = []
    if len(results) <= RESULTS_MAX:
        for number, result in enumerate(results):
            errors += _validate_result(result, path.child("devices", "results").at(number), names)
    if len(config) <= ALLOCATION_CONFIG_MAX:
        for number, entry in enumerate(config):
            here = path.child("devices", "config").at(number)
            errors += names.validate_all(entry.get("requests") or [], here.child("requests"))
            errors += validate_configuration(entry, here)
    if allocation.get("nodeSelector") is not None:
        errors += validate_node_selector(allocation["nodeSelector"], path.child("nodeSelector"))
    return errors


def _validate_result(result: JsonMapping, path: Path, names: RequestNames) -> list[FieldError]:
    errors = names.validate(result.get("request") or "", path.child("request"))
    errors += validate_label(result.get("device") or "", path.child("device"))
    errors += validate_binding_conditions(result, path)
    errors += validate_toleration_values(result.get("tolerations"), path.child("tolerations"))
    return errors + validate_skipped_operations(
        result.get("skipNodeOperations") or [], path.child("skipNodeOperations")
    )


def validate_binding_conditions(device: JsonMapping, path: Path) -> list[FieldError]:
    """Check the conditions that binding waits for and those that make it fail: both lists or neither."""
    wanted, failures = device.get("bindingConditions") or [], device.get("bindingFailureConditions") or []
    errors: list[FieldError] = []
    for names, here in (
        (wanted, path.child("bindingConditions")),
        (failures, path.child("bindingFailureConditions")),
    ):
        if len(names) <= BINDING_CONDITIONS_MAX:
            for number, name in enumerate(names):
                errors += invalid_each(here.at(number), name, label_key(name))
        seen: set[str] = set()
        for number, name in enumerate(names):
            if name in seen:
                errors.append(duplicate(here.at(number), name))
            seen.add(name)
    for number, name in enumerate(failures):
        if name in wanted:
            detail = "bindingFailureConditions must not overlap with bindingConditions"
            errors.append(invalid(path.child("bindingFailureConditions").at(number), name, detail))
    if failures and not wanted:
        detail = "bindingConditions are required to use bindingFailureConditions"
        errors.append(invalid(path.child("bindingConditions"), wanted, detail))
    if wanted and not failures:
        detail = "bindingFailureConditions are required to use bindingConditions"
        errors.append(invalid(path.child("bindingFailureConditions"), failures, detail))
    return errors


def validate_skipped_operations(operations: list[str], path: Path) -> list[FieldError]:
    """Check that preparing is skipped only together with unpreparing."""
    if "NodePrepareResources" not in operations:
        return []
    if "NodeUnprepareResources" in operations or "*" in operations:
        return []
    detail = "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped"
    return [invalid(path, operations, detail)]


# --- devices -----------------------------------------------------------------------------


def _validate_devices(devices: list[JsonMapping], allocated: set[SharedDevice]) -> list[FieldError]:
    errors: list[FieldError] = []
    for number, device in enumerate(devices):
        errors += _validate_device(device, _STATUS.child("devices").at(number), allocated)
    return errors


def _validate_device(device: JsonMapping, path: Path, allocated: set[SharedDevice]) -> list[FieldError]:
    errors = validate_driver_name(device.get("driver") or "", path.child("driver"))
    errors += validate_pool_name(device.get("pool") or "", path.child("pool"))
    errors += validate_label(device.get("device") or "", path.child("device"))
    identity = SharedDevice.of(device)
    if identity not in allocated:
        errors.append(invalid(path, identity.shown(), "must be an allocated device in the claim"))
    conditions = device.get("conditions") or []
    if len(conditions) > DEVICE_CONDITIONS_MAX:
        errors.append(too_many(path.child("conditions"), len(conditions), DEVICE_CONDITIONS_MAX))
    errors += validate_conditions(conditions, path.child("conditions"))
    if device.get("data") is not None:
        errors += validate_raw_object(device["data"], path.child("data"), limit=DATA_MAX_BYTES)
    return errors + _validate_addresses(device.get("networkData") or {}, path.child("networkData", "ips"))


def _validate_addresses(network: JsonMapping, path: Path) -> list[FieldError]:
    addresses = network.get("ips") or []
    if len(addresses) > IPS_MAX:
        return []
    return [
        error
        for number, address in enumerate(addresses)
        for error in invalid_each(path.at(number), address, interface_address(address))
    ]
