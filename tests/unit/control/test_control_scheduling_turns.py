"""Limits, the reservation of the head and the report, in the scheduling loop against a small API server."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from conditions import until
from small_api import SmallApi

from dray.api.times import format_time
from dray.client import MERGE_PATCH
from dray.control.scheduling import SchedulerOptions, SchedulingLoop
from dray.scheduler.queue_report import NAME, NAMESPACE, parse_report

RESOURCE = "/apis/resource.k8s.io/v1"
GIB = 1 << 30


class Machine:
    """One node with four GPUs of 80 GiB, and a scheduler that shares fairly."""

    def __init__(self, api, client):
        self.api, self.client = api, client
        self.moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
        options = SchedulerOptions(shares_fairly=True)
        self.loop = SchedulingLoop(client, options, now=lambda: self.moment)

    async def submit(self, user, name, gpus=1, seconds=None, priority=0):
        exactly = {"deviceClassName": "gpu", "count": gpus, "allocationMode": "ExactCount"}
        claim = {
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "g", "exactly": exactly}]}},
        }
        pod = {
            "metadata": {"name": name, "creationTimestamp": format_time(self.moment)},
            "spec": {
                "schedulerName": "dray",
                "priority": priority,
                "containers": [{"name": "c", "image": "x"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                **({"activeDeadlineSeconds": seconds} if seconds else {}),
            },
            "status": {"phase": "Pending"},
        }
        await self.client.call("POST", f"{RESOURCE}/namespaces/{user}/resourceclaims", claim)
        await self.client.call("POST", f"/api/v1/namespaces/{user}/pods", pod)

    def bound(self):
        paths = [request.split(" ")[1] for request in self.api.requests if request.endswith("/binding")]
        return [path.split("/")[-2] for path in paths]

    def message(self, user, name):
        status = self.api.objects[f"/api/v1/namespaces/{user}/pods/{name}"].get("status") or {}
        return next((each["message"] for each in status.get("conditions") or []), "")

    async def end(self, user, name):
        """Let a job end: its pod and its claim are deleted."""
        await self.client.call("DELETE", f"/api/v1/namespaces/{user}/pods/{name}")
        path = f"{RESOURCE}/namespaces/{user}/resourceclaims/{name}"
        await self.client.call("PATCH", path, {"metadata": {"finalizers": []}}, content_type=MERGE_PATCH)
        await self.client.call("DELETE", path)
        await self.until(lambda: f"{user}/{name}" not in self.loop.snapshot.claims)

    def limit(self, **entries):
        path = "/api/v1/namespaces/kube-system/configmaps/dray-user-limits"
        self.api.objects.pop(path, None)
        self.api.put(path, {"data": {key: json.dumps(value) for key, value in entries.items()}})

    async def look(self):
        """Do what the passing of five seconds does."""
        turns = self.loop.turns
        if await turns._read_limits():
            turns._wake_limited()
        turns._tick()
        turns._choose_overdue()

    async def until(self, happened):
        await until(happened, 30)


@asynccontextmanager
async def machine(**limits):
    api = SmallApi()
    client = api.client()
    node = {
        "metadata": {"name": "one"},
        "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "500"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    await client.call("POST", "/api/v1/nodes", node)
    await client.call("POST", f"{RESOURCE}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {}})
    devices = [{"name": f"gpu-{n}", "capacity": {"memory": {"value": "80Gi"}}} for n in range(4)]
    pool = {"name": "one", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "one", "pool": pool, "devices": devices}
    await client.call("POST", f"{RESOURCE}/resourceslices", {"metadata": {"name": "s"}, "spec": spec})
    made = Machine(api, client)
    if limits:
        made.limit(**{key.replace("_", "."): value for key, value in limits.items()})
    task = asyncio.create_task(made.loop.run())
    try:
        await asyncio.wait_for(made.loop.is_ready.wait(), 30)
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("limit", "gpus", "text"),
    [
        ({"devices": 1}, 1, "limit: 1 devices are held already and 1 more are asked for"),
        ({"deviceMemory": 100 * GIB}, 1, "80 GiB of device memory are held already"),
        ({"running": 1}, 1, "limit: 1 jobs run already, at most 1 may"),
    ],
    ids=["devices", "memory", "running"],
)
def test_a_job_beyond_a_limit_waits_until_its_user_holds_less(limit, gpus, text):
    async def play():
        async with machine(user_ann=limit) as box:
            await box.submit("ann", "first", gpus)
            await box.until(lambda: box.bound() == ["first"])
            await box.submit("ann", "second", gpus)
            await box.until(lambda: text in box.message("ann", "second"))
            await box.submit("bob", "other")  # limits are of a user, not of the machine
            await box.until(lambda: box.bound() == ["first", "other"])
            await box.end("ann", "first")
            await box.look()
            await box.until(lambda: box.bound() == ["first", "other", "second"])

    asyncio.run(play())


def test_a_raised_limit_holds_at_once():
    async def play():
        async with machine(default={"devices": 1}) as box:
            await box.submit("ann", "first")
            await box.submit("ann", "second")
            await box.until(lambda: "limit:" in box.message("ann", "second"))
            box.limit(default={"devices": 2})
            await box.look()
            await box.until(lambda: box.bound() == ["first", "second"])

    asyncio.run(play())


def test_a_large_job_gets_its_moment_and_only_short_or_low_jobs_go_before_it():
    async def play():
        async with machine() as box:
            await box.submit("ann", "running", 3, seconds=600)
            await box.until(lambda: box.bound() == ["running"])
            await box.submit("ann", "large", 4, seconds=600)
            await box.until(lambda: box.loop.turns.head.head is not None)
            box.moment += timedelta(seconds=1)
            await box.submit("ann", "long", 1, seconds=3600)
            await box.until(
                lambda: "would delay the job at the head of the queue" in box.message("ann", "long")
            )
            assert "2026-03-01T12:10:30Z" in box.message("ann", "long")
            await box.submit("ann", "short", 1, seconds=60)
            await box.until(lambda: box.bound() == ["running", "short"])
            await box.end("ann", "short")
            await box.submit("ann", "low", 1, seconds=7200, priority=-1000)
            await box.until(lambda: box.bound() == ["running", "short", "low"])

    asyncio.run(play())


def test_when_the_large_job_is_withdrawn_others_go_on():
    async def play():
        async with machine() as box:
            await box.submit("ann", "running", 3, seconds=600)
            await box.until(lambda: box.bound() == ["running"])
            await box.submit("ann", "large", 4, seconds=600)
            await box.until(lambda: box.loop.turns.head.head is not None)
            await box.submit("ann", "long", 1, seconds=3600)
            await box.until(lambda: "would delay" in box.message("ann", "long"))
            await box.end("ann", "large")
            await box.until(lambda: box.bound() == ["running", "long"])

    asyncio.run(play())


def test_a_job_beyond_its_limit_is_never_the_head():
    async def play():
        async with machine(user_ann={"devices": 2}) as box:
            await box.submit("bob", "running", 3, seconds=600)
            await box.until(lambda: box.bound() == ["running"])
            await box.submit("ann", "greedy", 4, seconds=600)
            await box.until(lambda: "limit:" in box.message("ann", "greedy"))
            assert box.loop.turns.head.head is None
            await box.submit("ann", "modest", 1, seconds=7200)
            await box.until(lambda: box.bound() == ["running", "modest"])

    asyncio.run(play())


def test_the_report_says_place_reservation_expected_start_share_and_limit():
    async def play():
        async with machine(user_ann={"devices": 3}) as box:
            await box.submit("ann", "running", 3, seconds=600)
            await box.until(lambda: box.bound() == ["running"])
            await box.submit("bob", "large", 4, seconds=600)
            await box.submit("ann", "more", 1)
            await box.until(lambda: "limit:" in box.message("ann", "more"))
            await box.until(lambda: box.loop.turns.head.head is not None)
            box.api.put(
                f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}", {}
            )  # this server applies to what exists
            await box.loop.turns._publish()
            stored = box.api.objects[f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"]
            assert "large" not in json.dumps(stored["data"])  # names of jobs are nobody else's business
            report = parse_report(stored["data"])
            uid = {name: box.api.objects[f"/api/v1/namespaces/{user}/pods/{name}"]["metadata"]["uid"]
                   for user, name in (("bob", "large"), ("ann", "more"))}  # fmt: skip
            large, more = report.jobs[uid["large"]], report.jobs[uid["more"]]
            starts = (box.moment + timedelta(seconds=630)).timestamp()
            assert (large.place, large.waiting, large.is_head, large.starts) == (1, 2, True, starts)
            assert more.held_back.startswith("limit: 3 devices are held already")
            assert (more.place, more.starts) == (2, None)
            assert report.users["ann"].lines()[1] == "limits: devices 3 of 3"
            assert report.users["ann"].used > report.users["bob"].used

    asyncio.run(play())


def test_a_report_that_cannot_be_read_is_left_out():
    for data in ({}, {"jobs": "["}, {"jobs": "[]"}, {"jobs": '{"u": {"place": "x"}}', "users": '{"a": 1}'}):
        report = parse_report(data)
        assert (report.jobs, report.users) == ({}, {})


async def test_everybody_may_know_who_holds_which_device_until_when():
    async with machine() as shared:
        await shared.submit("user-ann", "one", gpus=2, seconds=3600)
        await shared.submit("user-bob", "two")
        await shared.until(lambda: len(shared.bound()) == 2)
        await shared.look()
        data = shared.loop.turns.report().to_data()
        held = {each.user: each for each in parse_report(data).held}
        assert {user: len(each.devices) for user, each in held.items()} == {"user-ann": 2, "user-bob": 1}
        assert held["user-ann"].until == shared.moment.timestamp() + 3600 + 30  # grace
        assert held["user-bob"].until is None
        assert "one" not in json.loads(data["held"])[0].values()  # no names of jobs
        assert len({str(each) for user in held.values() for each in user.devices}) == 3


def test_a_damaged_report_is_read_as_far_as_it_goes():
    good = {"user": "user-ann", "until": None, "devices": [{"driver": "d", "pool": "p", "device": "x"}]}
    bad = [
        None,
        3,
        {},
        {**good, "devices": [3]},
        {**good, "until": "soon"},
        {**good, "devices": [{"device": []}]},
    ]
    assert [each.user for each in parse_report({"held": json.dumps([*bad, good])}).held] == ["user-ann"]
    for text in ("{", "{}", "3", "null", "[" * 10000):
        assert list(parse_report({"held": text}).held) == []
