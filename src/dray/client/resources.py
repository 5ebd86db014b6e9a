"""The resources that dray talks about, and how their addresses are spelled.

A `Resource` is a group, a version, a plural and a scope; nothing is discovered
at run time, because dray knows at compile time what it reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


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
        """Spell the address of the collection, an object of it, or a subresource."""
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


def _dra(plural: str, kind: str, namespaced: bool = False, version: str = "v1") -> Resource:
    return Resource("resource.k8s.io", version, plural, kind, namespaced)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
JOBS = Resource("batch", "v1", "jobs", "Job")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
DEVICE_CLASSES = _dra("deviceclasses", "DeviceClass")
SLICES = _dra("resourceslices", "ResourceSlice")
CLAIMS = _dra("resourceclaims", "ResourceClaim", namespaced=True)
CLAIM_TEMPLATES = _dra("resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True)
TAINT_RULES = _dra("devicetaintrules", "DeviceTaintRule")
POOL_STATUS_REQUESTS = _dra("resourcepoolstatusrequests", "ResourcePoolStatusRequest", version="v1alpha3")
