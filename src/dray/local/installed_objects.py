"""What the installers of drivers bring into a cluster beside the drivers themselves.

Device classes, custom kinds, and (for ComputeDomains) the namespace of the daemons and the rights of the controller.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dray.api import compute_domains
from dray.api.json_types import JsonObject
from dray.api.kinds import RESOURCE
from dray.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    Resource,
)
from dray.drivers.driver_names import COMPUTE_DOMAIN
from dray.drivers.hardware import custom_resources, device_classes

_CONTROLLERS = "system:kube-controller-manager"  # as whom dray's controllers act
_WRITE = ["create", "delete", "get", "list", "patch", "update", "watch"]


def installed_objects(drivers: Iterable[str]) -> list[tuple[Resource, JsonObject]]:
    """Return what to create for these drivers, in order."""
    names = frozenset(drivers)
    objects = [(CUSTOM_RESOURCE_DEFINITIONS, body) for body in custom_resources(names)]
    for device_class in device_classes(names):
        head: JsonObject = {"apiVersion": device_class.api_version, "kind": device_class.kind}
        objects.append((DEVICE_CLASSES, head | msgspec.to_builtins(device_class)))
    if COMPUTE_DOMAIN in names:
        objects += _compute_domain_objects()
    return objects


def _object(
    resource: Resource, name: str, namespace: str = "", **fields: object
) -> tuple[Resource, JsonObject]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return resource, {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        **fields,
    }


def _compute_domain_objects() -> list[tuple[Resource, JsonObject]]:
    role = "dray:compute-domains"
    plurals = ["computedomains", "computedomains/status", "computedomaincliques"]
    rules = [
        {"apiGroups": [compute_domains.GROUP], "resources": plurals, "verbs": _WRITE},
        {"apiGroups": [RESOURCE], "resources": ["resourceclaimtemplates"], "verbs": _WRITE},
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": _WRITE},
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "patch", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    ]
    reference = {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": role}
    subject = {"apiGroup": CLUSTER_ROLES.group, "kind": "User", "name": _CONTROLLERS}
    return [
        _object(NAMESPACES, compute_domains.NAMESPACE),
        _object(SERVICE_ACCOUNTS, compute_domains.SERVICE_ACCOUNT, compute_domains.NAMESPACE),
        _object(CLUSTER_ROLES, role, rules=rules),
        _object(CLUSTER_ROLE_BINDINGS, role, roleRef=reference, subjects=[subject]),
    ]
