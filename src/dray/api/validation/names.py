"""Names of drivers, pools, devices and attributes, as hand-written rules see them.

The declared rules in `declared.py` judge the same kinds of names where the
schema mentions them; they differ in words and in their view of upper case.
"""

from __future__ import annotations

from dray.api.validation.fields import FieldError, Path, invalid, invalid_each, required, too_long
from dray.api.validation.formats import c_identifier, dns_label, dns_subdomain, size

DRIVER_NAME_MAX = 63
POOL_NAME_MAX = 253
IDENTIFIER_MAX = 32


def validate_driver_name(name: str, path: Path) -> list[FieldError]:
    """Check the name of a driver: a DNS subdomain in any case."""
    if not name:
        return [required(path)]
    errors = [too_long(path, DRIVER_NAME_MAX)] if size(name) > DRIVER_NAME_MAX else []
    return errors + invalid_each(path, name, dns_subdomain(name.lower()))


def validate_pool_name(name: str, path: Path) -> list[FieldError]:
    """Check the name of a pool: DNS subdomains joined by slashes."""
    if not name:
        return [required(path)]
    errors = [too_long(path, POOL_NAME_MAX)] if size(name) > POOL_NAME_MAX else []
    for part in name.split("/"):
        errors += invalid_each(path, part, dns_subdomain(part))
    return errors


def validate_label(name: str, path: Path) -> list[FieldError]:
    """Check the name of a device, request or counter: a DNS label."""
    return invalid_each(path, name, dns_label(name))


def validate_subdomain(name: str, path: Path) -> list[FieldError]:
    """Check a DNS subdomain, such as the name of a class."""
    return invalid_each(path, name, dns_subdomain(name))


def validate_qualified_name(name: str, path: Path) -> list[FieldError]:
    """Check the key of an attribute or capacity: `[domain/]identifier`.

    Keys with two slashes pass, as they do in the reference.
    """
    parts = name.split("/")
    if len(parts) == 1:
        return _validate_identifier(name, path)
    if len(parts) > 2:
        return []
    domain, identifier = parts
    errors = (
        validate_driver_name(domain, path) if domain else [invalid(path, "", "the domain must not be empty")]
    )
    if not identifier:
        return [*errors, invalid(path, "", "the name must not be empty")]
    return errors + _validate_identifier(identifier, path)


def _validate_identifier(name: str, path: Path) -> list[FieldError]:
    errors = [too_long(path, IDENTIFIER_MAX)] if size(name) > IDENTIFIER_MAX else []
    return errors + invalid_each(path, name, c_identifier(name))
