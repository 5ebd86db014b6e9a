"""`dray kubeconfig`: credentials for one more client of `dray server`.

The server writes files for the administrator, the scheduler and the controllers
when it starts. Nodes and people come later; this command signs a client
certificate with the server's CA and writes it into a kubeconfig file. It needs
the server's data directory, not the running server.

    dray kubeconfig --node worker-1 --file worker-1.kubeconfig
    dray kubeconfig --user ann --group team-a
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dray.api.parsing import ParseError, load_yaml
from dray.cli.arguments import DEFAULT_DATA, add_flags
from dray.cli.output import CommandError
from dray.host.clock import utc_now


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_flags(parser, "--data", default=DEFAULT_DATA, help="data directory of the server")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--node", metavar="NAME", help="for the node agent of this node")
    who.add_argument("--user", metavar="NAME", help="for a person or program of this name")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME", help="group of --user; repeatable"
    )
    parser.add_argument(
        "--server", metavar="URL", help="URL of the server (default: as in DIR/admin.kubeconfig)"
    )
    parser.add_argument("--file", type=Path, metavar="FILE", help="file to write (default: standard output)")


def run(args: argparse.Namespace) -> int:
    """Write the kubeconfig; exit code 2 when the data directory has no CA or no address."""
    from dray.certificates import make_client_certificate
    from dray.host.files import write_private
    from dray.server.auth.node_authorizer import NODE_USER_PREFIX, NODES_GROUP
    from dray.server.auth.pki import PkiError, existing_ca, kubeconfig

    directory = args.data.expanduser()
    try:
        ca = existing_ca(directory / "pki")
    except (PkiError, OSError) as problem:
        raise CommandError(
            str(problem),
            "give the server's data directory with --data, or start `dray server` once to make it",
        ) from problem
    url = args.server or _known_url(directory / "admin.kubeconfig")
    if not url:
        raise CommandError("the server's address is not known", "give it with --server URL")
    name, groups = args.user, args.group
    if args.node:
        name, groups = NODE_USER_PREFIX + args.node, [NODES_GROUP]
    pair = make_client_certificate(ca, name, groups, utc_now())
    text = kubeconfig(url, ca.certificate_pem, name, pair)
    if args.file is None:
        print(text, end="")
    else:
        write_private(args.file, text.encode())
    return 0


def _known_url(file: Path) -> str:
    try:
        return str(load_yaml(file.read_bytes())["clusters"][0]["cluster"]["server"])
    except (OSError, KeyError, IndexError, TypeError, ParseError):
        return ""
