"""The one table of the kinds that dray serves.

A kind is a row: group, versions, names, scope, verbs, subresources. The server
derives its routes, discovery and printing from it, the client its resources and
paths (`dray.client.resources`), the command line its short names. Tables elsewhere
that are keyed by group and plural refer to rows of this one.

Theory of operation: versions of a row are the ones the kind is served in, the
preferred one first. An object is stored once, in `storage_version`, and converted
on the way in and out (see `conversion`). DeviceTaintRule exists in three versions
and ResourcePoolStatusRequest in one, so each row carries its own versions.

Left out on purpose: kinds whose presence would announce something that does not work,
such as Service (nothing here forwards traffic).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "GROUP_VERSIONS",
    "KINDS",
    "Kind",
    "Subresource",
    "kind_of",
    "kind_of_plural",
    "kinds_in",
    "split_api_version",
]

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
STATUS_VERBS: Final = ("get", "patch", "update")

# Names of API groups.
ADMISSION: Final = "admissionregistration.k8s.io"
APIEXTENSIONS: Final = "apiextensions.k8s.io"
AUTHENTICATION: Final = "authentication.k8s.io"
AUTHORIZATION: Final = "authorization.k8s.io"
COORDINATION: Final = "coordination.k8s.io"
META: Final = "meta.k8s.io"  # options, partial objects and tables; has no kinds of its own
NEW_EVENTS: Final = "events.k8s.io"
RBAC: Final = "rbac.authorization.k8s.io"
RESOURCE: Final = "resource.k8s.io"
SCHEDULING: Final = "scheduling.k8s.io"
STORAGE: Final = "storage.k8s.io"


@dataclass(frozen=True, slots=True)
class Subresource:
    """A path below an object: `status`, `binding`, ..."""

    name: str
    verbs: tuple[str, ...] = STATUS_VERBS
    kind: str = ""  # of the body; empty means: the object's own kind
    group: str = ""  # of the body's kind; meaningful with `kind`
    version: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object and everything that its name implies."""

    group: str  # empty means: the core group
    kind: str
    plural: str
    versions: tuple[str, ...]  # preferred first
    storage_version: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    own_subresources: tuple[Subresource, ...] = ()  # of dray alone, behind gates; not in discovery
    keeps_generation: bool = False  # metadata.generation counts changes of the spec

    @property
    def singular(self) -> str:
        """Return the name for one object on a command line."""
        return self.kind.lower()

    @property
    def list_kind(self) -> str:
        """Return the kind of a list of these."""
        return self.kind + "List"

    @property
    def group_resource(self) -> str:
        """Return `plural.group`, or only `plural` in the core group, as messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        """Return whether status has a path and writers of its own."""
        return any(subresource.name == "status" for subresource in self.subresources)

    @property
    def is_stored(self) -> bool:
        """Return whether objects of the kind persist; reviews, bindings and the like do not."""
        return "get" in self.verbs

    def api_version(self, version: str = "") -> str:
        """Return `group/version` (only `version` in the core group); the preferred one by default."""
        version = version or self.versions[0]
        return f"{self.group}/{version}" if self.group else version

    def subresource(self, name: str) -> Subresource | None:
        """Return the named subresource, if the kind has it."""
        every = (*self.subresources, *self.own_subresources)
        return next((found for found in every if found.name == name), None)

    def path(self, *, version: str = "", namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection, an object or a subresource."""
        parts = ["/apis" if self.group else "/api", self.api_version(version)]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [self.plural, name, subresource]
        return "/".join(part for part in parts if part)


_STATUS: Final = Subresource("status")
_SCALE: Final = Subresource("scale", STATUS_VERBS, "Scale", "autoscaling", "v1")
_CREATE: Final = ("create",)
_NAMESPACE_VERBS: Final = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")
_CONNECT: Final = ("create", "get")
_PROXY_VERBS: Final = ("create", "delete", "get", "patch", "update")
_POD_SUBRESOURCES: Final = (
    Subresource("attach", _CONNECT, "PodAttachOptions", "", "v1"),
    Subresource("binding", _CREATE, "Binding", "", "v1"),
    Subresource("ephemeralcontainers"),
    Subresource("eviction", _CREATE, "Eviction", "policy", "v1"),
    Subresource("exec", _CONNECT, "PodExecOptions", "", "v1"),
    Subresource("log", ("get",)),
    Subresource("portforward", _CONNECT, "PodPortForwardOptions", "", "v1"),
    Subresource("proxy", _PROXY_VERBS, "PodProxyOptions", "", "v1"),
    Subresource("resize"),
    _STATUS,
)


