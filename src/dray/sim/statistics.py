"""Means over seeds with their confidence intervals, and policies compared seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

from dray.sim.simulation import RunResult

# Two-sided 95 % quantiles of Student's t distribution by degrees of freedom; beyond 30 the normal one is near enough.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL: Final = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and half the width of its 95 % confidence interval; None with a single value."""

    mean: float
    margin: float | None
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if self.margin is None else f"{self.mean:.4g} ± {self.margin:.2g}"


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of values of independent seeds.

    >>> print(estimate([1.0, 2.0, 3.0]))
    2 ± 2.5
    """
    n = len(values)
    mean = sum(values) / n if n else 0.0
    if n < 2:
        return Estimate(mean, None, n)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    quantile = _T[n - 2] if n - 2 < len(_T) else _NORMAL
    return Estimate(mean, quantile * deviation / sqrt(n), n)


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a run that is compared between policies."""

    key: str
    title: str
    value: Callable[[RunResult], float | None]
    higher_is_better: bool = True
    is_percent: bool = False


def _of_waits(key: str) -> Callable[[RunResult], float | None]:
    return lambda run: run.waits.get(key)


def _allocated(mark: str) -> Callable[[RunResult], float | None]:
    return lambda run: run.allocated_at.get(mark)


MEASURES: Final = (
    Measure("allocated100", "allocated when 100 % has arrived", _allocated("1"), is_percent=True),
    Measure("allocated130", "allocated when 130 % has arrived", _allocated("1.3"), is_percent=True),
    Measure("utilisation", "mean utilisation", lambda run: run.utilisation, is_percent=True),
    Measure("fragmentation", "mean fragmentation", lambda run: run.fragmentation, False, True),
    Measure(
        "accepted", "pods placed", lambda run: run.placed / run.pods if run.pods else None, is_percent=True
    ),
    Measure("wait_mean", "mean wait (s)", _of_waits("mean"), False),
    Measure("wait_p95", "95th percentile of waits (s)", _of_waits("p95"), False),
    Measure("wait_max", "longest wait (s)", _of_waits("max"), False),
    Measure("never_placed", "pods that never fit", lambda run: float(run.never_placed + run.dropped), False),
    Measure(
        "pods_per_second",
        "pods per second of CPU",
        lambda run: run.pods / run.cpu_seconds if run.cpu_seconds else None,
    ),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy against the first, seed by seed."""

    policy: str
    against: str
    measure: str
    difference: Estimate

    @property
    def is_clear(self) -> bool:
        """Return whether the interval leaves out zero."""
        return self.difference.margin is not None and abs(self.difference.mean) > self.difference.margin


def by_policy(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Return the runs of each policy, by seed."""
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        found.setdefault(run.policy, []).append(run)
    return {policy: sorted(each, key=lambda run: run.seed) for policy, each in found.items()}


def estimates(runs: Sequence[RunResult]) -> dict[str, dict[str, Estimate]]:
    """Return policy -> measure -> estimate, for the measures that the runs have."""
    found: dict[str, dict[str, Estimate]] = {}
    for policy, each in by_policy(runs).items():
        row = found[policy] = {}
        for measure in MEASURES:
            values = [value for run in each if (value := measure.value(run)) is not None]
            if values:
                row[measure.key] = estimate(values)
    return found


def compare(runs: Sequence[RunResult]) -> list[Comparison]:
    """Compare every policy with the first one on the seeds that both have."""
    grouped = by_policy(runs)
    if not grouped:
        return []
    first, *others = grouped
    base = {run.seed: run for run in grouped[first]}
    found = []
    for policy in others:
        for measure in MEASURES[:-1]:  # the last is about the simulator
            pairs = [
                (mine, theirs)
                for run in grouped[policy]
                if run.seed in base
                and (mine := measure.value(run)) is not None
                and (theirs := measure.value(base[run.seed])) is not None
            ]
            if pairs:
                found.append(Comparison(policy, first, measure.key, estimate([a - b for a, b in pairs])))
    return found
