"""One run per workload and contender, and the table that comes of them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench import stacks
from bench.scheduling.following import follow
from bench.scheduling.workloads import API, BIG_AND_NEW, DRIVER, NOWHERE, WORKLOADS, Workload, node_name
from bench.server.load import drive, prepared
from bench.stacks import Stack, kubernetes_binaries

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
import checker

Object = dict[str, Any]
NAMESPACE, SCHEDULER = "bench", "contender"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PATIENCE = 120.0  # seconds without any new binding until a run counts as stuck

CONFIGURATION = """apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: "%s", qps: 5000, burst: 5000}
leaderElection: {leaderElect: false}
profiles: [{schedulerName: %s}]
"""


# --- contenders -----------------------------------------------------------------


def _kube_scheduler(stack: Stack) -> list[object]:
    binaries = kubernetes_binaries()
    assert binaries is not None
    config = stack.folder / "scheduler.yaml"
    config.write_text(CONFIGURATION % (stack.kubeconfig, SCHEDULER))
    port = stacks.free_ports(1)[0]
    return [
        binaries / "kube-scheduler", f"--config={config}", "--bind-address=127.0.0.1",
        f"--secure-port={port}", f"--cert-dir={stack.folder}/scheduler-certs",
    ]  # fmt: skip


def _dray_scheduler(stack: Stack) -> list[object]:
    return [sys.executable, "-m", "dray", "scheduler", "--kubeconfig", stack.kubeconfig, "--name", SCHEDULER]


def _floor(stack: Stack) -> list[object]:
    return [sys.executable, "-m", "bench.scheduling.floor", stack.port, SCHEDULER]


@dataclass(frozen=True)
class Contender:
    """A scheduler on an API server."""

    name: str
    start_stack: Callable[..., AbstractContextManager[Stack]]
    durable: bool
    command: Callable[[Stack], list[object]]
    needs_kubernetes: bool


# etcd is spared its fsync; dray's server writes durably as always.
CONTENDERS = [
    Contender("kube-scheduler", stacks.kubernetes, False, _kube_scheduler, True),
    Contender("floor", stacks.kubernetes, False, _floor, True),
    Contender("dray on kube-apiserver", stacks.kubernetes, False, _dray_scheduler, True),
    Contender("dray on dray server", stacks.dray, True, _dray_scheduler, False),
]


# --- one run --------------------------------------------------------------------


@dataclass
class Outcome:
    """What one run gave."""

    pods_per_second: float
    cpu_ms: float  # of the scheduler, per pod
    p50: float  # seconds from POST to bound
    p99: float
    megabytes: float  # most that the scheduler had resident
    other_load: float
    problems: list[str]


@dataclass
class Watching:
    """What the harness saw; the checker looks at every change of a claim."""

    ledger: checker.Ledger
    bound_at: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def pod(self, kind: str, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if pod["spec"].get("nodeName") and name not in self.bound_at:
            self.bound_at[name] = time.perf_counter()

    def claim(self, kind: str, claim: Object) -> None:
        self.problems += self.ledger.see(claim, is_gone=kind == "DELETED")


async def run_once(contender: Contender, workload: Workload, n_nodes: int, n_pods: int) -> Outcome:
    with contender.start_stack(durable=contender.durable) as stack:
        slices = list(workload.slices(n_nodes))
        await _prepare(stack, workload, slices, n_nodes, n_pods)
        watching = Watching(checker.Ledger(checker.Inventory(slices)))
        async with _following(stack.port, watching):
            stack.start("scheduler", *contender.command(stack))
            await _warm(stack, watching)
            return await _burst(stack, workload, watching, slices, n_pods)


async def _prepare(stack: Stack, workload: Workload, slices: list[Object], n_nodes: int, n_pods: int) -> None:
    cel = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    await drive(
        stack.port,
        [
            prepared("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}),
            prepared(
                "POST", "/apis/resource.k8s.io/v1/deviceclasses",
                {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [cel]}},
            ),
        ],
        1,
    )  # fmt: skip
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"capacity": room, "allocatable": room, "conditions": ready}
    names = [node_name(number) for number in range(n_nodes)]
    nodes = [
        {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "status": status}
        for name in names
    ]
    await drive(stack.port, [prepared("POST", "/api/v1/nodes", node) for node in nodes], 16)
    path = "/apis/resource.k8s.io/v1/resourceslices"
    await drive(stack.port, [prepared("POST", path, each) for each in slices], 16)
    wanted = [_claim(f"claim-{i}", workload.spec_of(i)) for i in range(n_pods)]
    taken = list(_taken(workload, names))
    claims = [*wanted, *(claim for claim, _ in taken)]
    await drive(stack.port, [prepared("POST", CLAIMS, claim) for claim in claims], 16)
    statuses = [
        prepared("PUT", f"{CLAIMS}/{claim['metadata']['name']}/status", {**claim, "status": status})
        for claim, status in taken
    ]
    await drive(stack.port, statuses, 16)


def _claim(name: str, spec: Object) -> Object:
    metadata: Object = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def _taken(workload: Workload, names: list[str]) -> Iterator[tuple[Object, Object]]:
    """Yield a claim and its status for each node that is in use already."""
    for name in names if workload.taken else ():
        wish = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": workload.taken}}
        claim = _claim(f"taken-{name}", {"devices": {"requests": [wish]}})
        claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
        results = [
            {"request": "gpu", "driver": DRIVER, "pool": name, "device": f"gpu-{i}"}
            for i in range(workload.taken)
        ]
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
        user = {"resource": "pods", "name": f"old-{name}", "uid": f"uid-{name}"}
        yield claim, {"allocation": allocation, "reservedFor": [user]}


@contextlib.asynccontextmanager
async def _following(port: int, watching: Watching) -> Any:
    tasks = [
        asyncio.create_task(follow(port, "/api/v1/pods", watching.pod)),
        asyncio.create_task(follow(port, "/apis/resource.k8s.io/v1/resourceclaims", watching.claim)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


def _pod(name: str, claim: str = "") -> bytes:
    container: Object = {"name": "main", "image": "registry.example/pause"}
    spec: Object = {"schedulerName": SCHEDULER, "containers": [container], "terminationGracePeriodSeconds": 0}
    if claim:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return prepared("POST", PODS, {"metadata": {"name": name}, "spec": spec})


async def _warm(stack: Stack, watching: Watching) -> None:
    """Wait until the scheduler binds a pod without claims."""
    await drive(stack.port, [_pod("warm")], 1)
    deadline = time.perf_counter() + 60
    while "warm" not in watching.bound_at:
        stack.check()
        if time.perf_counter() > deadline:
            raise TimeoutError("the scheduler bound nothing within a minute")
        await asyncio.sleep(0.05)


async def _burst(
    stack: Stack, workload: Workload, watching: Watching, slices: list[Object], n_pods: int
) -> Outcome:
    feasible = {f"pod-{i}" for i in range(n_pods) if not workload.is_impossible(i)}
    pid = stack.processes["scheduler"].pid
    await asyncio.sleep(0.5)
    cpu, busy, own = stacks.cpu_of(pid), stacks.machine_busy(), stack.cpu() + time.process_time()
    started = time.perf_counter()
    sent: dict[str, float] = {}

    def requests() -> Iterator[bytes]:
        for number in range(n_pods):
            request = _pod(f"pod-{number}", f"claim-{number}")
            sent[f"pod-{number}"] = time.perf_counter()
            yield request

    await drive(stack.port, requests(), 8)  # type: ignore[arg-type]
    last, n_before = time.perf_counter(), 0
    while not feasible <= watching.bound_at.keys():
        stack.check()
        now = time.perf_counter()
        if len(watching.bound_at) > n_before:
            last, n_before = now, len(watching.bound_at)
        if now - last > PATIENCE:
            raise TimeoutError(f"{len(feasible - watching.bound_at.keys())} pods of {n_pods} were not bound")
        await asyncio.sleep(0.02)
    end = max(watching.bound_at[name] for name in feasible)
    cpu = stacks.cpu_of(pid) - cpu
    seconds = time.perf_counter() - started
    others = stacks.machine_busy() - busy - (stack.cpu() + time.process_time() - own)
    waits = sorted(watching.bound_at[name] - sent[name] for name in feasible)
    problems = watching.problems + await _judge(stack, slices)
    problems += [f"{name} was bound but cannot be" for name in watching.bound_at.keys() - feasible - {"warm"}]
    return Outcome(
        len(feasible) / (end - started),
        cpu * 1000 / n_pods,
        waits[len(waits) // 2],
        waits[int(len(waits) * 0.99)],
        stacks.resident_of(pid, "VmHWM:"),
        max(0.0, others) / seconds / (os.cpu_count() or 1),
        problems,
    )


async def _judge(stack: Stack, slices: list[Object]) -> list[str]:
    """Let the independent checker look at the end state."""
    import msgspec

    paths = ["/apis/resource.k8s.io/v1/deviceclasses", CLAIMS, PODS, "/api/v1/nodes"]
    found = [
        msgspec.json.decode((await drive(stack.port, [prepared("GET", path)], 1)).answers[0])["items"]
        for path in paths
    ]
    classes, claims, pods, nodes = found
    return checker.check_state(
        slices=slices, classes=classes, claims=claims, pods=pods, nodes=nodes, matches=matches
    )


def matches(expression: str, driver: str, device: Object) -> bool:
    """Tell what the bench's own expressions mean, without CEL."""
    attributes = device.get("attributes") or {}
    if expression.startswith("device.driver =="):
        return driver == DRIVER
    if expression == BIG_AND_NEW:
        is_new = int(attributes["driverVersion"]["version"].split(".")[0]) >= 560
        return is_new and checker.amount(device["capacity"]["memory"]["value"]) > checker.amount("60Gi")
    if expression == NOWHERE:
        return False
    return expression.endswith(f'.profile == "{attributes["profile"]["string"]}"')


