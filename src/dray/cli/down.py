"""`dray down`: stop the system that `dray up` started."""

from __future__ import annotations

import argparse
import time

from dray.cli.arguments import add_flags, seconds
from dray.cli.output import CommandError, say
from dray.cli.progress import doing
from dray.cli.which_system import running_state


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
