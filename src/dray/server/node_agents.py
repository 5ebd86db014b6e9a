"""Talking to node agents: logs of pods are on the node, not in the store, and so are their processes.

The server forwards like kube-apiserver does: it finds the agent's address and port
in the node's status and asks `/containerLogs/NAMESPACE/POD/CONTAINER` over HTTPS
with its own client certificate. Agents' serving certificates are not verified,
which is kube-apiserver's default too; the agent verifies ours.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from urllib.parse import quote, urlencode

import aiohttp

from dray.server import errors
from dray.server.calls import Call
from dray.server.reader import Object, Reader
from dray.server.requests import Response, Tunnel

_ADDRESS_ORDER = ("Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP")
_FORWARDED = (
    "follow",
    "tailLines",
    "sinceSeconds",
    "sinceTime",
    "timestamps",
    "limitBytes",
    "previous",
    "stream",
)
_EXEC_WORDS = ("command", "stdin", "stdout", "stderr", "tty")
_DIAL_SECONDS = 5.0


class NodeAgents:
    """Forwards requests to the agent of a pod's node."""

    def __init__(self, reader: Reader, tls: ssl.SSLContext | None) -> None:
        self._reader = reader
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Drop connections to agents."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def forward(self, call: Call, pod: Object) -> Response:
        """Answer pods/log and pods/exec."""
        return self.tunnel(call, pod) if call.route.subresource == "exec" else await self.logs(call, pod)

    async def logs(self, call: Call, pod: Object) -> Response:
        """Return a container's log, as it grows when the client follows it."""
        return await self._forward(self._url(call, pod, "containerLogs", _FORWARDED))

    def tunnel(self, call: Call, pod: Object) -> Response:
        """Join the client with a command that the node's agent runs in a container."""
        if call.request.header("upgrade").lower() != "websocket":
            raise errors.bad_request(
                "exec is spoken over websockets here; kubectl 1.30 or newer does so by itself"
            )
        if not call.request.all("command"):
            raise errors.bad_request("you must specify at least 1 command for the container")
        url = self._url(call, pod, "exec", _EXEC_WORDS)
        return Response(101, tunnel=Tunnel(url, self._tls))

    def _url(self, call: Call, pod: Object, action: str, words: tuple[str, ...]) -> str:
        container = container_of(pod, call.request.first("container"))
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        node_name = (pod.get("spec") or {}).get("nodeName")
        if not node_name:
            raise errors.bad_request(f"pod {name} does not have a host assigned")
        node = self._reader.get("", "nodes", "", node_name)
        if node is None:
            raise errors.not_found("", "nodes", node_name)
        query = [(key, value) for key, value in call.request.query if key in words]
        path = "/".join(quote(part, safe="") for part in (namespace, name, container))
        url = f"https://{address_of(node)}/{action}/{path}"
        return f"{url}?{urlencode(query)}" if query else url

    async def _forward(self, url: str) -> Response:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_DIAL_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            answer = await self._session.get(url, ssl=self._tls or False)
        except (aiohttp.ClientError, OSError) as problem:
            raise errors.internal(f"cannot reach the node agent: {problem}") from None
        if answer.status != 200:
            text = (await answer.text())[:2048].strip()
            answer.release()
            if answer.status == 404:
                raise errors.ApiError(
                    404, "NotFound", text or "the node agent does not know this container", {}
                )
            raise errors.ApiError(
                answer.status, "BadRequest" if answer.status < 500 else "InternalError", text
            )
        return Response(200, _pieces(answer), content_type="text/plain")


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.content.iter_any():
            yield piece
    finally:
        answer.close()


def container_of(pod: Object, wanted: str) -> str:
    """Return the container whose log is meant; raises 400 where that is not clear."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    containers = [container["name"] for container in spec.get("containers") or ()]
    others = [
        container["name"]
        for part in ("initContainers", "ephemeralContainers")
        for container in spec.get(part) or ()
    ]
    if wanted:
        if wanted not in (*containers, *others):
            raise errors.bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(containers) == 1:
        return str(containers[0])
    choices = f"choose one of: [{' '.join(containers)}]"
    if others:
        choices += f" or one of the init containers: [{' '.join(others)}]"
    raise errors.bad_request(f"a container name must be specified for pod {name}, {choices}")


def address_of(node: Object) -> str:
    """Return host:port of a node's agent."""
    status = node.get("status") or {}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
    addresses = {entry.get("type"): entry.get("address") for entry in status.get("addresses") or ()}
    # An address that needs no name resolution is the surest one.
    order = ("InternalIP", *(kind for kind in _ADDRESS_ORDER if kind != "InternalIP"))
    host = next((addresses[kind] for kind in order if addresses.get(kind)), None)
    if not port or not host:
        raise errors.internal(
            f"node {node['metadata']['name']} tells no address of its agent in status.addresses and "
            "status.daemonEndpoints; is the node agent running?"
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
