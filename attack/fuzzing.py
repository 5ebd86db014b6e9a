"""Worker processes that send generated requests and classify the answers.

Before the workers start, the corpus grows: mutants of the templates that the server accepts (as a dry run)
become bases for more mutants, so what is behind two or three unusual fields is reached, too. Growing is
sequential for each kind, so one seed makes one corpus.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import ssl
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any

from attack.findings import Findings, cause_of, expected_failure
from attack.mutation import Mutator
from attack.requests import Generator
from attack.species import Species, dumps, named, setup_requests
from attack.vocabulary import JSON
from attack.wire import HOST, Answer, Connection, Request, client_tls

CONNECTIONS = 4
DEPTH = 2  # requests under way on each connection
HISTORY = 400  # changes that a worker remembers, to find those that led to a failure


@dataclass
class Tally:
    """Counts of a run."""

    by_class: Counter[str] = field(default_factory=Counter)  # class of answer -> number
    deep_by_class: Counter[str] = field(default_factory=Counter)
    by_shape: Counter[str] = field(default_factory=Counter)  # "shape class" -> number

    def count(self, request: Request, answer: Answer) -> None:
        """Count one answer."""
        name = class_of(answer.status)
        self.by_class[name] += 1
        self.by_shape[f"{request.shape.split('/')[-1]} {name}"] += 1
        if request.deep:
            self.deep_by_class[name] += 1

    @property
    def total(self) -> int:
        """Return the number of requests."""
        return self.by_class.total()

    def merge(self, other: dict[str, dict[str, int]]) -> None:
        """Add the counts of a worker."""
        self.by_class.update(other["by_class"])
        self.deep_by_class.update(other["deep_by_class"])
        self.by_shape.update(other["by_shape"])

    def record(self) -> dict[str, dict[str, int]]:
        """Return the counts as JSON."""
        return {
            "by_class": dict(self.by_class.most_common()), "deep_by_class": dict(self.deep_by_class.most_common()),
            "by_shape": dict(sorted(self.by_shape.items())),
        }  # fmt: skip


def class_of(status: int) -> str:
    """Return how an answer is counted."""
    if status == 0:
        return "no answer"
    return "2xx" if 200 <= status < 300 else str(status)


class Judge:
    """Counts answers and keeps those that should not be."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.tally = Tally()
        self.findings = Findings()
        self._changes: deque[Request] = deque(maxlen=HISTORY)

    def see(self, request: Request, answer: Answer) -> None:
        """Count an answer; a 5xx that is not expected, and silence, are findings."""
        self.tally.count(request, answer)
        if answer.status == 0:
            self.findings.add("silence", f"no answer to {request.shape}", self._example(request, answer))
        elif answer.status >= 500 and expected_failure(answer.status, answer.message()) is None:
            self.findings.add("status", cause_of(request, answer), self._example(request, answer))
        if request.changes:
            self._changes.append(request)

    def _example(self, request: Request, answer: Answer) -> dict[str, Any]:
        """Return a request with the earlier ones that wrote below the same path."""
        place = request.target.partition("?")[0]
        before = [
            each.record()
            for each in self._changes
            if each.target.partition("?")[0] in (place, place.rpartition("/")[0])
        ]
        answered = {"status": answer.status, "message": answer.message()[:400]}
        return {"seed": self.seed, "before": before[-20:], "request": request.record(), "answer": answered}


async def grow(port: int, species: list[Species], seed: str, tries: int, judge: Judge) -> None:
    """Add accepted mutants to the corpus, `tries` attempts for each kind."""
    tls = client_tls()
    await _send_all(port, setup_requests(species, "corpus"), judge, tls)
    lanes: list[list[Species]] = [species[start::4] for start in range(4)]
    await asyncio.gather(*(_grow_lane(port, lane, seed, tries, judge, tls) for lane in lanes))


