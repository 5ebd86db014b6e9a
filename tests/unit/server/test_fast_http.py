"""The quick lane: plain requests are answered there, everything else by the framework, nothing twice."""

import asyncio
import contextlib

import pytest
from conditions import forever, until

from dray.server.http import connection_limits as connections_module
from dray.server.http import https_front as front_module
from dray.server.http.connection_limits import BodyBudget
from dray.server.http.fast_http import HEAD_LIMIT, READ_AHEAD, WRITE_BUFFER, Times, read_head
from dray.server.http.https_front import Front
from dray.server.requests import errors
from dray.server.requests.messages import Response, json_response


class Echo:
    """Answers with what it was asked, or as the path says."""

    def __init__(self):
        self.seen = []
        self.cancelled = []
        self.lines = asyncio.Queue()

    async def handle(self, request):
        if request.path != "/unwanted":
            await request.load_body()
        self.seen.append(request)
        if request.path == "/slow":
            try:
                await forever()
            except asyncio.CancelledError:
                self.cancelled.append(request.path)
                raise
        if request.path == "/wait":
            await asyncio.sleep(0.1)
        if request.path == "/bug":
            raise KeyError("a bug")
        if request.path == "/refused":
            raise errors.bad_request("no")
        if request.path == "/unchanged":
            return Response(304, b"", [("ETag", "x")])
        if request.path == "/large":
            return Response(200, b"x" * 50_000_000)
        if request.path == "/watch":
            return Response(200, self._stream())
        return json_response(
            200, {"path": request.path, "body": request.body.decode(), "query": request.query}
        )

    async def _stream(self):
        try:
            while (line := await self.lines.get()) is not None:
                yield line
        finally:
            self.cancelled.append("stream")


@contextlib.asynccontextmanager
async def served(**times):
    echo = Echo()
    front = Front(echo, "127.0.0.1", 0, None, Times(**times))
    await front.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    try:
        async with asyncio.timeout(60):
            yield echo, front, reader, writer
    finally:
        writer.close()
        await front.stop()


