"""Simulate a trace in virtual time, decided by the production scheduler.

Nothing is modelled that production code decides: pods wait in the scheduler's own `SchedulingQueue`, `decide` places them on
a `ClusterSnapshot`, the allocator chooses devices and holds them in its ledger. What is simulated is the rest of the world: when
pods come, how long they run, when nodes fail and are repaired.

Theory of operation. Events (arrivals, departures, failures, repairs) are handled in the order of their times; after each, the queue
is asked for pods to try until it has none. Fragmentation is measured by the same code that the `frag` policy uses: the
free device capacity that the mix of pods seen so far cannot use, as a part of what is free.

Chance comes from the seed alone: the same trace, settings and seed give the same run.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dray.allocator import AllocationError, Allocator, Policy
from dray.api.core import Node, Pod, PodResourceClaimStatus
from dray.api.meta import ObjectMeta, OwnerReference
from dray.api.resource import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus
from dray.scheduler import (
    ClusterSnapshot,
    Entry,
    Hint,
    Placed,
    QueueingHint,
    SchedulerProfile,
    SchedulingQueue,
    Unplaceable,
    claims_equivalence_key,
    decide,
)
from dray.scheduler.policies import Fragmentation, NodePolicy, NodeRanking
from dray.sim.trace import WHOLE, Arrival, PodTemplate, Trace, TraceError

SAMPLES: Final = 120  # points of a series
_EXAMPLES: Final = 50  # nodes looked at to find out which drivers pods ask for
FILL_MARKS: Final = (1.0, 1.3)  # arrived demand / capacity at which the allocated share is noted


@dataclass(frozen=True, slots=True)
class Settings:
    """What is simulated, beside the trace."""

    # trace: as recorded; shuffle: the same times, pods dealt anew; poisson: pods drawn from the trace at random times;
    # fill: one after the other, nobody leaves, until the demand is `fill_until` times the capacity.
    arrivals: str = "shuffle"
    load: float | None = None  # device time asked for / capacity; None: as recorded
    drops: bool = False  # a pod that fits nowhere is dropped instead of waiting
    mtbf: float = 0.0  # seconds between failures of a node; 0: none
    mttr: float = 3600.0  # seconds until it is repaired
    pods: int = 0  # the first so many pods of the trace, or so many Poisson arrivals; 0: all of the trace
    fill_until: float = FILL_MARKS[-1]


@dataclass(slots=True)
class Series:
    """What was seen over time."""

    at: list[float] = field(default_factory=list)  # seconds, or arrived demand / capacity when filling
    utilisation: list[float] = field(default_factory=list)
    fragmentation: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)  # pods


@dataclass(slots=True)
class RunResult:
    """One simulation."""

    policy: str
    seed: int
    pods: int = 0
    placed: int = 0
    dropped: int = 0
    never_placed: int = 0
    restarted: int = 0
    utilisation: float = 0.0  # mean over time, part of the capacity
    fragmentation: float = 0.0  # mean over time, part of what is free
    waits: dict[str, float] = field(default_factory=dict)  # mean, p50, p95, p99, max; seconds
    refusals: dict[str, int] = field(default_factory=dict)  # reason -> pods refused for it at their first try
    allocated_at: dict[str, float] = field(default_factory=dict)  # filling: arrived -> allocated
    decisions: int = 0
    cpu_seconds: float = 0.0
    series: Series = field(default_factory=Series)


class SimulatedCluster:
    """The nodes of a trace, filled and emptied by the scheduler's own code."""

    def __init__(self, trace: Trace, policy: Policy | NodePolicy | None) -> None:
        numbers = iter(range(1, 1 << 62))
        self.snapshot = ClusterSnapshot(
            SchedulerProfile(policy=policy, may_preempt=False), new_share_id=lambda: f"share-{next(numbers)}"
        )
        self.templates = trace.templates
        for node in trace.nodes:
            self.snapshot.set_node(node)
        for device_class in trace.classes:
            self.snapshot.set_class(device_class)
        drivers = drivers_asked_for(trace)
        for each in trace.slices:
            if each.spec.driver in drivers:
                self.snapshot.set_slice(each)
        self.nodes = {node.metadata.name: node for node in trace.nodes}
        allocator = self.snapshot.devices.allocator
        self.capacity = WHOLE * sum(len(allocator.free_devices(name)) for name in self.nodes)
        self.allocated = 0  # thousandths of devices
        self.running: dict[str, tuple[str, int, list[str]]] = {}  # pod uid -> (node, template, claim keys)
        self.keys = [self._key(template) for template in trace.templates]
        self.reasons: dict[int, Unplaceable] = {}

    def _key(self, template: PodTemplate) -> bytes:
        claims = [ResourceClaim(spec=spec) for _, spec in template.claims]
        return claims_equivalence_key(tuple(claims)) if claims else b""

    def pod(self, number: int, uid: str) -> Pod:
        """Return a pod of a template, and create its claims."""
        template = self.templates[number]
        statuses = []
        if template.claims:
            owner = OwnerReference(api_version="v1", kind="Pod", name=uid, uid=uid, controller=True)
            for name, spec in template.claims:
                claim_name = f"{uid}-{name}"
                meta = ObjectMeta(
                    name=claim_name, namespace="default", uid=f"c:{claim_name}", owner_references=[owner]
                )
                self.snapshot.set_claim(ResourceClaim(metadata=meta, spec=spec))
                statuses.append(PodResourceClaimStatus(name=name, resource_claim_name=claim_name))
        meta = replace(template.pod.metadata, name=uid, uid=uid, namespace="default")
        status = replace(template.pod.status, resource_claim_statuses=statuses)
        return replace(template.pod, metadata=meta, status=status)

    def place(self, number: int, pod: Pod) -> Placed | Unplaceable | str:
        """Decide a pod and take what was decided; a text says why it cannot be decided."""
        template = self.templates[number]
        try:
            answer = decide(pod, self.snapshot, shape=template.shape, is_alone=True)
        except AllocationError as error:
            return str(error)
        if isinstance(answer, Unplaceable):
            return answer
        if not isinstance(answer, list):
            return "the claims are not ready"
        (placed,) = answer
        self._take(number, placed)
        return placed

    def _take(self, number: int, placed: Placed) -> None:
        pod, placement = placed.pod, placed.placement
        uid = pod.metadata.uid
        template = self.templates[number]
        allocator = self.snapshot.devices.allocator
        before = sum(allocator.free_devices(placement.node)) if template.demand is None else 0
        self.snapshot.reserve(pod, placed.shape, placement)
        user = ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid=uid)
        keys = []
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            status = ResourceClaimStatus(allocation=allocation, reserved_for=[user])
            self.snapshot.set_claim(replace(claim, status=status))
            keys.append(f"default/{claim.metadata.name}")
        if template.demand is None:
            template.demand = before - sum(allocator.free_devices(placement.node))
        self.allocated += template.demand
        self.running[uid] = (placement.node, number, keys)

    def release(self, uid: str) -> bool:
        """Let a pod end; return whether it held devices."""
        _, number, keys = self.running.pop(uid)
        self.snapshot.forget_pod(uid)
        for key in keys:
            self.snapshot.delete_claim(key)
        self.allocated -= self.templates[number].demand or 0
        return bool(keys)

    def discard(self, pod: Pod) -> None:
        """Forget the claims of a pod that was dropped."""
        for status in pod.status.resource_claim_statuses:
            self.snapshot.delete_claim(f"default/{status.resource_claim_name}")

    def set_down(self, name: str, *, is_down: bool) -> None:
        """Let a node fail, or repair it."""
        node: Node = self.nodes[name]
        self.snapshot.set_node(replace(node, spec=replace(node.spec, unschedulable=is_down)))


