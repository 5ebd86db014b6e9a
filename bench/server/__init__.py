"""`dray server` beside kube-apiserver on etcd: writes, reads, lists, watches, start, memory.

Fresh servers in every round, in turn, both durable on the same disk. The load comes from
raw HTTP/1.1 connections with prepared requests (`load.py`), cheap enough not to be what
is measured: its share of CPU stands in the report, as does what else the machine did.
"""


def run(*, quick: bool) -> str:
    """Measure and return the section of BENCHMARKS.md."""
    from bench.server.measuring import run as measure  # children of this package need no more than load

    return measure(quick=quick)
