"""One run: the phases in turn against one server, and the verdict.

Each phase leaves figures and findings. After each one the campaign looks at what the phase
cannot see itself: whether the process still lives, what the log says, how the heart
beat, how much memory is held. A server that died is started again, so that one death
does not hide what comes after it.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attack.findings import Findings, tracebacks_of
from attack.fuzzing import Tally
from attack.holding import summary
from attack.monitoring import Beats, Monitor
from attack.servers import Server
from attack.species import setup_requests, species_of
from attack.templates import templates
from attack.verdict import verdicts
from attack.wire import Answer, Request, ask, client_tls

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
    required: int = 0  # requests that a run must send to pass; fewer are enough where time may end it
    workers: int = 1
    seed: str = "1"
    heartbeat: float = 250.0  # ms that one may take, corrected; more where other tests run at the same time
    sample: int = 0  # so many bombs, clients and agents, chosen by the seed; 0: all
    bombs: str = ""  # regular expression: only bombs of these names
    bulk: int = 30  # MB of objects that clients list and watch without reading
    driving: float = 30.0  # seconds that a node runs among hostile drivers
    damages: int = 60  # damaged copies of the store that are started
    hold: float = 8.0  # seconds that bad clients stay
    names_holds: bool = False  # write what held the event loop, with the request


class Campaign:
    """A run against a server."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.findings = Findings()
        self.figures: dict[str, Any] = {}
        self.tally = Tally()
        shutil.rmtree(folder / "server", ignore_errors=True)  # of an earlier run
        self.holds = folder / "holds.jsonl" if plan.names_holds else None
        self.server = Server(folder / "server", holds=self.holds)
        self.server.start()
        self.monitor = Monitor(self.server.port, self.server.pid)
        time.sleep(1.0)
        quiet = self.monitor.report(self.server.pid)
        # What a heartbeat takes here when nothing happens; a slow machine may be that much slower.
        self.baseline = quiet.worst
        self.figures["quiet"] = asdict(quiet)
        self.heartbeat: dict[str, Any] = {
            "worst": 0.0, "worst_raw": 0.0, "place": "no phase", "limit": plan.heartbeat + self.baseline,
        }  # fmt: skip

    def close(self) -> None:
        """End everything that was started."""
        self.monitor.stop()
        self.server.stop()

    async def ask(self, request: Request) -> Answer:
        """Send one request; status 0 if there is no answer."""
        try:
            return await ask(self.server.port, request, client_tls(), BOMB_SECONDS)
        except OSError:
            return Answer(0)

    async def prepare(self) -> None:
        """Store objects of every kind."""
        for request in setup_requests(species_of(templates()), "corpus"):
            await self.ask(request)

    def restart(self) -> None:
        """Start the server afresh, so that what one attack took is not charged to the next."""
        self.server.kill()
        self.server.start()
        self.monitor.report(self.server.pid)

    def take(self, tally: Tally, findings: Findings) -> None:
        """Add what a part of the run has counted and found."""
        self.tally.merge(tally.record())
        self.findings.merge(findings.records())

    def chosen(self, names: list[str]) -> set[str]:
        """Return the names that this run is about: all, or a sample by the seed."""
        if not self.plan.sample or self.plan.sample >= len(names):
            return set(names)
        return set(random.Random(f"{self.plan.seed}/sample").sample(names, self.plan.sample))

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
        if not death and beats.worst > self.heartbeat["worst"]:
            self.heartbeat.update(worst=beats.worst, worst_raw=beats.worst_raw, place=name)
        name = re.sub(r"\d+", "_", name)
        if not death and beats.worst > self.heartbeat["limit"]:
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
            "seconds": round(seconds), "seed": self.plan.seed, "deaths": self.server.deaths, "requests": self.plan.required,
            "heartbeat": self.heartbeat, "figures": self.figures,
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
        if self.holds is not None and self.holds.exists():
            lines += ["what held the event loop longest:", *(f"  {line}" for line in summary(self.holds))]
        judged = verdicts(report)
        lines += ["", *(each.line() for each in judged)]
        lines.append(
            "PASS: every limit holds" if all(each.holds for each in judged) else "FAIL: a limit does not hold"
        )
        return "\n".join(lines) + "\n"
