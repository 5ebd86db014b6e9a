"""`dray snapshot`: one file with all DRA objects of a cluster, for every other tool."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dray.cli.output import CommandError, say
from dray.cli.sources import add_source_flags, load_source
from dray.sim.redacting import Anonymiser, redacted
from dray.sim.snapshot import Snapshot


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="where to write the snapshot (JSON)")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    add_anonymise_flag(parser)
    add_source_flags(parser)


def add_anonymise_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--anonymise`."""
    parser.add_argument(
        "--anonymise",
        action="store_true",
        help="replace names of nodes, namespaces, pods and claims, label values, UUIDs, addresses and images; "
        "each name gets the same replacement everywhere",
    )


def run(args: argparse.Namespace) -> int:
    """Capture and write."""
    path = Path(args.file)
    if path.exists() and not args.force:
        raise CommandError(f"{path} exists", "add --force to overwrite it")
    snapshot = passed_on(load_source(args, complete=True), anonymise=args.anonymise)
    snapshot.write(path)
    counts = ", ".join(f"{count} {kind}" for kind, count in snapshot.counts().items() if count)
    say(f"wrote {path}: {counts or 'nothing'}")
    return 0


def passed_on(snapshot: Snapshot, *, anonymise: bool) -> Snapshot:
    """Return the snapshot without what may be secret, and with other names if asked for."""
    objects = [redacted(obj) for obj in snapshot.objects]
    if anonymise:
        anonymiser = Anonymiser(objects, os.urandom(16))
        objects = [anonymiser.anonymised(obj) for obj in objects]
    made = Snapshot(features=snapshot.features)
    for obj in objects:
        made.add(obj)
    return made
