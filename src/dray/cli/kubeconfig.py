"""`dray kubeconfig`: credentials for one more client of `dray server`.

The server writes files for the administrator, the scheduler and the controllers
when it starts. Nodes and people come later; this command signs a client
certificate with the server's CA and writes it into a kubeconfig file. It needs
the server's data directory, not the running server.

    dray kubeconfig --node worker-1 --output worker-1.kubeconfig
    dray kubeconfig --user ann --group team-a
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from dray.api.parsing import ParseError, load_yaml
from dray.cli.server import DEFAULT_DATA


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--data", type=Path, default=DEFAULT_DATA, metavar="DIR", help="data directory of the server"
    )
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--node", metavar="NAME", help="for the node agent of this node")
    who.add_argument("--user", metavar="NAME", help="for a person or program of this name")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME", help="group of --user; repeatable"
    )
    parser.add_argument(
        "--server", metavar="URL", help="where the server is (default: as in DIR/admin.kubeconfig)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (default: standard output)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the kubeconfig; returns the exit code."""
    from dray.certificates import make_client_certificate, write_private
    from dray.server.node_authz import NODE_USER_PREFIX, NODES_GROUP
    from dray.server.pki import PkiError, existing_ca, kubeconfig

    directory = args.data.expanduser()
    try:
        ca = existing_ca(directory / "pki")
    except (PkiError, OSError) as problem:
        print(
            f"dray kubeconfig: {problem}\n"
            "hint: give the server's data directory with --data, or start `dray server` once to make it",
            file=sys.stderr,
        )
        return 1
    url = args.server or _known_url(directory / "admin.kubeconfig")
    if not url:
        print(
            "dray kubeconfig: the server's address is not known\nhint: give it with --server URL",
            file=sys.stderr,
        )
        return 1
    name, groups = args.user, args.group
    if args.node:
        name, groups = NODE_USER_PREFIX + args.node, [NODES_GROUP]
    pair = make_client_certificate(ca, name, groups, datetime.now(UTC))
    text = kubeconfig(url, ca.certificate_pem, name, pair)
    if args.output is None:
        print(text, end="")
    else:
        write_private(args.output, text.encode())
    return 0


def _known_url(file: Path) -> str:
    try:
        return str(load_yaml(file.read_bytes())["clusters"][0]["cluster"]["server"])
    except (OSError, KeyError, IndexError, TypeError, ParseError):
        return ""
