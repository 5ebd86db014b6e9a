"""The commands: the only package that reads flags, environment and files."""

from dray.cli.main import main

__all__ = ["main"]
