"""What a node may do: read what its pods need, write what it owns.

A node agent holds a certificate for `system:node:NAME` in the group
`system:nodes`. It may read the secrets, config maps, service accounts and claims
that pods bound to it refer to, list pods and slices only with a selector for its
own name, and change only its own slices and lease. What needs the content of the
new object (whose slice is created, which labels change) is left to the admission
plugin NodeRestriction.

Theory of operation: pods are filed by node, each with the set of objects it
refers to. The file is made from the `Reader` at the first question of any node
and then follows every write through `observe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dray.api.json_types import JsonObject
from dray.api.kinds import AUTHENTICATION, AUTHORIZATION, COORDINATION, RESOURCE, STORAGE
from dray.api.well_known import MIRROR_POD_ANNOTATION
from dray.server.auth.rbac import Rule
from dray.server.requests import Reader, User

if TYPE_CHECKING:
    from dray.server.auth.authorization import Attributes

NODE_USER_PREFIX = "system:node:"
NODES_GROUP = "system:nodes"
LEASE_NAMESPACE = "kube-node-lease"

Reference = tuple[str, str]  # resource, name; in the namespace of the pod


def node_name_of(user: User) -> str | None:
    """Return the node that a user is: None for others, "" for a node that cannot be named."""
    if NODES_GROUP not in user.groups or not user.name.startswith(NODE_USER_PREFIX):
        return None
    return user.name.removeprefix(NODE_USER_PREFIX)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Allowed, or why not."""

    allowed: bool
    reason: str = ""


ALLOWED = Verdict(True)


