"""The server towards node agents that are broken or hostile: nothing they answer costs more than their own request."""

import asyncio
import contextlib
import json
import resource
import ssl
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web
from conditions import forever
from server_cluster import Client, running_cluster

from dray.certificates import make_self_signed_certificate
from dray.server.auth import pki
from dray.server.http import node_agents, websocket_tunnels
from dray.server.http.https_front import Front
from dray.server.http.outgoing import AddressError, checked_host

POD = "/api/v1/namespaces/default/pods/p"
NODE = "/api/v1/nodes/n"


@contextlib.asynccontextmanager
async def agent(folder, handler):
    """An HTTPS server that answers everything with one handler, as the agent of node `n`."""
    pair = make_self_signed_certificate("agent", ["127.0.0.1"], datetime.now(UTC))
    (folder / "agent.pem").write_bytes(pair.certificate_pem + pair.key_pem)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "agent.pem")
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def server_with_agent(address="127.0.0.1", port=1):
    async with running_cluster() as client:
        await client.call("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
        pod = {
            "metadata": {"name": "p"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        }
        assert (await client.call("POST", "/api/v1/namespaces/default/pods", pod)).code == 201
        status = {
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        patched = await client.call(
            "PATCH", NODE + "/status", {"status": status}, content="application/merge-patch+json"
        )
        assert patched.code == 200, patched.body
        yield client


async def log(client, query=""):
    """Return status and message (or text) of pods/log."""
    response = await client._respond("GET", f"{POD}/log{query}", None, "", "admin", "")
    if isinstance(response.body, bytes):
        return response.status, json.loads(response.body)["message"]
    text = b""
    async for piece in response.body:
        text += piece
    return response.status, text.decode(errors="replace")


async def test_a_log_is_passed_on(tmp_path):
    async def answer(request):
        assert request.path == "/containerLogs/default/p/c"
        assert dict(request.query) == {"tailLines": "5", "follow": "true"}
        return web.Response(text="one\n")

    async with agent(tmp_path, answer) as port, server_with_agent(port=port) as client:
        assert await log(client, "?tailLines=5&follow=1&evil=x") == (200, "one\n")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_of_an_agent_is_not_followed(tmp_path, status):
    followed = []

    async def answer(request):
        if request.path == "/secret":
            followed.append(request.path)
            return web.Response(text="internal")
        return web.Response(status=status, headers={"Location": "/secret"})

    async with agent(tmp_path, answer) as port, server_with_agent(port=port) as client:
        code, message = await log(client)
        assert (code, "redirect" in message, followed) == (500, True, [])


async def test_the_body_of_an_error_is_read_up_to_a_bound(tmp_path):
    sent = 0

    async def answer(request):
        nonlocal sent
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(400):
                await response.write(b"x" * (1 << 20))
                sent += 1 << 20
        return response

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with agent(tmp_path, answer) as port, server_with_agent(port=port) as client:
        code, message = await log(client)
        assert (code, len(message) < 3000) == (500, True)
        assert sent < 64 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


async def test_an_agent_that_accepts_and_never_answers_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(node_agents, "ANSWER_SECONDS", 0.2)

    async def answer(request):
        await forever()

    async with agent(tmp_path, answer) as port, server_with_agent(port=port) as client:
        code, message = await log(client)
        assert (code, "no answer within" in message) == (500, True)


@pytest.mark.parametrize("status", [401, 403])
async def test_an_agent_that_refuses_the_server_is_not_the_users_fault(tmp_path, status):
    async def answer(request):
        return web.Response(status=status, text="Forbidden (user=x)")

    async with agent(tmp_path, answer) as port, server_with_agent(port=port) as client:
        code, message = await log(client)
        assert code == 500
        assert "does not accept this server's client certificate" in message


async def test_a_compressed_answer_is_not_unpacked(tmp_path):
    async def answer(request):
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=b"\x1f\x8b bomb", headers={"Content-Encoding": "gzip"})

    async with agent(tmp_path, answer) as port, server_with_agent(port=port) as client:
        assert (await log(client))[0] == 200


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.1.2.3", "::1", "fd00::1", "worker-1", "worker.example.com", "a" * 63, "Worker"]
)
def test_addresses_that_are_called(host):
    assert checked_host(host) == host.lower()


@pytest.mark.parametrize(
    "host",
    [
        "evil@127.0.0.1", "127.0.0.1/x", "127.0.0.1:80", "127.0.0.1#", "127.0.0.1?", "a b", "a\n", "a\r\nX: y", "",
        "-a", "a..b", "a" * 254, "ä", "127.1", "2130706433", "0177.0.0.1", "0.0.0.0", "::", "169.254.169.254",
        "::ffff:169.254.169.254", "fe80::1", "fe80::1%eth0", "224.0.0.1", "ff02::1", "255.255.255.255", "[::1]", "_x",
    ],
)  # fmt: skip
def test_addresses_that_are_not_called(host):
    with pytest.raises(AddressError):
        checked_host(host)


@pytest.mark.parametrize("port", [0, -1, 65536, True, "80", None])
async def test_ports_that_are_not_called(port):
    node = {
        "metadata": {"name": "n"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }
    with pytest.raises(node_agents.errors.ApiError) as caught:
        node_agents.address_of(node)
    assert caught.value.code == 500


async def test_a_user_part_in_an_address_is_refused_with_a_reason():
    async with server_with_agent("evil@127.0.0.1") as client:
        code, message = await log(client)
        assert (code, "neither an IP address nor a DNS name" in message) == (500, True)


async def test_a_name_that_resolves_to_a_metadata_address_is_refused(monkeypatch):
    async def resolve(self, host, port=0, family=0):
        return [
            {"hostname": host, "host": "169.254.169.254", "port": port, "family": 2, "proto": 0, "flags": 0}
        ]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)
    async with server_with_agent("metadata.example.com", 443) as client:
        code, message = await log(client)
        assert (code, "not allowed" in message) == (500, True)


# --- options of logs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ("tailLines=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("tailLines=%C2%B2", 400, 'strconv.ParseInt: parsing "²": invalid syntax'),
        ("sinceTime=x", 400, 'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"'),
        (
            "limitBytes=-1",
            422,
            'PodLogOptions "p" is invalid: limitBytes: Invalid value: -1: must be greater than 0',
        ),
        (
            "tailLines=-1&limitBytes=0",
            422,
            'PodLogOptions "p" is invalid: [tailLines: Invalid value: -1: must be greater than or equal to 0, '
            "limitBytes: Invalid value: 0: must be greater than 0]",
        ),
        (
            "sinceSeconds=0",
            422,
            'PodLogOptions "p" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0',
        ),
    ],
)
async def test_options_of_logs_are_checked_before_the_agent_is_called(query, code, message):
    async with server_with_agent("evil@127.0.0.1") as client:
        assert await log(client, "?" + query) == (code, message)


