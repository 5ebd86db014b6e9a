"""How fast a node is: pods from bound to running, prepare latency, memory of agent and driver.

Three processes, as in real life: `dray server` in memory, the agent, and a driver on the SDK that does
nothing; the bench itself is the fourth. Pods are created bound to the node while the agent is
down; the clock runs from the agent's first sight of them until the API server has them all
as Running.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dray.api.podspec import RunPod
from dray.api.rpc.generated import dra_v1_pb2, dra_v1_pb2_grpc
from dray.client import Client, Informer
from dray.client.resources import CLAIMS, PODS

CHILDREN = Path(__file__).with_name("children.py")
NODE, DRIVER = "bench", "bench.example.com"


def run(quick: bool) -> str:
    """Measure and return the section."""
    folder = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    try:
        return asyncio.run(_measure(folder, quick))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Children:
    """Processes that are ended when the bench is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen] = []

    def start(self, name: str, *line: str) -> subprocess.Popen:
        log = (self.folder / f"{name}.log").open("w")
        process = subprocess.Popen([sys.executable, *line], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen) -> None:
        process.terminate()
        process.wait(10)
        self.processes.remove(process)

    def end_all(self) -> None:
        for process in list(self.processes):
            self.end(process)


async def _measure(folder: Path, quick: bool) -> str:
    children = Children(folder)
    kubeconfig = folder / "kubeconfig"
    children.start("server", "-m", "dray", "server", "--in-memory", "--data", str(folder), "--secure-port", "0",
                   "--kubeconfig", str(kubeconfig))  # fmt: skip
    try:
        await _until(lambda: kubeconfig.exists() and kubeconfig.stat().st_size)
        async with Client.connect(str(kubeconfig)) as client:
            await _until_answers(client)
            n_pods = 200 if quick else 1000
            rate_none, memory, cpu = await _pods(children, client, folder, "none", n_pods, claims=False)
            rate_claims, _, cpu_claims = await _pods(
                children, client, folder, "none", n_pods // 4, claims=True
            )
            rate_process, _, _ = await _pods(children, client, folder, "process", n_pods // 10, claims=False)
            latencies, driver_memory, driver_cpu = await _prepare(
                children, client, folder, 50 if quick else 300
            )
    finally:
        children.end_all()
    p50, p99 = (statistics.quantiles(latencies, n=100)[i] * 1000 for i in (49, 98))
    return f"""## Node

From bound to running, one node, one API server, everything on this machine (see bench/node/__init__.py).
Load average of the machine ({os.cpu_count()} processors) while measuring: {os.getloadavg()[0]:.1f}; processor time is independent of it.

| what | measured | target |
|---|---|---|
| {n_pods} pods, runtime `none` | {rate_none:.0f} pods/s | ≥ 200 |
| {n_pods // 4} pods with a claim each (checkpoint, gRPC, CDI file), runtime `none` | {rate_claims:.0f} pods/s | |
| {n_pods // 10} pods, runtime `process` | {rate_process:.0f} pods/s | |
| prepare of one claim through the SDK (gRPC, claim read, a synced record, CDI file), p50 / p99 | {p50:.1f} ms / {p99:.1f} ms | < 5 ms |
| processor time of the agent per pod, without / with a claim | {cpu:.1f} ms / {cpu_claims:.1f} ms | |
| processor time of the driver per prepare and unprepare | {driver_cpu:.1f} ms | |
| memory of the agent with {n_pods} pods | {memory:.0f} MB | < 80 MB |
| memory of the driver | {driver_memory:.0f} MB | |
"""


async def _pods(children, client, folder, runtime, count, *, claims):
    """Create pods, start an agent, wait until all run; returns pods per second and the agent's memory."""
    root = folder / f"{runtime}-{claims}"
    root.mkdir()
    node = f"{NODE}-{runtime}-{str(claims).lower()}"
    driver = (
        children.start("driver", str(CHILDREN), "driver", str(folder / "kubeconfig"), node, str(root), "")
        if claims
        else None
    )
    names = [f"{node}-{index}" for index in range(count)]
    limit = asyncio.Semaphore(32)

    async def create(name):
        async with limit:
            await _create_pod(client, name, node, with_claim=claims)

    await asyncio.gather(*(create(name) for name in names))
    if driver is not None:
        await _until(lambda: list((root / "plugins_registry").glob("*.sock")))
    agent = children.start(
        "agent", str(CHILDREN), "agent", str(folder / "kubeconfig"), node, str(root), runtime
    )
    log = folder / "agent.log"
    await _until(lambda: "pods are listed" in log.read_text())
    began = time.monotonic()
    seen = asyncio.create_task(_all_running(client, node, count))
    try:
        await asyncio.wait_for(seen, 180)
    except TimeoutError as error:
        raise RuntimeError(f"not all of {count} pods run: {log.read_text()[-2000:]}") from error
    seconds = time.monotonic() - began
    memory, cpu = _memory(agent.pid), _cpu(agent.pid) / count
    children.end(agent)
    if driver is not None:
        children.end(driver)
    await asyncio.gather(*(_delete(client, name) for name in names))
    return count / seconds, memory, cpu


async def _all_running(client, node, count):
    """Watch the pods as any controller would, until all are Running."""
    running = set()
    done = asyncio.Event()

    def see(old, new):
        if new is not None and new.status.phase == "Running":
            running.add(new.metadata.uid)
            if len(running) == count:
                done.set()

    informer = Informer(client, PODS, RunPod, field_selector=f"spec.nodeName={node}")
    informer.add_handler(see)
    task = asyncio.create_task(informer.run())
    await done.wait()
    task.cancel()


async def _delete(client, name):
    await client.delete(PODS, name, "default", grace_seconds=0)


async def _create_pod(client, name, node, *, with_claim):
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "pause", "command": ["sleep", "1000"]}],
    }
    if with_claim:
        spec["resourceClaims"] = [{"name": "device", "resourceClaimName": name}]
        spec["containers"][0]["resources"] = {"claims": [{"name": "device"}]}
    pod = await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")
    if with_claim:
        await _create_claim(client, name, node, f"device-{name.rpartition('-')[2]}", pod["metadata"]["uid"])


