"""`dray up`: the whole system on this machine; Ctrl-C stops it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from dray.cli.output import CommandError, fail, say
from dray.cli.whatif import parse_nodes
from dray.sim.running_system import forget, is_running, read_state, remember, remembered
from dray.sim.system import Plan, System, SystemFailure

DEFAULT_DATA = Path("~/.local/share/dray").expanduser()


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--sim",
        action="append",
        default=[],
        metavar="PROFILE[:COUNT]",
        help="simulated nodes, for example dgx-h100:2",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="keep state here (default: temporary, gone at the end)"
    )
    parser.add_argument(
        "--secure-port", type=int, default=6443, metavar="N", help="port of the API (0: any free one)"
    )
    parser.add_argument(
        "--runtime", default="process", choices=("process", "runc", "none"),
        help="how containers run: process (no isolation), runc (root), none (states only)",
    )  # fmt: skip
    parser.add_argument("--no-host", action="store_true", help="do not make this machine a node")
    parser.add_argument(
        "--host-name", default=socket.gethostname().lower(), help="name of this machine's node"
    )
    parser.add_argument(
        "--policy",
        default="",
        choices=("", "first-fit", "pack", "spread", "frag", "topology"),
        help="how the scheduler chooses nodes and devices (default: as kube-scheduler does)",
    )
    parser.add_argument("--feature-gates", default="", metavar="NAME=true,…", help="as with kube-apiserver")
    parser.add_argument("-v", "--verbose", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Start, say what to type next, wait for Ctrl-C, stop."""
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING, format="%(levelname)s %(message)s"
    )
    try:
        return asyncio.run(_up(args))
    except CommandError as error:
        return fail("up", error)


async def _up(args: argparse.Namespace) -> int:
    simulated = parse_nodes(args.sim)
    temporary = args.data is None
    data = Path(tempfile.mkdtemp(prefix="dray-")) if temporary else _usable(args.data.expanduser().absolute())
    running = read_state(data)
    if running is not None and is_running(running):
        raise CommandError(
            f"a system already runs in {data} (process {running['pid']})", "`dray down` stops it"
        )
    plan = Plan(
        data,
        port=args.secure_port,
        simulated=simulated,
        host=None if args.no_host else args.host_name,
        runtime=args.runtime,
        policy=args.policy,
        feature_gates=args.feature_gates,
    )
    system = System(plan)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    began = time.monotonic()
    try:
        starting = asyncio.create_task(system.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            remember(data)
            _greet(system, time.monotonic() - began)
            await stop.wait()
        else:
            starting.cancel()
        return 0
    except SystemFailure as error:
        raise CommandError(str(error), f"logs are in {data / 'logs'}", code=1) from error
    finally:
        if sys.stderr.isatty():
            say("")
        say("stopping ...")
        await system.stop()
        forget(data)
        if temporary and not os.environ.get("DRAY_KEEP"):
            shutil.rmtree(data, ignore_errors=True)
        say("stopped")


def _greet(system: System, seconds: float) -> None:
    plan = system.plan
    nodes = [f"{count} x {profile.name}" for profile, count in plan.simulated] + (
        [plan.host] if plan.host else []
    )
    print(f"dray is up after {seconds:.1f} s: {', '.join(nodes) or 'no nodes'}")
    print()
    print(f"  export KUBECONFIG={plan.kubeconfig}")
    print("  kubectl get nodes,resourceslices")
    print("  dray get devices        # who holds what")
    print("  dray run --device CLASS -- CMD    # a pod with a device, in one line")
    print()
    print(f"dashboard (the certificate is this system's own): {system.dashboard_url}")
    print("Ctrl-C stops everything.", flush=True)


def current_data(given: Path | None) -> Path:
    """Return the folder of the system that is meant: the given one, else the latest started."""
    if given is not None:
        return given.expanduser().absolute()
    return remembered() or DEFAULT_DATA


def _usable(data: Path) -> Path:
    """Return the data folder, made if need be; raises CommandError when nothing can be kept there."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=data):
            return data
    except OSError as error:
        raise CommandError(
            f"cannot keep anything in {data}: {error.strerror or error}",
            "name another folder with --data; it is made if it is not there",
        ) from error
