"""A validation for other programs: plain data, and JUnit XML for continuous integration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import quoteattr

from dray.workbench.fleet.validation import DeviceReport


def as_rows(reports: Sequence[DeviceReport]) -> list[dict[str, Any]]:
    """Return one entry a device."""
    return [
        {
            "node": report.node,
            "driver": report.driver,
            "pool": report.pool,
            "device": report.device,
            "ok": report.is_ok,
            "results": [
                {"name": each.name, "status": each.status, "evidence": each.evidence}
                for each in report.results
            ],
        }
        for report in reports
    ]


def as_junit(reports: Sequence[DeviceReport]) -> str:
    """Return JUnit XML: a suite a node, a case for each statement about a device."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for node in dict.fromkeys(report.node for report in reports):
        cases = [(report, each) for report in reports if report.node == node for each in report.results]
        failed = sum(each.status == "failed" for _, each in cases)
        skipped = sum(each.status == "skipped" for _, each in cases)
        lines.append(
            f'  <testsuite name={_quoted(node or "no node")} tests="{len(cases)}" failures="{failed}" '
            f'skipped="{skipped}">'
        )
        for report, each in cases:
            name = f"{report.driver}/{report.pool}/{report.device}"
            head = f"    <testcase classname={_quoted(name)} name={_quoted(each.name)}"
            if each.status == "ok":
                lines.append(f"{head}/>")
            else:
                kind = "failure" if each.status == "failed" else "skipped"
                lines.append(f"{head}><{kind} message={_quoted(each.evidence)}/></testcase>")
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _quoted(text: str) -> str:
    """Return an attribute's value; characters that XML 1.0 cannot hold are replaced."""
    clean = "".join(c if c in "\t\n\r" or " " <= c <= "\ud7ff" or c > "\ue000" else "?" for c in text)
    return quoteattr(clean)
