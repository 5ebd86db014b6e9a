"""Follow a job: why it waits, its output while it runs, how it ended.

`dray run`, `logs`, `wait` and `attach` share this. A job that waits is explained after a moment, and again when
its place in the queue changes: position, reason, who holds what and until when.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from dray.api.json_types import JsonObject
from dray.cli.output import CommandError, say
from dray.cli.queue_reports import jobs_of_others, report_lines
from dray.workbench.jobs import holders, job_states, position_text, queue_order
from dray.workbench.run_manifests import CONTAINER, eviction_of, exit_code_of, is_started, trouble_of

if TYPE_CHECKING:
    from dray.client import Client

EXPLAIN_AFTER = 2.0  # seconds without a node, before we say why
LOOK_EVERY = 15.0  # seconds between two looks at the queue
TIMED_OUT = 124  # as timeout(1)
NOT_STARTED = 127  # as a shell says of a command that cannot be run
HOPELESS = frozenset({"RunContainerError", "CreateContainerError", "InvalidImageName", "StartError"})
WARN_BEFORE = (600, 60)  # seconds before the end of the job's time


async def follow(client: Client, namespace: str, name: str, timeout: float = 0.0) -> int:
    """Print a job's output until it ends; returns its exit code."""
    explaining = asyncio.create_task(explain_while_waiting(client, namespace, name))
    printing: asyncio.Task[None] | None = None
    warning: asyncio.Task[None] | None = None
    told = ""
    try:
        async with asyncio.timeout(timeout or None) as limit:
            async for pod in pod_states(client, namespace, name):
                if (pod.get("spec") or {}).get("nodeName"):
                    explaining.cancel()
                trouble = trouble_of(pod)
                if trouble and trouble != told:
                    say(f"not started: {trouble}")
                    told = trouble
                    if trouble.partition(":")[0] in HOPELESS:
                        return NOT_STARTED
                if printing is None and is_started(pod):
                    limit.reschedule(None)
                    printing = asyncio.create_task(print_log(client, namespace, name))
                    if not _is_warned_by_node(pod):
                        warning = asyncio.create_task(_warn_before_end(pod))
                code = exit_code_of(pod)
                if code is not None:
                    await _report_end(pod, printing)
                    return code
        raise CommandError(f"job {namespace}/{name} was deleted by somebody else", code=1)
    except TimeoutError:
        if not explaining.done():
            explaining.cancel()
            await explain_waiting(client, namespace, name)
        raise CommandError(f"not started after {timeout:g} s", code=TIMED_OUT) from None
    finally:
        tasks = [task for task in (explaining, printing, warning) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _report_end(pod: JsonObject, printing: asyncio.Task[None] | None) -> None:
    status = pod.get("status") or {}
    if printing is not None:
        await printing
        if status.get("reason"):  # DeadlineExceeded, Preempted, Evicted: not the command's own end
            say(f"ended: {status['reason']}: {status.get('message') or ''}".rstrip(": "))
        elif eviction := eviction_of(pod):
            say(f"ended: {eviction}")
    else:
        say(status.get("message") or "the job failed before it started")


def _is_warned_by_node(pod: JsonObject) -> bool:
    """Return whether the node writes warnings into the job's log, as dray's agent does for processes."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return any(str(each.get("containerID") or "").startswith("process://") for each in statuses)


async def _warn_before_end(pod: JsonObject) -> None:
    """Say when the job's time is nearly over."""
    (job,) = job_states([pod], [])
    if job.ends is None:
        return
    for seconds in WARN_BEFORE:
        left = job.ends - seconds - time.time()
        if left > 0:
            await asyncio.sleep(left)
            say(f"job {job.name} ends in {seconds // 60} min: its time is over then")


async def pod_states(client: Client, namespace: str, name: str) -> AsyncIterator[JsonObject]:
    """Yield the pod as it is now and after every change, until it is gone."""
    from dray.client import Gone, NotFound, TransportError
    from dray.client.resources import PODS

    while True:
        try:
            pod = await client.get(PODS, name, namespace)
        except NotFound:
            return
        yield pod
        selector = f"metadata.name={name}"
        revision = pod["metadata"]["resourceVersion"]
        with contextlib.suppress(Gone, TransportError):
            async for event in client.watch(
                PODS, namespace, fieldSelector=selector, resourceVersion=revision
            ):
                if event.type == "DELETED":
                    return
                yield event.object
        await asyncio.sleep(0.2)


async def explain_while_waiting(client: Client, namespace: str, name: str) -> None:
    """Print why the job waits, and what is new about it, until cancelled."""
    await asyncio.sleep(EXPLAIN_AFTER)
    told: list[str] = []
    while True:
        lines = await waiting_lines(client, namespace, name)
        if lines != told and not told:
            say("waiting:")
        for line in lines:
            if line not in told:
                say(f"  {line}")
        told = lines
        await asyncio.sleep(LOOK_EVERY)


async def explain_waiting(client: Client, namespace: str, name: str) -> None:
    """Print why the job has no place yet."""
    say("waiting:")
    for line in await waiting_lines(client, namespace, name):
        say(f"  {line}")


async def waiting_lines(client: Client, namespace: str, name: str) -> list[str]:
    """Return the place in the queue, the reason, and who holds what until when."""
    from dray.cli.explain import explain
    from dray.client import ClientError
    from dray.sim.other_users import fetch_report
    from dray.sim.snapshot import SnapshotError, capture

    key = f"{namespace}/{name}"
    try:
        snapshot = await capture(client)
        pods = [obj for obj in snapshot.objects if obj["kind"] == "Pod"]
        claims = [obj for obj in snapshot.objects if obj["kind"] == "ResourceClaim"]
        jobs = job_states(pods, claims)
        mine = next((job for job in jobs if job.key == key), None)
        if mine is not None and mine.state == "after":
            return [f"it begins after job {mine.after}"]
        report = await fetch_report(client)
        told = report_lines(report, mine.uid, namespace) if mine is not None else []
        place = position_text(queue_order(jobs), key)
        found = explain(snapshot, "pod", key)
    except (SnapshotError, ClientError, CommandError) as error:
        return [f"for a node ({error})"]
    others = [*jobs, *jobs_of_others(report, jobs)]
    held = holders(job for job in others if job.key != key) if mine and mine.wanted else []
    return [*(told or ([place] if place else [])), *found["lines"], *held]


async def print_log(client: Client, namespace: str, name: str, query: str = "follow=true") -> None:
    """Copy the job's output to ours, as it comes."""
    from dray.client import ApiError, Request
    from dray.client.resources import PODS

    target = f"{PODS.path(namespace, name, 'log')}?{query}&container={CONTAINER}"
    for attempt in range(5):
        response = await client.transport.send(Request("GET", target, stream=True, timeout=None))
        if response.status < 300 and response.pieces is not None:
            break
        # The node may report the start a moment before it can be asked for the log.
        await asyncio.sleep(0.1 * 2**attempt)
    else:
        say(f"the log cannot be read: {response.status} {response.body.decode('utf-8', 'replace')[:200]}")
        return
    try:
        async for piece in response.pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except ApiError as error:
        say(f"the log was cut off: {error}")
    finally:
        await response.close()