def _row(
    group: str,
    kind: str,
    versions: str = "v1",
    *,
    plural: str = "",
    storage: str = "",
    cluster: bool = False,
    short: str = "",
    categories: str = "",
    verbs: tuple[str, ...] = ALL_VERBS,
    sub: tuple[Subresource, ...] = (),
    own: tuple[Subresource, ...] = (),
    generation: bool = False,
) -> Kind:
    served = tuple(versions.split())
    return Kind(
        group=group,
        kind=kind,
        plural=plural or kind.lower() + "s",
        versions=served,
        storage_version=storage or served[0],
        namespaced=not cluster,
        short_names=tuple(short.split()),
        categories=tuple(categories.split()),
        verbs=verbs,
        subresources=sub,
        own_subresources=own,
        keeps_generation=generation,
    )


_THREE: Final = "v1 v1beta2 v1beta1"

KINDS: Final[tuple[Kind, ...]] = (
    _row("", "Binding", verbs=_CREATE),
    _row("", "ConfigMap", short="cm"),
    _row("", "Event", short="ev"),
    _row("", "LimitRange", short="limits"),
    _row(
        "",
        "Namespace",
        cluster=True,
        short="ns",
        verbs=_NAMESPACE_VERBS,
        sub=(Subresource("finalize", ("update",)), _STATUS),
    ),
    _row(
        "",
        "Node",
        cluster=True,
        short="no",
        sub=(Subresource("proxy", _PROXY_VERBS, "NodeProxyOptions", "", "v1"), _STATUS),
    ),
    _row("", "PersistentVolume", cluster=True, short="pv", sub=(_STATUS,)),
    _row("", "PersistentVolumeClaim", short="pvc", sub=(_STATUS,)),
    _row(
        "",
        "Pod",
        short="po",
        categories="all",
        sub=_POD_SUBRESOURCES,
        own=(Subresource("resourceclaims"),),
        generation=True,
    ),
    _row("", "ResourceQuota", short="quota", sub=(_STATUS,)),
    _row("", "Secret"),
    _row(
        "",
        "ServiceAccount",
        short="sa",
        sub=(Subresource("token", _CREATE, "TokenRequest", AUTHENTICATION, "v1"),),
    ),
    _row(
        ADMISSION, "MutatingWebhookConfiguration", cluster=True, categories="api-extensions", generation=True
    ),
    _row(
        ADMISSION,
        "ValidatingAdmissionPolicy",
        plural="validatingadmissionpolicies",
        cluster=True,
        categories="api-extensions",
        sub=(_STATUS,),
        generation=True,
    ),
    _row(
        ADMISSION,
        "ValidatingAdmissionPolicyBinding",
        cluster=True,
        categories="api-extensions",
        generation=True,
    ),
    _row(
        ADMISSION,
        "ValidatingWebhookConfiguration",
        cluster=True,
        categories="api-extensions",
        generation=True,
    ),
    _row(
        APIEXTENSIONS,
        "CustomResourceDefinition",
        cluster=True,
        short="crd crds",
        categories="api-extensions",
        sub=(_STATUS,),
        generation=True,
    ),
    _row("apps", "DaemonSet", short="ds", categories="all", sub=(_STATUS,), generation=True),
    _row("apps", "Deployment", short="deploy", categories="all", sub=(_SCALE, _STATUS), generation=True),
    _row("apps", "ReplicaSet", short="rs", categories="all", sub=(_SCALE, _STATUS), generation=True),
    _row(AUTHENTICATION, "SelfSubjectReview", cluster=True, verbs=_CREATE),
    _row(AUTHENTICATION, "TokenReview", cluster=True, verbs=_CREATE),
    _row(AUTHORIZATION, "LocalSubjectAccessReview", verbs=_CREATE),
    _row(AUTHORIZATION, "SelfSubjectAccessReview", cluster=True, verbs=_CREATE),
    _row(AUTHORIZATION, "SelfSubjectRulesReview", cluster=True, verbs=_CREATE),
    _row(AUTHORIZATION, "SubjectAccessReview", cluster=True, verbs=_CREATE),
    _row(
        "autoscaling",
        "HorizontalPodAutoscaler",
        "v2",
        short="hpa",
        categories="all",
        sub=(_STATUS,),
        generation=True,
    ),
    _row("batch", "Job", categories="all", sub=(_STATUS,), generation=True),
    _row(COORDINATION, "Lease"),
    _row(NEW_EVENTS, "Event", short="ev"),
    _row("policy", "PodDisruptionBudget", short="pdb", sub=(_STATUS,), generation=True),
    _row(RBAC, "ClusterRole", cluster=True),
    _row(RBAC, "ClusterRoleBinding", cluster=True),
    _row(RBAC, "Role"),
    _row(RBAC, "RoleBinding"),
    _row(RESOURCE, "DeviceClass", _THREE, plural="deviceclasses", cluster=True, generation=True),
    _row(
        RESOURCE,
        "DeviceTaintRule",
        "v1 v1beta2 v1alpha3",
        storage="v1beta2",
        cluster=True,
        sub=(_STATUS,),
        generation=True,
    ),
    _row(RESOURCE, "ResourceClaim", _THREE, sub=(_STATUS,)),
    _row(RESOURCE, "ResourceClaimTemplate", _THREE),
    _row(RESOURCE, "ResourcePoolStatusRequest", "v1alpha3", cluster=True, sub=(_STATUS,)),
    _row(RESOURCE, "ResourceSlice", _THREE, cluster=True, generation=True),
    _row(SCHEDULING, "PodGroup", "v1beta1", sub=(_STATUS,)),
    _row(SCHEDULING, "PriorityClass", plural="priorityclasses", cluster=True, short="pc", generation=True),
    _row(SCHEDULING, "Workload", "v1beta1"),
    _row(STORAGE, "CSIDriver", cluster=True),
    _row(STORAGE, "CSINode", cluster=True),
    _row(STORAGE, "CSIStorageCapacity", plural="csistoragecapacities"),
    _row(STORAGE, "StorageClass", plural="storageclasses", cluster=True, short="sc"),
    _row(STORAGE, "VolumeAttachment", cluster=True, sub=(_STATUS,)),
)

