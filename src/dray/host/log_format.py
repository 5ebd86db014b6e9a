"""The log of a process on stderr: lines of text, or one JSON object a line (`--log-format`).

The JSON form has the members `time` (RFC 3339 in UTC, microseconds), `level`, `logger`, `message` and, for failures
of the program, `exception`. A line is bounded: what clients send can end up in a message.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from dray.api.times import format_microtime

TEXT_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_MESSAGE = 32 * 1024  # characters, of the message and of the trace


def json_line(logger: str, message: str, level: str = "INFO", moment: float | None = None) -> str:
    """Return a line of the JSON form, without its end."""
    when = format_microtime(time.time() if moment is None else moment)
    return json.dumps(
        {"time": when, "level": level, "logger": logger, "message": _bounded(message)}, ensure_ascii=False
    )


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line = json_line(record.name, record.getMessage(), record.levelname, record.created)
        if not record.exc_info:
            return line
        trace = json.dumps(_bounded(self.formatException(record.exc_info)), ensure_ascii=False)
        return f'{line[:-1]}, "exception": {trace}}}'


def start_logging(level: int, log_format: str = "text") -> None:
    """Log to stderr from a level on; does nothing when the process logs already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(TEXT_LINE))
    logging.basicConfig(level=level, handlers=[handler])


def logs_json() -> bool:
    """Return whether the process logs JSON: then everything that it writes to stderr should be."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}… ({len(text)} characters)"
