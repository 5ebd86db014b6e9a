"""Talking to node agents: logs of pods are on the node, not in the store, and so are their processes.

The server forwards like kube-apiserver does: it finds the agent's address and port
in the node's status and asks `/containerLogs/NAMESPACE/POD/CONTAINER` over HTTPS
with a client certificate of its own (`kube-apiserver-kubelet-client`), which the
agent authorises. Agents' serving certificates are not verified, which is
kube-apiserver's default too.

An agent is not trusted: whoever holds a node's credentials chooses its address and
its answers. So

  * the address must be an IP address or a DNS name, and no link-local, multicast or
    unspecified address, also after the name is resolved (loopback is allowed: that is
    where the nodes of `dray up` are);
  * redirects are refused, cookies and compressed bodies are not accepted;
  * an answer must begin within `ANSWER_SECONDS`, of an error only the first
    `ERROR_BYTES` are read, and the status is never passed on as the server's own 401.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable

import aiohttp
from yarl import URL

from dray.api.json_types import JsonObject
from dray.api.pod_logs import PodLogOptions, log_query, parse_log_options, validate_log_options
from dray.server.http.outgoing import DIAL_SECONDS, AddressError, checked_host, checked_session
from dray.server.requests import Call, Reader, Response, Tunnel, errors

_ADDRESS_ORDER = ("Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP")
_EXEC_WORDS = ("command", "stdin", "stdout", "stderr", "tty")
ANSWER_SECONDS = 30.0  # until the answer begins
SILENT_SECONDS = 60.0  # between two pieces of a log that is not followed
ERROR_BYTES = 2048


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

    async def forward(self, call: Call, pod: JsonObject) -> Response:
        """Answer pods/log, pods/exec, pods/attach and pods/portforward."""
        return await self.logs(call, pod) if call.route.subresource == "log" else self.tunnel(call, pod)

    async def logs(self, call: Call, pod: JsonObject) -> Response:
        """Return a container's log, as it grows when the client follows it."""
        options = _log_options(call, pod)
        container = container_of(pod, options.container)
        url = self._url(pod, "containerLogs", log_query(options), container)
        return await self._forward(url, is_followed=options.follow)

    def tunnel(self, call: Call, pod: JsonObject) -> Response:
        """Join the client with a command that the node's agent runs in a container, its output, or ports of a pod."""
        action = call.route.subresource
        if call.request.header("upgrade").lower() != "websocket":
            newer = "1.31" if action == "portforward" else "1.30"
            raise errors.bad_request(
                f"{action} is spoken over websockets here; kubectl {newer} or newer does so by itself"
            )
        if action == "exec" and not call.request.all("command"):
            raise errors.bad_request("you must specify at least 1 command for the container")
        if action == "portforward":
            ports = [(key, value) for key, value in call.request.query if key == "ports"]
            return Response(101, tunnel=Tunnel(self._url(pod, "portForward", ports), self._tls))
        query = [(key, value) for key, value in call.request.query if key in _EXEC_WORDS]
        container = container_of(pod, call.request.first("container"))
        return Response(101, tunnel=Tunnel(self._url(pod, action, query, container), self._tls))

    def _url(
        self, pod: JsonObject, action: str, query: Iterable[tuple[str, str]], container: str = ""
    ) -> URL:
        """Return what to ask the agent of the pod's node about the pod, or about a container of it."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        node_name = (pod.get("spec") or {}).get("nodeName")
        if not node_name:
            raise errors.bad_request(f"pod {name} does not have a host assigned")
        node = self._reader.get("", "nodes", "", node_name)
        if node is None:
            raise errors.not_found("", "nodes", node_name)
        host, port = address_of(node)
        path = f"/{action}/{namespace}/{name}" + (f"/{container}" if container else "")
        return URL.build(scheme="https", host=host, port=port, path=path, query=list(query))

    async def _forward(self, url: URL, *, is_followed: bool) -> Response:
        if self._session is None:
            self._session = checked_session()
        silent = None if is_followed else SILENT_SECONDS
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=DIAL_SECONDS, sock_read=silent)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._session.get(
                    url, ssl=self._tls or False, timeout=timeout, allow_redirects=False
                )
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            raise unreachable(problem) from None
        if answer.status != 200:
            text = await _error_text(answer)
            raise _refusal(answer.status, text)
        return Response(200, _pieces(answer), content_type="text/plain")


def unreachable(problem: Exception) -> errors.ApiError:
    """Return the 500 for an agent that cannot be reached or does not answer."""
    if isinstance(problem, aiohttp.WSServerHandshakeError):
        return _refusal(problem.status, "")
    if isinstance(problem, TimeoutError):
        return errors.internal(f"cannot reach the node agent: no answer within {ANSWER_SECONDS:.0f} s")
    return errors.internal(f"cannot reach the node agent: {problem}")


def _refusal(status: int, text: str) -> errors.ApiError:
    if status == 404:
        return errors.ApiError(404, "NotFound", text or "the node agent does not know this container", {})
    if status == 400:
        return errors.bad_request(text)
    if status in (401, 403):
        # Passed on as it is, it would say that the user's own credentials are bad.
        return errors.internal(
            f"the node agent does not accept this server's client certificate ({status} {text or 'refused'}); "
            "is it started with --client-ca, and may kube-apiserver-kubelet-client use nodes/proxy?"
        )
    return errors.internal(text or f"the node agent answered with status {status}")


async def _error_text(answer: aiohttp.ClientResponse) -> str:
    """Return the beginning of an error's body; the connection is not used again."""
    read = b""
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            while len(read) < ERROR_BYTES:
                piece = await answer.content.read(ERROR_BYTES - len(read))
                if not piece:
                    break
                read += piece
    except (aiohttp.ClientError, OSError, ValueError):
        pass  # what came so far is the text
    finally:
        answer.close()
    return read.decode(errors="replace").strip()


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.content.iter_any():
            yield piece
    finally:
        answer.close()


def _log_options(call: Call, pod: JsonObject) -> PodLogOptions:
    try:
        options = parse_log_options(call.request.query)
    except ValueError as problem:
        raise errors.bad_request(str(problem)) from None
    problems = validate_log_options(options)
    if problems:
        raise errors.invalid("", "PodLogOptions", pod["metadata"]["name"], problems)
    return options


def container_of(pod: JsonObject, wanted: str) -> str:
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


def address_of(node: JsonObject) -> tuple[str, int]:
    """Return host and port of a node's agent; raises 500 when the status has none, or none that is called."""
    status, name = node.get("status") or {}, node["metadata"]["name"]
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
    addresses = {entry.get("type"): entry.get("address") for entry in status.get("addresses") or ()}
    # An address that needs no name resolution is the surest one.
    order = ("InternalIP", *(kind for kind in _ADDRESS_ORDER if kind != "InternalIP"))
    host = next((addresses[kind] for kind in order if addresses.get(kind)), None)
    if not port or not host:
        raise errors.internal(
            f"node {name} tells no address of its agent in status.addresses and "
            "status.daemonEndpoints; is the node agent running?"
        )
    try:
        return checked_host(host), _checked_port(port)
    except AddressError as problem:
        raise errors.internal(f"the agent of node {name} is not called: {problem}") from None


def _checked_port(port: object) -> int:
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise AddressError(f"port {port} is not between 1 and 65535")
    return port
