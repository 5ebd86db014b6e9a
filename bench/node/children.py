"""The processes that are measured: an agent, or a driver that does nothing."""

import asyncio
import logging
import sys
from pathlib import Path

from dray.api.resource import Device
from dray.client import Client
from dray.driver import Pool, PreparedDevice, Settings, serve

DRIVER = "bench.example.com"


class Nothing:
    """A driver whose devices need no preparation: what is measured is the SDK."""

    name = DRIVER

    def discover(self):
        return [Pool(devices=[Device(name=f"device-{index}") for index in range(128)])]

    async def prepare(self, claim):
        return [PreparedDevice.of(device, env={"DEVICE": device.device}) for device in claim.devices]

    async def unprepare(self, claim):
        pass


async def main(role, kubeconfig, node, root, runtime):
    root = Path(root)
    logging.basicConfig(level=logging.WARNING)
    async with Client.connect(kubeconfig, connections=16) as client:
        if role == "driver":
            await serve(Nothing(), client, Settings(node_name=node, kubelet_dir=root, cdi_dir=root / "cdi"))
            return
        from dray.node import Agent, AgentSettings

        agent = Agent(client, AgentSettings(node, root, runtime, cdi_dirs=[root / "cdi"], max_pods=2000))
        task = asyncio.create_task(agent.run())
        await agent.informer.wait_synced()
        print("pods are listed", flush=True)
        await task


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
