"""One run: a fresh stack, a filled cluster, the load, and what it cost."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field

from bench import stacks
from bench.scheduling import driving, judging, preparing
from bench.scheduling.contenders import Contender
from bench.scheduling.workloads import Workload
from bench.stacks import Stack

# name of a process -> what it is called in tables
PARTS = {
    "scheduler": "scheduler",
    "kube-apiserver": "server",
    "dray server": "server",
    "etcd": "etcd",
    "kube-controller-manager": "controllers",
    "dray controllers": "controllers",
}


@dataclass
class Outcome:
    """What one run gave; a run that failed has only an error."""

    workload: str
    contender: str
    round: int
    nodes: int
    pods: int  # of a burst, or in flight
    error: str = ""
    bound: int = 0
    seconds: float = 0.0
    pods_per_second: float = 0.0
    steady: float = 0.0  # pods/s without beginning and end
    p50: float = 0.0  # seconds from POST to bound
    p99: float = 0.0
    first: float = 0.0  # seconds until the first pod was bound
    cpu_ms: dict[str, float] = field(default_factory=dict)  # part -> CPU milliseconds per bound pod
    megabytes: dict[str, float] = field(default_factory=dict)  # part -> most that it had resident
    ready: float = 0.0  # seconds from the start of the scheduler until it had bound its first pod
    other_load: float = 0.0  # share of the machine that was busy with something else
    unexplained: int = 0  # impossible pods without a condition, 15 s after the others were bound
    problems: list[str] = field(default_factory=list)


async def run_once(contender: Contender, workload: Workload, round_number: int, seconds: float) -> Outcome:
    """Measure one contender on one workload; `seconds` are those of steady states."""
    outcome = Outcome(workload.name, contender.name, round_number, workload.n_nodes, workload.n_pods)
    with contender.start() as stack:
        await preparing.fill(stack, workload)
        outcome.ready = await preparing.wake(stack, contender, workload)
        drive = driving.Drive(stack, workload, seconds)
        async with drive.following():
            before = _Used(stack)
            await drive.run()
            _note(outcome, drive, before, _Used(stack))
            outcome.megabytes = _peaks(stack)
            if contender.explains:
                outcome.unexplained = await drive.explanations()
            stack.stop_one("scheduler")  # nothing may change while the checker looks
            await asyncio.sleep(0.5)
            outcome.problems = await judging.judge_state(stack.port, workload)
        outcome.problems += judging.judge_history(workload, drive.claims_before, drive.claim_lines)
    return outcome


class _Used:
    """CPU seconds so far: of each part, of the harness (`load`), of the whole machine."""

    def __init__(self, stack: Stack) -> None:
        self.machine, self.at = stacks.machine_busy(), time.perf_counter()
        self.parts = {PARTS[name]: stack.cpu(name) for name in stack.processes}
        self.parts["load"] = time.process_time()


def _note(outcome: Outcome, drive: driving.Drive, before: _Used, after: _Used) -> None:
    speed = driving.rates(drive)
    outcome.bound, outcome.seconds = len(drive.bound), drive.end - drive.begin
    outcome.pods_per_second, outcome.steady, outcome.p50, outcome.p99 = speed
    outcome.first = min(drive.bound.values()) - drive.begin
    used = {part: after.parts[part] - before.parts[part] for part in after.parts}
    outcome.cpu_ms = {part: seconds * 1000 / outcome.bound for part, seconds in used.items()}
    others = after.machine - before.machine - sum(used.values())
    outcome.other_load = max(0.0, others) / (after.at - before.at) / (os.cpu_count() or 1)


def _peaks(stack: Stack) -> dict[str, float]:
    return {
        PARTS[name]: stacks.resident_of(process.pid, "VmHWM:") for name, process in stack.processes.items()
    }
