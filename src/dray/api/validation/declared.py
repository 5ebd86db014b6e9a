"""Rules that stand in the schema: required, sizes, formats, enumerations, uniqueness, unions.

Kubernetes validates twice. Hand-written code checks objects in the shape in
which they are stored; rules declared next to the fields are checked in the
shape of the version that the client used, only where something changed. Both
kinds of errors are reported together, which is why paths of old versions mix
two styles (`requests[0].allocationMode` beside `requests[0].exactly.count`).

Theory of operation: a `Declared` says what the schema declares of one field;
the tables in `resource_rules.py` nest them into the tree of a kind. `check`
walks tree and value together. A field that is absent or broken in size stops
the walk there; a field equal to its old value is not looked at again.
`in_version` at last rewrites the paths to the shape of the client's version.

Invariant: an object that did not change has no declared errors
(tests/unit/api/test_validation_basics.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dray.api.features import Features
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
    too_many,
)
from dray.api.validation.formats import Format, c_identifier, label_key, long_name, size

Check = Callable[[Any, Path], list[FieldError]]


@dataclass(frozen=True, slots=True)
class Declared:
    """What the schema declares of one field. Everything left out is free."""

    required: bool = False
    nullable: bool = False  # null means absent, and only null: "", 0 and {} are values
    immutable: bool = False  # may not change after creation
    write_once: bool = False  # may be set and cleared, but not modified
    gate: str = ""  # while this gate is off the field is forbidden
    max_items: int | None = None
    unique_by: tuple[str, ...] | None = None  # keys that tell items apart; () compares whole items
    checks: tuple[Check, ...] = ()
    each_key: Check | None = None  # on keys of a map; errors are reported on the map
    each: Declared | None = None  # on items of a list or values of a map
    fields: Mapping[str, Declared] = field(default_factory=dict)
    union: tuple[str, ...] = ()  # exactly one of these fields must be set
    may_be_absent: bool = field(init=False)  # nothing is to be said about a new object without the field

    def __post_init__(self) -> None:
        free = not self.required and (self.nullable or not (self.fields or self.union))
        object.__setattr__(self, "may_be_absent", free)


# --- checks of single values -------------------------------------------------------------


def formatted(text_format: Format) -> Check:
    """Make a check from a text format."""
    return lambda value, path: invalid_each(path, value, text_format(value))


def one_of(*words: str) -> Check:
    """Make a check that admits only these words."""
    return lambda value, path: [] if value in words else [not_supported(path, value, words)]


def at_least(minimum: int) -> Check:
    """Make a check of a lower bound."""
    detail = f"must be greater than or equal to {minimum}"
    return lambda value, path: [invalid(path, value, detail)] if value < minimum else []


def at_most(maximum: int) -> Check:
    """Make a check of an upper bound."""
    detail = f"must be less than or equal to {maximum}"
    return lambda value, path: [invalid(path, value, detail)] if value > maximum else []


def max_bytes(limit: int) -> Check:
    """Make a check of the encoded size of a text."""
    return lambda value, path: [too_long(path, limit)] if size(value) > limit else []


def max_length(limit: int) -> Check:
    """Make a check of the number of characters of a string."""
    return lambda value, path: [too_long(path, limit, "characters")] if len(value) > limit else []


def pool_name(value: str, path: Path) -> list[FieldError]:
    """Check a pool name: DNS subdomains joined by slashes."""
    errors = [too_long(path, 253)] if size(value) > 253 else []
    for number, part in enumerate(value.split("/")):
        if not part:
            errors.append(invalid(path, value, f"segment {number}: must not be empty"))
        else:
            errors += invalid_each(
                path, part, (f"segment {number}: {problem}" for problem in long_name(part))
            )
    return errors


def fully_qualified_name(value: str, path: Path) -> list[FieldError]:
    """Check the name of an attribute with its domain: `gpu.vendor.test/model`."""
    errors: list[FieldError] = []
    parts = value.split("/")
    if len(parts) == 1:
        errors += _identifier(value, path)
    elif len(parts) == 2:
        domain, name = parts
        if not domain:
            errors.append(invalid(path, "", "prefix must not be empty"))
        else:
            if size(domain) > 63:
                errors.append(too_long(path, 63))
            errors += invalid_each(path, domain, (f"prefix: {problem}" for problem in long_name(domain)))
        errors += _identifier(name, path) if name else [invalid(path, "", "name must not be empty")]
    # Names with more than one slash pass: the reference does not look at them either.
    if len(parts) == 1:
        detail = "a fully qualified name must be a domain and a name separated by a slash"
        errors.append(invalid(path, value, detail))
    return errors


def _identifier(value: str, path: Path) -> list[FieldError]:
    errors = [too_long(path, 32)] if size(value) > 32 else []
    return errors + invalid_each(path, value, c_identifier(value))


def extended_resource_name(value: str, path: Path) -> list[FieldError]:
    """Check a resource name outside the `kubernetes.io` domain, usable in quotas."""
    errors = []
    if "/" not in value:
        detail = "a name must be a domain-prefixed path, such as 'example.com/my-prop'"
        errors.append(invalid(path, value, detail))
    elif "kubernetes.io/" in value:
        errors.append(invalid(path, value, 'must not have "kubernetes.io/" domain'))
    if value.startswith("requests."):
        errors.append(invalid(path, value, 'must not have "requests." prefix'))
    return errors + invalid_each(path, value, label_key(f"requests.{value}"))


# --- the walk ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    features: Features
    is_update: bool

    def check(self, rule: Declared, value: Any, old: Any, path: Path, correlated: bool) -> list[FieldError]:
        """Check one field; `correlated` says that `old` is what stood in its place."""
        if self.is_update and correlated:
            # For an object that can be null, null and {} are different things.
            if is_same(value, old) and (not rule.nullable or (value is None) == (old is None)):
                return []
            if rule.immutable:
                return [invalid(path, None, "field is immutable")]
            if rule.write_once and value is not None and old is not None:
                return [invalid(path, None, "field cannot be modified once set")]
        # A text that is not empty is there, whatever the rule; most values are such.
        if (type(value) is not str or not value) and _is_absent(rule, value):
            return [required(path)] if rule.required else []
        if value is None:
            value = {}
        if rule.gate and rule.gate not in self.features:
            return [forbidden(path, "")]
        if rule.max_items is not None and len(value) > rule.max_items:
            return [too_many(path, len(value), rule.max_items)]
        errors: list[FieldError] = []
        for check in rule.checks:
            errors += check(value, path)
        if isinstance(value, list):
            errors += self._check_list(rule, value, old if isinstance(old, list) else [], path)
        elif isinstance(value, dict):
            errors += self._check_object(
                rule, value, old if isinstance(old, dict) else {}, path, old is not None
            )
        return errors

    def _check_list(
        self, rule: Declared, items: list[Any], old_items: list[Any], path: Path
    ) -> list[FieldError]:
        errors: list[FieldError] = []
        keys: list[str] = []
        if rule.unique_by is not None or (old_items and rule.each is not None):
            keys = [_key(rule.unique_by or (), item) for item in items]
        if rule.unique_by is not None and len(set(keys)) < len(keys):
            first = {key: number for number, key in reversed(list(enumerate(keys)))}
            repeated = (number for number, key in enumerate(keys) if first[key] != number)
            errors += [duplicate(path.at(number), items[number]) for number in repeated]
        if rule.each is None:
            return errors
        old_by_key = {_key(rule.unique_by or (), item): item for item in old_items}
        for number, item in enumerate(items):
            old = old_by_key.get(keys[number]) if old_by_key else None
            errors += self.check(rule.each, item, old, path.at(number), old is not None)
        return errors

    def _check_object(
        self, rule: Declared, value: dict[str, Any], old: dict[str, Any], path: Path, correlated: bool
    ) -> list[FieldError]:
        errors: list[FieldError] = []
        if rule.union:
            errors += _check_union(rule, value, path)
        if rule.each_key is not None:
            errors += [error for key in value for error in rule.each_key(key, path)]
        if rule.each is not None:
            for key, item in value.items():
                errors += self.check(rule.each, item, old.get(key), path.key(key), key in old)
        for name, inner in rule.fields.items():
            item, before = value.get(name), old.get(name)
            # What is not there and need not be is most of every object; so is what nobody touched.
            if item is before and ((correlated and self.is_update) or (item is None and inner.may_be_absent)):
                continue
            errors += self.check(inner, item, before, path.child(name), correlated)
        return errors


def _is_absent(rule: Declared, value: Any) -> bool:
    if rule.nullable:
        return value is None
    # An object that cannot be null is there even when nobody wrote it down.
    if rule.fields or rule.union:
        return False
    return value is None or value == "" or value == [] or value == {} or (value == 0 and value is not False)


def _check_union(rule: Declared, value: dict[str, Any], path: Path) -> list[FieldError]:
    given = [name for name in rule.union if value.get(name) is not None and value[name] != []]
    if len(given) == 1:
        return []
    listed = ", ".join(f"`{name}`" for name in rule.union)
    if not given:
        return [invalid(path, "", f"must specify one of: {listed}")]
    return [invalid(path, f"{{{', '.join(given)}}}", f"must specify exactly one of: {listed}")]


def _key(names: tuple[str, ...], item: Any) -> str:
    if names:
        inner = item if isinstance(item, dict) else {}
        return repr([inner.get(name) or "" for name in names])
    return item if isinstance(item, str) else repr(item)


def check_declared(
    rule: Declared,
    new: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    *,
    features: Features,
    version: str,
) -> list[FieldError]:
    """Check an object against the schema of its kind; without `old` it is new."""
    walk = _Walk(features, is_update=old is not None)
    errors = walk._check_object(rule, dict(new), dict(old or {}), Path(""), correlated=old is not None)
    return [replace(error, field=in_version(error.field, version), declared=True) for error in errors]


# --- paths of old versions ---------------------------------------------------------------

_EXACT_REQUEST = re.compile(r"(\bdevices\.requests\[\d+\])\.exactly\.")
_DEVICE_OF_SLICE = re.compile(r"^(spec\.devices\[\d+\])\.")


def in_version(path: str, version: str) -> str:
    """Return a path of the stored shape in the shape of an API version.

    >>> in_version("spec.devices.requests[0].exactly.allocationMode", "v1beta1")
    'spec.devices.requests[0].allocationMode'
    >>> in_version("spec.devices[3].taints[0].effect", "v1beta1")
    'spec.devices[3].basic.taints[0].effect'
    """
    if version != "v1beta1":
        return path
    path = _EXACT_REQUEST.sub(r"\1.", path)
    return _DEVICE_OF_SLICE.sub(r"\1.basic.", path)
