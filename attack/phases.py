"""The phases of a run, each a function of the campaign."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from attack import agents, drivers, files, webhooks
from attack.bombs import bombs
from attack.campaign import BOMB_SECONDS, KEPT_BODY, MOST_PEAK, RESTART_ABOVE, SETTLING, Campaign
from attack.clients import BULK, CLIENTS, drain, fill
from attack.distinct import distinct
from attack.findings import cause_of, expected_failure, tracebacks_of
from attack.fuzzing import Judge, fuzz, grow
from attack.monitoring import shares_of
from attack.servers import resident_bytes
from attack.species import species_of
from attack.templates import templates
from attack.verdict import MOST_GROWTH
from attack.wire import Answer, Connection, Request, client_tls, json_request


def fuzz_phase(campaign: Campaign) -> None:
    """Grow the corpus, warm up, send the requests; memory is compared before and after the last part."""
    plan = campaign.plan
    species = species_of(templates())
    judge = Judge(f"{plan.seed}/grow")
    began = time.monotonic()
    asyncio.run(grow(campaign.server.port, species, plan.seed, plan.tries, judge))
    campaign.take(judge.tally, judge.findings)
    refused = [
        name
        for name in judge.tally.by_shape
        if name.startswith("setup") and name.split()[1] not in ("2xx", "409")
    ]
    if refused:
        campaign.findings.add("templates", f"templates are not valid any more: {refused}")
    campaign.figures["corpus"] = sum(len(each.bodies) for each in species)
    campaign.look("corpus")
    warm = plan.requests // 10
    campaign.take(
        *fuzz(campaign.server.port, species, f"{plan.seed}/warm", warm, plan.seconds / 10, plan.workers)
    )
    time.sleep(SETTLING)
    first = campaign.look("warm up")
    meter = _Meter(campaign)
    campaign.take(
        *fuzz(
            campaign.server.port, species, plan.seed, plan.requests - warm, plan.seconds * 0.9, plan.workers
        )
    )
    elapsed = time.monotonic() - began
    costs = meter.read(campaign)
    time.sleep(SETTLING)
    last = campaign.look("fuzz")
    growth = last.memory - first.memory
    campaign.figures["fuzz figures"] = {
        "requests": campaign.tally.total, "requests per second": round(campaign.tally.total / elapsed), "seconds": round(elapsed),
        "valid share": round(campaign.tally.deep_by_class.total() / max(1, campaign.tally.total), 3),
        "memory growth MB": round(growth, 1), "memory peak MB": round(last.memory_peak, 1), **costs,
    }  # fmt: skip


class _Meter:
    """Measures what a request costs the server and the attacker: which of them is the limit of the rate."""

    def __init__(self, campaign: Campaign) -> None:
        self._requests, self._began = campaign.tally.total, time.monotonic()
        self._server, self._attacker = shares_of(campaign.server.pid).ran, _children_ran()

    def read(self, campaign: Campaign) -> dict[str, float]:
        """Return the costs since the beginning; of no meaning after a death."""
        n_requests = max(1, campaign.tally.total - self._requests)
        server = shares_of(campaign.server.pid).ran - self._server
        return {
            "requests per second at the end": round(n_requests / (time.monotonic() - self._began)),
            "server CPU ms a request": round(1_000 * server / n_requests, 2),
            "attacker CPU ms a request": round(1_000 * (_children_ran() - self._attacker) / n_requests, 2),
        }


def _children_ran() -> float:
    """Return the CPU seconds of worker processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def bombs_phase(campaign: Campaign) -> None:
    """Send every bomb on its own and look after each."""
    asyncio.run(campaign.prepare())
    table = {}
    chosen = campaign.chosen([name for name, _ in bombs()])
    for name, request in bombs():
        if name not in chosen or (campaign.plan.bombs and not re.search(campaign.plan.bombs, name)):
            continue
        before = campaign.monitor.report(campaign.server.pid)
        began = time.monotonic()
        answer = asyncio.run(campaign.ask(request))
        took = time.monotonic() - began
        if answer.status == 0 and took >= BOMB_SECONDS and not campaign.server.death():
            place = campaign.server.abort()
            campaign.findings.add(
                "hang",
                f"bomb {re.sub(r'[0-9]+', '_', name)} is not answered in {BOMB_SECONDS:.0f} s: {place}",
                {"bomb": name},
            )
            print(f"  {name}: no answer, in {place}", file=sys.stderr, flush=True)
            table[name] = [0, round(took), 0, 0]
            campaign.server.start()
            campaign.monitor.report(campaign.server.pid)
            continue
        example = {
            "request": request.record()
            if len(request.body) < KEPT_BODY
            else {**request.record(), "body": "", "bomb": name}
        }
        beats = campaign.look(f"bomb {name}", example, quiet=True)
        _judge_bomb(campaign, name, request, answer, beats.memory_peak - before.memory, example)
        table[name] = [
            answer.status,
            round(took, 2),
            round(beats.worst),
            round(beats.memory_peak - before.memory),
        ]
        if beats.memory - campaign.figures["quiet"]["memory"] > RESTART_ABOVE:
            campaign.restart()
    campaign.figures["bombs"] = len(table)
    slowest = sorted(table.items(), key=lambda each: -each[1][2])
    campaign.figures["bombs by heartbeat"] = dict(slowest[:10])
    (campaign.folder / "bombs.json").write_text(json.dumps(table, indent=1))


