"""Servers that answer with too much, with nonsense, or not at all: bounded memory and a clear error."""

import asyncio

import pytest
from conditions import forever
from scripted_server import AnsweringServer, ok

from dray.api.core import Node
from dray.client import Client, HttpTransport, Informer, Request, TransportError, http_connection
from dray.client import api_client as verbs
from dray.client.errors import ApiError, ServerFailed, Unreadable
from dray.client.resources import NODES

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def answer_to(answer, request=None, **options):
    """Send one request to a server that answers like this."""
    async with AnsweringServer(lambda _head: answer) as server:
        transport = HttpTransport(server.url, **options)
        try:
            return await transport.send(request or Request("GET", "/x", timeout=20))
        finally:
            await transport.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * (http_connection.MOST_HEAD + 1), "headers are longer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 2000 + b"\r\n", "more than 1000 headers"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + ok(b"{}"), "interim"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n", "longer than"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "status"),
        (b"HTTP/9.1 200 OK\r\n\r\n", "version"),
        (b"HTTP/2.0 200 OK\r\n\r\n", "version"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "not HTTP as expected"),
        (b"\x16\x03\x01\r\n\r\n", "Expected HTTP"),
        (CHUNKED + b"-5\r\nhello\r\n", "[Cc]hunk size"),
        (CHUNKED + b"0x5\r\nhello\r\n", "[Cc]hunk size"),
        (CHUNKED + b"5" * 5000, "[Cc]hunk size"),
        (CHUNKED + b"ffffffffffffffffffff\r\n", "[Cc]hunk size"),
        (CHUNKED + b"5\r\nhello, longer\r\n0\r\n\r\n", "after chunk data"),
        (CHUNKED + b"5;" + b"x" * 500_000, "between two chunks"),
        (CHUNKED + b"0\r\nX: " + b"x" * 500_000, "between two chunks"),
        (ok(b"{}").replace(b"\r\n", b"\n"), "not HTTP as expected"),
        (ok(b"{}") + b"HTTP/1.1 200 OK\r\n", "more bytes than announced"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", "compressed"),
    ],
)
async def test_answers_that_are_not_http_as_expected_fail_at_once(answer, words):
    with pytest.raises(TransportError, match=words):
        await answer_to(answer)


@pytest.mark.parametrize("framing", ["counted", "chunked", "until closed"])
async def test_a_body_over_the_limit_is_not_collected(framing):
    body = b"x" * 300_000
    answer = {
        "counted": ok(body),
        "chunked": CHUNKED + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
        "until closed": b"HTTP/1.1 200 OK\r\n\r\n" + body,
    }[framing]
    with pytest.raises(TransportError, match="longer than 100000 bytes"):
        await answer_to(answer, most_body=100_000)


@pytest.mark.parametrize("framing", ["counted", "chunked"])
async def test_of_a_huge_error_only_the_beginning_is_read(framing):
    size = http_connection.MOST_ERROR_BODY + (8 << 20)
    head = b"HTTP/1.1 500 Oops\r\n"
    body = b"broken " + b"x" * (size - 7)
    answer = (
        head + b"Content-Length: %d\r\n\r\n" % (size * 1000) + body
        if framing == "counted"
        else head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (size * 1000) + body
    )
    response = await answer_to(answer)
    assert response.status == 500
    assert http_connection.MOST_ERROR_BODY < len(response.body) < http_connection.MOST_ERROR_BODY + (2 << 20)
    async with AnsweringServer(lambda _head: answer) as server:
        client = Client(HttpTransport(server.url))
        with pytest.raises(ServerFailed, match="broken xxx") as caught:
            await client.call("POST", "/x", {})
        assert len(str(caught.value)) < 1000
        await client.close()


async def test_a_large_chunk_is_handed_out_as_it_arrives():
    """A stream's chunk is not collected: the reader's pace bounds what is kept."""
    total = 64 << 20

    async def body(_head):
        return CHUNKED + b"%x\r\n" % total + b"y" * total

    async with AnsweringServer(body) as server:
        transport = HttpTransport(server.url)
        response = await transport.send(Request("GET", "/x", stream=True))
        (connection,) = transport._streams
        await asyncio.sleep(0.2)  # the reader does not read
        kept = connection._waiting
        assert 0 < kept < 16 << 20
        seen = 0
        async for piece in response.pieces:
            seen += len(piece)
            if seen >= total:
                break
        assert seen == total
        await response.close()
        await transport.close()


@pytest.mark.parametrize("line", [b"x", b'{"type":"ADDED","object":{"metadata":{"name":"'])
async def test_a_watch_event_without_end_is_given_up(line, monkeypatch):
    monkeypatch.setattr(verbs, "MOST_LINE", 1 << 20)
    text = line + b"y" * (2 << 20)
    async with AnsweringServer(lambda _head: CHUNKED + b"%x\r\n" % len(text) + text) as server:
        client = Client(HttpTransport(server.url))
        with pytest.raises(TransportError, match="more than 1 MiB"):
            async for _ in client.watch(NODES):
                pass
        await client.close()


