"""`dray check`: lint and dry-run manifests before they reach a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from dray.api.json_types import JsonObject
from dray.cli.arguments import add_flags, did_you_mean, parse_gates
from dray.cli.output import CommandError, add_output_flag, emit, plural, read_stdin, say, table
from dray.cli.sources import add_source_flags, load_source
from dray.client.bounded_files import read_file

_ENDINGS = (".yaml", ".yml", ".json")
_MOST_SHOWN = 10  # errors that other commands print


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="manifests (YAML or JSON), folders of them, or - for standard input",
    )
    add_flags(
        parser,
        "--namespace",
        default="default",
        help="namespace of manifests that name none (default: default)",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="CODE",
        help="leave out findings of this code; repeatable",
    )
    add_flags(parser, "--feature-gates")
    parser.add_argument("--codes", action="store_true", help="list the codes and what they mean")
    add_output_flag(parser, "text")
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check; exit code 0 without findings, 1 with errors or warnings, 2 when something cannot be read."""
    from dray.workbench.lint import CODES, lint

    if args.codes:
        if args.output == "text":
            table(["CODE", "MEANING"], CODES.items())
        else:
            emit(CODES, args.output)
        return 0
    if not args.files:
        raise CommandError("nothing to check", "give manifests, a folder, or - for standard input")
    for code in args.ignore:
        if code not in CODES:
            raise CommandError(f"there is no code {code!r}", did_you_mean(code, CODES, "codes"))
    files = read_files(args.files)
    features = parse_gates(args.feature_gates)
    cluster = load_source(args) if args.against or args.kubeconfig else None
    report = lint(files, against=cluster, features=features, namespace=args.namespace, ignored=args.ignore)
    counts = report.counts()
    if args.output == "text":
        for finding in report.findings:
            print(finding.text())
        words = ", ".join(plural(count, kind) for kind, count in counts.items() if count and kind != "info")
        say(f"{plural(report.objects, 'object')} checked: {words or 'no findings'}")
    else:
        emit(
            {
                "objects": report.objects,
                "counts": counts,
                "findings": [finding.data() for finding in report.findings],
            },
            args.output,
        )
    return 0 if report.is_clean else 1


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
