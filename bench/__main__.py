"""Run benches by name (all of them by default); each writes its own section of BENCHMARKS.md.

A bench is a package `bench/<name>` with a function `run(quick: bool) -> str` that returns
the section as Markdown. To add one, add the package and its name to BENCHES.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import signal
import sys
import time
import traceback
from pathlib import Path

BENCHES = [
    "allocator",
    "cel",
    "packing",
    "capacity",
    "fair_share",
    "node",
    "light_nodes",
    "server",
    "scheduling",
]
REPORT = Path(__file__).resolve().parent.parent / "BENCHMARKS.md"
HEAD = "# Benchmarks\n\nMeasured by `make bench`; every section says how.\n"


def write_section(name: str, text: str, report: Path = REPORT) -> None:
    """Replace (or add) one section, leaving the others as they are."""
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    old = report.read_text(encoding="utf-8") if report.exists() else HEAD
    section = f"{start}\n{text.strip()}\n{end}"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(old):
        new = pattern.sub(lambda _match: section, old)
    else:
        new = old.rstrip("\n") + "\n\n" + section + "\n"
    report.write_text(new, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which benches; known: {', '.join(BENCHES)}")
    parser.add_argument(
        "--quick", action="store_true", help="smaller instances, fewer rounds; writes nothing"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended, too
    failed = []
    for name in args.names or BENCHES:
        if importlib.util.find_spec(f"bench.{name}") is None:
            sys.stderr.write(f"no bench named {name!r}; known: {', '.join(BENCHES)}\n")
            return 2
        started = time.monotonic()
        try:
            text = importlib.import_module(f"bench.{name}").run(quick=args.quick)
        except Exception:  # the others are worth having all the same
            traceback.print_exc()
            failed.append(name)
            continue
        if args.quick:
            sys.stdout.write(text + "\n")
        else:
            write_section(name, text)
            sys.stdout.write(f"{name}: {time.monotonic() - started:.0f} s, written to {REPORT.name}\n")
    if failed:
        sys.stderr.write(f"failed, their sections are left as they were: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
