"""`dray up`: the whole system on this machine; Ctrl-C stops it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dray.api.wording import plural
from dray.cli.arguments import add_flags, parse_gates
from dray.cli.output import CommandError, say
from dray.cli.progress import progress
from dray.cli.services import log_to_stderr, on_stop
from dray.host.sockets import is_answering
from dray.local.running_system import (
    end_leftovers,
    forget,
    is_running,
    leftovers,
    read_state,
    remember,
)
from dray.local.shared_machine import shared_socket
from dray.local.system import Plan, System, SystemFailure

if TYPE_CHECKING:
    from dray.sim.twin import Twin


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_flags(parser, "--sim", "--from", "--sim-nodes")
    parser.add_argument(
        "--workloads",
        action="store_true",
        help="with --from: also copy pods, claims and templates; the scheduler places them anew, their containers only sleep",
    )
    add_flags(
        parser, "--data", help="keep state in this folder (default: a temporary one, deleted at the end)"
    )
    add_flags(parser, "--secure-port", default=6443)
    add_flags(parser, "--runtime")
    parser.add_argument("--no-host", action="store_true", help="do not make this machine a node")
    add_flags(parser, "--host-name")
    parser.add_argument(
        "--shared",
        action="store_true",
        help="let everybody of this machine use it through /run/dray/api.sock, as themselves (needs root)",
    )
    parser.add_argument(
        "--keep-jobs",
        action="store_true",
        help="at the end leave running jobs alone: the next start with the same --data takes them over",
    )
    add_flags(
        parser, "--policy", help="how to choose among nodes and devices (default: as kube-scheduler does)"
    )
    parser.add_argument(
        "--autoscale",
        type=Path,
        metavar="CATALOGUE",
        help="also run `dray autoscale` with this catalogue: nodes come and go with the pods that need them",
    )
    add_flags(parser, "--feature-gates", "--log-format", "--verbose")


def run(args: argparse.Namespace) -> int:
    """Start, say what to type next, wait for Ctrl-C, stop."""
    log_to_stderr(args, logging.WARNING)
    if args.keep_jobs and args.data is None:
        raise CommandError("--keep-jobs needs --data DIR", "a temporary folder is deleted at the end")
    if args.workloads and args.snapshot is None:
        raise CommandError("--workloads needs --from FILE", "`dray snapshot FILE` makes one")
    return asyncio.run(up(args))


async def up(args: argparse.Namespace) -> int:
    """Start what the flags say, and stop it when told to."""
    from dray.sim.hardware import parse_hardware

    simulated = parse_hardware(args.sim)
    twin = _twin(args)
    if args.data is not None:
        await _end_leftovers(args.data.expanduser().absolute())
    _check_first(args)
    is_temporary = args.data is None
    data = (
        Path(tempfile.mkdtemp(prefix="dray-")) if is_temporary else _usable(args.data.expanduser().absolute())
    )
    running = read_state(data)
    if running is not None and is_running(running):
        raise CommandError(
            f"a system already runs in {data} (process {running['pid']})", "`dray down` stops it"
        )
    plan = Plan(
        data,
        port=args.secure_port,
        simulated=simulated,
        host=None if args.no_host or twin is not None else args.host_name,
        twin=twin,
        snapshot=args.snapshot.absolute() if twin is not None else None,
        runtime=args.runtime,
        policy=args.policy,
        feature_gates=",".join(args.feature_gates),
        log_format=args.log_format,
        socket=_shared_socket() if args.shared else None,
        catalogue=args.autoscale.absolute() if args.autoscale is not None else None,
        sim_nodes=args.sim_nodes,
        keep_jobs=args.keep_jobs,
    )
    _check_light(plan)
    system = System(plan)
    stop = asyncio.Event()
    on_stop(stop.set)
    began = time.monotonic()
    try:
        with progress("starting the API server, the scheduler, the controllers and the nodes"):
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
        is_temporary = False  # the logs say why: keep them
        raise CommandError(str(error), f"logs are in {data / 'logs'}", code=1) from error
    finally:
        if sys.stderr.isatty():
            say("")
        say("stopping ...")
        await system.stop()
        forget(data)
        if is_temporary and not os.environ.get("DRAY_KEEP"):
            shutil.rmtree(data, ignore_errors=True)
        say("stopped")


async def _end_leftovers(data: Path) -> None:
    """End the parts of a system in this folder whose `dray up` was killed; its jobs go on, and are taken over."""
    state = read_state(data)
    if state is None or not leftovers(state):
        return
    ended = await asyncio.to_thread(end_leftovers, state)
    say(f"ended what a killed `dray up` left behind: {', '.join(ended)}")


def _twin(args: argparse.Namespace) -> Twin | None:
    if args.snapshot is None:
        return None
    from dray.sim.snapshot import load_snapshot
    from dray.sim.twin import make_twin

    return make_twin(load_snapshot([args.snapshot]), with_workloads=args.workloads)


def _check_light(plan: Plan) -> None:
    """Refuse light nodes that must be full ones; raises CommandError."""
    from dray.local.node_plans import LIGHT, refuse_heavy

    if plan.sim_nodes == LIGHT:
        try:
            refuse_heavy(plan.nodes())
        except ValueError as error:
            raise CommandError(
                f"--sim-nodes light: {error}", "use --runtime none, or --sim-nodes auto"
            ) from error


def _shared_socket() -> Path:
    """Return where a shared system listens; raises CommandError when it cannot be shared."""
    path = shared_socket()
    if path is None:
        raise CommandError("--shared: DRAY_SOCKET is empty", "unset it, or set it to the path of the socket")
    if os.geteuid() != 0:
        raise CommandError(
            "--shared needs root: jobs run as the people who asked", "use sudo, or leave it out"
        )
    if is_answering(path):
        raise CommandError(
            f"--shared: another system answers at {path}", "`dray status` and `dray down` find it", code=1
        )
    return path


def _check_first(args: argparse.Namespace) -> None:
    """Refuse at once what would fail after the first processes are started. Raises CommandError."""
    parse_gates(args.feature_gates)
    if args.autoscale is not None:
        _check_catalogue(args.autoscale)
    if args.runtime == "runc":
        if os.geteuid() != 0:
            raise CommandError("--runtime runc needs root", "use sudo, or --runtime process")
        if shutil.which("runc") is None:
            raise CommandError(
                "--runtime runc: runc is not installed", "install runc, or use --runtime process"
            )
    if args.secure_port == 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server binds
        try:
            probe.bind(("127.0.0.1", args.secure_port))
        except OSError as error:
            raise CommandError(
                f"port {args.secure_port} cannot be used: {error.strerror}",
                "`dray status` shows whether another `dray up` runs; choose another with --secure-port (0: any)",
            ) from error


def _check_catalogue(path: Path) -> None:
    """Refuse a catalogue that `dray autoscale` could not use. Raises CommandError and errors of the catalogue."""
    from dray.cli.capacity import read_catalogue
    from dray.sim.snapshot import Snapshot

    read_catalogue(str(path), Snapshot())


def _greet(system: System, seconds: float) -> None:
    plan = system.plan
    nodes = [f"{count} x {profile.name}" for profile, count in plan.simulated]
    nodes += [f"a copy of {plural(len(plan.twin.nodes), 'node')}"] if plan.twin is not None else []
    nodes += [plan.host] if plan.host else []
    sharing = (
        f"everybody of this machine uses it as themselves, through {plan.socket}\n" if plan.socket else ""
    )
    print(f"""\
dray is up after {seconds:.1f} s: {", ".join(nodes) or "no nodes"}

  export KUBECONFIG={plan.kubeconfig}
  kubectl get nodes,resourceslices
  dray get devices                  # devices and who holds them
  dray run --device CLASS -- CMD    # a pod with a device, in one line

dashboard (its certificate is signed by this system's own CA): {system.dashboard_url}
{sharing}Ctrl-C stops everything.""", flush=True)  # fmt: skip


def _usable(data: Path) -> Path:
    """Return the data folder, made if need be; raises CommandError when it cannot be written to."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=data):
            return data
    except OSError as error:
        raise CommandError(
            f"cannot write to {data}: {error.strerror or error}",
            "choose another folder with --data; it is created if it does not exist",
        ) from error