# --- all runs -------------------------------------------------------------------

Outcomes = dict[tuple[str, str], list[Outcome]]  # (workload, contender) -> rounds


def run_all(workloads: list[Workload], n_nodes: int, n_pods: int, rounds: int) -> Outcomes:
    """Run everything, contenders in turn."""
    has_kubernetes = kubernetes_binaries() is not None
    if not has_kubernetes:
        sys.stderr.write(
            "scheduling: no Kubernetes (tools/peers/build makes it); only dray on its own server runs\n"
        )
    outcomes: Outcomes = {}
    for workload in workloads:
        n_mine = min(n_pods, int(n_nodes * workload.pods_per_node))
        for _ in range(rounds):
            for contender in CONTENDERS:
                if (contender.needs_kubernetes and not has_kubernetes) or (
                    contender.name == "floor" and not workload.has_floor
                ):
                    continue
                outcome = uvloop.run(run_once(contender, workload, n_nodes, n_mine))
                outcomes.setdefault((workload.name, contender.name), []).append(outcome)
                sys.stderr.write(
                    f"scheduling: {workload.name}: {contender.name}: {outcome.pods_per_second:.0f} pods/s,"
                    f" {outcome.cpu_ms:.1f} ms of CPU a pod, others {outcome.other_load:.0%},"
                    f" {len(outcome.problems)} problems {outcome.problems[:3] or ''}\n"
                )
    return outcomes


