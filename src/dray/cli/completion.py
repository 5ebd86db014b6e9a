"""`dray completion`: print a completion script for a shell.

shtab makes the script from the parser of `dray` with all its commands, so a new flag is completed
without further work, and completing does not start Python. It covers what the former generator of
our own did (bash, zsh, fish) and nested commands (`dray driver run --…`) as well; loading it takes
15 ms, in this command only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
FILE_METAVARS = ("FILE", "PATH")
FOLDER_METAVARS = ("DIR", "FOLDER")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell to write for")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from dray.cli.main import make_parser

    parser = make_parser()
    _mark_files(parser)
    print(shtab.complete(parser, shell=args.shell))
    return 0


def _mark_files(parser: argparse.ArgumentParser) -> None:
    """Tell shtab which arguments are files or folders; it reads the attribute `complete`."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _mark_files(command)
            continue
        metavar = str(action.metavar or action.dest).upper()
        if metavar in FOLDER_METAVARS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif metavar in FILE_METAVARS or action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
