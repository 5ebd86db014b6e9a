"""The queue where users share fairly: priority, then the user's ratio, then age."""

from dray.scheduler import QueueingHint, SchedulingQueue

DEVICES = frozenset({QueueingHint.DEVICES})


def queue_of(ratios, *jobs):
    queue = SchedulingQueue()
    queue.ratio = lambda user: ratios[user]
    for sequence, (name, user, priority) in enumerate(jobs):
        queue.add(name, user, equivalence_key=b"same", priority=priority, sequence=sequence)
    return queue


def taken(queue):
    names = []
    while (entry := queue.pop(0.0)) is not None:
        names.append(entry.key)
        queue.done(entry)
    return names


def test_the_user_with_the_lowest_ratio_is_next_within_a_priority():
    queue = queue_of(
        {"ann": 2.0, "bob": 1.0}, ("a1", "ann", 0), ("b1", "bob", 0), ("a2", "ann", 5), ("b2", "bob", 0)
    )
    assert taken(queue) == ["a2", "b1", "b2", "a1"]


def test_a_user_who_got_something_is_moved_back():
    ratios = {"ann": 0.0, "bob": 0.5}
    queue = queue_of(ratios, ("a1", "ann", 0), ("a2", "ann", 0), ("b1", "bob", 0))
    names = []
    while (entry := queue.pop(0.0)) is not None:
        names.append(entry.key)
        ratios[entry.item] += 1.0
        queue.done(entry)
    assert names == ["a1", "b1", "a2"]


def test_unschedulable_pods_are_woken_in_the_order_of_now():
    ratios = {"ann": 0.0, "bob": 1.0}
    queue = queue_of(ratios, ("a1", "ann", 0), ("b1", "bob", 0))
    for _ in range(2):
        queue.mark_unschedulable(queue.pop(0.0), DEVICES, "no", 0.0)
    ratios.update(ann=2.0)
    queue.reorder()
    queue.wake(QueueingHint.DEVICES)
    assert queue.pop(0.0).key == "b1"


def test_without_fair_share_the_order_is_priority_and_age():
    queue = SchedulingQueue()
    for sequence, (name, priority) in enumerate([("old", 0), ("new", 0), ("urgent", 1)]):
        queue.add(name, "x", equivalence_key=b"", priority=priority, sequence=sequence)
    queue.reorder()
    assert taken(queue) == ["urgent", "old", "new"]
