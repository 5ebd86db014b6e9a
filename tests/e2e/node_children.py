"""Processes for the end-to-end tests of node and driver: they die where they are told to.

    python node_children.py agent|driver|scheduler|controllers KUBECONFIG NODE ROOT [STEP]

Steps of scheduler and controllers are their writes of claims: `write:2:before`, `write:2:after`. With a STEP, the process kills itself (SIGKILL: nothing is flushed, nobody is told)
when it first gets there. A marker file makes that happen once, not in every life.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from dray.api.resource import Device
from dray.client import Client
from dray.control.reconcile_loop import Caches, run_controllers
from dray.control.resource_claims import ClaimController
from dray.control.scheduling import SchedulingLoop
from dray.driver import DriverError, Pool, PreparedDevice, Settings, serve
from dray.node import Agent, AgentSettings
from dray.node.machine import Backoff

DRIVER = "lamp.example.com"


class HardLamps:
    """Lamps with hardware: a file per lamp that is lit, naming its owner. It survives everything."""

    name = DRIVER

    def __init__(self, root):
        self.lit = root / "hardware"
        self.lit.mkdir(exist_ok=True)
        self.attached = root / "attached"  # a file per lamp that was brought into a pod, naming it
        self.attached.mkdir(exist_ok=True)

    def discover(self):
        return [Pool(devices=[Device(name=f"lamp-{index}") for index in range(2)])]

    def prepare(self, claim):
        for device in claim.devices:
            path = self.lit / device.device
            if path.exists() and path.read_text() != claim.uid:
                with (self.lit.parent / "two-owners").open("a") as file:
                    file.write(f"{device.device}: {path.read_text()} and {claim.uid}\n")
                raise DriverError("the lamp belongs to somebody else")
            path.write_text(claim.uid)
        return [PreparedDevice.of(device, env={"LAMP": device.device}) for device in claim.devices]

    def attach(self, claim, pod_uids):
        for device in claim.devices:
            assert (self.lit / device.device).read_text() == claim.uid
            (self.attached / device.device).write_text(" ".join(pod_uids))

    def unprepare(self, claim):
        for device in claim.devices:
            (self.attached / device.device).unlink(missing_ok=True)
            (self.lit / device.device).unlink(missing_ok=True)


def die_at(root, wanted):
    marker = root / "died"

    def step(name):
        if name == wanted and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return step


class DyingTransport:
    """Kills this process before or after one of its writes of claims."""

    def __init__(self, inner, step):
        self.inner = inner
        self.step = step
        self.writes = 0

    async def send(self, request):
        if request.method == "GET" or "/resourceclaims/" not in request.target:
            return await self.inner.send(request)
        self.writes += 1
        number = self.writes
        self.step(f"write:{number}:before")
        answer = await self.inner.send(request)
        self.step(f"write:{number}:after")
        return answer

    async def close(self):
        await self.inner.close()


async def main(role, kubeconfig, node, root, step=""):
    root = Path(root)
    steps = die_at(root, step)
    async with Client.connect(kubeconfig) as client:
        if role in ("scheduler", "controllers"):
            client.transport = DyingTransport(client.transport, steps)
        if role == "scheduler":
            await SchedulingLoop(client).run()
        elif role == "controllers":
            caches = Caches(client)
            await run_controllers(caches, [ClaimController(caches)])
        elif role == "driver":
            settings = Settings(node_name=node, kubelet_dir=root, cdi_dir=root / "cdi")
            await serve(HardLamps(root), client, settings, steps=steps)
        else:
            settings = AgentSettings(
                node, root, cdi_dirs=[root / "cdi"], backoff=Backoff(0.1, 0.5), reconcile_seconds=0.5
            )
            await Agent(client, settings, steps=steps).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
