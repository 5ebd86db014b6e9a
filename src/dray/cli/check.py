"""`dray check`: lint and dry-run manifests before they reach a cluster."""

from __future__ import annotations

import argparse

from dray.api.wording import plural
from dray.cli.arguments import add_flags, did_you_mean, parse_gates
from dray.cli.manifests import read_files
from dray.cli.output import CommandError, add_output_flag, emit, say, table
from dray.cli.sources import add_source_flags, load_source


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