async def _create_claim(client, name, node, device, pod_uid):
    request = {"name": "device", "exactly": {"deviceClassName": "bench"}}
    made = await client.create(
        CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}, "default"
    )
    result = {"request": "device", "driver": DRIVER, "pool": node, "device": device}
    made["status"] = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": pod_uid}],
    }
    return await client.update(CLAIMS, name, made, "default", subresource="status")


async def _prepare(children, client, folder, count):
    """Call a driver directly, one claim at a time; returns the seconds of each call, and the driver's memory."""
    import grpc

    root = folder / "prepare"
    root.mkdir()
    driver = children.start(
        "driver", str(CHILDREN), "driver", str(folder / "kubeconfig"), NODE, str(root), ""
    )
    await _until(lambda: (root / "plugins" / DRIVER / "dra.sock").exists())
    seconds = []
    async with grpc.aio.insecure_channel(f"unix:{root}/plugins/{DRIVER}/dra.sock") as channel:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        for index in range(count + 5):
            name = f"prepare-{index}"
            uid = (await _create_claim(client, name, NODE, f"device-{index}", f"pod-{index}"))["metadata"][
                "uid"
            ]
            request = dra_v1_pb2.NodePrepareResourcesRequest(
                claims=[dra_v1_pb2.Claim(namespace="default", name=name, uid=uid)]
            )
            began = time.perf_counter()
            answer = await stub.NodePrepareResources(request)
            if index >= 5:  # the first calls open connections
                seconds.append(time.perf_counter() - began)
            assert not answer.claims[uid].error, answer.claims[uid].error
            undo = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=request.claims)
            await stub.NodeUnprepareResources(undo)
    return seconds, _memory(driver.pid), _cpu(driver.pid) / count


def _memory(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) / 1024 if found else 0.0


def _cpu(pid: int) -> float:
    """Return the milliseconds of processor time that a process has used, start-up included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def _until(check, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.02)


async def _until_answers(client):
    from dray.client import ClientError

    for _ in range(200):
        try:
            await client.list(PODS, "default")
            return
        except ClientError:
            await asyncio.sleep(0.05)