def drivers_asked_for(trace: Trace) -> set[str]:
    """Return the drivers whose devices some pod of the trace can get; those of others count neither as used nor as free."""
    nodes: dict[str, list[str]] = {}  # driver -> nodes with its devices
    for each in trace.slices:
        nodes.setdefault(each.spec.driver, []).append(each.spec.node_name or "")
    found = set()
    for driver, names in nodes.items():
        examples = set(names[:: max(1, len(names) // _EXAMPLES)])
        allocator = Allocator()
        for node in trace.nodes:
            if node.metadata.name in examples or "" in examples:
                allocator.set_node(node)
        for device_class in trace.classes:
            allocator.set_class(device_class)
        for each in trace.slices:
            if each.spec.driver == driver and (each.spec.node_name or "") in examples:
                allocator.set_slice(each)
        if any(_asks(template, allocator) for template in trace.templates):
            found.add(driver)
    return found


def _asks(template: PodTemplate, allocator: Allocator) -> bool:
    for _, spec in template.claims:
        claim = ResourceClaim(metadata=ObjectMeta(name="claim", namespace="default"), spec=spec)
        for name in allocator.nodes:
            try:
                footprints = allocator.footprints(name, [claim])
            except AllocationError:
                continue  # said when the pods are decided
            # None: partitions or all devices, which only match what is there
            if footprints is None or any(each.matching for each in footprints):
                return True
    return False


class _Meter:
    """Measures fragmentation as the `frag` policy sees it."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.policy = Fragmentation()
        self.ranking = NodeRanking(self.policy, cluster.snapshot.state, cluster.snapshot.devices)

    def fragmentation(self) -> float:
        free = waste = 0.0
        for supply in self.ranking.supplies():
            free += supply.free
            waste += self.policy.waste(supply)
        return waste / free if free else 0.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    pod: Pod
    template: int
    since: float
    duration: float | None


class Simulation:
    """One run; see the module docstring."""

    def __init__(
        self,
        trace: Trace,
        settings: Settings,
        policy: Policy | NodePolicy | None,
        seed: int,
        *,
        name: str = "",
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.trace, self.settings = trace, settings
        self.cluster = SimulatedCluster(trace, policy)
        if not self.cluster.capacity:
            raise TraceError("no node of the cluster has devices; give nodes with --nodes")
        self.result = RunResult(name, seed)
        self.chance = random.Random(seed)
        self.queue: SchedulingQueue[_Waiting] = SchedulingQueue()
        self.meter = _Meter(self.cluster)
        self.now = 0.0
        self.arrived = 0  # thousandths of devices
        self._departures: list[tuple[float, int, str]] = []
        self._failures: list[tuple[float, int, str, bool]] = []  # (time, order, node, fails)
        self._down: set[str] = set()
        self._sequence = 0
        self._waits: list[float] = []
        self._durations: dict[str, _Waiting] = {}  # running pods, for restarts
        self._reasons: Counter[str] = Counter()
        self._hints: dict[int, frozenset[Hint]] = {}  # template -> what its pods wait for
        self._on_progress = on_progress
        # Devices that several nodes reach, and rules about other pods, may help elsewhere than where a pod left.
        self._is_local = all(each.spec.node_name for each in trace.slices) and all(
            each.shape.is_plain for each in trace.templates
        )

    # --- arrivals -----------------------------------------------------------------

    def arrivals(self) -> list[Arrival]:
        """Draw the arrivals of a run, by time; another call draws others."""
        known = self.trace.arrivals
        if self.settings.pods and self.settings.arrivals != "poisson":
            known = known[: self.settings.pods]
        if not known:
            raise TraceError("the trace has no pods")
        if self.settings.arrivals == "fill":
            return self._filling(known)
        if self.settings.arrivals == "poisson":
            return self._scaled(self._poisson(known))
        times = sorted(each.at for each in known)
        pods = sorted(known, key=lambda each: each.at)
        if self.settings.arrivals == "shuffle":
            self.chance.shuffle(pods)
        return self._scaled(
            [Arrival(at, pod.duration, pod.template) for at, pod in zip(times, pods, strict=True)]
        )

    def _poisson(self, known: list[Arrival]) -> list[Arrival]:
        """Draw pods of the trace at random, with exponential times between them and the trace's mean rate."""
        number = self.settings.pods or len(known)
        gap = (max(each.at for each in known) - min(each.at for each in known)) / len(known) or 1.0
        at = 0.0
        stream = []
        for _ in range(number):
            at += self.chance.expovariate(1 / gap)
            pod = self.chance.choice(known)
            stream.append(Arrival(at, pod.duration, pod.template))
        return stream

    def _scaled(self, stream: list[Arrival]) -> list[Arrival]:
        """Stretch the times between arrivals so that the load is as wanted; durations stay.

        The load is the device time that the pods would use between the first and the last arrival if none had to
        wait, as a part of the capacity. Device time after the last arrival does not count: a few pods of some traces run
        longer than all others together.
        """
        wanted = self.settings.load
        if wanted is None:
            return stream
        last = stream[-1].at
        parts = [
            (self._demand(self.trace.templates[each.template]), each.duration, last - each.at)
            for each in stream
        ]
        if not last:
            raise TraceError("a load cannot be set: all pods of the trace come at the same time")

        def load(scale: float) -> float:
            used = sum(
                demand * (rest * scale if duration is None else min(duration, rest * scale))
                for demand, duration, rest in parts
            )
            return used / (self.cluster.capacity * last * scale)

        low, high = 1e-9, 1e9
        if load(low) < wanted:
            raise TraceError(
                f"a load of {wanted:g} cannot be reached: with all pods at once it is {load(low):.2f}; "
                "use more pods (--arrivals poisson --pods N) or fewer nodes"
            )
        for _ in range(80):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if load(middle) > wanted else (low, middle)
        return [Arrival(each.at * low, each.duration, each.template) for each in stream]

    def _filling(self, known: list[Arrival]) -> list[Arrival]:
        """Shuffle the pods and add clones of random ones until the demand reaches a multiple of the capacity."""
        stream = list(known)
        self.chance.shuffle(stream)
        demands = [self._demand(template) for template in self.trace.templates]
        demand = sum(demands[each.template] for each in stream)
        if not demand:
            raise TraceError("no pod of the trace wants a device")
        while demand < self.settings.fill_until * self.cluster.capacity:
            clone = self.chance.choice(known)
            stream.append(clone)
            demand += demands[clone.template]
        return [Arrival(0.0, None, each.template) for each in stream]

    def _demand(self, template: PodTemplate) -> int:
        """Return the thousandths of devices that a pod takes, estimated where they are not known."""
        if template.demand is not None:
            return template.demand
        total = 0
        for _, spec in template.claims:
            for request in spec.devices.requests:
                first = request.exactly or (request.first_available[0] if request.first_available else None)
                total += WHOLE * max(1, first.count) if first is not None else 0
        return total

    # --- the run ------------------------------------------------------------------

    def run(self) -> RunResult:
        """Simulate to the end."""
        started = time.process_time()
        stream = self.arrivals()
        is_filling = self.settings.arrivals == "fill"
        last = stream[-1].at
        samples = iter(self._sample_times(last)) if not is_filling else iter(())
        next_sample = next(samples, None)
        self._schedule_failures(last)
        every = max(1, len(stream) // SAMPLES)
        self.result.pods = len(stream)
        marks = [mark for mark in FILL_MARKS if mark <= self.settings.fill_until]
        for number, arrival in enumerate(stream):
            next_sample = self._advance(arrival.at, samples, next_sample)
            self._arrive(arrival)
            self._try_all()
            if is_filling:
                share = self.arrived / self.cluster.capacity
                while marks and share >= marks[0]:
                    self.result.allocated_at[f"{marks.pop(0):g}"] = (
                        self.cluster.allocated / self.cluster.capacity
                    )
                if number % every == 0 or number == len(stream) - 1:
                    self._sample(share)
            if number % every == 0:
                self._on_progress(number / len(stream))
        while next_sample is not None:
            next_sample = self._advance(next_sample, samples, next_sample)
        self._advance(float("inf"), iter(()), None)
        self._finish(time.process_time() - started)
        return self.result

    @staticmethod
    def _sample_times(last: float) -> Iterator[float]:
        return iter([last * number / SAMPLES for number in range(1, SAMPLES + 1)] if last else [])

    def _advance(self, until: float, samples: Iterator[float], next_sample: float | None) -> float | None:
        """Handle departures, failures and repairs, and take samples, up to a time."""
        while True:
            times = [heap[0][0] for heap in (self._departures, self._failures) if heap]
            upcoming = min(times, default=float("inf"))
            if not self._departures and not len(self.queue) and until == float("inf"):
                return None  # failures of idle nodes go on forever
            if next_sample is not None and next_sample <= min(upcoming, until):
                self.now = next_sample
                self._sample(next_sample)
                next_sample = next(samples, None)
                continue
            if upcoming > until or upcoming == float("inf"):
                self.now = max(self.now, until) if until != float("inf") else self.now
                return next_sample
            self.now = upcoming
            if self._departures and self._departures[0][0] == upcoming:
                self._try_all(self._depart())
            else:
                self._fail_or_repair()
                self._try_all()

    def _arrive(self, arrival: Arrival) -> None:
        self.now = max(self.now, arrival.at)
        self._sequence += 1
        uid = f"pod-{self._sequence}"
        pod = self.cluster.pod(arrival.template, uid)
        template = self.trace.templates[arrival.template]
        claims = [
            self.cluster.snapshot.claims[f"default/{each.resource_claim_name}"]
            for each in pod.status.resource_claim_statuses
        ]
        try:
            self.meter.ranking.learn(pod, template.shape, claims, self.cluster.keys[arrival.template])
        except AllocationError:
            pass  # said when the pod is decided
        self.arrived += self._demand(template)
        self._enqueue(_Waiting(pod, arrival.template, self.now, arrival.duration))

    def _enqueue(self, waiting: _Waiting) -> None:
        self.queue.add(
            waiting.pod.metadata.uid,
            waiting,
            equivalence_key=b"%d" % waiting.template,
            priority=waiting.pod.spec.priority or 0,
            sequence=self._sequence,
        )

    def _try_all(self, freed: str = "") -> None:
        """Decide every pod that is worth a try; `freed` is the node on which alone something has changed."""
        while (entry := self.queue.pop(self.now)) is not None:
            waiting = entry.item
            if freed and entry.unschedulable_since and not self._may_help(freed, waiting):
                # A pod before it has taken the room.
                self.queue.mark_unschedulable(entry, self._hints[waiting.template], "", max(self.now, 1e-9))
                continue
            self.result.decisions += 1
            answer = self.cluster.place(waiting.template, waiting.pod)
            if isinstance(answer, Placed):
                self.queue.done(entry)
                self._start(waiting)
            else:
                self._refuse(entry, answer)

    def _start(self, waiting: _Waiting) -> None:
        uid = waiting.pod.metadata.uid
        self.result.placed += 1
        self._waits.append(self.now - waiting.since)
        self._durations[uid] = waiting
        if waiting.duration is not None:
            heapq.heappush(self._departures, (self.now + waiting.duration, self._sequence, uid))

    def _refuse(self, entry: Entry[_Waiting], answer: Unplaceable | str) -> None:
        waiting = entry.item
        if not entry.unschedulable_since and waiting.pod.metadata.uid not in self._durations:
            self._reasons[self._reason(waiting, answer)] += 1
        if self.settings.drops or self.settings.arrivals == "fill" or isinstance(answer, str):
            self.queue.done(entry)
            self.cluster.discard(waiting.pod)
            self.result.dropped += 1
            return
        self._hints[waiting.template] = answer.hints
        # A time of 0 would read as "never refused".
        self.queue.mark_unschedulable(entry, answer.hints, "", max(self.now, 1e-9))

    def _reason(self, waiting: _Waiting, answer: Unplaceable | str) -> str:
        """Return the reason in a few words: which rule left no node, and for devices whether there are enough in sum."""
        if isinstance(answer, str):
            return "cannot be allocated"
        stage = answer.cause or "unknown"
        if stage != "devices":
            return {"static": "labels or taints", "resources": "cpu, memory or pods"}.get(stage, stage)
        free = self.cluster.capacity - self.cluster.allocated
        enough = free >= self._demand(self.trace.templates[waiting.template])
        return "devices: enough free, but not together" if enough else "devices: all in use"

    def _depart(self) -> str:
        """Let a pod end; return the node on which it was, if nothing changed elsewhere."""
        _, _, uid = heapq.heappop(self._departures)
        if uid not in self.cluster.running:
            return ""  # its node failed before
        self._durations.pop(uid, None)
        node, _, _ = self.cluster.running[uid]
        has_freed_devices = self.cluster.release(uid)
        helps = partial(self._may_help, node) if self._is_local else None
        if has_freed_devices:
            self.queue.wake(QueueingHint.DEVICES, helps)
        self.queue.wake(QueueingHint.RESOURCES, helps)
        return node if self._is_local else ""

    def _may_help(self, node: str, waiting: _Waiting) -> bool:
        """Return whether room on one node may help a pod that was refused everywhere before."""
        template = self.trace.templates[waiting.template]
        if not self.cluster.snapshot.state.nodes[node].fits(template.shape.requests):
            return False
        return self.meter.ranking.may_fit(template.shape, self.cluster.keys[waiting.template], node)

    # --- failures -----------------------------------------------------------------

    def _schedule_failures(self, last: float) -> None:
        if not self.settings.mtbf or not last:
            return
        for name in sorted(self.cluster.nodes):
            self._plan_failure(name, 0.0)

    def _plan_failure(self, name: str, since: float) -> None:
        self._sequence += 1
        at = since + self.chance.expovariate(1 / self.settings.mtbf)
        heapq.heappush(self._failures, (at, self._sequence, name, True))

    def _fail_or_repair(self) -> None:
        at, _, name, fails = heapq.heappop(self._failures)
        self.cluster.set_down(name, is_down=fails)
        if not fails:
            self._down.discard(name)
            self._plan_failure(name, at)
            self.queue.wake(QueueingHint.NODES)
            return
        self._down.add(name)
        self._sequence += 1
        repaired = at + self.chance.expovariate(1 / self.settings.mttr)
        heapq.heappush(self._failures, (repaired, self._sequence, name, False))
        for uid in [uid for uid, (node, _, _) in self.cluster.running.items() if node == name]:
            waiting = self._durations.pop(uid)
            self.cluster.release(uid)
            self.result.restarted += 1
            self._sequence += 1
            pod = self.cluster.pod(waiting.template, f"pod-{self._sequence}")
            self._enqueue(_Waiting(pod, waiting.template, self.now, waiting.duration))

    # --- results --------------------------------------------------------------------

    def _sample(self, at: float) -> None:
        series = self.result.series
        series.at.append(at)
        series.utilisation.append(self.cluster.allocated / self.cluster.capacity)
        series.fragmentation.append(self.meter.fragmentation())
        series.waiting.append(len(self.queue))

    def _finish(self, seconds: float) -> None:
        result, waits = self.result, sorted(self._waits)
        result.never_placed = len(self.queue)
        result.cpu_seconds = seconds
        result.refusals = dict(self._reasons.most_common())
        series = result.series
        result.utilisation = _mean(series.utilisation)
        result.fragmentation = _mean(series.fragmentation)
        if waits:
            result.waits = {
                "mean": _mean(waits),
                **{f"p{part}": waits[min(len(waits) - 1, len(waits) * part // 100)] for part in (50, 95, 99)},
                "max": waits[-1],
            }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def as_data(result: RunResult) -> dict[str, Any]:
    """Return a run as JSON data."""
    found: dict[str, Any] = msgspec.to_builtins(result)
    return found


def from_data(data: Any) -> RunResult:
    """Read a run back. Raises msgspec.ValidationError."""
    return msgspec.convert(data, RunResult)
