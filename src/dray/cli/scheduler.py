"""`dray scheduler`: schedule pods that name it, on any Kubernetes API server ≥ 1.34."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import uuid

from dray.allocator import POLICIES
from dray.api.features import KNOWN_GATES, Features
from dray.cli.arguments import seconds, whole_number
from dray.cli.output import CommandError
from dray.client import Client, ClientError, LeaderElection
from dray.control.scheduling import TOPOLOGY, SchedulerOptions, SchedulingLoop
from dray.control.scheduling.probes import serve_probes


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, in-cluster, ~/.kube/config")
    add("--context", metavar="NAME", help="context of the kubeconfig (default: its current one)")
    add("--name", default="dray", help="schedule pods with this spec.schedulerName (default: dray)")
    add(
        "--policy",
        default="",
        choices=list(dict.fromkeys(["", *POLICIES, TOPOLOGY])),
        help="choose nodes and devices by this policy",
    )
    add("--feature-gates", metavar="NAME=true,…", default="", help="switch features as on kube-scheduler")
    add(
        "--commits",
        type=whole_number(1, 1000),
        default=16,
        metavar="N",
        help="pods written at the same time (default: 16)",
    )
    add(
        "--binding-timeout",
        type=seconds(),
        default=600.0,
        metavar="SECONDS",
        help="wait for binding conditions",
    )
    add(
        "--filter-timeout",
        type=seconds(),
        default=5.0,
        metavar="SECONDS",
        help="longest search for devices of one pod; 0 is no limit (default: 5)",
    )
    add("--no-preemption", action="store_true", help="never evict pods to make room")
    add(
        "--guarded",
        action="store_true",
        help="`dray guard` judges every allocation: do not wait for other schedulers",
    )
    add(
        "--scheduled-events",
        action="store_true",
        help="record an event for every bound pod, as kube-scheduler does",
    )
    add("--leader-elect", action="store_true", help="stand by while another scheduler of this name leads")
    add(
        "--leader-namespace",
        default="kube-system",
        metavar="NS",
        help="where the lease is (default: kube-system)",
    )
    add("--probe-address", default="127.0.0.1", metavar="ADDR", help="address of /healthz and /metrics")
    add(
        "--probe-port",
        type=whole_number(-1, 65535),
        default=-1,
        metavar="PORT",
        help="port of /healthz and /metrics (default: none)",
    )
    add("-v", "--verbose", action="count", default=0, help="say more on stderr")


def parse_gates(text: str) -> Features:
    """Read `A=true,B=false` on top of the defaults; unknown gates are an error."""
    on: list[str] = []
    off: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        if name not in KNOWN_GATES or value.lower() not in ("true", "false"):
            known = ", ".join(KNOWN_GATES)
            raise CommandError(
                f"--feature-gates: cannot read {part!r}",
                f"write NAME=true or NAME=false with one of: {known}",
            )
        (on if value.lower() == "true" else off).append(name)
    return Features.default().switched(on, off)


def run(args: argparse.Namespace) -> int:
    """Run until interrupted."""
    import uvloop

    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(args.verbose, 2)]
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    options = SchedulerOptions(
        name=args.name,
        policy=args.policy,
        features=parse_gates(args.feature_gates),
        max_commits=args.commits,
        binding_timeout=args.binding_timeout,
        filter_timeout=args.filter_timeout,
        may_preempt=not args.no_preemption,
        records_bindings=args.scheduled_events,
        is_guarded=args.guarded,
    )
    uvloop.run(_serve(args, options))
    return 0


async def _serve(args: argparse.Namespace, options: SchedulerOptions) -> None:
    # Filling the caches makes millions of objects and no garbage: collecting would only walk them.
    gc.disable()
    agent = f"dray-scheduler/{options.name}"
    async with Client.connect(args.kubeconfig, args.context, user_agent=agent) as client:
        election = _election(args, client, options.name) if args.leader_elect else None
        loop = SchedulingLoop(election.fence(client) if election is not None else client, options)
        work = asyncio.create_task(_lead(election, loop) if election is not None else loop.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        probes = (
            await serve_probes(loop, args.probe_address, args.probe_port) if args.probe_port >= 0 else None
        )
        if probes is not None:
            print(f"probes on port {probes.sockets[0].getsockname()[1]}", flush=True)
        announcing = asyncio.create_task(_announce(loop))
        failure: BaseException | None = None
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await work
        except* ClientError as group:
            failure = group.exceptions[0]  # raised here it would come out wrapped in a group again
        finally:
            announcing.cancel()
            if probes is not None:
                probes.close()
        if failure is not None:
            raise failure


async def _announce(loop: SchedulingLoop) -> None:
    await loop.is_ready.wait()
    # The caches live as long as the process: keep the collector from walking them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    print(f"ready: scheduling pods with schedulerName {loop.options.name!r}", flush=True)


def _election(args: argparse.Namespace, client: Client, name: str) -> LeaderElection:
    identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    return LeaderElection(client, f"dray-scheduler-{name}", identity, namespace=args.leader_namespace)


async def _lead(election: LeaderElection, loop: SchedulingLoop) -> None:
    """Schedule while holding the lease; losing it ends the process, and its supervisor starts anew."""
    print(f"standing by as {election.identity}", flush=True)
    await election.run(loop.run)
