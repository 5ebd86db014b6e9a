"""`dray login`: a short-lived kubeconfig for kubectl, for a user of a shared machine.

The shared system knows by the kernel who calls; kubectl cannot use a Unix socket, so it gets a client
certificate that expires soon.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from dray.api.user_names import LOGIN_PATH
from dray.cli.arguments import seconds
from dray.cli.output import say


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
    from dray.cli.which_system import ask_shared_system
    from dray.host.files import write_private

    answer = asyncio.run(ask_shared_system(f"{LOGIN_PATH}?seconds={int(args.lifetime)}"))
    if args.file == Path("-"):
        print(answer["kubeconfig"], end="")
        return 0
    target = args.file or Path("~/.kube/dray.kubeconfig").expanduser()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(target, answer["kubeconfig"].encode())
    print(f"{answer['user']} until {answer['expires']}: export KUBECONFIG={target}")
    say("hint: log in again when it has expired; `dray` itself needs no login on this machine")
    return 0
