"""`dray down`: stop the system that `dray up` started."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from dray.cli.output import CommandError, fail, say
from dray.cli.up import current_data


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the system (default: the latest started)"
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="how long to wait for the end"
    )


def run(args: argparse.Namespace) -> int:
    """Ask it to stop and wait."""
    from dray.sim.running_system import ask_to_stop, is_running, read_state, why_not_read

    data = current_data(args.data)
    state = read_state(data)
    if state is None or not ask_to_stop(state):
        hint = why_not_read(data) or "`dray up` starts one"
        return fail("down", CommandError(f"no system runs in {data}", hint, code=1))
    deadline = time.monotonic() + args.timeout
    while is_running(state):
        if time.monotonic() > deadline:
            return fail(
                "down",
                CommandError(f"process {state['pid']} has not ended after {args.timeout:.0f} s", code=1),
            )
        time.sleep(0.1)
    say("stopped")
    return 0
