"""A table of features of device drivers, and what it takes to run one row of it on `dray up`."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import yaml

from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.client import Request
from dray.client.resources import CLAIMS, PODS, resource_of

PATIENCE = 60.0


@dataclass(frozen=True)
class Feature:
    """One thing that a driver shows."""

    name: str  # also the namespace
    profile: str
    spec: str = ""  # YAML of the template's `spec.devices`
    pods: int = 1
    shows: tuple[str, ...] = ()  # lines that the last pod prints
    devices: int | None = None  # of the last pod's claim
    distinct: bool = True  # pods hold different devices
    limits: tuple[tuple[str, str], ...] = ()  # extended resources, instead of a claim
    waits: str = ""  # the pod stays Pending, and this is in its PodScheduled condition
    refused: str = ""  # the driver refuses to prepare the claim, and this is in an event


def pod_body(name, namespace, profile, resources, **spec):
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", "env; sleep 600"],
        "resources": resources,
    }
    where = {"kubernetes.io/hostname": f"{profile}-1"} if profile else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "nodeSelector": where,
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }


async def make(client, body):
    group, _, _ = body["apiVersion"].rpartition("/")
    resource = resource_of(group, body["kind"])
    await client.create(resource, body, body["metadata"].get("namespace"))


async def wait_for(look, what):
    try:
        async with asyncio.timeout(PATIENCE):
            while not (found := await look()):
                await asyncio.sleep(0.2)
            return found
    except TimeoutError:
        raise AssertionError(what) from None


async def printed(client, name, namespace, words):
    """Return what the pod's container printed once it runs and all words are there."""

    async def look():
        pod = await client.get(PODS, name, namespace, view=Pod)
        assert pod.status.phase != "Failed", pod.status
        log = await client.transport.send(Request("GET", PODS.path(namespace, name, "log")))
        text = log.body.decode() if log.status == 200 else ""
        return text if text and all(word in text for word in words) else None

    return await wait_for(look, f"{namespace}/{name} did not print {words}")


async def waits_with(client, name, namespace, words):
    """Wait until the scheduler says why the pod cannot be placed."""

    async def look():
        pod = await client.get(PODS, name, namespace, view=Pod)
        assert not pod.spec.node_name, f"{namespace}/{name} was placed on {pod.spec.node_name}"
        told = [each.message for each in pod.status.conditions if each.type == "PodScheduled"]
        return any(words in message for message in told)

    await wait_for(look, f"{namespace}/{name} does not wait with {words!r}")


async def refused_with(client, namespace, words):
    """Wait until an event says why a claim could not be prepared."""

    async def told():
        events = await client.list(resource_of("", "Event"), namespace=namespace)
        return any(words in str(event.get("message") or event.get("note") or "") for event in events.items)

    await wait_for(told, f"no event in {namespace} says {words!r}")


async def make_namespace(client, name):
    labels = {"resource.kubernetes.io/admin-access": "true"} if name.startswith("admin") else {}
    await make(
        client, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    )


async def play(client, feature):
    """Run the feature's pods; return the devices that each of them holds."""
    space = feature.name
    await make_namespace(client, space)
    if feature.limits:
        limits = {"limits": dict(feature.limits)}
        for number in range(feature.pods):
            await make(client, pod_body(f"pod-{number}", space, feature.profile, limits))
            await printed(client, f"pod-{number}", space, feature.shows)
        return []
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "it", "namespace": space},
        "spec": {"spec": {"devices": yaml.safe_load(feature.spec)}},
    }
    await make(client, template)
    entry = {"resourceClaims": [{"name": "it", "resourceClaimTemplateName": "it"}]}
    names = [f"pod-{number}" for number in range(feature.pods)]
    for name in names:
        await make(client, pod_body(name, space, feature.profile, {"claims": [{"name": "it"}]}, **entry))
    held = []
    if feature.waits:
        await waits_with(client, "pod-0", space, feature.waits)
        return held
    if feature.refused:
        await refused_with(client, space, feature.refused)
        return held
    for name in names:
        await printed(client, name, space, feature.shows)
        pod = await client.get(PODS, name, space, view=Pod)
        claim = await client.get(
            CLAIMS, pod.status.resource_claim_statuses[0].resource_claim_name, space, view=ResourceClaim
        )
        held.append(claim)
    return held


def check(feature, held):
    """Compare what the pods hold with the table."""
    if not held:
        return
    results = [claim.status.allocation.devices.results for claim in held]
    if feature.devices is not None:
        assert len(results[-1]) == feature.devices
    if feature.pods > 1:
        first, second = ({result.device for result in each} for each in results[:2])
        assert first.isdisjoint(second) == feature.distinct


class RunningUp:
    """`dray up` as a process of its own, with simulated nodes."""

    def __init__(self, folder, *simulated, arguments=()):
        self.data = folder / "data"
        words = ["dray", "up", "--no-host", "--secure-port", "0", "--data", str(self.data), *arguments]
        words += [word for profile in simulated for word in ("--sim", profile)]
        keys = ("PATH", "LANG", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {key: value for key, value in os.environ.items() if key in keys}
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**kept, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)},
        )
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if "dray is up" in line:
                return
        raise AssertionError("dray up ended: " + "".join(lines))

    @property
    def kubeconfig(self):
        return self.data / "admin.kubeconfig"

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)
