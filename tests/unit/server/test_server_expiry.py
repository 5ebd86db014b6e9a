"""Old events go, young ones stay."""

from datetime import UTC, datetime

from server_cluster import running_cluster

from dray.server.objects.event_expiry import expire_once

EVENTS = "/api/v1/namespaces/default/events"


async def test_an_event_goes_an_hour_after_it_was_last_written() -> None:
    async with running_cluster() as client:
        reference = {"kind": "Pod", "namespace": "default", "name": "p"}
        for name, seen in (("old", "2026-03-04T04:00:00Z"), ("young", "2026-03-04T05:30:00Z")):
            body = {"metadata": {"name": name}, "involvedObject": reference, "lastTimestamp": seen}
            assert (await client.call("POST", EVENTS, body)).code == 201
        objects = client.cluster.objects
        assert await expire_once(objects, datetime(2026, 3, 4, 6, 0, 0, tzinfo=UTC)) == 0
        assert await expire_once(objects, datetime(2026, 3, 4, 6, 10, 0, tzinfo=UTC)) == 1
        left = (await client.call("GET", EVENTS)).json["items"]
        assert [item["metadata"]["name"] for item in left] == ["young"]