async def test_both_times_exclude_each_other():
    async with server_with_agent() as client:
        code, message = await log(client, "?sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z")
        assert (code, "at most one of `sinceTime` or `sinceSeconds` may be specified" in message) == (
            422,
            True,
        )


async def test_ports_are_asked_of_the_pod_and_not_of_a_container(tmp_path):
    seen = []

    async def answer(request):
        seen.append((request.path, dict(request.query), request.headers["Sec-WebSocket-Protocol"]))
        socket = web.WebSocketResponse(protocols=("SPDY/3.1+portforward.k8s.io",))
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(message.data)
        return socket

    async with exec_through(tmp_path, answer) as (session, url):
        url = url.replace("/exec?command=id", "/portforward?ports=80&evil=x")
        async with session.ws_connect(url, protocols=["SPDY/3.1+portforward.k8s.io"]) as socket:
            await socket.send_bytes(b"a frame")
            assert (await socket.receive()).data == b"a frame"
        async with session.get(url) as refused:
            assert (refused.status, "kubectl 1.31" in await refused.text()) == (400, True)
    assert seen == [("/portForward/default/p", {"ports": "80"}, "SPDY/3.1+portforward.k8s.io")]


# --- exec -----------------------------------------------------------------------------------------


class _Handler:
    """The server's handler as the front calls it, always as the administrator."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def handle(self, request):
        request.headers = {**request.headers, "authorization": "Bearer admin"}
        return await self._client.cluster.server.handle(request)


@contextlib.asynccontextmanager
async def exec_through(tmp_path, answer):
    async with agent(tmp_path, answer) as port, server_with_agent(port=port) as client:
        front = Front(_Handler(client), "127.0.0.1", 0, None)
        await front.start()
        try:
            async with aiohttp.ClientSession() as session:
                yield session, f"http://127.0.0.1:{front.port}{POD}/exec?command=id"
        finally:
            await front.stop()


async def test_a_command_is_carried_in_both_directions(tmp_path):
    async def answer(request):
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(message.data[::-1])
        return socket

    async with (
        exec_through(tmp_path, answer) as (session, url),
        session.ws_connect(url, protocols=["v5.channel.k8s.io"]) as socket,
    ):
        assert socket.protocol == "v5.channel.k8s.io"
        await socket.send_bytes(b"abc")
        assert await socket.receive_bytes(timeout=10) == b"cba"


async def test_a_redirect_of_a_command_is_not_followed(tmp_path):
    followed = []

    async def answer(request):
        if request.path == "/secret":
            followed.append(request.path)
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            return socket
        return web.Response(status=302, headers={"Location": "/secret"})

    async with exec_through(tmp_path, answer) as (session, url):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(url)
        assert (caught.value.status, followed) == (500, [])


async def test_an_agent_that_never_finishes_the_handshake_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(websocket_tunnels, "ANSWER_SECONDS", 0.2)

    async def answer(request):
        await forever()

    async with exec_through(tmp_path, answer) as (session, url):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(url)
        assert caught.value.status == 500


async def test_a_message_beyond_the_bound_ends_the_command(tmp_path):
    async def answer(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(b"\x01" * (websocket_tunnels.MESSAGE_BYTES + 1))
        await forever()
        return socket

    async with exec_through(tmp_path, answer) as (session, url), session.ws_connect(url) as socket:
        message = await socket.receive(timeout=10)
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING)


async def test_an_agent_is_held_up_by_a_client_that_does_not_read(tmp_path):
    sent = 0

    async def answer(request):
        nonlocal sent
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await socket.send_bytes(b"x" * 65536)
                sent += 65536
        return socket

    async with exec_through(tmp_path, answer) as (session, url):
        socket = await session.ws_connect(url)
        await asyncio.sleep(1.0)
        first = sent
        await asyncio.sleep(0.5)
        assert sent == first, "the agent goes on though nobody reads"
        assert sent < 64 << 20
        await socket.close()


def test_the_servers_own_certificate_has_no_group(tmp_path):
    now = datetime.now(UTC)
    made = pki.prepare(tmp_path, ["127.0.0.1"], now)
    pki.node_client_tls(tmp_path, made.ca, now)
    pem = (tmp_path / "node-client.crt").read_text()
    identity = pki.identity_of(ssl.PEM_cert_to_DER_cert(pem))
    assert (identity.name, identity.groups) == ("kube-apiserver-kubelet-client", ())
