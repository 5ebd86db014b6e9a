"""`python -m bench.packing [--traces …] [--policies …] [--seeds N]`: one line per policy and trace as it is measured."""

from __future__ import annotations

import argparse

from bench.packing import HEAD, POLICIES, TRACES, rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.packing")
    parser.add_argument("--traces", default=",".join(TRACES), help="comma-separated (default: all)")
    parser.add_argument("--policies", default=",".join(POLICIES), help="comma-separated (default: all)")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="seeds 42, 43, … (default: 10)")
    args = parser.parse_args()
    print(HEAD, end="")
    for row in rows(args.traces.split(","), args.policies.split(","), args.seeds):
        print(row, flush=True)


if __name__ == "__main__":
    main()
