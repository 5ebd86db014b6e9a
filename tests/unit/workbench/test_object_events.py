"""Evidence of tools: warnings come last, also when their times are those of other events."""

from small_api import SmallApi

from dray.workbench.object_events import events_of


async def test_what_went_wrong_is_the_last_event():
    api = SmallApi()
    for number, (kind, moment, reason) in enumerate(
        [
            ("Warning", "2026-01-01T00:00:01Z", "FailedScheduling"),
            ("Warning", "2026-01-01T00:00:02Z", "FailedPrepareDynamicResources"),
            ("Normal", "2026-01-01T00:00:02Z", "Scheduled"),
            ("Warning", "2026-01-01T00:00:03Z", "OfAnotherPod"),
        ]
    ):
        name = "other" if reason == "OfAnotherPod" else "p"
        event = {
            "type": kind,
            "reason": reason,
            "message": "m",
            "lastTimestamp": moment,
            "involvedObject": {"name": name},
        }
        api.put(f"/api/v1/namespaces/ns/events/e{number}", event)
    async with api.client() as client:
        found = await events_of(client, "p", "ns")
    assert found == ["Scheduled: m", "FailedScheduling: m", "FailedPrepareDynamicResources: m"]