def _judge_bomb(
    campaign: Campaign, name: str, request: Request, answer: Answer, growth: float, example: dict[str, Any]
) -> None:
    kind = re.sub(r"\d+", "_", name)
    request.shape = f"bomb {kind}"
    campaign.tally.count(request, answer)
    if answer.status == 0:
        campaign.findings.add("silence", f"no answer to bomb {kind}", example)
    elif answer.status >= 500 and expected_failure(answer.status, answer.message()) is None:
        campaign.findings.add(
            "status", cause_of(request, answer), {**example, "answer": answer.message()[:300]}
        )
    if growth > MOST_PEAK:
        campaign.findings.add(
            "memory", f"bomb {kind} took more than {MOST_PEAK:.0f} MB", {"MB": round(growth), **example}
        )


def clients_phase(campaign: Campaign) -> None:
    """Let each sort of bad client come, and look at what it costs while it is there and after."""
    asyncio.run(campaign.prepare())
    table = {}
    few = campaign.plan.sample // 20
    for name, client in list(CLIENTS.items())[: few or None]:
        campaign.restart()
        if name in BULK:
            asyncio.run(fill(campaign.server.port, campaign.plan.bulk))
        time.sleep(0.5)
        before = campaign.monitor.report(campaign.server.pid)
        accepted = asyncio.run(client(campaign.server.port, campaign.plan.hold))
        beats = campaign.look(f"client {name}", {"client": name}, quiet=True)
        growth = beats.memory_peak - before.memory
        table[name] = {
            "accepted": accepted,
            "heartbeat ms": round(beats.worst),
            "memory MB": round(growth),
        }
        if growth > MOST_PEAK:
            campaign.findings.add(
                "memory", f"client {name} took more than {MOST_PEAK:.0f} MB", {"MB": round(growth)}
            )
    asyncio.run(drain(campaign.server.port))
    campaign.figures["clients"] = table


def agents_phase(campaign: Campaign) -> None:
    """Ask for logs and commands of pods whose node agent is hostile."""
    campaign.restart()
    asyncio.run(_ask_agents(campaign))


async def _ask_agents(campaign: Campaign) -> None:
    table = {}
    async with agents.Agents(campaign.folder) as hostile:
        for request in agents.objects(hostile.port):
            await campaign.ask(request)
        chosen = campaign.chosen([name for name, _ in agents.questions()])
        for name, request in agents.questions():
            if name not in chosen:
                continue
            before = campaign.monitor.report(campaign.server.pid)
            found = await agents.ask_a_few(campaign.server.port, request)
            example = {"request": request.record(), "agent": name}
            beats = campaign.look(f"agent {name}", example, quiet=True)
            growth = beats.memory_peak - before.memory
            table[name] = [sorted({each.status for each in found}), round(beats.worst), round(growth)]
            if growth > MOST_PEAK:
                campaign.findings.add(
                    "memory",
                    f"agent {name} made the server take more than {MOST_PEAK:.0f} MB",
                    {"MB": growth},
                )
            if hostile.reached:
                campaign.findings.add(
                    "redirect", f"the server spoke to an internal service for agent {name}", example
                )
                hostile.reached = 0
    campaign.figures["agents"] = len(table)
    (campaign.folder / "agents.json").write_text(json.dumps(table, indent=1))


