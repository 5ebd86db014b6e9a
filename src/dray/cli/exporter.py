"""`dray exporter`: serve metrics of devices, claims and their holders to Prometheus, for any cluster with DRA."""

from __future__ import annotations

import argparse
import asyncio
import logging

from dray.cli.arguments import add_flags, port, seconds
from dray.cli.services import log_to_stderr, until_stopped
from dray.host.heap import keep_heap_compact

log = logging.getLogger("dray.exporter")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_flags(parser, "--kubeconfig", "--context")
    add_flags(
        parser,
        "--namespace",
        help="namespace whose claims are shown if those of all may not be listed (default: the kubeconfig's)",
    )
    parser.add_argument(
        "--address", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=port, default=9099, metavar="N", help="port (default: 9099; 0: any free one)"
    )
    parser.add_argument(
        "--refresh",
        type=seconds(1, 3600),
        default=15.0,
        metavar="SECONDS",
        help="compute the series at most this often (default: 15)",
    )
    add_flags(parser, "--max-devices", "--log-format", "--verbose")


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    log_to_stderr(args)
    keep_heap_compact()
    asyncio.run(_serve(args))
    return 0


async def _serve(args: argparse.Namespace) -> None:
    from aiohttp import web

    from dray.cli.sources import connect
    from dray.workbench.exporter import Exporter, permitted

    async with connect(args.kubeconfig, args.context) as client:
        scope = await permitted(client, args.namespace or "")
        for resource, reason in scope.forbidden.items():
            log.warning("without %s: %s", resource, reason)
        exporter = Exporter(client, args.max_devices, args.refresh, scope)
        runner = web.AppRunner(exporter.application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, args.address, args.port).start()
            name = f"http://{args.address}:{runner.addresses[0][1]}/metrics"
            print(f"dray exporter: serving {name}", flush=True)
            await until_stopped(exporter.run())
        finally:
            await runner.cleanup()
