"""Bodies with a Content-Encoding, and broken ones: they are read as they were sent, and nothing is a failure of the server."""

import asyncio
import contextlib
import gzip
import logging

import pytest

from dray.server.http.https_front import Front
from dray.server.requests.messages import text_response


class Echo:
    """Answers with the size of the body."""

    async def handle(self, request):
        await request.load_body()
        return text_response(200, f"{len(request.body)} bytes")


@contextlib.asynccontextmanager
async def serving():
    front = Front(Echo(), "127.0.0.1", 0, None)
    await front.start()
    try:
        yield front.port
    finally:
        await front.stop()


async def answer_to(port, head, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /api HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + head + b"\r\n\r\n" + body)
        async with asyncio.timeout(20):
            return (await reader.read()).decode()
    finally:
        writer.close()


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br", b"unheard-of"])
@pytest.mark.parametrize("body", [b"abc", gzip.compress(b"x" * 1_000_000)])
async def test_a_body_is_what_was_sent_whatever_its_encoding_is_called(encoding, body, caplog):
    head = b"Content-Encoding: %s\r\nContent-Length: %d" % (encoding, len(body))
    async with serving() as port:
        answer = await answer_to(port, head, body)
    assert answer.startswith("HTTP/1.1 200 ")
    assert answer.endswith(f"{len(body)} bytes")  # a compressed body is not unpacked, so it cannot be a bomb
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("body", [b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\nx", b"3\r\nabcd\r\n"])
async def test_broken_chunks_are_a_bad_request(body, caplog):
    async with serving() as port:
        answer = await answer_to(port, b"Transfer-Encoding: chunked", body)
    assert answer.split()[1] == "400"
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
