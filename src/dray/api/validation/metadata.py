"""Rules of `metadata`, the same for every kind: names, labels, owners, finalizers.

On create the name must suit the kind. On update the identity of an object may
not change. A finalizer is looked at twice, as in the reference: every kind
wants a well-formed name (reported on `finalizers`), most built-in kinds also a
well-known or qualified one (reported on `finalizers[i]`; the others say
`qualified_finalizers=False`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.validation.equality import is_same
from dray.api.validation.fields import (
    FieldError,
    Path,
    forbidden,
    invalid,
    invalid_each,
    not_supported,
    required,
    too_long,
)
from dray.api.validation.formats import (
    dns_label,
    dns_subdomain,
    label_key,
    label_value,
    size,
    with_trailing_dash_masked,
)
from dray.api.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER

NameFormat = Callable[[str], list[str]]

METADATA = Path("metadata")
ANNOTATIONS_MAX_BYTES = 256 * 1024
STANDARD_FINALIZERS = frozenset({"kubernetes", ORPHAN_FINALIZER, FOREGROUND_FINALIZER})
_MOST_ERRORS = 10_000  # found in one map; an answer names fewer, and 200,000 would be 100 MB
_SUBRESOURCE_MAX_BYTES = 256
_MANAGER_MAX_BYTES = 128


def metadata_of(obj: JsonMapping) -> JsonMapping:
    """Return the metadata of an object, empty if it has none."""
    return obj.get("metadata") or {}


def validate_new_metadata(
    metadata: JsonMapping,
    *,
    namespaced: bool,
    name_format: NameFormat = dns_subdomain,
    checks_prefix: bool = True,
    qualified_finalizers: bool = True,
    path: Path = METADATA,
) -> list[FieldError]:
    """Check the metadata of a new object, after its name was generated.

    Kinds with newer rules do not judge `generateName` (`checks_prefix=False`): the name that came out of
    it is judged anyway.
    """
    errors = validate_new_name(metadata, name_format, checks_prefix=checks_prefix, path=path)
    errors += _validate_namespace(metadata.get("namespace") or "", namespaced, path.child("namespace"))
    errors += _validate_generation(metadata, path)
    errors += _validate_descriptions(metadata, path)
    if metadata.get("finalizers"):
        errors += _validate_finalizers(metadata["finalizers"], path.child("finalizers"))
        errors += _validate_qualified_finalizers(metadata, path) if qualified_finalizers else []
    if metadata.get("managedFields"):
        errors += _validate_managed_fields(metadata["managedFields"], path.child("managedFields"))
    return errors


def validate_new_name(
    metadata: JsonMapping, name_format: NameFormat, *, checks_prefix: bool = True, path: Path = METADATA
) -> list[FieldError]:
    """Check the name of a new object, and what it was generated from."""
    errors: list[FieldError] = []
    prefix, name = metadata.get("generateName") or "", metadata.get("name") or ""
    if prefix and checks_prefix:
        problems = name_format(with_trailing_dash_masked(prefix))
        errors += invalid_each(path.child("generateName"), prefix, problems)
    if not name:
        errors.append(required(path.child("name"), "name or generateName is required"))
    else:
        errors += invalid_each(path.child("name"), name, name_format(name))
    return errors


def _validate_descriptions(metadata: JsonMapping, path: Path) -> list[FieldError]:
    """Check what others say about an object: labels, annotations, owners. Most objects have few of them."""
    errors: list[FieldError] = []
    if metadata.get("labels"):
        errors += validate_labels(metadata["labels"], path.child("labels"))
    if metadata.get("annotations"):
        errors += validate_annotations(metadata["annotations"], path.child("annotations"))
    if metadata.get("ownerReferences"):
        errors += _validate_owners(metadata["ownerReferences"], path.child("ownerReferences"))
    return errors


def validate_changed_metadata(
    new: JsonMapping, old: JsonMapping, *, qualified_finalizers: bool = True, path: Path = METADATA
) -> list[FieldError]:
    """Check the metadata of an object that replaces another."""
    errors: list[FieldError] = []
    if old.get("deletionTimestamp"):
        errors += _no_new_finalizers(new.get("finalizers") or [], old.get("finalizers") or [], path)
    if not new.get("resourceVersion"):
        errors.append(invalid(path.child("resourceVersion"), "", "must be specified for an update"))
    errors += _validate_generation(new, path)
    if (new.get("generation") or 0) < (old.get("generation") or 0):
        errors.append(
            invalid(path.child("generation"), new.get("generation") or 0, "must not be decremented")
        )
    for name in _IDENTITY:
        if new.get(name) is not old.get(name):
            errors += validate_immutable(new.get(name), old.get(name), path.child(name))
    errors += _validate_descriptions(new, path)
    errors += _validate_qualified_finalizers(new, path) if qualified_finalizers else []
    if new.get("managedFields"):
        errors += _validate_managed_fields(new["managedFields"], path.child("managedFields"))
    return errors


_IDENTITY = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def validate_template_metadata(metadata: JsonMapping | None, path: Path) -> list[FieldError]:
    """Check the metadata that a template passes on: labels and annotations, nothing that names an object."""
    metadata = metadata or {}
    errors = validate_labels(metadata.get("labels"), path.child("labels"))
    errors += validate_annotations(metadata.get("annotations"), path.child("annotations"))
    for name in _NOT_IN_TEMPLATES:
        if metadata.get(name):
            shown = "uID" if name == "uid" else name
            errors.append(forbidden(path.child(shown), "cannot be set"))
    return errors


_NOT_IN_TEMPLATES = (
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
)


def validate_immutable(new: Any, old: Any, path: Path) -> list[FieldError]:
    """Refuse a change."""
    return [] if is_same(new, old) else [invalid(path, new, "field is immutable")]


def _validate_qualified_finalizers(metadata: JsonMapping, path: Path) -> list[FieldError]:
    detail = "name is neither a standard finalizer name nor is it fully qualified"
    return [
        invalid(path.child("finalizers").at(number), name, detail)
        for number, name in enumerate(metadata.get("finalizers") or [])
        if "/" not in name and name not in STANDARD_FINALIZERS
    ]


def validate_labels(labels: JsonMapping | None, path: Path) -> list[FieldError]:
    """Check keys and values of labels; both are reported on the map."""
    errors: list[FieldError] = []
    for key, value in (labels or {}).items():
        errors += invalid_each(path, key, label_key(key))
        errors += invalid_each(path, value, label_value(value or ""))
        if len(errors) > _MOST_ERRORS:
            break
    return errors


def validate_annotations(annotations: JsonMapping | None, path: Path) -> list[FieldError]:
    """Check keys of annotations (in any case) and their total size."""
    errors: list[FieldError] = []
    total = 0
    for key, value in (annotations or {}).items():
        if len(errors) <= _MOST_ERRORS:
            errors += invalid_each(path, key, label_key(key.lower()))
        total += size(key) + size(value or "")
    if total > ANNOTATIONS_MAX_BYTES:
        errors.append(too_long(path, ANNOTATIONS_MAX_BYTES))
    return errors


def _validate_namespace(namespace: str, namespaced: bool, path: Path) -> list[FieldError]:
    if not namespaced:
        return [forbidden(path, "not allowed on this type")] if namespace else []
    if not namespace:
        return [required(path)]
    return invalid_each(path, namespace, dns_label(namespace))


def _validate_generation(metadata: JsonMapping, path: Path) -> list[FieldError]:
    generation = metadata.get("generation") or 0
    if generation >= 0:
        return []
    return [invalid(path.child("generation"), generation, "must be greater than or equal to 0")]


def _validate_owners(owners: list[JsonMapping], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    controller = ""
    for number, owner in enumerate(owners):
        errors += _validate_owner(owner, path.at(number))
        if not owner.get("controller"):
            continue
        name = f"{owner.get('kind', '')}/{owner.get('name', '')}"
        if controller:
            detail = (
                'Only one reference can have Controller set to true. Found "true" in references for '
                f"{controller} and {name}"
            )
            errors.append(invalid(path, owners, detail))
        controller = controller or name
    return errors


def _validate_owner(owner: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    api_version = owner.get("apiVersion") or ""
    version_parts = api_version.split("/")
    if not api_version:
        errors.append(required(path.child("apiVersion"), "must not be empty"))
    elif len(version_parts) > 2 or not version_parts[-1]:
        errors.append(
            invalid(path.child("apiVersion"), api_version, "must be <group>/<version> or <version>")
        )
    errors += [
        required(path.child(name), "must not be empty")
        for name in ("kind", "name", "uid")
        if not owner.get(name)
    ]
    if (api_version, owner.get("kind")) == ("v1", "Event"):
        errors.append(invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"))
    return errors


def _validate_finalizers(finalizers: list[str], path: Path) -> list[FieldError]:
    errors = [error for name in finalizers for error in invalid_each(path, name, label_key(name))]
    if ORPHAN_FINALIZER in finalizers and FOREGROUND_FINALIZER in finalizers:
        errors.append(invalid(path, finalizers, "finalizer orphan and foregroundDeletion cannot be both set"))
    return errors


def _no_new_finalizers(new: list[str], old: list[str], path: Path) -> list[FieldError]:
    added = sorted(set(new) - set(old))
    if not added:
        return []
    listed = ", ".join(f'"{name}"' for name in added)
    detail = (
        "no new finalizers can be added if the object is being deleted, "
        f"found new finalizers []string{{{listed}}}"
    )
    return [forbidden(path.child("finalizers"), detail)]


def _validate_managed_fields(entries: list[JsonMapping], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for number, entry in enumerate(entries):
        if _is_sound_entry(entry):
            continue
        here = path.at(number)
        operation, fields_type = entry.get("operation") or "", entry.get("fieldsType") or ""
        if not operation:
            errors.append(required(here.child("operation"), "must not be empty"))
        elif operation not in ("Apply", "Update"):
            errors.append(not_supported(here.child("operation"), operation, ("Apply", "Update")))
        if fields_type and fields_type != "FieldsV1":
            errors.append(invalid(here.child("fieldsType"), fields_type, "must be `FieldsV1`"))
        errors += validate_field_manager(entry.get("manager") or "", here.child("manager"))
        if size(entry.get("subresource") or "") > _SUBRESOURCE_MAX_BYTES:
            errors.append(too_long(here.child("subresource"), _SUBRESOURCE_MAX_BYTES))
    return errors


def _is_sound_entry(entry: JsonMapping) -> bool:
    """Return whether there is nothing to say about an entry, as with all that the server writes itself."""
    manager, subresource = entry.get("manager") or "", entry.get("subresource") or ""
    return (
        entry.get("operation") in ("Apply", "Update")
        and (entry.get("fieldsType") or "FieldsV1") == "FieldsV1"
        and manager.isprintable()
        and size(manager) <= _MANAGER_MAX_BYTES
        and size(subresource) <= _SUBRESOURCE_MAX_BYTES
    )


def validate_field_manager(manager: str, path: Path) -> list[FieldError]:
    """Check the name under which a client owns fields."""
    errors = [too_long(path, _MANAGER_MAX_BYTES)] if size(manager) > _MANAGER_MAX_BYTES else []
    for position, letter in enumerate(manager):
        if not letter.isprintable():
            detail = f"invalid character U+{ord(letter):04X} (at position {position})"
            errors.append(invalid(path, manager, detail))
    return errors
