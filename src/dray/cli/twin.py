"""`dray twin`: a copy of a cluster on this machine, with the same nodes and devices, simulated."""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
from pathlib import Path

from dray.cli.arguments import add_flags
from dray.cli.output import say
from dray.cli.services import log_to_stderr
from dray.cli.snapshot import add_anonymise_flag, passed_on
from dray.cli.sources import add_source_flags, load_source
from dray.cli.up import up


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source_flags(parser)
    parser.add_argument(
        "--workloads",
        action="store_true",
        help="also copy pods, claims and templates; the scheduler places them anew, their containers only sleep",
    )
    add_anonymise_flag(parser)
    add_flags(
        parser, "--data", help="keep state in this folder (default: a temporary one, deleted at the end)"
    )
    add_flags(parser, "--secure-port", default=6443)
    add_flags(parser, "--runtime", default="none")
    add_flags(parser, "--sim-nodes")
    add_flags(
        parser, "--policy", help="how to choose among nodes and devices (default: as kube-scheduler does)"
    )
    add_flags(parser, "--feature-gates", "--log-format", "--verbose")


def run(args: argparse.Namespace) -> int:
    """Capture, start the copy, wait for Ctrl-C, stop."""
    log_to_stderr(args, logging.WARNING)
    snapshot = passed_on(load_source(args, complete=True), anonymise=args.anonymise)
    with tempfile.TemporaryDirectory(prefix="dray-twin-") as folder:
        args.snapshot = Path(folder) / "snapshot.json"
        snapshot.write(args.snapshot)
        say(", ".join(f"{count} {kind}" for kind, count in snapshot.counts().items() if count))
        args.sim, args.no_host, args.host_name, args.shared = [], True, "", False
        return asyncio.run(up(args))
