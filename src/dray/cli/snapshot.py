"""`dray snapshot`: one file with all DRA objects of a cluster, for every other tool."""

from __future__ import annotations

import argparse
from pathlib import Path

from dray.cli.output import CommandError, say
from dray.cli.sources import add_source_flags, load_source


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="where to write the snapshot (JSON)")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Capture and write."""
    path = Path(args.file)
    if path.exists() and not args.force:
        raise CommandError(f"{path} exists", "add --force to overwrite it")
    snapshot = load_source(args)
    snapshot.write(path)
    counts = ", ".join(f"{count} {kind}" for kind, count in snapshot.counts().items() if count)
    say(f"wrote {path}: {counts or 'nothing'}")
    return 0
