"""Volumes, their claims, classes, drivers and attachments: the rules that hold for every driver.

What a single volume plugin asks of its own fields (a path of NFS, a disk of a cloud) is checked
for host paths, local and CSI volumes only: no other volume can be used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.quantity import QuantityError, parse_quantity
from dray.api.schema import struct_of
from dray.api.validation.context import ValidationContext
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
from dray.api.validation.formats import LABEL_MAX, dns_subdomain, label_key, size
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_immutable,
    validate_new_metadata,
)
from dray.api.validation.selectors import validate_label_selector, validate_node_selector

_SPEC = Path("spec")
_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_VOLUME_MODES = ("Block", "Filesystem")
_RECLAIM = ("Delete", "Recycle", "Retain")
_BINDING_MODES = ("Immediate", "WaitForFirstConsumer")
_NODE_ID_MAX = 256
_PARAMETERS_MOST = 512
_PARAMETERS_SIZE = 256 * 1024  # bytes, keys and values together
_NEGATIVE = "must be greater than or equal to 0"
_CLASS_IMMUTABLE = ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")


def _volume_sources() -> tuple[str, ...]:
    fields = struct_of("core", "v1", "PersistentVolumeSpec").fields.values()
    return tuple(field.name for field in fields if len(field.number) == 2)


# --- claims -----------------------------------------------------------------------------


def validate_volume_claim(claim: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new PersistentVolumeClaim."""
    return validate_new_metadata(metadata_of(claim), namespaced=True) + _claim_spec(claim.get("spec") or {})


def validate_volume_claim_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed claim: what it asks for stays, but a bound claim may ask for more."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors += _claim_spec(spec)
    same = dict(spec)
    if not before.get("volumeName"):
        same.pop("volumeName", None)
    if before.get("storageClassName") is None:
        same.pop("storageClassName", None)
    same.pop("volumeAttributesClassName", None)
    is_bound = (old.get("status") or {}).get("phase") == "Bound"
    if is_bound:
        same["resources"] = before.get("resources") or {}
    compared = {
        name: part
        for name, part in before.items()
        if name in same or name not in ("volumeAttributesClassName",)
    }
    if not is_same(same, compared):
        why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        errors.append(forbidden(_SPEC, why))
    has = ((old.get("status") or {}).get("capacity") or {}).get("storage")
    if (
        is_bound
        and has is not None
        and _storage(spec) < _storage(before)
        and _storage(spec) <= parse_quantity(has)
    ):
        path = _SPEC.child("resources", "requests", "storage")
        errors.append(forbidden(path, "field can not be less than status.capacity"))
    return errors


def _storage(spec: JsonMapping) -> Any:
    try:
        return parse_quantity(((spec.get("resources") or {}).get("requests") or {}).get("storage") or 0)
    except QuantityError:
        return parse_quantity(0)


def _claim_spec(spec: JsonMapping) -> list[FieldError]:
    modes = spec.get("accessModes") or []
    errors: list[FieldError] = []
    if not modes:
        errors.append(required(_SPEC.child("accessModes"), "at least 1 access mode is required"))
    if spec.get("selector") is not None:
        errors += validate_label_selector(spec["selector"], _SPEC.child("selector"))
    errors += _access_modes(modes)
    path = _SPEC.child("resources").key("storage")
    if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
        errors.append(required(path))
    elif _storage(spec) <= parse_quantity(0):
        amount = spec["resources"]["requests"]["storage"]
        errors.append(invalid(path, str(amount), "must be greater than zero"))
    name = spec.get("storageClassName") or ""
    errors += invalid_each(_SPEC.child("storageClassName"), name, dns_subdomain(name)) if name else []
    if spec.get("volumeMode") is not None and spec["volumeMode"] not in _VOLUME_MODES:
        errors.append(not_supported(_SPEC.child("volumeMode"), spec["volumeMode"], _VOLUME_MODES))
    return errors


def _access_modes(modes: Sequence[str]) -> list[FieldError]:
    path = _SPEC.child("accessModes")
    errors = [not_supported(path, mode, _ACCESS_MODES) for mode in modes if mode not in _ACCESS_MODES]
    others = [mode for mode in modes if mode in _ACCESS_MODES and mode != "ReadWriteOncePod"]
    if others and "ReadWriteOncePod" in modes:
        errors.append(forbidden(path, "may not use ReadWriteOncePod with other access modes"))
    return errors


# --- volumes ----------------------------------------------------------------------------