def report(outcomes: Outcomes, workloads: list[Workload], n_nodes: int, n_pods: int, rounds: int) -> str:
    """Write the table."""
    names = [each.name for each in CONTENDERS if any(key[1] == each.name for key in outcomes)]
    binaries = kubernetes_binaries()
    peers = f"Kubernetes {binaries.name}" if binaries is not None else "no Kubernetes here, so dray ran alone"
    skipped = [each.name for each in CONTENDERS if each.name not in names]
    lines = [
        "## Scheduling",
        "",
        f"{peers}; Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()}). {n_nodes} nodes"
        f" with ten devices, a burst of up to {n_pods} pods with a claim each, fresh servers for every run, contenders"
        f" in turn, {rounds} round{'s' if rounds > 1 else ''}. *Floor* is a mock that decides nothing and makes the"
        " same writes: the limit that the API server sets. etcd runs without fsync, `dray server` durably. Pods/s:"
        " first pod created to last one bound. *Other load* is the share of the machine that processes outside of the"
        " run used; where it is high, only CPU a pod says much. A checker followed every change of every claim and"
        " judged the end states.",
        "",
        "| workload | contender | pods/s | CPU ms a pod | p50 s | p99 s | scheduler MB | other load | problems |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for workload in workloads:
        for name in names:
            found = outcomes.get((workload.name, name))
            if not found:
                continue

            def median(part: str, found: list[Outcome] = found) -> float:
                return statistics.median(getattr(each, part) for each in found)

            lines.append(
                f"| {workload.about} | {name} | {median('pods_per_second'):.0f} | {median('cpu_ms'):.1f} |"
                f" {median('p50'):.2f} | {median('p99'):.2f} | {median('megabytes'):.0f} |"
                f" {median('other_load'):.0%} | {sum(len(each.problems) for each in found)} |"
            )
    if skipped:
        lines += ["", f"Not run for want of binaries: {', '.join(skipped)} (`tools/peers/build` makes them)."]
    large = "python -m bench.scheduling --nodes 500 --pods 2500"
    lines += ["", f"Larger sizes (`{large}`, `--nodes 5000`) are not part of `make bench`."]
    return "\n".join(lines)


def run(*, quick: bool) -> str:
    """Measure the default sizes and return the section."""
    workloads = [each for each in WORKLOADS if each.name in ("half", "impossible")] if quick else WORKLOADS
    n_nodes, n_pods = (20, 40) if quick else (100, 200)
    outcomes = run_all(workloads, n_nodes, n_pods, rounds=1)
    _fail_on_problems(outcomes)
    return report(outcomes, workloads, n_nodes, n_pods, 1)


def _fail_on_problems(outcomes: Outcomes) -> None:
    wrong = [(key, each.problems[:5]) for key, rounds in outcomes.items() for each in rounds if each.problems]
    if wrong:
        raise RuntimeError(f"wrong allocations: {wrong}")


def main() -> None:
    """Run chosen workloads at chosen sizes and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.scheduling")
    names = [each.name for each in WORKLOADS]
    parser.add_argument("--workload", action="append", choices=names, help="default: all")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=200, help="at most so many, if the devices suffice")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended, too
    workloads = [each for each in WORKLOADS if not args.workload or each.name in args.workload]
    outcomes = run_all(workloads, args.nodes, args.pods, args.rounds)
    sys.stdout.write(report(outcomes, workloads, args.nodes, args.pods, args.rounds) + "\n")
    _fail_on_problems(outcomes)
