"""Ports of pods through a node's websocket, as kubectl (SPDY) and clients in other languages (channels) ask for them."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import zlib

import aiohttp
import pytest
from node_builders import add_pod, container, eventually
from test_node_server import get, node  # noqa: F401
from test_node_spdy import opening

from dray.node.listeners import _reachable_at, find_listener
from dray.node.port_forward import CHANNELS, SPDY, parse_ports
from dray.node.spdy import DICTIONARY, data_frame

# Answers each connection with what it got in capitals, once the client has ended its side.
ECHO = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
open(sys.argv[1], "w").write(f"{server.getsockname()[1]}\\n")
while True:
    connection, _ = server.accept()
    got = b""
    while piece := connection.recv(65536):
        got += piece
    connection.sendall(got.upper())
    connection.close()
"""


@pytest.fixture
async def echo(node):  # noqa: F811
    """A pod with a server, and its port."""
    told = node.folder / "port"
    program = node.folder / "echo.py"
    program.write_text(ECHO)
    add_pod(node.api, containers=[container(script=f"exec {sys.executable} {program} {told}")])
    await node.phase("Running")
    await eventually(lambda: told.exists() and told.read_text().endswith("\n"))
    node.port = int(told.read_text())
    yield node
    # A container outlives its agent, and this one would serve for ever.
    pods = node.agent.pods
    for machine in pods.machines():
        for pid in pods.runtime.first_processes(machine.pod.metadata.uid):
            os.killpg(pid, signal.SIGKILL)


class Kubectl:
    """The client's side of a tunnel."""

    def __init__(self, websocket):
        self.websocket = websocket
        self.pack = zlib.compressobj(zdict=DICTIONARY)
        self.newest = -1
        self.got = {}  # stream -> (data, whether it has ended)
        self.reset = []

    async def open(self, port, request):
        streams = []
        for role in ("error", "data"):
            self.newest += 2
            headers = {"streamtype": role, "port": str(port), "requestid": request}
            await self.websocket.send_bytes(opening(self.newest, headers, self.pack))
            streams.append(self.newest)
        await self.websocket.send_bytes(data_frame(streams[0], b"", is_finished=True))
        return streams

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition():
                frame = (await self.websocket.receive()).data
                first, rest = struct.unpack_from(">II", frame)
                if first == 0x8003_0003:
                    self.reset.append(struct.unpack_from(">I", frame, 8)[0])
                elif not first >> 31:
                    data, _ = self.got.get(first, (b"", False))
                    self.got[first] = (data + frame[8:], bool(rest >> 24))


def connect(node, protocol, query=""):  # noqa: F811
    url = node.url + "/portForward/default/reader" + query
    return node.session.ws_connect(url, protocols=[protocol])


async def test_kubectl_reaches_a_port_of_a_pod_and_is_told_of_ports_that_are_not_the_pods(echo):
    async with connect(echo, SPDY) as websocket:
        assert websocket.protocol == SPDY
        client = Kubectl(websocket)
        _, first = await client.open(echo.port, "0")
        _, second = await client.open(echo.port, "1")
        sent = b"x" * 300_000  # in pieces, and together more than any buffer
        for place in range(0, len(sent), 32768):
            await websocket.send_bytes(data_frame(first, sent[place : place + 32768]))
        await websocket.send_bytes(data_frame(first, b"", is_finished=True))
        await client.until(lambda: client.got.get(first, (b"", False))[1])
        assert client.got[first] == (sent.upper(), True)
        assert client.got[first - 2] == (b"", True), "the error stream ends without a word"

        await websocket.send_bytes(data_frame(second, b"second", is_finished=True))
        await client.until(lambda: client.got.get(second, (b"", False))[1])
        assert client.got[second] == (b"SECOND", True)

        # A port of this process, not of the pod's: it is not the pod's to offer.
        with socket.create_server(("127.0.0.1", 0)) as foreign:
            port = foreign.getsockname()[1]
            error, third = await client.open(port, "2")
            await client.until(lambda: client.got.get(third, (b"", False))[1])
        text, _ = client.got[error]
        assert text.decode().startswith(
            f"error forwarding port {port}: no process of the pod listens on port {port}"
        )

        await websocket.send_bytes(
            opening(client.newest + 2, {"streamtype": "data", "port": "x"}, client.pack)
        )
        await client.until(lambda: client.reset)
        assert client.reset == [client.newest + 2]


async def test_a_client_that_breaks_the_protocol_loses_the_tunnel_only(echo):
    async with connect(echo, SPDY) as websocket:
        await websocket.send_bytes(struct.pack(">II", 1, 0xFFFFFF))
        assert (await asyncio.wait_for(websocket.receive(), 30)).type is aiohttp.WSMsgType.CLOSE
    assert (await get(echo, "/healthz"))[0] == 200


async def test_channels_carry_a_connection_to_each_port(echo):
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        other = foreign.getsockname()[1]
        async with connect(echo, CHANNELS, f"?ports={echo.port},{other}") as websocket:
            heads = [(await websocket.receive()).data for _ in range(5)]
            assert heads[:4] == [
                struct.pack("<BH", n, port) for n, port in enumerate([echo.port] * 2 + [other] * 2)
            ]
            assert heads[4][0] == 3
            assert b"no process of the pod listens" in heads[4]


async def test_what_cannot_be_forwarded_is_refused_before_the_websocket(echo):
    assert (await get(echo, "/portForward/default/reader"))[0] == 400
    assert (await get(echo, "/portForward/default/nobody"))[0] == 404
    for query in ("", "?ports=0", "?ports=70000", "?ports=80,x"):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="400"):
            await connect(echo, CHANNELS, query)


def test_ports_of_a_query_are_bounded():
    assert parse_ports(["80,81", "82"]) == [80, 81, 82]
    for texts in ([], ["80"] * 128, ["²"], ["080000"]):
        with pytest.raises(ValueError, match="ports must name"):
            parse_ports(texts)


def test_only_what_a_process_of_the_pod_has_open_is_found():
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        found = find_listener([os.getpid()], port)
        assert found is not None
        assert found.host == "127.0.0.1"
        child = subprocess.Popen(["sleep", "60"])
        try:
            assert find_listener([child.pid], port) is None
        finally:
            child.kill()
            child.wait()
    assert find_listener([os.getpid()], port) is None, "it listens no more"
    assert find_listener([], port) is None


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("00000000", "127.0.0.1"), ("0100007F", "127.0.0.1"), ("0200007F", "127.0.0.2"), ("0100000A", ""),
        ("0" * 32, "::1"), ("00000000000000000000000001000000", "::1"), ("0000000000000000FFFF00000100007F", "127.0.0.1"),
        ("B80D0120000000000000000001000000", ""),
    ],
)  # fmt: skip
def test_a_listener_is_reached_through_the_loopback_interface(text, host):
    assert _reachable_at(text) == host
