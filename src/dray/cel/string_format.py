"""`"%d of %s".format([1, "two"])`."""

from __future__ import annotations

from dray.cel.errors import Fault


def format_string(template: str, values: list[object]) -> str:
    """Fill the verbs of a template with values."""
    raise Fault("string.format is not there yet")
