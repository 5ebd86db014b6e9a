"""The list-watch cache against a server in memory that forgets, cuts off and recreates."""

import asyncio
import contextlib

import pytest
from conditions import forever, until
from small_api import SmallApi

from dray.api.core import Node
from dray.client import EventRecorder, Gone, Informer, LeaderElection, TransportError
from dray.client import resources as kinds
from dray.client.informer import key_of

pytestmark = pytest.mark.usefixtures("virtual_time")


class Follower:
    """Applies what an informer tells to a dict of its own, and notes it."""

    def __init__(self):
        self.items = {}
        self.told = []

    def __call__(self, old, new):
        key = key_of((new or old).metadata)
        if new is None:
            del self.items[key]
        else:
            assert (key in self.items) == (old is not None)
            self.items[key] = new
        self.told.append(("-" if new is None else "+" if old is None else "~") + key)


@contextlib.asynccontextmanager
async def following(api, **options):
    informer = Informer(api.client(), kinds.NODES, Node, **options)
    follower = Follower()
    informer.add_handler(follower)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.wait_synced(), 60)
        yield informer, follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def node(name, **labels):
    return {"metadata": {"name": name, "labels": labels}}


async def test_what_is_there_and_what_comes_is_told_in_order():
    api = SmallApi()
    client = api.client()
    await client.create(kinds.NODES, node("a"))
    async with following(api) as (informer, follower):
        assert follower.told == ["+a"] and informer.has_synced
        await client.create(kinds.NODES, node("b"))
        await client.patch(kinds.NODES, "a", {"metadata": {"labels": {"x": "1"}}})
        await client.delete(kinds.NODES, "b")
        await until(lambda: len(follower.told) == 4)
        assert follower.told == ["+a", "+b", "~a", "-b"]
        assert follower.items == informer.items
        assert informer.items["a"].metadata.labels == {"x": "1"}


async def test_a_handler_that_comes_late_is_told_what_is_there():
    api = SmallApi()
    await api.client().create(kinds.NODES, node("a"))
    async with following(api) as (informer, _):
        late = Follower()
        informer.add_handler(late)
        assert late.told == ["+a"]


async def test_raw_text_is_kept_beside_the_view():
    api = SmallApi()
    client = api.client()
    await client.create(kinds.NODES, {**node("a"), "extra": {"unknown": [1, 2]}})
    async with following(api, keep_raw=True) as (informer, follower):
        assert b'"unknown"' in informer.raw("a")
        await client.create(kinds.NODES, {**node("b"), "extra": {"more": 1}})
        await until(lambda: "b" in follower.items)
        assert informer.raw("b").startswith(b"{") and b'"more"' in informer.raw("b")


async def test_after_a_gap_only_the_differences_are_told():
    api = SmallApi()
    client = api.client()
    for name in ("stays", "goes", "changes", "returns"):
        await client.create(kinds.NODES, node(name))
    informer = Informer(client, kinds.NODES, Node)
    follower = Follower()
    informer.add_handler(follower)
    await informer._list()
    follower.told.clear()
    await client.delete(kinds.NODES, "goes")
    await client.patch(kinds.NODES, "changes", {"metadata": {"labels": {"x": "1"}}})
    await client.delete(kinds.NODES, "returns")
    await client.create(kinds.NODES, node("returns"))
    await client.create(kinds.NODES, node("new"))
    await informer._list()
    assert sorted(follower.told) == ["+new", "+returns", "-goes", "-returns", "~changes"]
    assert follower.told.index("-returns") < follower.told.index("+returns")
    assert follower.items == informer.items


async def test_a_forgotten_revision_leads_to_a_new_list(monkeypatch):
    api = SmallApi()
    client = api.client()
    await client.create(kinds.NODES, node("a"))
    informer = Informer(client, kinds.NODES, Node)
    follower = Follower()
    informer.add_handler(follower)
    watches = []

    async def forgetful(*args, **query):
        watches.append(query["resourceVersion"])
        if len(watches) == 1:
            await client.create(kinds.NODES, node("b"))
            raise Gone(410, __import__("dray.client.errors", fromlist=["Status"]).Status(), "watch")
        await forever()
        yield []

    monkeypatch.setattr(client, "watch_lines", forgetful)
    task = asyncio.create_task(informer.run())
    await until(lambda: len(watches) == 2)
    task.cancel()
    assert follower.told == ["+a", "+b"] and informer.relists == 2


