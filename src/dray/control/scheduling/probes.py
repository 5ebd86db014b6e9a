"""/healthz, /readyz and /metrics of the scheduler, on a port of their own."""

from __future__ import annotations

import asyncio
import contextlib

from dray.control.scheduling.loop import SchedulingLoop


def metrics_text(loop: SchedulingLoop) -> str:
    """Spell the counters in the text format of Prometheus."""
    numbers = loop.statistics
    counters = {
        "dray_scheduler_placed_total": ("Pods for which a node was found.", numbers.placed),
        "dray_scheduler_bound_total": ("Pods bound.", numbers.bound),
        "dray_scheduler_refused_total": ("Attempts that found no node.", numbers.refused),
        "dray_scheduler_conflicts_total": (
            "Commits thrown away because another was faster.",
            numbers.conflicts,
        ),
        "dray_scheduler_failures_total": ("Commits that failed for another reason.", numbers.failures),
        "dray_scheduler_late_rivals_total": (
            "Devices that another scheduler gave away, too.",
            numbers.late_rivals,
        ),
        "dray_scheduler_preemptions_total": ("Evictions planned to make room.", numbers.preemptions),
    }
    lines = []
    for name, (words, value) in counters.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} counter", f"{name} {value}"]
    lines += [
        "# HELP dray_scheduler_pending_pods Waiting pods by place.",
        "# TYPE dray_scheduler_pending_pods gauge",
    ]
    for place, count in loop.caches.queue.counts().items():
        lines.append(f'dray_scheduler_pending_pods{{place="{place}"}} {count}')
    return "\n".join(lines) + "\n"


async def serve_probes(loop: SchedulingLoop, address: str, port: int) -> asyncio.Server:
    """Answer probes; port 0 picks a free one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, body = _page(loop, head.split(" ")[1].partition("?")[0] if " " in head else "")
            text = body.encode()
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode()
                + text
            )
            await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, address, port)


def _page(loop: SchedulingLoop, path: str) -> tuple[str, str]:
    match path:
        case "/metrics":
            return "200 OK", metrics_text(loop)
        case "/healthz" | "/livez":
            return "200 OK", "ok"
        case "/readyz":
            return (
                ("200 OK", "ok")
                if loop.is_ready.is_set()
                else ("503 Service Unavailable", "caches are filling")
            )
    return "404 Not Found", "see /metrics, /healthz, /readyz\n"
