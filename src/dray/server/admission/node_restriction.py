"""NodeRestriction: a node writes only about itself.

Authorisation lets nodes create slices, pods and leases without seeing their
content; this plugin looks inside. A node may create slices only with its own
name, mirror pods only for itself, its own Node and Lease; it may not change its
own taints, labels that steer pods, or the claims of its pods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.api.kinds import COORDINATION, RESOURCE
from dray.api.well_known import (
    ARCH_LABEL,
    BETA_ARCH_LABEL,
    BETA_OS_LABEL,
    HOSTNAME_LABEL,
    MIRROR_POD_ANNOTATION,
    OS_LABEL,
    REGION_LABEL,
    ZONE_LABEL,
)
from dray.server.admission.admission_plugin import BasePlugin, refused, target_of
from dray.server.auth import node_name_of, references_of
from dray.server.requests import ApiError, Call, Reader, not_found

RESTRICTION_DOMAIN = "node-restriction.kubernetes.io"
# Labels of Kubernetes' own domains that a node may set on itself.
_NODE_LABELS = frozenset(
    {
        HOSTNAME_LABEL,
        OS_LABEL,
        ARCH_LABEL,
        "node.kubernetes.io/instance-type",
        "node.kubernetes.io/windows-build",
        ZONE_LABEL,
        REGION_LABEL,
        BETA_OS_LABEL,
        BETA_ARCH_LABEL,
        "beta.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    }
)
_NODE_LABEL_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")


@dataclass(slots=True)
class NodeRestriction(BasePlugin):
    """Restrict requests of users that are nodes."""

    reader: Reader
    name: str = "NodeRestriction"

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Refuse what a node may not write. (Upstream decides this in the mutating phase, too.)"""
        node = self._node_of(call, new)
        if not node:
            return
        group, resource, _ = target_of(call)
        decide = _RULES.get((group, resource))
        if decide is not None:
            why = decide(self, node, call, operation, new, old)
            if why:
                raise refused(call, new, why)

    def validate_delete(self, call: Call, old: JsonObject) -> None:
        """Refuse deletions of what belongs to other nodes."""
        node = self._node_of(call, old)
        if not node:
            return
        group, resource, _ = target_of(call)
        spec, name = old.get("spec") or {}, old["metadata"]["name"]
        why = ""
        if (group, resource) == ("", "pods") and spec.get("nodeName") != node:
            evicts = call.route.subresource == "eviction"
            who, what = (node, "evict") if evicts else (f'"{node}"', "delete")
            why = f"node {who} can only {what} pods with spec.nodeName set to itself"
        elif (group, resource) == ("", "nodes") and name != node:
            why = f'node "{node}" is not allowed to modify node "{name}"'
        elif (group, resource) == (RESOURCE, "resourceslices") and spec.get("nodeName") != node:
            why = "can only delete ResourceSlice with the same NodeName as the requesting node"
        if why:
            raise refused(call, old, why)

    def _node_of(self, call: Call, thing: JsonObject) -> str:
        node = node_name_of(call.user)
        if node == "":
            raise refused(call, thing, f'could not determine node from user "{call.user.name}"')
        return node or ""

    def _pod(self, node: str, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> str:
        subresource = call.route.subresource
        if subresource == "":
            if operation != "CREATE":
                return f'unexpected operation "{operation}", node "{node}" can only create and delete mirror pods'
            return self._mirror_pod(node, new)
        if subresource == "status":
            return _pod_status(node, new, old or {})
        if subresource == "eviction":
            return self._eviction(node, call, new)
        return f"unexpected pod subresource \"{subresource}\", only 'status' and 'eviction' are allowed"

    def _mirror_pod(self, node: str, new: JsonObject) -> str:
        metadata, spec = new.get("metadata") or {}, new.get("spec") or {}
        if MIRROR_POD_ANNOTATION not in (metadata.get("annotations") or {}):
            return f'pod does not have "{MIRROR_POD_ANNOTATION}" annotation, node "{node}" can only create mirror pods'
        if spec.get("nodeName") != node:
            return f'node "{node}" can only create pods with spec.nodeName set to itself'
        owners = metadata.get("ownerReferences") or []
        if len(owners) > 1:
            return f'node "{node}" can only create pods with a single owner reference set to itself'
        if not owners or (owners[0].get("apiVersion"), owners[0].get("kind"), owners[0].get("name")) != (
            "v1",
            "Node",
            node,
        ):
            return f'node "{node}" can only create pods with an owner reference set to itself'
        if not owners[0].get("controller"):
            return f'node "{node}" can only create pods with a controller owner reference set to itself'
        if owners[0].get("blockOwnerDeletion"):
            return f'node "{node}" must not set blockOwnerDeletion on an owner reference'
        found = self.reader.get("", "nodes", "", node)
        if found is None:
            raise not_found("", "nodes", node)
        if owners[0].get("uid") != found["metadata"].get("uid"):
            return f"node {node} UID mismatch: expected {owners[0].get('uid')} got {found['metadata'].get('uid')}"
        references = sorted({resource for resource, _ in references_of(new)})
        return f'node "{node}" can not create pods that reference {references[0]}' if references else ""

    def _eviction(self, node: str, call: Call, new: JsonObject) -> str:
        name = call.route.name or (new.get("metadata") or {}).get("name", "")
        if not name:
            return "could not determine pod from request data"
        pod = self._pod_named(call, name)
        if (pod.get("spec") or {}).get("nodeName") != node:
            return f"node {node} can only evict pods with spec.nodeName set to itself"
        return ""

    def _node(self, node: str, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> str:
        name = call.route.name or (new.get("metadata") or {}).get("name", "")
        if name != node:
            return f'node "{node}" is not allowed to modify node "{name}"'
        labels = _labels(new)
        if operation == "CREATE":
            denied = _forbidden_labels(labels, {})
            return (
                f'node "{node}" is not allowed to set the following labels: {", ".join(denied)}'
                if denied
                else ""
            )
        before = old or {}
        if ((new.get("spec") or {}).get("taints") or []) != ((before.get("spec") or {}).get("taints") or []):
            return f'node "{node}" is not allowed to modify taints'
        if _owners(new) != _owners(before):
            return f'node "{node}" is not allowed to modify ownerReferences'
        denied = _forbidden_labels(labels, _labels(before))
        return f"is not allowed to modify labels: {', '.join(denied)}" if denied else ""

    def _token(self, node: str, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> str:
        if operation != "CREATE" or call.route.subresource != "token":
            return ""
        bound = (new.get("spec") or {}).get("boundObjectRef") or {}
        if (bound.get("apiVersion"), bound.get("kind")) != ("v1", "Pod") or not bound.get("name"):
            return "node requested token not bound to a pod"
        if not bound.get("uid"):
            return "node requested token with a pod binding without a uid"
        pod = self._pod_named(call, bound["name"])
        if pod["metadata"].get("uid") != bound["uid"]:
            return (
                f"the UID in the bound object reference ({bound['uid']}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
        if (pod.get("spec") or {}).get("nodeName") != node:
            return "node requested token bound to a pod scheduled on a different node"
        return ""

    def _lease(self, node: str, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> str:
        name = call.route.name or (new.get("metadata") or {}).get("name", "")
        if call.route.namespace != "kube-node-lease":
            return 'can only access leases in the "kube-node-lease" system namespace'
        if name != node:
            return "can only access node lease with the same name as the requesting node"
        return ""

    def _resource_slice(
        self, node: str, call: Call, operation: str, new: JsonObject, old: JsonObject | None
    ) -> str:
        if operation == "CREATE" and (new.get("spec") or {}).get("nodeName") != node:
            return "can only create ResourceSlice with the same NodeName as the requesting node"
        # On update the authoriser has seen the old object, and nodeName is immutable.
        return ""

    def _pod_named(self, call: Call, name: str) -> JsonObject:
        pod = self.reader.get("", "pods", call.route.namespace, name)
        if pod is None:
            missing: ApiError = not_found("", "pods", name)
            raise missing
        return pod


def _pod_status(node: str, new: JsonObject, old: JsonObject) -> str:
    if (old.get("spec") or {}).get("nodeName") != node:
        return f'node "{node}" can only update pod status for pods with spec.nodeName set to itself'  # noqa: S608
    if _labels(new) != _labels(old):
        return f'node "{node}" cannot update labels through pod status'
    for part, shown in (
        ("resourceClaimStatuses", "resource claim statues"),
        ("extendedResourceClaimStatus", "extended resource claim status"),
        ("nodeAllocatableResourceClaimStatuses", "node allocatable resource claim statuses"),
    ):
        if ((new.get("status") or {}).get(part) or None) != ((old.get("status") or {}).get(part) or None):
            return f'node "{node}" cannot update {shown}'
    return ""


def _labels(thing: JsonObject) -> Mapping[str, str]:
    labels: Mapping[str, str] = (thing.get("metadata") or {}).get("labels") or {}
    return labels


def _owners(thing: JsonObject) -> list[JsonObject]:
    owners: list[JsonObject] = (thing.get("metadata") or {}).get("ownerReferences") or []
    return owners


def _forbidden_labels(new: Mapping[str, str], old: Mapping[str, str]) -> list[str]:
    changed = (key for key in new.keys() | old.keys() if new.get(key) != old.get(key))
    return sorted(key for key in changed if not _node_may_set(key))


def _node_may_set(label: str) -> bool:
    domain, slash, _ = label.partition("/")
    if not slash:
        return True
    if _within(domain, RESTRICTION_DOMAIN):
        return False
    if not (_within(domain, "kubernetes.io") or _within(domain, "k8s.io")):
        return True
    return label in _NODE_LABELS or any(_within(domain, allowed) for allowed in _NODE_LABEL_DOMAINS)


def _within(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith(f".{parent}")


_Rule = Callable[[NodeRestriction, str, Call, str, JsonObject, JsonObject | None], str]
_RULES: dict[tuple[str, str], _Rule] = {
    ("", "pods"): NodeRestriction._pod,
    ("", "nodes"): NodeRestriction._node,
    ("", "serviceaccounts"): NodeRestriction._token,
    (COORDINATION, "leases"): NodeRestriction._lease,
    (RESOURCE, "resourceslices"): NodeRestriction._resource_slice,
}
