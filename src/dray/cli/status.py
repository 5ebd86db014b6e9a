"""`dray status`: the processes of a running `dray up`, and what its cluster holds."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from dray.cli.arguments import add_flags
from dray.cli.output import add_output_flag, as_data, as_table
from dray.cli.which_system import running_state


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_flags(parser, "--data", "--watch")
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Report; exit code 1 when nothing runs or a process is down."""
    from dray.local.running_system import is_running

    last = ""
    while True:
        state = running_state(args.data)
        parts = {name: {**part, "running": is_running(part)} for name, part in state["parts"].items()}
        counts, problem = asyncio.run(_counts(state["kubeconfig"]))
        report = {"data": state["data"], "kubeconfig": state["kubeconfig"], "parts": parts, "cluster": counts}
        text = as_data(report, args.output) if args.output != "table" else _text(report, problem)
        if text != last:
            print(text, end="", flush=True)
        if not args.watch:
            return 0 if counts and all(part["running"] for part in parts.values()) else 1
        last = text
        time.sleep(2)


def _text(report: dict[str, Any], problem: str) -> str:
    rows = [
        [name, part["pid"], "running" if part["running"] else "DOWN", part["log"]]
        for name, part in report["parts"].items()
    ]
    counts = ", ".join(f"{count} {kind}" for kind, count in report["cluster"].items())
    table = as_table(["PART", "PID", "STATE", "LOG"], rows)
    return f"kubeconfig: {report['kubeconfig']}\n{table}{counts or problem}\n"


async def _counts(kubeconfig: str) -> tuple[dict[str, int], str]:
    """Return how many objects of each kind there are, or none and the reason."""
    from dray.cli.failures import describe
    from dray.client import Client, ClientError
    from dray.sim.snapshot import SnapshotError, capture

    try:
        async with Client.connect(kubeconfig) as client:
            snapshot = await capture(client)
    except (ClientError, SnapshotError) as error:
        return {}, describe(error).message
    return {kind: count for kind, count in snapshot.counts().items() if count}, ""
