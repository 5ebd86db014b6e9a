"""`dray down`: stop the system that `dray up` started."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from dray.cli.arguments import add_flags, seconds
from dray.cli.output import CommandError, say
from dray.cli.progress import doing
from dray.cli.which_system import current_data, running_state


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_flags(parser, "--data")
    parser.add_argument(
        "--timeout",
        type=seconds(),
        default=30.0,
        metavar="SECONDS",
        help="give up when it has not stopped by then (default: 30)",
    )


def run(args: argparse.Namespace) -> int:
    """Ask it to stop and wait; exit code 1 when nothing runs or it does not stop."""
    from dray.local.running_system import ask_to_stop, is_running

    if _ended_leftovers(args.data):
        return 0
    state = running_state(args.data)
    ask_to_stop(state)
    doing("waiting for the processes to stop")
    deadline = time.monotonic() + args.timeout
    while is_running(state):
        if time.monotonic() > deadline:
            raise CommandError(f"process {state['pid']} has not ended after {args.timeout:.0f} s", code=1)
        time.sleep(0.1)
    say("stopped")
    return 0


def _ended_leftovers(data: Path | None) -> bool:
    """End what runs on of a system whose `dray up` was killed, and its jobs; return whether there was anything."""
    from dray.local.containers import end_containers
    from dray.local.running_system import end_leftovers, leftovers, read_state

    folder = current_data(data)
    state = read_state(folder)
    if state is None or not leftovers(state):
        return False
    doing("ending the processes of a `dray up` that was killed")
    ended = end_leftovers(state)
    asyncio.run(end_containers(folder / "nodes", str(state.get("runtime", "process"))))
    say(f"stopped what a killed `dray up` left behind: {', '.join(ended)}")
    return True
