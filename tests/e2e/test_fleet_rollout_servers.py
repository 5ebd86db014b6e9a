"""`dray fleet rollout` over a fleet of 20 nodes, on both servers: bad nodes end it, and no running claim is disturbed.

The command, the scheduler and the DaemonSet controller are real. Nodes are played by the test: a pod of the driver
becomes ready and publishes its devices in its version, a probe ends with 1 on a bad node in the new version, all others run.
"""

import asyncio
import json
import signal
import sys

import peers
import pytest
from clusters import PATIENCE, Cluster

from dray.api.driver_rollouts import VERSION_ANNOTATION
from dray.client import ClientError, NotFound
from dray.client.resources import CLAIMS, DAEMON_SETS, NAMESPACES, PODS, SLICES, TAINT_RULES

pytestmark = pytest.mark.kubernetes  # also on dray's own server: these take as long as tests of real programs

OLD, NEW = "1.0.0", "2.0.0"


@pytest.fixture(scope="module")
def kubernetes_with_daemon_sets():
    with peers.kubernetes(controllers=f"{peers.CONTROLLERS},daemonset-controller") as peer:
        yield peer


@pytest.fixture(scope="module")
def dray_without_leases():
    # The nodes of this test renew no leases.
    with peers.dray_server(controllers="*,-node-lifecycle") as peer:
        yield peer


@pytest.fixture(params=["dray_without_leases", "kubernetes_with_daemon_sets"])
def fleet_peer(request):
    return request.getfixturevalue(request.param)


