"""HTTPS: /validate for API servers; /healthz, /readyz and /metrics for probes and scrapers."""

from __future__ import annotations

import itertools
import socket

from aiohttp import web

from dray.api.media_types import JSON_TYPE
from dray.control.guarding.guard import BadReview, Guard, Phase
from dray.control.guarding.tls_identity import Identity
from dray.control.guarding.webhook_configuration import PATH
from dray.host.metrics_text import family

_LARGEST = 8 * 1024 * 1024  # two claims of at most 1.5 MiB each, and a margin


def metrics_text(guard: Guard) -> str:
    """Write the counters in the text format of Prometheus."""
    numbers = guard.statistics
    flights = list(guard.judge.flights())
    reviews = [
        ({"verdict": "admitted"}, numbers.admitted),
        ({"verdict": "refused"}, numbers.refused),
        ({"verdict": "dry_run"}, numbers.dry_runs),
        ({"verdict": "not_ready"}, numbers.not_now),
    ]
    seconds, is_judging = round(numbers.seconds, 6), int(guard.phase is Phase.JUDGING)
    families = [
        family("dray_guard_reviews_total", "counter", "Writes that API servers asked about.", reviews),
        family("dray_guard_review_seconds_total", "counter", "Time spent on answers.", seconds),
        family("dray_guard_in_flight", "gauge", "Admitted writes that the cache does not show yet.", len(flights)),
        family("dray_guard_fences_total", "counter", "Claims moved on so that no old write can land.", numbers.fences),
        family("dray_guard_unguarded_total", "counter", "Allocations that went past the guard.", numbers.unguarded),
        family("dray_guard_reopened_total", "counter", "Times the webhook configuration was missing.", numbers.reopened),
        family("dray_guard_judging", "gauge", "1 while this guard answers.", is_judging),
    ]  # fmt: skip
    return "".join(itertools.chain(*families))


def application(guard: Guard) -> web.Application:
    """Return the pages."""

    async def validate(request: web.Request) -> web.Response:
        try:
            answer = guard.review(await request.read())
        except BadReview as error:
            return web.Response(status=400, text=f"{error}\n")
        return web.Response(body=answer, content_type=JSON_TYPE)

    async def ready(_: web.Request) -> web.Response:
        is_ready = guard.phase is Phase.JUDGING
        return web.Response(status=200 if is_ready else 503, text=f"{guard.phase}\n")

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=metrics_text(guard), content_type="text/plain")

    pages = web.Application(client_max_size=_LARGEST)
    pages.router.add_post(PATH, validate)
    pages.router.add_get("/readyz", ready)
    pages.router.add_get("/healthz", livez)
    pages.router.add_get("/livez", livez)
    pages.router.add_get("/metrics", metrics)
    return pages


async def serve(guard: Guard, listener: socket.socket, identity: Identity) -> web.AppRunner:
    """Answer on a listening socket; the caller cleans up what is returned."""
    # Answers under way are finished, connections that API servers keep open are not waited for.
    runner = web.AppRunner(application(guard), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=identity.tls).start()
    return runner
