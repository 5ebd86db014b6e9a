"""The limits of a run, each with what was measured and whether it holds.

A run passes when every limit holds. The limits are about what was counted, so they can be computed from
the report alone (`report.json`), without the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_GROWTH = 64.0  # MB between the first tenth of the requests and the end
LEAST_VALID = 1 / 3  # share of requests that are valid up to the last changed field
# Sorts of findings that have a line of their own; all others are counted together.
NAMED = {
    "death": "process deaths",
    "traceback": "tracebacks",
    "status": "5xx that kube-apiserver would not give",
    "silence": "requests without an answer",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One limit."""

    name: str
    measured: str
    limit: str
    holds: bool

    def line(self) -> str:
        """Return it for people."""
        return f"{'PASS' if self.holds else 'FAIL'}  {self.name}: {self.measured} ({self.limit})"


def verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    """Judge a report; the limits that need a phase which did not run are left out."""
    counts: dict[str, int] = {}
    for finding in report["findings"]:
        counts[finding["sort"]] = counts.get(finding["sort"], 0) + finding["count"]
    found = [_none(name, counts.pop(sort, 0)) for sort, name in NAMED.items()]
    heartbeat = report["heartbeat"]
    worst, most = heartbeat["worst"], heartbeat["limit"]
    counts.pop("heartbeat", 0)
    found.append(
        Verdict(
            "longest heartbeat",
            f"{worst:.0f} ms in {heartbeat['place']}, {heartbeat['worst_raw']:.0f} ms by the clock",
            f"at most {most:.0f} ms",
            worst <= most,
        )
    )
    found += _of_fuzzing(report["figures"].get("fuzz figures"), report["requests"], counts)
    others = {sort: count for sort, count in counts.items() if count}
    shown = ", ".join(f"{count} {sort}" for sort, count in others.items()) or "0"
    return [*found, Verdict("other findings", shown, "none", not others)]


def _of_fuzzing(figures: Mapping[str, Any] | None, planned: int, counts: dict[str, int]) -> list[Verdict]:
    if figures is None:
        return []
    growth, share, sent = figures["memory growth MB"], figures["valid share"], figures["requests"]
    return [
        Verdict("requests sent", f"{sent:,}", f"at least {planned:,}", sent >= planned),
        Verdict("memory growth", f"{growth:.1f} MB", f"at most {MOST_GROWTH:.0f} MB", growth <= MOST_GROWTH),
        Verdict("valid up to the last field", f"{share:.0%}", "at least a third", share >= LEAST_VALID),
    ]


def _none(name: str, count: int) -> Verdict:
    return Verdict(name, str(count), "none", count == 0)