def plain(path="/", body=b"", method="GET", *headers):
    length = (f"Content-Length: {len(body)}",) if body or method != "GET" else ()
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *length, *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def answer(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status = int(head.split()[1])
    headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
    body = b""
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    return status, headers, body


async def test_requests_that_come_together_are_answered_in_order():
    async with served() as (echo, _, reader, writer):
        writer.write(plain("/wait") + plain("/b", b"{}", "POST") + plain("/c?x=1&y=%20"))
        found = [await answer(reader) for _ in range(3)]
        assert [status for status, _, _ in found] == [200, 200, 200]
        assert [each.path for each in echo.seen] == ["/wait", "/b", "/c"]
        assert echo.seen[1].body == b"{}" and echo.seen[2].query == (("x", "1"), ("y", " "))
        assert found[0][1]["content-type"] == "application/json" and "date" in found[0][1]


async def test_a_body_may_come_in_pieces():
    async with served() as (echo, _, reader, writer):
        whole = plain("/p", b"0123456789", "PUT")
        for piece in (whole[:-7], whole[-7:-3], whole[-3:]):
            writer.write(piece)
            await asyncio.sleep(0.02)
        assert (await answer(reader))[0] == 200
        assert echo.seen[0].body == b"0123456789"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\nX-Long: " + b"y" * HEAD_LIMIT + b"\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: Keep-Alive, TE\r\n\r\n",
        b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_what_is_not_plain_is_answered_by_the_framework_and_so_is_what_follows(request_bytes):
    async with served() as (echo, _, reader, writer):
        writer.write(plain("/before"))
        assert (await answer(reader))[0] == 200
        writer.write(request_bytes)
        is_head = request_bytes.startswith(b"HEAD")
        status, headers, _ = (
            await answer(reader)
            if not is_head
            else (200, {"server": "aiohttp"}, await reader.readuntil(b"\r\n\r\n"))
        )
        assert status == 200 and "server" in headers  # the framework signs its answers
        writer.write(plain("/after"))
        assert (await answer(reader))[0] == 200
        assert [each.path for each in echo.seen] == ["/before", "/x", "/after"]


async def test_a_head_may_come_in_pieces():
    async with served() as (echo, _, reader, writer):
        writer.write(b"GET /x HTTP/1.1\r\nHo")
        await asyncio.sleep(0.02)
        writer.write(b"st: x\r\n\r\n")
        assert (await answer(reader))[0] == 200
        assert [each.path for each in echo.seen] == ["/x"]


@pytest.mark.parametrize(
    "nonsense", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\nHost: x\r\n\r\n"]
)
async def test_nonsense_is_answered_with_a_status(nonsense):
    async with served() as (echo, _, reader, writer):
        writer.write(nonsense + b"\r\n\r\n")
        status, _, body = await answer(reader)
        assert status in (400, 405, 505) and b'"Status"' in body
        assert echo.seen == []


@pytest.mark.parametrize(("path", "status"), [("/bug", 500), ("/refused", 400), ("/unchanged", 304)])
async def test_a_failure_is_one_answer_and_the_connection_lives_on(path, status, caplog):
    async with served() as (_, _, reader, writer):
        writer.write(plain(path))
        found = await answer(reader)
        assert found[0] == status
        assert ("content-length" in found[1]) == (status != 304)
        writer.write(plain("/next"))
        assert (await answer(reader))[0] == 200


async def test_a_stream_ends_with_its_source_and_the_connection_serves_on():
    async with served() as (echo, _, reader, writer):
        writer.write(plain("/watch"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        for line in (b"one\n", b"two\n", None):
            echo.lines.put_nowait(line)
        assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\none\n\r\n4\r\ntwo\n\r\n0\r\n\r\n"
        writer.write(plain("/next"))
        assert (await answer(reader))[0] == 200


async def test_a_long_piece_of_a_stream_arrives_whole():
    async with served() as (echo, _, reader, writer):
        piece = bytes(range(256)) * 1_000
        writer.write(plain("/watch"))
        await reader.readuntil(b"\r\n\r\n")
        for each in (piece, None):
            echo.lines.put_nowait(each)
        expected = b"%x\r\n%b\r\n0\r\n\r\n" % (len(piece), piece)
        assert await reader.readexactly(len(expected)) == expected


@pytest.mark.parametrize("path", ["/slow", "/watch"])
async def test_when_the_client_goes_the_work_for_it_ends(path):
    async with served() as (echo, _, reader, writer):
        writer.write(plain(path))
        await until(lambda: echo.seen)
        if path == "/watch":
            await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await until(lambda: echo.cancelled)


async def test_a_reader_that_stops_reading_holds_up_its_stream_only():
    async with served() as (echo, front, reader, writer):
        writer.write(plain("/watch"))
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(200):
            echo.lines.put_nowait(b"x" * 100_000)
        await asyncio.sleep(0.2)
        assert echo.lines.qsize() > 50  # the rest waits at its source, not in memory of the front
        other_reader, other = await asyncio.open_connection("127.0.0.1", front.port)
        other.write(plain("/other"))
        assert (await answer(other_reader))[0] == 200
        other.close()


@pytest.fixture
def quick_ticks(monkeypatch):
    """Let a second of the connections' time pass in a hundredth."""
    monkeypatch.setattr(connections_module, "TICK", 0.01)


async def test_a_body_that_does_not_come_is_given_up(quick_ticks):
    async with served(body=10) as (echo, _, reader, writer):
        writer.write(plain("/p", b"0123456789", "PUT")[:-4])
        status, _, body = await answer(reader)
        assert status == 400 and b"did not arrive in time" in body
        assert echo.seen == []


async def test_a_body_over_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(front_module, "BODY_LIMIT", 100)
    async with served() as (echo, _, reader, writer):
        writer.write(plain("/p", b"x" * 101, "PUT"))
        assert (await answer(reader))[0] == 413
        assert echo.seen == []


async def test_idle_connections_are_closed(quick_ticks):
    async with served(idle=20) as (_, _, reader, writer):
        writer.write(plain("/x"))
        assert (await answer(reader))[0] == 200
        assert await reader.read() == b""


async def test_whoever_asks_to_close_is_served_and_left():
    async with served() as (_, _, reader, writer):
        writer.write(plain("/x", b"", "GET", "Connection: close"))
        status, headers, _ = await answer(reader)
        assert status == 200 and headers["connection"] == "close"
        assert await reader.read() == b""


@pytest.mark.parametrize(
    "head",
    [
        b"get / HTTP/1.1\r\nHost: x",
        b"GET  / HTTP/1.1\r\nHost: x",
        b"GET http://x/ HTTP/1.1\r\nHost: x",
        b"GET / HTTP/1.0\r\nHost: x",
        b"GET / HTTP/1.1",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded: y",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Name: y",
        b"GET / HTTP/1.1\r\nHost: x\r\nName: a\nb",
        b"GET / HTTP/1.1\r\nHost: x\r\nName: a\x00b",
        b"GET / HTTP/1.1\r\nHost: x\r\nName: \xc3\xa9",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: y",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: -1",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket",
    ],
)
def test_heads_that_are_not_plain_are_not_read(head):
    assert read_head(head) is None


def test_repeated_headers_are_joined_and_names_are_lower_case():
    head = read_head(b"GET /a HTTP/1.1\r\nHost: x\r\nAccept: a\r\nACCEPT:b \r\nConnection: Close")
    assert head.headers == {"host": "x", "accept": "a, b", "connection": "Close"} and head.is_last


async def test_a_body_that_nobody_wants_is_not_waited_for():
    async with served() as (_, front, reader, writer):
        writer.write(
            plain("/unwanted", b"x", "POST").replace(b"Content-Length: 1", b"Content-Length: 2000000")
        )
        status, headers, _ = await answer(reader)
        assert status == 200 and headers["connection"] == "close"
        assert front.connections.bodies.taken == 0
        assert await reader.read() == b""


async def test_the_rest_of_a_small_body_that_nobody_wanted_is_skipped():
    async with served() as (echo, _, reader, writer):
        whole = plain("/unwanted", b"0123456789", "POST")
        writer.write(whole[:-6])
        assert (await answer(reader))[0] == 200
        writer.write(whole[-6:-2])
        await asyncio.sleep(0.02)
        writer.write(whole[-2:] + plain("/next"))
        assert (await answer(reader))[0] == 200
        assert [each.path for each in echo.seen] == ["/unwanted", "/next"]
        assert echo.seen[0].body == b""


async def test_what_a_client_sends_before_it_is_asked_for_stays_with_the_client():
    async with served() as (echo, front, _, writer):
        writer.write(plain("/slow"))
        await until(lambda: echo.seen)
        writer.write(b"x" * 30_000_000)
        await asyncio.sleep(0.3)
        (connection,) = front.connections.all()
        assert len(connection._buffer) < READ_AHEAD + 1_000_000
        assert writer.transport.get_write_buffer_size() > 0


@pytest.mark.parametrize("framing", ["Content-Length: 300000", "Transfer-Encoding: chunked"])
async def test_bodies_beyond_what_all_may_take_are_told_to_come_again(framing):
    async with served() as (echo, front, reader, writer):
        front.connections.bodies = BodyBudget(200_000)
        body = b"x" * 300_000
        if "chunked" in framing:
            body = b"".join(b"7530\r\n" + b"x" * 30_000 + b"\r\n" for _ in range(10)) + b"0\r\n\r\n"
        writer.write(f"POST /p HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode())
        await asyncio.sleep(0.02)
        writer.write(body)
        status, headers, _ = await answer(reader)
        assert (status, headers["retry-after"]) == (429, "1")
        assert echo.seen == []
        assert front.connections.bodies.taken == 0


async def test_the_budget_for_bodies_is_given_back(monkeypatch):
    async with served() as (_, front, reader, writer):
        for _ in range(3):
            whole = plain("/p", b"x" * 100_000, "PUT")
            writer.write(whole[:-9])
            await asyncio.sleep(0.02)
            writer.write(whole[-9:])
            assert (await answer(reader))[0] == 200
        assert front.connections.bodies.taken == 0


async def test_a_head_that_does_not_come_is_given_up(quick_ticks):
    async with served(head=10) as (_, _, reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHo")
        assert (await answer(reader))[0] == 408
        assert await reader.read() == b""


async def test_a_connection_without_any_request_is_closed(quick_ticks):
    async with served(head=10) as (_, _, reader, _):
        assert await reader.read() == b""


@pytest.mark.parametrize("lane", ["quick", "framework"])
@pytest.mark.parametrize(
    ("path", "line"), [("/large", b""), ("/watch", b"x" * 50_000), ("/watch", b"x" * 5_000_000)]
)
async def test_an_answer_that_is_not_read_waits_in_pieces_and_is_given_up(lane, path, line, quick_ticks):
    async with served(write=10 if lane == "quick" else 0.3) as (echo, front, reader, writer):
        reader._transport.pause_reading()
        for _ in range(1_000):
            echo.lines.put_nowait(line)
        writer.write(plain(path, b"", "GET", *(["TE: trailers"] if lane == "framework" else [])))
        await until(lambda: front.connections.all())
        (connection,) = front.connections.all()
        waiting = []
        while (current := front.connections.all()) and len(waiting) < 5_000:
            transport = getattr(current[0], "transport", None) or connection._transport
            if transport is not None:
                waiting.append(transport.get_write_buffer_size())
            await asyncio.sleep(0.001)
        assert not front.connections.all(), "dropped"
        assert max(waiting) <= 3 * WRITE_BUFFER
        if path == "/watch":
            assert echo.cancelled == ["stream"]


@pytest.mark.parametrize("extra", [(), ("TE: trailers",)])
@pytest.mark.parametrize("path", ["/x", "/refused", "/bug", "/watch"])
async def test_answers_may_not_be_kept_nor_taken_for_something_else(path, extra):
    async with served() as (_, _, reader, writer):
        writer.write(plain(path, b"", "GET", *extra))
        headers = (await answer(reader))[1]
        assert headers["cache-control"] == "no-cache, private"
        assert headers["x-content-type-options"] == "nosniff"


async def test_an_answer_may_say_itself_how_it_may_be_kept():
    response = Response(200, b"", [("cache-control", "no-cache")])
    assert response.wire_headers() == [("X-Content-Type-Options", "nosniff"), ("cache-control", "no-cache")]


async def test_too_many_header_lines_are_refused():
    async with served() as (echo, _, reader, writer):
        writer.write(plain("/x", b"", "GET", *(f"X-{number}: 1" for number in range(500))))
        assert (await answer(reader))[0] == 400
        assert echo.seen == []
