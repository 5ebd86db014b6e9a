"""Attack a server of our own; see the package."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from attack.campaign import Campaign, Plan
from attack.phases import BY_DEFAULT, PHASES, run
from attack.replaying import replay
from attack.verdict import verdicts

# Expressions have tests of their own (tests/unit/cel/test_cel_hostile.py), and take too long here.
SHORT = Plan(
    requests=4_000,
    tries=4,
    seconds=15.0,
    sample=40,
    bombs="^(?!cel |class of|claim of)",
    damages=2,
    heartbeat=1_000.0,
)
SHORT_PHASES = ["fuzz", "bombs", "files"]
LONG = Plan(requests=1_000_000, required=1_000_000, tries=120, seconds=3_900.0)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__)
    parser.add_argument("phases", nargs="*", help=f"which of {', '.join(PHASES)}; all but soak by default")
    parser.add_argument("--short", action="store_true", help="the form that is a part of `make test`")
    parser.add_argument("--seed", default="1", help="the same seed makes the same requests")
    parser.add_argument("--requests", type=int, help="how many requests the fuzzer sends")
    parser.add_argument("--minutes", type=float, help="at most so long for the fuzzer")
    parser.add_argument("--workers", type=int, default=1, help="processes that send requests")
    parser.add_argument("--bombs", default="", metavar="REGEX", help="only bombs whose name matches")
    parser.add_argument("--holds", action="store_true", help="name the requests that held the event loop")
    parser.add_argument("--output", type=Path, help="where report and findings go (default: a new folder)")
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="send the requests of a findings file again, to a fresh server",
    )
    parser.add_argument(
        "--shrink", action="store_true", help="with --replay: make the bodies smaller while the answer stays"
    )
    args = parser.parse_args()
    if args.replay:
        return asyncio.run(replay(args.replay, shrink=args.shrink))
    unknown = set(args.phases) - set(PHASES)
    if unknown:
        parser.error(f"no phase named {', '.join(sorted(unknown))}; known: {', '.join(PHASES)}")
    plan = SHORT if args.short else LONG
    plan.requests = args.requests or plan.requests
    plan.seconds = args.minutes * 60 if args.minutes else plan.seconds
    plan.required = 0 if args.minutes else min(plan.required, plan.requests)
    plan.names_holds = args.holds
    plan.workers, plan.seed, plan.bombs = args.workers, args.seed, args.bombs or plan.bombs
    output = args.output or Path(tempfile.mkdtemp(prefix="dray-attack-"))
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    campaign = Campaign(plan, output)
    try:
        run(campaign, args.phases or (SHORT_PHASES if args.short else BY_DEFAULT))
    finally:
        campaign.close()
    report = campaign.report(time.monotonic() - began)
    (output / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    campaign.findings.write(output / "findings.jsonl")
    sys.stdout.write(campaign.text(report))
    sys.stdout.write(f"\nreport and findings: {output}\n")
    if not args.output and not len(campaign.findings):
        shutil.rmtree(output / "server", ignore_errors=True)
    return 0 if all(each.holds for each in verdicts(report)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