async def test_an_optional_resource_is_followed_in_the_version_that_an_older_server_has():
    api = SmallApi()
    api.versions = {"v1alpha3"}
    client, old = api.client(), kinds.TAINT_RULES.at("v1alpha3")
    await client.create(old, node("a"))
    informer = Informer(client, kinds.TAINT_RULES, Node, optional=True)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.wait_synced(), 60)
    assert (list(informer.items), informer.resource, informer.is_available) == (["a"], old, True)
    await client.create(old, node("b"))
    await until(lambda: "b" in informer.items)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_optional_resource_that_is_absent_counts_as_empty(monkeypatch):
    api = SmallApi()
    api.versions = set()
    informer = Informer(api.client(), kinds.SLICES, Node, optional=True)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.wait_synced(), 60)
    assert informer.items == {} and not informer.is_available
    task.cancel()


async def test_bookmarks_move_the_revision_and_nothing_else():
    informer = Informer(SmallApi().client(), kinds.NODES, Node)
    informer._take(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"77"},"spec":null}}')
    assert informer._revision == "77" and informer.items == {}


async def test_one_of_two_candidates_leads_and_the_other_follows_when_it_ends():
    api = SmallApi()
    led = []

    def candidate(name):
        election = LeaderElection(
            api.client(), "lock", name, namespace="ns", retry_period=0.02, lease_duration=30.0
        )

        async def lead():
            led.append(name)
            await forever()

        return asyncio.create_task(election.run(lead))

    first = candidate("first")
    await until(lambda: led == ["first"])
    second = candidate("second")
    await asyncio.sleep(0.1)
    assert led == ["first"]
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: led == ["first", "second"])
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_a_lease_that_an_installer_made_is_taken_and_keeps_the_installers_marks():
    api = SmallApi()
    marks = {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "dray"},
    }
    path = kinds.LEASES.path("ns", "lock")
    api.put(path, {"metadata": marks})
    election = LeaderElection(api.client(), "lock", "me", namespace="ns", retry_period=0.02)
    task = asyncio.create_task(election.run(forever))
    await until(lambda: election.is_leading)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    stored = api.objects[path]["metadata"]
    assert {name: stored[name] for name in marks} == marks


async def test_a_stolen_lease_ends_leading():
    api = SmallApi()
    election = LeaderElection(api.client(), "lock", "me", namespace="ns", retry_period=0.02)
    ended = []

    async def lead():
        try:
            await forever()
        finally:
            ended.append(True)

    task = asyncio.create_task(election.run(lead))
    await until(lambda: election.is_leading)
    await api.client().patch(kinds.LEASES, "lock", {"spec": {"holderIdentity": "thief"}}, "ns")
    await asyncio.wait_for(task, 60)
    assert ended and not election.is_leading


@pytest.mark.parametrize("lost", range(6), ids=lambda number: f"request {number}")
async def test_a_connection_lost_at_any_request_of_an_election_ends_nothing(lost):
    api = SmallApi()
    client = api.client()
    sending, sent = client.transport.send, []

    async def send(request):
        sent.append(request)
        if len(sent) - 1 == lost:
            raise TransportError("closed by the server")
        if len(sent) == 4:  # somebody else's change, so that a renewal meets a conflict
            await api.client().patch(kinds.LEASES, "lock", {"metadata": {"labels": {"a": "b"}}}, "ns")
        return await sending(request)

    client.transport.send = send
    election = LeaderElection(client, "lock", "me", namespace="ns", retry_period=0.01)
    task = asyncio.create_task(election.run(forever))
    await until(lambda: election.is_leading and len(sent) > 8)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_leader_that_was_stopped_writes_nothing_before_it_has_renewed_its_lease():
    api = SmallApi()
    moment = 100.0
    election = LeaderElection(
        api.client(), "lock", "me", namespace="ns", retry_period=0.02, clock=lambda: moment
    )
    fenced = election.fence(api.client())
    with pytest.raises(TransportError, match="not sent"):
        await fenced.create(kinds.NODES, node("early"))
    task = asyncio.create_task(election.run(forever))
    await until(lambda: election.is_leading)
    await fenced.create(kinds.NODES, node("a"))
    api.is_away = True  # the renewal does not get through
    await asyncio.sleep(0.05)
    moment += 60
    api.is_away = False
    with pytest.raises(TransportError, match="another may lead"):
        await fenced.delete(kinds.NODES, "a")
    assert (await fenced.get(kinds.NODES, "a"))["metadata"]["name"] == "a"
    await until(lambda: election.is_certain)
    await fenced.delete(kinds.NODES, "a")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_refresh_shows_what_a_watch_that_is_stuck_does_not():
    api = SmallApi()
    client = api.client()
    await client.create(kinds.NODES, node("a"))
    async with following(api) as (informer, follower):
        informer._take = lambda line: None  # the watch delivers nothing
        await client.create(kinds.NODES, node("b"))
        await client.delete(kinds.NODES, "a")
        await asyncio.sleep(0.01)
        assert set(informer.items) == {"a"}
        await asyncio.wait_for(informer.refresh(), 60)
        assert set(informer.items) == set(follower.items) == {"b"}
        del informer._take
        await client.create(kinds.NODES, node("c"))
        await until(lambda: "c" in informer.items)
        await asyncio.wait_for(asyncio.gather(informer.refresh(), informer.refresh()), 60)