async def _grow_lane(
    port: int, lane: list[Species], seed: str, tries: int, judge: Judge, tls: ssl.SSLContext
) -> None:
    plan: deque[tuple[Species, Any]] = deque()
    pending: deque[tuple[Species, Any]] = deque()
    mutators: dict[int, Mutator] = {}
    for each in lane:
        if each.kind.is_stored:
            plan.extend((each, number) for number in range(tries))
            mutator = mutators[id(each)] = Mutator(random.Random(f"{seed}/{each.kind.kind}/{each.version}"))
            for body in each.bodies:
                mutator.learn(body)

    def next_request() -> Request | None:
        if not plan:
            return None
        each, number = plan.popleft()
        mutator = mutators[id(each)]
        base = mutator.chance.choice(each.bodies)
        body = mutator.mutate(each.schema, base)
        pending.append((each, body))
        home = "corpus-limits" if each.limits else "corpus"
        value = named(each, body, f"g{number}", home) if isinstance(body.get("metadata", {}), dict) else body
        target = each.kind.path(version=each.version, namespace=home) + "?dryRun=All"
        return Request(
            "POST", target, {"Content-Type": JSON}, dumps(value), shape="grow", deep=True, path=mutator.path
        )

    def on_answer(request: Request, answer: Answer) -> None:
        judge.see(request, answer)
        each, body = pending.popleft()
        if answer.status == 201 and len(dumps(body)) < 20_000:
            each.bodies.append(body)

    await Connection(next_request, on_answer).run(port, tls)


async def _send_all(port: int, requests: list[Request], judge: Judge, tls: ssl.SSLContext) -> None:
    waiting = deque(requests)
    await Connection(lambda: waiting.popleft() if waiting else None, judge.see, DEPTH).run(port, tls)


# --- workers ------------------------------------------------------------------------


@dataclass
class Load:
    """What one worker is to do."""

    port: int
    seed: str
    number: int
    requests: int
    seconds: float
    watches: bool = True


def _work(load: Load, species: list[Species], pipe: Pipe) -> None:
    try:
        import uvloop

        run = uvloop.run
    except ImportError:
        run = asyncio.run
    judge = Judge(f"{load.seed}/{load.number}")
    try:
        run(_worker(load, species, judge))
    except Exception as problem:  # the server is gone; the parent finds out why
        judge.findings.add("worker", f"a worker could not go on: {type(problem).__name__}: {problem}")
    pipe.send({"tally": judge.tally.record(), "findings": judge.findings.records()})
    pipe.close()


async def _worker(load: Load, species: list[Species], judge: Judge) -> None:
    tls = client_tls()
    namespace = f"w{load.number}"
    await _send_all(load.port, setup_requests(species, namespace), judge, tls)
    generator = Generator(f"{load.seed}/{load.number}", species, namespace)
    left = [load.requests]
    end = time.monotonic() + load.seconds

    def next_request() -> Request | None:
        if left[0] <= 0 or time.monotonic() > end:
            return None
        left[0] -= 1
        return generator.next()

    jobs = [Connection(next_request, judge.see, DEPTH).run(load.port, tls) for _ in range(CONNECTIONS)]
    watcher = asyncio.create_task(_watch(load, species, judge, tls)) if load.watches else None
    try:
        await asyncio.gather(*jobs)
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)


async def _watch(load: Load, species: list[Species], judge: Judge, tls: ssl.SSLContext) -> None:
    """Open watches with every parameter, read a little of each, hang up."""
    generator = Generator(f"{load.seed}/{load.number}/watch", species, f"w{load.number}")
    while True:
        request = generator.watch()
        head = b""
        try:
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection(HOST, load.port, ssl=tls)
                writer.write(request.encode())
                head = await reader.readuntil(b"\r\n\r\n")
                async with asyncio.timeout(generator.chance.random() * 0.3):
                    while await reader.read(65536):
                        pass
        except TimeoutError:
            pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await asyncio.sleep(0.5)
        if head:
            answer = Answer(int(head[9:12]), head)
            if answer.status >= 500:
                answer.body = (
                    b"Timeout: Too large resource version"
                    if answer.status == 504
                    else b"strconv.ParseUint"
                    if answer.status == 500
                    else b""
                )
            judge.see(request, answer)
            writer.transport.abort()
        await asyncio.sleep(0.02)


def fuzz(
    port: int, species: list[Species], seed: str, requests: int, seconds: float, workers: int
) -> tuple[Tally, Findings]:
    """Send so many requests from several processes; returns counts and findings."""
    tally, findings = Tally(), Findings()
    running = []
    for number in range(workers):
        near, far = multiprocessing.Pipe(duplex=False)
        load = Load(port, seed, number, requests // workers, seconds)
        process = multiprocessing.Process(target=_work, args=(load, species, far), daemon=True)
        process.start()
        far.close()
        running.append((process, near))
    deadline = time.monotonic() + seconds + 120
    for process, near in running:
        if near.poll(max(0.0, deadline - time.monotonic())):
            try:
                result = near.recv()
                tally.merge(result["tally"])
                findings.merge(result["findings"])
            except EOFError:
                findings.add("worker", "a worker ended without a result")
        else:
            findings.add("worker", "a worker did not end in time")
            process.kill()
        process.join(10)
    return tally, findings
