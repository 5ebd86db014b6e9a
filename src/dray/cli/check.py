"""`dray check`: lint and dry-run manifests before they reach a cluster."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from dray.api.features import KNOWN_GATES, Features
from dray.cli.output import CommandError, add_output_flag, emit, plural, read_stdin, say
from dray.cli.sources import add_source_flags, load_source
from dray.client.files import read_file

_ENDINGS = (".yaml", ".yml", ".json")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="manifests (YAML or JSON), folders of them, or - for standard input",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        default="default",
        help="namespace of manifests that name none (default: default)",
    )
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="CODE", help="leave out findings of this code"
    )
    parser.add_argument(
        "--feature-gates",
        default="",
        metavar="NAME=true,…",
        help="gates that differ from the defaults of v1.37",
    )
    parser.add_argument("--codes", action="store_true", help="list the codes and what they mean")
    add_output_flag(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check; exit code 0 when all is well, 1 when there are findings, 2 when something cannot be read."""
    from dray.sim.linting import CODES, lint

    if args.codes:
        for code, meaning in CODES.items():
            print(f"{code:18} {meaning}")
        return 0
    if not args.files:
        raise CommandError("nothing to check", "give manifests, a folder, or - for standard input")
    for code in args.ignore:
        if code not in CODES:
            raise CommandError(f"there is no code {code!r}", "`dray check --codes` lists them")
    files = read_files(args.files)
    features = parse_gates(args.feature_gates)
    cluster = load_source(args) if args.against or args.kubeconfig else None
    report = lint(files, against=cluster, features=features, namespace=args.namespace, ignored=args.ignore)
    counts = report.counts()
    if args.output == "table":
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
        found = (
            sorted(file for file in path.rglob("*") if file.suffix in _ENDINGS) if path.is_dir() else [path]
        )
        if not found:
            raise CommandError(f"{name} has no manifests", f"files must end in {', '.join(_ENDINGS)}")
        for file in found:
            try:
                files[str(file)] = read_file(file)
            except OSError as error:
                raise CommandError(
                    f"{file}: {error.strerror}", "give manifests, a folder, or - for standard input"
                ) from None
    return files


def parse_gates(text: str) -> Features:
    """Read `NAME=true,NAME=false`."""
    features = Features.default()
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if value.lower() not in ("true", "false"):
            raise CommandError(f"--feature-gates: {part!r} is not of the form NAME=true or NAME=false")
        if name not in KNOWN_GATES:
            near = difflib.get_close_matches(name, KNOWN_GATES, n=1)
            raise CommandError(
                f"--feature-gates: there is no gate {name!r}",
                f"did you mean {near[0]}?" if near else f"gates: {', '.join(sorted(KNOWN_GATES))}",
            )
        features = features.switched(on=[name]) if value.lower() == "true" else features.switched(off=[name])
    return features
