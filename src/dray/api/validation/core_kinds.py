"""Small kinds of the core group: Namespace, ConfigMap, Secret, ServiceAccount; and Lease."""

from __future__ import annotations

import base64
import binascii

from dray.api.json_types import JsonMapping
from dray.api.parsing import parse_json
from dray.api.validation.context import ValidationContext
from dray.api.validation.equality import is_same
from dray.api.validation.fields import FieldError, Path, forbidden, invalid, invalid_each, required, too_long
from dray.api.validation.formats import config_key, dns_label, label_key, size
from dray.api.validation.metadata import (
    STANDARD_FINALIZERS,
    metadata_of,
    validate_changed_metadata,
    validate_immutable,
    validate_new_metadata,
)

DATA_MAX_BYTES = 1024 * 1024
_SERVICE_ACCOUNT = "kubernetes.io/service-account.name"
# Type of a secret -> keys it cannot do without.
_REQUIRED_KEYS = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}


def validate_namespace(namespace: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new namespace."""
    errors = validate_new_metadata(metadata_of(namespace), namespaced=False, name_format=dns_label)
    return errors + _validate_namespace_finalizers(namespace, with_index=False)


def validate_namespace_status(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check the phase of a namespace: it follows from being deleted or not."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    phase, deleted = (new.get("status") or {}).get("phase") or "", metadata_of(new).get("deletionTimestamp")
    wanted = "Terminating" if deleted else "Active"
    if phase != wanted:
        condition = "is not empty" if deleted else "is empty"
        detail = f"may only be '{wanted}' if `deletionTimestamp` {condition}"
        errors.append(invalid(Path("status.Phase"), phase, detail))
    return errors


def validate_namespace_finalize(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check the finalizers that remain on a namespace (subresource `finalize`)."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    return errors + _validate_namespace_finalizers(new, with_index=True)


def _validate_namespace_finalizers(namespace: JsonMapping, *, with_index: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    for number, name in enumerate((namespace.get("spec") or {}).get("finalizers") or []):
        path = Path("spec.finalizers")
        here = path.at(number) if with_index else path
        errors += invalid_each(here, name, label_key(name))
        if "/" not in name and name not in STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(invalid(here, name, detail))
    return errors


# --- ConfigMap and Secret ----------------------------------------------------------------


def validate_config_map(config_map: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new ConfigMap."""
    errors = validate_new_metadata(metadata_of(config_map), namespaced=True)
    data, binary = config_map.get("data") or {}, config_map.get("binaryData") or {}
    for field, entries in (("data", data), ("binaryData", binary)):
        for key in entries:
            errors += invalid_each(Path(field).key(key), key, config_key(key))
    for key in data:
        if key in binary:
            errors.append(invalid(Path("data").key(key), key, "duplicate of key present in binaryData"))
    total = sum(size(text or "") for text in data.values()) + sum(map(_decoded_size, binary.values()))
    if total > DATA_MAX_BYTES:
        errors.append(too_long(Path(""), DATA_MAX_BYTES))
    return errors


def validate_config_map_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed ConfigMap; an immutable one keeps its data."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    return errors + _keep_if_immutable(new, old, ("data", "binaryData")) + validate_config_map(new, context)


def validate_secret(secret: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new Secret."""
    errors = validate_new_metadata(metadata_of(secret), namespaced=True)
    data, path = secret.get("data") or {}, Path("data")
    for key in data:
        errors += invalid_each(path.key(key), key, config_key(key))
    if sum(map(_decoded_size, data.values())) > DATA_MAX_BYTES:
        errors.append(too_long(path, DATA_MAX_BYTES))
    return errors + _validate_secret_type(secret, data, path)


def validate_secret_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed Secret; its type stays."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    errors += validate_immutable(new.get("type"), old.get("type"), Path("type"))
    return errors + _keep_if_immutable(new, old, ("data",)) + validate_secret(new, context)


def _validate_secret_type(secret: JsonMapping, data: JsonMapping, path: Path) -> list[FieldError]:
    kind = secret.get("type") or ""
    if kind == "kubernetes.io/service-account-token":
        if (metadata_of(secret).get("annotations") or {}).get(_SERVICE_ACCOUNT):
            return []
        return [required(Path("metadata.annotations").key(_SERVICE_ACCOUNT))]
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & data.keys():
        return [required(path.key("username")), required(path.key("password"))]
    missing = [required(path.key(key)) for key in _REQUIRED_KEYS.get(kind, ()) if key not in data]
    if missing or not kind.startswith("kubernetes.io/docker"):
        return missing
    key = _REQUIRED_KEYS[kind][0]
    try:
        parse_json(base64.b64decode(data[key] or ""))
    except (ValueError, binascii.Error) as error:
        return [invalid(path.key(key), "<secret contents redacted>", str(error))]
    return []


def _keep_if_immutable(new: JsonMapping, old: JsonMapping, fields: tuple[str, ...]) -> list[FieldError]:
    if not old.get("immutable"):
        return []
    detail = "field is immutable when `immutable` is set"
    errors = [] if new.get("immutable") else [forbidden(Path("immutable"), detail)]
    return errors + [
        forbidden(Path(field), detail) for field in fields if not is_same(new.get(field), old.get(field))
    ]


def _decoded_size(text: str | None) -> int:
    text = text or ""
    return len(text) * 3 // 4 - text[-2:].count("=")


# --- ServiceAccount and Lease ------------------------------------------------------------


def validate_service_account(account: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new ServiceAccount."""
    return validate_new_metadata(metadata_of(account), namespaced=True)


def validate_lease(lease: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new Lease."""
    errors = validate_new_metadata(metadata_of(lease), namespaced=True, qualified_finalizers=False)
    return errors + _validate_lease_spec(lease.get("spec") or {})


def validate_lease_update(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a renewed Lease."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old), qualified_finalizers=False)
    return errors + _validate_lease_spec(new.get("spec") or {})


def _validate_lease_spec(spec: JsonMapping) -> list[FieldError]:
    errors: list[FieldError] = []
    duration, transitions, path = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions"), Path("spec")
    if duration is not None and duration <= 0:
        errors.append(invalid(path.child("leaseDurationSeconds"), duration, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        errors.append(
            invalid(path.child("leaseTransitions"), transitions, "must be greater than or equal to 0")
        )
    return errors
