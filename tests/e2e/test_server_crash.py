"""kill -9 at random moments under write load: nothing acknowledged is lost, no event comes twice."""

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

ROUNDS = int(os.environ.get("DRAY_CRASH_ROUNDS", "500"))
WRITERS = 8
PATIENCE = 600.0  # seconds for one start or one answer; only a machine that hardly runs needs them
NAMES = 40
PATH = "/api/v1/namespaces/default/configmaps"
TOKEN = {"Authorization": "Bearer admintoken"}
MERGE = {**TOKEN, "Content-Type": "application/merge-patch+json"}


class Server:
    """One process after the other on the same data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tokens = folder / "tokens.csv"
        tokens.write_text('admintoken,admin,1,"system:masters"\n')
        self.command = [
            *(sys.executable, "-m", "dray", "server", "--data", str(folder / "data"), "--secure-port", "0"),
            *("--token-auth-file", str(tokens)),
        ]
        self.process: asyncio.subprocess.Process | None = None
        self.url = ""

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(*self.command, stdout=asyncio.subprocess.PIPE)
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = (await self.process.stdout.readline()).decode()
        assert "ready at" in line, line
        self.url = line.split("ready at ")[1].split()[0]

    async def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


class Ledger:
    """What clients know: acknowledged writes, writes without an answer, events seen."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, tuple[int, str]] = {}  # name -> resourceVersion, value
        self.unanswered: dict[str, set[str]] = {}
        self.events: list[tuple[int, str, str]] = []  # resourceVersion, name, value
        self.acknowledged_versions: set[int] = set()
        self.counter = 0

    @property
    def position(self) -> int:
        return self.events[-1][0] if self.events else self.start

    start = 0


async def write_forever(session: aiohttp.ClientSession, server: Server, ledger: Ledger, number: int) -> None:
    rng = random.Random(number)
    while True:
        name = f"c{number}-{rng.randrange(NAMES // WRITERS)}"
        ledger.counter += 1
        value = str(ledger.counter)
        ledger.unanswered.setdefault(name, set()).add(value)
        known = name in ledger.acknowledged
        body = json.dumps({"metadata": {"name": name}, "data": {"v": value}})
        target = f"{server.url}{PATH}/{name}" if known else f"{server.url}{PATH}"
        headers = MERGE if known else {**TOKEN, "Content-Type": "application/json"}
        async with session.request(
            "PATCH" if known else "POST", target, data=body, headers=headers
        ) as answer:
            document = await answer.json()
            if answer.status == 409 and not known:
                # Created by a write whose answer was lost in a crash.
                ledger.acknowledged[name] = (0, "")
                ledger.unanswered[name].discard(value)
                continue
            assert answer.status in (200, 201), document
            version = int(document["metadata"]["resourceVersion"])
            ledger.acknowledged[name] = (version, value)
            ledger.acknowledged_versions.add(version)
            ledger.unanswered[name] = set()


async def watch_until_cut(session: aiohttp.ClientSession, server: Server, ledger: Ledger) -> None:
    query = f"?watch=1&resourceVersion={ledger.position}"
    async with session.get(server.url + PATH + query, headers=TOKEN) as answer:
        async for line in answer.content:
            event = json.loads(line)
            assert event["type"] in ("ADDED", "MODIFIED"), event
            obj = event["object"]
            entry = (int(obj["metadata"]["resourceVersion"]), obj["metadata"]["name"], obj["data"]["v"])
            assert entry[0] > ledger.position, "an event came twice or out of order"
            ledger.events.append(entry)


async def one_round(session: aiohttp.ClientSession, server: Server, ledger: Ledger, seconds: float) -> None:
    jobs = [asyncio.create_task(write_forever(session, server, ledger, number)) for number in range(WRITERS)]
    jobs.append(asyncio.create_task(watch_until_cut(session, server, ledger)))
    await asyncio.sleep(seconds)
    async with asyncio.timeout(PATIENCE):  # on a busy machine the first answer takes its time
        while not ledger.acknowledged_versions:
            await asyncio.sleep(0.01)
    await server.kill()
    for outcome in await asyncio.gather(*jobs, return_exceptions=True):
        assert isinstance(outcome, (aiohttp.ClientError, ConnectionError, TimeoutError)) or outcome is None, (
            outcome
        )


async def check(session: aiohttp.ClientSession, server: Server, ledger: Ledger) -> None:
    async with session.get(server.url + PATH, headers=TOKEN) as answer:
        document = await answer.json()
    stored = {
        item["metadata"]["name"]: (int(item["metadata"]["resourceVersion"]), item["data"]["v"])
        for item in document["items"]
        if item["metadata"]["name"].startswith("c")
    }
    for name, (version, value) in ledger.acknowledged.items():
        assert name in stored, f"acknowledged object {name} is gone"
        if stored[name] != (version, value):
            assert stored[name][0] > version, f"{name} went back from {version} to {stored[name][0]}"
            assert version == 0 or stored[name][1] in ledger.unanswered[name]
    current = int(document["metadata"]["resourceVersion"])
    try:
        async with asyncio.timeout(PATIENCE):
            watching = asyncio.create_task(watch_until_cut(session, server, ledger))
            newest = max((entry[0] for entry in stored.values()), default=0)
            while ledger.position < newest:
                await asyncio.sleep(0.01)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert ledger.position <= current
    missing = ledger.acknowledged_versions - {entry[0] for entry in ledger.events}
    assert not missing, f"a resumed watch did not see {sorted(missing)[:5]}"
    replayed = {name: (version, value) for version, name, value in ledger.events}
    assert replayed == stored


async def play(folder: Path, rounds: int) -> Ledger:
    server, ledger, rng = Server(folder), Ledger(), random.Random(7)
    await server.start()
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get(server.url + PATH, headers=TOKEN) as answer:
            ledger.start = int((await answer.json())["metadata"]["resourceVersion"])
        for number in range(1, rounds + 1):
            await one_round(session, server, ledger, rng.uniform(0.02, 0.4))
            await server.start()
            await check(session, server, ledger)
            if number % 25 == 0:  # of a run that takes long, something should be seen (pytest -s)
                print(f"{number} rounds, {len(ledger.acknowledged_versions)} acknowledged writes", flush=True)
        await server.kill()
    return ledger


async def test_a_killed_server_keeps_its_word_once(tmp_path: Path) -> None:
    ledger = await play(tmp_path, 1)
    assert ledger.acknowledged_versions


@pytest.mark.heavy
async def test_a_server_killed_again_and_again_keeps_its_word(tmp_path: Path) -> None:
    ledger = await play(tmp_path, ROUNDS)
    assert len(ledger.acknowledged_versions) > ROUNDS
