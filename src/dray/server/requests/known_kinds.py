"""Which kinds a request body may name, and what is said of one that the path does not expect.

kube-apiserver decodes a body by what the body itself says, and only then compares: so a kind that
no group has is another mistake than a kind that stands in the wrong place, and clients read
different sentences. This module knows the kinds; it reads nothing and stores nothing.
"""

from __future__ import annotations

from typing import Final

from dray.api.kinds import KINDS, META, split_api_version

_OF_EVERY_GROUP: Final = frozenset(
    (
        "CreateOptions",
        "DeleteOptions",
        "GetOptions",
        "ListOptions",
        "PatchOptions",
        "UpdateOptions",
        "WatchEvent",
    )
)
_OF_CORE: Final = frozenset(("APIGroup", "APIGroupList", "APIResourceList", "APIVersions", "List", "Status"))
_SCHEME: Final = "pkg/api/legacyscheme/scheme.go:30"
_SCHEME_OF_OPTIONS: Final = "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27"
_GROUP_VERSIONS: Final = frozenset((kind.group, version) for kind in KINDS for version in kind.versions)
_REGISTERED: Final = frozenset(
    (kind.group, version, name)
    for kind in KINDS
    for version in kind.versions
    for name in (kind.kind, kind.list_kind)
)


def is_group_version(text: str) -> bool:
    """Return whether a text can be an apiVersion: a version, or a group and a version."""
    return text.count("/") <= 1


def is_registered(api_version: str, kind: str) -> bool:
    """Return whether any resource of the API, or the machinery around it, has this kind."""
    group, version = split_api_version(api_version)
    if (group, version, kind) in _REGISTERED:
        return True
    if (group, version) not in _GROUP_VERSIONS:
        return False
    return kind in _OF_EVERY_GROUP or (api_version == "v1" and kind in _OF_CORE)


def not_registered(api_version: str, kind: str) -> str:
    """Return what is said of a kind that does not exist."""
    return f'no kind "{kind}" is registered for version "{api_version}" in scheme "{_SCHEME}"'


def wrong_kind(api_version: str, said: str, group: str, kind: str) -> str:
    """Return what is said of a body of an existing kind where another one is expected."""
    version = split_api_version(api_version)[1]
    return f"converting ({version}.{said}) to ({package_of(group)}.{kind}): unknown conversion"


def not_options(api_version: str, kind: str) -> str:
    """Return what is said of the body of a deletion that is not DeleteOptions."""
    said = api_version or f"{META}/v1"
    return f'no kind "{kind}" is registered for version "{said}" in scheme "{_SCHEME_OF_OPTIONS}"'


def package_of(group: str) -> str:
    """Return the short name of a group, as kube-apiserver's messages name stored forms: `resource`, `core`."""
    return group.partition(".")[0] or "core"