@dataclass(slots=True)
class NodeAuthorizer:
    """Decide requests of nodes."""

    reader: Reader
    # node -> (namespace, pod) -> what the pod refers to; None until first needed
    _pods: dict[str, dict[tuple[str, str], frozenset[Reference]]] | None = None
    _node_of_pod: dict[tuple[str, str], str] = field(default_factory=dict)

    def authorize(self, node: str, attributes: Attributes) -> Verdict:
        """Decide a request of a node."""
        if attributes.path:
            return Verdict(False)
        decide = _DECISIONS.get((attributes.group, attributes.resource))
        if decide is not None:
            return decide(self, node, attributes)
        allowed = any(
            rule.allows(
                attributes.verb,
                attributes.group,
                attributes.resource,
                attributes.subresource,
                attributes.name,
            )
            for rule in _UNIFORM_RULES
        )
        return Verdict(allowed)

    def observe(self, group: str, resource: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Follow a committed write; called for every object, acts on pods only."""
        if self._pods is None or group or resource != "pods":
            return
        if new is not None:
            self._file(new)
        elif old is not None:
            self._forget((old["metadata"].get("namespace", ""), old["metadata"]["name"]))

    def refers(self, node: str, resource: str, namespace: str, name: str) -> bool:
        """Return whether some pod on the node refers to the object."""
        pods = self._pods_by_node().get(node, {})
        return any(
            (resource, name) in references
            for (pod_namespace, _), references in pods.items()
            if pod_namespace == namespace
        )

    def _pods_by_node(self) -> dict[str, dict[tuple[str, str], frozenset[Reference]]]:
        if self._pods is None:
            self._pods = {}
            for pod in self.reader.list("", "pods"):
                self._file(pod)
        return self._pods

    def _file(self, pod: JsonObject) -> None:
        assert self._pods is not None
        key = (pod["metadata"].get("namespace", ""), pod["metadata"]["name"])
        self._forget(key)
        node = (pod.get("spec") or {}).get("nodeName", "")
        if node:
            # A node makes its mirror pods itself, so they must not open anything to it.
            mirrors = MIRROR_POD_ANNOTATION in (pod["metadata"].get("annotations") or {})
            self._pods.setdefault(node, {})[key] = frozenset(() if mirrors else references_of(pod))
            self._node_of_pod[key] = node

    def _forget(self, key: tuple[str, str]) -> None:
        assert self._pods is not None
        node = self._node_of_pod.pop(key, None)
        if node is not None:
            self._pods[node].pop(key, None)
            if not self._pods[node]:
                del self._pods[node]

    def _related(self, node: str, attributes: Attributes) -> Verdict:
        if not attributes.name:
            return Verdict(False, "No Object name found")
        if self.refers(node, attributes.resource, attributes.namespace, attributes.name):
            return ALLOWED
        return _unrelated(node)

    def _read_referenced(self, node: str, attributes: Attributes) -> Verdict:
        if attributes.verb not in ("get", "list", "watch"):
            return Verdict(False, "can only read resources of this type")
        if attributes.subresource:
            return Verdict(False, "cannot read subresource")
        if not attributes.namespace:
            return Verdict(False, "can only read namespaced object of this type")
        return self._related(node, attributes)

    def _get_referenced(self, node: str, attributes: Attributes) -> Verdict:
        if attributes.verb != "get":
            return Verdict(False, "can only get individual resources of this type")
        if attributes.subresource:
            return Verdict(False, "cannot get subresource")
        return self._related(node, attributes)

    def _service_account(self, node: str, attributes: Attributes) -> Verdict:
        if attributes.verb == "get" and not attributes.subresource:
            return self._read_referenced(node, attributes)
        if attributes.verb != "create" or not attributes.name:
            return Verdict(False, "can only create tokens for individual service accounts")
        if attributes.subresource != "token":
            return Verdict(False, "can only create token subresource of serviceaccount")
        return self._related(node, attributes)

    def _lease(self, node: str, attributes: Attributes) -> Verdict:
        if attributes.verb not in ("get", "create", "update", "patch", "delete"):
            return Verdict(False, "can only get, create, update, patch, or delete a node lease")
        if attributes.namespace != LEASE_NAMESPACE:
            return Verdict(False, f'can only access leases in the "{LEASE_NAMESPACE}" system namespace')
        if attributes.verb != "create" and attributes.name != node:
            return Verdict(False, "can only access node lease with the same name as the requesting node")
        return ALLOWED

    def _resource_slice(self, node: str, attributes: Attributes) -> Verdict:
        if attributes.subresource:
            return Verdict(False, "cannot authorize ResourceSlice subresources")
        if attributes.verb == "create":
            return ALLOWED  # whose slice it is, NodeRestriction checks
        if attributes.verb in ("get", "update", "patch", "delete"):
            if not attributes.name:
                return Verdict(False, "No Object name found")
            found = self.reader.get(RESOURCE, "resourceslices", "", attributes.name)
            own = found is not None and (found.get("spec") or {}).get("nodeName") == node
            return ALLOWED if own else _unrelated(node)
        if attributes.verb in ("watch", "list", "deletecollection"):
            if attributes.selects_field("spec.nodeName", node):
                return ALLOWED
            return Verdict(
                False, "can only list/watch/deletecollection resourceslices with nodeName field selector"
            )
        return Verdict(
            False,
            "only the following verbs are allowed for a ResourceSlice: "
            "get, watch, list, create, update, patch, delete, deletecollection",
        )

    def _node(self, node: str, attributes: Attributes) -> Verdict:
        if attributes.subresource == "status":
            return Verdict(attributes.verb in ("update", "patch"))
        if attributes.subresource:
            return Verdict(False)
        if attributes.verb in ("create", "update", "patch"):
            return ALLOWED  # whose node it is, NodeRestriction checks
        if attributes.verb in ("get", "list", "watch"):
            if attributes.name == node:
                return ALLOWED
            what = f"'{attributes.name}'" if attributes.name else "all nodes"
            return Verdict(False, f"node '{node}' cannot read {what}, only its own Node object")
        return Verdict(False)

    def _pod(self, node: str, attributes: Attributes) -> Verdict:
        verb = attributes.verb
        if attributes.subresource:
            allowed = {"status": ("update", "patch"), "eviction": ("create",)}.get(attributes.subresource, ())
            return Verdict(verb in allowed)
        if verb in ("create", "delete"):
            return ALLOWED  # mirror pods; NodeRestriction checks
        if verb in ("list", "watch") and attributes.selects_field("spec.nodeName", node):
            return ALLOWED
        if verb == "get" or (verb in ("list", "watch") and attributes.name):
            own = self._pods_by_node().get(node, {})
            return ALLOWED if (attributes.namespace, attributes.name) in own else _unrelated(node)
        if verb in ("list", "watch"):
            return Verdict(False, "can only list/watch pods with spec.nodeName field selector")
        return Verdict(False)


def references_of(pod: JsonObject) -> Iterator[Reference]:
    """Yield what a pod refers to in its namespace: accounts, secrets, config maps, claims."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if spec.get("serviceAccountName"):
        yield "serviceaccounts", spec["serviceAccountName"]
    for secret in spec.get("imagePullSecrets") or ():
        yield "secrets", secret.get("name", "")
    for volume in spec.get("volumes") or ():
        yield from _volume_references(volume)
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind) or ():
            yield from _environment_references(container)
    made = {claim.get("name"): claim for claim in status.get("resourceClaimStatuses") or ()}
    for claim in spec.get("resourceClaims") or ():
        # Named by the pod itself, or made from a template and named in the status.
        name = claim.get("resourceClaimName") or made.get(claim.get("name"), {}).get("resourceClaimName")
        if name:
            yield "resourceclaims", name
    extended = status.get("extendedResourceClaimStatus") or {}
    if extended.get("resourceClaimName"):
        yield "resourceclaims", extended["resourceClaimName"]


