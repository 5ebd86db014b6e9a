"""Where a workbench command takes its cluster from: a running server, a snapshot, or manifests."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from pathlib import Path

from dray.api.parsing import load_yaml
from dray.cli.output import CommandError
from dray.client import Client, ClientError, KubeconfigError
from dray.drivers.hardware import load_profile, profile_names
from dray.sim.hardware import hardware_snapshot
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
    """Say whether a file is a kubeconfig."""
    try:
        text = path.read_text("utf-8")
        # Snapshots are large and parsing YAML is slow: look at the words first.
        if not re.search(r"""["']?kind["']?\s*:\s*["']?Config\b""", text):
            return False
        document = load_yaml(text)
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("kind") == "Config" and "clusters" in document


def profile_snapshot(text: str) -> Snapshot | None:
    """Return the snapshot of a cluster with `PROFILE[:COUNT]`; None when it is not the name of a profile."""
    name, _, number = text.partition(":")
    if name not in profile_names() or (number and not number.isdigit()):
        return None
    return hardware_snapshot([(load_profile(name), int(number or 1))])


def load_source(args: argparse.Namespace, *, offline: bool = False) -> Snapshot:
    """Return the snapshot that the flags name; with `offline` nothing named means an empty one."""
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
            snapshot = captured(None, args.context)
        for path in kubeconfigs:
            snapshot = captured(str(path), args.context).merged(snapshot)
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
    try:
        return Client.connect(kubeconfig, context)
    except KubeconfigError as error:
        where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise CommandError(
            str(error), f"start a cluster with `dray up`, or give --kubeconfig (looked at {where})"
        ) from error


def captured(kubeconfig: str | None, context: str | None = None) -> Snapshot:
    """Capture a running cluster."""

    async def look() -> Snapshot:
        async with connect(kubeconfig, context) as client:
            return await capture(client)

    try:
        return asyncio.run(look())
    except SnapshotError as error:
        raise CommandError(
            str(error), "is the server running, and is the kubeconfig the one of this server?"
        ) from error
    except ClientError as error:
        raise CommandError(f"the API server does not answer: {error}", "is the server running?") from error
