"""`dray node`: make this machine (or a directory on it) a node of a cluster."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from dray.cli.arguments import add_flags, port, whole_number
from dray.cli.output import CommandError
from dray.cli.services import log_to_stderr, until_stopped
from dray.host.heap import keep_heap_compact


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add_flags(parser, "--kubeconfig", "--context")
    add(
        "--name",
        metavar="NAME",
        default=os.uname().nodename.lower(),
        help="name of the node (default: this machine's host name)",
    )
    add(
        "--root",
        type=Path,
        default=Path("/var/lib/kubelet"),
        metavar="DIR",
        help="the node's directory (default: /var/lib/kubelet)",
    )
    add_flags(parser, "--runtime")
    add(
        "--address",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address at which the API server reaches the node (default: 127.0.0.1)",
    )
    add("--port", type=port, default=0, metavar="N", help="port for logs and exec (default: any free port)")
    add(
        "--client-ca",
        type=Path,
        metavar="FILE",
        help="CA of the client certificates that callers of that port show; without it only bearer tokens are accepted",
    )
    add(
        "--cdi-dir",
        type=Path,
        action="append",
        metavar="DIR",
        help="CDI directory; repeatable (default: /etc/cdi and /var/run/cdi)",
    )
    add(
        "--images",
        type=Path,
        metavar="DIR",
        help="for runc: root filesystems and OCI image layouts by image name",
    )
    add("--label", action="append", default=[], metavar="KEY=VALUE", help="label of the node; repeatable")
    add(
        "--max-pods", type=whole_number(0, 100_000), default=110, metavar="N", help="most pods (default: 110)"
    )
    add_flags(parser, "--log-format", "--verbose")


def run(args: argparse.Namespace) -> int:
    """Be a node until SIGTERM or SIGINT."""
    from dray.client import Client
    from dray.node import DEFAULT_DIRS, Agent, AgentSettings

    log_to_stderr(args)
    keep_heap_compact()
    for label in args.label:
        if "=" not in label:
            raise CommandError(f"--label {label!r} is not of the form KEY=VALUE")
    settings = AgentSettings(
        name=args.name,
        root=args.root.absolute(),
        runtime=args.runtime,
        address=args.address,
        port=args.port,
        cdi_dirs=args.cdi_dir or DEFAULT_DIRS,
        labels=dict(label.split("=", 1) for label in args.label),
        max_pods=args.max_pods,
        client_ca=args.client_ca,
        images=args.images,
    )

    # Everything that agent and drivers leave below the node's folder is for this user alone.
    os.umask(0o077)

    async def main() -> None:
        async with Client.connect(
            args.kubeconfig, args.context, user_agent="dray-node", connections=16
        ) as client:
            await until_stopped(Agent(client, settings).run())

    asyncio.run(main())
    return 0