# Version priority of each served group: discovery lists and prefers them in this order.
GROUP_VERSIONS: Final[dict[str, tuple[str, ...]]] = {
    "": ("v1",),
    "apps": ("v1",),
    NEW_EVENTS: ("v1",),
    AUTHENTICATION: ("v1",),
    AUTHORIZATION: ("v1",),
    "autoscaling": ("v2",),
    "batch": ("v1",),
    "policy": ("v1",),
    RBAC: ("v1",),
    APIEXTENSIONS: ("v1",),
    STORAGE: ("v1",),
    ADMISSION: ("v1",),
    SCHEDULING: ("v1", "v1beta1"),
    COORDINATION: ("v1",),
    RESOURCE: ("v1", "v1beta2", "v1beta1", "v1alpha3"),
}

_BY_KIND: Final = {(row.group, row.kind): row for row in KINDS}
_BY_PLURAL: Final = {(row.group, row.plural): row for row in KINDS}


def kind_of(group: str, kind: str) -> Kind | None:
    """Return the row of a kind, or None where dray does not serve it."""
    return _BY_KIND.get((group, kind))


def kind_of_plural(group: str, plural: str) -> Kind | None:
    """Return the row of a resource name as it stands in a URL."""
    return _BY_PLURAL.get((group, plural))


def kinds_in(group: str, version: str) -> list[Kind]:
    """Return the kinds that a group serves in a version, by plural."""
    found = [row for row in KINDS if row.group == group and version in row.versions]
    return sorted(found, key=lambda row: row.plural)


def split_api_version(api_version: str) -> tuple[str, str]:
    """Split `group/version` (or only `version`: the core group)."""
    group, slash, version = api_version.rpartition("/")
    return (group, version) if slash else ("", api_version)
