"""Watchers of one collection pause together and share what they are sent."""

import asyncio
import json

from server_cluster import CLAIMS, claim, running_cluster

from dray.server.objects import watch_streams
from dray.server.objects.watch_streams import WOKEN_AT_ONCE, _Pauses
from dray.server.requests.messages import Request


async def open_watch(client, query=()):
    headers = {"authorization": "Bearer admin"}
    parts = (("watch", "1"), ("resourceVersion", client.version), *query)
    response = await client.cluster.server.handle(Request("GET", CLAIMS, parts, headers))
    assert response.status == 200
    return response.body


async def names(stream, n_events):
    """Return the pieces until so many events were seen, and the names in them."""
    pieces, seen = [], []
    while len(seen) < n_events:
        piece = await anext(stream)
        pieces.append(piece)
        seen += [json.loads(line)["object"]["metadata"]["name"] for line in piece.splitlines()]
    return pieces, seen


async def test_equal_watchers_get_the_same_bytes_and_others_their_own():
    async with running_cluster() as client:
        client.version = (await client.call("GET", CLAIMS)).json["metadata"]["resourceVersion"]
        first, second = await open_watch(client), await open_watch(client)
        selecting = await open_watch(client, (("labelSelector", "x=1"),))
        for number in range(4):
            labels = {"x": str(number)}
            assert (await client.call("POST", CLAIMS, claim(f"c{number}", labels=labels))).code == 201
        (one,), seen = await names(first, 4)
        (two,), _ = await names(second, 4)
        assert seen == ["c0", "c1", "c2", "c3"]
        assert one is two
        assert (await names(selecting, 1))[1] == ["c1"]
        for stream in (first, second, selecting):
            await stream.aclose()


async def test_events_that_are_long_together_come_in_pieces(monkeypatch):
    monkeypatch.setattr(watch_streams, "PIECE", 3_000)
    async with running_cluster() as client:
        client.version = (await client.call("GET", CLAIMS)).json["metadata"]["resourceVersion"]
        stream = await open_watch(client)
        for number in range(8):
            body = claim(f"c{number}", annotations={"text": "x" * 1_000})
            assert (await client.call("POST", CLAIMS, body)).code == 201
        pieces, seen = await names(stream, 8)
        assert seen == [f"c{number}" for number in range(8)]
        assert len(pieces) > 2
        await stream.aclose()


async def test_all_who_pause_go_on_together_even_if_some_are_cancelled():
    pauses = _Pauses()
    n_watchers = 3 * WOKEN_AT_ONCE
    for _ in range(n_watchers):
        pauses.opened("/core/pods/")
    tasks = [asyncio.create_task(pauses.pause("/core/pods/")) for _ in range(n_watchers)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[WOKEN_AT_ONCE].cancel()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert sum(result is None for result in results) == n_watchers - 2
    for _ in range(n_watchers):
        pauses.ended("/core/pods/")
    assert not pauses._n_open
    assert not pauses._waiting


async def test_the_pause_grows_with_the_watchers_and_has_an_end(monkeypatch):
    asked = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(
        loop, "call_later", lambda seconds, then, *args: (asked.append(seconds), loop.call_soon(then, *args))
    )
    pauses = _Pauses()
    for n_watchers in (1, 100, 10_000):
        for _ in range(n_watchers):
            pauses.opened("/x/")
        await pauses.pause("/x/")
    assert asked == [watch_streams.PAUSE, 101 * watch_streams.PAUSE_EACH, watch_streams.LONGEST_PAUSE]
