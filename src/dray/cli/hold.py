"""`dray hold`: devices for a container engine of this machine: docker, podman, apptainer.

The engine's command is a job: it waits for its devices, has their limits and time, and ends with Ctrl-C. What CDI
says of the devices is added to the engine's flags when the job starts (`workbench.container_engines`).
"""

from __future__ import annotations

import argparse
import shutil
import sys

from dray.cli import run as running
from dray.cli.arguments import add_flags
from dray.cli.job_flags import add_job_flags, add_start_flags
from dray.cli.output import CommandError
from dray.workbench.container_engines import ENGINES, EngineError, engine_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    running.add_device_flags(parser)
    add_job_flags(parser)
    add("--name", metavar="NAME", help="name of the pod and of the claim (default: run- and six characters)")
    add_start_flags(parser)
    add_flags(parser, "--namespace", "--kubeconfig", "--context")
    add("words", nargs="*", metavar="CMD", help="the engine's command, after --")


def run(args: argparse.Namespace) -> int:
    """Run; the exit code is the engine's, otherwise as that of `dray run`."""
    known = ", ".join(ENGINES)
    if not args.words:
        raise CommandError("no command", f"put it after --, for example: -- podman run IMAGE ({known})")
    try:
        engine = engine_of(args.words)
    except EngineError as error:
        raise CommandError(str(error), f"engines: {known}; `dray run` takes every other command") from error
    if shutil.which(args.words[0]) is None:
        raise CommandError(f"{args.words[0]} is not on this machine (PATH)", f"install {engine}", code=1)
    if args.tty and not sys.stdin.isatty():
        raise CommandError("standard input is not a terminal", "leave out -t")
    args.image, args.is_engine = None, True
    args.array, args.after, args.keep = None, "", False
    return running.start(args)
