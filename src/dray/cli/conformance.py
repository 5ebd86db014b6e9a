"""`dray conformance`: the CNCF AI conformance requirements as checks with evidence, on any cluster."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.cli.arguments import add_flags, seconds
from dray.cli.output import CommandError, add_output_flag, emit, say, table

if TYPE_CHECKING:
    from dray.workbench.conformance.checks import Verdict


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    from dray.workbench.conformance.requirements import NEWEST, VERSIONS

    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    run_parser = actions.add_parser(
        "run", help="run the checks in a namespace of their own, which is removed"
    )
    run_parser.add_argument(
        "checks", nargs="*", metavar="CHECK", help="only these requirements, by id (default: all)"
    )
    run_parser.add_argument(
        "--version", choices=VERSIONS, default=NEWEST, help=f"of the checklist (default: {NEWEST})"
    )
    run_parser.add_argument(
        "--platform", default="", metavar="NAME", help="name of the platform, for the checklist"
    )
    run_parser.add_argument(
        "--image",
        default="busybox",
        metavar="IMAGE",
        help="image of the pods, with sh, find and awk (default: busybox)",
    )
    run_parser.add_argument("--scheduler", default="", metavar="NAME", help="scheduler of the pods")
    run_parser.add_argument(
        "--metrics-url",
        default="",
        metavar="URL",
        help="metrics page of the accelerators (default: /metrics of the API server)",
    )
    run_parser.add_argument(
        "--autoscaling",
        action="store_true",
        help="also try whether a node comes for a pod that finds no device, and goes again",
    )
    run_parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write an HTML report to this file"
    )
    run_parser.add_argument(
        "--checklist", type=Path, metavar="FILE", help="also write the official checklist (YAML) to this file"
    )
    run_parser.add_argument(
        "--timeout",
        type=seconds(1, 3600),
        default=60.0,
        metavar="SECONDS",
        help="for each step (default: 60)",
    )
    listing = actions.add_parser("list", help="list the requirements and which of them are checked")
    listing.add_argument(
        "--version", choices=VERSIONS, default=NEWEST, help=f"of the checklist (default: {NEWEST})"
    )
    for command in (run_parser, listing):
        add_output_flag(command)
        add_flags(command, "--kubeconfig", "--context")


def run(args: argparse.Namespace) -> int:
    """Run or list; exit code 1 when a requirement with the level MUST does not hold."""
    return _list(args) if args.action == "list" else _run(args)


def _list(args: argparse.Namespace) -> int:
    from dray.workbench.conformance.requirements import requirements_of

    found = requirements_of(args.version)
    if args.output != "table":
        emit(
            [
                {"id": each.id, "category": each.category, "level": each.levels[args.version],
                 "description": each.text, "checked": not each.why_not, "why": each.why_not}
                for each in found
            ],
            args.output,
        )  # fmt: skip
    else:
        table(
            ["ID", "LEVEL", "CHECKED", "REQUIREMENT"],
            [
                [each.id, each.levels[args.version], "no" if each.why_not else "yes", each.text]
                for each in found
            ],
        )
    return 0


def _run(args: argparse.Namespace) -> int:
    from dray.cli.arguments import did_you_mean
    from dray.workbench.conformance.checks import CHECKS, CHECKS_ON_REQUEST
    from dray.workbench.conformance.report import as_html, checklist, failed
    from dray.workbench.conformance.requirements import requirements_of

    if args.metrics_url and not args.metrics_url.startswith(("http://", "https://")):
        raise CommandError(
            f"--metrics-url {args.metrics_url[:80]!r} is not an address", "it begins with http:// or https://"
        )
    wanted = {**CHECKS, **(CHECKS_ON_REQUEST if args.autoscaling else {})}
    known = [each.id for each in requirements_of(args.version) if each.id in wanted]
    for name in args.checks:
        if name not in known:
            raise CommandError(f"{args.version} has no check {name!r}", did_you_mean(name, known, "checks"))
    verdicts = asyncio.run(
        _verdicts(args, [name for name in known if not args.checks or name in args.checks])
    )
    data = checklist(args.version, verdicts, {"platformName": args.platform})
    if args.html:
        args.html.write_text(as_html(data), "utf-8")
    if args.checklist:
        from dray.cli.output import as_data

        args.checklist.write_text(as_data(data, "yaml"), "utf-8")
    _print(args, data, verdicts)
    wrong = failed(args.version, verdicts)
    if wrong:
        say(f"required, but missing: {', '.join(each.id for each in wrong)}")
    return 1 if wrong else 0


async def _verdicts(args: argparse.Namespace, names: list[str]) -> dict[str, Verdict]:
    from dray.cli.progress import doing
    from dray.cli.sources import connect
    from dray.workbench.conformance.checks import CHECKS, CHECKS_ON_REQUEST, run_check
    from dray.workbench.conformance.trials import Trials

    found: dict[str, Verdict] = {}
    async with connect(args.kubeconfig, args.context) as client:
        for name in names:
            doing(f"checking {name} ({len(found) + 1} of {len(names)})")
            # A namespace for each check: one that fails leaves nothing in the way of the next.
            namespace = f"dray-conformance-{secrets.token_hex(4)}"
            trials = Trials(
                client, namespace, image=args.image, scheduler=args.scheduler, seconds=args.timeout
            )
            await trials.begin()
            try:
                check = CHECKS.get(name) or CHECKS_ON_REQUEST[name]
                found[name] = await run_check(check, trials, args.metrics_url)
            finally:
                await trials.end()
    return found


def _print(args: argparse.Namespace, data: dict[str, Any], verdicts: dict[str, Verdict]) -> None:
    if args.output != "table":
        emit(data, args.output)
        return
    rows = []
    for entries in data["spec"].values():
        for each in entries:
            if args.checks and each["id"] not in verdicts:
                continue
            why = each["notes"] or "; ".join(each["evidence"])
            rows.append(
                [each["id"], each["level"], each["status"] or "not checked", " ".join(why.split())[:160]]
            )
    table(["ID", "LEVEL", "STATUS", "EVIDENCE"], rows)
