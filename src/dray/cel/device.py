"""A device as expressions see it: attributes and capacities sorted by domain."""

from __future__ import annotations

from collections.abc import Mapping

from dray.api.quantity import parse_quantity
from dray.api.resource import DeviceAttribute, DeviceCapacity
from dray.api.semver import SemverError, parse_semver
from dray.cel.values import Domains


class DeviceInput:
    """What one device offers to expressions; built once per slice update, then only read.

    `poison` is the error that every evaluation on this device ends with: an attribute
    without a value makes the whole device unreadable.
    """

    __slots__ = ("allow_multiple_allocations", "attributes", "capacity", "driver", "poison", "variables")

    def __init__(
        self,
        driver: str,
        attributes: Domains,
        capacity: Domains,
        *,
        allow_multiple_allocations: bool,
        poison: str,
    ) -> None:
        self.driver = driver
        self.attributes = attributes
        self.capacity = capacity
        self.allow_multiple_allocations = allow_multiple_allocations
        self.poison = poison
        self.variables: dict[str, object] = {
            "device": {
                "driver": driver,
                "allowMultipleAllocations": allow_multiple_allocations,
                "attributes": attributes,
                "capacity": capacity,
            }
        }

    @classmethod
    def build(
        cls,
        driver: str,
        attributes: Mapping[str, DeviceAttribute] | None,
        capacity: Mapping[str, DeviceCapacity] | None,
        allow_multiple_allocations: bool | None = None,
    ) -> DeviceInput:
        """Flatten the wire form; names without a domain belong to the driver's."""
        poison = ""
        by_domain = Domains()
        for name, attribute in (attributes or {}).items():
            try:
                value = attribute_value(attribute)
            except ValueError as error:
                poison = poison or f"attribute {name}: {error}"
                continue
            _put(by_domain, name, driver, value)
        capacities = Domains()
        for name, amount in (capacity or {}).items():
            _put(capacities, name, driver, parse_quantity(amount.value))
        return cls(
            driver,
            by_domain,
            capacities,
            allow_multiple_allocations=bool(allow_multiple_allocations),
            poison=poison,
        )


def _put(domains: Domains, name: str, driver: str, value: object) -> None:
    domain, slash, identifier = name.partition("/")
    if not slash:
        domain, identifier = driver, name
    inner = domains.get(domain)
    if not isinstance(inner, dict):
        inner = domains[domain] = {}
    inner[identifier] = value


def attribute_value(attribute: DeviceAttribute) -> object:
    """Return the one value of an attribute; raise ValueError if it has none."""
    if attribute.ints is not None:
        return list(attribute.ints)
    if attribute.bools is not None:
        return list(attribute.bools)
    if attribute.strings is not None:
        return list(attribute.strings)
    if attribute.versions is not None:
        return [_version(text) for text in attribute.versions]
    for value in (attribute.int_value, attribute.bool_value, attribute.string):
        if value is not None:
            return value
    if attribute.version is not None:
        return _version(attribute.version)
    raise ValueError("unsupported attribute value")


def _version(text: str) -> object:
    try:
        return parse_semver(text)
    except SemverError as error:
        raise ValueError(f"parse semantic version: {error}") from None