class Fleet:
    """Nodes with one driver, as a DaemonSet, and a running pod with a claim on each."""

    def __init__(self, cluster, bad):
        self.cluster = cluster
        self.client = cluster.client
        self.bad = bad  # numbers of nodes whose devices fail in the new version
        self.nodes = []
        self.held = {}  # workload claim -> everything that was ever seen of its use
        self.probes = f"probes-{cluster.number}"
        self._versions = {}  # node -> version that it publishes
        self._playing = None

    async def __aenter__(self):
        cluster, client = self.cluster, self.client
        for number, _ in enumerate(range(self.size)):
            self.nodes.append(await cluster.node(f"n{number:02}"))
        device_class = await cluster.device_class()
        await cluster.start_scheduler()
        self._playing = asyncio.create_task(self._play())
        await client.create(DAEMON_SETS, self._daemon_set(), cluster.namespace)
        await self.until(lambda: len(self._versions) == self.size, "every driver publishes")
        for number, node in enumerate(self.nodes):
            name = f"work-{number:02}"
            exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
            claim = {
                "metadata": {"name": name},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
            }
            await client.create(CLAIMS, claim, cluster.namespace)
            await client.create(PODS, self._workload(name, node), cluster.namespace)
        await self.until(lambda: len(self.held) == self.size, "every workload runs")
        return self

    async def __aexit__(self, *_):
        self._playing.cancel()
        await asyncio.gather(self._playing, return_exceptions=True)
        for pod in (await self.client.list(PODS, self.probes)).items:
            await self.client.delete(PODS, pod["metadata"]["name"], self.probes, grace_seconds=0)
        for resource, name, namespace in (
            (DAEMON_SETS, "driver", self.cluster.namespace),
            (NAMESPACES, self.probes, None),
        ):
            try:
                await self.client.delete(resource, name, namespace)
            except NotFound:
                pass

    async def until(self, question, what):
        async with asyncio.timeout(2 * PATIENCE):
            while not question():
                assert not self._playing.done(), self._playing.result()
                await asyncio.sleep(0.1)
        assert question(), what

    def _daemon_set(self):
        labels = {"app": "driver"}
        return {
            "metadata": {"name": "driver"},
            "spec": {
                "updateStrategy": {"type": "OnDelete"},
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels, "annotations": {VERSION_ANNOTATION: OLD}},
                    "spec": {
                        "schedulerName": self.cluster.scheduler_name,
                        "nodeSelector": {"case": self.cluster.namespace},
                        "containers": [{"name": "driver", "image": "driver:1"}],
                    },
                },
            },
        }

    def _workload(self, name, node):
        return {
            "metadata": {"name": name},
            "spec": {
                "schedulerName": self.cluster.scheduler_name,
                "nodeSelector": {"kubernetes.io/hostname": node},
                "resourceClaims": [{"name": "d", "resourceClaimName": name}],
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "d"}]}}],
            },
        }

    # --- the nodes ------------------------------------------------------------------

    async def _play(self):
        while True:
            try:
                for namespace in (self.cluster.namespace, self.probes):
                    for pod in (await self.client.list(PODS, namespace)).items:
                        await self._play_pod(pod, namespace)
                await self._look_at_claims()
            except ClientError:
                pass  # written by somebody else meanwhile: the next round sees it
            await asyncio.sleep(0.2)

    async def _play_pod(self, pod, namespace):
        meta, node = pod["metadata"], pod["spec"].get("nodeName")
        if not node:
            return
        if meta.get("deletionTimestamp"):
            await self.client.delete(PODS, meta["name"], namespace, grace_seconds=0, uid=meta["uid"])
            return
        if (pod.get("status") or {}).get("phase") != "Pending":
            return
        if "app" in (meta.get("labels") or {}):
            await self._publish(node, meta["annotations"][VERSION_ANNOTATION])
        container = pod["spec"]["containers"][0]["name"]
        if namespace == self.probes:
            is_bad = self.nodes.index(node) in self.bad and self._versions[node] == NEW
            state = {"terminated": {"exitCode": int(is_bad)}}
            phase = "Failed" if is_bad else "Succeeded"
        else:
            state, phase = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "Running"
        status = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(phase == "Running")}],
            "containerStatuses": [
                {
                    "name": container,
                    "image": "i",
                    "imageID": "",
                    "ready": phase == "Running",
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        await self.client.patch(PODS, meta["name"], {"status": status}, namespace, subresource="status")

    async def _publish(self, node, version):
        """Publish the node's two devices in a version of the driver."""
        if self._versions.get(node) == version:
            return
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": {
                    "uuid": {"string": f"{node}-{number}"},
                    "driverVersion": {"version": version},
                },
            }
            for number in range(2)
        ]
        if node not in self._versions:
            await self.cluster.devices(node, *devices, name=f"slice-{node}")
        else:
            await self.client.patch(SLICES, f"slice-{node}", {"spec": {"devices": devices}})
        self._versions[node] = version

    async def _look_at_claims(self):
        """Remember every state of use in which a workload's claim, and its pod, were seen."""
        pods = {
            each["metadata"]["name"]: each
            for each in (await self.client.list(PODS, self.cluster.namespace)).items
        }
        for claim in (await self.client.list(CLAIMS, self.cluster.namespace)).items:
            name = claim["metadata"]["name"]
            pod = pods.get(name)
            is_running = pod is not None and (pod.get("status") or {}).get("phase") == "Running"
            if not is_running and name not in self.held:
                continue  # it has not begun
            status = claim.get("status") or {}
            use = json.dumps(
                [
                    claim["metadata"]["uid"],
                    status.get("allocation"),
                    status.get("reservedFor"),
                    pod and pod["metadata"]["uid"],
                    bool(pod and pod["metadata"].get("deletionTimestamp")),
                    is_running,
                ],
                sort_keys=True,
            )
            self.held.setdefault(name, set()).add(use)

    # --- the command ----------------------------------------------------------------

    async def command(self, *words):
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dray", "fleet", *words, "--kubeconfig", str(self.cluster.peer.kubeconfig),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            # Where the tests run in the background, Ctrl-C may be ignored, and children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    async def dray(self, *words):
        process = await self.command(*words)
        async with asyncio.timeout(4 * PATIENCE):
            out, err = await process.communicate()
        assert b"Traceback" not in err
        return process.returncode, out.decode(), err.decode()

    def start_words(self, *more):
        return (
            "rollout", "--driver", self.cluster.driver, "--to", NEW, "--daemonset", f"{self.cluster.namespace}/driver",
            "--image", "driver:2", "--running-pods", "keep", "--scheduler", self.cluster.scheduler_name,
            "--namespace", self.probes, "--expect-published-version", *more,
        )  # fmt: skip

    async def rollout(self):
        _, out, _ = await self.dray("rollouts", "-o", "json")
        return next(each for each in json.loads(out) if each["driver"] == self.cluster.driver)

    async def assert_back(self):
        """Assert that every node has the old driver, and no device is tainted."""
        await self.until(lambda: set(self._versions.values()) == {OLD}, "the old version is back")
        rules = (await self.client.list(TAINT_RULES)).items
        assert [
            each for each in rules if each["spec"]["deviceSelector"].get("driver") == self.cluster.driver
        ] == []

    def assert_undisturbed(self):
        assert len(self.held) == self.size
        assert {name: len(uses) for name, uses in self.held.items() if len(uses) != 1} == {}

    @property
    def size(self):
        return self._size

    @classmethod
    def of(cls, cluster, size, bad=()):
        fleet = cls(cluster, set(bad))
        fleet._size = size
        return fleet


