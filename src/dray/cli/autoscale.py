"""`dray autoscale`: simulated nodes of a running `dray up` come and go with the pods that need them."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dray.cli.arguments import add_flags, seconds
from dray.cli.output import CommandError
from dray.cli.services import log_to_stderr, until_stopped
from dray.cli.which_system import running_state
from dray.client.bounded_files import read_file
from dray.host.random_names import random_suffix
from dray.host.sockets import SocketLock, SocketTakenError

if TYPE_CHECKING:
    from dray.client import Client
    from dray.sim.snapshot import Snapshot
    from dray.workbench.autoscaling import NodeGroups, ScalingOptions
    from dray.workbench.capacity import Catalogue

_TLS_FLAGS = ("tls_cert_file", "tls_private_key_file", "client_ca_file")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "--catalogue",
        required=True,
        metavar="FILE",
        help="node types with prices, minimum and maximum numbers, and compute classes (YAML)",
    )
    add(
        "--interval",
        type=seconds(0.2, 3600),
        default=5.0,
        metavar="SECONDS",
        help="time between two checks of the cluster (default: 5)",
    )
    add(
        "--idle",
        type=seconds(0, 86400),
        default=600.0,
        metavar="SECONDS",
        help="remove a node after this time without use (default: 600)",
    )
    add(
        "--provision-timeout",
        type=seconds(1, 3600),
        default=300.0,
        metavar="SECONDS",
        help="a node that has not joined by then is given up (default: 300)",
    )
    add(
        "--serve",
        metavar="HOST:PORT",
        help="decide nothing; serve the node groups to cluster-autoscaler (its external gRPC provider)",
    )
    add("--tls-cert-file", type=Path, metavar="FILE", help="with --serve: certificate of the service")
    add("--tls-private-key-file", type=Path, metavar="FILE", help="with --serve: key of the certificate")
    add("--client-ca-file", type=Path, metavar="FILE", help="with --serve: CA of the callers' certificates")
    add_flags(parser, "--data", "--runtime", "--log-format", "--verbose")


def run(args: argparse.Namespace) -> int:
    """Scale until stopped."""
    log_to_stderr(args, logging.WARNING)
    given = [name for name in _TLS_FLAGS if getattr(args, name) is not None]
    if given and (not args.serve or len(given) < len(_TLS_FLAGS)):
        raise CommandError(
            "TLS needs --serve, --tls-cert-file, --tls-private-key-file and --client-ca-file",
            "without TLS a loopback address can be served",
        )
    data = _data(args.data)
    read_file(Path(args.catalogue))  # what is wrong with the file is said before anything is done
    # Two of them would host the same nodes.
    lock = SocketLock(
        data / "autoscaled" / "lock", "stop it first (`dray up --autoscale` has one of its own)"
    )
    try:
        lock.acquire()
    except SocketTakenError as error:
        raise CommandError(str(error), code=1) from error
    os.umask(0o077)  # what agents and drivers leave below the nodes' folders is for this user alone
    try:
        asyncio.run(until_stopped(_work(args, data)))
    finally:
        lock.release()
    return 0


def _data(given: Path | None) -> Path:
    """Return the folder of the running system; raises CommandError when none runs."""
    if given is not None and (given / "admin.kubeconfig").is_file():
        return given.expanduser().absolute()  # started by `dray up`, whose state is written last
    return Path(running_state(given)["data"])


async def _work(args: argparse.Namespace, data: Path) -> None:
    from dray.client import Client
    from dray.local.node_host import NodeHost
    from dray.local.node_plans import Places
    from dray.local.system import short_path
    from dray.sim.snapshot import capture
    from dray.workbench.autoscaling import NodeGroups, ScalingOptions, groups_of

    async with Client.connect(data / "admin.kubeconfig", user_agent="dray-autoscale") as client:
        catalogue = _read(args.catalogue, await capture(client))
        places = Places(short_path(data / "nodes"), data / "autoscaled", data / "pki/ca.crt")
        host = NodeHost(client, data, places, args.runtime)
        groups = NodeGroups(groups_of(catalogue), host, random_suffix)
        by_name = {state.group.name: state.group for state in groups.states()}
        await host.adopt(lambda group, name: by_name[group].instance(name) if group in by_name else None)
        options = ScalingOptions(args.idle, args.provision_timeout)
        try:
            if args.serve:
                await _serve(args, groups)
            else:
                await _scale(args, client, groups, catalogue, options)
        finally:
            await host.close()


def _read(path: str, snapshot: Snapshot) -> Catalogue:
    from dray.cli.capacity import read_catalogue

    return read_catalogue(path, snapshot)


async def _scale(
    args: argparse.Namespace,
    client: Client,
    groups: NodeGroups,
    catalogue: Catalogue,
    options: ScalingOptions,
) -> None:
    from dray.client import EventRecorder
    from dray.workbench.autoscaling import Autoscaler

    recorder = EventRecorder(client, "dray-autoscale")
    scaler = Autoscaler(
        client, groups, catalogue, options, lambda text: print(text, flush=True), recorder=recorder
    )
    names = ", ".join(
        f"{each.group.name} ({each.group.least} to {each.group.most})" for each in groups.states()
    )
    print(f"dray autoscale ready: {names}", flush=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(recorder.run())
        group.create_task(scaler.run(args.interval))


async def _serve(args: argparse.Namespace, groups: NodeGroups) -> None:
    from dray.workbench.autoscaling.external_provider import AddressRefused, TlsFiles, serve_provider

    tls = (
        TlsFiles(args.tls_cert_file, args.tls_private_key_file, args.client_ca_file)
        if args.tls_cert_file is not None
        else None
    )
    try:
        server, port = await serve_provider(groups, args.serve, tls)
    except AddressRefused as error:
        raise CommandError(str(error), "give a loopback address, or the three files of TLS") from error
    print(f"dray autoscale ready: cluster-autoscaler's provider at port {port}", flush=True)
    try:
        await server.wait_for_termination()
    finally:
        await server.stop(1.0)
