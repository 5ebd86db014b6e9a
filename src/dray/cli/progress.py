"""Progress of commands that take longer than two seconds, on stderr.

A command that is done sooner prints nothing. Later a thread says what is being done and for how long: on a
terminal in one line that is rewritten and removed at the end, elsewhere in a new line at growing intervals.

    with progress("reading the cluster"):
        ...
        doing("placing 40 pods")     # replaces the text
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

FIRST_AFTER = 2.0  # seconds
_CLEAR_LINE = "\r\x1b[K"
_text = ""


def doing(text: str) -> None:
    """Say what the command is doing now; shown only if it takes long."""
    global _text  # one command runs in a process
    _text = text


@contextlib.contextmanager
def progress(text: str, first_after: float = FIRST_AFTER) -> Iterator[None]:
    """Report progress while the body runs."""
    doing(text)
    done = threading.Event()
    reporter = threading.Thread(target=_report, args=(done, first_after), daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()


def _report(done: threading.Event, first_after: float) -> None:
    began, wait, shown = time.monotonic(), first_after, False
    is_terminal = sys.stderr.isatty()
    with contextlib.suppress(OSError, ValueError):  # stderr was closed
        while not done.wait(wait):
            line = f"{_text} ({time.monotonic() - began:.0f} s) …"
            sys.stderr.write(f"{_CLEAR_LINE}{line}" if is_terminal else f"{line}\n")
            sys.stderr.flush()
            shown, wait = True, 0.5 if is_terminal else max(wait * 2, 1.0)
        if shown and is_terminal:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
