"""Where a workbench command takes its cluster from: a running server, a snapshot, or manifests."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
from pathlib import Path

from dray.api.parsing import ParseError, load_yaml
from dray.cli.output import CommandError, say
from dray.client import Client, KubeconfigError
from dray.client.files import read_file
from dray.drivers.hardware import ProfileError, profile_names
from dray.sim.hardware import hardware_snapshot, parse_hardware
from dray.sim.snapshot import Snapshot, SnapshotError, capture, load_snapshot


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--against` and `--kubeconfig`."""
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="FILE",
        help="a kubeconfig, a snapshot made by `dray snapshot`, manifests, or a hardware profile such as dgx-h100:2; "
        "may be given more than once",
    )
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="the cluster to look at (default: $KUBECONFIG, ~/.kube/config)"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")


def is_kubeconfig(path: Path) -> bool:
    """Return whether a file is a kubeconfig."""
    try:
        content = read_file(path)
        # Snapshots are large and parsing YAML is slow: look at the words first.
        if not re.search(rb"""["']?kind["']?\s*:\s*["']?Config\b""", content):
            return False
        document = load_yaml(content)
    except (OSError, ParseError):
        return False  # whoever reads it as manifests says what is wrong
    return isinstance(document, dict) and document.get("kind") == "Config" and "clusters" in document


def profile_snapshot(text: str) -> Snapshot | None:
    """Return the snapshot of a cluster with `PROFILE[:COUNT]`; None when it is not the name of a profile."""
    name, _, number = text.partition(":")
    if name not in profile_names() or (number and not (number.isascii() and number.isdigit())):
        return None
    try:
        return hardware_snapshot(parse_hardware([text]))
    except ProfileError as error:
        raise CommandError(str(error)) from error


def load_source(args: argparse.Namespace, *, offline: bool = False) -> Snapshot:
    """Return the snapshot that the flags name; with `offline` nothing named means an empty one."""
    namespace = getattr(args, "namespace", None)
    profiles = {name: found for name in args.against if (found := _profile_unless_file(name)) is not None}
    files = [Path(name) for name in args.against if name not in profiles]
    for path in files:
        if not path.exists():
            raise CommandError(
                f"{path} does not exist",
                "give a kubeconfig, a file made by `dray snapshot`, manifests, or a hardware profile: "
                + ", ".join(profile_names()),
            )
    kubeconfigs = [path for path in files if is_kubeconfig(path)]
    manifests = [path for path in files if path not in kubeconfigs]
    try:
        snapshot = load_snapshot(manifests)
        if args.kubeconfig:
            kubeconfigs.append(Path(args.kubeconfig))
        for found in profiles.values():
            snapshot = found.merged(snapshot)
        if not files and not profiles and not kubeconfigs and not offline:
            snapshot = captured(None, args.context, namespace)
        for path in kubeconfigs:
            snapshot = captured(str(path), args.context, namespace).merged(snapshot)
    except SnapshotError as error:
        raise CommandError(str(error)) from error
    return snapshot


def _profile_unless_file(name: str) -> Snapshot | None:
    return None if Path(name).exists() else profile_snapshot(name)


def connect(kubeconfig: str | None, context: str | None = None) -> Client:
    """Make a client of the named cluster; nothing named and none configured means: the latest `dray up`."""
    if (
        kubeconfig is None
        and not os.environ.get("KUBECONFIG")
        and not Path("~/.kube/config").expanduser().exists()
    ):
        from dray.cli.up import current_data
        from dray.sim.running_system import read_state

        state = read_state(current_data(None))
        kubeconfig = str(state["kubeconfig"]) if state is not None else None
    # The command itself says what is wrong: warnings of the client would say it twice.
    logging.getLogger("dray.client").addHandler(logging.NullHandler())
    try:
        return Client.connect(kubeconfig, context)
    except KubeconfigError as error:
        where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise CommandError(
            str(error), f"start a cluster with `dray up`, or give --kubeconfig (looked at {where})"
        ) from error


def captured(kubeconfig: str | None, context: str | None = None, namespace: str | None = None) -> Snapshot:
    """Capture a running cluster; says once what the user may not see."""

    async def look() -> Snapshot:
        async with connect(kubeconfig, context) as client:
            return await capture(client, namespace)

    snapshot = asyncio.run(look())
    for resource, reason in snapshot.forbidden.items():
        say(f"warning: without {resource}: {reason}")
    return snapshot
