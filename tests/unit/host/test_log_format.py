"""The log as text and as JSON."""

import io
import json
import logging
import sys
from contextlib import contextmanager

import pytest

from dray.cli import failures
from dray.cli.main import make_parser
from dray.cli.output import CommandError
from dray.host.log_format import MAX_MESSAGE, JsonFormatter, logs_json, start_logging

LONG_RUNNING = (
    "server",
    "scheduler",
    "controllers",
    "exporter",
    "guard",
    "node",
    "nodes --root x --credentials x",
    "up",
    "driver run cpu",
)


@contextmanager
def quiet_root():
    """The root logger without handlers (pytest adds its own for each test), and stderr as text."""
    root = logging.getLogger()
    before, level, stderr = root.handlers[:], root.level, sys.stderr
    root.handlers[:] = []
    sys.stderr = io.StringIO()
    try:
        yield sys.stderr
    finally:
        root.handlers[:], sys.stderr = before, stderr
        root.setLevel(level)


def test_a_json_line_has_time_level_logger_and_message():
    with quiet_root() as stderr:
        start_logging(logging.INFO, "json")
        logging.getLogger("dray.test").warning('claim "%s"\nof %s', "a", "b\x00")
        line = json.loads(stderr.getvalue())
        assert stderr.getvalue().count("\n") == 1
        assert (line["level"], line["logger"], line["message"]) == (
            "WARNING",
            "dray.test",
            'claim "a"\nof b\x00',
        )
        assert line["time"].endswith("Z") and "T" in line["time"]
        assert logs_json()


def test_an_exception_is_a_member_of_its_line():
    with quiet_root() as stderr:
        start_logging(logging.INFO, "json")
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("dray.test").exception("it failed")
        line = json.loads(stderr.getvalue())
        assert line["message"] == "it failed"
        assert line["exception"].endswith("ValueError: broken")


def test_messages_are_bounded():
    record = logging.LogRecord("x", logging.INFO, "", 0, "a" * 1_000_000, None, None)
    assert len(JsonFormatter().format(record)) < MAX_MESSAGE + 200


def test_text_is_the_default():
    with quiet_root() as stderr:
        start_logging(logging.INFO)
        logging.getLogger("dray.test").info("hello")
        assert stderr.getvalue().endswith(" INFO dray.test: hello\n")
        assert not logs_json()


def test_the_error_that_ends_a_process_is_json_too():
    with quiet_root() as stderr:
        start_logging(logging.INFO, "json")
        assert failures.report(CommandError("no such file", "name another", code=1)) == 1
        line = json.loads(stderr.getvalue())
        assert (line["level"], line["message"]) == ("ERROR", "no such file; hint: name another")


@pytest.mark.parametrize("command", LONG_RUNNING)
def test_every_long_running_command_takes_the_flag(command):
    words = [*command.split(), "--log-format", "json"]
    assert make_parser([words[0]]).parse_args(words).log_format == "json"
