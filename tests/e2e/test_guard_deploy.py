"""deploy/kubernetes/guard on a real kube-apiserver: accepted, and its rights suffice and are few."""

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import peers
import pytest
from clusters import Cluster
from guards import PATIENCE, GuardProcess, allocation, give, in_force, unguarded
from test_controllers_deploy import kubeconfig_of

from dray.client import Client, Conflict, Forbidden, NotFound
from dray.client import resources as kinds
from dray.control.guarding.revision_fence import ANNOTATION
from dray.control.guarding.webhook_configuration import CONFIGURATION, CONFIGURATIONS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "guard"

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def deployed_guard():
    """An API server of our own, with the manifests applied as they are."""
    with peers.kubernetes(controllers="") as peer:
        kubectl = peers.kubernetes_binaries() / "kubectl"
        if not kubectl.exists():
            pytest.skip("kubectl is not built: run tools/peers/build")
        command = [kubectl, "--kubeconfig", peer.kubeconfig, "apply", "-k", DEPLOY]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert answer.returncode == 0, answer.stderr
        assert "Warning" not in answer.stderr, answer.stderr
        yield peer


async def test_the_guards_rights_suffice_and_are_few(deployed_guard):
    async with Cluster(deployed_guard) as cluster:
        node = await cluster.node("a")
        await cluster.devices(node, "g0")
        claims = [await cluster.claim(name, {"name": "r", "deviceClassName": "any"}) for name in ("a", "b")]
        config = await kubeconfig_of(cluster, "dray-guard", "dray-system")
        guard = GuardProcess(deployed_guard, "--leader-namespace", "dray-system", "-v", kubeconfig=config)
        try:
            await guard.start()
            await in_force(cluster)
            first, second = [await cluster.get_claim(claim["metadata"]["name"]) for claim in claims]
            assert ANNOTATION in first["metadata"]["annotations"]  # fenced at the start
            await give(cluster, first, allocation(cluster, "g0", pool=node))
            with pytest.raises(Conflict):
                await give(cluster, second, allocation(cluster, "g0", pool=node))
            await cluster.client.delete(CONFIGURATIONS, CONFIGURATION)

            async def restored():
                with contextlib.suppress(NotFound):
                    return await cluster.client.get(CONFIGURATIONS, CONFIGURATION)

            await cluster.until(restored, "the configuration", PATIENCE)
            await guard.begun_anew()
        finally:
            await guard.stop()
            await unguarded(cluster)
        assert "orbidden" not in guard.log.read_text()
        async with Client.connect(config) as client:
            status = {"status": {"allocation": None}}
            for verb in (
                client.list(kinds.SECRETS),
                client.list(kinds.PODS),
                client.list(CONFIGURATIONS),
                client.delete(CONFIGURATIONS, CONFIGURATION),
                client.delete(kinds.CLAIMS, "a", cluster.namespace),
                client.patch(kinds.CLAIMS, "a", status, cluster.namespace, subresource="status"),
            ):
                with pytest.raises(Forbidden):
                    await verb


async def test_a_guard_without_its_rights_says_so_with_a_hint(deployed_guard):
    async with Cluster(deployed_guard) as cluster:
        name = f"powerless-{cluster.number}"
        await cluster.client.create(kinds.SERVICE_ACCOUNTS, {"metadata": {"name": name}}, "dray-system")
        config = await kubeconfig_of(cluster, name, "dray-system")
        command = [sys.executable, "-m", "dray", "guard", "--kubeconfig", str(config)]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 1
        [line, hint] = said.decode().splitlines()
        assert hint.startswith("hint: ")
        assert line.startswith("error: ")
        assert "forbidden" in line


async def test_the_configuration_for_a_service_is_accepted(deployed_guard):
    command = [sys.executable, "-m", "dray", "guard", "--print-configuration", "--listen", "0.0.0.0:0"]
    command += ["--service", "dray-system/dray-guard"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    async with Client.connect(deployed_guard.kubeconfig) as client:
        made = await client.create(CONFIGURATIONS, json.loads(shown.stdout), dryRun="All")
    service = {"namespace": "dray-system", "name": "dray-guard", "path": "/validate", "port": 443}
    assert made["webhooks"][0]["clientConfig"]["service"] == service
