"""The head of the queue: who it is, when it can start, who may start before it; the snapshot is left as it was."""

import itertools
from datetime import UTC, datetime
from math import inf

import msgspec
import pytest
from scheduler_builders import allocated, claim, device_class, node, pod, resource_slice

from dray.api.core import Pod
from dray.api.times import format_time
from dray.scheduler import ClusterSnapshot, Entry, SchedulerProfile, decide
from dray.scheduler.queue_head import OVERDUE, PATIENCE, QueueHead, expected_starts, precedence

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


class Machine:
    """One node with some GPUs."""

    def __init__(self, gpus):
        self.snapshot = ClusterSnapshot(SchedulerProfile(), new_share_id=lambda: "share")
        self.snapshot.set_node(node("n", pods="100"))
        self.snapshot.set_class(device_class())
        self.snapshot.set_slice(resource_slice("n", *(f"g{index}" for index in range(gpus))))
        self.queue = QueueHead(self.snapshot)
        self._sequence = itertools.count()

    def job(self, name, gpus, seconds=None, *, priority=0, waited=0.0, started=None):
        references = [{"name": "c", "resourceClaimName": name}]
        spec = {"resource_claims": references, "termination_grace_period_seconds": 0}
        made = pod(name, priority=priority, active_deadline_seconds=seconds, **spec)
        body = msgspec.to_builtins(made)
        body["metadata"]["creationTimestamp"] = format_time(datetime.fromtimestamp(NOW - waited, UTC))
        if started is not None:
            body["status"] = {"startTime": format_time(datetime.fromtimestamp(started, UTC))}
        made = msgspec.convert(body, Pod)
        self.snapshot.set_claim(claim(name, gpus))
        return made

    def run(self, name, gpus, seconds=None, **more):
        """Let a job run since now."""
        made = self.job(name, gpus, seconds, started=NOW, **more)
        (placed,) = decide(made, self.snapshot)
        held = allocated(claim(name, gpus), placed.placement.allocations[0], made.metadata.uid)
        self.snapshot.state.assume(made, "n")
        self.snapshot.set_claim(held)
        return made

    def wait(self, name, gpus, seconds=None, **more):
        made = self.job(name, gpus, seconds, **more)
        number = next(self._sequence)
        return Entry(f"ns/{name}", made, priority=made.spec.priority or 0, sequence=number)

    def refuse(self, entry, now=NOW):
        assert not isinstance(decide(entry.item, self.snapshot), list)
        return self.queue.refused(entry, (entry.item,), now)

    def may_start(self, entry, now=NOW):
        before = self.seen()
        placed = decide(entry.item, self.snapshot)
        assert isinstance(placed, list)
        answer = not self.queue.delays_head(entry, placed, now)
        assert self.seen() == before, "nothing is taken by asking"
        return answer

    def seen(self):
        free = [
            isinstance(decide(self.job(f"probe-{count}", count), self.snapshot), list)
            for count in range(1, 9)
        ]
        return free, sorted(self.snapshot.state.pods), sorted(self.snapshot.reserved)


def test_a_short_job_goes_before_the_head_and_a_long_one_does_not():
    machine = Machine(4)
    machine.run("a", 3, 600)
    assert machine.refuse(machine.wait("head", 4, 100))
    assert machine.queue.head.reservation.starts == NOW + 600
    assert machine.may_start(machine.wait("short", 1, 600))
    assert not machine.may_start(machine.wait("long", 1, 601))
    assert not machine.may_start(machine.wait("endless", 1))
    assert not machine.may_start(machine.wait("late", 1, 300), now=NOW + 400)


def test_what_leaves_the_head_enough_may_be_as_long_as_it_likes():
    machine = Machine(8)
    machine.run("a", 6, 600)
    machine.refuse(machine.wait("head", 6, 100))
    assert machine.may_start(machine.wait("small", 2))
    assert machine.queue.head is not None


