"""Pictures and lists of a cluster, printed once or kept up to date.

With `--watch` (and always in `dray top` on a terminal) the text is made again when a claim changes, and at least every
`--interval` seconds. A terminal shows the newest text only; elsewhere each text that differs from the last is printed.
Where a command has keys (`dray top`), what is typed changes the view, and the text is drawn anew at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dray.cli.arguments import add_flags, seconds
from dray.cli.sources import connect, load_source, warn_of_forbidden

if TYPE_CHECKING:
    from dray.cli.top_keys import TopView
    from dray.client import Client
    from dray.sim.snapshot import Snapshot

_CLEAR, _HIDE, _SHOW = "\x1b[H\x1b[J", "\x1b[?25l\x1b[?1049h", "\x1b[?1049l\x1b[?25h"
_COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")
Draw = Callable[["Snapshot"], str]


def add_watch_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--watch` and `--interval`."""
    add_flags(parser, "--watch")
    parser.add_argument(
        "--interval",
        type=seconds(0.1, 3600),
        default=2.0,
        metavar="SECONDS",
        help="with --watch: longest time between two refreshes (default: 2)",
    )


def show(
    args: argparse.Namespace, draw: Draw, view: TopView | None = None, *, only_views: bool = False
) -> int:
    """Print what `draw` makes of the cluster that the flags name; with `--watch` until interrupted.

    `only_views`: `draw` looks at no `Snapshot.objects`.
    """
    if not args.watch:
        sys.stdout.write(draw(load_source(args, only_views=only_views)))
        return 0
    is_terminal = sys.stdout.isatty()
    sys.stdout.write(_HIDE if is_terminal else "")
    try:
        with _keys_at_once() if view is not None else contextlib.nullcontext():
            asyncio.run(_keep_showing(args, draw, is_terminal, view, only_views=only_views))
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_SHOW if is_terminal else "")
        sys.stdout.flush()
    return 0


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Let the terminal give every key at once and show none; as it was afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _keep_showing(
    args: argparse.Namespace, draw: Draw, is_terminal: bool, view: TopView | None, *, only_views: bool
) -> None:
    from dray.client import ClientError
    from dray.sim.snapshot import SnapshotError, capture

    last = snapshot = None
    typed: asyncio.Queue[str] = asyncio.Queue()
    async with contextlib.AsyncExitStack() as stack:
        changed = asyncio.Event()
        client = None
        if not args.against:
            client = await stack.enter_async_context(connect(args.kubeconfig, args.context))
            watcher = asyncio.create_task(_watch_claims(client, changed))
            stack.callback(watcher.cancel)
        if view is not None:
            _read_keys(typed, changed, stack)
        while True:
            changed.clear()
            is_asked = view is not None and await _take_keys(view, typed, client)
            if view is not None and view.is_over:
                return
            try:
                # Files are read again: somebody may write a new snapshot into them.
                if is_asked and snapshot is not None:
                    pass  # only the view has changed
                elif client is None:
                    snapshot = await asyncio.to_thread(load_source, args)
                else:
                    snapshot = await capture(client, args.namespace, only_views=only_views)
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
            if typed.empty():
                await asyncio.sleep(min(0.2, args.interval))  # many changes make one picture


def _read_keys(typed: asyncio.Queue[str], changed: asyncio.Event, stack: contextlib.AsyncExitStack) -> None:
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        typed.put_nowait(
            os.read(descriptor, 1024).decode("utf-8", "ignore") or "q"
        )  # a closed terminal ends it
        changed.set()

    loop.add_reader(descriptor, read)
    stack.callback(loop.remove_reader, descriptor)


async def _take_keys(view: TopView, typed: asyncio.Queue[str], client: Client | None) -> bool:
    """Let the view have what was typed, and end the jobs that it says; returns whether only the view has changed."""
    from dray.client import ClientError
    from dray.client.resources import PODS

    if typed.empty():
        return False
    is_view_only = True
    while not typed.empty():
        for target in view.take(typed.get_nowait()):
            is_view_only = False
            if client is None:
                view.message = "this is not a running cluster"
                continue
            try:
                await client.delete(PODS, target.pod, target.namespace)
                view.message = f"job {target.namespace}/{target.pod} was told to end"
            except ClientError as error:
                view.message = f"not ended: {error}"
    return is_view_only


def _print(text: str, is_terminal: bool) -> None:
    if is_terminal:
        columns, lines = shutil.get_terminal_size()
        shown = "\n".join(_cut(line, columns) for line in text.splitlines()[: lines - 2])
        text = f"{_CLEAR}{time.strftime('%H:%M:%S')}  Ctrl-C ends\n{shown}\x1b[0m\n"
    sys.stdout.write(text)
    sys.stdout.flush()


def _cut(line: str, columns: int) -> str:
    """Return as much of a line as the terminal is wide; colours take no room.

    >>> _cut("\\x1b[1mab\\x1b[0mcd", 3) == "\\x1b[1mab\\x1b[0mc"
    True
    """
    found = ""
    for piece in _COLOURS.split(line):
        if _COLOURS.fullmatch(piece):
            found += piece
        else:
            found += piece[:columns]
            columns -= min(columns, len(piece))
    return found


async def _watch_claims(client: Client, changed: asyncio.Event) -> None:
    """Set the event when a claim changes; devices that fail are seen at the next regular look."""
    from dray.client import ClientError
    from dray.client.resources import CLAIMS

    while True:
        with contextlib.suppress(ClientError):
            async for _ in client.watch_lines(CLAIMS):
                changed.set()
        await asyncio.sleep(1)
