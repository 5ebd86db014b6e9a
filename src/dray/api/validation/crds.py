"""CustomResourceDefinition: names, versions and the outline of structural schemas.

A definition promises a kind under a plural name, in versions of which exactly
one is stored. Schemas must be structural: every level says its type.
"""

from __future__ import annotations

from dray.api.conditions import is_true_in
from dray.api.json_types import JsonMapping
from dray.api.validation.context import ValidationContext
from dray.api.validation.fields import (
    FieldError,
    Path,
    forbidden,
    invalid,
    invalid_each,
    not_supported,
    required,
)
from dray.api.validation.formats import dns_1035_label, dns_subdomain
from dray.api.validation.metadata import (
    metadata_of,
    validate_changed_metadata,
    validate_immutable,
    validate_new_metadata,
)

_SPEC = Path("spec")
_TYPES = ("array", "boolean", "integer", "number", "object", "string")


def validate_definition(definition: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new CustomResourceDefinition."""
    spec = definition.get("spec") or {}
    names, group = spec.get("names") or {}, spec.get("group") or ""
    wanted = f"{names.get('plural') or ''}.{group}"

    def is_plural_of_group(name: str) -> list[str]:
        problems = dns_subdomain(name)
        return problems if name == wanted else [*problems, 'must be spec.names.plural+"."+spec.group']

    errors = validate_new_metadata(
        metadata_of(definition), namespaced=False, name_format=is_plural_of_group, qualified_finalizers=False
    )
    return errors + _validate_stored_versions(spec.get("versions") or []) + _validate_spec(spec)


def validate_definition_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed CustomResourceDefinition; group, scope and names of served kinds stay."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old), qualified_finalizers=False)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    errors += _validate_spec(spec)
    names, old_names = spec.get("names") or {}, old_spec.get("names") or {}
    if is_true_in(old.get("status") or {}, "Established"):
        errors += validate_immutable(spec.get("scope"), old_spec.get("scope"), _SPEC.child("scope"))
        errors += validate_immutable(names.get("kind"), old_names.get("kind"), _SPEC.child("names", "kind"))
    errors += validate_immutable(spec.get("group"), old_spec.get("group"), _SPEC.child("group"))
    return errors + validate_immutable(
        names.get("plural"), old_names.get("plural"), _SPEC.child("names", "plural")
    )


def _validate_spec(spec: JsonMapping) -> list[FieldError]:
    group, path = spec.get("group") or "", _SPEC.child("group")
    problems = dns_subdomain(group)
    errors: list[FieldError] = []
    if not group:
        errors.append(required(path))
    elif problems:
        errors.append(invalid(path, group, ",".join(problems)))
    elif "." not in group:
        errors.append(invalid(path, group, "should be a domain with at least one dot"))
    scope = spec.get("scope") or ""
    if not scope:
        errors.append(required(_SPEC.child("scope")))
    elif scope not in ("Cluster", "Namespaced"):
        errors.append(not_supported(_SPEC.child("scope"), scope, ("Cluster", "Namespaced")))
    return errors + _validate_names(spec.get("names") or {}) + _validate_versions(spec.get("versions") or [])


def _validate_names(names: JsonMapping) -> list[FieldError]:
    path = _SPEC.child("names")
    errors: list[FieldError] = []
    for field in ("plural", "singular", "kind", "listKind"):
        text = names.get(field) or ""
        if text:
            shown = text.lower() if field in ("kind", "listKind") else text
            problems = dns_1035_label(shown)
            if problems:
                detail = "may have mixed case, but should otherwise match: " if shown != text else ""
                errors.append(invalid(path.child(field), text, detail + ",".join(problems)))
        else:
            errors.append(required(path.child(field)))
    for number, name in enumerate(names.get("shortNames") or []):
        errors += invalid_each(path.child("shortNames").at(number), name, dns_1035_label(name))
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        errors.append(
            invalid(path.child("listKind"), names["listKind"], "kind and listKind may not be the same")
        )
    return errors


def _validate_versions(versions: list[JsonMapping]) -> list[FieldError]:
    path = _SPEC.child("versions")
    errors: list[FieldError] = []
    seen: set[str] = set()
    for number, version in enumerate(versions):
        here, name = path.at(number), version.get("name") or ""
        errors += invalid_each(here.child("name"), name, dns_1035_label(name))
        seen.add(name)
        if number == 0 and name and dns_1035_label(name):
            # The first version also stands where definitions once had their only one.
            errors.append(invalid(_SPEC.child("version"), name, ",".join(dns_1035_label(name))))
    errors += _validate_schemas(versions)
    if len(seen) < len(versions):
        errors.append(invalid(path, versions, "must contain unique version names"))
    if sum(bool(version.get("storage")) for version in versions) != 1:
        detail = "must have exactly one version marked as storage version"
        errors.append(invalid(path, versions, detail))
    return errors


def _validate_stored_versions(versions: list[JsonMapping]) -> list[FieldError]:
    """Check what the server notes in the status of a new definition: its first storage version."""
    path, stored = Path("status.storedVersions"), [v.get("name") for v in versions if v.get("storage")]
    if not stored:
        return [invalid(path, None, "must have at least one stored version")]
    # Each version can account for one note only, so a second storage version stands alone.
    noted = stored[:1]
    detail = "must have the storage version {}"
    return [invalid(path, noted, detail.format(name)) for name in stored[1:]]


def _validate_schemas(versions: list[JsonMapping]) -> list[FieldError]:
    """Check the schemas; where all versions share one, it is reported as the schema of the definition."""
    schemas = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    if schemas and schemas[0] is not None and all(schema == schemas[0] for schema in schemas):
        return _validate_root(schemas[0], _SPEC.child("validation", "openAPIV3Schema"))
    errors: list[FieldError] = []
    for number, schema in enumerate(schemas):
        here = _SPEC.child("versions").at(number).child("schema", "openAPIV3Schema")
        errors += [required(here, "schemas are required")] if schema is None else _validate_root(schema, here)
    return errors


def _validate_root(schema: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    if schema.get("type") != "object":
        if schema.get("type"):
            errors.append(invalid(path.child("type"), schema["type"], "must be object at the root"))
        else:
            errors.append(required(path.child("type"), "must not be empty at the root"))
    return errors + _validate_schema(schema, path, is_root=True)


def _validate_schema(schema: JsonMapping, path: Path, *, is_root: bool = False) -> list[FieldError]:
    """Check that a schema is structural, level by level."""
    errors: list[FieldError] = []
    kind = schema.get("type") or ""
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not is_root and not free:
        errors.append(required(path.child("type"), "must not be empty for specified object fields"))
    elif kind and kind not in _TYPES:
        errors.append(not_supported(path.child("type"), kind, _TYPES))
    if schema.get("properties") and schema.get("additionalProperties") not in (None, False):
        detail = "additionalProperties and properties are mutual exclusive"
        errors.append(forbidden(path.child("additionalProperties"), detail))
    for name, inner in (schema.get("properties") or {}).items():
        if is_root and name == "metadata":
            continue
        errors += _validate_schema(inner, path.child("properties").key(name))
    if isinstance(schema.get("additionalProperties"), dict):
        errors += _validate_schema(schema["additionalProperties"], path.child("additionalProperties"))
    if kind == "array" and schema.get("items") is None:
        errors.append(required(path.child("items"), "must be specified"))
    if isinstance(schema.get("items"), dict):
        errors += _validate_schema(schema["items"], path.child("items"))
    for junctor in ("allOf", "anyOf", "oneOf"):
        for number, inner in enumerate(schema.get(junctor) or []):
            if inner.get("type") and not free:
                here = path.child(junctor).at(number).child("type")
                errors.append(forbidden(here, "must be empty to be structural"))
    return errors
