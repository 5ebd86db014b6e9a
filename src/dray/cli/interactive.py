"""Jobs at a terminal: `dray run -it` and `dray shell`.

The pod holds the devices and does nothing (`sleep`); the command runs in it over a websocket, on a terminal. So
the job ends with the connection: when the command ends, when the terminal is closed, and when the caller is killed,
the far side hangs up, and the pod is deleted or reaches its time limit.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from dray.api.json_types import JsonObject
from dray.cli.following import HOPELESS, NOT_STARTED, TIMED_OUT, explain_while_waiting, pod_states
from dray.cli.job_objects import create_job, delete_job
from dray.cli.output import CommandError, say
from dray.cli.terminal import run_in_job
from dray.workbench.run_manifests import Job, exit_code_of, is_started, trouble_of

if TYPE_CHECKING:
    from dray.client import Client

HOLD = ("sleep", "infinity")  # what the pod itself runs


def check_terminal(*, with_tty: bool) -> None:
    """Refuse a terminal where there is none."""
    if with_tty and not sys.stdin.isatty():
        raise CommandError("standard input is not a terminal", "leave out -t")


async def run_at_terminal(
    client: Client, job: Job, spec: JsonObject | None, *, with_stdin: bool, with_tty: bool, timeout: float
) -> int:
    """Create the job, run its command with our standard streams, and delete it."""
    await create_job(client, replace(job, command=HOLD), spec)
    loop = asyncio.get_running_loop()
    working = asyncio.current_task()
    assert working is not None
    # A closed terminal (SIGHUP) and `kill` end the job as well as its command's own end.
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, working.cancel)
    try:
        await _until_started(client, job, timeout)
        return await run_in_job(
            client, job.namespace, job.name, job.command, with_stdin=with_stdin, with_tty=with_tty
        )
    except asyncio.CancelledError:
        working.uncancel()
        return 130
    finally:
        await delete_job(client, job, 1)


async def _until_started(client: Client, job: Job, timeout: float) -> None:
    explaining = asyncio.create_task(explain_while_waiting(client, job.namespace, job.name))
    try:
        async with asyncio.timeout(timeout or None):
            async for pod in pod_states(client, job.namespace, job.name):
                if (pod.get("spec") or {}).get("nodeName"):
                    explaining.cancel()
                trouble = trouble_of(pod)
                if trouble.partition(":")[0] in HOPELESS:
                    raise CommandError(f"not started: {trouble}", code=NOT_STARTED)
                if exit_code_of(pod) is not None:
                    message = (pod.get("status") or {}).get("message") or "its container ended"
                    raise CommandError(f"the job is over before it began: {message}", code=NOT_STARTED)
                if is_started(pod):
                    if job.seconds is not None:
                        say(f"this session ends after {job.seconds} s")
                    return
        raise CommandError(f"job {job.namespace}/{job.name} was deleted by somebody else", code=1)
    except TimeoutError:
        raise CommandError(f"not started after {timeout:g} s", code=TIMED_OUT) from None
    finally:
        explaining.cancel()
        await asyncio.gather(explaining, return_exceptions=True)
