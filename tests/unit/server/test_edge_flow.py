"""Limits, timeouts and metrics around the answering of requests."""

import asyncio
import re

import pytest

from dray.server.http.flow_control import Flow, Limits, describe
from dray.server.http.server_metrics import Metrics, RequestLabels
from dray.server.requests.errors import ApiError, bad_request
from dray.server.requests.messages import Request, Response

PODS = Request("GET", "/api/v1/namespaces/default/pods")
WATCH = Request("GET", "/api/v1/pods", (("watch", "true"),))
CREATE = Request("POST", "/api/v1/namespaces/default/pods")


def flow(**limits):
    return Flow(Metrics(), Limits(**limits))


async def ok():
    return Response(200, b"{}")


def scraped(made):
    return made.metrics.respond(Request("GET", "/metrics")).body.decode()


class Slow:
    """An answer that waits until it is let go."""

    def __init__(self):
        self.go = asyncio.Event()

    async def __call__(self):
        await self.go.wait()
        return Response(200, b"{}")


async def test_requests_beyond_the_limit_get_429_and_may_come_back():
    made, slow = flow(reading=1, writing=1), Slow()
    first = asyncio.create_task(made.run(PODS, False, slow))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as caught:
        await made.run(PODS, False, ok)
    assert caught.value.code == 429
    assert ("Retry-After", "1") in caught.value.headers
    assert (await made.run(CREATE, False, ok)).status == 200, "writing has room of its own"
    assert (await made.run(PODS, True, ok)).status == 200, "superusers get in"
    slow.go.set()
    await first
    assert (await made.run(PODS, False, ok)).status == 200
    assert 'apiserver_dropped_requests_total{request_kind="readOnly"} 1' in scraped(made)


async def test_failed_requests_free_their_place():
    made = flow(writing=1)

    async def fail():
        raise bad_request("no")

    async def crash():
        raise RuntimeError("bug")

    for answer, problem in ((fail, ApiError), (crash, RuntimeError)):
        with pytest.raises(problem):
            await made.run(CREATE, False, answer)
    assert (await made.run(CREATE, False, ok)).status == 200
    assert 'code="400"' in scraped(made)


async def test_open_watches_are_limited_until_they_end():
    made = flow(watches=1)

    async def events():
        yield b"one"
        yield b"two"

    async def watch():
        return Response(200, events())

    response = await made.run(WATCH, False, watch)
    with pytest.raises(ApiError, match="too many open watches"):
        await made.run(WATCH, False, watch)
    assert (
        'apiserver_longrunning_requests{verb="WATCH",group="",version="v1",resource="pods",subresource="",scope="cluster"} 1'
        in scraped(made)
    )
    assert [part async for part in response.body] == [b"one", b"two"]
    response = await made.run(WATCH, False, watch)
    assert await anext(response.body) == b"one"
    await response.body.aclose()
    await response.body.aclose()
    response = await made.run(WATCH, False, watch)
    await response.body.aclose()


@pytest.mark.usefixtures("virtual_time")
async def test_slow_requests_end_with_504_and_watches_do_not():
    made = flow(seconds=0.01)
    with pytest.raises(ApiError) as caught:
        await made.run(PODS, False, Slow())
    assert caught.value.code == 504

    async def patient():
        await asyncio.sleep(0.03)
        return Response(200, b"")

    assert (await made.run(WATCH, False, patient)).status == 200


async def test_the_usual_metric_families_are_there():
    made = flow()
    await made.run(PODS, False, ok)
    text = "\n" + scraped(made)
    for name in (
        "apiserver_request_total",
        "apiserver_request_duration_seconds_bucket",
        "apiserver_current_inflight_requests",
        "process_start_time_seconds",
    ):
        assert f"\n{name}" in text
    place = 'group="",version="v1",resource="pods",subresource="",scope="namespace"'
    assert f'apiserver_request_total{{verb="LIST",{place},code="200"}} 1' in text
    assert f'apiserver_request_duration_seconds_bucket{{verb="LIST",{place},le="+Inf"}} 1' in text
    assert f'apiserver_request_duration_seconds_count{{verb="LIST",{place}}} 1' in text
    assert made.metrics.respond(PODS) is None


def test_durations_fall_into_their_buckets():
    made = Metrics()
    labels = RequestLabels("GET")
    for seconds in (0.001, 0.002, 100.0):
        made.started(labels, "readOnly", False)
        made.ended(labels, "readOnly", False, 200, seconds)
    text = made.respond(Request("GET", "/metrics")).body.decode()
    found = dict(re.findall(r'le="([^"]+)"} (\d+)', text))
    assert (found["0.001"], found["0.005"], found["60"], found["+Inf"]) == ("1", "2", "2", "3")


async def test_made_up_paths_do_not_fill_the_memory():
    made = flow()

    async def refuse():
        raise bad_request("no")

    for number in range(50):
        for method in ("GET", f"VERB{number}"):
            with pytest.raises(ApiError):
                await made.run(Request(method, f"/apis/g{number}/v1/things{number}"), False, refuse)
        watch = Request("GET", f"/apis/g{number}/v1/things", (("watch", "1"),))
        with pytest.raises(ApiError):
            await made.run(watch, False, refuse)
    text = scraped(made)
    assert "things" not in text
    assert 'verb="other",group="",version="",resource="",subresource="",scope="",code="400"} 150' in text


@pytest.mark.parametrize(
    ("method", "path", "query", "verb", "long"),
    [
        ("GET", "/api/v1/pods", (), "LIST", False),
        ("GET", "/api/v1/pods", (("watch", "1"),), "WATCH", True),
        ("GET", "/api/v1/namespaces/a/pods/p/log", (("follow", "true"),), "GET", True),
        ("GET", "/api/v1/namespaces/a/pods/p/log", (), "GET", False),
        ("POST", "/api/v1/namespaces/a/pods/p/exec", (), "CREATE", True),
        ("DELETE", "/apis/apps/v1/namespaces/a/deployments", (), "DELETECOLLECTION", False),
        ("GET", "/healthz", (), "GET", False),
        ("FOO", "/api/v1/pods", (), "FOO", False),
    ],
)
def test_requests_are_told_apart(method, path, query, verb, long):
    labels, long_running = describe(Request(method, path, query))
    assert (labels.verb, long_running) == (verb, long)
