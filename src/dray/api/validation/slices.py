"""ResourceSlice: pools, devices, their attributes, counters, taints and node choice.

Drivers publish and republish slices all day, so updates are judged in full,
with two exceptions that let a slice survive stricter rules: the capacities and
the taints of a device are judged again only when they changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.quantity import Quantity, parse_quantity
from dray.api.slice_limits import MOST_COUNTER_SETS, MOST_DEVICES, MOST_WITH_RICH_DEVICES
from dray.api.validation.capacity import validate_capacity
from dray.api.validation.claim_status import validate_binding_conditions, validate_skipped_operations
from dray.api.validation.context import ValidationContext
from dray.api.validation.declared import check_declared
from dray.api.validation.equality import is_same
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    invalid,
    invalid_each,
    not_found,
    required,
    too_long,
    too_many,
)
from dray.api.validation.formats import dns_subdomain, label_key, label_value, semantic_version, size
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_immutable,
    validate_new_metadata,
)
from dray.api.validation.names import (
    validate_driver_name,
    validate_label,
    validate_pool_name,
    validate_qualified_name,
)
from dray.api.validation.resource_rules import ATTRIBUTE_VALUES, RESOURCE_SLICE
from dray.api.validation.selectors import validate_node_selector

ATTRIBUTES_AND_CAPACITIES_MAX = 32
ATTRIBUTE_VALUES_MAX = 48
ATTRIBUTE_VALUE_MAX_BYTES = 64
TAINTS_MAX = 16
COUNTERS_MAX = 32
CONSUMED_COUNTER_SETS_MAX = 2
_KEY_SHOWN_MAX = 63 + 1 + 32

_SPEC = Path("spec")
_LISTS = ("ints", "bools", "strings", "versions")
_NODE_CHOICE = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_DEVICE_NODE_CHOICE = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when "
    "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
)


def validate_slice(resource_slice: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new ResourceSlice."""
    errors = validate_new_metadata(metadata_of(resource_slice), namespaced=False)
    errors += _validate_spec(resource_slice.get("spec") or {}, None, context)
    return errors + check_declared(
        RESOURCE_SLICE, resource_slice, None, features=context.features, version=context.version
    )


