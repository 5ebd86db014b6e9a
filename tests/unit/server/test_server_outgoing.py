"""Calls to addresses that others choose: what an answer may be."""

import asyncio
import contextlib

import aiohttp
import pytest

from dray.server.http.outgoing import checked_session

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextlib.asynccontextmanager
async def peer(pieces):
    """Yield the address of a server that answers every request with the pieces, whoever reads them."""

    async def answer(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_an_interim_answer_before_the_answer_is_passed_over():
    async with peer([INTERIM * 3 + ANSWER]) as address, checked_session() as session:
        answer = await session.get(address)
        assert (answer.status, await answer.read()) == (200, b"ok")


async def test_interim_answers_without_end_are_not_read_to_their_end():
    async with peer([INTERIM * 10_000 for _ in range(200)]) as address, checked_session() as session:
        with pytest.raises(aiohttp.ClientError, match="more answers than it was asked for"):
            await session.get(address)


async def test_a_long_body_arrives_whole():
    body = bytes(range(256)) * 10_000
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with peer([head + body]) as address, checked_session() as session:
        answer = await session.get(address)
        assert await answer.read() == body