def webhooks_phase(campaign: Campaign) -> None:
    """Write objects that a hostile webhook is asked about."""
    campaign.restart()
    asyncio.run(_ask_webhooks(campaign))


async def _ask_webhooks(campaign: Campaign) -> None:
    table = {}
    async with webhooks.Webhooks(campaign.folder) as hostile:
        chosen = campaign.chosen(list(webhooks.NAMES))
        for name in sorted(chosen):
            for mutating in (True, False):
                made = await campaign.ask(hostile.configuration(name, mutating=mutating))
                before = campaign.monitor.report(campaign.server.pid)
                requests = list(webhooks.questions(name))
                found = await asyncio.gather(*(campaign.ask(each) for each in requests))
                beats = campaign.look(f"webhook {name}", {"webhook": name}, quiet=True)
                await campaign.ask(hostile.removal(name, mutating=mutating))
                growth = beats.memory_peak - before.memory
                table[f"{name} {'mutating' if mutating else 'validating'}"] = [
                    made.status, sorted({each.status for each in found}), round(beats.worst), round(growth),
                ]  # fmt: skip
                if growth > MOST_PEAK:
                    campaign.findings.add(
                        "memory",
                        f"webhook {name} made the server take more than {MOST_PEAK:.0f} MB",
                        {"MB": growth},
                    )
                for request, answer in zip(requests, found, strict=True):
                    _judge_webhook(campaign, name, request, answer)
        campaign.figures["webhooks"] = {"answers": len(table), "asked": hostile.asked}
    (campaign.folder / "webhooks.json").write_text(json.dumps(table, indent=1))


def _judge_webhook(campaign: Campaign, name: str, request: Request, answer: Answer) -> None:
    campaign.tally.count(request, answer)
    if answer.status == 0:
        campaign.findings.add("silence", f"no answer where webhook {name} is asked", {"webhook": name})
    elif answer.status >= 500 and "could not be handled" in answer.message():
        # Other failures are those of the webhook, which are a 500 upstream as well.
        campaign.findings.add("status", cause_of(request, answer), {"request": request.record()})
    if b"\r\nset-cookie:" in answer.head.lower():
        campaign.findings.add("headers", f"webhook {name} wrote a header of the answer", {"webhook": name})


def drivers_phase(campaign: Campaign) -> None:
    """Run a node among hostile drivers; the pod of the good one must start all the same."""
    campaign.restart()
    with tempfile.TemporaryDirectory(prefix="da-") as short:  # paths of sockets are short
        folder = Path(short)
        (folder / "s").mkdir()
        node = drivers.Node(campaign.server, folder)
        context = multiprocessing.get_context("spawn")
        hostile = context.Process(
            target=drivers.serve_hostile, args=(str(node.registry), str(folder / "s"), 300.0), daemon=True
        )
        hostile.start()
        try:
            asyncio.run(_drive(campaign, node))
        finally:
            node.stop()
            hostile.kill()
            hostile.join(10)
        for cause, text in tracebacks_of(node.log.read_text(errors="replace")):
            campaign.findings.add("traceback", f"node: {cause}", {"log": text})
        shutil.copy(node.log, campaign.folder / "node.log")


async def _drive(campaign: Campaign, node: drivers.Node) -> None:
    for _ in range(200):
        if (node.root / "serving").exists() and (
            await campaign.ask(Request("GET", f"/api/v1/nodes/{drivers.NODE}"))
        ).status == 200:
            break
        await asyncio.sleep(0.1)
    before = resident_bytes(node.process.pid) / 1e6
    for name in [*drivers.names(), "good"]:
        pod, claim, status = drivers.pod_requests(name, f"{name}.example.com")
        uid = json.loads((await campaign.ask(pod)).body)["metadata"]["uid"]
        await campaign.ask(claim)
        patch = drivers.allocation(f"{name}.example.com", f"with-{name}", uid)
        await campaign.ask(json_request("PATCH", status, patch, content="application/merge-patch+json"))
    peak = phase = 0.0
    began, phases = time.monotonic(), ""
    while time.monotonic() - began < campaign.plan.driving:
        await asyncio.sleep(0.25)
        peak = max(peak, resident_bytes(node.process.pid) / 1e6)
        answer = await campaign.ask(Request("GET", f"/api/v1/namespaces/{drivers.NAMESPACE}/pods/with-good"))
        phases = json.loads(answer.body).get("status", {}).get("phase", "")
        if phases == "Running" and not phase:
            phase = time.monotonic() - began
    lease = await campaign.ask(
        Request("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{drivers.NODE}")
    )
    campaign.figures["drivers"] = {
        "good pod running after s": round(phase, 1),
        "node memory MB": round(peak - before),
    }
    if node.process.poll() is not None:
        campaign.findings.add(
            "death", f"the node agent died ({node.process.returncode}) among hostile drivers"
        )
    if not phase:
        campaign.findings.add(
            "starved",
            f"the pod of the good driver does not run beside hostile drivers (it is {phases or 'not there'})",
        )
    if peak - before > MOST_PEAK:
        campaign.findings.add(
            "memory",
            f"hostile drivers made the node take more than {MOST_PEAK:.0f} MB",
            {"MB": round(peak - before)},
        )
    renewed = json.loads(lease.body).get("spec", {}).get("renewTime", "") if lease.status == 200 else ""
    age = time.time() - datetime.fromisoformat(renewed).timestamp() if renewed else 1e9
    if age > 25:
        campaign.findings.add(
            "starved", "the node's lease is not renewed beside hostile drivers", {"age": age}
        )


