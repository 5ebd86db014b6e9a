"""Rules about an object that need to look beyond it: at its namespace, its nodes, its writer.

Validation itself is pure (`dray.api.validation`); what it cannot know is found out
here and handed to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.features import DEVICES_AFTER_POD_START, Features
from dray.api.json_types import JsonObject
from dray.api.kinds import RESOURCE
from dray.api.validation import (
    CelVerdict,
    FieldError,
    check_admin_access,
    check_admin_access_of_status,
    check_declared_features,
    expressions_of,
)
from dray.api.validation.fields import forbidden
from dray.server.auth import Attributes, Authorizer
from dray.server.requests import LARGE, Call, Reader, errors

_RESOURCE = RESOURCE


@dataclass(frozen=True, slots=True)
class Selectors:
    """Judges the CEL expressions of claims and classes."""

    features: Features

    def check(self, expression: str, *, stored: bool, derived: bool) -> CelVerdict:
        """Compile an expression for validation."""
        # CEL is a tenth of the start-up time, and the first claim comes later.
        from dray.cel import check_expression

        verdict = check_expression(expression, features=self.features, stored=stored, derived=derived)
        return CelVerdict(verdict.error, verdict.max_cost)


_WITH_EXPRESSIONS = frozenset({"ResourceClaim", "ResourceClaimTemplate", "DeviceClass"})


def validation_size(call: Call, new: JsonObject) -> int:
    """Return the size of the request that takes as long to judge: compiling takes far longer than reading."""
    kind = call.route.kind
    if kind.group != _RESOURCE or kind.kind not in _WITH_EXPRESSIONS:
        return call.size
    from dray.cel import takes_long

    return max(call.size, LARGE) if takes_long(expressions_of(new)) else call.size


@dataclass(slots=True)
class CrossObjectRules:
    """Checks an object against other objects and against its writer's rights."""

    reader: Reader
    authorizer: Authorizer
    features: Features

    def create(self, call: Call, new: JsonObject) -> list[FieldError]:
        """Judge a new object."""
        kind = call.route.kind
        if kind.group != _RESOURCE:
            return []
        if kind.kind in ("ResourceClaim", "ResourceClaimTemplate") and "DRAAdminAccess" in self.features:
            # Few ask for it; only for them the namespace is looked up.
            if check_admin_access(new, None):
                return check_admin_access(new, self._namespace_labels(call))
        return []

    def check_may_create(self, call: Call) -> None:
        """Raise the 403 where an update or a patch would create an object and its writer may not create."""
        self.authorizer.check(_attributes(call, "create"))

    def change(self, call: Call, new: JsonObject, old: JsonObject) -> list[FieldError]:
        """Judge a change through a subresource."""
        if call.route.subresource == "resourceclaims":
            return self._claims_of_running_pod(old)
        if call.route.subresource == "status":
            return self._status(call, new, old)
        return []

    def _claims_of_running_pod(self, pod: JsonObject) -> list[FieldError]:
        """Refuse where the pod's node would not follow: nobody else prepares and releases its claims."""
        name = (pod.get("spec") or {}).get("nodeName") or ""
        node = self.reader.get("", "nodes", "", name) if name else None
        declared = ((node or {}).get("status") or {}).get("declaredFeatures") or ()
        if not name or DEVICES_AFTER_POD_START in declared:
            return []
        why = f"node {name} does not declare {DEVICES_AFTER_POD_START}: its agent cannot change claims of a running pod"
        return [forbidden("spec.resourceClaims", why)]

    def _status(self, call: Call, new: JsonObject, old: JsonObject) -> list[FieldError]:
        kind = call.route.kind
        if kind.group != _RESOURCE or kind.kind != "ResourceClaim":
            return []
        problems: list[FieldError] = []
        if "DRAAdminAccess" in self.features and check_admin_access_of_status(new, old, None):
            problems += check_admin_access_of_status(new, old, self._namespace_labels(call))
        if "DRAResourceClaimGranularStatusAuthorization" in self.features:
            asked = _attributes(call, call.route.verb, "status")
            statuses = (new.get("status") or {}, old.get("status") or {})
            problems += self.authorizer.check_claim_status(asked, *statuses)
        return problems

    def admit(self, call: Call, new: JsonObject) -> None:
        """Raise the 403 for a slice whose nodes lack what its devices need."""
        kind = call.route.kind
        if kind.group != _RESOURCE or kind.kind != "ResourceSlice":
            return
        devices = (new.get("spec") or {}).get("devices") or ()
        if not any(device.get("nodeAllocatableResources") for device in devices):
            return
        declared = {
            node["metadata"]["name"]: frozenset((node.get("status") or {}).get("declaredFeatures") or ())
            for node in self.reader.list("", "nodes")
        }
        reasons = check_declared_features(new, declared)
        if reasons:
            raise errors.forbidden(kind.group, kind.plural, new["metadata"].get("name", ""), reasons[0])

    def _namespace_labels(self, call: Call) -> dict[str, str]:
        namespace = self.reader.get("", "namespaces", "", call.route.namespace)
        labels: dict[str, str] = ((namespace or {}).get("metadata") or {}).get("labels") or {}
        return labels


def _attributes(call: Call, verb: str, subresource: str = "") -> Attributes:
    route = call.route
    kind = route.kind
    return Attributes(
        call.user,
        verb,
        kind.group,
        kind.plural,
        subresource,
        route.namespace,
        route.name,
        version=route.version,
    )
