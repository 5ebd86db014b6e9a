"""Connections: how many there may be, who is closed first, and what happens without file descriptors."""

import asyncio
import errno
import logging
import os
import ssl
from datetime import UTC, datetime

import pytest
from conditions import until

from dray.server.auth.pki import prepare, server_tls
from dray.server.http import connection_limits as connections_module
from dray.server.http import listening
from dray.server.http.connection_limits import BodyBudget, Connections
from dray.server.http.https_front import Front
from dray.server.http.listening import Listener
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import text_response


class Known:
    """A connection that notes what happens to it."""

    def __init__(self):
        self.ticks = 0
        self.is_aborted = False

    def tick(self):
        self.ticks += 1

    def abort(self):
        self.is_aborted = True


class Greeter:
    """Knows callers by a header."""

    async def handle(self, request):
        request.is_identified = "x-known" in request.headers
        return text_response(200, "hello")


def added(connections, count, remote="10.0.0.1", *, is_identified=False, uid=None):
    made = [Known() for _ in range(count)]
    for each in made:
        connections.add(each, remote, is_identified=is_identified, uid=uid)
    return made


def test_the_oldest_stranger_of_a_remote_makes_room_for_the_next(monkeypatch):
    monkeypatch.setattr(connections_module, "MAX_UNIDENTIFIED_EACH", 3)
    connections = Connections()
    others = added(connections, 3, "10.0.0.2")
    first, second, *rest = added(connections, 4)
    assert first.is_aborted
    assert not any(each.is_aborted for each in (second, *rest, *others))


def test_who_shows_credentials_does_not_count_as_a_stranger(monkeypatch):
    monkeypatch.setattr(connections_module, "MAX_UNIDENTIFIED_EACH", 3)
    connections = Connections()
    known = added(connections, 3)
    for each in known:
        connections.identify(each)
    added(connections, 3)
    added(connections, 50, is_identified=True)
    assert not any(each.is_aborted for each in known)


def test_strangers_of_all_remotes_together_are_bounded(monkeypatch):
    monkeypatch.setattr(connections_module, "MAX_UNIDENTIFIED", 5)
    connections = Connections()
    strangers = [added(connections, 1, f"10.0.0.{number}")[0] for number in range(8)]
    assert [each.is_aborted for each in strangers] == [True] * 3 + [False] * 5
    assert len(connections) == 5


def test_a_full_server_closes_a_stranger_for_somebody_new_but_nobody_it_knows():
    connections = Connections(limit=3)
    known = added(connections, 2, is_identified=True)
    (stranger,) = added(connections, 1)
    assert connections.has_room()
    assert stranger.is_aborted
    added(connections, 1, is_identified=True)
    assert not connections.has_room()
    assert not any(each.is_aborted for each in known)


def test_one_local_user_cannot_take_the_connections_of_the_others(monkeypatch):
    monkeypatch.setattr(connections_module, "MAX_LOCAL_EACH", 3)
    connections = Connections()
    of_ann = added(connections, 3, "", is_identified=True, uid=1001)
    of_root = added(connections, 9, "", is_identified=True, uid=0)
    of_bob = added(connections, 5, "", is_identified=True, uid=1002)
    assert [each.is_aborted for each in of_bob] == [True, True, False, False, False]
    assert not any(each.is_aborted for each in (*of_ann, *of_root))
    other_lane = Known()
    connections.replace(of_bob[2], other_lane)  # it still counts as one of the same user
    added(connections, 1, "", is_identified=True, uid=1002)
    assert of_bob[3].is_aborted
    for each in (*of_bob, other_lane):
        connections.remove(each)
    added(connections, 2, "", is_identified=True, uid=1002)
    assert not other_lane.is_aborted
    assert not any(each.is_aborted for each in of_bob[4:])


def test_few_open_files_leave_a_local_user_few_connections():
    connections = Connections(limit=80)
    made = added(connections, 12, "", is_identified=True, uid=1001)
    assert [each.is_aborted for each in made].count(True) == 2


def test_a_body_budget_refuses_what_is_beyond_it_and_takes_what_is_given_back():
    budget = BodyBudget(10)
    budget.take(6)
    with pytest.raises(ApiError) as refused:
        budget.take(5)
    assert refused.value.code == 429
    budget.give_back(6)
    budget.take(10)


async def test_connections_beyond_the_limit_are_closed_and_taken_again_when_there_is_room():
    front = Front(Greeter(), "127.0.0.1", 0, None)
    front.connections.limit = 2
    await front.start()
    try:
        async with asyncio.timeout(30):
            known = [await asyncio.open_connection("127.0.0.1", front.port) for _ in range(2)]
            for reader, writer in known:
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Known: 1\r\n\r\n")
                await reader.readuntil(b"hello")
            reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
            assert await reader.read() == b"", "closed at once"
            writer.close()
            known[0][1].close()
            await until(lambda: len(front.connections) != 2)
            reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"hello")
    finally:
        await front.stop()


async def test_who_never_begins_a_handshake_goes_for_who_comes(tmp_path):
    pki = prepare(tmp_path, ["127.0.0.1"], datetime.now(UTC))
    tls = server_tls(pki.serving_certificate_file, pki.serving_key_file, [pki.ca_file])
    front = Front(Greeter(), "127.0.0.1", 0, tls)
    front.connections.limit = 5
    await front.start()
    try:
        async with asyncio.timeout(30):
            silent = [await asyncio.open_connection("127.0.0.1", front.port) for _ in range(20)]
            trust = ssl.create_default_context(cafile=pki.ca_file)
            reader, writer = await asyncio.open_connection("127.0.0.1", front.port, ssl=trust)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Known: 1\r\nConnection: close\r\n\r\n")
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
            assert await silent[0][0].read() == b""
            writer.close()
            for _, each in silent:
                each.close()
    finally:
        await front.stop()


class Exhausted:
    """A listening socket in a process that has no file descriptors left."""

    def __init__(self):
        self.asked = 0
        self._reading, self._writing = os.pipe()
        os.write(self._writing, b"x")  # always readable, as a socket with waiting clients is

    def accept(self):
        self.asked += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def fileno(self):
        return self._reading

    def close(self):
        os.close(self._reading)
        os.close(self._writing)


async def test_without_file_descriptors_accepting_pauses_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(listening, "PAUSE", 0.05)
    exhausted = Exhausted()
    listener = Listener(asyncio.Protocol, Connections(), None)
    listener._sockets.append(exhausted)
    asyncio.get_running_loop().add_reader(exhausted, listener._accept, exhausted)
    with caplog.at_level(logging.WARNING):
        await until(lambda: exhausted.asked >= 3)
    began = exhausted.asked
    await asyncio.sleep(0.2)
    assert exhausted.asked - began < 20, "no busy loop"
    assert len([r for r in caplog.records if "Too many open files" in r.getMessage()]) == 1
    monkeypatch.setattr(Exhausted, "fileno", lambda self: -1)
    asyncio.get_running_loop().remove_reader(exhausted._reading)
    listener.close()
    exhausted.close()
