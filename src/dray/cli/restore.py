"""`dray restore`: make the folder of a system from an archive of `dray backup`."""

from __future__ import annotations

import argparse
from pathlib import Path

from dray.cli.backup import print_summary
from dray.cli.output import CommandError, add_output_flag


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="archive made by `dray backup`")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="new or empty folder to restore into"
    )
    add_output_flag(parser, "text")


def run(args: argparse.Namespace) -> int:
    """Restore; the archive and the store in it are verified first."""
    from dray.local.backup import BackupError, restore_backup

    data = args.data.expanduser().absolute()
    try:
        summary = restore_backup(args.file, data)
    except BackupError as error:
        raise CommandError(
            str(error), "restore into a new folder, then start with `dray up --data DIR`"
        ) from error
    print_summary(summary, args.output, f"{data} restored; start it with `dray up --data {data}`")
    return 0
