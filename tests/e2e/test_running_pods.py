"""Claims of a running pod come and go, whoever is killed (SIGKILL), and wherever.

A real server, scheduler, claim controller, node agent and driver. Two pods run and want the same lamp: the first is given
it, the second when the first has lost it; then both are deleted. The containers run on all the time, the lamp never
has two owners, and the independent checker finds the ledger right after every write of a claim.
"""

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from pathlib import Path

import checker
import pytest
from clusters import changes
from node_builders import eventually, pod
from node_children import DRIVER
from server_process import serving
from test_node_kills import AGENT_STEPS, DRIVER_STEPS, Supervisor, until

from dray.cli.main import main
from dray.client import Client, NotFound
from dray.client.resources import CLAIMS, DEVICE_CLASSES, EVENTS, PODS, SLICES

ROLES = ("agent", "driver", "scheduler", "controllers")
WRITES = [f"write:{number}:{when}" for number in (1, 2) for when in ("before", "after")]
SCENARIOS = [
    *(("driver", step) for step in DRIVER_STEPS),
    *(("agent", step) for step in AGENT_STEPS),
    # The finalizer, then allocation with reservation; and the release with the allocation, then the finalizer.
    *((role, step) for role in ("scheduler", "controllers") for step in WRITES),
]


@pytest.fixture(scope="module")
def served():
    folder = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    with serving(
        folder, "--in-memory", "--data", str(folder), "--feature-gates", "DRADevicesAfterPodStart=true"
    ) as found:
        yield found
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("role", "step"),
    [
        pytest.param("", "", id="nobody is killed"),
        *(pytest.param(*each, marks=pytest.mark.heavy, id=" ".join(each)) for each in SCENARIOS),
    ],
)
async def test_claims_of_running_pods_come_and_go(served, role, step):
    node = f"node-{uuid.uuid4().hex[:6]}"
    root = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    children = {
        name: Supervisor(name, str(served.kubeconfig), node, root, step if name == role else "")
        for name in ROLES
    }
    tasks = [asyncio.create_task(child.run()) for child in children.values()]
    try:
        async with Client.connect(str(served.kubeconfig)) as client:
            await Life(client, node, root).run()
        assert not (root / "two-owners").exists(), (root / "two-owners").read_text()
        if role:
            assert (root / "died").exists(), "the step was never reached"
            assert children[role].deaths == 1
    except BaseException:
        for name in children:
            print(f"--- {name}\n{(root / f'{name}.log').read_text()[-3000:]}")
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        shutil.rmtree(root, ignore_errors=True)


