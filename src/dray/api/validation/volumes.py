"""Volumes of a pod: one source each; those that matter to this cluster are looked into."""

from __future__ import annotations

from dray.api.json_types import JsonMapping
from dray.api.quantity import QuantityError, parse_quantity
from dray.api.validation.containers import validate_descending_path, validate_field_reference
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from dray.api.validation.names import validate_driver_name, validate_label

_MODE_RULE = "must be a number between 0 and 0777 (octal), both inclusive"
_HOST_PATH_TYPES = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
_FIELD_PATHS = frozenset(
    {"metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"}
)


def validate_volumes(volumes: list[JsonMapping], path: Path) -> tuple[set[str], list[FieldError]]:
    """Check the volumes of a pod; returns the names that containers may mount, and what is wrong."""
    names: set[str] = set()
    errors: list[FieldError] = []
    for number, volume in enumerate(volumes):
        here = path.at(number)
        name = volume.get("name") or ""
        found = _validate_source(volume, here)
        found += validate_label(name, here.child("name")) if name else [required(here.child("name"))]
        if name in names:
            found.append(duplicate(here.child("name"), name))
        if not found:
            names.add(name)
        errors += found
    return names, errors


def _validate_source(volume: JsonMapping, path: Path) -> list[FieldError]:
    kinds = [kind for kind, source in volume.items() if kind != "name" and source is not None]
    if not kinds:
        return [required(path, "must specify a volume type")]
    errors = [forbidden(path.child(kind), "may not specify more than 1 volume type") for kind in kinds[1:]]
    check = _SOURCES.get(kinds[0])
    return errors + check(volume[kinds[0]], path.child(kinds[0])) if check else errors


def _validate_empty_dir(source: JsonMapping, path: Path) -> list[FieldError]:
    if source.get("sizeLimit") is None:
        return []
    try:
        if parse_quantity(source["sizeLimit"]).sign >= 0:
            return []
    except (QuantityError, TypeError):
        pass
    return [forbidden(path.child("sizeLimit"), "SizeLimit field must be a valid resource quantity")]


def _validate_host_path(source: JsonMapping, path: Path) -> list[FieldError]:
    place, kind = source.get("path") or "", source.get("type") or ""
    if not place:
        return [required(path.child("path"))]
    errors = []
    if ".." in place.split("/"):
        errors.append(invalid(path.child("path"), place, "must not contain '..'"))
    if kind not in _HOST_PATH_TYPES:
        errors.append(not_supported(path.child("type"), kind, _HOST_PATH_TYPES))
    return errors


def _validate_keys(source: JsonMapping, path: Path, name_field: str) -> list[FieldError]:
    errors = [] if source.get(name_field) else [required(path.child(name_field))]
    errors += _validate_mode(source.get("defaultMode"), path.child("defaultMode"))
    for number, item in enumerate(source.get("items") or []):
        here = path.child("items").at(number)
        errors += [required(here.child(field)) for field in ("key", "path") if not item.get(field)]
        errors += _validate_local_path(item.get("path") or "", here.child("path"))
        errors += _validate_mode(item.get("mode"), here.child("mode"))
    return errors


def _validate_mode(mode: int | None, path: Path) -> list[FieldError]:
    return [] if mode is None or 0 <= mode <= 0o777 else [invalid(path, mode, _MODE_RULE)]


def _validate_local_path(text: str, path: Path) -> list[FieldError]:
    errors = validate_descending_path(text, path)
    # ".." as a whole part was reported above; hidden names of atomic writers start with it, too.
    if text.startswith("..") and not text.startswith("../") and text != "..":
        errors.append(invalid(path, text, "must not start with '..'"))
    return errors


def _validate_secret(source: JsonMapping, path: Path) -> list[FieldError]:
    return _validate_keys(source, path, "secretName")


def _validate_config_map(source: JsonMapping, path: Path) -> list[FieldError]:
    return _validate_keys(source, path, "name")


def _validate_claim(source: JsonMapping, path: Path) -> list[FieldError]:
    return [] if source.get("claimName") else [required(path.child("claimName"))]


def _validate_csi(source: JsonMapping, path: Path) -> list[FieldError]:
    return validate_driver_name(source.get("driver") or "", path.child("driver"))


def _validate_downward(source: JsonMapping, path: Path) -> list[FieldError]:
    errors = _validate_mode(source.get("defaultMode"), path.child("defaultMode"))
    for item in source.get("items") or []:
        if not item.get("path"):
            errors.append(required(path.child("path")))
        errors += _validate_local_path(item.get("path") or "", path.child("path"))
        if item.get("fieldRef") is not None:
            errors += validate_field_reference(item["fieldRef"], path.child("fieldRef"), _FIELD_PATHS)
            if item.get("resourceFieldRef") is not None:
                detail = "fieldRef and resourceFieldRef can not be specified simultaneously"
                errors.append(invalid(path, "resource", detail))
        elif item.get("resourceFieldRef") is None:
            errors.append(required(path, "one of fieldRef and resourceFieldRef is required"))
    return errors


def _validate_projected(source: JsonMapping, path: Path) -> list[FieldError]:
    errors = _validate_mode(source.get("defaultMode"), path.child("defaultMode"))
    for number, part in enumerate(source.get("sources") or []):
        here = path.child("sources").at(number)
        given = [kind for kind, inner in part.items() if inner is not None]
        errors += [
            forbidden(here.child(kind), "may not specify more than 1 volume type per source")
            for kind in given[1:]
        ]
        if given[:1] in (["secret"], ["configMap"]):
            errors += _validate_keys(part[given[0]], here.child(given[0]), "name")
        if not given:
            errors.append(required(here, "must specify a volume type"))
    return errors


_SOURCES = {
    "emptyDir": _validate_empty_dir,
    "hostPath": _validate_host_path,
    "secret": _validate_secret,
    "configMap": _validate_config_map,
    "persistentVolumeClaim": _validate_claim,
    "csi": _validate_csi,
    "downwardAPI": _validate_downward,
    "projected": _validate_projected,
}
