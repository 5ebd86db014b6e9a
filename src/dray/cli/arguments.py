"""Flags that several commands share, and types of numbers, each with its bounds.

A flag has one name, one short form, one kind of value and (unless a command has more to say) one help text in
all commands: they take it from `SHARED`. Number types bound their values, so that no number can make a command
run forever; argparse calls them, and what they refuse is a usage error with exit code 2.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dray.api.wording import join_names
from dray.cli.output import CommandError

DEFAULT_DATA = Path("~/.local/share/dray").expanduser()
MOST_SECONDS = 7 * 24 * 3600.0  # a week
LOG_FORMATS = ("text", "json")
RUNTIMES = ("process", "runc", "none")
POLICIES = ("first-fit", "pack", "spread", "frag", "topology")
OWN_POLICY = re.compile(r"[A-Za-z_][\w.]{0,200}:[A-Za-z_]\w{0,200}")  # module:Class

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


def policy_name(text: str) -> str:
    """Accept a known name or the form module:Class; the type of `--policy`."""
    if text in ("", *POLICIES) or OWN_POLICY.fullmatch(text):
        return text
    raise argparse.ArgumentTypeError(
        f"unknown policy {text[:60]!r}; choose from {', '.join(POLICIES)}, or name your own as module:Class"
    )


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the type of whole numbers from `least` to `most`."""

    def number(text: str) -> int:
        if not _WHOLE.fullmatch(text.strip()) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {least} to {most}")
        return int(text)

    return number


def seconds(least: float = 0.0, most: float = MOST_SECONDS) -> Callable[[str], float]:
    """Return the type of times in seconds; a trailing `s` is accepted."""

    def number(text: str) -> float:
        try:
            value = float(text.removesuffix("s"))
        except ValueError:
            value = float("nan")
        if not least <= value <= most:  # not true of nan
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not a number of seconds from {least:g} to {most:g}"
            )
        return value

    return number


def quantity(text: str) -> int:
    """Read an amount such as 80Gi; the type of amounts of bytes."""
    from dray.api.quantity import QuantityError, parse_quantity

    try:
        value = parse_quantity(text).ceil_value()
    except QuantityError:
        value = -1
    if not 0 <= value < 1 << 60:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an amount such as 80Gi")
    return value


port = whole_number(0, 65535)
most_devices = whole_number(0, 1_000_000)

SHARED: dict[str, dict[str, Any]] = {
    "--kubeconfig": {
        "metavar": "FILE",
        "help": "kubeconfig of the cluster (default: $KUBECONFIG, the shared system of this machine, in a pod its "
        "service account, ~/.kube/config)",
    },
    "--context": {"metavar": "NAME", "help": "context of the kubeconfig (default: its current context)"},
    "--namespace": {"metavar": "NAME", "help": "namespace (default: that of the kubeconfig's context)"},
    "--data": {
        "type": Path,
        "metavar": "DIR",
        "help": "folder of the system (default: that of the `dray up` started last)",
    },
    "--verbose": {"action": "count", "default": 0, "help": "log more; -vv logs even more"},
    "--watch": {"action": "store_true", "help": "keep running and show every change until Ctrl-C"},
    "--feature-gates": {
        "action": "append",
        "default": [],
        "metavar": "NAME=true,…",
        "help": "feature gates that differ from the defaults of Kubernetes v1.37",
    },
    "--secure-port": {"type": port, "metavar": "N", "help": "port of the API server (0: any free port)"},
    "--sim": {
        "action": "append",
        "default": [],
        "metavar": "PROFILE[:N]",
        "help": "add N simulated nodes with this hardware, for example dgx-h100:2; repeatable",
    },
    "--sim-nodes": {
        "choices": ("auto", "light", "full"),
        "default": "auto",
        "help": "light: one loop stands in for all simulated nodes, with the same API objects (needs --runtime none); "
        "full: each is a node agent with drivers; auto: light beyond 50 (default: auto)",
    },
    "--from": {
        "type": Path,
        "dest": "snapshot",
        "metavar": "FILE",
        "help": "copy the cluster of a file made by `dray snapshot`: simulated nodes with the same names, labels, "
        "taints, capacity and devices",
    },
    "--runtime": {
        "default": "process",
        "choices": RUNTIMES,
        "help": "how containers run: process (plain processes without isolation, the default), runc (real "
        "containers, as root), none (pod states only)",
    },
    "--host-name": {
        "default": os.uname().nodename.lower(),
        "metavar": "NAME",
        "help": "node name of this machine (default: its host name)",
    },
    "--policy": {
        "default": "",
        "type": policy_name,
        "metavar": f"{{{','.join(POLICIES)},MODULE:CLASS}}",
        "help": "how to choose among nodes and devices",
    },
    "--log-format": {
        "choices": LOG_FORMATS,
        "default": "text",
        "help": "form of the log on stderr: text (the default), or json (one object a line)",
    },
    "--max-devices": {
        "type": most_devices,
        "default": 20_000,
        "metavar": "N",
        "help": "devices and claims that have Prometheus series of their own; 0: no series of devices (default: 20000)",
    },
    "--leader-elect": {
        "action": "store_true",
        "help": "run several replicas, of which the holder of a lease works",
    },
    "--leader-namespace": {
        "default": "kube-system",
        "metavar": "NAME",
        "help": "namespace of the lease (default: kube-system)",
    },
}
_SHORT = {"--namespace": "-n", "--verbose": "-v", "--watch": "-w"}


def add_flags(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Add shared flags by name; `changes` (a help text, a default) apply to each of them."""
    for name in names:
        options = [_SHORT[name], name] if name in _SHORT else [name]
        parser.add_argument(*options, **{**SHARED[name], **changes})


def parse_gates(texts: Iterable[str]) -> Any:
    """Return the feature gates of `--feature-gates A=true,B=false`, on top of the defaults."""
    from dray.api.features import KNOWN_GATES, Features

    on: list[str] = []
    off: list[str] = []
    for part in (piece.strip() for text in texts for piece in text.split(",")):
        name, _, value = part.partition("=")
        if not part or name in ("AllAlpha", "AllBeta"):
            continue
        if value.lower() not in ("true", "false"):
            raise CommandError(f"--feature-gates: {part!r} is not of the form NAME=true or NAME=false")
        if name not in KNOWN_GATES:
            every = f"use --feature-gates NAME=true with one of: {', '.join(sorted(KNOWN_GATES))}"
            raise CommandError(
                f"--feature-gates: there is no gate {name!r}", did_you_mean(name, KNOWN_GATES) or every
            )
        (on if value.lower() == "true" else off).append(name)
    return Features.default().switched(on, off)


def did_you_mean(word: str, known: Iterable[str], what: str = "") -> str:
    """Return a hint for a misspelled name: the nearest known one, or the first few."""
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]}?"
    return f"{what}: {join_names(names, 20) or 'none'}" if what else ""
