"""The mix of pods that arrive, learned from those that came.

Every pod that arrives counts as one of its kind; older ones count less and less (half after `HALF_LIFE`
arrivals), so the mix follows the cluster. Scores that depend on the mix are kept, so it must not change with
every pod: `current` is renewed after 16, 32, 64 … arrivals and then every `REFRESH`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import Final

from dray.scheduler.policies.protocol import PodDemand

HALF_LIFE: Final = 20_000  # arrivals
REFRESH: Final = 512
FIRST: Final = 16  # arrivals before anything is said
_MOST_KINDS: Final = 512  # the rarest are forgotten
_SEED: Final = 7  # samples are the same in every process


class RequestMix:
    """Weights of the kinds of pods with device claims."""

    def __init__(self) -> None:
        self.current: tuple[tuple[PodDemand, float], ...] = ()  # weights add up to 1
        self._weights: dict[PodDemand, float] = {}
        self._increment = 1.0  # a growing increment is the same as decaying weights
        self._arrivals = 0
        self._next = FIRST

    def observe(self, pod: PodDemand) -> bool:
        """Count a pod; return whether `current` was renewed."""
        if not pod.has_claims:
            return False
        self._arrivals += 1
        self._increment *= 2.0 ** (1.0 / HALF_LIFE)
        self._weights[pod] = self._weights.get(pod, 0.0) + self._increment
        if self._arrivals < self._next:
            return False
        self._next += min(self._arrivals, REFRESH)
        self._renew()
        return True

    def _renew(self) -> None:
        heaviest = sorted(self._weights.items(), key=lambda item: -item[1])[:_MOST_KINDS]
        total = sum(weight for _, weight in heaviest)
        # Dividing keeps the numbers small however long the process runs.
        self._weights = {pod: weight / self._increment for pod, weight in heaviest}
        self._increment = 1.0
        self.current = tuple((pod, weight / total) for pod, weight in heaviest)

    def samples(self, number: int, length: int) -> tuple[tuple[PodDemand, ...], ...]:
        """Draw sequences of pods from the mix; the same ones for the same mix."""
        if not self.current:
            return ()
        draws = _draws([weight for _, weight in self.current])
        return tuple(tuple(self.current[index][0] for index in islice(draws, length)) for _ in range(number))


def _draws(weights: list[float]) -> Iterator[int]:
    """Yield indexes with these weights, from a linear congruential generator (Knuth's constants)."""
    bounds = list(accumulate(weights))
    state = _SEED
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield min(bisect_right(bounds, state / 2**64 * bounds[-1]), len(bounds) - 1)
