"""The report of a simulation: one HTML file with tables and SVG plots, no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from dray.sim.simulation import RunResult
from dray.sim.statistics import MEASURES, Comparison, Estimate, by_policy, compare, estimates

_COLOURS: Final = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#57606a")
_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 44

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; background: #fff; max-width: 1340px; margin: 2em auto; padding: 0 1.5em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.2em; margin: 2em 0 .5em; border-bottom: 1px solid #d0d7de; padding-bottom: .2em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } th, td { padding: .3em .8em; text-align: right; border-bottom: 1px solid #eaeef2; }
td { white-space: nowrap; } th:first-child, td:first-child { text-align: left; } .best { font-weight: 600; } .note { color: #57606a; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(600px, 1fr)); gap: 1.2em 2em; } figure { margin: 0; } figcaption { font-weight: 600; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #57606a; }
.key span { display: inline-block; margin-right: 1.4em; } .key i { display: inline-block; width: 1.6em; height: 3px; vertical-align: middle; margin-right: .4em; }
"""


def html_report(title: str, facts: Sequence[tuple[str, str]], runs: Sequence[RunResult]) -> str:
    """Return the report; `facts` say what was simulated."""
    grouped = by_policy(runs)
    colours = {policy: _COLOURS[number % len(_COLOURS)] for number, policy in enumerate(grouped)}
    key = "".join(
        f'<span><i style="background:{colour}"></i>{escape(policy)}</span>'
        for policy, colour in colours.items()
    )
    is_filling = any(run.allocated_at for run in runs)
    across = "demand that has arrived, part of the capacity" if is_filling else "time (hours)"
    plots = [
        _series_plot("Utilisation: devices in use (%)", across, grouped, colours, "utilisation", 100),
        _series_plot(
            "Fragmentation: free capacity that pods cannot use (%)",
            across,
            grouped,
            colours,
            "fragmentation",
            100,
        ),
    ]
    if not is_filling:
        plots.append(_series_plot("Pods that wait", across, grouped, colours, "waiting", 1))
        plots.append(
            _bars(
                "Waits (s): mean, 95th percentile, longest",
                grouped,
                colours,
                ("wait_mean", "wait_p95", "wait_max"),
                runs,
            )
        )
    plots.append(_refusals_plot(grouped, colours))
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><table>{rows}</table>"
        f"<h2>Policies</h2>{_policy_table(runs)}"
        f"<h2>Compared with {escape(next(iter(grouped), ''))}, seed by seed</h2>{_comparison_table(compare(runs))}"
        f'<h2>Plots</h2><p class="key">{key}</p><div class="plots">{"".join(plots)}</div>'
        '<p class="note">Lines are means over the seeds, bands their range; ± is the 95 % confidence interval of the mean.</p></html>\n'
    )


def shown(value: Estimate, *, is_percent: bool) -> str:
    """Return an estimate for people."""
    factor = 100 if is_percent else 1
    mean = f"{value.mean * factor:,.2f}" if is_percent or abs(value.mean) < 1000 else f"{value.mean:,.0f}"
    if value.margin is None:
        return mean
    margin = value.margin * factor
    return f"{mean} ± {margin:,.2f}" if is_percent or margin < 1000 else f"{mean} ± {margin:,.0f}"


# --- tables -----------------------------------------------------------------------


def _policy_table(runs: Sequence[RunResult]) -> str:
    found = estimates(runs)
    present = [measure for measure in MEASURES if any(measure.key in row for row in found.values())]
    head = "".join(f"<th>{escape(m.title)}{' (%)' if m.is_percent else ''}</th>" for m in present)
    body = ""
    for policy, row in found.items():
        cells = ""
        for measure in present:
            value = row.get(measure.key)
            if value is None:
                cells += "<td>-</td>"
                continue
            means = [other[measure.key].mean for other in found.values() if measure.key in other]
            best = value.mean == (max if measure.higher_is_better else min)(means) and len(set(means)) > 1
            cells += f"<td{' class=best' if best else ''}>{shown(value, is_percent=measure.is_percent)}</td>"
        seeds = len(by_policy(runs)[policy])
        body += f"<tr><td>{escape(policy)}</td><td>{seeds}</td>{cells}</tr>"
    return f"<table><tr><th>policy</th><th>seeds</th>{head}</tr>{body}</table>"


def _comparison_table(comparisons: Sequence[Comparison]) -> str:
    if not comparisons:
        return '<p class="note">One policy: nothing to compare.</p>'
    measures = {measure.key: measure for measure in MEASURES}
    body = ""
    for each in comparisons:
        measure = measures[each.measure]
        better = (each.difference.mean > 0) == measure.higher_is_better
        if each.difference.margin is None:
            verdict = "one seed: no interval"
        elif not each.is_clear:
            verdict = "no clear difference"
        else:
            verdict = "better" if better else "worse"
        unit = " (points)" if measure.is_percent else ""
        body += (
            f"<tr><td>{escape(each.policy)}</td><td>{escape(measure.title)}{unit}</td>"
            f"<td>{shown(each.difference, is_percent=measure.is_percent)}</td><td>{verdict}</td></tr>"
        )
    return f"<table><tr><th>policy</th><th>measure</th><th>difference</th><th></th></tr>{body}</table>"


# --- plots ------------------------------------------------------------------------


def _scale(value: float, low: float, high: float, begin: float, end: float) -> float:
    return begin + (value - low) / (high - low or 1.0) * (end - begin)


def _ticks(high: float) -> list[float]:
    """Return round numbers from 0 to a little less than `high`."""
    if high <= 0:
        return [0.0]
    step = 10.0 ** len(str(int(high))) / 100 if high >= 1 else 0.05
    while high / step > 6:
        step *= 2 if str(step).lstrip("0.").startswith(("1", "5")) else 2.5
    return [number * step for number in range(int(high / step) + 1)]


