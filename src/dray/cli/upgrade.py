"""`dray upgrade`: can this version run a system that another version wrote, and what changes?"""

from __future__ import annotations

import argparse

from dray import __version__
from dray.api.wording import plural
from dray.cli.arguments import add_flags
from dray.cli.output import CommandError, add_output_flag, emit
from dray.cli.which_system import current_data


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--check", action="store_true", required=True, help="examine only; nothing is changed (required)"
    )
    add_flags(parser, "--data")
    add_output_flag(parser, "text")


def run(args: argparse.Namespace) -> int:
    """Examine; exit code 0 when this version can run the system, 1 when it cannot."""
    from dray.local.backup import BackupError, examine_store
    from dray.server.store import FORMAT

    data = current_data(args.data)
    try:
        summary = examine_store(data)
    except BackupError as error:
        raise CommandError(
            str(error), "`dray backup` of the old version, then ask its release notes", code=1
        ) from error
    changes = []
    if summary.format != FORMAT:
        changes.append(
            f"the store is rewritten from format {summary.format} to {FORMAT} at the first start; older versions "
            "cannot read it afterwards"
        )
    if args.output != "text":
        emit(
            {"dray": __version__, "data": str(data), "store": summary.data(), "changes": changes}, args.output
        )
        return 0
    count = sum(summary.objects.values())
    print(f"dray {__version__} can run {data}: {plural(count, 'object')}, store format {summary.format}")
    for change in changes or ["nothing changes in the store"]:
        print(f"  {change}")
    print("  to be safe: dray backup, install the new version, dray down, dray up")
    return 0
