"""What drivers need before they run: a role each, and what their installers bring (classes, custom kinds)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.kinds import COORDINATION, RESOURCE
from dray.client import AlreadyExists, Client
from dray.client.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from dray.drivers.compute_domains import ACCESS_RULES
from dray.drivers.driver_names import COMPUTE_DOMAIN
from dray.local.installed_objects import installed_objects


async def grant_drivers(client: Client, drivers: Collection[str], with_conditions: Collection[str]) -> None:
    """Let drivers publish slices and report on their own devices; those `with_conditions` also follow claims."""
    await asyncio.gather(*(_grant(client, driver, driver in with_conditions) for driver in drivers))


async def grant_light_nodes(client: Client) -> None:
    """Let one user do for all light nodes what nodes do for themselves."""
    from dray.local.credentials import LIGHT_USER

    rules: list[dict[str, Any]] = [
        {"apiGroups": [""], "resources": ["nodes", "pods"],
         "verbs": ["get", "list", "watch", "create", "patch", "update", "delete"]},
        {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch", "update"]},
        {"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events", "namespaces"], "verbs": ["create"]},
        {"apiGroups": [COORDINATION], "resources": ["leases"], "verbs": ["get", "create", "update"]},
        {"apiGroups": [RESOURCE], "resources": ["resourceslices"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [RESOURCE], "resources": ["resourceclaims"], "verbs": ["get"]},
    ]  # fmt: skip
    subject = {"apiGroup": CLUSTER_ROLES.group, "kind": "User", "name": LIGHT_USER}
    await bind_role(client, LIGHT_USER, rules, subject)


async def install_drivers(client: Client, drivers: Collection[str]) -> None:
    """Create the objects that come with drivers; what exists stays."""
    for resource, body in installed_objects(drivers):
        with contextlib.suppress(AlreadyExists):
            await client.create(resource, body, body["metadata"].get("namespace"))


async def _grant(client: Client, driver: str, follows_claims: bool) -> None:  # passed on from a set
    from dray.server.auth.rbac_objects import DRIVER_PREFIX

    name = DRIVER_PREFIX + driver
    # A driver that sets binding conditions has to see which claims were given its devices.
    verbs = ["get", "list", "watch"] if follows_claims else ["get"]
    rules: list[JsonObject] = [
        {"apiGroups": [RESOURCE], "resources": ["resourceslices"],
         "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]},
        {"apiGroups": [RESOURCE], "resources": ["resourceclaims"], "verbs": verbs},
        {"apiGroups": [RESOURCE], "resources": ["resourceclaims/status"], "verbs": ["update", "patch"]},
        {"apiGroups": [RESOURCE], "resources": ["resourceclaims/driver"], "resourceNames": [driver],
         "verbs": ["arbitrary-node:update", "arbitrary-node:patch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    ]  # fmt: skip
    rules += ACCESS_RULES if driver == COMPUTE_DOMAIN else ()
    await bind_role(client, name, rules, {"apiGroup": CLUSTER_ROLES.group, "kind": "User", "name": name})


async def bind_role(client: Client, name: str, rules: list[dict[str, Any]], subject: dict[str, str]) -> None:
    """Make a role and give it to one subject; what exists stays."""
    role = {
        "apiVersion": CLUSTER_ROLES.api_version,
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    }
    binding = {
        "apiVersion": CLUSTER_ROLES.api_version,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": name},
        "subjects": [subject],
    }
    with contextlib.suppress(AlreadyExists):
        await client.create(CLUSTER_ROLES, role)
    with contextlib.suppress(AlreadyExists):
        await client.create(CLUSTER_ROLE_BINDINGS, binding)
