"""Pictures and lists of a cluster, printed once or kept up to date.

With `--watch` (and always in `dray top` on a terminal) the text is made again when a claim changes, and at least every
`--interval` seconds. A terminal shows the newest text only; elsewhere each text that differs from the last is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dray.cli.arguments import add_flags, seconds
from dray.cli.sources import connect, load_source, warn_of_forbidden

if TYPE_CHECKING:
    from dray.client import Client
    from dray.sim.snapshot import Snapshot

_CLEAR, _HIDE, _SHOW = "\x1b[H\x1b[J", "\x1b[?25l\x1b[?1049h", "\x1b[?1049l\x1b[?25h"
Draw = Callable[["Snapshot"], str]


def add_watch_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--watch` and `--interval`."""
    add_flags(parser, "--watch")
    parser.add_argument(
        "--interval",
        type=seconds(0.1, 3600),
        default=2.0,
        metavar="SECONDS",
        help="with --watch: longest time between two looks at the cluster (default: 2)",
    )


def show(args: argparse.Namespace, draw: Draw) -> int:
    """Print what `draw` makes of the cluster that the flags name; with `--watch` until interrupted."""
    if not args.watch:
        sys.stdout.write(draw(load_source(args)))
        return 0
    is_terminal = sys.stdout.isatty()
    sys.stdout.write(_HIDE if is_terminal else "")
    try:
        asyncio.run(_keep_showing(args, draw, is_terminal))
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_SHOW if is_terminal else "")
        sys.stdout.flush()
    return 0


async def _keep_showing(args: argparse.Namespace, draw: Draw, is_terminal: bool) -> None:
    from dray.client import ClientError
    from dray.sim.snapshot import SnapshotError, capture

    last = None
    async with contextlib.AsyncExitStack() as stack:
        changed = asyncio.Event()
        client = None
        if not args.against:
            client = await stack.enter_async_context(connect(args.kubeconfig, args.context))
            watcher = asyncio.create_task(_watch_claims(client, changed))
            stack.callback(watcher.cancel)
        while True:
            changed.clear()
            try:
                # Files are read again: somebody may write a new snapshot into them.
                if client is None:
                    snapshot = await asyncio.to_thread(load_source, args)
                else:
                    snapshot = await capture(client, args.namespace)
                    if last is None:
                        warn_of_forbidden(snapshot)
                text = draw(snapshot)
            except (SnapshotError, ClientError) as error:
                if last is None:
                    raise
                text = f"{error}\n"
            if text != last or is_terminal:
                _print(text, is_terminal)
            last = text
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), args.interval)
            await asyncio.sleep(min(0.2, args.interval))  # many changes make one picture


def _print(text: str, is_terminal: bool) -> None:
    if is_terminal:
        columns, lines = shutil.get_terminal_size()
        shown = "\n".join(line[:columns] for line in text.splitlines()[: lines - 2])
        text = f"{_CLEAR}{time.strftime('%H:%M:%S')}  Ctrl-C ends\n{shown}\n"
    sys.stdout.write(text)
    sys.stdout.flush()


async def _watch_claims(client: Client, changed: asyncio.Event) -> None:
    """Set the event when a claim changes; devices that fail are seen at the next regular look."""
    from dray.client import ClientError
    from dray.client.resources import CLAIMS

    while True:
        with contextlib.suppress(ClientError):
            async for _ in client.watch_lines(CLAIMS):
                changed.set()
        await asyncio.sleep(1)
