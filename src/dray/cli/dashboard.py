"""`dray dashboard`: a link that opens the dashboard in a browser.

On a shared machine the link is the caller's own: it works once and within two minutes, and the page then sees and may do
what the caller may, for twelve hours. The system of a single `dray up` has one link, which everybody who reads its folder
may use.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from pathlib import Path
from urllib.parse import urlsplit

from dray.api.json_types import JsonObject
from dray.api.user_names import DASHBOARD_PATH
from dray.cli.arguments import add_flags
from dray.cli.output import CommandError, add_output_flag, emit, say
from dray.cli.which_system import ask_shared_system, running_state


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--open", action="store_true", help="also open it in a browser of this machine")
    add_flags(
        parser, "--data", help="folder of a `dray up` (default: the shared system, else the one started last)"
    )
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print the link; exit code 1 when nothing runs."""
    answer = _link(args.data)
    if args.output != "table":
        emit(answer, args.output)
    else:
        print(answer["url"])
        if answer["user"]:
            say(f"for {answer['user']}, once, until {answer['expires']}")
        port = urlsplit(answer["url"]).port
        say(
            f"from another computer: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}, then open the link there"
        )
    if args.open:
        import webbrowser

        if not webbrowser.open(answer["url"]):
            raise CommandError("no browser could be opened", "open the link yourself", code=1)
    return 0


def _link(data: Path | None) -> JsonObject:
    from dray.local.shared_machine import find_shared_system

    if data is None and find_shared_system() is not None:
        answer: JsonObject = asyncio.run(ask_shared_system(DASHBOARD_PATH))
        return answer
    state = running_state(data)
    link = state.get("dashboard")
    if not link:
        raise CommandError(f"the system in {state['data']} does not tell its link", "start it again", code=1)
    return {"url": link, "user": "", "expires": ""}
