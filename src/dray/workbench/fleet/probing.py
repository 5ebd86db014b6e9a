"""Run the probes of a validation on a cluster, a few at a time, and collect what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dray.api.json_types import JsonObject
from dray.api.well_known import ADMIN_ACCESS_LABEL, MANAGED_BY_LABEL, TERMINAL_PHASES
from dray.client import AlreadyExists, Client, ClientError, Gone, NotFound, Request
from dray.client.resources import CLAIMS, NAMESPACES, PODS
from dray.workbench.fleet.draining import MANAGER
from dray.workbench.fleet.validation import CONTAINER, Outcome, Probe, manifests
from dray.workbench.object_events import events_of

NAMESPACE = "dray-fleet"
MOST_LOG = 4096  # bytes
_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How probes run."""

    command: Sequence[str]
    image: str
    namespace: str = NAMESPACE
    scheduler: str = ""
    seconds: float = 120.0  # for one probe, from its creation to its end
    at_once: int = 16
    labels: Mapping[str, str] = field(default_factory=dict)  # of claims and pods


class NamespaceRefused(Exception):
    """The namespace may not have claims with admin access."""


async def prepare_namespace(client: Client, name: str) -> None:
    """Make the namespace of the probes; one that exists must allow admin access already."""
    labels = {ADMIN_ACCESS_LABEL: "true", MANAGED_BY_LABEL: MANAGER}
    try:
        await client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    except AlreadyExists:
        found = await client.get(NAMESPACES, name)
        if (found["metadata"].get("labels") or {}).get(ADMIN_ACCESS_LABEL) != "true":
            raise NamespaceRefused(
                f"namespace {name} does not have the label {ADMIN_ACCESS_LABEL}=true"
            ) from None


async def run_probes(
    client: Client, probes: Sequence[Probe], options: ProbeOptions, on_done: Callable[[Probe], None]
) -> list[Outcome]:
    """Run all probes and return their outcomes in order; whatever happens, claims and pods are deleted."""
    gate = asyncio.Semaphore(options.at_once)
    allocated: dict[str, JsonObject] = {}
    revision = (await client.list(CLAIMS, options.namespace)).metadata.resource_version
    following = asyncio.create_task(_follow_claims(client, options.namespace, revision, allocated))

    async def one(probe: Probe) -> Outcome:
        async with gate:
            outcome = await _run(client, probe, options, allocated)
        on_done(probe)
        return outcome

    try:
        return list(await asyncio.gather(*(one(probe) for probe in probes)))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _follow_claims(
    client: Client, namespace: str, revision: str, allocated: dict[str, JsonObject]
) -> None:
    """Keep every claim as it was when it was allocated: a pod that has ended releases its claim at once."""
    while True:
        try:
            async for event in client.watch(CLAIMS, namespace, resourceVersion=revision):
                revision = event.object["metadata"]["resourceVersion"]
                if (event.object.get("status") or {}).get("allocation"):
                    allocated[event.object["metadata"]["name"]] = event.object
        except Gone:
            revision = (await client.list(CLAIMS, namespace)).metadata.resource_version
        except ClientError:
            await asyncio.sleep(_PAUSE)


async def _run(
    client: Client, probe: Probe, options: ProbeOptions, allocated: dict[str, JsonObject]
) -> Outcome:
    name = f"check-{secrets.token_hex(5)}"
    claim, pod = manifests(
        probe,
        name,
        command=options.command,
        image=options.image,
        scheduler=options.scheduler,
        seconds=max(1, int(options.seconds)),
        labels=options.labels,
    )
    outcome = Outcome()
    try:
        await client.create(CLAIMS, claim, options.namespace)
        await client.create(PODS, pod, options.namespace)
        await _watch(client, name, options, outcome)
        outcome.claim = allocated.get(name, {})
    except ClientError as error:
        outcome.events.append(str(error))
    finally:
        await delete_probe(client, name, options.namespace)
    return outcome


async def _watch(client: Client, name: str, options: ProbeOptions, outcome: Outcome) -> None:
    deadline = time.monotonic() + options.seconds
    while True:
        outcome.pod = await client.get(PODS, name, options.namespace)
        if (outcome.pod.get("status") or {}).get("phase") in TERMINAL_PHASES:
            break
        if time.monotonic() > deadline:
            outcome.is_late = True
            break
        await asyncio.sleep(_PAUSE)
    outcome.events = await events_of(client, name, options.namespace)
    outcome.log = await _log(client, name, options.namespace)


async def _log(client: Client, name: str, namespace: str) -> str:
    target = f"{PODS.path(namespace, name, 'log')}?container={CONTAINER}&limitBytes={MOST_LOG}"
    with contextlib.suppress(ClientError):
        return (await client.answer(Request("GET", target))).body[:MOST_LOG].decode("utf-8", "replace")
    return ""


async def delete_probe(client: Client, name: str, namespace: str) -> None:
    """Delete the pod and the claim of a probe, as far as they are there."""
    for resource in (PODS, CLAIMS):
        with contextlib.suppress(NotFound, ClientError):
            await client.delete(resource, name, namespace)


async def delete_leftovers(client: Client, namespace: str, labels: Mapping[str, str]) -> None:
    """Delete probes with these labels that a process left behind when it was killed."""
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    for resource in (PODS, CLAIMS):
        for found in (await client.list(resource, namespace, labelSelector=selector)).items:
            with contextlib.suppress(NotFound):
                await client.delete(resource, found["metadata"]["name"], namespace)
