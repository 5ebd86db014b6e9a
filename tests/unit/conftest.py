"""Fixtures of all unit tests."""

from virtual_time import virtual_time

__all__ = ["virtual_time"]
