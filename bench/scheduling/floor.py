"""A scheduler that decides nothing: what the API server and the controllers alone allow.

The workload tells it where the next pod fits; it only makes the writes that a pod with a
claim takes: the finalizer of the claim, its status, the binding. A real scheduler cannot be
much quicker on the same server; how close it comes is the interesting part.

Run as `python -m bench.scheduling.floor PORT WORKLOAD NODES`, a process of its own like the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import defaultdict, deque
from collections.abc import Callable

import msgspec
import uvloop

from bench.scheduling.following import follow, get
from bench.scheduling.hardware import Object, node_name
from bench.scheduling.objects import RESOURCE, SCHEDULER, allocation, claims_path, pods_path, template_name
from bench.scheduling.workloads import WORKLOADS, Place, Workload
from bench.server.load import Connection, prepared

N_WRITERS = 16
FINALIZER = "resource.kubernetes.io/delete-protection"
Key = tuple[str, str]  # namespace, name


class Floor:
    """Pods that wait, claims as they are, places that are free."""

    def __init__(self, workload: Workload) -> None:
        free = workload.room(workload.n_nodes).free
        # last in, first out, as in the order of places
        self._free = {template_name(kind): places[::-1] for kind, places in free.items()}
        self._held: dict[str, tuple[str, Place]] = {}  # uid of a claim -> (template, place)
        self._claims: dict[Key, Object] = {}
        self._pods: dict[Key, Object] = {}  # not bound, and not being written
        self._hungry: dict[str, deque[Object]] = defaultdict(deque)  # template -> pods without a place
        self._ready: asyncio.Queue[Object] = asyncio.Queue()
        self._decode = msgspec.json.Decoder().decode

    async def run(self, port: int) -> None:
        """Serve pods until cancelled."""
        connection = await Connection.open(port)
        claims, pods = f"{RESOURCE}/resourceclaims", "/api/v1/pods"
        versions = []
        for path, see in ((claims, self._see_claim), (pods, self._see_pod)):
            listed = await get(connection, path)
            versions.append(listed["metadata"]["resourceVersion"])
            for item in listed["items"]:
                see("ADDED", item)
        writers = [self._write(await Connection.open(port)) for _ in range(N_WRITERS)]
        await asyncio.gather(
            follow(port, claims, versions[0], lambda line: self._event(line, self._see_claim)),
            follow(port, pods, versions[1], lambda line: self._event(line, self._see_pod)),
            *writers,
        )

    def _event(self, line: bytes, see: Callable[[str, Object], None]) -> None:
        event = self._decode(line)
        see(event["type"], event["object"])

    def _see_claim(self, kind: str, claim: Object) -> None:
        metadata = claim["metadata"]
        key, uid = (metadata["namespace"], metadata["name"]), metadata["uid"]
        was_allocated = _is_allocated(self._claims.get(key))
        self._claims[key] = claim
        if kind == "DELETED":
            del self._claims[key]
        if kind == "DELETED" or (was_allocated and not _is_allocated(claim)):
            self._release(uid)
        for owner in metadata.get("ownerReferences") or ():
            self._consider((metadata["namespace"], owner["name"]))

    def _release(self, uid: str) -> None:
        if uid not in self._held:
            return
        template, place = self._held.pop(uid)
        self._free[template].append(place)
        if self._hungry[template]:
            self._ready.put_nowait(self._hungry[template].popleft())

    def _see_pod(self, kind: str, pod: Object) -> None:
        key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        if kind == "DELETED" or pod["spec"].get("nodeName"):
            self._pods.pop(key, None)
        elif pod["spec"]["schedulerName"] == SCHEDULER:
            self._pods[key] = pod
            self._consider(key)

    def _consider(self, key: Key) -> None:
        """Let a pod be written, once, when its claim is there."""
        pod = self._pods.get(key)
        if pod is None or pod.get("is considered"):
            return
        made = pod["status"].get("resourceClaimStatuses") or ()
        if len(made) == len(pod["spec"].get("resourceClaims") or ()) and all(
            (key[0], each["resourceClaimName"]) in self._claims for each in made
        ):
            pod["is considered"] = True
            self._ready.put_nowait(pod)

    async def _write(self, connection: Connection) -> None:
        while True:
            pod = await self._ready.get()
            metadata = pod["metadata"]
            node = 0
            for entry, made in zip(
                pod["spec"].get("resourceClaims") or (),
                pod["status"].get("resourceClaimStatuses") or (),
                strict=True,
            ):
                template = entry["resourceClaimTemplateName"]
                if not self._free.get(template):
                    self._hungry[template].append(pod)
                    break
                claim = self._claims.get((metadata["namespace"], made["resourceClaimName"]))
                if claim is None or claim["metadata"]["uid"] in self._held:
                    break  # the pod is gone, or was seen twice
                place = self._free[template].pop()
                self._held[claim["metadata"]["uid"]] = (template, place)
                await _allocate(connection, claim, place, metadata)
                node = place.node
            else:
                await _bind(connection, metadata, node_name(node))


def _is_allocated(claim: Object | None) -> bool:
    return bool(claim and (claim.get("status") or {}).get("allocation"))


async def _allocate(connection: Connection, claim: Object, place: Place, user: Object) -> None:
    path = f"{claims_path(claim['metadata']['namespace'])}/{claim['metadata']['name']}"
    protected = {**claim, "metadata": {**claim["metadata"], "finalizers": [FINALIZER]}}
    stored = await _ask(connection, "PUT", path, protected)
    reserved = {"resource": "pods", "name": user["name"], "uid": user["uid"]}
    stored["status"] = {"allocation": allocation(place), "reservedFor": [reserved]}
    await _ask(connection, "PUT", f"{path}/status", stored)


async def _bind(connection: Connection, metadata: Object, node: str) -> None:
    binding = {
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "target": {"kind": "Node", "name": node},
    }  # fmt: skip
    await _ask(connection, "POST", f"{pods_path(metadata['namespace'])}/{metadata['name']}/binding", binding)


async def _ask(connection: Connection, method: str, path: str, body: Object) -> Object:
    content = msgspec.json.encode(body)
    status, answer = await connection.ask(prepared(method, path, content))
    if status >= 300:
        raise RuntimeError(f"{method} {path}: {status} {answer[:300]!r}")
    stored: Object = msgspec.json.decode(answer)
    return stored


if __name__ == "__main__":
    chosen = WORKLOADS[sys.argv[2]].sized(int(sys.argv[3]))
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(Floor(chosen).run(int(sys.argv[1])))
