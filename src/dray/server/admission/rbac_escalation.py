"""Nobody grants rights that they do not hold; see `authorization.Authorizer.check_escalation`.

In Kubernetes this is part of storage and cannot be switched off; here it is the
one plugin that `--disable-admission-plugins` does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.api.kinds import RBAC
from dray.server.admission.admission_plugin import BasePlugin, target_of
from dray.server.auth import Authorizer
from dray.server.requests import Call


@dataclass(slots=True)
class RoleEscalation(BasePlugin):
    """Check the writers of roles and bindings."""

    authorizer: Authorizer
    name: str = "-rbac"

    def validate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Refuse roles and bindings that grant more than their writer has."""
        group, resource, subresource = target_of(call)
        if group == RBAC and not subresource:
            self.authorizer.check_escalation(call.user, resource, call.route.namespace, new, old)
