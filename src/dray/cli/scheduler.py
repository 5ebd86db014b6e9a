"""`dray scheduler`: schedule pods that name it, on any Kubernetes API server ≥ 1.34."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging

from dray.api.well_known import SCHEDULER_LEASE_PREFIX
from dray.cli.added_affinity import load_added_affinity
from dray.cli.arguments import add_flags, parse_gates, seconds, whole_number
from dray.cli.output import CommandError
from dray.cli.policies import load_policy
from dray.cli.services import log_to_stderr, make_election, until_stopped
from dray.client import Client, LeaderElection
from dray.control.scheduling import SchedulerOptions, SchedulingLoop
from dray.control.scheduling.probes import serve_probes
from dray.host.garbage import collect_in_small_steps
from dray.host.heap import keep_heap_compact

# Seconds. A standby sees the last renewal after a retry period at most, waits for the lease to run out, and looks
# once every retry period: it leads at most 13 seconds after its predecessor died.
_LEASE = 10.0
_RENEW_DEADLINE = 7.0
_RETRY_PERIOD = 1.5


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add_flags(parser, "--kubeconfig", "--context")
    add(
        "--name",
        metavar="NAME",
        default="dray",
        help="schedule pods with this spec.schedulerName (default: dray)",
    )
    add_flags(
        parser, "--policy", help="how to choose among nodes and devices (default: as kube-scheduler does)"
    )
    add_flags(parser, "--feature-gates")
    add(
        "--commits",
        type=whole_number(1, 1000),
        default=16,
        metavar="N",
        help="how many pods are written at the same time (default: 16)",
    )
    add(
        "--binding-timeout",
        type=seconds(),
        default=600.0,
        metavar="SECONDS",
        help="how long to wait for binding conditions (default: 600)",
    )
    add(
        "--filter-timeout",
        type=seconds(),
        default=5.0,
        metavar="SECONDS",
        help="longest search for the devices of one pod; 0: no limit (default: 5)",
    )
    add(
        "--added-affinity",
        metavar="FILE",
        help="node affinity for every pod, beside its own: the fields of spec.affinity.nodeAffinity as YAML or JSON",
    )
    add("--no-preemption", action="store_true", help="never evict pods to make room for others")
    add(
        "--fair-share",
        action="store_true",
        help="of equal priority, first the pods of the namespace that has had the least device time lately",
    )
    add(
        "--guarded",
        action="store_true",
        help="`dray guard` judges every allocation: do not warn of other schedulers of the same devices",
    )
    add(
        "--scheduled-events",
        action="store_true",
        help="record an event for every bound pod, as kube-scheduler does",
    )
    add_flags(
        parser,
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="stand by while another scheduler of this name leads (default: yes)",
    )
    add(
        "--leader-identity",
        metavar="ID",
        help="holder of the lease; fixed for a process that a supervisor runs only once (default: host name and a random part)",
    )
    add_flags(parser, "--leader-namespace")
    add(
        "--probe-address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address of /healthz and /metrics (default: 127.0.0.1)",
    )
    add(
        "--probe-port",
        type=whole_number(-1, 65535),
        default=-1,
        metavar="N",
        help="port of /healthz and /metrics (default: none)",
    )
    add_flags(parser, "--max-devices", "--log-format", "--verbose")


def run(args: argparse.Namespace) -> int:
    """Run until interrupted."""
    import uvloop

    log_to_stderr(args, logging.WARNING)
    keep_heap_compact()
    options = SchedulerOptions(
        name=args.name,
        policy=load_policy(args.policy),
        features=parse_gates(args.feature_gates),
        max_commits=args.commits,
        binding_timeout=args.binding_timeout,
        filter_timeout=args.filter_timeout,
        may_preempt=not args.no_preemption,
        added_affinity=load_added_affinity(args.added_affinity),
        records_bindings=args.scheduled_events,
        shares_fairly=args.fair_share,
        is_guarded=args.guarded,
    )
    uvloop.run(_serve(args, options))
    return 0


async def _serve(args: argparse.Namespace, options: SchedulerOptions) -> None:
    # Filling the informers makes millions of objects and no garbage: collecting would only walk them.
    gc.disable()
    agent, lease = f"dray-scheduler/{options.name}", f"{SCHEDULER_LEASE_PREFIX}{options.name}"
    async with Client.connect(args.kubeconfig, args.context, user_agent=agent) as client:
        election = None
        if args.leader_elect:
            election = make_election(
                client,
                lease,
                args.leader_namespace,
                identity=args.leader_identity,
                lease_duration=_LEASE,
                renew_deadline=_RENEW_DEADLINE,
                retry_period=_RETRY_PERIOD,
            )
        loop = SchedulingLoop(election.fence(client) if election is not None else client, options)
        probes = await _probes(loop, args) if args.probe_port >= 0 else None
        announcing = asyncio.create_task(_announce(loop, election))
        try:
            if not await until_stopped(loop.run(election)):
                raise CommandError(
                    f"the lease {lease} was lost: another process may schedule now",
                    "start it again: it stands by until it is elected",
                    code=1,
                )
        finally:
            announcing.cancel()
            if probes is not None:
                probes.close()


async def _probes(loop: SchedulingLoop, args: argparse.Namespace) -> asyncio.Server:
    series = None
    if args.max_devices:
        from dray.workbench.scheduler_metrics import scheduler_device_metrics

        series = scheduler_device_metrics(loop, args.max_devices).text
    probes = await serve_probes(loop, args.probe_address, args.probe_port, series)
    print(f"probes on port {probes.sockets[0].getsockname()[1]}", flush=True)
    return probes


async def _announce(loop: SchedulingLoop, election: LeaderElection | None) -> None:
    await loop.is_synced.wait()
    # The informers live as long as the process: keep the collector from walking them.
    gc.collect()
    gc.freeze()
    collect_in_small_steps()
    gc.enable()
    if election is not None and not loop.is_ready.is_set():
        print(f"standing by as {election.identity}", flush=True)
    await loop.is_ready.wait()
    print(f"ready: scheduling pods with schedulerName {loop.options.name!r}", flush=True)
