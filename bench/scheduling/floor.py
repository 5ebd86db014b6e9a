"""A scheduler that decides nothing: what the API server alone allows.

It gives each pod the next free device in the order of slices and makes the writes that
scheduling a pod with a claim takes: the claim's finalizer, its status, the binding. A real
scheduler cannot be quicker on the same server; how close it comes is the interesting part.

Run as `python -m bench.scheduling.floor PORT NAME`, a process of its own like the others.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import uvloop

from bench.scheduling.following import follow
from bench.server.load import Connection, prepared

N_WRITERS = 16
RESOURCE = "/apis/resource.k8s.io/v1"
Object = dict[str, Any]


async def run(port: int, name: str) -> None:
    connection = await Connection.open(port)
    free = await _free_devices(connection)
    waiting: asyncio.Queue[Object] = asyncio.Queue()
    seen: set[str] = set()

    def notice(kind: str, pod: Object) -> None:
        uid, spec = pod["metadata"]["uid"], pod["spec"]
        if kind == "ADDED" and uid not in seen and not spec.get("nodeName") and spec["schedulerName"] == name:
            seen.add(uid)
            waiting.put_nowait(pod)

    writers = [
        asyncio.create_task(_write(await Connection.open(port), waiting, free)) for _ in range(N_WRITERS)
    ]
    await asyncio.gather(follow(port, "/api/v1/pods", notice), *writers)


async def _free_devices(connection: Connection) -> list[tuple[str, Object]]:
    """Return (node, result without request) of every device that no claim holds, in order."""
    slices = await _get(connection, f"{RESOURCE}/resourceslices")
    claims = await _get(connection, f"{RESOURCE}/resourceclaims")
    taken = {
        (result["pool"], result["device"])
        for claim in claims
        for result in ((claim.get("status") or {}).get("allocation") or {})
        .get("devices", {})
        .get("results", [])
    }
    found = [
        (each["spec"]["nodeName"], {"driver": each["spec"]["driver"], "pool": pool, "device": device["name"]})
        for each in slices
        for pool in [each["spec"]["pool"]["name"]]
        for device in each["spec"].get("devices", ())
        if (pool, device["name"]) not in taken
    ]
    return found[::-1]


async def _get(connection: Connection, path: str) -> list[Object]:
    items: list[Object] = msgspec.json.decode((await connection.ask(prepared("GET", path)))[1])["items"]
    return items


async def _ask(connection: Connection, method: str, path: str, body: Object) -> Object:
    status, answer = await connection.ask(prepared(method, path, body))
    if status >= 300:
        raise RuntimeError(f"{method} {path}: {status} {answer[:300]!r}")
    stored: Object = msgspec.json.decode(answer)
    return stored


async def _write(
    connection: Connection, waiting: asyncio.Queue[Object], free: list[tuple[str, Object]]
) -> None:
    while True:
        pod = await waiting.get()
        metadata = pod["metadata"]
        node, device = free[-1] if free else ("node-00000", {})
        for entry in pod["spec"].get("resourceClaims") or ():
            node, device = free.pop()
            path = (
                f"{RESOURCE}/namespaces/{metadata['namespace']}/resourceclaims/{entry['resourceClaimName']}"
            )
            claim = msgspec.json.decode((await connection.ask(prepared("GET", path)))[1])
            claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
            claim = await _ask(connection, "PUT", path, claim)
            request = claim["spec"]["devices"]["requests"][0]["name"]
            term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
            claim["status"] = {
                "allocation": {
                    "devices": {"results": [{"request": request, **device}]},
                    "nodeSelector": {"nodeSelectorTerms": [term]},
                },
                "reservedFor": [{"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}],
            }
            await _ask(connection, "PUT", f"{path}/status", claim)
        binding = {
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "target": {"kind": "Node", "name": node},
        }  # fmt: skip
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        await _ask(connection, "POST", path, binding)


if __name__ == "__main__":
    uvloop.run(run(int(sys.argv[1]), sys.argv[2]))
