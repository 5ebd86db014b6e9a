"""What the users of a shared machine may know of each other, as objects that every tool understands.

A user lists only their own claims. If the tools knew no others, they would call devices free that somebody holds. The scheduler tells
which devices are held, by whom and until when (`scheduler.queue_report`); here that becomes allocated claims without
names, requests or pods, so that inventory, explanations and what-if count them with their usual code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from dray.api.json_types import JsonObject
from dray.api.times import format_time
from dray.client import Client, ClientError
from dray.client.resources import CLAIMS, CONFIG_MAPS
from dray.scheduler.queue_report import NAME, NAMESPACE, HeldDevices, QueueReport, parse_report

# Of claims made here: until when the devices are held at the latest; empty means: without a time limit.
HELD_UNTIL: Final = "dray.dev/held-until"
HIDDEN_POD: Final = "hidden"  # stands for a pod whose name the caller may not know


async def fetch_report(client: Client) -> QueueReport | None:
    """Return the scheduler's report; None where it makes none, or the caller may not read it."""
    try:
        found = await client.get(CONFIG_MAPS, NAME, NAMESPACE)
    except ClientError:
        return None
    return parse_report(found.get("data") or {})


def claims_of_others(held: Iterable[HeldDevices], own: str) -> Iterator[JsonObject]:
    """Yield a claim for what each claim of others holds; `own` is the namespace whose claims are known."""
    numbers: Counter[str] = Counter()
    for each in held:
        if each.user == own:
            continue
        numbers[each.user] += 1
        until = "" if each.until is None else format_time(datetime.fromtimestamp(each.until, UTC))
        results = [msgspec.to_builtins(device) for device in each.devices]
        yield {
            "apiVersion": CLAIMS.api_version,
            "kind": CLAIMS.kind,
            "metadata": {
                "name": f"held-{numbers[each.user]}",
                "namespace": each.user,
                "annotations": {HELD_UNTIL: until},
            },
            "spec": {"devices": {}},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": HIDDEN_POD, "uid": HIDDEN_POD}],
            },
        }
