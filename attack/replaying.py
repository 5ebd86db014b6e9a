"""Send the requests of a findings file again, to a fresh server, one finding after the other."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from attack.servers import Server
from attack.species import setup_requests, species_of
from attack.templates import templates
from attack.wire import Answer, Request, ask, client_tls, request_of

NAMESPACES = ("w0", "w1", "corpus")
SHRINKING = 200  # attempts


async def replay(path: Path, *, shrink: bool) -> int:
    """Replay every finding that has a request; returns how many still fail (at most 1)."""
    with tempfile.TemporaryDirectory(prefix="dray-replay-") as folder:
        server = Server(Path(folder))
        server.start()
        try:
            await _seed(server)
            failing = 0
            for line in path.read_text().splitlines():
                failing += await _replay_one(server, json.loads(line), shrink)
        finally:
            server.stop()
    return 1 if failing else 0


async def _seed(server: Server) -> None:
    species = species_of(templates())
    for namespace in NAMESPACES:
        for request in setup_requests(species, namespace):
            await ask(server.port, request, client_tls())


async def _send(server: Server, request: Request) -> Answer:
    try:
        answer = await ask(server.port, request, client_tls(), 60.0)
    except OSError:
        answer = Answer(0)
    if server.death():
        sys.stdout.write(f"  the server died: {server.death()}\n")
        server.revive()
        return Answer(0)
    return answer


async def _replay_one(server: Server, finding: dict[str, Any], shrink: bool) -> bool:
    sys.stdout.write(f"{finding['sort']}: {finding['cause']}\n")
    for example in finding["examples"][:1]:
        if "request" not in example:
            continue
        for record in example.get("before", []):
            await _send(server, request_of(record))
        request = request_of(example["request"])
        answer = await _send(server, request)
        sys.stdout.write(
            f"  {request.method} {request.target}\n  -> {answer.status} {answer.message()[:300]}\n"
        )
        fails = answer.status == 0 or answer.status >= 500
        if fails and shrink:
            smaller = await shrunk(server, request, answer.status)
            sys.stdout.write(f"  smallest body: {smaller.body[:2000]!r}\n")
        return fails
    return False


async def shrunk(server: Server, request: Request, status: int) -> Request:
    """Return the request with as much of its JSON body left out as keeps the status."""
    try:
        value = json.loads(request.body)
    except ValueError:
        return request
    attempts = 0
    progress = True
    while progress and attempts < SHRINKING:
        progress = False
        for smaller in _smaller(value):
            attempts += 1
            trial = Request(
                request.method, request.target, request.headers, json.dumps(smaller).encode(), request.token
            )
            if (await _send(server, trial)).status == status:
                value, request, progress = smaller, trial, True
                break
            if attempts >= SHRINKING:
                break
    return request


def _smaller(value: Any) -> list[Any]:
    """Return the values that lack one part, the large parts first."""
    if isinstance(value, dict):
        without = [{key: item for key, item in value.items() if key != name} for name in value]
        within = [{**value, name: each} for name, item in value.items() for each in _smaller(item)]
        return without + within
    if isinstance(value, list):
        without = [value[:place] + value[place + 1 :] for place in range(len(value))]
        within = [
            [*value[:place], each, *value[place + 1 :]]
            for place, item in enumerate(value)
            for each in _smaller(item)
        ]
        return without + within
    return []


if __name__ == "__main__":
    raise SystemExit(asyncio.run(replay(Path(sys.argv[1]), shrink=False)))
