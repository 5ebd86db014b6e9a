"""UserPods: pods of people of the machine run as that person, whatever the pod asks for.

Whose a pod is: the caller's, if the caller is a user of the machine (group `dray:users`); else the owner's of the
namespace, if it is that of a user, so that a Job's controller cannot be used to become somebody else. Pods that
an administrator (`system:masters`) makes are not touched.

The uid, the gid and the supplementary groups are those of the account at the time of the request. A pod may ask for
fewer supplementary groups and for another of the person's own groups as its main one. It may not ask for another uid, for rights beyond
those of a process of that person (privileged, capabilities, namespaces of the host, sysctls), for files of the host
by way of a volume, for a node (the scheduler has to know of all use), or for another service account. `_FORBIDDEN`
and `_VOLUMES` are the tables; tests/unit/server/test_user_pods.py walks over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.user_names import USER_ANNOTATION, USERS_GROUP
from dray.host.accounts import Account
from dray.server.admission.admission_plugin import BasePlugin, refused, target_of
from dray.server.auth import MASTERS_GROUP
from dray.server.requests import Call, Reader

# Kinds of volumes that hold nothing of the host; all others are refused, new ones of Kubernetes as well.
_VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "projected", "secret"})
_LISTS = ("initContainers", "containers", "ephemeralContainers")
_SYSTEM_PRIORITY = "system-"

# Fields of the pod's spec that must be empty, false or absent.
_FORBIDDEN: tuple[tuple[str, ...], ...] = (
    ("hostPID",),
    ("hostIPC",),
    ("hostNetwork",),
    ("nodeName",),
    ("runtimeClassName",),
    ("securityContext", "sysctls"),
    ("securityContext", "seLinuxOptions"),
    ("securityContext", "windowsOptions"),
)
_FORBIDDEN_IN_CONTAINERS: tuple[tuple[str, ...], ...] = (
    ("securityContext", "privileged"),
    ("securityContext", "capabilities", "add"),
    ("securityContext", "procMount"),
    ("securityContext", "seLinuxOptions"),
    ("securityContext", "windowsOptions"),
    ("volumeDevices",),
)


@dataclass(slots=True)
class UserPods(BasePlugin):
    """Give pods of people of the machine their identity, and refuse what goes beyond it."""

    reader: Reader
    account_of: Callable[[str], Account | None]
    name: str = "UserPods"

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Set user and groups of a new pod; refuse others, here and in ephemeral containers."""
        group, resource, subresource = target_of(call)
        is_new = operation == "CREATE" and subresource == ""
        if (group, resource) != ("", "pods") or not (is_new or subresource == "ephemeralcontainers"):
            return
        owner = owner_of(call, self.reader)
        if not owner or not isinstance(new.get("spec"), dict):
            return
        account = self.account_of(owner)
        if account is None:
            raise refused(
                call, new, f"user {owner!r} has no account on this machine, so nothing can run as it"
            )
        if is_new:
            _complete(new["spec"], account)
        why = next(complaints(new["spec"], account, is_new=is_new), "")
        if why:
            raise refused(call, new, why)


def owner_of(call: Call, reader: Reader) -> str:
    """Return the person whose pod this is; "" when it belongs to nobody of the machine."""
    if USERS_GROUP in call.user.groups:
        return call.user.name
    if MASTERS_GROUP in call.user.groups:
        return ""
    namespace = reader.get("", "namespaces", "", call.route.namespace) or {}
    return str(((namespace.get("metadata") or {}).get("annotations") or {}).get(USER_ANNOTATION, ""))


def _complete(spec: JsonObject, account: Account) -> None:
    context = spec["securityContext"] = dict(spec.get("securityContext") or {})
    for field, value in (("runAsUser", account.uid), ("runAsGroup", account.gid)):
        if context.get(field) is None:
            context[field] = value
    if context.get("supplementalGroups") is None and account.supplementary:
        context["supplementalGroups"] = account.supplementary


def complaints(spec: JsonObject, account: Account, *, is_new: bool = True) -> Iterator[str]:
    """Yield why a pod cannot run as an account."""
    context = spec.get("securityContext") or {}
    yield from _identity_complaints("spec.securityContext", context, account)
    allowed = {gid for gid, _ in account.groups} | {account.gid}
    for field, values in (
        ("supplementalGroups", context.get("supplementalGroups") or ()),
        ("fsGroup", [context["fsGroup"]] if context.get("fsGroup") is not None else ()),
    ):
        for gid in sorted(set(values) - allowed):
            yield f"spec.securityContext.{field}: {account.name} is not in the group {gid}"
    for path in _FORBIDDEN:
        # A node is chosen for a pod that exists; only who creates one may not choose it.
        if _value(spec, path) and (is_new or path != ("nodeName",)):
            yield f"spec.{'.'.join(path)} may not be set by users of this machine"
    for place, container in _containers(spec):
        yield from _identity_complaints(
            f"{place}.securityContext", container.get("securityContext") or {}, account
        )
        for path in _FORBIDDEN_IN_CONTAINERS:
            if _value(container, path):
                yield f"{place}.{'.'.join(path)} may not be set by users of this machine"
    for volume in spec.get("volumes") or ():
        for kind in sorted(set(volume) - _VOLUMES - {"name"}):
            if volume[kind] is not None:
                yield f"spec.volumes[{volume.get('name', '')}]: users of this machine may not use {kind} volumes"
    if spec.get("serviceAccountName", "") not in ("", "default"):
        yield "spec.serviceAccountName: users of this machine have the service account default only"
    if str(spec.get("priorityClassName") or "").startswith(_SYSTEM_PRIORITY):
        yield "spec.priorityClassName: classes of the system are not for users of this machine"


def _identity_complaints(place: str, context: JsonObject, account: Account) -> Iterator[str]:
    user, group = context.get("runAsUser"), context.get("runAsGroup")
    if user is not None and user != account.uid:
        yield f"{place}.runAsUser: {user} is not the uid of {account.name} ({account.uid})"
    if group is not None and group not in {account.gid, *(gid for gid, _ in account.groups)}:
        yield f"{place}.runAsGroup: {account.name} is not in the group {group}"


def _containers(spec: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    for field in _LISTS:
        for container in spec.get(field) or ():
            yield f"spec.{field}[{container.get('name', '')}]", container


def _value(thing: JsonObject, path: tuple[str, ...]) -> Any:
    value: Any = thing
    for part in path:
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    # `Default` is what procMount is when nobody asks for it.
    return None if value == "Default" else value