def _frame(across: str, x_high: float, y_high: float) -> str:
    lines = []
    for tick in _ticks(y_high):
        y = _scale(tick, 0, y_high, _HEIGHT - _BOTTOM, _TOP)
        lines.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eaeef2"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        )
    for tick in _ticks(x_high):
        x = _scale(tick, 0, x_high, _LEFT, _WIDTH - _RIGHT)
        lines.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{tick:,g}</text>')
    base = _HEIGHT - _BOTTOM
    lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}" stroke="#8c959f"/>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>')
    return "".join(lines)


def _figure(title: str, content: str, height: int = _HEIGHT) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{content}</svg></figure>'
    )


def _series_plot(
    title: str,
    across: str,
    grouped: dict[str, list[RunResult]],
    colours: dict[str, str],
    name: str,
    factor: float,
) -> str:
    """Draw a series: the mean of the seeds as a line, their range as a band."""
    curves: dict[str, list[tuple[float, float, float, float]]] = {}
    for policy, runs in grouped.items():
        length = min((len(run.series.at) for run in runs), default=0)
        points = []
        for index in range(length):
            values = [float(getattr(run.series, name)[index]) * factor for run in runs]
            at = sum(run.series.at[index] for run in runs) / len(runs)
            at = at if run_is_filling(runs[0]) else at / 3600
            points.append((at, sum(values) / len(values), min(values), max(values)))
        curves[policy] = points
    every = [point for points in curves.values() for point in points]
    x_high = max((point[0] for point in every), default=1.0) or 1.0
    y_high = max((point[3] for point in every), default=1.0) * 1.05 or 1.0
    content = _frame(across, x_high, y_high)
    for policy, points in curves.items():
        if not points:
            continue

        def place(at: float, value: float) -> str:
            x = _scale(at, 0, x_high, _LEFT, _WIDTH - _RIGHT)
            return f"{x:.1f},{_scale(value, 0, y_high, _HEIGHT - _BOTTOM, _TOP):.1f}"

        band = [place(p[0], p[3]) for p in points] + [place(p[0], p[2]) for p in reversed(points)]
        line = " ".join(place(p[0], p[1]) for p in points)
        content += f'<polygon points="{" ".join(band)}" fill="{colours[policy]}" opacity="0.15"/>'
        content += f'<polyline points="{line}" fill="none" stroke="{colours[policy]}" stroke-width="1.8"/>'
    return _figure(title, content)


def run_is_filling(run: RunResult) -> bool:
    """Return whether a run was a filling: its series is over demand, not time."""
    return bool(run.allocated_at)


def _bars(
    title: str,
    grouped: dict[str, list[RunResult]],
    colours: dict[str, str],
    keys: Sequence[str],
    runs: Sequence[RunResult],
) -> str:
    found = estimates(runs)
    titles = {measure.key: measure.title for measure in MEASURES}
    values = [found[policy][key] for policy in grouped for key in keys if key in found[policy]]
    high = max((value.mean + (value.margin or 0) for value in values), default=1.0) * 1.05 or 1.0
    content = _frame("", 0, high)
    group = (_WIDTH - _LEFT - _RIGHT) / len(keys)
    width = group * 0.7 / max(1, len(grouped))
    for position, key in enumerate(keys):
        start = _LEFT + position * group + group * 0.15
        for number, policy in enumerate(grouped):
            value = found[policy].get(key)
            if value is None:
                continue
            x = start + number * width
            top = _scale(value.mean, 0, high, _HEIGHT - _BOTTOM, _TOP)
            content += f'<rect x="{x:.1f}" y="{top:.1f}" width="{width * 0.9:.1f}" height="{_HEIGHT - _BOTTOM - top:.1f}" fill="{colours[policy]}"/>'
            if value.margin is not None:
                low, up = (
                    _scale(each, 0, high, _HEIGHT - _BOTTOM, _TOP)
                    for each in (max(0.0, value.mean - value.margin), value.mean + value.margin)
                )
                middle = x + width * 0.45
                content += f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{low:.1f}" y2="{up:.1f}" stroke="#1f2328" stroke-width="1.4"/>'
        content += f'<text x="{start + group * 0.35:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{escape(titles[key])}</text>'
    return _figure(title, content)


def _refusals_plot(grouped: dict[str, list[RunResult]], colours: dict[str, str]) -> str:
    """Draw how many pods were refused at their first try, by reason."""
    means: dict[str, dict[str, float]] = {}
    for policy, runs in grouped.items():
        for run in runs:
            for reason, pods in run.refusals.items():
                row = means.setdefault(reason, {})
                row[policy] = row.get(policy, 0.0) + pods / len(runs)
    if not means:
        return _figure("Pods refused at their first try", '<text x="20" y="40">none</text>', 80)
    order = sorted(means, key=lambda reason: -sum(means[reason].values()))[:10]
    high = max(max(row.values()) for row in means.values()) or 1.0
    line = 16.0
    height = round(20 + len(order) * (line * len(grouped) + 26))
    y = 16.0
    content = ""
    for reason in order:
        content += f'<text x="8" y="{y + 4:.0f}">{escape(reason)}</text>'
        y += 10
        for policy in grouped:
            count = means[reason].get(policy, 0.0)
            width = _scale(count, 0, high, 0, _WIDTH - 120)
            content += (
                f'<rect x="8" y="{y:.0f}" width="{width:.1f}" height="{line - 3}" fill="{colours[policy]}"/>'
                f'<text x="{width + 14:.1f}" y="{y + line - 5:.0f}">{count:,.0f}</text>'
            )
            y += line
        y += 16
    return _figure("Pods refused at their first try, by reason", content, height)
