"""The node's own objects in the cluster: Node, its status, and the lease that says it lives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dray.api.times import format_microtime, format_time
from dray.api.well_known import (
    NODE_FEATURES,
    NOT_READY_KEY,
    well_known_labels,
)
from dray.client import AlreadyExists, Client, ClientError, Conflict, Forbidden, NotFound
from dray.client.resources import LEASES, NAMESPACES, NODES, SLICES

log = logging.getLogger("dray.node")

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
RENEW_SECONDS = 10.0
STATUS_SECONDS = 10.0  # how often the status is compared with the server's copy
STATUS_REPEAT_SECONDS = 300.0  # how often it is written though nothing changed
KUBELET_VERSION = "v1.37.0-dray"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the node says of itself."""

    name: str
    address: str
    port: int  # of the log server
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    runtime: str = "process"
    taints: tuple[Mapping[str, str], ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    provider_id: str = ""  # by which whoever made the machine knows it; cannot be changed later


def machine_capacity(max_pods: int) -> dict[str, str]:
    """Return what this machine has, in the words of a node's capacity."""
    disk = os.statvfs("/")
    memory_kib = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal")
    )
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory_kib}Ki",
        "ephemeral-storage": f"{disk.f_blocks * disk.f_frsize // 1024}Ki",
        "pods": str(max_pods),
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
    }


def node_labels(name: str) -> dict[str, str]:
    """Return the labels that every node has."""
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return well_known_labels(name, arch)


class Membership:
    """Keeps the Node object and its lease."""

    def __init__(self, client: Client, facts: NodeFacts, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self.facts = facts
        self._clock = clock
        self._ready_since = format_time(clock())
        self._lease: dict[str, Any] | None = None  # as the server last stored it
        self.uid = ""
        self._is_created = False  # the Node was just made: it hardly has a lease yet

    async def register(self, *, untaint: bool = True) -> None:
        """Create the Node, or bring an existing one up to date; tries until the API server lets it.

        `untaint`: at once; otherwise the caller sees to it later that `untaint` is called where nobody else did.
        """
        pause = 0.2
        while True:
            try:
                made = await self._register()
                if untaint:
                    await self.untaint(made)
                log.info("node %s is registered", self.facts.name)
                return
            except ClientError as error:
                log.warning("cannot register node %s: %s; again in %.1f s", self.facts.name, error, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 10.0)

    async def _register(self) -> dict[str, Any]:
        facts = self.facts
        labels = {**node_labels(facts.name), **facts.labels}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": facts.name, "labels": labels, "annotations": dict(facts.annotations)},
            "spec": self._spec(),
            "status": self._status(),
        }
        try:
            made = await self._client.create(NODES, node)  # with its status, as kubelet does
            self._is_created = True
        except AlreadyExists:
            patch = {"metadata": {"labels": labels, "annotations": dict(facts.annotations)}}
            await self._client.patch(NODES, facts.name, patch)
            made = await self.write_status()
        self.uid = made["metadata"]["uid"]
        return made

    def _spec(self) -> dict[str, Any]:
        facts = self.facts
        spec: dict[str, Any] = {"providerID": facts.provider_id} if facts.provider_id else {}
        if facts.taints:
            spec["taints"] = [dict(taint) for taint in facts.taints]
        return spec

    async def untaint(self, node: Mapping[str, Any]) -> None:
        """Remove the taint of new nodes, given the server's copy.

        In a full cluster the node lifecycle controller does that too; where there is none, nobody else would.
        """
        for _ in range(5):
            taints = node.get("spec", {}).get("taints") or []
            kept = [taint for taint in taints if taint.get("key") != NOT_READY_KEY]
            if kept == taints:
                return
            patch = {
                "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
                "spec": {"taints": kept or None},
            }
            try:
                await self._client.patch(NODES, self.facts.name, patch)
                return
            except Conflict:
                node = await self._client.get(NODES, self.facts.name)
            except Forbidden:
                # Nodes may not change their taints where admission guards them; then a controller does it.
                return

    async def write_status(self, current: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write the whole status and return the node; `current` is the server's copy, whose other conditions are kept."""
        status = self._status()
        status["conditions"] = _merged_conditions(
            (current or {}).get("conditions") or (), status["conditions"]
        )
        return await self._client.patch(NODES, self.facts.name, {"status": status}, subresource="status")

    def _status(self) -> dict[str, Any]:
        facts = self.facts
        now = format_time(self._clock())
        conditions = [
            (
                "MemoryPressure",
                "False",
                "KubeletHasSufficientMemory",
                "the node has sufficient memory available",
            ),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "the node has no disk pressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "the node has sufficient PIDs available"),
            ("Ready", "True", "KubeletReady", "dray's node agent is posting ready status"),
        ]
        return {
            "capacity": dict(facts.capacity),
            "allocatable": dict(facts.capacity),
            "addresses": _addresses(facts),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.port}},
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": self._ready_since,
                }
                for kind, status, reason, message in conditions
            ],
            "nodeInfo": dict(_node_info(facts.runtime)),
            "declaredFeatures": list(NODE_FEATURES),
        }

    async def run(self) -> None:
        """Renew the lease and the status until cancelled."""
        await asyncio.gather(self._renew_lease(), self._repeat_status())

    async def _repeat_status(self) -> None:
        """Write the status when the server's copy differs from ours, and now and then in any case.

        Others write it too: the node lifecycle controller marks a node Unknown that it could not hear,
        and only the node itself can say that it is Ready.
        """
        written = time.monotonic()
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            is_due = time.monotonic() - written >= STATUS_REPEAT_SECONDS
            try:
                node = await self._client.get(NODES, self.facts.name)
                if await self.correct_status(node.get("status") or {}, is_due=is_due):
                    written = time.monotonic()
            except NotFound:
                await self.register()
            except ClientError as error:
                log.warning("node status not written: %s", error)

    async def correct_status(self, current: Mapping[str, Any], *, is_due: bool = False) -> bool:
        """Write the status if the server's copy says something else, or if it `is_due`; return whether it was written."""
        if not is_due and not _differs(current, self._status()):
            return False
        await self.write_status(current)
        return True

    async def _renew_lease(self) -> None:
        while True:
            await self.renew_lease()
            await asyncio.sleep(RENEW_SECONDS)

    async def renew_lease(self) -> None:
        """Renew the lease once, or say in the log why not.

        What was stored last time is changed and sent back; it is read again only if somebody else changed it.
        """
        for _ in range(3):
            try:
                await self._renew_once()
                return
            except Conflict:
                self._lease = None
            except ClientError as error:
                self._lease = None
                log.warning("lease of node %s not renewed: %s", self.facts.name, error)
                return

    async def _renew_once(self) -> None:
        name = self.facts.name
        now = format_microtime(self._clock())
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        if self._is_created:
            self._is_created = False
            with contextlib.suppress(AlreadyExists):  # that of an earlier Node, which is not collected yet
                await self._create_lease(spec)
                return
        try:
            lease = self._lease or await self._client.get(LEASES, name, LEASE_NAMESPACE)
            lease["spec"] = {**lease.get("spec", {}), **spec}
            self._lease = await self._client.update(LEASES, name, lease, LEASE_NAMESPACE)
        except NotFound:
            self._lease = None
            await self._create_lease(spec)

    async def _create_lease(self, spec: dict[str, Any]) -> None:
        name = self.facts.name
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": self.uid}
        lease = {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec}
        try:
            self._lease = await self._client.create(LEASES, lease, LEASE_NAMESPACE)
        except NotFound:
            # A small cluster may have nobody who makes this namespace.
            with contextlib.suppress(AlreadyExists):
                await self._client.create(NAMESPACES, {"metadata": {"name": LEASE_NAMESPACE}})
            self._lease = await self._client.create(LEASES, lease, LEASE_NAMESPACE)

    async def wipe_slices(self, driver: str = "") -> None:
        """Delete this node's ResourceSlices, all or those of one driver; drivers that live publish again."""
        selector = f"spec.nodeName={self.facts.name}"
        if driver:
            selector += f",spec.driver={driver}"
        pause = 0.2
        while True:
            try:
                found = await self._client.list(SLICES, fieldSelector=selector)
                for item in found.items:
                    meta = item["metadata"]
                    try:
                        await self._client.delete(SLICES, meta["name"], uid=meta["uid"])
                    except (NotFound, Conflict):
                        continue
                return
            except Forbidden as error:
                log.warning("slices not deleted: %s", error)
                return
            except ClientError as error:
                log.warning("slices not deleted: %s; again in %.1f s", error, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)


