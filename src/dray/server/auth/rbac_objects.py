"""Make the roles and bindings of `rbac_policy` into objects that the server creates at start.

Creating is additive, as in Kubernetes: what is missing is created; an existing
object with the annotation `rbac.authorization.kubernetes.io/autoupdate: "true"`
regains rules and subjects it has lost, and keeps what an administrator has added.

The controllers of dray act as one user, `system:kube-controller-manager`, where
Kubernetes runs each under a service account of its own. So every controller role
is bound to that user as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.kinds import RBAC, RESOURCE
from dray.api.user_names import USER_READER_ROLE, USERS_GROUP
from dray.server.auth.pki import NODE_CLIENT
from dray.server.auth.rbac import Rule, gathered_from, missing_rights
from dray.server.auth.rbac_policy import CLUSTER_ROLES, CONTROLLER_ROLES, DRAY_ROLES, KUBE_SYSTEM_ROLES

API_VERSION = f"{RBAC}/v1"
DRIVER_PREFIX = "dray:driver:"  # of a driver's user, and of its cluster role
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"
CONTROLLER_PREFIX = "system:controller:"

_VERBS = {
    "read": ("get", "list", "watch"),
    "write": ("create", "delete", "deletecollection", "patch", "update"),
    "all": ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"),
}
# role -> its subjects
_BINDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "cluster-admin": (("Group", "system:masters"),),
    USER_READER_ROLE: (("Group", USERS_GROUP),),
    "system:basic-user": (("Group", "system:authenticated"),),
    "system:cluster-trust-bundle-discovery": (("Group", "system:serviceaccounts"),),
    "system:discovery": (("Group", "system:authenticated"),),
    "system:kube-controller-manager": (("User", CONTROLLER_MANAGER),),
    "system:kube-dns": (("ServiceAccount", "kube-dns"),),
    "system:kube-scheduler": (("User", SCHEDULER),),
    "system:monitoring": (("Group", "system:monitoring"),),
    "system:node": (),
    "system:node-proxier": (("User", "system:kube-proxy"),),
    "system:public-info-viewer": (("Group", "system:authenticated"), ("Group", "system:unauthenticated")),
    "system:service-account-issuer-discovery": (("Group", "system:serviceaccounts"),),
    "system:volume-scheduler": (("User", SCHEDULER),),
}
_KUBE_SYSTEM_BINDINGS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "system::extension-apiserver-authentication-reader": (
        "extension-apiserver-authentication-reader",
        (("User", CONTROLLER_MANAGER), ("User", SCHEDULER)),
    ),
    "system::leader-locking-kube-controller-manager": (
        "system::leader-locking-kube-controller-manager",
        (("User", CONTROLLER_MANAGER), ("ServiceAccount", "kube-controller-manager")),
    ),
    "system::leader-locking-kube-scheduler": (
        "system::leader-locking-kube-scheduler",
        (("User", SCHEDULER), ("ServiceAccount", "kube-scheduler")),
    ),
}
_AGGREGATED = {
    "view": "aggregate-to-edit",
    "edit": "aggregate-to-admin",
    "admin": "",
}  # role -> its own label


def bootstrap_objects() -> list[tuple[str, JsonObject]]:
    """Return (resource, object) of everything to create, roles before their bindings."""
    objects = [("clusterroles", role) for role in _cluster_roles()]
    objects += [("clusterrolebindings", binding) for binding in _cluster_bindings()]
    for name, rules in parse_policy(KUBE_SYSTEM_ROLES):
        objects.append(("roles", _role("Role", name, rules, namespace="kube-system")))
    for name, (role, subjects) in _KUBE_SYSTEM_BINDINGS.items():
        objects.append(("rolebindings", _binding("RoleBinding", name, "Role", role, subjects, "kube-system")))
    leaders = (("User", CONTROLLER_MANAGER), ("User", SCHEDULER))
    leading = _binding("RoleBinding", "dray:leader-election", "ClusterRole", "dray:leader-election", leaders)
    recording = _binding(
        "RoleBinding", "dray:usage-record", "ClusterRole", "dray:usage-record", (("User", SCHEDULER),)
    )
    for binding in (leading, recording):
        binding["metadata"]["namespace"] = "kube-system"
        objects.append(("rolebindings", binding))
    return objects


def reconciled(existing: JsonObject, wanted: JsonObject) -> JsonObject | None:
    """Return the existing object with lost rules or subjects restored, None when nothing is lost."""
    annotations = existing["metadata"].get("annotations") or {}
    if annotations.get(AUTOUPDATE) != "true":
        return None
    if "roleRef" in wanted:
        present = existing.get("subjects") or []
        lost = [subject for subject in wanted.get("subjects") or () if subject not in present]
        return {**existing, "subjects": [*present, *lost]} if lost else None
    held = [Rule.parse(rule) for rule in existing.get("rules") or ()]
    lost = [rule for rule in wanted.get("rules") or () if missing_rights(held, [Rule.parse(rule)])]
    return {**existing, "rules": [*(existing.get("rules") or ()), *lost]} if lost else None


def driver_role(driver: str, arbitrary_nodes: bool = False) -> JsonObject:
    """Return the cluster role that lets a driver write its own part of claim status.

    By default only for claims allocated on the node of the driver's pod; a driver
    without node agents (fabric, network) needs `arbitrary_nodes`.
    """
    prefix = "arbitrary-node" if arbitrary_nodes else "associated-node"
    rule = {
        "verbs": [f"{prefix}:patch", f"{prefix}:update"],
        "apiGroups": [RESOURCE],
        "resources": ["resourceclaims/driver"],
        "resourceNames": [driver],
    }
    role = _role("ClusterRole", DRIVER_PREFIX + driver, [rule])
    del role["metadata"]["annotations"], role["metadata"]["labels"]
    return role


def parse_policy(text: str) -> Iterator[tuple[str, list[JsonObject]]]:
    """Read a table of roles; see `rbac_policy` for the format.

    >>> next(parse_policy("viewer\\n  - read core: pods = a"))[1][0]["resourceNames"]
    ['a']
    """
    name, lines = "", list[str]()
    for line in text.splitlines():
        if not line.strip():
            continue
        if not line.startswith(" "):
            if name:
                yield name, [_parse_rule(rule) for rule in lines]
            name, lines = line.strip(), []
        elif line.startswith("  - "):
            lines.append(line.strip()[2:])
        else:
            lines[-1] += f" {line.strip()}"
    if name:
        yield name, [_parse_rule(rule) for rule in lines]


def _parse_rule(text: str) -> JsonObject:
    head, _, rest = text.partition(": ")
    verb_words, _, groups = head.partition(" ")
    things, _, names = rest.partition(" = ")
    verbs = [verb for word in verb_words.split(",") for verb in _VERBS.get(word, (word,))]
    rule: JsonObject = {"verbs": sorted(verbs)}
    if groups == "url":
        return {**rule, "nonResourceURLs": things.split()}
    rule["apiGroups"] = ["" if group == "core" else group for group in groups.split(",")]
    rule["resources"] = things.split()
    if names:
        rule["resourceNames"] = names.split()
    return rule


def _cluster_roles() -> list[JsonObject]:
    roles = [
        _role("ClusterRole", name, rules)
        for name, rules in parse_policy(CLUSTER_ROLES + CONTROLLER_ROLES + DRAY_ROLES)
    ]
    for role in roles:
        name = role["metadata"]["name"]
        if name.startswith("system:aggregate-to-"):
            role["metadata"]["labels"][f"{RBAC}/{name.removeprefix('system:')}"] = "true"
    by_name = {role["metadata"]["name"]: role for role in roles}
    # In the order in which they gather each other, so that each is complete when the next gathers it.
    for name, label in _AGGREGATED.items():
        role = _role("ClusterRole", name, [])
        if label:
            role["metadata"]["labels"][f"{RBAC}/{label}"] = "true"
        selector = {"matchLabels": {f"{RBAC}/aggregate-to-{name}": "true"}}
        role["aggregationRule"] = {"clusterRoleSelectors": [selector]}
        for other in gathered_from(role, by_name):
            role["rules"] += [rule for rule in by_name[other]["rules"] if rule not in role["rules"]]
        by_name[name] = role
    return list(by_name.values())


def _cluster_bindings() -> Iterator[JsonObject]:
    for role, subjects in _BINDINGS.items():
        yield _binding("ClusterRoleBinding", role, "ClusterRole", role, subjects)
    for role, _ in parse_policy(CONTROLLER_ROLES):
        account = ("ServiceAccount", role.removeprefix(CONTROLLER_PREFIX))
        yield _binding("ClusterRoleBinding", role, "ClusterRole", role, (account,))
        own = f"dray:controller:{role.removeprefix(CONTROLLER_PREFIX)}"
        yield _binding("ClusterRoleBinding", own, "ClusterRole", role, (("User", CONTROLLER_MANAGER),))
    # What kubeadm does for kube-apiserver: the server's own identity may use the ports of all node agents.
    role = "system:kubelet-api-admin"
    yield _binding("ClusterRoleBinding", "dray:node-client", "ClusterRole", role, (("User", NODE_CLIENT),))


def _metadata(name: str, namespace: str = "") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    metadata["annotations"] = {AUTOUPDATE: "true"}
    return metadata


def _role(kind: str, name: str, rules: Sequence[JsonObject], namespace: str = "") -> JsonObject:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": _metadata(name, namespace),
        "rules": list(rules),
    }


def _binding(
    kind: str, name: str, role_kind: str, role: str, subjects: Sequence[tuple[str, str]], namespace: str = ""
) -> JsonObject:
    binding: JsonObject = {"apiVersion": API_VERSION, "kind": kind, "metadata": _metadata(name, namespace)}
    if subjects:
        binding["subjects"] = [_subject(*subject) for subject in subjects]
    binding["roleRef"] = {"apiGroup": RBAC, "kind": role_kind, "name": role}
    return binding


def _subject(kind: str, name: str) -> JsonObject:
    if kind == "ServiceAccount":
        return {"kind": kind, "name": name, "namespace": "kube-system"}
    return {"kind": kind, "apiGroup": RBAC, "name": name}
