"""The schema of every served kind, in a small notation of our own.

One text file for each API group says what fields there are, in which order, and
how patches and server-side apply treat them. From it the server derives strict
decoding, merge keys, OpenAPI and `kubectl explain`; from it `codec` knows what a
JSON object means. One line is one field:

    version v1                               versions follow each other
    version v1beta1 like v1                  all types of v1, and then what differs

    kind ResourceClaim -- A request ...      a struct with kind and apiVersion
    type Counter atomic -- ...               a struct; atomic: apply replaces it whole
      NAME: TYPE #NUMBER FLAGS -- DESCRIPTION

  TYPE   string bool int32 int64 float64 bytes quantity time microtime duration
         intorstring any raw, a struct of the version (`Counter`), of another file's v1
         (`core.NodeSelector`) or of another version (`scheduling/v1alpha3.X`),
         a list `[T]`, a map `{T}`; `*T`: absent and zero differ
  #2.1   protobuf number; with a dot: field 1 of the message inlined as field 2
  FLAGS  required          OpenAPI calls it required
         always            is written even if it is zero
         keyed(a,b)        apply: a list of type map with these keys
         set, atomic       apply: a list of that type (lists are atomic by default)
         patch(merge by k) strategic merge patch: strategy, and merge key
         default(x)        value that OpenAPI states

Theory of operation: a file is split into lines when its group is first asked for
(the largest takes a few milliseconds), a struct's fields are parsed when they are
first used. Names resolve in the version that asks, so a type inherited through
`like` sees the types of the inheriting version.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from dray.api.kinds import (
    ADMISSION,
    APIEXTENSIONS,
    AUTHENTICATION,
    AUTHORIZATION,
    COORDINATION,
    META,
    NEW_EVENTS,
    RBAC,
    RESOURCE,
    SCHEDULING,
    STORAGE,
)
from dray.api.schema.notation import SchemaFile
from dray.api.schema.types import LIST, MAP, STRUCT, Field, Type

__all__ = ["LIST", "MAP", "STRUCT", "Field", "SchemaError", "Type", "schema_of", "struct_of"]

_FILE_BY_GROUP: Final = {
    "": "core",
    META: "meta",
    ADMISSION: "admissionregistration",
    APIEXTENSIONS: "apiextensions",
    "apps": "apps",
    AUTHENTICATION: "authentication",
    AUTHORIZATION: "authorization",
    "autoscaling": "autoscaling",
    "batch": "batch",
    COORDINATION: "coordination",
    NEW_EVENTS: "events",
    "policy": "policy",
    RBAC: "rbac",
    RESOURCE: "resource",
    SCHEDULING: "scheduling",
    STORAGE: "storage",
}


class SchemaError(LookupError):
    """There is no such kind or struct."""


@cache
def schema_of(group: str, version: str, kind: str) -> Type:
    """Return the schema of a kind (or of any struct of the group); raise SchemaError if there is none.

    Options of requests live in the group `meta.k8s.io`: DeleteOptions, for instance.
    """
    file = _FILE_BY_GROUP.get(group)
    if file is None:
        raise SchemaError(f"no schema for group {group!r}")
    return struct_of(file, version, kind)


def struct_of(file: str, version: str, name: str) -> Type:
    """Return a struct by the name of its schema file: `struct_of("core", "v1", "NodeSelector")`."""
    found = _file(file).struct(version, name)
    if found is None:
        raise SchemaError(f"no schema for {name} in {file}/{version}")
    return found


@cache
def _file(name: str) -> SchemaFile:
    return SchemaFile(name, struct_of)
