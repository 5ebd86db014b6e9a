"""Send the requests of a findings file again, to a fresh server, one finding after the other.

A request still fails if it is not answered, is answered with a 5xx that kube-apiserver would not give, or leaves
a traceback in the log. With `shrink` the body of one that fails is made smaller, part by part, as long as
it fails in the same way. Bombs are too large for the file and are found by name. How long the event loop was
held is not judged here; the time of the answer is shown.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from attack.bombs import bombs
from attack.findings import cause_of, expected_failure, tracebacks_of
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


async def _failure(server: Server, request: Request) -> tuple[str, Answer]:
    """Send a request; return how it fails (empty if it does not) and the answer."""
    server.new_log()
    answer = await _send(server, request)
    left = tracebacks_of(server.new_log())
    if left:
        return left[0][0], answer
    if answer.status == 0:
        return "no answer", answer
    unexpected = answer.status >= 500 and expected_failure(answer.status, answer.message()) is None
    return cause_of(request, answer) if unexpected else "", answer


def _request_of(example: dict[str, Any]) -> Request | None:
    name = example.get("bomb") or example.get("request", {}).get("bomb")
    if name:
        return next((request for known, request in bombs() if known == name), None)
    return request_of(example["request"]) if "request" in example else None


async def _replay_one(server: Server, finding: dict[str, Any], shrink: bool) -> bool:
    sys.stdout.write(f"{finding['sort']}: {finding['cause']}\n")
    example = next((each for each in finding["examples"] if _request_of(each)), None)
    request = _request_of(example) if example else None
    if example is None or request is None:
        sys.stdout.write("  no request was kept\n")
        return False
    for record in example.get("before", []):
        await _send(server, request_of(record))
    began = time.monotonic()
    failure, answer = await _failure(server, request)
    took = time.monotonic() - began
    sys.stdout.write(
        f"  {request.method} {request.target[:300]}\n  -> {answer.status} {answer.message()[:300]} ({took:.2f} s)\n"
    )
    sys.stdout.write(f"  still fails: {failure}\n" if failure else "  does not fail\n")
    if failure and shrink:
        smaller = await shrunk(server, request, failure)
        sys.stdout.write(f"  smallest body: {smaller.body[:2000]!r}\n")
    return bool(failure)


async def shrunk(server: Server, request: Request, failure: str) -> Request:
    """Return the request with as much of its JSON body left out as keeps the failure."""
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
            trial = replace(request, body=json.dumps(smaller).encode())
            if (await _failure(server, trial))[0] == failure:
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
