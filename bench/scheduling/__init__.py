"""Schedulers side by side: dray's and kube-scheduler, on kube-apiserver and on dray's server.

Every run has a fresh API server, the same nodes, devices and claims, and a burst of pods.
An independent checker follows every change of every claim while it runs and judges the
end state; a run with a double allocation is no result but a failure.

`python -m bench scheduling` runs small sizes; `python -m bench.scheduling --help` has the large ones.
"""


def run(*, quick: bool) -> str:
    """Measure and return the section of BENCHMARKS.md."""
    from bench.scheduling.measuring import run as measure

    return measure(quick=quick)
