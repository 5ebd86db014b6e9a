"""`dray uninstall`: remove the service of `dray install`."""

from __future__ import annotations

import argparse
import asyncio
import shutil
from pathlib import Path

from dray.api.wording import plural
from dray.cli.arguments import add_flags
from dray.cli.install import SERVICE_DATA, require_root
from dray.cli.output import CommandError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--purge", action="store_true", help="delete the state too, with all jobs and records"
    )
    add_flags(parser, "--data", default=SERVICE_DATA, help="folder of the state (default: /var/lib/dray)")
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Remove; exit code 1 when nothing was installed."""
    from dray.local.containers import end_containers
    from dray.local.system_service import InstallError, installed_runtime, run_command, uninstall
    from dray.server.store import FILE_NAME

    require_root(args.root)
    runtime = installed_runtime(args.root)
    try:
        done = uninstall(args.root, run_command)
    except InstallError as error:
        raise CommandError(str(error), "`systemctl status dray` shows more", code=1) from error
    if not done:
        raise CommandError("no service of dray is installed here", "`dray down` stops a `dray up`", code=1)
    data = args.root / args.data.relative_to("/")
    jobs = asyncio.run(end_containers(data / "nodes", runtime))  # the service leaves them alone when it stops
    if jobs:
        done.append(f"{plural(jobs, 'running container')} ended")
    if args.purge and (data / FILE_NAME).exists():
        shutil.rmtree(data)
        done.append(f"{data} deleted")
    elif data.exists():
        done.append(f"the state stays in {args.data} (--purge deletes it)")
    for step in done:
        print(step)
    return 0
