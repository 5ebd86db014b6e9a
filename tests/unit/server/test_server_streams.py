"""Long answers: made in pieces that are bounded, complete, and fair to everybody else."""

import asyncio
import json

import pytest
import yaml
from server_cluster import CLAIMS, claim, running_cluster

from dray.server.objects.get_and_list import PIECE
from dray.server.requests import time_slice
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import Request

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
COUNT = 40
FILLING = "x" * 8_000


async def filled(client, count=COUNT):
    for number in range(count):
        body = claim(f"c{number:03d}", annotations={"filling": FILLING}, labels={"odd": str(number % 2)})
        assert (await client.call("POST", CLAIMS, body)).code == 201


async def handled(client, target, accept="application/json"):
    path, _, query = target.partition("?")
    pairs = tuple(tuple(pair.split("=", 1)) for pair in query.split("&") if pair)
    headers = {"authorization": "Bearer admin", "accept": accept}
    return await client.cluster.server.handle(Request("GET", path, pairs, headers))


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_a_long_list_comes_in_bounded_pieces(version):
    async with running_cluster() as client:
        await filled(client)
        target = CLAIMS.replace("/v1/", f"/{version}/")
        response = await handled(client, target)
        assert not isinstance(response.body, bytes)
        pieces = [piece async for piece in response.body]
        assert len(pieces) > 3
        assert max(map(len, pieces)) < PIECE + 2 * len(FILLING)
        whole = b"".join(pieces)
        assert response.length in (None, len(whole))
        assert (response.length is not None) == (version == "v1"), "stored bytes have a known length"
        items = json.loads(whole)["items"]
        assert [item["metadata"]["name"] for item in items] == [f"c{number:03d}" for number in range(COUNT)]
        one = (await client.call("GET", f"{target}/c007")).json
        assert {"kind": one["kind"], "apiVersion": one["apiVersion"], **items[7]} == one


@pytest.mark.parametrize("accept", [TABLE, METADATA])
async def test_long_tables_and_metadata_lists_have_the_rows_of_short_ones(accept):
    async with running_cluster() as client:
        await filled(client)
        whole = (await client.call("GET", CLAIMS, accept=accept)).json
        place = "rows" if accept == TABLE else "items"
        page = (await client.call("GET", CLAIMS + "?limit=1", accept=accept)).json
        assert len(whole[place]) == COUNT
        assert whole[place][0] == page[place][0]
        assert whole.keys() == page.keys()


async def test_a_long_list_as_yaml_says_what_json_says():
    async with running_cluster() as client:
        await filled(client)
        as_yaml = yaml.safe_load((await client.call("GET", CLAIMS, accept="application/yaml")).body)
        as_json = (await client.call("GET", CLAIMS)).json
        assert as_yaml == as_json
        one = await client.call("GET", CLAIMS + "?limit=1", accept="application/yaml")
        assert yaml.safe_load(one.body)["items"] == as_json["items"][:1]


async def test_a_list_is_what_it_was_when_it_was_asked_for():
    async with running_cluster() as client:
        await filled(client)
        response = await handled(client, CLAIMS)
        pieces = [await anext(response.body)]
        await client.call("DELETE", f"{CLAIMS}/c{COUNT - 1:03d}")
        pieces += [piece async for piece in response.body]
        assert len(json.loads(b"".join(pieces))["items"]) == COUNT


async def test_the_state_that_a_watch_begins_with_comes_in_bounded_pieces():
    async with running_cluster() as client:
        await filled(client)
        response = await handled(client, CLAIMS + "?watch=1")
        lines, sizes = [], []
        async for piece in response.body:
            sizes.append(len(piece))
            lines += piece.splitlines()
            if len(lines) == COUNT:
                break
        await response.body.aclose()
        assert max(sizes) < PIECE + 2 * len(FILLING)
        assert [json.loads(line)["object"]["metadata"]["name"] for line in lines] == [
            f"c{number:03d}" for number in range(COUNT)
        ]


