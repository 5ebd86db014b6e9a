"""A namespace for each user of the machine, made at their first request, with the role that lets them use it.

The namespace is looked up at every request of a user, which costs one dictionary access; so one that was deleted
comes back when its user does. The binding is made with the namespace and is not restored later: an administrator
who removes it takes the rights away. An administrator may also make the namespace beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.api.kinds import RBAC, Kind, kind_of
from dray.api.user_names import USER_ANNOTATION, USER_LABEL, USER_ROLE, USERS_GROUP, user_namespace
from dray.api.well_known import NAMESPACE_NAME_LABEL
from dray.server.objects.initial_objects import ensure_object
from dray.server.objects.stored_objects import Objects, key_of
from dray.server.requests import Environment, User


def _kind(group: str, name: str) -> Kind:
    kind = kind_of(group, name)
    assert kind is not None
    return kind


_NAMESPACE, _BINDING = _kind("", "Namespace"), _kind(RBAC, "RoleBinding")


@dataclass(slots=True)
class UserNamespaces:
    """Makes what a user needs before the first request is judged."""

    objects: Objects
    environment: Environment

    async def ensure(self, user: User) -> None:
        """Make the namespace and the binding of a user of the machine; does nothing for other users."""
        if USERS_GROUP not in user.groups:
            return
        name = user_namespace(user.name)
        if self.objects.store.get(key_of(_NAMESPACE, "", name)) is not None:
            return
        await ensure_object(self.objects, self.environment, _BINDING, _binding(name, user.name))
        await ensure_object(self.objects, self.environment, _NAMESPACE, _namespace(name, user.name))


def _namespace(name: str, user: str) -> JsonObject:
    return {
        "metadata": {
            "name": name,
            "labels": {NAMESPACE_NAME_LABEL: name, USER_LABEL: "true"},
            "annotations": {USER_ANNOTATION: user},
        },
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _binding(namespace: str, user: str) -> JsonObject:
    return {
        "metadata": {"name": USER_ROLE, "namespace": namespace},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": USER_ROLE},
    }
