"""Measurements beside upstream, written into BENCHMARKS.md. Run with `python -m bench [NAME…]`."""