def validate_slice_update(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check an update of a ResourceSlice; driver, pool and node name stay."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    errors += _validate_spec(new.get("spec") or {}, old.get("spec") or {}, context)
    return errors + check_declared(
        RESOURCE_SLICE, new, old, features=context.features, version=context.version
    )


def slice_warnings(resource_slice: JsonMapping) -> list[str]:
    """Return what is accepted but frowned upon."""
    driver = (resource_slice.get("spec") or {}).get("driver") or ""
    if driver == driver.lower():
        return []
    return [f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters']


def _validate_spec(
    spec: JsonMapping, old: JsonMapping | None, context: ValidationContext
) -> list[FieldError]:
    pool = spec.get("pool") or {}
    errors = validate_driver_name(spec.get("driver") or "", _SPEC.child("driver"))
    errors += _validate_pool(pool, _SPEC.child("pool"))
    if old is not None:
        old_pool = old.get("pool") or {}
        errors += validate_immutable(pool.get("name"), old_pool.get("name"), _SPEC.child("pool", "name"))
        errors += validate_immutable(spec.get("driver"), old.get("driver"), _SPEC.child("driver"))
        errors += validate_immutable(spec.get("nodeName"), old.get("nodeName"), _SPEC.child("nodeName"))
    errors += _validate_node_choice(spec)
    # `[]` counts as given here: the reference compares with nil.
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        errors.append(invalid(_SPEC, "", "only one of `sharedCounters` or `devices` is allowed"))
    errors += _validate_devices(spec, old, context)
    errors += _validate_counter_sets(spec.get("sharedCounters") or [])
    if spec.get("partitionTypeAttribute") is not None:
        errors += _validate_partition_types(spec, spec["partitionTypeAttribute"])
    return errors + validate_skipped_operations(
        spec.get("skipNodeOperations") or [], _SPEC.child("skipNodeOperations")
    )


def _validate_pool(pool: JsonMapping, path: Path) -> list[FieldError]:
    errors = validate_pool_name(pool.get("name") or "", path.child("name"))
    count, generation = pool.get("resourceSliceCount") or 0, pool.get("generation") or 0
    if count <= 0:
        errors.append(invalid(path.child("resourceSliceCount"), count, "must be greater than zero"))
    if generation < 0:
        errors.append(invalid(path.child("generation"), generation, "must be greater than or equal to zero"))
    return errors


# --- which nodes -------------------------------------------------------------------------


def _validate_node_choice(spec: JsonMapping) -> list[FieldError]:
    errors: list[FieldError] = []
    chosen: list[str] = []
    name, selector = spec.get("nodeName"), spec.get("nodeSelector")
    if name == "":
        detail = "must be either unset or set to a non-empty string"
        errors.append(invalid(_SPEC.child("nodeName"), name, detail))
    elif name is not None:
        chosen.append("`nodeName`")
        errors += invalid_each(_SPEC.child("nodeName"), name, dns_subdomain(name))
    if selector is not None:
        chosen.append("`nodeSelector`")
        errors += validate_node_selector(selector, _SPEC.child("nodeSelector"))
        terms = selector.get("nodeSelectorTerms") or []
        if len(terms) != 1:
            here = _SPEC.child("nodeSelector", "nodeSelectorTerms")
            errors.append(invalid(here, terms, "must have exactly one node selector term"))
    for flag in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(flag) is True:
            chosen.append(f"`{flag}`")
        elif spec.get(flag) is False:
            errors.append(invalid(_SPEC.child(flag), False, "must be either unset or set to true"))
    if not chosen:
        errors.append(required(_SPEC, _NODE_CHOICE))
    elif len(chosen) > 1:
        detail = f"{_NODE_CHOICE}, but multiple fields are set"
        errors.append(invalid(_SPEC, f"{{{', '.join(chosen)}}}", detail))
    return errors


def _validate_device_node_choice(device: JsonMapping, path: Path, *, per_device: bool) -> list[FieldError]:
    name, selector, all_nodes = (device.get(field) for field in ("nodeName", "nodeSelector", "allNodes"))
    if not per_device:
        if name is None and selector is None and all_nodes is None:
            return []
        detail = (
            "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is "
            "set to true in the ResourceSlice spec"
        )
        return [invalid(path, None, detail)]
    errors: list[FieldError] = []
    chosen: list[str] = []
    if name == "":
        errors.append(invalid(path.child("nodeName"), name, "must not be empty"))
    elif name is not None:
        chosen.append("`nodeName`")
        errors += invalid_each(path.child("nodeName"), name, dns_subdomain(name))
    if selector is not None:
        chosen.append("`nodeSelector`")
        errors += validate_node_selector(selector, path.child("nodeSelector"))
    if all_nodes is True:
        chosen.append("`allNodes`")
    elif all_nodes is False:
        errors.append(invalid(path.child("allNodes"), False, "must be either unset or set to true"))
    if not chosen:
        errors.append(required(path, _DEVICE_NODE_CHOICE))
    elif len(chosen) > 1:
        errors.append(invalid(path, f"{{{', '.join(chosen)}}}", _DEVICE_NODE_CHOICE))
    return errors


# --- devices -----------------------------------------------------------------------------


def _validate_devices(
    spec: JsonMapping, old: JsonMapping | None, context: ValidationContext
) -> list[FieldError]:
    devices, path = spec.get("devices") or [], _SPEC.child("devices")
    limit = MOST_WITH_RICH_DEVICES if any(map(_is_rich, devices)) else MOST_DEVICES
    if len(devices) > limit:
        return [too_many(path, len(devices), limit)]
    old_by_name: dict[str, JsonMapping] = {}
    for old_device in (old or {}).get("devices") or []:
        old_by_name.setdefault(old_device.get("name") or "", old_device)
    errors: list[FieldError] = []
    for number, device in enumerate(devices):
        before = old_by_name.get(device.get("name") or "")
        per_device = bool(spec.get("perDeviceNodeSelection"))
        errors += _validate_device(device, before, path.at(number), context, per_device=per_device)
    seen: set[str] = set()
    for number, device in enumerate(devices):
        name = device.get("name") or ""
        if name in seen:
            errors.append(duplicate(path.at(number), name))
        seen.add(name)
    return errors


def _is_rich(device: JsonMapping) -> bool:
    attributes = (device.get("attributes") or {}).values()
    lists = (attribute.get(name) is not None for attribute in attributes if attribute for name in _LISTS)
    return bool(device.get("taints") or device.get("consumesCounters") or any(lists))


def _validate_device(
    device: JsonMapping, old: JsonMapping | None, path: Path, context: ValidationContext, *, per_device: bool
) -> list[FieldError]:
    errors = validate_label(device.get("name") or "", path.child("name"))
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    errors += _validate_sizes(attributes, capacity, path)
    errors += _validate_map(attributes, path.child("attributes"), _KEY_SHOWN_MAX, _validate_attribute)
    if old is None or not is_same(capacity, old.get("capacity")):
        shared = bool(device.get("allowMultipleAllocations"))
        fractions = "DRAFractionalCapacityRange" in context.features

        def check(entry: JsonMapping, here: Path) -> list[FieldError]:
            return validate_capacity(entry, here, is_shared=shared, with_fractions=fractions)

        errors += _validate_map(capacity, path.child("capacity"), _KEY_SHOWN_MAX, check)
    if old is None or not is_same(device.get("taints"), old.get("taints")):
        errors += _validate_taints(device.get("taints") or [], path.child("taints"))
    errors += _validate_consumed_counters(
        device.get("consumesCounters") or [], path.child("consumesCounters")
    )
    errors += _validate_device_node_choice(device, path, per_device=per_device)
    errors += validate_binding_conditions(device, path)
    for name, resource in (device.get("nodeAllocatableResources") or {}).items():
        here = path.child("nodeAllocatableResources").key(name)
        errors += _validate_node_allocatable(name, resource or {}, capacity, here)
    return errors


def _validate_sizes(attributes: JsonMapping, capacity: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    entries = len(attributes) + len(capacity)
    if entries > ATTRIBUTES_AND_CAPACITIES_MAX:
        detail = (
            f"the total number of attributes and capacities must not exceed {ATTRIBUTES_AND_CAPACITIES_MAX}"
        )
        errors.append(invalid(path, entries, detail))
    # A scalar counts once, a list once per item; an empty list counts like a scalar.
    values = sum(
        sum(len(attribute.get(name) or []) for name in _LISTS) or 1 for attribute in _objects(attributes)
    )
    if values > ATTRIBUTE_VALUES_MAX:
        detail = f"the total number of attribute values must not exceed {ATTRIBUTE_VALUES_MAX}"
        errors.append(invalid(path, values, detail))
    return errors


def _objects(entries: JsonMapping) -> list[JsonMapping]:
    return [entry or {} for entry in entries.values()]


def _validate_map(
    entries: JsonMapping,
    path: Path,
    key_shown_max: int,
    check: Callable[[JsonMapping, Path], list[FieldError]],
) -> list[FieldError]:
    errors: list[FieldError] = []
    for key, entry in entries.items():
        errors += validate_qualified_name(key, path)
        errors += check(entry or {}, path.key(shortened(key, key_shown_max)))
    return errors


def shortened(text: str, limit: int) -> str:
    """Cut the middle out of a text that is too long to be shown."""
    if len(text) <= limit:
        return text
    remaining = limit - len("...")
    return f"{text[: (remaining + 1) // 2]}...{text[len(text) - remaining // 2 :]}"


def _validate_attribute(attribute: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    if attribute.get("string") is not None:
        errors += _validate_text(attribute["string"], path.child("string"))
    if attribute.get("version") is not None:
        errors += _validate_version(attribute["version"], path.child("version"))
    for name in _LISTS:
        if attribute.get(name) == []:
            errors.append(invalid(path.child(name), [], "must not be empty if specified"))
    for number, text in enumerate(attribute.get("strings") or []):
        errors += _validate_text(text, path.child("strings").at(number))
    for number, text in enumerate(attribute.get("versions") or []):
        errors += _validate_version(text, path.child("versions").at(number))
    # Two values of which one is an empty list: the declared union sees only one of them.
    given = [name for name in ATTRIBUTE_VALUES if attribute.get(name) is not None]
    if len(given) > 1 and sum(attribute[name] != [] for name in given) == 1:
        errors.append(invalid(path, dict(attribute), "exactly one value must be specified"))
    return errors


def _validate_text(text: str, path: Path) -> list[FieldError]:
    return [too_long(path, ATTRIBUTE_VALUE_MAX_BYTES)] if size(text) > ATTRIBUTE_VALUE_MAX_BYTES else []


def _validate_version(text: str, path: Path) -> list[FieldError]:
    return invalid_each(path, text, semantic_version(text)) + _validate_text(text, path)


def _validate_taints(taints: list[JsonMapping], path: Path) -> list[FieldError]:
    if len(taints) > TAINTS_MAX:
        return [too_many(path, len(taints), TAINTS_MAX)]
    return [error for number, taint in enumerate(taints) for error in validate_taint(taint, path.at(number))]


def validate_taint(taint: JsonMapping, path: Path) -> list[FieldError]:
    """Check key and value of a device taint; its effect is a declared rule."""
    key, value = taint.get("key") or "", taint.get("value") or ""
    errors = invalid_each(path.child("key"), key, label_key(key))
    return errors + invalid_each(path.child("value"), value, label_value(value))


# --- counters and partitions -------------------------------------------------------------


def _validate_counter_sets(counter_sets: list[JsonMapping]) -> list[FieldError]:
    if len(counter_sets) > MOST_COUNTER_SETS:
        return []
    path = _SPEC.child("sharedCounters")
    return [
        error
        for number, counter_set in enumerate(counter_sets)
        for error in _validate_counters(counter_set, path.at(number))
    ]


def _validate_consumed_counters(consumptions: list[JsonMapping], path: Path) -> list[FieldError]:
    if len(consumptions) > CONSUMED_COUNTER_SETS_MAX:
        return []
    return [
        error
        for number, consumption in enumerate(consumptions)
        for error in _validate_counters(consumption, path.at(number))
    ]


def _validate_counters(holder: JsonMapping, path: Path) -> list[FieldError]:
    counters = holder.get("counters") or {}
    return (
        [too_many(path.child("counters"), len(counters), COUNTERS_MAX)]
        if len(counters) > COUNTERS_MAX
        else []
    )


def _validate_partition_types(spec: JsonMapping, name: str) -> list[FieldError]:
    """Check that each device that consumes counters says, as a text, which partition type it is."""
    devices = spec.get("devices") or []
    if not any(device.get("consumesCounters") for device in devices):
        detail = "may only be set on a slice which declares devices that consume counters"
        return [invalid(_SPEC.child("partitionTypeAttribute"), name, detail)]
    # A malformed name is a declared error; no device could carry it. Upper case is judged mildly here, so
    # that a name may be refused and missed at once.
    if "/" not in name or validate_qualified_name(name, _SPEC):
        return []
    bare_name = name.removeprefix(f"{spec.get('driver') or ''}/")
    errors: list[FieldError] = []
    for number, device in enumerate(devices):
        if not device.get("consumesCounters"):
            continue
        attributes = device.get("attributes") or {}
        attribute = attributes.get(name, attributes.get(bare_name))
        path = _SPEC.child("devices").at(number).child("attributes").key(name)
        if attribute is None:
            detail = "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set"
            errors.append(required(path, detail))
        elif attribute.get("string") is None:
            detail = "must be a string value because `partitionTypeAttribute` names this attribute"
            errors.append(invalid(path, attribute, detail))
    return errors


# --- node allocatable resources ----------------------------------------------------------


def _validate_node_allocatable(
    name: str, resource: JsonMapping, capacity: JsonMapping, path: Path
) -> list[FieldError]:
    errors: list[FieldError] = []
    if name not in ("cpu", "memory") and not name.startswith("hugepages-"):
        errors.append(invalid(path, name, "must be a node allocatable resource name"))
    mapping, overhead = resource.get("mapping"), resource.get("overhead")
    if mapping is None and overhead is None:
        errors.append(required(path, "at least one of mapping or overhead must be set"))
    if mapping is not None:
        errors += _validate_mapping(mapping, capacity, path.child("mapping"))
    if overhead is not None:
        errors += _validate_overhead(overhead, path.child("overhead"))
    return errors


def _validate_mapping(mapping: JsonMapping, capacity: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    key, multiplier = mapping.get("capacityKey"), mapping.get("capacityMultiplier")
    if key is not None:
        if key == "":
            errors.append(invalid(path.child("capacityKey"), "", "capacityKey must not be an empty string"))
        elif key not in capacity:
            errors.append(not_found(path.child("capacityKey"), key))
        if multiplier is None:
            detail = "capacityMultiplier is required when capacityKey is set"
            errors.append(required(path.child("capacityMultiplier"), detail))
        else:
            errors += _must_be(path.child("capacityMultiplier"), multiplier, "must be positive", minimum=1)
    elif multiplier is not None:
        errors.append(
            required(path.child("capacityKey"), "capacityKey is required when capacityMultiplier is set")
        )
    if mapping.get("deviceMultiplier") is not None:
        errors += _must_be(
            path.child("deviceMultiplier"), mapping["deviceMultiplier"], "must be positive", minimum=1
        )
    return errors


def _validate_overhead(overhead: JsonMapping, path: Path) -> list[FieldError]:
    given = [name for name in ("perPod", "perContainer") if overhead.get(name) is not None]
    if not given:
        return [invalid(path, "", "at least one of perPod or perContainer must be set")]
    return [
        error
        for name in given
        for error in _must_be(path.child(name), overhead[name], "must be non-negative", minimum=0)
    ]


def _must_be(path: Path, text: Any, detail: str, *, minimum: int) -> list[FieldError]:
    quantity: Quantity = parse_quantity(text)
    return [] if quantity.sign >= minimum else [invalid(path, str(quantity), detail)]
