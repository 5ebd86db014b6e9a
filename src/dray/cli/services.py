"""What commands that run until they are stopped have in common: logs, signals, a lease."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dray.host.log_format import start_logging

if TYPE_CHECKING:
    from dray.client import Client, LeaderElection


def log_to_stderr(args: argparse.Namespace, quiet: int = logging.INFO) -> None:
    """Log to stderr as `--verbose` and `--log-format` say: from level `quiet` on, and more for every `-v`."""
    start_logging(max(logging.DEBUG, quiet - 10 * args.verbose), getattr(args, "log_format", "text"))


def on_stop(action: Callable[[], Any]) -> None:
    """Call `action` when the process is asked to stop (SIGINT, SIGTERM)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, action)


async def until_stopped(work: Awaitable[Any]) -> bool:
    """Await the work of a process; return whether a signal stopped it. Of several failures the first is raised."""
    task = asyncio.ensure_future(work)
    on_stop(task.cancel)
    try:
        await task
        return False
    except asyncio.CancelledError:
        return True
    except BaseExceptionGroup as group:
        # For example: one of many informers may not list. The first says enough.
        raise first_error(group) from None


def first_error(error: BaseException) -> BaseException:
    """Return the first exception of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def make_election(
    client: Client, lease: str, namespace: str, *, identity: str | None = None, **options: Any
) -> LeaderElection:
    """Return this process's candidacy for a lease."""
    from dray.client import LeaderElection

    identity = identity or f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    return LeaderElection(client, lease, identity, namespace=namespace, **options)


async def work_as_leader(election: LeaderElection, work: Callable[[], Awaitable[None]]) -> None:
    """Work while holding the lease; losing it ends the process, and its supervisor starts a new one."""
    print(f"standing by as {election.identity}", flush=True)
    await election.run(work)
