"""All that crosses a wire: kinds, quantities, versions, defaults, validation, conversion, codec.

What programs that use dray as a library need is here under its own name; names are
loaded when they are first used, so that importing the package costs nothing.

  objects      `meta`, `core`, `resource`: typed views of what decisions depend on
  values       `Quantity`, `Semver`, times
  kinds        one table of everything served
  schema       every field of every kind; what `codec`, `defaults`, OpenAPI read
  codec        bytes to objects and back; `RawJson` for what is kept byte by byte
  defaults, conversion, gating, validation
               what happens to an object between request and store, in this order:
               read -> defaults -> convert to the storage version -> drop fields of
               disabled features -> validate
  rpc          the kubelet's gRPC protocols
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dray.api.codec import (
        DecodeError,
        ParseError,
        decode,
        decode_body,
        decode_list,
        decode_stored,
        encode,
        to_view,
    )
    from dray.api.conversion import convert, convert_event
    from dray.api.defaults import apply_defaults
    from dray.api.features import KNOWN_GATES, Features
    from dray.api.gating import drop_disabled_fields
    from dray.api.kinds import KINDS, Kind, kind_of, kind_of_plural
    from dray.api.parsing import parse_json, parse_yaml, parse_yaml_documents
    from dray.api.quantity import Quantity, QuantityError, canonical_quantity, parse_quantity
    from dray.api.raw_json import RawJson
    from dray.api.schema import Field, Type, schema_of
    from dray.api.semver import Semver, SemverError, parse_semver

_HOME_OF: Final[dict[str, str]] = {
    name: module
    for module, names in {
        "codec": "DecodeError ParseError decode decode_body decode_list decode_stored encode to_view",
        "conversion": "convert convert_event",
        "defaults": "apply_defaults",
        "features": "KNOWN_GATES Features",
        "gating": "drop_disabled_fields",
        "kinds": "KINDS Kind kind_of kind_of_plural",
        "parsing": "parse_json parse_yaml parse_yaml_documents",
        "quantity": "Quantity QuantityError canonical_quantity parse_quantity",
        "raw_json": "RawJson",
        "schema": "Field Type schema_of",
        "semver": "Semver SemverError parse_semver",
    }.items()
    for name in names.split()
}

__all__ = [
    "KINDS",
    "KNOWN_GATES",
    "DecodeError",
    "Features",
    "Field",
    "Kind",
    "ParseError",
    "Quantity",
    "QuantityError",
    "RawJson",
    "Semver",
    "SemverError",
    "Type",
    "apply_defaults",
    "canonical_quantity",
    "convert",
    "convert_event",
    "decode",
    "decode_body",
    "decode_list",
    "decode_stored",
    "drop_disabled_fields",
    "encode",
    "kind_of",
    "kind_of_plural",
    "parse_json",
    "parse_quantity",
    "parse_semver",
    "parse_yaml",
    "parse_yaml_documents",
    "schema_of",
    "to_view",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