async def test_events_that_have_gathered_come_in_bounded_pieces():
    async with running_cluster() as client:
        version = (await client.call("GET", CLAIMS)).json["metadata"]["resourceVersion"]
        await filled(client)
        response = await handled(client, f"{CLAIMS}?watch=1&resourceVersion={version}")
        lines, sizes = [], []
        async for piece in response.body:
            sizes.append(len(piece))
            lines += piece.splitlines()
            if len(lines) == COUNT:
                break
        await response.body.aclose()
        assert max(sizes) < PIECE + 2 * len(FILLING)


async def test_lines_kept_for_other_watchers_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr("dray.server.objects.watch_streams.SHARED_BYTES", 50_000)
    async with running_cluster() as client:
        version = (await client.call("GET", CLAIMS)).json["metadata"]["resourceVersion"]
        await filled(client)
        await client.watch(f"{CLAIMS}?watch=1&resourceVersion={version}", COUNT)
        streams = client.cluster.server.verbs["watch"].__self__.streams
        assert sum(map(len, streams._lines.values())) == streams._lines_size <= 50_000


@pytest.mark.parametrize(
    ("target", "accept"),
    [
        (CLAIMS, "application/json"),
        (CLAIMS.replace("/v1/", "/v1beta1/"), "application/json"),
        (CLAIMS, TABLE),
        (CLAIMS, METADATA),
        (CLAIMS + "?labelSelector=odd%3D7", "application/json"),
        (CLAIMS + "?watch=1", "application/json"),
        (CLAIMS + "?watch=1&labelSelector=odd%3D1", "application/json"),
    ],
)
async def test_the_event_loop_runs_between_the_objects_of_one_request(target, accept, monkeypatch):
    monkeypatch.setattr(time_slice, "SECONDS", 0.0)
    async with running_cluster() as client:
        await filled(client)
        turns = 0

        async def count():
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        response = await handled(client, target.replace("%3D", "="), accept)
        if not isinstance(response.body, bytes):
            async for piece in response.body:
                if "watch=1" in target and f'"c{COUNT - 1:03d}"'.encode() in piece:
                    break  # the rest is waiting
            await response.body.aclose()
        counting.cancel()
        assert turns >= COUNT - 2


class Body:
    """A body that is still on its way, and notes whether somebody waits for it."""

    def __init__(self, content=b"{}", problem=None):
        self.n_read = 0
        self._content, self._problem = content, problem

    async def read(self):
        self.n_read += 1
        if self._problem is not None:
            raise self._problem
        return self._content


@pytest.mark.parametrize(
    ("method", "path", "token", "code"),
    [
        ("POST", CLAIMS, "", 403),  # system:anonymous
        ("POST", CLAIMS, "wrong", 401),
        ("POST", CLAIMS, "guest", 403),
        ("PATCH", CLAIMS + "/c", "guest", 403),
        ("GET", "/healthz", "", 200),
        ("GET", "/version", "", 200),
        ("GET", CLAIMS, "wrong", 401),
        ("POST", "/apis/resource.k8s.io/v1/namespaces/default/nothing", "admin", 404),
    ],
)
async def test_a_body_is_not_read_for_who_may_not_send_it(method, path, token, code):
    async with running_cluster() as client:
        body = Body()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        response = await client.cluster.server.handle(Request(method, path, (), headers, pending_body=body))
        assert (response.status, body.n_read) == (code, 0)


async def test_a_body_is_read_once_for_who_may_send_it():
    async with running_cluster() as client:
        body = Body(json.dumps(claim("late")).encode())
        request = Request("POST", CLAIMS, (), {"authorization": "Bearer admin"}, pending_body=body)
        assert (await client.cluster.server.handle(request)).status == 201
        assert body.n_read == 1
        assert request.is_identified


async def test_a_body_that_cannot_be_read_is_refused_as_it_says():
    async with running_cluster() as client:
        body = Body(problem=ApiError(429, "TooManyRequests", "later"))
        request = Request("POST", CLAIMS, (), {"authorization": "Bearer admin"}, pending_body=body)
        assert (await client.cluster.server.handle(request)).status == 429
        assert client.cluster.server.flow._open["mutating"] == 0
