"""Node agents that answer with anything but logs: whoever holds a node's credentials chooses its address and its answers.

One TLS server plays all of them: the container in the path says how it behaves. A second,
plain server is the *internal service* that nobody outside may reach: a single request to it, by a
redirect for instance, is a finding.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from attack.wire import HOST, Answer, Request, client_tls, json_request, take_answer

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Behaviour = Callable[[Reader, Writer, int], Awaitable[None]]
NODE, NAMESPACE = "hostile", "default"
PATIENCE = 2.5  # seconds that a client waits for a log; long enough to see memory grow
ADDRESSES = (
    "evil@127.0.0.1", "127.0.0.1/x?", "127.0.0.1#", "127.0.0.1:1", "[::1]", "a b", "a\nb", "\x00", "é", "", "0.0.0.0", "::", "::ffff:169.254.169.254",
    "169.254.169.254", "224.0.0.1", "255.255.255.255", "0x7f000001", "2130706433", "127.1", "fe80::1%lo", "a" * 300, ".", "..", "-", "%00", "@", "a@b:c@d",
)  # fmt: skip


def _certificate(folder: Path) -> ssl.SSLContext:
    key, certificate = folder / "agent.key", folder / "agent.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=agent", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def _say(data: bytes) -> Behaviour:
    async def behave(_: Reader, writer: Writer, __: int) -> None:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0.2)

    return behave


def _flood(head: bytes, piece: bytes) -> Behaviour:
    """Answer with a head and then pieces without end."""

    async def behave(_: Reader, writer: Writer, __: int) -> None:
        writer.write(head)
        for _n in range(20_000):
            if writer.is_closing():  # the server has heard enough
                return
            writer.write(piece)
            await writer.drain()

    return behave


def _redirect(status: int, scheme: str) -> Behaviour:
    async def behave(_: Reader, writer: Writer, internal: int) -> None:
        writer.write(
            f"HTTP/1.1 {status} R\r\nLocation: {scheme}://127.0.0.1:{internal}/secret\r\nContent-Length: 0\r\n\r\n".encode()
        )
        await writer.drain()

    return behave


async def _silent(_: Reader, __: Writer, ___: int) -> None:
    await asyncio.sleep(PATIENCE * 2)


_CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
_CHUNKED = b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n"
_WEBSOCKET = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n"
BEHAVIOURS: dict[str, Behaviour] = {
    **{f"redirect-{status}-{scheme}": _redirect(status, scheme) for status in (301, 302, 303, 307, 308) for scheme in ("http", "https")},
    "endless-log": _flood(_CHUNKED % 200, _CHUNK), "endless-error": _flood(_CHUNKED % 500, _CHUNK), "endless-refusal": _flood(_CHUNKED % 404, _CHUNK),
    "endless-head": _flood(b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"a" * 8000 + b"\r\n"), "endless-line": _flood(b"HTTP/1.1 200 ", b"a" * 65536),
    "endless-continue": _flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "endless-chunk-size": _flood(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"f" * 65536),
    "silent": _silent, "closes": _say(b""), "half-head": _say(b"HTTP/1.1 200 OK\r\nContent-Le"), "garbage": _say(bytes(range(256)) * 100), "no-http": _say(b"SSH-2.0-x\r\n"),
    "status-0": _say(b"HTTP/1.1 000 X\r\n\r\n"), "status-999": _say(b"HTTP/1.1 999 X\r\nContent-Length: 1\r\n\r\nx"), "status-word": _say(b"HTTP/1.1 abc X\r\n\r\n"),
    "unauthorised": _say(b"HTTP/1.1 401 X\r\nContent-Length: 1\r\n\r\nx"), "not-utf8": _say(b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\n\xff\xfe\x00"),
    "length-lies": _say(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\nx"), "two-lengths": _say(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
    "chunk-minus": _say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx"), "charset": _say(b"HTTP/1.1 404 X\r\nContent-Type: text/plain; charset=rot13\r\nContent-Length: 1\r\n\r\nx"),
    "gzip-bomb": _say(b"HTTP/1.1 500 X\r\nContent-Encoding: deflate\r\nConnection: close\r\n\r\n" + zlib.compress(b"\x00" * 200_000_000)),
    "cookies": _say(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; domain=127.0.0.1\r\nContent-Length: 1\r\n\r\nx"), "upgrade": _say(_WEBSOCKET + b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"),
    "upgrade-flood": _flood(_WEBSOCKET, b"\x89\x7dx" + b"x" * 124), "line-breaks": _say(b"HTTP/1.1 400 X\r\nContent-Length: 26\r\n\r\nx\r\nSet-Cookie: a=b\r\n\r\nHTTP"),
}  # fmt: skip


class Agents:
    """The hostile agents and the internal service, running."""

    def __init__(self, folder: Path) -> None:
        self._tls = _certificate(folder)
        self.reached = 0  # requests to the internal service
        self.port = self.internal = 0

    async def __aenter__(self) -> Agents:
        """Listen."""
        self._internal = await asyncio.start_server(self._secret, HOST, 0)
        self.internal = self._internal.sockets[0].getsockname()[1]
        self._server = await asyncio.start_server(self._answer, HOST, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        self._server.close()
        self._internal.close()

    async def _secret(self, reader: Reader, writer: Writer) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if await reader.read(10):
                self.reached += 1
            writer.close()

    async def _answer(self, reader: Reader, writer: Writer) -> None:
        try:
            async with asyncio.timeout(PATIENCE * 3):
                head = await reader.readuntil(b"\r\n\r\n")
                container = head.split(b" ")[1].partition(b"?")[0].rpartition(b"/")[2].decode()
                await BEHAVIOURS[container](reader, writer, self.internal)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, KeyError):
            pass
        finally:
            writer.transport.abort()


def objects(port: int) -> list[Request]:
    """Return the requests that make the node and a pod with one container for each behaviour."""
    status = {
        "addresses": [{"type": "InternalIP", "address": HOST}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    containers = [{"name": name, "image": "i"} for name in BEHAVIOURS]
    made = [
        json_request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}, "status": status}),
        json_request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": NODE}, "spec": {"nodeName": NODE, "containers": containers}}),
    ]  # fmt: skip
    for number, address in enumerate(ADDRESSES):
        status = {
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        node, pod = (
            {"metadata": {"name": f"odd{number}"}, "status": status},
            {"metadata": {"name": f"odd{number}"}},
        )
        made.append(json_request("POST", "/api/v1/nodes", node))
        spec = {"nodeName": f"odd{number}", "containers": [{"name": "cookies", "image": "i"}]}
        made.append(json_request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {**pod, "spec": spec}))
    return made


def questions() -> list[tuple[str, Request]]:
    """Return (name, request) for logs and exec of each behaviour and each odd address."""
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    upgrade = {
        "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
    }  # fmt: skip
    made = []
    for name in BEHAVIOURS:
        made.append((f"log {name}", Request("GET", f"{pods}/{NODE}/log?container={name}")))
        made.append(
            (f"followed log {name}", Request("GET", f"{pods}/{NODE}/log?container={name}&follow=true"))
        )
        made.append(
            (
                f"exec {name}",
                Request("GET", f"{pods}/{NODE}/exec?container={name}&command=x&stdout=1", upgrade),
            )
        )
    for number, address in enumerate(ADDRESSES):
        made.append((f"log of node at {address[:30]!r}", Request("GET", f"{pods}/odd{number}/log")))
    return made


async def ask_a_few(port: int, request: Request, count: int = 4) -> list[Answer]:
    """Send a request several times at once; do not read more than the beginning, and do not wait long."""
    return list(await asyncio.gather(*(_ask_briefly(port, request) for _ in range(count))))


async def _ask_briefly(port: int, request: Request) -> Answer:
    writer: Any = None
    buffer = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(HOST, port, ssl=client_tls())
            writer.write(request.encode())
            while b"\r\n\r\n" not in buffer:
                piece = await reader.read(4096)
                if not piece:
                    return Answer(0)
                buffer += piece
            found = take_answer(bytearray(buffer))
            while (
                found is None
            ):  # a stream stays unread after its first pieces: the server must not collect it
                if b"chunked" in bytes(buffer).lower():
                    await asyncio.sleep(PATIENCE)
                buffer += await reader.read(4096)
                found = take_answer(bytearray(buffer))
            return found
    except TimeoutError:
        return Answer(int(buffer[9:12]) if len(buffer) > 12 else -1)
    except OSError:
        return Answer(0)
    finally:
        if writer is not None:
            writer.transport.abort()