async def test_a_refresh_waits_for_a_server_that_is_away():
    api = SmallApi()
    await api.client().create(kinds.NODES, node("a"))
    async with following(api) as (informer, _):
        api.is_away = True
        refreshing = asyncio.create_task(informer.refresh())
        await asyncio.sleep(0.05)
        assert not refreshing.done()
        api.is_away = False
        await asyncio.wait_for(refreshing, 60)


async def test_repeated_events_are_counted_not_repeated():
    api = SmallApi()
    recorder = EventRecorder(api.client(), "test")
    meta = Node().metadata.__class__(name="n", namespace="ns", uid="u")
    task = asyncio.create_task(recorder.run())
    recorder.record(kinds.PODS, meta, "Warning", "Odd", "something is odd")
    await until(lambda: any("events" in path for path in api.objects))
    for _ in range(3):
        recorder.record(kinds.PODS, meta, "Warning", "Odd", "something is odd")
    await until(lambda: next(each for path, each in api.objects.items() if "events" in path)["count"] == 4)
    assert sum("events" in path for path in api.objects) == 1
    task.cancel()


async def test_the_raw_text_needs_to_be_asked_for():
    with pytest.raises(ValueError, match="keep_raw"):
        Informer(SmallApi().client(), kinds.NODES, Node).raw("a")


async def test_nulls_where_lists_should_be_are_nothing_and_nonsense_is_ignored():
    api = SmallApi()
    client = api.client()
    await client.create(
        kinds.NODES, {"metadata": {"name": "a", "finalizers": None}, "spec": {"taints": None}}
    )
    await client.create(kinds.NODES, {"metadata": {"name": "odd"}, "spec": {"taints": "many"}})
    async with following(api) as (informer, follower):
        assert set(informer.items) == {"a"}
        await client.create(kinds.NODES, {"metadata": {"name": "odder"}, "spec": 7})
        await client.create(
            kinds.NODES, {"metadata": {"name": "b", "labels": None}, "spec": {"taints": None}}
        )
        await until(lambda: "b" in follower.items)
        assert set(informer.items) == {"a", "b"}


async def test_what_has_ended_is_known_by_uid_even_when_the_name_lives_on():
    api = SmallApi()
    client = api.client()
    await client.create(kinds.NODES, node("a"))
    async with following(api) as (informer, _):
        first = informer.items["a"].metadata.uid
        assert not informer.has_ended(first)
        await client.delete(kinds.NODES, "a")
        await client.create(kinds.NODES, node("a"))
        await until(lambda: "a" in informer.items and informer.items["a"].metadata.uid != first)
        assert informer.has_ended(first)
        assert not informer.has_ended(informer.items["a"].metadata.uid)
        assert not informer.has_ended("never seen")


async def test_only_so_many_ends_are_remembered(monkeypatch):
    monkeypatch.setattr("dray.client.informer.MOST_ENDED", 3)
    api = SmallApi()
    client = api.client()
    async with following(api) as (informer, follower):
        uids = []
        for name in "abcde":
            await client.create(kinds.NODES, node(name))
            await until(lambda name=name: name in informer.items)
            uids.append(informer.items[name].metadata.uid)
            await client.delete(kinds.NODES, name)
        await until(lambda: len(follower.told) == 10)
        assert [informer.has_ended(uid) for uid in uids] == [False, False, True, True, True]
