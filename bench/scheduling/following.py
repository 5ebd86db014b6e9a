"""Follow a collection: every object once, then every change, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from bench.stacks import TOKEN, unverified

Notice = Callable[[str, dict[str, Any]], None]  # type of the event, object


async def follow(port: int, path: str, notice: Notice) -> None:
    """List, then watch until cancelled; raises when the server ends the watch with an error."""
    decoder = msgspec.json.Decoder()
    base = f"https://127.0.0.1:{port}{path}"
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=2**20) as session:
        async with session.get(base, ssl=unverified()) as response:
            listed = decoder.decode(await response.read())
        for item in listed["items"]:
            notice("ADDED", item)
        version = listed["metadata"]["resourceVersion"]
        while True:
            query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "600"}
            async with session.get(base, params=query, ssl=unverified()) as response:
                async for line in response.content:
                    event = decoder.decode(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"the watch of {path} ended: {event['object']}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    notice(event["type"], event["object"])
