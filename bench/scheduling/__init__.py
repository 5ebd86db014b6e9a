"""Schedulers side by side: dray's, kube-scheduler and a mock, on kube-apiserver and on dray's server.

Every run has a fresh stack, the same nodes, devices and claims, and the same pods.
An independent checker follows every change of every claim and judges the end state; a run
with a double allocation is no result but a failure.

From workload to table: `hardware` and `workloads` (what is asked), `objects` (as the API
wants it), `contenders` (who is asked), `preparing`, `driving`, `judging` (one run, in this
order, by `measuring`), `running` (all runs), `reporting` (tables).

`python -m bench scheduling` takes a quarter of an hour; `python -m bench.scheduling --help` has more.
"""


def run(*, quick: bool) -> str:
    """Measure and return the section of BENCHMARKS.md."""
    from bench.scheduling.running import run as measure  # the floor needs none of it

    return measure(quick=quick)
