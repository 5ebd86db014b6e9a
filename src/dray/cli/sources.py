"""Which cluster a command reads: a running server, a snapshot, manifests, or modelled hardware."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
from pathlib import Path

from dray.api.parsing import ParseError, load_yaml
from dray.cli.arguments import add_flags
from dray.cli.output import CommandError, say
from dray.cli.progress import doing
from dray.client import Client, KubeconfigError
from dray.client.bounded_files import read_file
from dray.drivers.hardware import profile_names
from dray.sim.hardware import hardware_snapshot, parse_hardware
from dray.sim.snapshot import Snapshot, capture, load_snapshot


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--against`, `--kubeconfig` and `--context`."""
    group = parser.add_argument_group("which cluster")
    group.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="FILE",
        help="a kubeconfig, a snapshot made by `dray snapshot`, manifests, or a hardware profile such as dgx-h100:2; "
        "repeatable",
    )
    add_flags(group, "--kubeconfig", "--context")


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
    return hardware_snapshot(parse_hardware([text]))


def load_source(
    args: argparse.Namespace, *, offline: bool = False, complete: bool = False, only_views: bool = False
) -> Snapshot:
    """Return the snapshot that the flags name; with `offline` nothing named means an empty one.

    `complete`: also quotas and priority classes, which the tools themselves do not look at.
    `only_views`: of a single running cluster only the views are needed, see `capture`.
    """
    namespace = getattr(args, "namespace", None)
    if not args.against and not (offline and not args.kubeconfig):
        return captured(
            args.kubeconfig or None, args.context, namespace, complete=complete, only_views=only_views
        )
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
    snapshot = load_snapshot(manifests)
    if args.kubeconfig:
        kubeconfigs.append(Path(args.kubeconfig))
    for found in profiles.values():
        snapshot = found.merged(snapshot)
    for path in kubeconfigs:
        found = captured(str(path), args.context, namespace, complete=complete)
        snapshot = found.merged(snapshot)
    return snapshot


def _profile_unless_file(name: str) -> Snapshot | None:
    return None if Path(name).exists() else profile_snapshot(name)


def connect(kubeconfig: str | None, context: str | None = None) -> Client:
    """Return a client of the named cluster.

    Nothing named means, in this order: $KUBECONFIG, the shared system of this machine (said on stderr when there
    is a ~/.kube/config as well), the service account of a pod, ~/.kube/config, the `dray up` started last.
    """
    # The command itself says what is wrong: warnings of the client would say it twice.
    logging.getLogger("dray.client").addHandler(logging.NullHandler())
    if kubeconfig is None and context is None and not os.environ.get("KUBECONFIG"):
        has_own = Path("~/.kube/config").expanduser().exists()
        from dray.local.shared_machine import find_shared_system

        shared = find_shared_system()
        if shared is not None:
            if has_own:
                say(f"using the system of this machine ({shared.origin}), not ~/.kube/config")
            return Client.at(shared)
        if not has_own:
            from dray.cli.which_system import current_data
            from dray.local.running_system import read_state

            state = read_state(current_data(None))
            kubeconfig = str(state["kubeconfig"]) if state is not None else None
    try:
        return Client.connect(kubeconfig, context)
    except KubeconfigError as error:
        where = kubeconfig or os.environ.get("KUBECONFIG")
        if not where and not Path("~/.kube/config").expanduser().exists():
            raise CommandError(
                "no cluster was found: no system of this machine runs, and there is no ~/.kube/config",
                "start one with `dray up`, or give --kubeconfig",
            ) from error
        where = where or "~/.kube/config"
        raise CommandError(
            str(error), f"start a cluster with `dray up`, or give --kubeconfig (looked at {where})"
        ) from error


def captured(
    kubeconfig: str | None,
    context: str | None = None,
    namespace: str | None = None,
    *,
    complete: bool = False,
    only_views: bool = False,
) -> Snapshot:
    """Capture a running cluster; warns once of each resource that the user may not list."""
    doing("reading the cluster")

    async def look() -> Snapshot:
        async with connect(kubeconfig, context) as client:
            return await capture(client, namespace, complete=complete, only_views=only_views)

    snapshot = asyncio.run(look())
    doing("working")
    warn_of_forbidden(snapshot)
    return snapshot


def need(snapshot: Snapshot, *resources: str) -> None:
    """Raise CommandError when a command cannot do without a resource that the user may not list."""
    for resource in resources:
        if snapshot.hides(resource):
            raise CommandError(
                f"not permitted (403): {snapshot.forbidden[resource]}",
                "ask for the permission to list them",
                code=1,
            )


def warn_of_forbidden(snapshot: Snapshot) -> None:
    """Say what was left out because the user may not list it.

    A user of a shared machine sees their own objects, and what others hold: that is how it is meant to be.
    """
    if snapshot.knows_others:
        return
    for resource, reason in snapshot.forbidden.items():
        say(f"warning: without {resource}: {reason}")
