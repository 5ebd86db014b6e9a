"""`dray backup`: write one archive of a running or stopped system."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dray.api.wording import plural
from dray.cli.arguments import add_flags
from dray.cli.output import CommandError, add_output_flag, emit
from dray.cli.which_system import current_data
from dray.host.clock import utc_now

if TYPE_CHECKING:
    from dray.local.backup import StoreSummary


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="archive to write (default: dray-DATE.tar.gz here)"
    )
    add_flags(parser, "--data")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    add_output_flag(parser, "text")


def run(args: argparse.Namespace) -> int:
    """Write; exit code 0 when the archive is complete on disk."""
    from dray.local.backup import BackupError, make_backup

    target: Path = args.file or Path(f"dray-{utc_now():%Y%m%dT%H%M%SZ}.tar.gz")
    if target.exists() and not args.force:
        raise CommandError(f"{target} exists", "add --force to overwrite it")
    try:
        summary = make_backup(current_data(args.data), target.absolute())
    except BackupError as error:
        raise CommandError(
            str(error), "--data names the folder of a system; `dray status` shows it"
        ) from error
    print_summary(
        summary, args.output, f"{target} written (it holds the keys of the cluster: keep it private)"
    )
    return 0


def print_summary(summary: StoreSummary, output: str, message: str) -> None:
    """Print what a store holds, as a line or as data."""
    if output != "text":
        emit(summary.data(), output)
        return
    count = sum(summary.objects.values())
    print(f"{message}: {plural(count, 'object')} at revision {summary.revision}, {summary.size / 1e6:.1f} MB")
