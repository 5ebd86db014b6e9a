"""The keys of `dray top`: what they change, and which job they end. Pure: characters in, a new view out.

Keys: up and down (or k, j), page up and down choose a line; s changes the order; / begins a filter, Enter ends it, Escape
clears it; x ends the job of the chosen line after a question; q ends the program. The view is drawn by `top`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

SORTS = ("use", "node", "name")
KEYS = (
    "Keys on a terminal: up and down (or k and j) choose a line; s changes the order; / filters by words, "
    "Enter ends typing, Escape clears the filter; x ends the job of the chosen line, after a question; q quits."
)
HELP = "q quit  s sort  / filter  arrows choose  x end the job"
_MOST_FILTER = 60
_PAGE = 10
# One key of the terminal: an escape sequence, or one character.
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_MOVES = {
    "\x1b[A": -1,
    "\x1bOA": -1,
    "k": -1,
    "\x1b[B": 1,
    "\x1bOB": 1,
    "j": 1,
    "\x1b[5~": -_PAGE,
    "\x1b[6~": _PAGE,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The job of a line."""

    namespace: str
    pod: str  # empty: it cannot be ended from here


@dataclass(slots=True)
class TopView:
    """What the user has chosen, and the lines that they choose from."""

    sort: str = "use"
    filter: str = ""
    chosen: int = 0  # line
    is_typing: bool = False  # a filter
    asked: Target | None = None  # whether to end this job
    message: str = ""
    is_over: bool = False
    targets: Sequence[Target] = field(
        default_factory=list
    )  # of the lines that are shown, written by who draws

    def take(self, text: str) -> Iterator[Target]:
        """Take what was typed; yields the jobs that are to be ended."""
        for key in _KEY.findall(text):
            if self.asked is not None:
                target, self.asked, self.message = self.asked, None, ""
                if key == "y":
                    yield target
            elif self.is_typing:
                self._type(key)
            else:
                self._command(key)

    def _type(self, key: str) -> None:
        if key in ("\r", "\n"):
            self.is_typing = False
        elif key == "\x1b":
            self.is_typing, self.filter = False, ""
        elif key in ("\x7f", "\b"):
            self.filter = self.filter[:-1]
        elif key.isprintable() and len(self.filter) < _MOST_FILTER:
            self.filter += key
        self.chosen = 0

    def _command(self, key: str) -> None:
        self.message = ""
        if key in _MOVES:
            self.chosen = max(0, min(self.chosen + _MOVES[key], len(self.targets) - 1))
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "/":
            self.is_typing = True
        elif key == "\x1b":
            self.filter = ""
        elif key == "x":
            self._ask()
        elif key == "q":
            self.is_over = True

    def _ask(self) -> None:
        target = self.targets[self.chosen] if self.chosen < len(self.targets) else Target("", "")
        if target.pod:
            self.asked = target
        else:
            self.message = "this line has no job that can be ended from here"

    def foot(self) -> str:
        """Return the last line of the screen."""
        if self.asked is not None:
            return f"end job {self.asked.namespace}/{self.asked.pod}? y ends it, any other key keeps it"
        if self.is_typing:
            return f"filter: {self.filter}_  (Enter ends, Escape clears)"
        shown = f"sorted by {self.sort}" + (
            f", filter {self.filter!r} (Escape clears)" if self.filter else ""
        )
        return self.message or f"{HELP}  ({shown})"
