"""A lasting trouble in the log: one line when it begins or changes, one when it is over.

Loops that try for ever meet the same error every few seconds. Logged each time it hides everything
else, logged never it is a process that hangs in silence.
"""

from __future__ import annotations

import logging


class ChangeLog:
    """Logs a trouble only when it differs from the one before."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last = ""

    @property
    def is_set(self) -> bool:
        """Return whether the trouble lasts."""
        return bool(self._last)

    def warn(self, text: str, *, trouble: str = "") -> None:
        """Log at WARNING, unless the last was about the same trouble (default: the text says which)."""
        if (trouble or text) != self._last:
            self._last = trouble or text
            self._log.warning("%s", text)

    def clear(self, text: str) -> None:
        """Log at INFO that the trouble is over, if there was any."""
        if self._last:
            self._last = ""
            self._log.info("%s", text)
