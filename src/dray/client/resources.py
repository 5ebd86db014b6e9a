"""The resources that dray talks about, and how their addresses are spelled.

A `Resource` is a group, a version, a plural and a scope. Those of the kinds that dray
serves come from the table in `dray.api.kinds`, in the version that the newest Kubernetes prefers. An older
server may have a kind in an older version only: `versions_of` are those to try, newest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from dray.api.kinds import APIEXTENSIONS, COORDINATION, RBAC, RESOURCE, SCHEDULING, kind_of


@dataclass(frozen=True, slots=True)
class Resource:
    """One collection of the API.

    >>> CLAIMS.path("default", "gpu", "status")
    '/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/gpu/status'
    >>> NODES.path()
    '/api/v1/nodes'
    """

    group: str  # empty means: core
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, or the bare version for core."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """Return the address of the collection, an object of it, or a subresource."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and not namespace:
                raise ValueError(f"{self.plural} are namespaced: give the namespace of {name!r}")
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def at(self, version: str) -> Resource:
        """Return the same resource in another version."""
        return Resource(self.group, version, self.plural, self.kind, self.namespaced)


def resource_of(group: str, kind: str) -> Resource:
    """Return the collection of a kind that dray serves, in its preferred version; raises LookupError otherwise."""
    found = kind_of(group, kind)
    if found is None:
        raise LookupError(f"dray.api.kinds does not have {kind} in group {group!r}")
    return Resource(found.group, found.versions[0], found.plural, found.kind, found.namespaced)


def versions_of(resource: Resource) -> tuple[Resource, ...]:
    """Return the resource in every version that dray can read, the preferred one first.

    >>> [each.version for each in versions_of(TAINT_RULES)]
    ['v1', 'v1beta2', 'v1alpha3']
    """
    found = kind_of(resource.group, resource.kind)
    return tuple(resource.at(version) for version in found.versions) if found is not None else (resource,)


PODS = resource_of("", "Pod")
NODES = resource_of("", "Node")
NAMESPACES = resource_of("", "Namespace")
EVENTS = resource_of("", "Event")
SECRETS = resource_of("", "Secret")
CONFIG_MAPS = resource_of("", "ConfigMap")
SERVICE_ACCOUNTS = resource_of("", "ServiceAccount")
RESOURCE_QUOTAS = resource_of("", "ResourceQuota")
CUSTOM_RESOURCE_DEFINITIONS = resource_of(APIEXTENSIONS, "CustomResourceDefinition")
LEASES = resource_of(COORDINATION, "Lease")
DEPLOYMENTS = resource_of("apps", "Deployment")
REPLICA_SETS = resource_of("apps", "ReplicaSet")
DAEMON_SETS = resource_of("apps", "DaemonSet")
JOBS = resource_of("batch", "Job")
CLUSTER_ROLES = resource_of(RBAC, "ClusterRole")
CLUSTER_ROLE_BINDINGS = resource_of(RBAC, "ClusterRoleBinding")
PRIORITY_CLASSES = resource_of(SCHEDULING, "PriorityClass")
POD_GROUPS = resource_of(SCHEDULING, "PodGroup")
DISRUPTION_BUDGETS = resource_of("policy", "PodDisruptionBudget")
HORIZONTAL_POD_AUTOSCALERS = resource_of("autoscaling", "HorizontalPodAutoscaler")
DEVICE_CLASSES = resource_of(RESOURCE, "DeviceClass")
SLICES = resource_of(RESOURCE, "ResourceSlice")
CLAIMS = resource_of(RESOURCE, "ResourceClaim")
CLAIM_TEMPLATES = resource_of(RESOURCE, "ResourceClaimTemplate")
TAINT_RULES = resource_of(RESOURCE, "DeviceTaintRule")
POOL_STATUS_REQUESTS = resource_of(RESOURCE, "ResourcePoolStatusRequest")
