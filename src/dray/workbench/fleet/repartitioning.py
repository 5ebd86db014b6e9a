"""Change the layouts of idle GPUs as a plan says, through the scheduler and the driver.

For each GPU a claim asks for all of its devices, with the config `PartitionLayout` for the driver, and a pod uses the
claim. The scheduler gives a device to one claim only: a GPU that is not idle any more is not touched, whatever
the plan knew. The driver changes the layout while it prepares the claim; the pod ends at once.

The claim and the pod are the whole state, and a GPU has one name for them. A process that was killed leaves at most these:
the change is carried out without it, and the next run waits for its end (`finish_leftovers`) before it plans anew. Two
runs at once meet at the name, and the second one leaves the GPU to the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.api.resource import ResourceSlice
from dray.api.well_known import TERMINAL_PHASES
from dray.client import AlreadyExists, Client, ClientError, NotFound
from dray.client.resources import CLAIMS, PODS, SLICES
from dray.devices import newest_generation
from dray.drivers.hardware.mig_layouts import layout_text, published_gpus
from dray.drivers.opaque_configs.partitions import API_VERSION, KIND
from dray.sim.snapshot import Snapshot
from dray.workbench.fleet.probing import ProbeOptions, delete_probe
from dray.workbench.fleet.repartition_plan import GpuPlace, LayoutChange
from dray.workbench.fleet.validation import Probe, classes_by_device, manifests
from dray.workbench.object_events import events_of

LABEL = "fleet.dray.dev/repartition"  # of claims and pods; the value is the GPU's name
COMMAND = ("true",)
REFUSED = "FailedPrepareDynamicResources"  # reason of the event when a driver refuses
_PAUSE = 0.5  # seconds


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of one change."""

    change: LayoutChange
    is_done: bool
    message: str = ""


def object_name(place: GpuPlace) -> str:
    """Return the name of the claim and the pod that change a GPU."""
    return f"repartition-{hashlib.sha256(place.gpu.uuid.encode()).hexdigest()[:12]}"


def objects_for(
    change: LayoutChange, snapshot: Snapshot, options: ProbeOptions
) -> tuple[JsonObject, JsonObject] | str:
    """Return the claim and the pod that make a change, or why there can be none."""
    place = change.place
    classes = classes_by_device(snapshot)
    names = [f"{place.driver}/{place.pool}/{device.name}" for device in place.gpu.devices]
    common = set.intersection(*(set(classes.get(name, ())) for name in names))
    if not common:
        return "no DeviceClass selects all of its devices"
    of_driver = f"device.driver == {json.dumps(place.driver)}"
    attribute = "parentUUID" if place.gpu.layout else "uuid"
    operand = f"device.attributes[{json.dumps(place.driver)}].{attribute}"
    is_part = f"has({operand}) && {operand} == {json.dumps(place.gpu.uuid)}"
    probe = Probe(
        place.node,
        place.driver,
        place.pool,
        tuple(device.name for device in place.gpu.devices),
        min(common, key=lambda name: (name != place.driver, name)),
        (f"{of_driver} && {is_part}",),
        takes_all=True,
    )
    config = {"apiVersion": API_VERSION, "kind": KIND, "partitions": [str(each) for each in change.layout]}
    return manifests(
        probe,
        object_name(place),
        command=options.command,
        image=options.image,
        scheduler=options.scheduler,
        seconds=max(1, int(options.seconds)),
        labels={LABEL: place.gpu.name},
        exclusive_config=config,
    )


async def change_layouts(
    client: Client,
    snapshot: Snapshot,
    changes: Sequence[LayoutChange],
    options: ProbeOptions,
    report: Callable[[str], None],
) -> list[Changed]:
    """Make the changes, some at a time, and return what became of each; the namespace must exist."""
    gate = asyncio.Semaphore(options.at_once)

    async def one(change: LayoutChange) -> Changed:
        async with gate:
            try:
                message = await _change(client, snapshot, change, options)
            except ClientError as error:
                message = str(error)
        what = f"{change.place.text} on {change.place.node}"
        report(f"{what}: {message}" if message else f"{what}: {layout_text(change.layout)}")
        return Changed(change, not message, message)

    return list(await asyncio.gather(*map(one, changes)))


async def _change(client: Client, snapshot: Snapshot, change: LayoutChange, options: ProbeOptions) -> str:
    """Make one change; return why it failed, or nothing."""
    made = objects_for(change, snapshot, options)
    if isinstance(made, str):
        return made
    claim, pod = made
    name = object_name(change.place)
    deadline = time.monotonic() + options.seconds
    try:
        await client.create(CLAIMS, claim, options.namespace)
    except AlreadyExists:
        return "another run changes it"
    try:
        await client.create(PODS, pod, options.namespace)
        failure = await _failure(client, name, options.namespace, deadline)
    finally:
        await delete_probe(client, name, options.namespace)
    if failure:
        return failure
    while not await _is_published(client, change):
        if time.monotonic() > deadline:
            return "the driver has not published the new layout in time"
        await asyncio.sleep(_PAUSE)
    return ""


async def _failure(client: Client, name: str, namespace: str, deadline: float) -> str:
    """Wait for the end of a pod that changes a layout; return why it did not come to its end, or nothing."""
    while True:
        status = (await client.get(PODS, name, namespace)).get("status") or {}
        if status.get("phase") in TERMINAL_PHASES and status.get("reason") != "DeadlineExceeded":
            return ""
        events = await events_of(client, name, namespace)
        refusals = [each for each in events if each.startswith(REFUSED)]
        if refusals:
            return refusals[-1]
        if status.get("phase") in TERMINAL_PHASES or time.monotonic() > deadline:
            return events[-1] if events else "its pod did not end in time"
        await asyncio.sleep(_PAUSE)


async def _is_published(client: Client, change: LayoutChange) -> bool:
    place = change.place
    found = await client.list(SLICES, view=ResourceSlice, fieldSelector=f"spec.driver={place.driver}")
    members = [each for each in found.items if each.spec.pool.name == place.pool]
    if not members:
        return False
    current = newest_generation(members)
    if len(current) != current[0].spec.pool.resource_slice_count:
        return False
    gpus = published_gpus(device for each in current for device in each.spec.devices)
    return any(gpu.uuid == place.gpu.uuid and gpu.layout == change.layout for gpu in gpus)


async def finish_leftovers(
    client: Client, namespace: str, seconds: float, report: Callable[[str], None]
) -> None:
    """Wait for changes that a run which was killed had begun, and delete their objects."""
    names: dict[str, str] = {}
    for resource in (CLAIMS, PODS):
        for found in (await client.list(resource, namespace, labelSelector=LABEL)).items:
            gpu = (found["metadata"].get("labels") or {}).get(LABEL)
            if gpu is not None:
                names[found["metadata"]["name"]] = gpu
    deadline = time.monotonic() + seconds
    for name, gpu in names.items():
        report(f"a change of {gpu} that was begun before is finished first")
        with contextlib.suppress(NotFound):
            await _failure(client, name, namespace, deadline)
        await delete_probe(client, name, namespace)
