"""`dray doctor`: examine a cluster or this machine; every finding with evidence and a fix."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from dray.api.wording import plural
from dray.cli.arguments import add_flags
from dray.cli.output import CommandError, add_output_flag, emit, say, table
from dray.host.clock import utc_now

if TYPE_CHECKING:
    from dray.workbench.doctor import Finding

KUBELET_FOLDER = Path("/var/lib/kubelet")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--machine", action="store_true", help="examine this machine only, no cluster")
    parser.add_argument("--cluster", action="store_true", help="examine the cluster only, not this machine")
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        default=KUBELET_FOLDER,
        metavar="DIR",
        help="kubelet's folder on this machine (default: /var/lib/kubelet)",
    )
    add_flags(parser, "--kubeconfig", "--context")
    parser.add_argument("--codes", action="store_true", help="list the codes of findings and what they mean")
    add_output_flag(parser, "text")


def run(args: argparse.Namespace) -> int:
    """Examine; exit code 0 when nothing is wrong, 1 when there are errors or warnings, 2 for bad use."""
    from dray.workbench.doctor import CODES, by_severity

    if args.codes:
        if args.output == "text":
            table(["CODE", "SEVERITY", "MEANING"], [[code, *entry] for code, entry in CODES.items()])
        else:
            emit({code: {"severity": s, "meaning": m} for code, (s, m) in CODES.items()}, args.output)
        return 0
    if args.machine and args.cluster:
        raise CommandError("--machine and --cluster exclude each other", "give neither to examine both")
    findings: list[Finding] = []
    examined: list[str] = []
    if not args.machine:
        version, found = asyncio.run(_examine_cluster(args.kubeconfig, args.context))
        examined.append(f"cluster {version}")
        findings += found
    if not args.cluster:
        examined.append("this machine")
        findings += _examine_machine(args.kubelet_dir)
    findings = by_severity(findings)
    _print(findings, examined, args.output)
    return 1 if any(finding.severity != "info" for finding in findings) else 0


async def _examine_cluster(kubeconfig: str | None, context: str | None) -> tuple[str, list[Finding]]:
    from dray.cli.sources import connect
    from dray.workbench.doctor import check_cluster, read_cluster

    async with connect(kubeconfig, context) as client:
        facts = await read_cluster(client, utc_now())
    return facts.version, check_cluster(facts)


def _examine_machine(kubelet: Path) -> list[Finding]:
    from dray.cli.machine_facts import read_machine
    from dray.cli.which_system import current_data
    from dray.local.running_system import is_running, read_state
    from dray.workbench.doctor import check_machine

    state = read_state(current_data(None))
    # A system that was stopped as a whole is not a fault.
    parts = state["parts"] if state is not None and is_running(state) else {}
    return check_machine(read_machine(kubelet, {name: is_running(part) for name, part in parts.items()}))


def _print(findings: list[Finding], examined: list[str], output: str) -> None:
    counts = {
        severity: sum(finding.severity == severity for finding in findings)
        for severity in ("error", "warning", "info")
    }
    if output != "text":
        emit(
            {"examined": examined, "counts": counts, "findings": [finding.data() for finding in findings]},
            output,
        )
        return
    for finding in findings:
        print(f"{finding.severity}: {finding.subject}: {finding.evidence} [{finding.code}]")
        print(f"  fix: {finding.fix}")
    words = ", ".join(plural(count, kind) for kind, count in counts.items() if count and kind != "info")
    left_out = sum(finding.code == "not-permitted" for finding in findings)
    missing = f"; without {plural(left_out, 'resource')} that you may not read" if left_out else ""
    say(f"{' and '.join(examined)} examined: {words or 'nothing is wrong'}{missing}")
