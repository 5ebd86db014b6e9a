"""One run: the phases in turn against one server, and the verdict.

Each phase leaves figures and findings. After each one the campaign looks at what the phase
cannot see itself: whether the process still lives, what the log says, how the heart
beat, how much memory is held. A server that died is started again, so that one death
does not hide what comes after it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from attack import agents, drivers
from attack.bombs import bombs
from attack.clients import BULK, CLIENTS, drain, fill
from attack.findings import Findings, cause_of, expected_failure, tracebacks_of
from attack.fuzzing import Judge, Tally, fuzz, grow
from attack.monitoring import Beats, Monitor
from attack.servers import Server, resident_bytes
from attack.species import setup_requests, species_of
from attack.templates import templates
from attack.wire import Answer, Request, ask, client_tls, json_request

MOST_HEARTBEAT = 250.0  # ms, corrected for a busy machine
MOST_GROWTH = 64.0  # MB between the first tenth of the requests and the end
MOST_PEAK = 128.0  # MB that one bomb or one sort of client may take while it lasts
RESTART_ABOVE = 400.0  # MB that bombs may leave behind before the server is started afresh
KEPT_BODY = 20_000  # bytes of a bomb that go into the findings; larger ones are found by name
BOMB_SECONDS = 20.0  # after which a server that does not answer is ended
SETTLING = 3.0  # seconds of quiet before memory is compared


@dataclass
class Plan:
    """How much of everything."""

    requests: int
    tries: int  # mutants tried for each kind while the corpus grows
    seconds: float  # at most, for the fuzzer
    workers: int = 1
    seed: str = "1"
    bombs: str = ""  # regular expression: only bombs of these names
    bulk: int = 30  # MB of objects that clients list and watch without reading
    driving: float = 30.0  # seconds that a node runs among hostile drivers
    hold: float = 8.0  # seconds that bad clients stay


class Campaign:
    """A run against a server."""

    PHASES = ("fuzz", "bombs", "clients", "agents", "drivers")

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.findings = Findings()
        self.figures: dict[str, Any] = {}
        self.tally = Tally()
        shutil.rmtree(folder / "server", ignore_errors=True)  # of an earlier run
        self.server = Server(folder / "server")
        self.server.start()
        self.monitor = Monitor(self.server.port, self.server.pid)
        time.sleep(1.0)
        quiet = self.monitor.report(self.server.pid)
        # What a heartbeat takes here when nothing happens; a slow machine may be that much slower.
        self.baseline = quiet.worst
        self.figures["quiet"] = asdict(quiet)

    def close(self) -> None:
        """End everything that was started."""
        self.monitor.stop()
        self.server.stop()

    def run(self, phases: list[str]) -> None:
        """Run the phases; an unknown one is refused."""
        unknown = set(phases) - set(self.PHASES)
        if unknown:
            raise SystemExit(f"no phase named {', '.join(sorted(unknown))}; known: {', '.join(self.PHASES)}")
        for name in phases:
            phase: Callable[[], None] = getattr(self, f"_{name}")
            phase()
            self.look(f"after {name}")

    # --- phases ---------------------------------------------------------------------

    def _fuzz(self) -> None:
        plan = self.plan
        species = species_of(templates())
        judge = Judge(f"{plan.seed}/grow")
        began = time.monotonic()
        asyncio.run(grow(self.server.port, species, plan.seed, plan.tries, judge))
        self._take(judge.tally, judge.findings)
        refused = [
            name
            for name in judge.tally.by_shape
            if name.startswith("setup") and name.split()[1] not in ("2xx", "409")
        ]
        if refused:
            self.findings.add("templates", f"templates are not valid any more: {refused}")
        self.figures["corpus"] = sum(len(each.bodies) for each in species)
        self.look("corpus")
        warm = plan.requests // 10
        self._take(
            *fuzz(self.server.port, species, f"{plan.seed}/warm", warm, plan.seconds / 10, plan.workers)
        )
        time.sleep(SETTLING)
        first = self.look("warm up")
        self._take(
            *fuzz(
                self.server.port, species, plan.seed, plan.requests - warm, plan.seconds * 0.9, plan.workers
            )
        )
        elapsed = time.monotonic() - began
        time.sleep(SETTLING)
        last = self.look("fuzz")
        growth = last.memory - first.memory
        self.figures["fuzz figures"] = {
            "requests": self.tally.total, "requests per second": round(self.tally.total / elapsed), "seconds": round(elapsed),
            "valid share": round(self.tally.deep_by_class.total() / max(1, self.tally.total), 3),
            "memory growth MB": round(growth, 1), "memory peak MB": round(last.memory_peak, 1),
        }  # fmt: skip
        if growth > MOST_GROWTH and not self.server.deaths:
            self.findings.add(
                "memory", f"memory grew by more than {MOST_GROWTH:.0f} MB while fuzzing", {"growth": growth}
            )

    def _bombs(self) -> None:
        """Send every bomb on its own and look after each."""
        asyncio.run(self._prepare())
        table = {}
        for name, request in bombs():
            if self.plan.bombs and not re.search(self.plan.bombs, name):
                continue
            before = self.monitor.report(self.server.pid)
            began = time.monotonic()
            answer = asyncio.run(self._ask(request))
            took = time.monotonic() - began
            if answer.status == 0 and took >= BOMB_SECONDS and not self.server.death():
                place = self.server.abort()
                self.findings.add(
                    "hang",
                    f"bomb {re.sub(r'[0-9]+', '_', name)} is not answered in {BOMB_SECONDS:.0f} s: {place}",
                    {"bomb": name},
                )
                print(f"  {name}: no answer, in {place}", file=sys.stderr, flush=True)
                table[name] = [0, round(took), 0, 0]
                self.server.start()
                self.monitor.report(self.server.pid)
                continue
            example = {
                "request": request.record()
                if len(request.body) < KEPT_BODY
                else {**request.record(), "body": "", "bomb": name}
            }
            beats = self.look(f"bomb {name}", example, quiet=True)
            self._judge_bomb(name, request, answer, beats.memory_peak - before.memory, example)
            table[name] = [
                answer.status,
                round(took, 2),
                round(beats.worst),
                round(beats.memory_peak - before.memory),
            ]
            if beats.memory - self.figures["quiet"]["memory"] > RESTART_ABOVE:
                self._restart()
        self.figures["bombs"] = len(table)
        slowest = sorted(table.items(), key=lambda each: -each[1][2])
        self.figures["bombs by heartbeat"] = dict(slowest[:10])
        (self.folder / "bombs.json").write_text(json.dumps(table, indent=1))

    def _judge_bomb(
        self, name: str, request: Request, answer: Answer, growth: float, example: dict[str, Any]
    ) -> None:
        kind = re.sub(r"\d+", "_", name)
        request.shape = f"bomb {kind}"
        self.tally.count(request, answer)
        if answer.status == 0:
            self.findings.add("silence", f"no answer to bomb {kind}", example)
        elif answer.status >= 500 and expected_failure(answer.status, answer.message()) is None:
            self.findings.add(
                "status", cause_of(request, answer), {**example, "answer": answer.message()[:300]}
            )
        if growth > MOST_PEAK:
            self.findings.add(
                "memory", f"bomb {kind} took more than {MOST_PEAK:.0f} MB", {"MB": round(growth), **example}
            )

    async def _ask(self, request: Request) -> Answer:
        try:
            return await ask(self.server.port, request, client_tls(), BOMB_SECONDS)
        except OSError:
            return Answer(0)

    async def _prepare(self) -> None:
        for request in setup_requests(species_of(templates()), "corpus"):
            await self._ask(request)

    def _restart(self) -> None:
        """Start the server afresh, so that what one attack took is not charged to the next."""
        self.server.kill()
        self.server.start()
        self.monitor.report(self.server.pid)

    def _clients(self) -> None:
        """Let each sort of bad client come, and look at what it costs while it is there and after."""
        asyncio.run(self._prepare())
        table = {}
        for name, client in CLIENTS.items():
            self._restart()
            if name in BULK:
                asyncio.run(fill(self.server.port, self.plan.bulk))
            time.sleep(0.5)
            before = self.monitor.report(self.server.pid)
            accepted = asyncio.run(client(self.server.port, self.plan.hold))
            beats = self.look(f"client {name}", {"client": name}, quiet=True)
            growth = beats.memory_peak - before.memory
            table[name] = {
                "accepted": accepted,
                "heartbeat ms": round(beats.worst),
                "memory MB": round(growth),
            }
            if growth > MOST_PEAK:
                self.findings.add(
                    "memory", f"client {name} took more than {MOST_PEAK:.0f} MB", {"MB": round(growth)}
                )
        asyncio.run(drain(self.server.port))
        self.figures["clients"] = table

    def _agents(self) -> None:
        """Ask for logs and commands of pods whose node agent is hostile."""
        self._restart()
        asyncio.run(self._ask_agents())

    async def _ask_agents(self) -> None:
        table = {}
        async with agents.Agents(self.folder) as hostile:
            for request in agents.objects(hostile.port):
                await self._ask(request)
            for name, request in agents.questions():
                before = self.monitor.report(self.server.pid)
                found = await agents.ask_a_few(self.server.port, request)
                example = {"request": request.record(), "agent": name}
                beats = self.look(f"agent {name}", example, quiet=True)
                growth = beats.memory_peak - before.memory
                table[name] = [sorted({each.status for each in found}), round(beats.worst), round(growth)]
                if growth > MOST_PEAK:
                    self.findings.add(
                        "memory",
                        f"agent {name} made the server take more than {MOST_PEAK:.0f} MB",
                        {"MB": growth},
                    )
                if hostile.reached:
                    self.findings.add(
                        "redirect", f"the server spoke to an internal service for agent {name}", example
                    )
                    hostile.reached = 0
        self.figures["agents"] = len(table)
        (self.folder / "agents.json").write_text(json.dumps(table, indent=1))

    def _drivers(self) -> None:
        """Run a node among hostile drivers; the pod of the good one must start all the same."""
        self._restart()
        with tempfile.TemporaryDirectory(prefix="da-") as short:  # paths of sockets are short
            folder = Path(short)
            (folder / "s").mkdir()
            node = drivers.Node(self.server, folder)
            context = multiprocessing.get_context("spawn")
            hostile = context.Process(
                target=drivers.serve_hostile, args=(str(node.registry), str(folder / "s"), 300.0), daemon=True
            )
            hostile.start()
            try:
                asyncio.run(self._drive(node))
            finally:
                node.stop()
                hostile.kill()
                hostile.join(10)
            for cause, text in tracebacks_of(node.log.read_text(errors="replace")):
                self.findings.add("traceback", f"node: {cause}", {"log": text})
            shutil.copy(node.log, self.folder / "node.log")

    async def _drive(self, node: drivers.Node) -> None:
        for _ in range(200):
            if (node.root / "serving").exists() and (
                await self._ask(Request("GET", f"/api/v1/nodes/{drivers.NODE}"))
            ).status == 200:
                break
            await asyncio.sleep(0.1)
        before = resident_bytes(node.process.pid) / 1e6
        for name in [*drivers.names(), "good"]:
            pod, claim, status = drivers.pod_requests(name, f"{name}.example.com")
            uid = json.loads((await self._ask(pod)).body)["metadata"]["uid"]
            await self._ask(claim)
            patch = drivers.allocation(f"{name}.example.com", f"with-{name}", uid)
            await self._ask(json_request("PATCH", status, patch, content="application/merge-patch+json"))
        peak = phase = 0.0
        began, phases = time.monotonic(), ""
        while time.monotonic() - began < self.plan.driving:
            await asyncio.sleep(0.25)
            peak = max(peak, resident_bytes(node.process.pid) / 1e6)
            answer = await self._ask(Request("GET", f"/api/v1/namespaces/{drivers.NAMESPACE}/pods/with-good"))
            phases = json.loads(answer.body).get("status", {}).get("phase", "")
            if phases == "Running" and not phase:
                phase = time.monotonic() - began
        lease = await self._ask(
            Request("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{drivers.NODE}")
        )
        self.figures["drivers"] = {
            "good pod running after s": round(phase, 1),
            "node memory MB": round(peak - before),
        }
        if node.process.poll() is not None:
            self.findings.add(
                "death", f"the node agent died ({node.process.returncode}) among hostile drivers"
            )
        if not phase:
            self.findings.add(
                "starved",
                f"the pod of the good driver does not run beside hostile drivers (it is {phases or 'not there'})",
            )
        if peak - before > MOST_PEAK:
            self.findings.add(
                "memory",
                f"hostile drivers made the node take more than {MOST_PEAK:.0f} MB",
                {"MB": round(peak - before)},
            )
        renewed = json.loads(lease.body).get("spec", {}).get("renewTime", "") if lease.status == 200 else ""
        age = time.time() - datetime.fromisoformat(renewed).timestamp() if renewed else 1e9
        if age > 25:
            self.findings.add(
                "starved", "the node's lease is not renewed beside hostile drivers", {"age": age}
            )

    def _take(self, tally: Tally, findings: Findings) -> None:
        self.tally.merge(tally.record())
        self.findings.merge(findings.records())

    # --- the verdict ------------------------------------------------------------------

    def look(self, name: str, example: dict[str, Any] | None = None, *, quiet: bool = False) -> Beats:
        """Note how the server is after a phase (not in the report when `quiet`); revive it if it is dead."""
        death = self.server.death()
        if death:
            self.findings.add("death", f"the server died ({death}) in {name}", example)
            self.server.revive()
        beats = self.monitor.report(self.server.pid)
        if not quiet:
            self.figures[f"beats {name}"] = asdict(beats)
        name = re.sub(r"\d+", "_", name)
        if not death and beats.worst > MOST_HEARTBEAT + self.baseline:
            self.findings.add(
                "heartbeat",
                f"the event loop was held in {name}",
                {"ms": round(beats.worst), **(example or {})},
            )
        for cause, text in tracebacks_of(self.server.new_log()):
            self.findings.add("traceback", cause, {"log": text, **(example or {})})
        return beats

    def report(self, seconds: float) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "seconds": round(seconds), "seed": self.plan.seed, "deaths": self.server.deaths, "figures": self.figures,
            "answers": self.tally.record(), "findings": [{**each, "examples": len(each["examples"])} for each in self.findings.records()],
        }  # fmt: skip

    def text(self, report: dict[str, Any]) -> str:
        """Return the report for people."""
        lines = [f"attacked for {report['seconds']} s with seed {report['seed']}"]
        for name, figures in report["figures"].items():
            shown = figures if not isinstance(figures, dict) else ", ".join(
                f"{key} {round(value, 1) if isinstance(value, float) else value}" for key, value in figures.items()
            )  # fmt: skip
            lines.append(f"  {name}: {shown}")
        lines.append(f"  answers: {json.dumps(report['answers']['by_class'])}")
        lines.append(f"  valid up to the last field: {json.dumps(report['answers']['deep_by_class'])}")
        lines.append(f"{len(report['findings'])} findings")
        lines += [f"  {each['count']:6} {each['sort']}: {each['cause']}" for each in report["findings"]]
        return "\n".join(lines) + "\n"