def files_phase(campaign: Campaign) -> None:
    """Damage the files of a stopped server and of a stopped node, one at a time, and start them."""
    campaign.figures["files"] = files.attack_files(
        campaign.folder, campaign.findings, campaign.plan.seed, campaign.plan.damages
    )


def distinct_phase(campaign: Campaign) -> None:
    """Send long texts that are all different, and look at what the server keeps of them."""
    asyncio.run(campaign.prepare())
    table = {}
    for name, requests in distinct():
        campaign.restart()
        time.sleep(0.5)
        before = campaign.monitor.report(campaign.server.pid)
        judge = Judge(f"{campaign.plan.seed}/distinct")
        line = Connection(lambda requests=requests: next(requests, None), judge.see, 1)
        try:
            asyncio.run(line.run(campaign.server.port, client_tls()))
        except OSError:
            pass  # `look` says why
        campaign.take(judge.tally, judge.findings)
        time.sleep(1.0)
        beats = campaign.look(f"distinct {name}", {"distinct": name}, quiet=True)
        kept = beats.memory - before.memory
        table[name] = {
            "requests": judge.tally.total,
            "heartbeat ms": round(beats.worst),
            "kept MB": round(kept),
            "peak MB": round(beats.memory_peak - before.memory),
        }
        if kept > MOST_GROWTH:
            campaign.findings.add(
                "memory",
                f"the server keeps more than {MOST_GROWTH:.0f} MB of distinct {name}",
                {"MB": round(kept)},
            )
    campaign.figures["distinct"] = table


def soak_phase(campaign: Campaign) -> None:
    """Send requests for `--minutes`, in twelve parts, and compare memory after the second and the last."""
    plan = campaign.plan
    species = species_of(templates())
    memory = []
    for part in range(SOAK_PARTS):
        found = fuzz(
            campaign.server.port,
            species,
            f"{plan.seed}/soak/{part}",
            10**9,
            plan.seconds / SOAK_PARTS,
            plan.workers,
        )
        campaign.take(*found)
        time.sleep(SETTLING)
        memory.append(round(campaign.look(f"soak {part}", quiet=True).memory, 1))
    campaign.figures["soak"] = {
        "requests": campaign.tally.total,
        "seconds": round(plan.seconds),
        "memory MB": memory,
    }
    growth = memory[-1] - memory[1]
    if growth > MOST_GROWTH:
        campaign.findings.add(
            "memory", f"memory grew by more than {MOST_GROWTH:.0f} MB while soaking", {"MB": memory}
        )


PHASES: dict[str, Callable[[Campaign], None]] = {
    "fuzz": fuzz_phase,
    "bombs": bombs_phase,
    "clients": clients_phase,
    "agents": agents_phase,
    "webhooks": webhooks_phase,
    "drivers": drivers_phase,
    "files": files_phase,
    "distinct": distinct_phase,
    "soak": soak_phase,
}
BY_DEFAULT = [name for name in PHASES if name != "soak"]  # an hour of it is asked for by name
SOAK_PARTS = 12


def run(campaign: Campaign, names: list[str]) -> None:
    """Run the phases of these names in turn."""
    for name in names:
        PHASES[name](campaign)
        campaign.look(f"after {name}")