class Life:
    """Two pods of one node, and the lamp that both want."""

    def __init__(self, client, node, root):
        self.client, self.node, self.root = client, node, root
        self.problems = []

    async def run(self):
        await until(self.slices, 1)
        inventory = checker.Inventory(
            [each for each in (await self.client.list(SLICES)).items if each["spec"]["nodeName"] == self.node]
        )
        judge = asyncio.create_task(self.judge(checker.Ledger(inventory)))
        try:
            await self.both_pods()
        except BaseException:
            for event in (await self.client.list(EVENTS, "default")).items:
                print(event["involvedObject"]["name"], event["reason"], event["count"], event["message"])
            print("slices of the node:", await self.slices())
            raise
        finally:
            judge.cancel()
            await asyncio.gather(judge, return_exceptions=True)
        assert self.problems == []

    async def slices(self):
        listed = await self.client.list(SLICES)
        return sum(each["spec"].get("nodeName") == self.node for each in listed.items)

    async def judge(self, ledger):
        listed = await self.client.list_page(CLAIMS, "default", limit=1)
        async for event in changes(self.client, CLAIMS, "default", listed.resource_version):
            if event.object["metadata"]["name"].startswith(self.node):
                self.problems += ledger.see(event.object, is_gone=event.type == "DELETED")

    async def both_pods(self):
        first, second = f"{self.node}-first", f"{self.node}-second"
        selector = f"device.driver == '{DRIVER}' && '{self.node}' != ''"
        await self.client.create(
            DEVICE_CLASSES,
            {"metadata": {"name": self.node}, "spec": {"selectors": [{"cel": {"expression": selector}}]}},
        )
        for name in (first, second):
            body = pod(name, claims=(), node=self.node, schedulerName="dray", terminationGracePeriodSeconds=1)
            del body["status"]
            await self.client.create(PODS, body, "default")
            # Both lamps at once, so that only one of the claims fits.
            exactly = {"deviceClassName": self.node, "count": 2}
            spec = {"devices": {"requests": [{"name": "it", "exactly": exactly}]}}
            await self.client.create(CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")
            await until(lambda name=name: self.phase(name), "Running")
        runs = [await self.container(name) for name in (first, second)]

        await self.change(first, first)
        await until(lambda: self.holder(first), True)
        await self.change(second, second)
        lamps = {"lamp-0", "lamp-1"}
        await eventually(lambda: {path.name for path in (self.root / "attached").iterdir()} == lamps)

        await self.change(first)
        await until(lambda: self.holder(first), False)
        await until(lambda: self.holder(second), True, seconds=180.0)
        uid = (await self.client.get(PODS, second, "default"))["metadata"]["uid"]
        await eventually(lambda: (self.root / "attached/lamp-0").exists())
        await eventually(lambda: (self.root / "attached/lamp-0").read_text() == uid)
        assert [await self.container(name) for name in (first, second)] == runs

        for name in (first, second):
            await self.client.delete(PODS, name, "default", grace_seconds=1)
        for name in (first, second):
            await until(lambda name=name: self.is_gone(name), True)
            await until(lambda name=name: self.holder(name), False)
        for folder in ("hardware", "attached", "cdi"):
            await eventually(lambda folder=folder: not list((self.root / folder).glob("*")), what=folder)

    async def change(self, name, *claims):
        entries = [{"name": "late", "resourceClaimName": each} for each in claims]
        body = {"spec": {"resourceClaims": entries or None}}
        await self.client.patch(PODS, name, body, "default", subresource="resourceclaims")

    async def phase(self, name):
        return (await self.client.get(PODS, name, "default"))["status"].get("phase")

    async def container(self, name):
        (status,) = (await self.client.get(PODS, name, "default"))["status"]["containerStatuses"]
        return status["containerID"], status["restartCount"], status["state"]

    async def holder(self, name):
        """Return whether the claim is allocated; then it must be reserved for its pod."""
        status = (await self.client.get(CLAIMS, name, "default")).get("status") or {}
        users = [user["name"] for user in status.get("reservedFor") or ()]
        assert users in ([], [name])
        assert bool(status.get("allocation")) == bool(users)
        return bool(users)

    async def is_gone(self, name):
        try:
            await self.client.get(PODS, name, "default")
        except NotFound:
            return True
        return False


def test_what_cannot_be_done_is_said(served, capsys):
    async def make():
        async with Client.connect(str(served.kubeconfig)) as client:
            body = pod("waits", claims=(), node="nowhere")
            with contextlib.suppress(NotFound):
                await client.create(PODS, body, "default")
            spec = {"devices": {"requests": [{"name": "it", "exactly": {"deviceClassName": "c"}}]}}
            await client.create(CLAIMS, {"metadata": {"name": "waits"}, "spec": spec}, "default")

    asyncio.run(make())
    flags = ["--kubeconfig", str(served.kubeconfig), "-n", "default"]
    for words, said in (
        (["attach", "nobody", "waits"], "there is no pod default/nobody"),
        (["attach", "waits", "nothing"], "there is no claim default/nothing"),
        (["attach", "waits", "waits"], "claims of a pod change only while it runs; this one is Pending"),
    ):
        assert main(["claim", *words, *flags]) == 1
        assert said in capsys.readouterr().err
    assert main(["claim", "detach", "waits", "waits", *flags, "--no-wait", "-o", "json"]) == 0
    assert '"done": false' in capsys.readouterr().out
