"""Which object or collection a path means, and which verb a request is.

`split_path` reads a path without knowing any kind, which is what authorisation
needs (a refusal must not tell whether something exists); `find_route` then looks
the kind up and refuses what is not served, in kube-apiserver's three ways: plain
text for unknown trees, a 404 Status inside known groups, 405 for methods that a
known path does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dray.api.caching import cached_by_text
from dray.api.kinds import Kind
from dray.server.requests import errors
from dray.server.requests.messages import Request

_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SUBRESOURCE_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OWN_SUBRESOURCES_OF_NAMESPACES = {"status", "finalize"}
_FALSE_WATCH = {"false", "0"}  # anything else that is present and not empty means true


class ResourcePath(NamedTuple):
    """A path below /api/v1 or /apis/group/version, taken apart."""

    group: str
    version: str
    namespace: str = ""
    resource: str = ""  # plural; empty: the group version itself
    name: str = ""
    subresource: str = ""
    rest: tuple[str, ...] = ()  # what follows a subresource (proxy paths)
    watch: bool = False  # an old path that begins with /watch/


class Route(NamedTuple):
    """A served resource path and what is asked of it."""

    kind: Kind
    version: str
    verb: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: tuple[str, ...] = ()


FindKind = Callable[[str, str, str], Kind | None]  # group, version, plural


@cached_by_text(
    maxsize=1024, longest=1_000
)  # each request asks three times, and clients come back to their objects
def split_path(path: str) -> ResourcePath | None:
    """Take a resource path apart; None for everything outside /api/v and /apis/g/v."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 2 and parts[0] == "api":
        group, version, parts = "", parts[1], parts[2:]
    elif len(parts) >= 3 and parts[0] == "apis":
        group, version, parts = parts[1], parts[2], parts[3:]
    else:
        return None
    if parts[:1] == ["watch"]:
        found = _split_inner(group, version, parts[1:])
        return found._replace(watch=True)
    return _split_inner(group, version, parts)


def _split_inner(group: str, version: str, parts: list[str]) -> ResourcePath:
    namespace = ""
    if len(parts) >= 2 and parts[0] == "namespaces":
        is_own = not group and (len(parts) == 2 or parts[2] in _OWN_SUBRESOURCES_OF_NAMESPACES)
        if is_own:
            return ResourcePath(group, version, parts[1], "namespaces", *_tail(parts[1:]))
        namespace, parts = parts[1], parts[2:]
    if not parts:
        return ResourcePath(group, version, namespace)
    return ResourcePath(group, version, namespace, parts[0], *_tail(parts[1:]))


def _tail(parts: list[str]) -> tuple[str, str, tuple[str, ...]]:
    return (parts[0] if parts else "", parts[1] if len(parts) > 1 else "", tuple(parts[2:]))


def verb_of(request: Request, path: ResourcePath) -> str:
    """Return the API verb of a request; "" for methods that have none."""
    if path.watch:
        return "watch" if request.method == "GET" else ""
    if path.subresource:
        return _SUBRESOURCE_VERBS.get(request.method, "")
    if path.name:
        # Watching one object by its path is a plain read; a field selector on the collection watches it.
        return _OBJECT_VERBS.get(request.method, "")
    verb = _COLLECTION_VERBS.get(request.method, "")
    return "watch" if verb == "list" and _wants_watch(request) else verb


def find_route(request: Request, path: ResourcePath, find_kind: FindKind, group_served: bool) -> Route | None:
    """Return the route, None for plain 404 paths; raises 404 and 405 inside known groups."""
    if not group_served:
        return None
    kind = find_kind(path.group, path.version, path.resource)
    if kind is None or (path.rest and path.subresource != "proxy"):
        raise errors.unknown_resource()
    is_namespace_itself = kind.plural == "namespaces" and not kind.group
    if path.namespace and not kind.namespaced and not is_namespace_itself:
        raise errors.unknown_resource()
    if kind.namespaced and path.name and not path.namespace:
        raise errors.unknown_resource()
    verb = verb_of(request, path)
    namespace = path.namespace if kind.namespaced else ""
    if path.subresource:
        subresource = kind.subresource(path.subresource)
        if subresource is None:
            raise errors.unknown_resource()
        allowed = verb in subresource.verbs
    elif kind.namespaced and not path.namespace and not path.name:
        # All namespaces at once can only be read.
        allowed = verb in ("list", "watch") and verb in kind.verbs
    else:
        allowed = verb in kind.verbs
    if not allowed:
        raise errors.method_not_allowed()
    return Route(kind, path.version, verb, namespace, path.name, path.subresource, path.rest)


def _wants_watch(request: Request) -> bool:
    return any(value.lower() not in _FALSE_WATCH for value in request.all("watch")[:1])
