"""Selectors at the cost limit: dray against upstream, expression by expression, in one run."""

from bench.cel.measuring import run

__all__ = ["run"]
