"""Events of an object as text, what went wrong last: the evidence of tools that try something on a cluster."""

from __future__ import annotations

from dray.client import Client
from dray.client.resources import EVENTS


async def events_of(client: Client, name: str, namespace: str) -> list[str]:
    """Return the events of an object, oldest first, warnings behind all others.

    Times of events have whole seconds, and "Scheduled" says nothing about a pod that does not run.
    """
    found = (await client.list(EVENTS, namespace, fieldSelector=f"involvedObject.name={name}")).items
    found.sort(
        key=lambda each: (
            each.get("type") == "Warning",
            each.get("lastTimestamp") or each.get("eventTime") or "",
        )
    )
    return [f"{each.get('reason', '')}: {each.get('message', '')}" for each in found]
