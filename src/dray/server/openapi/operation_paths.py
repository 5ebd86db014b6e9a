"""Paths of OpenAPI documents: which requests a kind answers, in which shape.

Operation ids follow Kubernetes' pattern (`createResourceV1NamespacedResourceClaim`),
because generators name methods after them. kubectl looks at the parameters of
`patch` to learn whether the server validates fields and knows dry runs.
"""

from __future__ import annotations

from typing import Any

from dray.api.kinds import Kind, Subresource
from dray.api.media_types import APPLY_PATCH, JSON_PATCH, JSON_TYPE, MERGE_PATCH, STRATEGIC_PATCH, YAML_TYPE
from dray.api.schema import schema_of
from dray.server.openapi.kind_schemas import (
    DELETE_OPTIONS,
    PATCH,
    STATUS,
    WATCH_EVENT,
    definition_name,
    reference,
)

Operation = dict[str, Any]
Paths = dict[str, Operation]

_PATCH_TYPES = (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
)
_CONNECTING = {"attach", "exec", "portforward", "proxy"}


def _query(name: str, description: str, kind: str = "string") -> Operation:
    schema = {"type": kind, "uniqueItems": True}
    return {"name": name, "in": "query", "description": description, "schema": schema}


_DRY_RUN = _query("dryRun", "With the value All, nothing is stored.")
_MANAGER = _query("fieldManager", "Who writes; owner of the fields that the request sets.")
_VALIDATION = _query(
    "fieldValidation", "What happens to unknown and duplicate fields: Ignore, Warn or Strict."
)
_FORCE = _query("force", "Apply only: take over fields that others own.", "boolean")
_WRITE = [_DRY_RUN, _MANAGER, _VALIDATION]
_DELETE = [
    _DRY_RUN,
    _query("gracePeriodSeconds", "How long the object may take to end; 0 means at once.", "integer"),
    _query("orphanDependents", "Leave dependents behind; use propagationPolicy instead.", "boolean"),
    _query("propagationPolicy", "What happens to dependents: Orphan, Background or Foreground."),
]
_SELECT = [
    _query("continue", "Where the previous page ended."),
    _query("fieldSelector", "Only objects whose fields match."),
    _query("labelSelector", "Only objects whose labels match."),
    _query("limit", "Most objects of one page.", "integer"),
    _query("resourceVersion", "Version to read at."),
    _query("resourceVersionMatch", "How resourceVersion is meant: Exact or NotOlderThan."),
    _query("sendInitialEvents", "Watch: begin with the present objects.", "boolean"),
    _query("timeoutSeconds", "How long the request may last.", "integer"),
]
_LIST = [
    _query("allowWatchBookmarks", "Watch: send bookmarks.", "boolean"),
    *_SELECT,
    _query("watch", "Send changes instead of a list.", "boolean"),
]
_PRETTY = _query("pretty", "Indent the answer.")
_NAMESPACE = {
    "name": "namespace",
    "in": "path",
    "description": "The namespace of the objects.",
    "required": True,
    "schema": {"type": "string", "uniqueItems": True},
}


def group_identifier(group: str) -> str:
    """Return the group as it is written in operation ids.

    >>> group_identifier("rbac.authorization.k8s.io"), group_identifier("")
    ('RbacAuthorization', 'Core')
    """
    words = group.removesuffix(".k8s.io").split(".") if group else ["core"]
    return "".join(word[:1].upper() + word[1:] for word in words)


def discovery_paths(group: str, version: str) -> Paths:
    """Return the path of a group version itself."""
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    identifier = group_identifier(group) + version[:1].upper() + version[1:]
    return {
        f"{base}/": {
            "get": _plain_get("get available resources", f"get{identifier}APIResources", _tag(group, version))
        }
    }


def group_paths(group: str) -> Paths:
    """Return the path of a group."""
    operation = _plain_get(
        "get information of a group", f"get{group_identifier(group)}APIGroup", _tag(group, "")
    )
    return {f"/apis/{group}/": {"get": operation}}


def kind_paths(kind: Kind, version: str) -> Paths:
    """Return all paths of a kind."""
    return _KindPaths(kind, version).paths()


def _plain_get(description: str, identifier: str, tag: str) -> Operation:
    answers = {"200": {"description": "OK"}, "401": {"description": "Unauthorized"}}
    return {"tags": [tag], "description": description, "operationId": identifier, "responses": answers}