def _volume_references(volume: dict[str, Any]) -> Iterator[Reference]:
    sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
    for source in sources:
        secret, config_map = source.get("secret"), source.get("configMap")
        if secret:
            yield "secrets", secret.get("secretName") or secret.get("name", "")
        if config_map:
            yield "configmaps", config_map.get("name", "")


def _environment_references(container: dict[str, Any]) -> Iterator[Reference]:
    for source in container.get("envFrom") or ():
        if source.get("secretRef"):
            yield "secrets", source["secretRef"].get("name", "")
        if source.get("configMapRef"):
            yield "configmaps", source["configMapRef"].get("name", "")
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        if source.get("secretKeyRef"):
            yield "secrets", source["secretKeyRef"].get("name", "")
        if source.get("configMapKeyRef"):
            yield "configmaps", source["configMapKeyRef"].get("name", "")


def _unrelated(node: str) -> Verdict:
    return Verdict(False, f"no relationship found between node '{node}' and this object")


_Decide = Callable[[NodeAuthorizer, str, "Attributes"], Verdict]
_DECISIONS: dict[tuple[str, str], _Decide] = {
    ("", "secrets"): NodeAuthorizer._read_referenced,
    ("", "configmaps"): NodeAuthorizer._read_referenced,
    ("", "serviceaccounts"): NodeAuthorizer._service_account,
    ("", "nodes"): NodeAuthorizer._node,
    ("", "pods"): NodeAuthorizer._pod,
    (RESOURCE, "resourceclaims"): NodeAuthorizer._get_referenced,
    (RESOURCE, "resourceslices"): NodeAuthorizer._resource_slice,
    (COORDINATION, "leases"): NodeAuthorizer._lease,
}


def _rule(verbs: str, groups: str, resources: str) -> Rule:
    names = ("" if group == "core" else group for group in groups.split())
    return Rule(frozenset(verbs.split()), frozenset(names), frozenset(resources.split()))


# What every node may do to kinds that are not told apart by node.
_UNIFORM_RULES = (
    _rule("create", AUTHENTICATION, "tokenreviews"),
    _rule("create", AUTHORIZATION, "localsubjectaccessreviews subjectaccessreviews"),
    _rule("get list watch", "core", "services"),
    _rule("create patch update", "core events.k8s.io", "events"),
    _rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
    _rule("get list watch", "node.k8s.io", "runtimeclasses"),
    _rule("get list watch", STORAGE, "csidrivers"),
)
