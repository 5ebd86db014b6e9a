"""What this server serves, told to its clients: `/`, `/version`, `/api`, `/apis` and below.

Two forms of the same table (`dray.api.kinds` plus the kinds that
CustomResourceDefinitions add): the legacy documents, one per group version, and
the aggregated one, which is all of them in a single answer with an ETag. A client
asks for the second with the media type
`application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList`; the older
`v2beta1` of it is refused, as Kubernetes v1.37 does, and clients then fall back.

Theory of operation: documents are bytes, made at most once per table of kinds.
`use_custom_kinds` replaces the dynamic part and forgets all bytes.
"""

from __future__ import annotations

import platform
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256, sha512
from typing import Any

import msgspec

from dray.api.kinds import Kind, Subresource
from dray.api.media_types import JSON_TYPE, PROTOBUF_TYPE, YAML_TYPE
from dray.api.runtime_config import ServedVersions
from dray.server.requests import Request, Response, not_acceptable

__all__ = ["Discovery", "storage_version_hash", "version_document"]

AGGREGATED_TYPE = f"{JSON_TYPE};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
MEDIA_TYPES = f"{JSON_TYPE}, {YAML_TYPE}, {PROTOBUF_TYPE}"
OTHER_PATHS = (
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/",
    "/readyz",
    "/version",
)
_VERSION = re.compile(r"^v(\d+)(?:(alpha|beta)(\d+))?$")

Document = dict[str, Any]
_encode = msgspec.json.Encoder().encode


def version_document() -> Document:
    """Return the answer of /version: the Kubernetes release whose behaviour is served, and by what."""
    return {
        "major": "1",
        "minor": "37",
        "emulationMajor": "1",
        "emulationMinor": "37",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "36",
        "gitVersion": "v1.37.0+dray",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{platform.system().lower()}/{_architecture()}",
    }


