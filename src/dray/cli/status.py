"""`dray status`: what runs here, and how it is."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from dray.cli.output import CommandError, add_output_flag, emit, fail, table
from dray.cli.up import current_data


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the system (default: the latest started)"
    )
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Report; exit code 1 when nothing runs or a part is down."""
    from dray.sim.running_system import is_running, read_state, why_not_read

    data = current_data(args.data)
    state = read_state(data)
    if state is None or not is_running(state):
        hint = why_not_read(data) or "`dray up` starts one"
        return fail("status", CommandError(f"no system runs in {data}", hint, code=1))
    parts = {name: {**part, "running": is_running(part)} for name, part in state["parts"].items()}
    cluster = asyncio.run(_look(state["kubeconfig"]))
    report = {"data": state["data"], "kubeconfig": state["kubeconfig"], "parts": parts, "cluster": cluster}
    if args.output != "table":
        emit(report, args.output)
    else:
        print(f"kubeconfig: {state['kubeconfig']}")
        table(
            ["PART", "PID", "STATE", "LOG"],
            [[n, p["pid"], "running" if p["running"] else "DOWN", p["log"]] for n, p in parts.items()],
        )
        print(
            ", ".join(f"{count} {kind}" for kind, count in cluster.items())
            if cluster
            else "the API server does not answer"
        )
    return 0 if cluster and all(part["running"] for part in parts.values()) else 1


async def _look(kubeconfig: str) -> dict[str, Any]:
    from dray.client import Client, ClientError
    from dray.sim.snapshot import SnapshotError, capture

    try:
        async with Client.connect(kubeconfig) as client:
            snapshot = await capture(client)
    except (ClientError, SnapshotError):
        return {}
    return {kind: count for kind, count in snapshot.counts().items() if count}
