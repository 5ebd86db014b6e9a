"""The HTTP transport against a server that answers byte by byte as told."""

import asyncio
import contextlib
import itertools

import pytest
from conditions import until
from hypothesis import given
from hypothesis import strategies as st

from dray.api.core import Node
from dray.client import Client, HttpTransport, Request, TransportError
from dray.client.errors import Conflict, Gone, NotFound, TooManyRequests
from dray.client.http_connection import Connection, open_connection
from dray.client.resources import CLAIMS, NODES, PODS


class ScriptedServer:
    """Answers each request with the next list of byte pieces; None closes the connection."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.connections = 0
        self._handlers = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.transport = HttpTransport(f"http://127.0.0.1:{self.port}")
        return self

    async def __aexit__(self, *_):
        await self.transport.close()
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _serve(self, reader, writer):
        self.connections += 1
        self._handlers.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(x.split(":")[1])
                        for x in head.split("\r\n")
                        if x.lower().startswith("content-length")
                    ),
                    0,
                )
                self.requests.append((head, await reader.readexactly(length)))
                pieces = self.answers.pop(0) if self.answers else [ok(b"{}")]
                for piece in pieces:
                    if piece is None:
                        writer.close()
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()


def ok(body, status="200 OK", extra=b""):
    return b"HTTP/1.1 " + status.encode() + b"\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_counted_body_arrives_whole_even_when_it_comes_in_drops():
    answer = ok(b'{"a":1}')
    async with ScriptedServer([bytes([byte]) for byte in answer]) as server:
        response = await server.transport.send(Request("GET", "/x"))
    assert (response.status, response.body) == (200, b'{"a":1}')


class _Sink(asyncio.Transport):
    def write(self, data):
        pass

    def abort(self):
        pass


@given(
    parts=st.lists(st.binary(min_size=1, max_size=300), max_size=6),
    cuts=st.lists(st.integers(min_value=0, max_value=2000), max_size=12),
    tail=st.sampled_from([b"", b";name=value"]),
)
def test_a_chunked_body_is_joined_wherever_it_is_cut(parts, cuts, tail):
    text = CHUNKED + b"".join(b"%x%s\r\n%s\r\n" % (len(part), tail, part) for part in parts) + b"0\r\n\r\n"

    async def feed():
        connection = Connection()
        connection.connection_made(_Sink())
        answer = asyncio.ensure_future(connection.exchange(b"GET / HTTP/1.1\r\n\r\n", None, stream=False))
        await asyncio.sleep(0)
        places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
        for start, end in itertools.pairwise(places):
            connection.data_received(text[start:end])
        return await answer, connection.can_be_kept

    (status, _, body), can_be_kept = asyncio.run(feed())
    assert (status, body, can_be_kept) == (200, b"".join(parts), True)


async def test_connections_are_kept_and_used_again():
    async with ScriptedServer() as server:
        for _ in range(5):
            await server.transport.send(Request("GET", "/x"))
        assert server.connections == 1


async def test_a_connection_the_server_wants_closed_is_not_used_again():
    async with ScriptedServer([ok(b"{}", extra=b"Connection: close\r\n")]) as server:
        await server.transport.send(Request("GET", "/x"))
        await server.transport.send(Request("GET", "/x"))
        assert server.connections == 2


async def test_a_read_on_a_connection_that_died_while_idle_is_sent_again():
    async with ScriptedServer([ok(b"{}")], [None], [ok(b'{"again":1}')]) as server:
        await server.transport.send(Request("GET", "/x"))
        assert (await server.transport.send(Request("GET", "/x"))).body == b'{"again":1}'


async def test_a_create_without_an_answer_is_not_sent_again():
    async with ScriptedServer([ok(b"{}")], [None]) as server:
        await server.transport.send(Request("GET", "/x"))
        with pytest.raises(TransportError):
            await server.transport.send(Request("POST", "/x", b"{}"))
        assert [head.split(" ")[0] for head, _ in server.requests] == ["GET", "POST"]


async def test_an_answer_cut_off_in_the_middle_is_an_error():
    async with ScriptedServer([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", None]) as server:
        with pytest.raises(TransportError, match="lost"):
            await server.transport.send(Request("GET", "/x"))


async def test_garbage_is_an_error_and_not_a_hang():
    async with ScriptedServer([b"SSH-2.0 hello\r\n\r\n"]) as server:
        with pytest.raises(TransportError):
            await server.transport.send(Request("GET", "/x", timeout=30))


async def test_nobody_listening_is_an_error_that_names_the_address():
    transport = HttpTransport("http://127.0.0.1:1")
    with pytest.raises(TransportError, match="127.0.0.1:1"):
        await transport.send(Request("GET", "/x"))


@pytest.mark.parametrize("seconds", [0.02, 0.7])
async def test_a_connection_that_nobody_waits_for_any_more_is_closed_when_it_is_made(monkeypatch, seconds):
    made = asyncio.Event()

    async def slow(factory, *_args, **_options):
        await asyncio.sleep(seconds)
        connections.append(factory())
        made.set()
        return None, connections[0]

    connections = []
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", slow)
    waiting = asyncio.create_task(open_connection("127.0.0.1", 1, None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await made.wait()
    await until(lambda: connections[0].is_closed, 30)


async def test_a_late_answer_is_given_up_and_its_connection_with_it():
    async with ScriptedServer([]) as server:
        server.answers = [[b""]]
        with pytest.raises(TransportError, match="within"):
            await server.transport.send(Request("GET", "/x", timeout=0.05))
        assert (await server.transport.send(Request("GET", "/y"))).status == 200
        assert server.connections == 2


async def test_a_stream_hands_out_pieces_and_says_when_it_was_cut_off():
    async with ScriptedServer([CHUNKED + chunked(b"one\n"), chunked(b"two\n"), None]) as server:
        response = await server.transport.send(Request("GET", "/x", stream=True))
        seen = []
        with pytest.raises(TransportError, match="cut off"):
            async for piece in response.pieces:
                seen.append(piece)
    assert b"".join(seen) == b"one\ntwo\n"


async def test_a_refused_stream_is_an_ordinary_answer():
    async with ScriptedServer([ok(b'{"reason":"NotFound","code":404}', "404 Not Found")]) as server:
        response = await server.transport.send(Request("GET", "/x", stream=True))
        assert response.status == 404 and response.pieces is None and b"NotFound" in response.body


async def test_verbs_spell_paths_and_decode_views():
    node = b'{"metadata":{"name":"n1","uid":"u"},"spec":{"unschedulable":true},"unknown":{"x":[1]}}'
    async with ScriptedServer([ok(node)]) as server:
        found = await Client(server.transport).get(NODES, "n1", view=Node)
        assert found.metadata.name == "n1" and found.spec.unschedulable
        assert server.requests[0][0].startswith("GET /api/v1/nodes/n1 HTTP/1.1\r\n")


async def test_refusals_become_the_exception_of_their_branch():
    conflict = b'{"kind":"Status","reason":"Conflict","code":409,"message":"changed"}'
    async with ScriptedServer(
        [ok(conflict, "409 Conflict")], [ok(b"404 page not found", "404 Not Found")]
    ) as server:
        client = Client(server.transport)
        with pytest.raises(Conflict, match="changed"):
            await client.update(CLAIMS, "c", {}, "ns")
        with pytest.raises(NotFound, match="page not found"):
            await client.get(PODS, "p", "ns")


async def test_too_many_requests_is_asked_again_after_the_pause():
    busy = ok(b'{"code":429,"reason":"TooManyRequests"}', "429 Too Many Requests", b"Retry-After: 0\r\n")
    async with ScriptedServer([busy], [ok(b'{"done":true}')]) as server:
        assert await Client(server.transport).get(NODES, "n") == {"done": True}


async def test_too_many_requests_on_an_eviction_is_an_answer():
    busy = ok(b'{"code":429,"reason":"TooManyRequests","message":"budget"}', "429 Too Many Requests")
    async with ScriptedServer([busy]) as server:
        with pytest.raises(TooManyRequests, match="budget"):
            await Client(server.transport).create(PODS, {}, "ns", name="p", subresource="eviction")
        assert len(server.requests) == 1


async def test_lists_follow_the_pages():
    pages = [
        ok(b'{"metadata":{"resourceVersion":"5","continue":"abc"},"items":[{"a":1}]}'),
        ok(b'{"metadata":{"resourceVersion":"5"},"items":[{"a":2}]}'),
    ]
    async with ScriptedServer([pages[0]], [pages[1]]) as server:
        found = await Client(server.transport).list(NODES, limit=1, resourceVersion="0")
        assert [item["a"] for item in found.items] == [1, 2] and found.metadata.resource_version == "5"
        assert "continue=abc" in server.requests[1][0] and "resourceVersion" not in server.requests[1][0]


async def test_an_error_in_a_watch_is_raised():
    event = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'
    async with ScriptedServer([CHUNKED + chunked(event)]) as server:
        with pytest.raises(Gone):
            async for _ in Client(server.transport).watch(NODES, resourceVersion="1"):
                pass
