"""Metrics in Prometheus' text format, for processes that keep plain counters.

The server, the scheduler and the guard count in dictionaries and integers, which costs nothing on
their hot paths; this writes them at scraping. Driver and node agent use `prometheus_client`,
because vendors register metrics of their own there.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Histogram:
    """How often a time fell below each of some bounds; bounded in memory, whatever is observed."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # seconds, ascending
        self.counts = [0] * (len(bounds) + 1)  # the last: longer than all
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect.bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """Return how many times were observed."""
        return sum(self.counts)

    def samples(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """Write the lines of one combination of labels."""
        listed = _listed(labels)  # once: a server has hundreds of combinations, each with twenty lines
        before = f"{name}_bucket{{{listed}," if listed else f"{name}_bucket{{"
        below = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            yield f'{before}le="{bound}"}} {below}\n'
        yield sample(f"{name}_sum", labels, self.total)
        yield sample(f"{name}_count", labels, below)


def histogram(
    name: str, text: str, histograms: Histogram | Iterable[tuple[Mapping[str, str], Histogram]]
) -> Iterator[str]:
    """Write a metric of times: one histogram, or one for each combination of labels.

    >>> waits = Histogram((0.1, 1.0))
    >>> waits.observe(0.5)
    >>> print("".join(histogram("wait_seconds", "Waiting.", waits)), end="")
    # HELP wait_seconds Waiting.
    # TYPE wait_seconds histogram
    wait_seconds_bucket{le="0.1"} 0
    wait_seconds_bucket{le="1.0"} 1
    wait_seconds_bucket{le="+Inf"} 1
    wait_seconds_sum 0.5
    wait_seconds_count 1
    """
    yield f"# HELP {name} {text}\n# TYPE {name} histogram\n"
    for labels, found in [({}, histograms)] if isinstance(histograms, Histogram) else histograms:
        yield from found.samples(name, labels)


def family(
    name: str, kind: str, text: str, samples: float | Iterable[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    """Write a metric: one value, or one for each combination of labels.

    >>> print("".join(family("pods", "gauge", "Pods by state.", [({"state": "new"}, 2)])), end="")
    # HELP pods Pods by state.
    # TYPE pods gauge
    pods{state="new"} 2
    """
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    for labels, value in [({}, samples)] if isinstance(samples, (int, float)) else samples:
        yield sample(name, labels, value)


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """Write one line; label values may hold any text."""
    listed = _listed(labels)
    return f"{name}{{{listed}}} {value}\n" if listed else f"{name} {value}\n"


def _listed(labels: Mapping[str, str]) -> str:
    return ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
