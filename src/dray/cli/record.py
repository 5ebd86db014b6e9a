"""`dray record`: write when pods come, start and end, with their claims, as a trace for `dray sim`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dray.api.wording import plural
from dray.cli.arguments import add_flags, seconds, whole_number
from dray.cli.output import CommandError, say

if TYPE_CHECKING:
    from dray.client import Client

_EVERY = 30.0  # seconds between two lines about the progress


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("file", metavar="FILE", help="where to write the trace (JSON lines)")
    add("--duration", type=seconds(1.0), metavar="SECONDS", help="stop after this time (default: at Ctrl-C)")
    add(
        "--pods",
        type=whole_number(1, 5_000_000),
        metavar="N",
        help="stop after so many pods (default: no limit)",
    )
    add("--force", action="store_true", help="overwrite the file")
    add_flags(parser, "--kubeconfig", "--context")


def run(args: argparse.Namespace) -> int:
    """Record until the end."""
    from dray.cli.sources import connect

    path = Path(args.file)
    if path.exists() and not args.force:
        raise CommandError(f"{path} exists", "add --force to overwrite it")

    async def work() -> int:
        async with connect(args.kubeconfig, args.context) as client:
            with path.open("wb") as file:
                return await record(client, file, args.duration, args.pods)

    counted = 0
    with contextlib.suppress(KeyboardInterrupt):
        counted = asyncio.run(work())
        say(f"recorded {plural(counted, 'pod')} in {path}; try: dray sim run --trace {path}")
    return 0


async def record(client: Client, file: BinaryIO, duration: float | None, most: int | None) -> int:
    """Follow the cluster and write; returns the number of pods."""
    from dray.api.core import Pod
    from dray.api.resource import ResourceClaim, ResourceClaimTemplate
    from dray.client import Informer
    from dray.client.resources import CLAIM_TEMPLATES, CLAIMS, DEVICE_CLASSES, NODES, PODS, SLICES
    from dray.sim.recording import Recorder
    from dray.sim.trace import TraceWriter

    writer = TraceWriter()

    def write(lines: Iterable[bytes]) -> None:
        for line in lines:
            file.write(line + b"\n")
        file.flush()

    for resource in (NODES, SLICES, DEVICE_CLASSES):
        items = (await client.list(resource)).items
        objects = [{"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in items]
        write(writer.head(objects) if resource is NODES else writer.head(objects)[1:])
    pods = Informer(client, PODS, Pod)
    claims = Informer(client, CLAIMS, ResourceClaim)
    templates = Informer(client, CLAIM_TEMPLATES, ResourceClaimTemplate)

    def look_up(namespace: str, template: str, claim: str) -> Any:
        if template:
            found = templates.items.get(f"{namespace}/{template}")
            return found.spec.spec if found is not None else None
        known = claims.items.get(f"{namespace}/{claim}")
        return known.spec if known is not None else None

    recorder = Recorder(writer, look_up)
    began = time.monotonic()
    done = asyncio.Event()

    def changed(old: Pod | None, new: Pod | None) -> None:
        write(recorder.see(old, new, time.monotonic() - began))
        if most is not None and recorder.pods >= most:
            done.set()

    informers = (pods, claims, templates)
    tasks = [asyncio.create_task(each.run()) for each in informers]
    try:
        ready = asyncio.create_task(_synced(informers))
        await asyncio.wait([*tasks, ready], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                ready.cancel()
                task.result()  # one that ended has an error
        pods.add_handler(changed)
        tasks.append(asyncio.create_task(_show_progress(recorder, write)))
        tasks.append(asyncio.create_task(_ended(done)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration):
                finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    task.result()  # an informer that ended has an error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        write(recorder.retry())
        if recorder.unknown:
            say(f"warning: without {plural(recorder.unknown, 'pod')} whose claims or templates do not exist")
    return recorder.pods


async def _synced(informers: Iterable[Any]) -> None:
    for each in informers:
        await each.wait_synced()


async def _ended(done: asyncio.Event) -> None:
    await done.wait()


async def _show_progress(recorder: Any, write: Any) -> None:
    while True:
        await asyncio.sleep(_EVERY)
        write(recorder.retry())
        say(f"{plural(recorder.pods, 'pod')} so far; Ctrl-C ends the recording")
