"""OpenAPI documents: `/openapi/v3` (an index and one document per group version) and `/openapi/v2`.

They are what `kubectl explain` prints, what kubectl asks before it relies on
server-side validation, and what client generators read.

Theory of operation: documents are made when first asked for and kept as bytes.
The index must name the hash of every document without making them all, so the
hash of a built-in document is taken over what it is made from (schema files,
kinds, version of dray); that of a custom one over its bytes. A client that asks
with the right hash may cache the answer for ever; one with a stale hash is sent
to the present one.

The server answers these paths in threads, one at a time, because a document may take a third of a second.

`use_custom_kinds` of `Discovery` makes the documents of custom kinds stale; the
counter `Discovery.edition` tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha512
from importlib.resources import files
from threading import Lock
from typing import Any

import msgspec

from dray import __version__
from dray.api.kinds import KINDS, Kind
from dray.api.media_types import JSON_TYPE
from dray.server.openapi.discovery import Discovery
from dray.server.openapi.enum_values import enumerations
from dray.server.openapi.kind_schemas import (
    Schema,
    custom_schema,
    definition_name,
    group_version_schemas,
    list_schema,
)
from dray.server.openapi.operation_paths import discovery_paths, group_paths, kind_paths
from dray.server.openapi.swagger_protobuf import encode_document, negotiate_v2
from dray.server.openapi.swagger_v2 import to_v2
from dray.server.requests import Request, Response, not_acceptable

Document = dict[str, Any]
CustomSchema = Callable[[Kind, str], Schema | None]
PREFIX = "/openapi/v3"
_INFO = {"title": "Kubernetes", "version": "1.37"}
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class OpenApi:
    """Answer the OpenAPI paths."""

    discovery: Discovery
    schema_of_custom: CustomSchema = lambda kind, version: None
    _edition: int = field(default=-1, init=False)
    _documents: dict[str, bytes] = field(default_factory=dict, init=False)
    _hashes: dict[str, str] = field(default_factory=dict, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def respond(self, request: Request) -> Response | None:
        """Answer an OpenAPI request; None for other paths. Raises 406 for protobuf of v3."""
        path = request.path.rstrip("/")
        if path != "/openapi/v2" and not (path == PREFIX or path.startswith(PREFIX + "/")):
            return None
        with self._lock:  # who comes second finds the documents that the first has made
            return self._respond(request, path)

    def _respond(self, request: Request, path: str) -> Response:
        if self._edition != self.discovery.edition:
            self._edition = self.discovery.edition
            self._documents.clear()
            self._hashes.clear()
        if path == "/openapi/v2":
            return self._second(request)
        if path == PREFIX:
            return Response(200, self._index(), content_type="text/plain; charset=utf-8")
        return self._third(request, path.removeprefix(PREFIX + "/"))

    def document(self, name: str) -> Document | None:
        """Return the v3 document of `apis/group/version` (or `api/v1`, `apis/group`), None when there is none."""
        parts = name.split("/")
        if parts[0] == "api" and len(parts) == 2:
            return self._group_version("", parts[1])
        if parts[0] == "apis" and len(parts) == 3:
            return self._group_version(parts[1], parts[2])
        groups = {group for group, _ in self.discovery.group_versions()}
        if parts[0] == "apis" and len(parts) == 2 and parts[1] in groups:
            return _document(group_paths(parts[1]), {})
        return None

    def _names(self) -> list[str]:
        names: dict[str, None] = {}
        for group, version in self.discovery.group_versions():
            if group:
                names[f"apis/{group}"] = None
            names[f"apis/{group}/{version}" if group else f"api/{version}"] = None
        return sorted(names)

    def _index(self) -> bytes:
        paths = {
            name: {"serverRelativeURL": f"{PREFIX}/{name}?hash={self._hash(name)}"} for name in self._names()
        }
        return _encode({"paths": paths})

    def _hash(self, name: str) -> str:
        known = self._hashes.get(name)
        if known is None:
            parts = name.split("/")
            is_custom = len(parts) == 3 and any(
                kind not in KINDS for kind in self.discovery.kinds_in(parts[1], parts[2])
            )
            group = parts[1] if parts[0] == "apis" else ""
            served = ",".join(kind.plural for kind in self.discovery.kinds_in(group, parts[-1]))
            source = self._bytes(name) or b"" if is_custom else _sources() + f"{name} {served}".encode()
            known = self._hashes[name] = sha512(source).hexdigest().upper()
        return known

    def _bytes(self, name: str) -> bytes | None:
        known = self._documents.get(name)
        if known is None:
            document = self.document(name)
            if document is None:
                return None
            known = self._documents[name] = _encode(document)
        return known

    def _third(self, request: Request, name: str) -> Response:
        if name not in self._names():
            return Response(404, b"", content_type="")
        _refuse_protobuf(request)
        tag, asked = self._hash(name), request.first("hash")
        if asked and asked != tag:
            location = f"{PREFIX}/{name}?hash={tag}"
            return Response(301, b"", [("Location", location)], content_type="")
        headers = [("ETag", f'"{tag}"'), ("Vary", "Accept")]
        if asked:
            headers.append(("Cache-Control", "public, immutable"))
        if request.header("if-none-match") == f'"{tag}"':
            return Response(304, b"", headers)
        body = self._bytes(name)
        assert body is not None
        return Response(200, body, headers)

    def _second(self, request: Request) -> Response:
        media_type = negotiate_v2(request.header("accept"))
        if media_type is None:
            return Response(406, b"", content_type="")
        if "v2" not in self._documents:
            made = (self.document(name) for name in self._names())
            whole = to_v2(document for document in made if document)
            self._documents["v2"], self._documents["v2 protobuf"] = _encode(whole), encode_document(whole)
        body = self._documents["v2"]
        tag = f'"{sha512(body).hexdigest().upper()}"'  # of both forms, as kube-apiserver has it
        if request.header("if-none-match") == tag:
            return Response(304, b"", [("ETag", tag)])
        if media_type != JSON_TYPE:
            body = self._documents["v2 protobuf"]
        return Response(200, body, [("ETag", tag), ("Vary", "Accept")], media_type)

    def _group_version(self, group: str, version: str) -> Document | None:
        if (group, version) not in self.discovery.group_versions():
            return None
        kinds = self.discovery.kinds_in(group, version)
        built_in = [kind for kind in kinds if kind in KINDS]
        schemas = group_version_schemas(group, version, built_in)
        for kind in kinds:
            if kind not in built_in:
                name = definition_name(kind, version)
                schemas[name] = custom_schema(kind, version, self.schema_of_custom(kind, version))
                schemas[f"{name}List"] = list_schema(kind, version)
        paths = discovery_paths(group, version)
        for kind in kinds:
            paths.update(kind_paths(kind, version))
        return _document(paths, schemas)


def _document(paths: Document, schemas: Document) -> Document:
    scheme = {
        "type": "apiKey",
        "description": "Bearer Token authentication",
        "name": "authorization",
        "in": "header",
    }
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"BearerToken": scheme}},
    }


def _refuse_protobuf(request: Request) -> None:
    accept = request.header("accept")
    if not accept:
        return
    readable = ("*/*", "application/*", JSON_TYPE)
    if not any(clause.partition(";")[0].strip() in readable for clause in accept.split(",")):
        raise not_acceptable(f"only the following media types are accepted: {JSON_TYPE}")


@cache
def _sources() -> bytes:
    """Return a digest of everything that built-in documents are made from."""
    digest = sha512(f"{__version__} {KINDS!r} {enumerations()!r}".encode())
    schema_files = [found for found in files("dray.api.schema").iterdir() if found.name.endswith(".schema")]
    for found in sorted(schema_files, key=lambda file: file.name):
        digest.update(found.read_bytes())
    return digest.digest()