async def test_three_bad_nodes_of_twenty_end_the_rollout_and_no_running_claim_is_disturbed(fleet_peer):
    async with Cluster(fleet_peer) as cluster, Fleet.of(cluster, 20, bad=(5, 9, 13)) as fleet:
        code, _, err = await fleet.dray(*fleet.start_words("--max-unavailable", "4", "--max-failures", "2"))
        assert code == 1, err
        found = await fleet.rollout()
        assert found["phase"] == "RolledBack"
        failed = [
            fleet.nodes.index(each["name"]) for each in found["nodes"] if "exit code 1" in each["evidence"]
        ]
        assert failed[:2] == [5, 9]
        # The limit ended it: nodes whose turn had not come were never touched.
        steps = {fleet.nodes.index(each["name"]): each["step"] for each in found["nodes"]}
        assert all(steps[number] == "Pending" for number in range(14, 20))
        assert steps[0] == "Reverted"
        await fleet.assert_back()
        fleet.assert_undisturbed()


async def test_a_pause_a_ctrl_c_and_an_abort(fleet_peer):
    async with Cluster(fleet_peer) as cluster, Fleet.of(cluster, 4) as fleet:
        code, _, err = await fleet.dray(*fleet.start_words("--pause"))
        assert code == 0, err
        found = await fleet.rollout()
        assert found["phase"] == "Paused"
        assert [each["step"] for each in found["nodes"]] == ["Updated", "Pending", "Pending", "Pending"]
        following = await fleet.command(
            "rollout", found["name"], "--scheduler", cluster.scheduler_name, "--namespace", fleet.probes
        )
        async with asyncio.timeout(PATIENCE):
            while b"Draining" not in (await following.stderr.readline()):
                pass
        following.send_signal(signal.SIGINT)
        await following.communicate()
        assert following.returncode == 130
        assert (await fleet.rollout())["phase"] == "Running"
        code, _, err = await fleet.dray(
            "rollout", found["name"], "--abort", "--scheduler", cluster.scheduler_name, "--namespace", fleet.probes
        )  # fmt: skip
        assert code == 1, err
        assert (await fleet.rollout())["phase"] == "RolledBack"
        await fleet.assert_back()
        fleet.assert_undisturbed()


async def test_a_node_waits_for_the_end_of_the_pods_that_use_its_devices(fleet_peer):
    async with Cluster(fleet_peer) as cluster, Fleet.of(cluster, 2) as fleet:
        words = ["wait" if word == "keep" else word for word in fleet.start_words("--canary", "0")]
        following = await fleet.command(*words)
        for number in range(2):
            pod = f"work-{number:02}"
            async with asyncio.timeout(PATIENCE):
                while f"{cluster.namespace}/{pod}".encode() not in (await following.stderr.readline()):
                    pass
            assert fleet._versions[fleet.nodes[number]] == OLD  # not replaced under the pod
            await cluster.client.delete(PODS, pod, cluster.namespace)
        async with asyncio.timeout(2 * PATIENCE):
            await following.communicate()
        assert following.returncode == 0
        assert set(fleet._versions.values()) == {NEW}
