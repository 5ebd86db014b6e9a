"""Reads what `cluster` judges, with the rights that the user has.

Nothing is written. What the user may not read, or what a server does not offer, is left out; the first is
noted in `forbidden`, so that it is said once and never taken for an absence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.kinds import ADMISSION
from dray.client import Client, ClientError, Forbidden, NotFound, Request, Resource, Unauthorized
from dray.client.resources import LEASES
from dray.sim.snapshot import Snapshot, SnapshotError, capture
from dray.workbench.doctor.cluster import GUARD, ClusterFacts

_WEBHOOKS = Resource(
    ADMISSION,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
_ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", namespaced=True)
_GATE = re.compile(
    rb'^kubernetes_feature_enabled\{name="(\w{1,100})"(?:,stage="[^"]{0,20}")?\} ([01])$', re.MULTILINE
)
_MOST_GATES = 1_000


async def read_cluster(client: Client, now: datetime) -> ClusterFacts:
    """Read the facts of a cluster.

    Raises the errors of the client when the server cannot be reached, and Forbidden when none of the objects may be listed: there
    is nothing to examine then.
    """
    facts = ClusterFacts(now)
    forbidden: dict[str, str] = {}
    version = await client.call("GET", "/version")  # reachable, and are we known?
    facts.version = str(version.get("gitVersion", ""))
    facts.resource_versions = await _resource_versions(client)
    if "v1" in facts.resource_versions:
        try:
            facts.snapshot = await capture(client)
            forbidden.update(facts.snapshot.forbidden)
        except SnapshotError as error:
            forbidden["DRA objects"] = str(error)
            facts.snapshot = Snapshot()
    facts.gates = await _gates(client, forbidden)
    facts.leases = await _leases(client, forbidden)
    facts.webhooks = await _list(client, _WEBHOOKS, None, forbidden)
    facts.ready_endpoints = await _ready_endpoints(client, facts.webhooks or (), forbidden)
    facts.forbidden = forbidden
    return facts


async def _resource_versions(client: Client) -> tuple[str, ...]:
    try:
        group = await client.call("GET", "/apis/resource.k8s.io")
    except NotFound:
        return ()
    return tuple(str(each.get("version", "")) for each in group.get("versions") or ())


async def _gates(client: Client, forbidden: dict[str, str]) -> dict[str, bool] | None:
    """Read the gates of the API server from its metrics; None when there are none."""
    try:
        response = await client.answer(Request("GET", "/metrics"))
    except Forbidden as error:
        forbidden["/metrics of the API server"] = str(error)
        return None
    except Unauthorized:
        raise
    except ClientError:
        return None
    found = _GATE.findall(response.body)[:_MOST_GATES]
    return {name.decode(): value == b"1" for name, value in found} or None


async def _list(
    client: Client, resource: Resource, namespace: str | None, forbidden: dict[str, str]
) -> Sequence[JsonObject] | None:
    try:
        return (await client.list(resource, namespace)).items
    except Forbidden as error:
        forbidden[resource.plural] = error.status.message or str(error)
    except NotFound:
        pass
    return None


async def _leases(client: Client, forbidden: dict[str, str]) -> Sequence[JsonObject] | None:
    """Read the leases by which programs elect a leader.

    dray's scheduler keeps its lease in the namespace in which it is installed, whichever that is. Whoever may not list all
    namespaces may still know those of kube-system, where kube-scheduler keeps its own.
    """
    try:
        # Not those of the nodes: there is one for each.
        return (await client.list(LEASES, fieldSelector="metadata.namespace!=kube-node-lease")).items
    except Forbidden as error:
        forbidden[LEASES.plural] = error.status.message or str(error)
        return await _list(client, LEASES, "kube-system", {})
    except NotFound:
        return None


async def _ready_endpoints(
    client: Client, webhooks: Sequence[JsonObject], forbidden: dict[str, str]
) -> dict[str, int]:
    """Count the ready addresses of the service of the guard."""
    counts: dict[str, int] = {}
    for configuration in webhooks:
        if (configuration.get("metadata") or {}).get("name") != GUARD:
            continue
        for webhook in configuration.get("webhooks") or ():
            service: Any = (webhook.get("clientConfig") or {}).get("service")
            if not isinstance(service, dict):
                continue
            namespace, name = str(service.get("namespace", "")), str(service.get("name", ""))
            slices = await _list(client, _ENDPOINT_SLICES, namespace, forbidden)
            if slices is None and _ENDPOINT_SLICES.plural in forbidden:
                continue
            # A server without EndpointSlices has no services: nobody can be reached through one.
            counts[f"{namespace}/{name}"] = sum(
                1
                for each in slices or ()
                if ((each.get("metadata") or {}).get("labels") or {}).get("kubernetes.io/service-name")
                == name
                for endpoint in each.get("endpoints") or ()
                if (endpoint.get("conditions") or {}).get("ready") is not False
            )
    return counts