def _merged_conditions(
    current: Iterable[Mapping[str, Any]], ours: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return our conditions, each with the moment of its last change, and those of others as they are."""
    had = {condition["type"]: condition for condition in current}
    merged: list[Mapping[str, Any]] = []
    for condition in ours:
        old = had.pop(condition["type"], None)
        if old is None:
            merged.append(condition)
        elif old.get("status") == condition["status"]:
            changed = old.get("lastTransitionTime") or condition["lastTransitionTime"]
            merged.append({**condition, "lastTransitionTime": changed})
        else:
            merged.append({**condition, "lastTransitionTime": condition["lastHeartbeatTime"]})
    return [*had.values(), *merged]


def _differs(current: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Return whether the server's copy says something else than we do, moments aside."""

    def essence(conditions: Iterable[Mapping[str, Any]]) -> dict[str, tuple[object, ...]]:
        return {
            each["type"]: tuple(each.get(key) for key in ("status", "reason", "message"))
            for each in conditions
        }

    have = essence(current.get("conditions") or ())
    if any(have.get(kind) != wanted for kind, wanted in essence(ours["conditions"]).items()):
        return True
    # A server without the gate NodeDeclaredFeatures drops what we declare: writing it again would not help.
    left_out = {"conditions"} | ({"declaredFeatures"} - current.keys())
    return any(not _includes(current.get(key), wanted) for key, wanted in ours.items() if key not in left_out)


def _includes(current: object, wanted: object) -> bool:
    """Return whether what the server has contains what we wanted; it may know more, and it omits what is empty."""
    if isinstance(wanted, Mapping):
        have = current if isinstance(current, Mapping) else {}
        return all(_includes(have.get(key), value) for key, value in wanted.items())
    return current == wanted or (not wanted and not current)


def _addresses(facts: NodeFacts) -> list[dict[str, str]]:
    addresses = [{"type": "InternalIP", "address": facts.address}]
    # API servers try the host name first; a name that nobody can resolve would hide the address.
    if facts.name == socket.gethostname().lower() and facts.address != "127.0.0.1":
        addresses.append({"type": "Hostname", "address": facts.name})
    return addresses


@cache  # nothing of it changes while this process runs
def _node_info(runtime: str) -> dict[str, str]:
    def read(path: str) -> str:
        try:
            return Path(path).read_text().strip()
        except OSError:
            return ""

    release = dict(line.split("=", 1) for line in read("/etc/os-release").splitlines() if "=" in line)
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "machineID": read("/etc/machine-id"),
        "systemUUID": read("/sys/class/dmi/id/product_uuid"),
        "bootID": read("/proc/sys/kernel/random/boot_id"),
        "kernelVersion": platform.release(),
        "osImage": release.get("PRETTY_NAME", "Linux").strip('"'),
        "containerRuntimeVersion": f"{runtime}://1.0",
        "kubeletVersion": KUBELET_VERSION,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": arch,
    }
