"""/healthz, /readyz and /metrics of the scheduler, on a port of their own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable

from dray.control.scheduling.loop import SchedulingLoop
from dray.host.metrics_text import CONTENT_TYPE, family, histogram

_HEAD_SECONDS = 10.0  # how long a caller may take to send its request
DeviceSeries = Callable[[], Awaitable[bytes]]  # who holds what, as text


def metrics_text(loop: SchedulingLoop) -> str:
    """Write the counters in the text format of Prometheus."""
    numbers = loop.statistics
    waiting = [({"queue": place}, count) for place, count in loop.informers.queue.counts().items()]
    families = [
        family("dray_scheduler_placed_total", "counter", "Pods for which a node was found.", numbers.placed),
        family("dray_scheduler_bound_total", "counter", "Pods bound.", numbers.bound),
        family(
            "dray_scheduler_refused_total",
            "counter",
            "Attempts that found no node, by reason.",
            [({"reason": reason}, count) for reason, count in numbers.refusals.items()],
        ),
        family(
            "dray_scheduler_conflicts_total",
            "counter",
            "Commits thrown away because another was faster.",
            numbers.conflicts,
        ),
        family(
            "dray_scheduler_failures_total",
            "counter",
            "Commits that failed for another reason.",
            numbers.failures,
        ),
        family(
            "dray_scheduler_preemptions_total",
            "counter",
            "Preemptions: decisions to evict pods for a more important one.",
            numbers.preemptions,
        ),
        family(
            "dray_scheduler_pending_pods",
            "gauge",
            "Waiting pods by queue: active, backoff, unschedulable, in-flight.",
            waiting,
        ),
        histogram(
            "dray_scheduler_attempt_duration_seconds",
            "Time of one decision, by result.",
            [({"result": result}, found) for result, found in numbers.attempts.items()],
        ),
        histogram(
            "dray_scheduler_allocation_duration_seconds",
            "Time from the queue to the binding, of pods whose claims were allocated.",
            numbers.allocations,
        ),
        family(
            "dray_scheduler_leading",
            "gauge",
            "1 while this process schedules, 0 while it stands by.",
            int(loop.is_ready.is_set()),
        ),
    ]
    return "".join(itertools.chain(*families))


async def serve_probes(
    loop: SchedulingLoop, address: str, port: int, device_series: DeviceSeries | None = None
) -> asyncio.Server:
    """Answer probes; port 0 picks a free one. While the loop leads, /metrics ends with `device_series`.

    A process that stands by knows the same devices; if it told of them too, sums would count them twice.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError
        ):
            async with asyncio.timeout(_HEAD_SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ")[1].partition("?")[0] if " " in head else ""
            status, page = _page(loop, path)
            body = page.encode()
            if path == "/metrics" and device_series is not None and loop.is_ready.is_set():
                body += await device_series()
            kind = CONTENT_TYPE if path == "/metrics" else "text/plain; charset=utf-8"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
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
                if loop.is_synced.is_set()
                else ("503 Service Unavailable", "the informers have not listed the cluster yet")
            )
    return "404 Not Found", "see /metrics, /healthz, /readyz\n"
