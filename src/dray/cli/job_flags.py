"""Flags of jobs and their values: times such as 2h30m, the caller's environment, ranges such as 1-8.

`dray run`, `dray shell` and `dray hold` take the same flags and make the same `Job` of them.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dray.api.quantity import QuantityError, parse_quantity
from dray.cli.arguments import seconds
from dray.cli.output import CommandError
from dray.workbench.run_manifests import PRIORITIES

MOST_JOB_SECONDS = 366 * 86_400
MOST_ARRAY = 1000
MOST_ENVIRONMENT = 256 * 1024  # bytes; the API server bounds the whole pod
ARRAY_VARIABLE = "DRAY_ARRAY_INDEX"

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:[0-9]{1,9}[dhms])+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# What belongs to the caller's shell, not to the job.
_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "KUBECONFIG", "DRAY_DEBUG"})


def duration(text: str) -> int:
    """Return the seconds of a time such as 90, 90s, 30m, 2h, 1d12h."""
    if re.fullmatch("[0-9]{1,9}", text):
        value = int(text)
    elif _DURATION.fullmatch(text):
        value = sum(int(part[:-1]) * _UNITS[part[-1]] for part in re.findall("[0-9]+[dhms]", text))
    else:
        value = 0
    if not 1 <= value <= MOST_JOB_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a time such as 90s, 30m, 2h or 1d12h (at most a year)"
        )
    return value


def array_range(text: str) -> range:
    """Return the numbers of `1-8`."""
    found = re.fullmatch("([0-9]{1,6})-([0-9]{1,6})", text)
    if not found or not 0 <= int(found[2]) - int(found[1]) < MOST_ARRAY:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a range such as 1-8 with at most {MOST_ARRAY} numbers"
        )
    return range(int(found[1]), int(found[2]) + 1)


def amount(text: str) -> str:
    """Return a positive quantity as it was written."""
    try:
        value = parse_quantity(text)
    except QuantityError:
        value = None
    if value is None or value <= parse_quantity("0"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an amount such as 8, 500m or 64Gi")
    return text


def add_job_flags(parser: argparse.ArgumentParser) -> None:
    """Add what all commands that start jobs take."""
    add = parser.add_argument
    add("--time", type=duration, metavar="TIME", help="longest time of the job, for example 30m, 2h or 1d12h")
    add("--cpus", type=amount, metavar="AMOUNT", help="CPUs of the job, for example 8 or 500m")
    add("--memory", type=amount, metavar="AMOUNT", help="memory of the job, for example 64Gi")
    add(
        "--priority",
        choices=tuple(PRIORITIES),
        default="normal",
        help="high goes before others, low uses what is idle and is evicted when others need it (default: normal)",
    )
    add(
        "--workdir",
        metavar="DIR",
        help="directory of the command (default: this one, where nodes run commands as processes)",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable of the command; NAME alone passes on the caller's; repeatable",
    )
    add(
        "--private-tmp",
        action="store_true",
        help="a /tmp of its own, which goes with the job (containers of an image have one anyway)",
    )
    add("--clean-env", action="store_true", help="do not pass on the caller's environment")


def add_start_flags(parser: argparse.ArgumentParser) -> None:
    """Declare how a command is started: attached or not, and how long it may take until it runs."""
    add = parser.add_argument
    add("-i", "--stdin", action="store_true", help="pass on standard input")
    add("-t", "--tty", action="store_true", help="give the command a terminal")
    add("--detach", action="store_true", help="start it and return; nothing is deleted")
    add(
        "--timeout",
        type=seconds(),
        default=0.0,
        metavar="SECONDS",
        help="give up when it has not started by then (default: wait forever)",
    )
    add("--dry-run", action="store_true", help="print the manifests and create nothing")


def environment(args: argparse.Namespace, caller: Mapping[str, str], *, inherits: bool) -> dict[str, str]:
    """Return the job's variables: the caller's, where they mean something there, and those of `--env`."""
    found: dict[str, str] = {}
    if inherits and not args.clean_env:
        # Exported shell functions (BASH_FUNC_x%%) and the like are not names that the API takes.
        found = {
            name: value
            for name, value in caller.items()
            if name not in _OWN and _VARIABLE.fullmatch(name) and _is_text(value)
        }
    for text in args.env:
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise CommandError(f"--env {text[:60]!r} is not of the form NAME=VALUE or NAME")
        if not equals and name not in caller:
            raise CommandError(f"--env {name}: there is no such variable here", "give a value: NAME=VALUE")
        found[name] = value if equals else caller[name]
    size = sum(len(name.encode()) + len(value.encode("utf-8", "replace")) for name, value in found.items())
    if size > MOST_ENVIRONMENT:
        raise CommandError(
            f"the environment has {size} bytes, at most {MOST_ENVIRONMENT} can be passed on",
            "--clean-env passes on nothing but what --env names",
        )
    return found


def working_directory(args: argparse.Namespace, *, inherits: bool) -> str:
    """Return the job's directory; empty means: as the image says."""
    if args.workdir is not None:
        if not args.workdir or "\0" in args.workdir:
            raise CommandError(f"--workdir {args.workdir!r} is not a directory")
        return os.path.abspath(args.workdir) if inherits else str(args.workdir)
    if not inherits:
        return ""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise CommandError("the current directory does not exist", "--workdir names another") from None


def resources(args: argparse.Namespace) -> dict[str, str]:
    """Return CPU and memory as they were asked for."""
    wanted = {"cpu": args.cpus, "memory": args.memory}
    return {name: value for name, value in wanted.items() if value}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(words: Sequence[str]) -> str:
    """Return a command in one line, for messages."""
    import shlex

    return shlex.join(words)[:200]
