"""`dray shell`: an interactive session with devices, which ends with the terminal."""

from __future__ import annotations

import argparse
import os

from dray.cli import run as running
from dray.cli.arguments import add_flags, seconds
from dray.cli.job_flags import add_job_flags


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    running.add_device_flags(parser)
    running.add_image_flag(parser)
    add_job_flags(parser)
    parser.add_argument("--name", metavar="NAME", help="name of the job (default: run- and six characters)")
    parser.add_argument(
        "--timeout",
        type=seconds(),
        default=0.0,
        metavar="SECONDS",
        help="give up when it has not started by then (default: wait forever)",
    )
    add_flags(parser, "--namespace", "--kubeconfig", "--context")


def run(args: argparse.Namespace) -> int:
    """Open a shell; the exit code is the shell's."""
    args.words = ["sh" if args.image is not None else os.environ.get("SHELL") or "sh"]
    args.stdin = args.tty = True
    args.array, args.after, args.detach, args.keep, args.dry_run = None, "", False, False, False
    return running.start(args)
