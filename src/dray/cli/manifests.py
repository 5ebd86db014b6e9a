"""Manifests that are named on the command line: files, folders and standard input."""

from __future__ import annotations

from pathlib import Path

from dray.api.json_types import JsonObject
from dray.api.wording import plural
from dray.cli.output import CommandError, read_stdin, say
from dray.client.bounded_files import read_file

_ENDINGS = (".yaml", ".yml", ".json")
_MOST_SHOWN = 10  # errors that other commands print


def read_files(names: list[str]) -> dict[str, bytes]:
    """Read files, the manifests of folders, and standard input."""
    files: dict[str, bytes] = {}
    for name in names:
        if name == "-":
            files["<stdin>"] = read_stdin()
            continue
        path = Path(name)
        found = sorted(f for f in path.rglob("*") if f.suffix in _ENDINGS) if path.is_dir() else [path]
        if not found:
            raise CommandError(f"{name} has no manifests", f"files must end in {', '.join(_ENDINGS)}")
        for file in found:
            files[str(file)] = read_file(file)
    return files


def valid_objects(names: list[str]) -> list[JsonObject]:
    """Return the objects of manifests that a server would accept; raises CommandError for others.

    Tools that judge pods and claims refuse what a server refuses, instead of calling it fine.
    """
    from dray.sim.snapshot import parse_objects
    from dray.workbench.lint import ERROR, lint

    files = read_files(names)
    errors = [finding for finding in lint(files).findings if finding.severity == ERROR]
    for finding in errors[:_MOST_SHOWN]:
        say(finding.text())
    if errors:
        raise CommandError(
            f"{plural(len(errors), 'error')} in the manifests: a server would refuse them",
            f"`dray check {' '.join(names)}` lists all findings",
        )
    return [obj for name, content in files.items() for obj in parse_objects(content, name)]