def _tag(group: str, version: str) -> str:
    identifier = group_identifier(group)
    return identifier[:1].lower() + identifier[1:] + (f"_{version}" if version else "")


class _KindPaths:
    """Writes the operations of one kind in one version."""

    def __init__(self, kind: Kind, version: str) -> None:
        self.kind, self.version = kind, version
        self.schema = definition_name(kind, version)
        self.prefix = group_identifier(kind.group) + version[:1].upper() + version[1:]
        self.scope = "Namespaced" if kind.namespaced else ""
        base = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
        self.base = base
        self.place = "/namespaces/{namespace}" if kind.namespaced else ""
        self.gvk = {"group": kind.group, "version": version, "kind": kind.kind}

    def paths(self) -> Paths:
        kind, verbs = self.kind, self.kind.verbs
        collection = f"{self.base}{self.place}/{kind.plural}"
        paths: Paths = {}
        self._add(paths, collection, self._collection())
        self._add(paths, f"{collection}/{{name}}", self._object(), named=True)
        for subresource in kind.subresources:
            operations = self._subresource(subresource)
            self._add(paths, f"{collection}/{{name}}/{subresource.name}", operations, named=True)
        if kind.namespaced and "list" in verbs:
            listing = self._read(
                "list", f"list{self.prefix}{kind.kind}ForAllNamespaces", f"{self.schema}List", _LIST
            )
            paths[f"{self.base}/{kind.plural}"] = {"get": listing, "parameters": [_PRETTY]}
        if "watch" in verbs:
            self._add_watches(paths)
        return paths

    def _add(self, paths: Paths, path: str, operations: Operation, named: bool = False) -> None:
        if not operations:
            return
        parameters: list[Operation] = []
        if named:
            parameters.append({**_NAMESPACE, "name": "name", "description": f"name of the {self.kind.kind}"})
        if self.kind.namespaced:
            parameters.append(_NAMESPACE)
        paths[path] = {**operations, "parameters": [*parameters, _PRETTY]}

    def _add_watches(self, paths: Paths) -> None:
        kind, prefix = self.kind, f"watch{self.prefix}"
        place = f"{self.base}/watch{self.place}/{kind.plural}"
        listing = self._read("watchlist", f"{prefix}{self.scope}{kind.kind}List", WATCH_EVENT, _LIST)
        single = self._read("watch", f"{prefix}{self.scope}{kind.kind}", WATCH_EVENT, _LIST)
        self._add(paths, place, {"get": listing})
        self._add(paths, f"{place}/{{name}}", {"get": single}, named=True)
        if kind.namespaced:
            everywhere = self._read(
                "watchlist", f"{prefix}{kind.kind}ListForAllNamespaces", WATCH_EVENT, _LIST
            )
            paths[f"{self.base}/watch/{kind.plural}"] = {"get": everywhere, "parameters": [_PRETTY]}

    def _collection(self) -> Operation:
        verbs, name = self.kind.verbs, f"{self.prefix}{self.scope}{self.kind.kind}"
        operations: Operation = {}
        if "list" in verbs:
            operations["get"] = self._read("list", f"list{name}", f"{self.schema}List", _LIST)
        if "create" in verbs:
            operations["post"] = self._write(
                "post", f"create{name}", _WRITE, self.schema, ("200", "201", "202")
            )
        if "deletecollection" in verbs:
            identifier = f"delete{self.prefix}Collection{self.scope}{self.kind.kind}"
            operations["delete"] = self._delete("deletecollection", identifier, [*_SELECT, *_DELETE])
        return operations

    def _object(self) -> Operation:
        verbs, name = self.kind.verbs, f"{self.prefix}{self.scope}{self.kind.kind}"
        operations: Operation = {}
        if "get" in verbs:
            operations["get"] = self._read("get", f"read{name}", self.schema, [])
        if "update" in verbs:
            operations["put"] = self._write("put", f"replace{name}", _WRITE, self.schema, ("200", "201"))
        if "patch" in verbs:
            operations["patch"] = self._patch(f"patch{name}", self.schema)
        if "delete" in verbs:
            operations["delete"] = self._delete("delete", f"delete{name}", _DELETE)
        return operations

    def _subresource(self, subresource: Subresource) -> Operation:
        word = subresource.name[:1].upper() + subresource.name[1:]
        name = f"{self.prefix}{self.scope}{self.kind.kind}{word}"
        if subresource.name in _CONNECTING:
            methods = {"get": "Get", "create": "Post", "update": "Put", "patch": "Patch", "delete": "Delete"}
            http = {"get": "get", "create": "post", "update": "put", "patch": "patch", "delete": "delete"}
            # Not the kind itself: kubectl takes the patch of any path with that kind for the object's own.
            options = {"group": subresource.group, "version": subresource.version, "kind": subresource.kind}
            connect = f"connect{self.prefix}"
            return {
                http[verb]: {
                    **self._connect(f"{connect}{methods[verb]}{self.scope}{self.kind.kind}{word}"),
                    "x-kubernetes-group-version-kind": options,
                }
                for verb in subresource.verbs
            }
        schema, gvk = self.schema, self.gvk
        if subresource.kind:
            schema = schema_of(subresource.group, subresource.version, subresource.kind).openapi_name
            gvk = {"group": subresource.group, "version": subresource.version, "kind": subresource.kind}
        operations: Operation = {}
        if subresource.name == "log":
            return {
                "get": {**self._read("get", f"read{name}", "", []), "x-kubernetes-group-version-kind": gvk}
            }
        if "get" in subresource.verbs:
            operations["get"] = self._read("get", f"read{name}", schema, [])
        if "create" in subresource.verbs:
            operations["post"] = self._write("post", f"create{name}", _WRITE, schema, ("200", "201", "202"))
        if "update" in subresource.verbs:
            operations["put"] = self._write("put", f"replace{name}", _WRITE, schema, ("200", "201"))
        if "patch" in subresource.verbs:
            operations["patch"] = self._patch(f"patch{name}", schema)
        return {
            method: {**made, "x-kubernetes-group-version-kind": gvk} for method, made in operations.items()
        }

    def _operation(
        self, action: str, identifier: str, parameters: list[Operation], answers: Operation
    ) -> Operation:
        operation: Operation = {
            "tags": [_tag(self.kind.group, self.version)],
            "description": f"{action} {self.kind.kind}",
            "operationId": identifier,
        }
        if parameters:
            operation["parameters"] = parameters
        operation["responses"] = {**answers, "401": {"description": "Unauthorized"}}
        operation["x-kubernetes-action"] = action
        operation["x-kubernetes-group-version-kind"] = self.gvk
        return operation

    def _read(self, action: str, identifier: str, schema: str, parameters: list[Operation]) -> Operation:
        return self._operation(action, identifier, parameters, {"200": _answer("OK", schema)})

    def _write(
        self, action: str, identifier: str, parameters: list[Operation], schema: str, codes: tuple[str, ...]
    ) -> Operation:
        words = {"200": "OK", "201": "Created", "202": "Accepted"}
        answers = {code: _answer(words[code], schema) for code in codes}
        body = {"content": {"*/*": {"schema": reference(schema)}}, "required": True}
        return {**self._operation(action, identifier, parameters, answers), "requestBody": body}

    def _patch(self, identifier: str, schema: str) -> Operation:
        content = {media_type: {"schema": reference(PATCH)} for media_type in _PATCH_TYPES}
        answers = {"200": _answer("OK", schema), "201": _answer("Created", schema)}
        operation = self._operation("patch", identifier, [*_WRITE, _FORCE], answers)
        return {**operation, "requestBody": {"content": content, "required": True}}

    def _delete(self, action: str, identifier: str, parameters: list[Operation]) -> Operation:
        answers = {"200": _answer("OK", STATUS)}
        if action == "delete":
            answers["202"] = _answer("Accepted", STATUS)
        body = {"content": {"*/*": {"schema": reference(DELETE_OPTIONS)}}}
        return {**self._operation(action, identifier, parameters, answers), "requestBody": body}

    def _connect(self, identifier: str) -> Operation:
        answer = {"description": "OK", "content": {"*/*": {"schema": {"type": "string"}}}}
        return self._operation("connect", identifier, [], {"200": answer})


def _answer(description: str, schema: str) -> Operation:
    content = {"schema": reference(schema) if schema else {"type": "string"}}
    types = (JSON_TYPE, YAML_TYPE) if schema else ("text/plain",)
    return {"description": description, "content": dict.fromkeys(types, content)}