def storage_version_hash(group: str, version: str, kind: str) -> str:
    """Return the short hash by which clients see that a kind's stored form changed.

    >>> storage_version_hash("", "v1", "Pod")
    'xPOwRZ+Yhw8='
    """
    return b64encode(sha256(f"{group}/{version}/{kind}".encode()).digest()[:8]).decode()


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Return a sort key: released before beta before alpha, high before low, others by name.

    >>> sorted(["v1alpha1", "foo", "v2", "v1beta2", "v1"], key=version_priority)
    ['v2', 'v1', 'v1beta2', 'v1alpha1', 'foo']
    """
    match = _VERSION.match(version)
    if match is None:
        return (3, 0, 0, version)
    major, stage, minor = match.groups()
    return ({None: 0, "beta": 1, "alpha": 2}[stage], -int(major), -int(minor or 0), "")


@dataclass(slots=True)
class Discovery:
    """Answer the discovery paths from the table of kinds."""

    server_address: Callable[[], str] = lambda: ""  # host:port, told in /api
    built_in: ServedVersions = field(default_factory=ServedVersions)
    _custom: tuple[Kind, ...] = ()
    edition: int = field(default=0, init=False)  # counts changes of the custom kinds
    _versions_by_group: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _encoded: dict[tuple[str, str], Response] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.use_custom_kinds(self._custom)

    def use_custom_kinds(self, kinds: Iterable[Kind]) -> None:
        """Serve these custom kinds instead of the former ones."""
        self._custom = tuple(kinds)
        versions: dict[str, tuple[str, ...]] = self.built_in.group_versions()
        custom_groups = sorted({kind.group for kind in self._custom})
        for group in custom_groups:
            found = {version for kind in self._custom if kind.group == group for version in kind.versions}
            versions[group] = tuple(sorted(found | set(versions.get(group, ())), key=version_priority))
        self._versions_by_group = versions
        self._encoded.clear()
        self.edition += 1

    def respond(self, request: Request) -> Response | None:
        """Answer a discovery request; None when the path is not one. Raises the 406 error."""
        path = request.path.rstrip("/") or "/"
        aggregates = path in ("/api", "/apis")
        document = self._document(path)
        if document is None:
            return None
        media_type = negotiate(request.header("accept"), aggregates)
        if media_type is None:
            raise not_acceptable(f"only the following media types are accepted: {MEDIA_TYPES}")
        key = (path, media_type)
        response = self._encoded.get(key)
        if response is None:
            if media_type == AGGREGATED_TYPE:
                document = self._aggregated(path)
            response = self._encoded[key] = _encoded(document, media_type)
        if media_type == AGGREGATED_TYPE:
            tag = next(value for name, value in response.headers if name == "ETag")
            if request.header("if-none-match") == tag:
                return Response(304, b"", response.headers, media_type)
        # A front may add headers to what it gets; keep the cached answer as it is.
        return Response(response.status, response.body, list(response.headers), response.content_type)

    def group_versions(self) -> list[tuple[str, str]]:
        """Return every served (group, version), in the order of discovery."""
        return [
            (group, version) for group, versions in self._versions_by_group.items() for version in versions
        ]

    def kinds_in(self, group: str, version: str) -> list[Kind]:
        """Return the kinds of a group version by plural, custom ones included."""
        custom = [kind for kind in self._custom if kind.group == group and version in kind.versions]
        found = self.built_in.kinds_in(group, version) + custom
        return sorted(found, key=lambda kind: kind.plural)

    def _document(self, path: str) -> Document | None:
        if path == "/version":
            return version_document()
        if path == "/":
            return {"paths": self._paths()}
        if path == "/api":
            return self._core_versions()
        if path == "/apis":
            groups = [self._group(group) for group in self._versions_by_group if group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        parts = path.split("/")[1:]
        if parts[0] == "api" and len(parts) == 2 and parts[1] in self._versions_by_group[""]:
            return self._resources("", parts[1])
        if parts[0] == "apis" and parts[1] and parts[1] in self._versions_by_group:
            if len(parts) == 2:
                return {"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1])}
            if len(parts) == 3 and parts[2] in self._versions_by_group[parts[1]]:
                return self._resources(parts[1], parts[2])
        return None

    def _paths(self) -> list[str]:
        paths = ["/api", "/api/v1", "/apis", "/apis/", *OTHER_PATHS]
        for group, versions in self._versions_by_group.items():
            if group:
                paths.append(f"/apis/{group}")
                paths.extend(f"/apis/{group}/{version}" for version in versions)
        return sorted(paths)

    def _core_versions(self) -> Document:
        address = {"clientCIDR": "0.0.0.0/0", "serverAddress": self.server_address()}
        versions = list(self._versions_by_group[""])
        return {"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": [address]}

    def _group(self, group: str) -> Document:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in self._versions_by_group[group]
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _resources(self, group: str, version: str) -> Document:
        entries: list[Document] = []
        for kind in self.kinds_in(group, version):
            entries.append(_legacy_resource(kind))
            entries.extend(
                _legacy_subresource(kind, subresource, version)
                for subresource in sorted(kind.subresources, key=lambda found: found.name)
            )
        head = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if group else {})
        return {**head, "groupVersion": f"{group}/{version}" if group else version, "resources": entries}

    def _aggregated(self, path: str) -> Document:
        groups = [""] if path == "/api" else [group for group in self._versions_by_group if group]
        items = [
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {
                        "version": version,
                        "resources": [_resource(kind, version) for kind in self.kinds_in(group, version)],
                        "freshness": "Current",
                    }
                    for version in self._versions_by_group[group]
                ],
            }
            for group in groups
        ]
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        }


def negotiate(accept: str, aggregates: bool) -> str | None:
    """Return the media type to answer with, or None when none of the accepted ones can be made."""
    if not accept.strip():
        return JSON_TYPE
    for clause in _clauses(accept):
        media_type, _, rest = clause.partition(";")
        parameters = dict(_parameter(part) for part in rest.split(";") if part.strip())
        name = media_type.strip().lower()
        if "as" in parameters:
            wanted = (parameters.get("g"), parameters.get("v"), parameters["as"])
            if (
                aggregates
                and name == JSON_TYPE
                and wanted == ("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList")
            ):
                return AGGREGATED_TYPE
        elif name in (JSON_TYPE, "*/*"):
            return JSON_TYPE
        elif name == YAML_TYPE:
            return YAML_TYPE
    return None


def _clauses(accept: str) -> list[str]:
    """Split an Accept header, the most wanted clause first."""

    def quality(clause: str) -> float:
        match = re.search(r";\s*q=([0-9.]+)", clause)
        try:
            return -float(match.group(1)) if match else -1.0
        except ValueError:
            return -1.0

    return sorted(accept.split(","), key=quality)


def _parameter(part: str) -> tuple[str, str]:
    key, _, value = part.partition("=")
    return key.strip().lower(), value.strip()


def _encoded(document: Document, media_type: str) -> Response:
    if media_type == YAML_TYPE:
        import yaml  # costs start-up time, and hardly anybody asks for it

        return Response(200, yaml.safe_dump(document, sort_keys=False).encode(), [], YAML_TYPE)
    body = _encode(document)
    if media_type != AGGREGATED_TYPE:
        return Response(200, body + b"\n", [], media_type)
    tag = f'"{sha512(body).hexdigest().upper()}"'
    headers = [("ETag", tag), ("Vary", "Accept"), ("Cache-Control", "public")]
    return Response(200, body + b"\n", headers, media_type)


def _legacy_resource(kind: Kind) -> Document:
    entry: Document = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.is_stored:
        entry["storageVersionHash"] = storage_version_hash(kind.group, kind.storage_version, kind.kind)
    return entry


def _legacy_subresource(kind: Kind, subresource: Subresource, version: str) -> Document:
    entry: Document = {
        "name": f"{kind.plural}/{subresource.name}",
        "singularName": "",
        "namespaced": kind.namespaced,
    }
    group, own_version, name = _response_kind(kind, subresource, version)
    if own_version:
        entry |= {"group": group, "version": own_version}
    return entry | {"kind": name, "verbs": list(subresource.verbs)}


def _resource(kind: Kind, version: str) -> Document:
    entry: Document = {
        "resource": kind.plural,
        "responseKind": {"group": "", "version": "", "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    subresources: Sequence[Subresource] = sorted(kind.subresources, key=lambda found: found.name)
    if subresources:
        entry["subresources"] = [_aggregated_subresource(kind, found, version) for found in subresources]
    return entry


def _aggregated_subresource(kind: Kind, subresource: Subresource, version: str) -> Document:
    group, own_version, name = _response_kind(kind, subresource, version)
    return {
        "subresource": subresource.name,
        "responseKind": {"group": group, "version": own_version, "kind": name},
        "verbs": list(subresource.verbs),
    }


def _response_kind(kind: Kind, subresource: Subresource, version: str) -> tuple[str, str, str]:
    """Return group, version and kind of a body; group and version are empty when they are the parent's."""
    if not subresource.kind:
        return "", "", kind.kind
    if (subresource.group, subresource.version) == (kind.group, version):
        return "", "", subresource.kind
    return subresource.group, subresource.version, subresource.kind


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
