"""The queue: order, groups of equals, and that events wake exactly whom they can help."""

from hypothesis import given
from hypothesis import strategies as st

from dray.scheduler import QueueingHint, SchedulingQueue

DEVICES = frozenset({QueueingHint.DEVICES})


def queue_of(*names, key=b"k"):
    queue = SchedulingQueue()
    for position, name in enumerate(names):
        queue.add(name, name, equivalence_key=key, priority=0, sequence=position)
    return queue


def test_high_priority_comes_first_then_age():
    queue = SchedulingQueue()
    queue.add("old", 0, equivalence_key=b"a", priority=0, sequence=1)
    queue.add("important", 0, equivalence_key=b"b", priority=9, sequence=3)
    queue.add("young", 0, equivalence_key=b"c", priority=0, sequence=2)
    assert [queue.pop(0).key for _ in range(3)] == ["important", "old", "young"]
    assert queue.pop(0) is None


def test_an_event_wakes_one_pod_of_each_kind_that_waits_for_it():
    queue = queue_of("a", "b", "c")
    for _ in range(3):
        queue.mark_unschedulable(queue.pop(0), DEVICES, "no", 0)
    queue.add("other", 0, equivalence_key=b"o", priority=0, sequence=9)
    queue.mark_unschedulable(queue.pop(0), frozenset({QueueingHint.RESOURCES}), "full", 0)
    assert queue.wake(QueueingHint.DEVICES) == 1
    assert queue.pop(0).key == "a"
    assert queue.pop(0) is None


def test_when_the_woken_pod_is_placed_the_next_of_its_kind_tries():
    queue = queue_of("a", "b", "c")
    for _ in range(3):
        queue.mark_unschedulable(queue.pop(0), DEVICES, "no", 0)
    queue.wake(QueueingHint.DEVICES)
    queue.done(queue.pop(0))
    second = queue.pop(0)
    assert second.key == "b"
    queue.mark_unschedulable(second, DEVICES, "no", 0)
    assert queue.pop(0) is None, "the group sleeps again, c is not tried"


def test_a_pod_whose_kind_sleeps_joins_it_untried_and_hears_why():
    queue = queue_of("a")
    queue.mark_unschedulable(queue.pop(0), DEVICES, "no device", 0)
    assert queue.add("b", 0, equivalence_key=b"k", priority=0, sequence=5) == "no device"
    assert queue.pop(0) is None
    assert queue.add("c", 0, equivalence_key=b"other", priority=0, sequence=6) is None
    assert queue.pop(0).key == "c"


def test_removing_the_pod_that_is_tried_lets_the_next_one_try():
    queue = queue_of("a", "b")
    for _ in range(2):
        queue.mark_unschedulable(queue.pop(0), DEVICES, "no", 0)
    queue.wake(QueueingHint.DEVICES)
    queue.remove("a")
    assert queue.pop(0).key == "b"


def test_a_failure_delays_longer_each_time():
    queue = queue_of("a")
    entry = queue.pop(0)
    queue.back_off(entry, now=0)
    assert queue.pop(0.9) is None
    assert queue.next_time() == 1.0
    entry = queue.pop(1.0)
    queue.back_off(entry, now=1)
    assert queue.next_time() == 3.0


def test_a_pod_that_is_put_back_is_tried_at_once():
    queue = queue_of("a")
    entry = queue.pop(0)
    queue.put_back(entry)
    assert queue.pop(0) is entry
    assert entry.failures == 0
    queue.remove("a")
    queue.put_back(entry)
    assert queue.pop(0) is None


def test_a_failed_commit_brings_the_pod_back():
    queue = queue_of("a")
    entry = queue.pop(0)
    queue.done(entry)
    assert len(queue) == 0
    queue.restore(entry, now=0, seconds=0.05)
    assert queue.pop(0.05) is entry


def test_a_pod_that_turns_out_to_be_of_another_kind_frees_its_group():
    queue = queue_of("a", "b")
    for _ in range(2):
        queue.mark_unschedulable(queue.pop(0), DEVICES, "no", 0)
    queue.wake(QueueingHint.DEVICES)
    entry = queue.pop(0)
    queue.change_equivalence_key(entry, b"different")
    queue.mark_unschedulable(entry, frozenset({"claim:x"}), "other", 0)
    assert queue.pop(0).key == "b"


def test_sleeping_too_long_is_noticed():
    queue = queue_of("a")
    queue.mark_unschedulable(queue.pop(0), frozenset({"claim:never"}), "no", 0)
    assert queue.wake_overdue(299) == 0
    assert queue.wake_overdue(300) == 1
    assert queue.pop(300).key == "a"


_steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "pop", "done", "mark_unschedulable", "back_off", "put_back", "remove", "wake", "time"]
        ),
        st.integers(min_value=0, max_value=5),
        st.sampled_from([b"x", b"y"]),
    ),
    max_size=60,
)


@given(_steps)
def test_no_pod_is_ever_lost(steps):
    """Whatever happens: every pod that was added and not settled is in exactly one place, and can be had."""
    queue, now, out, expected = SchedulingQueue(), 0.0, [], set()
    for step, number, group in steps:
        key = f"p{number}"
        if step == "add" and key not in queue:
            queue.add(key, None, equivalence_key=group, priority=number % 2, sequence=number)
            expected.add(key)
        elif step == "pop":
            entry = queue.pop(now)
            if entry is not None:
                out.append(entry)
        elif step in ("done", "mark_unschedulable", "back_off", "put_back") and out:
            entry = out.pop(0)
            alive = queue.get(entry.key) is entry
            if step == "done":
                queue.done(entry)
                if alive:
                    expected.discard(entry.key)
            elif step == "mark_unschedulable":
                queue.mark_unschedulable(entry, DEVICES, "no", now)
            elif step == "put_back":
                queue.put_back(entry)
            else:
                queue.back_off(entry, now)
        elif step == "remove":
            queue.remove(key)
            expected.discard(key)
        elif step == "wake":
            queue.wake(QueueingHint.DEVICES)
        elif step == "time":
            now += 5
        assert len(queue) == len(expected) == sum(queue.counts().values())
    for entry in out:
        queue.mark_unschedulable(entry, DEVICES, "no", now)
    seen = set()
    for _ in range(200):
        now += 400
        queue.wake(QueueingHint.DEVICES)
        entry = queue.pop(now)
        if entry is None:
            break
        seen.add(entry.key)
        queue.done(entry)
    assert seen == expected
