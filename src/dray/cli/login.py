"""`dray login`: a short-lived kubeconfig for kubectl, for a user of a shared machine.

The shared system knows by the kernel who calls; kubectl cannot use a Unix socket, so it gets a client
certificate that expires soon.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from dray.cli.arguments import seconds
from dray.cli.output import CommandError, say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="file to write, with mode 0600 (default: ~/.kube/dray.kubeconfig; -: standard output)",
    )
    parser.add_argument(
        "--lifetime",
        type=seconds(600, 86400),
        default=12 * 3600.0,
        metavar="SECONDS",
        help="how long it can be used: from 600 to 86400 (default: 43200, 12 hours)",
    )


def run(args: argparse.Namespace) -> int:
    """Ask the shared system and write the file; exit code 1 when there is no shared system."""
    from dray.client import Client
    from dray.host.files import write_private
    from dray.local.shared_machine import find_shared_system, shared_socket

    endpoint = find_shared_system()
    if endpoint is None:
        raise CommandError(
            f"no shared system answers at {shared_socket()}",
            "`sudo dray install` or `sudo dray up --shared` starts one",
            code=1,
        )

    async def ask() -> Any:
        async with Client.at(endpoint) as client:
            return await request_login(client, int(args.lifetime))

    answer = asyncio.run(ask())
    if args.file == Path("-"):
        print(answer["kubeconfig"], end="")
        return 0
    target = args.file or Path("~/.kube/dray.kubeconfig").expanduser()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(target, answer["kubeconfig"].encode())
    print(f"{answer['user']} until {answer['expires']}: export KUBECONFIG={target}")
    say("hint: log in again when it has expired; `dray` itself needs no login on this machine")
    return 0


async def request_login(client: Any, lifetime: int) -> Any:
    """Return the answer of the server to a login."""
    from dray.api.parsing import load_json
    from dray.api.user_names import LOGIN_PATH
    from dray.client import Request, error_from

    response = await client.transport.send(Request("POST", f"{LOGIN_PATH}?seconds={lifetime}", b"{}"))
    if response.status != 201:
        raise error_from(response.status, response.body)
    return load_json(response.body)
