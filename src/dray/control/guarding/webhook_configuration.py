"""The webhook configuration: which writes the API servers show to the guard, and what they do without it.

Only a write that sets an allocation (or changes one) is sent: the conditions are evaluated in the API
server, so reservations, device status and releases cost nothing and never wait for a guard. Without
an answer nothing is allocated: `failurePolicy: Fail`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.kinds import ADMISSION, RESOURCE
from dray.api.meta import ObjectMeta, View
from dray.client import AlreadyExists, Client, Conflict, NotFound, Resource

CONFIGURATION = "dray-guard"
WEBHOOK = "guard.dray.dev"
PATH = "/validate"
CONFIGURATIONS = Resource(
    ADMISSION,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
_GIVES_DEVICES = (
    "has(object.status) && has(object.status.allocation) && (!has(oldObject.status) || "
    "!has(oldObject.status.allocation) || oldObject.status.allocation != object.status.allocation)"
)


class WebhookConfiguration(View, frozen=True):
    """A configuration as it is stored."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: list[dict[str, Any]] = []


@dataclass(frozen=True, slots=True)
class Target:
    """Where API servers find the guard: a URL, or a service of the cluster."""

    url: str = ""
    namespace: str = ""
    service: str = ""
    port: int = 443

    def client_config(self, ca: bytes) -> JsonObject:
        """Return it as the API server expects it."""
        found: JsonObject = {"caBundle": base64.b64encode(ca).decode()} if ca else {}
        if self.url:
            return {"url": self.url.rstrip("/") + PATH, **found}
        service = {"namespace": self.namespace, "name": self.service, "path": PATH, "port": self.port}
        return {"service": service, **found}


def configuration(target: Target, ca: bytes, timeout_seconds: int) -> JsonObject:
    """Return the whole object."""
    return {
        "apiVersion": CONFIGURATIONS.api_version,
        "kind": CONFIGURATIONS.kind,
        "metadata": {"name": CONFIGURATION, "labels": {"app.kubernetes.io/name": CONFIGURATION}},
        "webhooks": [
            {
                "name": WEBHOOK,
                "clientConfig": target.client_config(ca),
                "rules": [
                    {
                        "apiGroups": [RESOURCE],
                        "apiVersions": ["v1"],  # and, by matchPolicy, all others that are served
                        "operations": ["UPDATE"],
                        "resources": ["resourceclaims/status"],
                        "scope": "*",
                    }
                ],
                "matchConditions": [{"name": "gives-devices", "expression": _GIVES_DEVICES}],
                "matchPolicy": "Equivalent",
                "failurePolicy": "Fail",
                "sideEffects": "NoneOnDryRun",
                "timeoutSeconds": timeout_seconds,
                "admissionReviewVersions": ["v1"],
                "namespaceSelector": {},
                "objectSelector": {},
            }
        ],
    }


def covers(found: WebhookConfiguration, wanted: JsonObject) -> bool:
    """Return whether a stored configuration sends what it should to some guard, and fails closed."""
    return _without_address(found.webhooks) == _without_address(wanted["webhooks"])


def is_ours(found: WebhookConfiguration, wanted: JsonObject) -> bool:
    """Return whether it sends that to us."""
    addresses = [each.get("clientConfig") for each in found.webhooks]
    return covers(found, wanted) and addresses == [each["clientConfig"] for each in wanted["webhooks"]]


def _without_address(webhooks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # How long to wait for an answer does not open a hole, so it does not count here.
    ignored = ("clientConfig", "timeoutSeconds")
    return [{key: value for key, value in each.items() if key not in ignored} for each in webhooks]


async def register(client: Client, wanted: JsonObject) -> bool:
    """Store the configuration; True when until now some writes may have gone past any guard."""
    while True:
        try:
            found = await client.get(CONFIGURATIONS, CONFIGURATION, view=WebhookConfiguration)
            is_same_wait = [each.get("timeoutSeconds") for each in found.webhooks] == [
                each["timeoutSeconds"] for each in wanted["webhooks"]
            ]
            if is_ours(found, wanted) and is_same_wait:
                return False
            # Labels and annotations of others stay: helm deletes only what carries its marks.
            metadata = {
                **wanted["metadata"],
                "resourceVersion": found.metadata.resource_version,
                "labels": {**wanted["metadata"]["labels"], **(found.metadata.labels or {})},
                "annotations": found.metadata.annotations or {},
            }
            await client.update(CONFIGURATIONS, CONFIGURATION, {**wanted, "metadata": metadata})
            return not covers(found, wanted)
        except NotFound:
            try:
                await client.create(CONFIGURATIONS, wanted)
                return True
            except AlreadyExists:
                continue
        except Conflict:
            continue


async def unregister(client: Client) -> bool:
    """Remove the configuration; False when there was none."""
    try:
        await client.delete(CONFIGURATIONS, CONFIGURATION)
    except NotFound:
        return False
    return True
