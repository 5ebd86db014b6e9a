"""How many replicas one metric asks for: kube-controller-manager's rules, as pure functions.

All values are in thousandths, as integers, as Kubernetes counts them. The ratio of usage and target says how many times as
many pods are needed. Two things keep it from acting on noise:

  * A ratio within the tolerance (10 %, or that of `behavior`) changes nothing.
  * Pods without a value count in the direction that changes less: as at their target when the others ask for fewer pods,
    as idle when they ask for more. When that turns the direction around, nothing changes. Pods that have not started count
    as idle when the others ask for more pods, and not at all otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

MOST_REPLICAS = 2**31 - 1


class MetricUnavailableError(Exception):
    """A metric that tells nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How far a ratio may be from 1 without an effect."""

    up: float = 0.1
    down: float = 0.1

    def include(self, ratio: float) -> bool:
        """Return whether the ratio changes nothing."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """One pod of the target."""

    name: str
    is_ready: bool  # running and ready
    is_pending: bool = False
    is_ending: bool = False  # being deleted, or failed
    is_starting: bool = False  # too young for a value of its CPU usage to mean something
    request: int | None = None  # of the resource that the metric is about; None: it names none


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one metric asks for."""

    replicas: int
    usage: int  # average of the pods, or the whole value; in thousandths
    utilization: int | None = None  # percent


@dataclass(frozen=True, slots=True)
class _Groups:
    ready: tuple[str, ...]
    unready: tuple[str, ...]
    missing: tuple[str, ...]


def _grouped(pods: Iterable[ObservedPod], values: Mapping[str, int]) -> _Groups:
    ready, unready, missing = [], [], []
    for pod in pods:
        if pod.is_ending:
            continue
        if pod.is_pending:
            unready.append(pod.name)
        elif pod.name not in values:
            missing.append(pod.name)
        elif pod.is_starting:
            unready.append(pod.name)
        else:
            ready.append(pod.name)
    return _Groups(tuple(ready), tuple(unready), tuple(missing))


def _needed(ratio: float, pods: int) -> int:
    return min(math.ceil(ratio * pods), MOST_REPLICAS)


def per_pod(
    current: int, pods: Sequence[ObservedPod], values: Mapping[str, int], target: int, tolerances: Tolerances
) -> Proposal:
    """Return what a metric with a value for each pod asks for. Raises MetricUnavailableError."""

    def measure(counted: Mapping[str, int]) -> tuple[float, int | None]:
        return sum(counted.values()) // len(counted) / target, None

    return _by_values(current, pods, values, measure, dict.fromkeys(_names(pods), target), tolerances)


def by_utilization(
    current: int, pods: Sequence[ObservedPod], values: Mapping[str, int], target: int, tolerances: Tolerances
) -> Proposal:
    """Return what the usage in percent of the requests asks for. Raises MetricUnavailableError."""
    requests: dict[str, int] = {}
    for pod in pods:
        if pod.request is None:
            raise MetricUnavailableError(f"missing request of the resource in Pod {pod.name}")
        requests[pod.name] = pod.request

    def measure(counted: Mapping[str, int]) -> tuple[float, int | None]:
        allotted = sum(requests[name] for name in counted)
        if not allotted:
            raise MetricUnavailableError("no metrics returned matched known pods")
        percent = sum(counted.values()) * 100 // allotted
        return percent / target, percent

    most = max(100, target)
    assumed = {name: request * most // 100 for name, request in requests.items()}
    return _by_values(current, pods, values, measure, assumed, tolerances)


def _names(pods: Iterable[ObservedPod]) -> list[str]:
    return [pod.name for pod in pods]


def _by_values(
    current: int,
    pods: Sequence[ObservedPod],
    values: Mapping[str, int],
    measure: Callable[[Mapping[str, int]], tuple[float, int | None]],
    busy: Mapping[str, int],
    tolerances: Tolerances,
) -> Proposal:
    """Compare what pods use with what they should; `busy` is what a pod without a value is taken for."""
    if not pods:
        raise MetricUnavailableError("no pods returned by selector while calculating replica count")
    groups = _grouped(pods, values)
    counted = {name: values[name] for name in groups.ready}
    if not counted:
        raise MetricUnavailableError("did not receive metrics for targeted pods (pods might be unready)")
    ratio, utilization = measure(counted)
    usage = sum(counted.values()) // len(counted)
    counts_unready = bool(groups.unready) and ratio > 1.0
    if not counts_unready and not groups.missing:
        replicas = current if tolerances.include(ratio) else _needed(ratio, len(counted))
        return Proposal(replicas, usage, utilization)
    if ratio < 1.0:
        counted |= {name: busy[name] for name in groups.missing}
    elif ratio > 1.0:
        counted |= dict.fromkeys(groups.missing, 0)
    if counts_unready:
        counted |= dict.fromkeys(groups.unready, 0)
    guarded, _ = measure(counted)
    replicas = _needed(guarded, len(counted))
    is_other_way = (
        (ratio < 1.0 < guarded)
        or (guarded < 1.0 < ratio)
        or (guarded < 1.0 and replicas > current)
        or (guarded > 1.0 and replicas < current)
    )
    if tolerances.include(guarded) or is_other_way:
        replicas = current
    return Proposal(replicas, usage, utilization)


def by_value(
    current: int, pods: Sequence[ObservedPod], usage: int, target: int, tolerances: Tolerances
) -> Proposal:
    """Return what one value for all pods together asks for. Raises MetricUnavailableError."""
    ratio = usage / target
    if current == 0:
        return Proposal(_needed(ratio, 1), usage)
    if tolerances.include(ratio):
        return Proposal(current, usage)
    if not pods:
        raise MetricUnavailableError("no pods returned by selector while calculating replica count")
    return Proposal(_needed(ratio, sum(pod.is_ready for pod in pods)), usage)


def by_average(existing: int, usage: int, target: int, tolerances: Tolerances) -> Proposal:
    """Return what one value that is divided among the pods asks for; the usage is its part for each."""
    replicas = existing
    if not existing or not tolerances.include(usage / (target * existing)):
        replicas = min(math.ceil(usage / target), MOST_REPLICAS)
    return Proposal(replicas, math.ceil(usage / existing) if existing else usage)