async def test_the_largest_objects_pass_through_a_watch():
    event = (
        b'{"type":"ADDED","object":{"metadata":{"name":"n","annotations":{"a":"'
        + b"z" * (3 << 20)
        + b'"}}}}\n'
    )
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (event[:1000], event[1000:], event * 2))
    async with AnsweringServer(lambda _head: CHUNKED + pieces + b"0\r\n\r\n") as server:
        client = Client(HttpTransport(server.url))
        seen = [event.object.metadata.name async for event in client.watch(NODES, view=Node)]
        assert seen == ["n"] * 3
        await client.close()


@pytest.mark.parametrize("line", [b"{}garbage\n", b'{"type":"ADDED","object":5}\n', b"\xff\xfe\n", b'{"type":"ERROR"x\n',
                                  b'{"type":"ADDED","object":' + b"[" * 100_000 + b"\n"])  # fmt: skip
async def test_a_watch_event_that_cannot_be_read_is_an_error_of_the_client(line):
    async with AnsweringServer(
        lambda _head: CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(line), line)
    ) as server:
        client = Client(HttpTransport(server.url))
        with pytest.raises((Unreadable, ApiError)):
            async for _ in client.watch(NODES, view=Node):
                pass
        await client.close()


async def test_an_informer_survives_garbage_and_asks_less_and_less_often():
    garbage = b'{"type":"ADDED","obj\n'

    def answer(head):
        if "watch=1" in head:
            return CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(garbage), garbage)
        return ok(b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    async with AnsweringServer(answer) as server:
        client = Client(HttpTransport(server.url))
        informer = Informer(client, NODES, Node)
        running = asyncio.create_task(informer.run())
        await asyncio.sleep(0.6)
        assert not running.done()
        assert informer.has_synced
        assert 2 <= len(server.heads) <= 8
        running.cancel()
        await client.close()


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_tight_loop():
    def answer(head):
        return ok(b"" if "watch=1" in head else b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    async with AnsweringServer(answer) as server:
        client = Client(HttpTransport(server.url))
        running = asyncio.create_task(Informer(client, NODES, Node).run())
        await asyncio.sleep(0.6)
        assert len(server.heads) <= 10
        running.cancel()
        await client.close()


async def test_redirects_are_not_followed():
    async with AnsweringServer(lambda _head: ok(b"{}")) as other:
        moved = ok(b"", "302 Found", b"Location: %s/stolen\r\n" % other.url.encode())
        async with AnsweringServer(lambda _head: moved) as server:
            client = Client(HttpTransport(server.url))
            with pytest.raises(
                ApiError, match=r"redirects to http://127.0.0.1:\d+/stolen, which is not followed"
            ):
                await client.get(NODES, "n")
            await client.close()
        assert other.heads == []


async def test_bytes_that_nobody_asked_for_are_not_taken_for_the_next_answer():
    forged = ok(b'{"forged":true}')
    sent = 0

    async def answer(_head):
        nonlocal sent
        sent += 1
        return ok(b"{}") if sent > 1 else CHUNKED + b"2\r\n{}\r\n0\r\n\r\n" + forged

    async with AnsweringServer(answer) as server:
        transport = HttpTransport(server.url)
        with pytest.raises(TransportError, match="more bytes than announced"):
            await transport.send(Request("GET", "/x"))
        assert (await transport.send(Request("GET", "/x"))).body == b"{}"
        await transport.close()


async def test_a_server_that_never_answers_is_given_up():
    async with AnsweringServer(forever) as server:
        transport = HttpTransport(server.url)
        with pytest.raises(TransportError, match="within 0.1 s"):
            await transport.send(Request("GET", "/x", timeout=0.1))
        await transport.close()


async def test_a_watch_that_the_server_forgets_to_end_is_given_up(monkeypatch):
    monkeypatch.setattr(verbs, "_WATCH_GRACE", 0.1)
    async with AnsweringServer(lambda _head: CHUNKED) as server:
        client = Client(HttpTransport(server.url))
        with pytest.raises(TransportError, match="did not end the watch in time"):
            async for _ in client.watch(NODES, timeoutSeconds=0):
                pass
        await client.close()


async def test_lists_are_read_in_pages_and_in_one_piece_when_a_page_comes_too_late():
    def page(items, token=""):
        names = ",".join(f'{{"metadata":{{"name":"{name}"}}}}' for name in items)
        return ok(f'{{"metadata":{{"resourceVersion":"7","continue":"{token}"}},"items":[{names}]}}'.encode())

    gone = ok(b'{"kind":"Status","code":410,"reason":"Expired"}', "410 Gone")
    is_late = False

    def answer(head):
        target = head.split()[1]
        if "continue=" in target:
            return gone if is_late else page(["b"])
        return page(["a"], "more") if "limit=500" in target else page(["a", "b", "c"])

    async with AnsweringServer(answer) as server:
        client = Client(HttpTransport(server.url))
        found = await client.list(NODES, view=Node, resourceVersion="0")
        assert [node.metadata.name for node in found.items] == ["a", "b"]
        assert "resourceVersion" not in server.heads[1]
        is_late = True
        found = await client.list(NODES, view=Node)
        assert [node.metadata.name for node in found.items] == ["a", "b", "c"]
        await client.close()
