"""What a command prints when it fails: `error: …`, often `hint: …`, and an exit code.

`main` calls `report` for every exception that leaves a command, so that no command needs handlers of
its own for missing files, bad text or a server that says no, and none can forget them.

    exit code 2    bad input or use: flags, files, a kubeconfig
    exit code 1    a negative answer, or a failure: no permission, no connection, a full disk, a bug

A bug is one line, too; DRAY_DEBUG=1 prints the trace of any failure.
Tests: tests/unit/cli/test_cli_bad_input.py.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from dataclasses import dataclass

import msgspec

from dray.cli.output import CommandError, say
from dray.client import ApiError, ClientError, Forbidden, KubeconfigError, TransportError, Unauthorized
from dray.host.log_format import logs_json

DEBUG_VARIABLE = "DRAY_DEBUG"

# Failures of the machine; every other OSError is about a file that the user named.
_MACHINE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EADDRINUSE}
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in words."""

    message: str
    hint: str = ""
    code: int = 1


def report(error: BaseException) -> int:
    """Print a failure and return the exit code."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)
    failure = describe(error)
    if logs_json():
        logging.getLogger("dray").error(
            "%s", failure.message + (f"; hint: {failure.hint}" if failure.hint else "")
        )
        return failure.code
    say(f"error: {failure.message}")
    if failure.hint:
        say(f"hint: {failure.hint}")
    return failure.code


def describe(error: BaseException) -> Failure:
    """Return what to tell the user about an exception."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # for example: one of many caches may not list; the first says enough
    if isinstance(error, CommandError):
        return Failure(str(error), error.hint, error.code)
    if isinstance(error, ClientError):
        return _of_client(error)
    if isinstance(error, UnicodeDecodeError):
        return Failure(f"the input is not UTF-8 text: {error.reason} at byte {error.start}", code=2)
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, msgspec.DecodeError):  # ParseError is one
        return Failure(f"the input cannot be read: {_one_line(error)}", code=2)
    if isinstance(error, ValueError) and "null byte" in str(error):
        return Failure("a file name cannot contain a NUL byte", code=2)
    if isinstance(error, MemoryError):
        return Failure("there is not enough memory for this input")
    if type(error).__module__.startswith("dray."):
        # Our own exceptions carry messages for users.
        return Failure(_one_line(error), code=2 if isinstance(error, ValueError) else 1)
    return Failure(
        f"internal error: {type(error).__name__}: {_one_line(error)}",
        f"this is a bug, please report it; {DEBUG_VARIABLE}=1 shows where it happened",
    )


def _of_client(error: ClientError) -> Failure:
    text = _one_line(error)
    if isinstance(error, KubeconfigError):
        return Failure(text, "`dray up` starts a cluster; --kubeconfig FILE names one", code=2)
    if isinstance(error, Unauthorized):
        return Failure(
            f"the API server does not accept the credentials (401): {text}",
            "they are wrong or expired: renew them in the kubeconfig, or log in again",
        )
    if isinstance(error, Forbidden):
        return Failure(
            f"not permitted (403): {text}",
            "`kubectl auth can-i --list` shows what the user of the kubeconfig may do",
        )
    if isinstance(error, TransportError) and not isinstance(error, ApiError):
        return Failure(
            f"the API server does not answer: {text}", "is it running, and is this its kubeconfig?"
        )
    return Failure(text)


def _of_system(error: OSError) -> Failure:
    reason = error.strerror or _one_line(error) or type(error).__name__
    named = error.filename if error.filename is not None else error.filename2
    message = f"{os.fsdecode(named)!s}: {reason}" if isinstance(named, str | bytes) else reason
    return Failure(
        message.replace("\n", " "), code=1 if error.errno in _MACHINE_ERRORS or named is None else 2
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
