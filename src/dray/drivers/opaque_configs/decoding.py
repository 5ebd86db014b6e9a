"""Strict decoding of opaque parameters, with the messages of Kubernetes' strict decoder.

Drivers decode parameters into typed kinds: apiVersion and kind select the type, a field
that the type lacks is an error, and so is a value of another type. A mistake names the
field by its path below the parameters, so that a manifest can be marked at that line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*?)`(?: - at `\$\.?(?P<path>.*?)`)?$")
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*?)`)?$", re.DOTALL)


class OpaqueConfigError(ValueError):
    """Parameters that the driver refuses: what it says, and the field that is to blame."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path  # below the parameters; empty means: all of them


class Config(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all config types: unknown fields are errors."""


class ConfigKind(Config, frozen=True):
    """A config with the two fields of every API object."""

    api_version: str
    kind: str


ConfigType = TypeVar("ConfigType", bound=Config)
Kinds = Mapping[str, type[ConfigKind]]  # kind -> type


def decode(parameters: Any, api_version: str, kinds: Kinds) -> ConfigKind:
    """Decode one config; raise OpaqueConfigError for what the driver's decoder would refuse.

    >>> decode({"apiVersion": "example.com/v1", "kind": "Lamp"}, "example.com/v1", {})
    Traceback (most recent call last):
    dray.drivers.opaque_configs.decoding.OpaqueConfigError: no kind "Lamp" is registered for version "example.com/v1"
    """
    if not isinstance(parameters, dict):
        raise OpaqueConfigError("the parameters are not an object with apiVersion and kind")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if not isinstance(kind, str) or not kind:
        raise OpaqueConfigError("Object 'Kind' is missing", "kind" if "kind" in parameters else "")
    if not isinstance(version, str) or not version:
        raise OpaqueConfigError(
            "Object 'apiVersion' is missing", "apiVersion" if "apiVersion" in parameters else ""
        )
    if version != api_version or kind not in kinds:
        blame = "apiVersion" if version != api_version else "kind"
        raise OpaqueConfigError(f'no kind "{kind}" is registered for version "{version}"', blame)
    return convert_strictly(parameters, kinds[kind])


def convert_strictly(parameters: Any, wanted: type[ConfigType]) -> ConfigType:
    """Convert parameters to a type; raise OpaqueConfigError for unknown fields and values of another type."""
    try:
        return msgspec.convert(parameters, wanted)
    except msgspec.ValidationError as error:
        raise _as_strict_error(str(error)) from None


def _as_strict_error(message: str) -> OpaqueConfigError:
    unknown = _UNKNOWN.match(message)
    if unknown is not None:
        path = ".".join(part for part in (unknown["path"], unknown["field"]) if part)
        return OpaqueConfigError(f'strict decoding error: unknown field "{path}"', path)
    place = _PLACE.match(message)
    assert place is not None  # it matches everything
    path = place["path"] or ""
    where = f"{path}: " if path else ""
    return OpaqueConfigError(f"cannot decode: {where}{place['what']}", path)