def test_the_head_is_who_goes_first_by_the_order_of_the_queue():
    machine = Machine(4)
    machine.run("a", 3, 600)
    normal, high = machine.wait("normal", 4), machine.wait("high", 2, priority=1000)
    assert machine.refuse(normal)
    assert machine.refuse(high)
    assert machine.queue.head.entry is high
    assert not machine.refuse(normal)  # it stays behind
    assert machine.queue.left("ns/high")
    assert not machine.queue.left("ns/high")
    assert machine.queue.head is None


def test_who_goes_before_the_head_anyway_is_not_held_back():
    machine = Machine(4)
    machine.run("a", 3, 600)
    machine.refuse(machine.wait("head", 4))
    assert machine.may_start(machine.wait("high", 1, priority=1000))


def test_a_job_that_the_head_may_evict_fills_what_is_idle():
    machine = Machine(4)
    machine.run("a", 3, 600)
    machine.refuse(machine.wait("head", 4))
    assert machine.may_start(machine.wait("low", 1, priority=-1000))


def test_without_time_limits_the_head_is_passed_for_a_while_and_then_no_more():
    machine = Machine(4)
    machine.run("endless", 3)
    young, old = machine.wait("young", 4), machine.wait("old", 4, waited=PATIENCE + 1)
    assert not machine.refuse(young)
    assert machine.may_start(machine.wait("small", 1, 60))
    assert machine.refuse(old)
    assert machine.queue.head.reservation.starts == inf
    assert not machine.may_start(machine.wait("small-too", 1, 60))


def test_a_job_that_never_fits_is_not_the_head():
    machine = Machine(4)
    machine.run("a", 1, 60)
    machine.run("b", 1)
    assert not machine.refuse(machine.wait("too-large", 5, waited=PATIENCE + 1))
    assert machine.queue.head is None


def test_who_has_waited_too_long_goes_before_everybody_but_not_with_low_priority():
    machine = Machine(4)
    old = machine.wait("old", 4, waited=OVERDUE + 1)
    high = machine.wait("high", 4, priority=1000)
    low = machine.wait("low", 4, priority=-1000, waited=2 * OVERDUE)
    order = sorted([low, high, old], key=lambda entry: precedence(entry, NOW))
    assert [entry.key for entry in order] == ["ns/old", "ns/high", "ns/low"]


def test_the_reservation_moves_when_a_job_ends_early():
    machine = Machine(4)
    first = machine.run("a", 2, 600)
    machine.run("b", 2, 1200)
    machine.refuse(machine.wait("head", 2, 100))
    assert machine.queue.head.reservation.starts == NOW + 600
    assert not machine.queue.renew(NOW + 30)
    machine.snapshot.forget_pod(first.metadata.uid)
    machine.snapshot.delete_claim("ns/a")
    assert machine.queue.renew(NOW + 30)
    assert machine.queue.head.reservation.starts == NOW + 30


def test_expected_starts_follow_the_order_and_leave_nothing_behind():
    machine = Machine(4)
    machine.run("a", 2, 600)
    machine.run("b", 2, 1200)
    waiting = [machine.wait(name, gpus, 300).item for name, gpus in (("x", 2), ("y", 4), ("z", 1))]
    before = machine.seen()
    found = expected_starts(machine.snapshot, waiting, NOW)
    assert {uid: start - NOW for uid, start in found.items()} == {"uid-x": 600, "uid-y": 1200, "uid-z": 1500}
    assert machine.seen() == before


def test_expected_starts_are_not_invented():
    machine = Machine(2)
    machine.run("endless", 1)
    waiting = [machine.wait(name, gpus).item for name, gpus in (("x", 1), ("y", 2), ("z", 1))]
    assert expected_starts(machine.snapshot, waiting, NOW) == {"uid-x": NOW}


@pytest.mark.parametrize("tries", [0, 1, 2])
def test_expected_starts_are_bounded(tries):
    machine = Machine(4)
    machine.run("a", 4, 600)
    waiting = [machine.wait(f"w{index}", 1, 60).item for index in range(4)]
    assert len(expected_starts(machine.snapshot, waiting, NOW, tries)) <= tries
