"""`dray node`: make this machine (or a directory on it) a node of a cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--kubeconfig", metavar="FILE", help="where the API server is (default: $KUBECONFIG)")
    parser.add_argument(
        "--name", default=socket.gethostname().lower(), help="name of the node (default: host name)"
    )
    parser.add_argument(
        "--root", type=Path, default=Path("/var/lib/kubelet"), metavar="DIR", help="the node's directory"
    )
    parser.add_argument(
        "--runtime",
        choices=("process", "runc", "none"),
        default="process",
        help="process: plain processes, NO isolation (default); runc: real containers, as root; none: states only",
    )
    parser.add_argument("--address", default="127.0.0.1", help="address that the API server can reach")
    parser.add_argument("--port", type=int, default=0, help="port for logs and exec (default: any free one)")
    parser.add_argument(
        "--client-ca",
        type=Path,
        metavar="FILE",
        help="CA of the client certificates that callers of that port show; without it only bearer tokens count",
    )
    parser.add_argument(
        "--cdi-dir",
        type=Path,
        action="append",
        metavar="DIR",
        help="CDI directory, may be repeated (default: /etc/cdi, /var/run/cdi)",
    )
    parser.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="for runc: root filesystems and OCI image layouts by image name",
    )
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="label of the node, may be repeated"
    )
    parser.add_argument("--max-pods", type=int, default=110, metavar="N")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")


def run(args: argparse.Namespace) -> int:
    """Be a node until SIGTERM or SIGINT."""
    from dray.client import Client, ClientError
    from dray.node import Agent, AgentSettings
    from dray.node.cdi import DEFAULT_DIRS

    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    bad = [label for label in args.label if "=" not in label]
    if bad:
        print(f"dray node: --label {bad[0]!r} is not KEY=VALUE", file=sys.stderr)
        return 2
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
        async with Client.connect(args.kubeconfig, user_agent="dray-node", connections=16) as client:
            task = asyncio.create_task(Agent(client, settings).run())
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await task

    try:
        asyncio.run(main())
    except (ClientError, OSError) as error:
        print(f"dray node: {error}", file=sys.stderr)
        return 1
    return 0