def validate_volume(volume: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new PersistentVolume."""
    return validate_new_metadata(metadata_of(volume), namespaced=False) + _volume_spec(
        volume.get("spec") or {}
    )


def validate_volume_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed volume: where its data is stays."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors += _volume_spec(spec)
    if any(not is_same(spec.get(name), before.get(name)) for name in _volume_sources()):
        why = "spec.persistentvolumesource is immutable after creation"
        errors.append(forbidden(_SPEC.child("persistentvolumesource"), why))
    errors += validate_immutable(spec.get("volumeMode"), before.get("volumeMode"), Path("volumeMode"))
    if before.get("nodeAffinity") is not None:
        errors += validate_immutable(spec.get("nodeAffinity"), before["nodeAffinity"], Path("nodeAffinity"))
    return errors


def _volume_spec(spec: JsonMapping) -> list[FieldError]:
    errors: list[FieldError] = []
    modes, capacity = spec.get("accessModes") or [], spec.get("capacity") or {}
    if not modes:
        errors.append(required(_SPEC.child("accessModes")))
    errors += _access_modes(modes)
    if not capacity:
        errors.append(required(_SPEC.child("capacity")))
    if set(capacity) != {"storage"}:
        errors.append(not_supported(_SPEC.child("capacity"), capacity, ("storage",)))
    else:
        path = _SPEC.child("capacity").key("storage")
        errors += _not_negative(capacity["storage"], path)
        if parse_quantity(capacity["storage"]) <= parse_quantity(0):
            errors.append(invalid(path, str(capacity["storage"]), "must be greater than zero"))
    policy = spec.get("persistentVolumeReclaimPolicy") or "Retain"
    if policy not in _RECLAIM:
        errors.append(not_supported(_SPEC.child("persistentVolumeReclaimPolicy"), policy, _RECLAIM))
    affinity = (spec.get("nodeAffinity") or {}).get("required")
    if affinity is not None:
        errors += validate_node_selector(affinity, _SPEC.child("nodeAffinity", "required"))
    elif spec.get("nodeAffinity") is not None:
        why = "must specify required node constraints"
        errors.append(required(_SPEC.child("nodeAffinity", "required"), why))
    errors += _source(spec, affinity)
    name = spec.get("storageClassName") or ""
    errors += invalid_each(_SPEC.child("storageClassName"), name, dns_subdomain(name)) if name else []
    if spec.get("volumeMode") is not None and spec["volumeMode"] not in _VOLUME_MODES:
        errors.append(not_supported(_SPEC.child("volumeMode"), spec["volumeMode"], _VOLUME_MODES))
    return errors


def _source(spec: JsonMapping, affinity: JsonMapping | None) -> list[FieldError]:
    named = [name for name in _volume_sources() if spec.get(name) is not None]
    if not named:
        return [required(_SPEC, "must specify a volume type")]
    errors = [forbidden(_SPEC.child(name), "may not specify more than 1 volume type") for name in named[1:]]
    source, path = spec[named[0]], _SPEC.child(named[0])
    if named[0] in ("hostPath", "local"):
        place = source.get("path") or ""
        if not place:
            errors.append(required(path.child("path")))
        elif ".." in place.split("/"):
            errors.append(invalid(path.child("path"), place, "must not contain '..'"))
        if named[0] == "local" and affinity is None:
            errors.append(required(_SPEC.child("nodeAffinity"), "Local volume requires node affinity"))
    elif named[0] == "csi":
        errors += [required(path.child(part)) for part in ("driver", "volumeHandle") if not source.get(part)]
    return errors


# --- storage.k8s.io ---------------------------------------------------------------------


def validate_storage_class(found: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new StorageClass."""
    errors = validate_new_metadata(metadata_of(found), namespaced=False)
    provisioner = found.get("provisioner") or ""
    if provisioner:
        errors += invalid_each(Path("provisioner"), provisioner.lower(), label_key(provisioner.lower()))
    else:
        errors.append(required(Path("provisioner")))
    errors += _parameters(found.get("parameters") or {})
    policy, mode = found.get("reclaimPolicy"), found.get("volumeBindingMode")
    if policy is not None and policy not in ("Delete", "Retain"):
        errors.append(not_supported(Path("reclaimPolicy"), policy, ("Delete", "Retain")))
    if mode is None:
        errors.append(required(Path("volumeBindingMode")))
    elif mode not in _BINDING_MODES:
        errors.append(not_supported(Path("volumeBindingMode"), mode, _BINDING_MODES))
    return errors


def validate_storage_class_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed class: what volumes are made of stays."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    changed = [name for name in _CLASS_IMMUTABLE if not is_same(new.get(name), old.get(name))]
    return errors + [invalid(Path(name), None, "field is immutable") for name in changed]


def validate_csi_node(node: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a CSINode."""
    errors = validate_new_metadata(metadata_of(node), namespaced=False)
    seen: set[str] = set()
    for number, driver in enumerate((node.get("spec") or {}).get("drivers") or ()):
        path, name = _SPEC.child("drivers").at(number), driver.get("name") or ""
        errors += _csi_driver_name(name, path.child("name")) + _node_id(driver, path.child("nodeID"))
        count = (driver.get("allocatable") or {}).get("count")
        if count is not None and count < 0:
            errors.append(invalid(path.child("allocatable", "count"), count, _NEGATIVE))
        if name in seen:
            errors.append(duplicate(path.child("name"), name))
        seen.add(name)
        errors += _topology_keys(driver.get("topologyKeys") or (), path)
    return errors


def _csi_driver_name(name: str, path: Path) -> list[FieldError]:
    if not name:
        return [required(path)]
    errors = [too_long(path, LABEL_MAX)] if size(name) > LABEL_MAX else []
    return errors + invalid_each(path, name, dns_subdomain(name.lower()))


def _node_id(driver: JsonMapping, path: Path) -> list[FieldError]:
    node_id = driver.get("nodeID") or ""
    if not node_id:
        return [required(path)]
    if size(node_id) > _NODE_ID_MAX:
        return [invalid(path, node_id, f"must be {_NODE_ID_MAX} characters or less")]
    return []


def _topology_keys(keys: Sequence[str], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for key in keys:
        if not key:
            errors.append(required(path))
        if key in seen:
            errors.append(duplicate(path, key))
        seen.add(key)
        errors += invalid_each(path, key, label_key(key))
    return errors


def _parameters(parameters: JsonMapping) -> list[FieldError]:
    path = Path("parameters")
    if len(parameters) > _PARAMETERS_MOST:
        return [too_long(path, _PARAMETERS_MOST)]
    errors = [invalid(path, "", "field can not be empty.")] if "" in parameters else []
    if sum(size(key) + size(value) for key, value in parameters.items()) > _PARAMETERS_SIZE:
        errors.append(too_long(path, _PARAMETERS_SIZE))
    return errors


def _not_negative(amount: Any, path: Path) -> list[FieldError]:
    return [invalid(path, str(amount), _NEGATIVE)] if parse_quantity(amount) < parse_quantity(0) else []


def validate_attachment(attachment: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new VolumeAttachment."""
    spec = attachment.get("spec") or {}
    errors = validate_new_metadata(metadata_of(attachment), namespaced=False)
    errors += _csi_driver_name(spec.get("attacher") or "", _SPEC.child("attacher"))
    node_name = spec.get("nodeName") or ""
    errors += invalid_each(_SPEC.child("nodeName"), node_name, dns_subdomain(node_name))
    source, path = spec.get("source") or {}, _SPEC.child("source")
    name, inline = source.get("persistentVolumeName"), source.get("inlineVolumeSpec")
    why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    if name is None and inline is None:
        errors.append(required(path, why))
    elif name is not None and inline is not None:
        errors.append(forbidden(path, why))
    if name is not None:
        path = path.child("persistentVolumeName")
        errors += [] if name else [required(path, "must specify non empty persistentVolumeName")]
        errors += invalid_each(path, name, dns_subdomain(name))
    return errors


def validate_attachment_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed VolumeAttachment: what is attached where stays."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    if not is_same(new.get("spec"), old.get("spec")):
        errors.append(invalid(_SPEC, new.get("spec"), "field is immutable"))
    return errors


def validate_capacity(capacity: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a CSIStorageCapacity."""
    errors = validate_new_metadata(metadata_of(capacity), namespaced=True)
    name = capacity.get("storageClassName") or ""
    errors += invalid_each(Path("storageClassName"), name, dns_subdomain(name))
    if capacity.get("nodeTopology") is not None:
        errors += validate_label_selector(capacity["nodeTopology"], Path("nodeTopology"))
    if capacity.get("capacity") is not None:
        errors += _not_negative(capacity["capacity"], Path("capacity"))
    return errors
