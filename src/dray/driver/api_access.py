"""What a driver needs of the API server: its node, its slices, its claims; in any version since v1beta1.

Clusters before 1.34 serve resource.k8s.io as v1beta2 or v1beta1. v1beta2 has the
same shape as v1; in v1beta1 a device keeps its fields under `basic`. The first
call finds out which version there is, and later calls use it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import msgspec

from dray.api.json_types import JsonObject
from dray.api.resource import AllocatedDeviceStatus, ResourceClaim, ResourceSlice
from dray.api.times import format_time
from dray.client import Client, ClientError, Conflict, NotFound, revision_of
from dray.client.resources import CLAIMS, NODES, SLICES, Resource
from dray.driver.preparing import ClaimRef, ClaimSource
from dray.host.clock import utc_now

VERSIONS = ("v1", "v1beta2", "v1beta1")


class ApiAccess(ClaimSource):
    """Typed access for one driver, on top of a client that may be shared."""

    def __init__(self, client: Client, now: Callable[[], datetime] = utc_now) -> None:
        self._client = client
        self._clock = now
        self._version: str | None = None

    def _now(self) -> str:
        return format_time(self._clock())

    async def node_uid(self, name: str) -> str:
        """Return the UID of a node; raise NotFound while it is not registered."""
        node = await self._client.get(NODES, name)
        return str(node["metadata"]["uid"])

    async def list_slices(self, field_selector: str) -> tuple[list[ResourceSlice], str]:
        """Return the matching slices and the revision at which that was true."""
        resource = await self._served(SLICES)
        found = await self._client.list(resource, fieldSelector=field_selector)
        slices = [_slice_from_wire(item, resource.version) for item in found.items]
        return slices, found.metadata.resource_version

    async def watch_slices(self, field_selector: str, revision: str) -> AsyncIterator[str]:
        """Yield the revision of each change to a matching slice."""
        resource = await self._served(SLICES)
        changes = self._client.watch_lines(
            resource, fieldSelector=field_selector, resourceVersion=revision, timeoutSeconds=1800
        )
        async for lines in changes:
            for line in lines:
                if not line.startswith(b'{"type":"BOOKMARK"'):
                    yield revision_of(line)

    async def create_slice(self, new: ResourceSlice) -> ResourceSlice:
        """Create and return what was stored."""
        resource = await self._served(SLICES)
        stored = await self._client.create(resource, _slice_to_wire(new, resource))
        return _slice_from_wire(stored, resource.version)

    async def update_slice(self, new: ResourceSlice) -> ResourceSlice:
        """Replace and return what was stored."""
        resource = await self._served(SLICES)
        stored = await self._client.update(resource, new.metadata.name, _slice_to_wire(new, resource))
        return _slice_from_wire(stored, resource.version)

    async def delete_slice(self, old: ResourceSlice) -> None:
        """Delete exactly the slice that was read; one that is gone is fine."""
        resource = await self._served(SLICES)
        try:
            await self._client.delete(
                resource,
                old.metadata.name,
                uid=old.metadata.uid or None,
                resource_version=old.metadata.resource_version or None,
            )
        except NotFound:
            pass

    async def read(self, namespace: str, name: str) -> ResourceClaim:
        """Read a claim."""
        resource = await self._served(CLAIMS)
        return await self._client.get(resource, name, namespace, view=ResourceClaim)

    async def write_status(
        self,
        ref: ClaimRef,
        driver: str,
        devices: list[AllocatedDeviceStatus],
        known: JsonObject | None = None,
    ) -> None:
        """Replace this driver's entries in `status.devices`; entries of other drivers stay as they are.

        `known` is a copy of the claim in the version that is used here; it is read if there is none, or an old one.
        """
        resource = await self._served(CLAIMS)
        while True:
            claim = known or await self._client.get(resource, ref.name, ref.namespace)
            known = None
            if claim["metadata"]["uid"] != ref.uid:
                return
            status = claim.setdefault("status", {})
            others = [entry for entry in status.get("devices", ()) if entry["driver"] != driver]
            before = [entry for entry in status.get("devices", ()) if entry["driver"] == driver]
            wanted = others + [_status_to_wire(device, before, self._now()) for device in devices]
            if status.get("devices") == wanted:
                return
            status["devices"] = wanted
            try:
                await self._client.update(resource, ref.name, claim, ref.namespace, subresource="status")
                return
            except Conflict:
                continue

    async def _served(self, resource: Resource) -> Resource:
        if self._version is None:
            self._version = await self._find_version()
        return resource.at(self._version)

    async def _find_version(self) -> str:
        for version in VERSIONS:
            try:
                await self._client.call("GET", f"/apis/resource.k8s.io/{version}", view=None)
                return version
            except NotFound:
                continue
        raise NotFoundVersionError()


class NotFoundVersionError(ClientError):
    """The API server has no resource.k8s.io."""

    def __init__(self) -> None:
        super().__init__(
            "this API server serves none of resource.k8s.io/"
            + ", ".join(VERSIONS)
            + "; DRA needs Kubernetes 1.32 or newer with the API group enabled"
        )


def _status_to_wire(device: AllocatedDeviceStatus, before: list[dict[str, Any]], now: str) -> dict[str, Any]:
    """Return the entry to write; a condition that the driver gave no time keeps its old one, or gets now."""
    plain: dict[str, Any] = msgspec.to_builtins(device)
    since = {
        (entry.get("pool"), entry.get("device"), condition["type"], condition["status"]): condition[
            "lastTransitionTime"
        ]
        for entry in before
        for condition in entry.get("conditions", ())
    }
    for condition in plain.get("conditions", ()):
        key = (plain.get("pool"), plain.get("device"), condition["type"], condition["status"])
        condition.setdefault("lastTransitionTime", since.get(key, now))
    return plain


def _slice_to_wire(resource_slice: ResourceSlice, resource: Resource) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(resource_slice)
    plain["apiVersion"], plain["kind"] = resource.api_version, resource.kind
    if resource.version == "v1beta1":
        for device in plain["spec"].get("devices", ()):
            basic = {key: device.pop(key) for key in list(device) if key != "name"}
            device["basic"] = basic
    return plain


def _slice_from_wire(plain: dict[str, Any], version: str) -> ResourceSlice:
    if version == "v1beta1":
        for device in plain.get("spec", {}).get("devices", ()):
            device.update(device.pop("basic", None) or {})
    return msgspec.convert(plain, ResourceSlice)
