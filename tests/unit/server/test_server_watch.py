"""Watches on a whole server in memory."""

import asyncio

from server_cluster import CLAIMS, MERGE, claim, running_cluster

from dray.server.requests.messages import Request


async def test_a_watch_without_version_begins_with_what_is_there() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim("a"))
        (event,) = await client.watch(CLAIMS + "?watch=1", 1)
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
        assert event["object"]["kind"] == "ResourceClaim"


async def test_a_watch_from_a_version_sees_each_later_change_once() -> None:
    async with running_cluster() as client:
        version = (await client.call("POST", CLAIMS, claim("a"))).json["metadata"]["resourceVersion"]
        await client.call("PATCH", CLAIMS + "/a", {"metadata": {"labels": {"x": "1"}}}, content=MERGE)
        await client.call("DELETE", CLAIMS + "/a")
        events = await client.watch(f"{CLAIMS}?watch=1&resourceVersion={version}", 2)
        assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
        assert versions == sorted(versions)
        assert versions[0] > int(version)


async def test_objects_enter_and_leave_a_selected_watch() -> None:
    async with running_cluster() as client:
        version = (await client.call("POST", CLAIMS, claim("a"))).json["metadata"]["resourceVersion"]
        for value in ("1", "2", None):
            await client.call("PATCH", CLAIMS + "/a", {"metadata": {"labels": {"x": value}}}, content=MERGE)
        target = f"{CLAIMS}?watch=1&labelSelector=x&resourceVersion={version}"
        events = await client.watch(target, 3)
        assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
        assert events[2]["object"]["metadata"]["labels"] == {"x": "2"}, "shown as it last matched"


async def test_a_watch_list_ends_its_state_with_a_bookmark() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim("a"))
        options = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        added, bookmark = await client.watch(f"{CLAIMS}?{options}", 2)
        assert added["type"] == "ADDED"
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_forgotten_history_is_told_in_the_stream() -> None:
    async with running_cluster() as client:
        (event,) = await client.watch(CLAIMS + "?watch=1&resourceVersion=1", 1)
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_a_watch_ends_with_its_timeout() -> None:
    async with running_cluster() as client:
        version = (await client.call("GET", CLAIMS)).json["metadata"]["resourceVersion"]
        async with asyncio.timeout(30):  # sooner than `watch` gives up
            events = await client.watch(f"{CLAIMS}?watch=1&timeoutSeconds=1&resourceVersion={version}", 1)
        assert events == []


async def test_old_versions_and_tables_can_be_watched() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim("a"))
        (event,) = await client.watch(CLAIMS.replace("/v1/", "/v1beta2/") + "?watch=1", 1)
        assert event["object"]["apiVersion"] == "resource.k8s.io/v1beta2"


async def test_stopping_the_server_ends_watches() -> None:
    async with running_cluster() as client:
        version = (await client.call("GET", CLAIMS)).json["metadata"]["resourceVersion"]
        watching = asyncio.create_task(client.watch(f"{CLAIMS}?watch=1&resourceVersion={version}", 1))
        await asyncio.sleep(0.05)
        await client.cluster.stop()
        async with asyncio.timeout(30):  # sooner than `watch` gives up
            assert await watching == []


async def test_a_stream_that_nobody_reads_leaves_no_subscription_behind() -> None:
    async with running_cluster() as client:
        request = Request("GET", CLAIMS, (("watch", "1"),), {"authorization": "Bearer admin"})
        response = await client.cluster.server.handle(request)
        assert not isinstance(response.body, bytes)
        assert client.cluster.store._watches_by_prefix
        await response.body.aclose()
        assert not client.cluster.store._watches_by_prefix
