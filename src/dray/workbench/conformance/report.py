"""The result of a run: the official checklist as data, and a page for people."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from dray.workbench.conformance.checks import IMPLEMENTED, NOT_APPLICABLE, PARTLY, Verdict
from dray.workbench.conformance.requirements import Requirement, requirements_of

NOT_COVERED = "not checked"
_COLOURS = {IMPLEMENTED: "#1a7f37", PARTLY: "#9a6700", NOT_APPLICABLE: "#57606a", NOT_COVERED: "#57606a"}


def checklist(version: str, verdicts: Mapping[str, Verdict], platform: Mapping[str, str]) -> dict[str, Any]:
    """Return the checklist in its official form; what was not checked has an empty status and says why in its notes."""
    spec: dict[str, list[dict[str, Any]]] = {}
    for each in requirements_of(version):
        verdict = verdicts.get(each.id)
        spec.setdefault(each.category, []).append(
            {
                "id": each.id,
                "description": each.text,
                "level": each.levels[version],
                "status": verdict.status if verdict else "",
                "evidence": list(verdict.evidence) if verdict else [],
                "notes": verdict.notes if verdict else f"{NOT_COVERED}: {each.why_not}",
            }
        )
    return {"metadata": {"kubernetesVersion": version, **platform}, "spec": spec}


def failed(version: str, verdicts: Mapping[str, Verdict]) -> list[Requirement]:
    """Return the requirements with the level MUST that were checked and do not hold."""
    return [
        each
        for each in requirements_of(version)
        if each.levels[version] == "MUST"
        and each.id in verdicts
        and verdicts[each.id].status not in (IMPLEMENTED, PARTLY, NOT_APPLICABLE)
    ]


def as_html(data: Mapping[str, Any]) -> str:
    """Return a self-contained page."""
    rows = []
    for category, entries in data["spec"].items():
        for each in entries:
            status = each["status"] or NOT_COVERED
            evidence = "".join(f"<li>{escape(line)}</li>" for line in each["evidence"])
            rows.append(
                f"<tr><td>{escape(category)}</td><td><code>{escape(each['id'])}</code><br>{escape(each['description'])}</td>"
                f"<td>{each['level']}</td><td style='color:{_COLOURS.get(status, '#cf222e')}'><b>{escape(status)}</b></td>"
                f"<td>{f'<ul>{evidence}</ul>' if evidence else ''}{escape(each['notes'])}</td></tr>"
            )
    title = f"AI conformance, Kubernetes {escape(data['metadata']['kubernetesVersion'])}"
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{title}</title>"
        "<style>body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}"
        "table{border-collapse:collapse;width:100%}td,th{border-top:1px solid #d0d7de;padding:.5rem;text-align:left;"
        "vertical-align:top}ul{margin:0;padding-left:1.1rem}td:last-child{overflow-wrap:anywhere}</style>"
        f"<h1>{title}</h1><p>{escape(data['metadata'].get('platformName', ''))}</p>"
        "<table><thead><tr><th>Area<th>Requirement<th>Level<th>Status<th>Evidence</tr></thead><tbody>"
        + "\n".join(rows)
        + "</tbody></table></html>\n"
    )
