"""Who held which devices when: spans that begin, continue and end, bounds, and what is kept."""

import itertools

from hypothesis import given
from hypothesis import strategies as some

from dray.scheduler import holding_history
from dray.scheduler.holding_history import HoldingHistory, Span, parse_history

ANN, BOB = ("user-ann", "gpu/box/gpu-0"), ("user-bob", "gpu/box/gpu-0")


def test_a_span_ends_when_the_device_is_held_no_more():
    history = HoldingHistory()
    assert history.observe([ANN], 100)
    assert not history.observe([ANN], 105)
    assert history.observe([BOB], 200)
    assert history.spans(300) == [Span(*ANN, 100, 200), Span(*BOB, 200, 300)]


def test_short_jobs_of_one_user_in_a_row_are_one_span():
    history = HoldingHistory()
    for start in range(0, 1000, 50):
        history.observe([ANN], start)
        history.observe([], start + 30)
    assert history.spans(2000) == [Span(*ANN, 0, 980)]
    history.observe([ANN], 2000)
    assert history.spans(2000) == [Span(*ANN, 0, 980), Span(*ANN, 2000, 2000)]


def test_what_is_older_than_thirty_days_goes_and_the_record_is_bounded(monkeypatch):
    history = HoldingHistory()
    history.observe([ANN], 0)
    history.observe([], 10)
    history.observe([], 31 * 86400)
    assert history.spans(31 * 86400) == []
    for number in range(holding_history.MOST_SPANS + 10):
        history.observe([("u", str(number))], number)
    assert len(history.spans(1e6)) == holding_history.MOST_SPANS + 1
    assert sum(map(len, history.to_data(1e6).values())) < 400_000  # a ConfigMap holds 1 MiB


def test_a_scheduler_that_comes_back_soon_continues_and_one_that_comes_late_begins_anew():
    first = HoldingHistory()
    first.observe([ANN], 100)
    kept = first.to_data(200)
    soon, late = parse_history(kept), parse_history(kept)
    soon.observe([ANN], 230)
    late.observe([ANN], 500)
    assert soon.spans(300) == [Span(*ANN, 100, 300)]
    assert late.spans(600) == [Span(*ANN, 100, 200), Span(*ANN, 500, 600)]


def test_what_cannot_be_read_is_left_out():
    data = {
        "users": '["a"]',
        "devices": '["d"]',
        "spans": '[[0,0,1,2],[0,0,2,1],[1,0,1,2],[0,-1,1,2],["x",0,1,2],[0,0,1],[0,0,1,1e99],7,null]',
    }
    assert parse_history(data).spans(10) == [Span("a", "d", 1.0, 2.0)]
    for text in ("{", "[" * 100_000, "7", None, 7):
        assert parse_history({**data, "spans": text}).spans(10) == []


@given(some.lists(some.tuples(some.sets(some.sampled_from([ANN, BOB])), some.integers(1, 200)), max_size=20))
def test_spans_of_one_pair_do_not_overlap_and_cover_what_was_held(steps):
    history, now, held_seconds = HoldingHistory(), 0.0, dict.fromkeys((ANN, BOB), 0.0)
    current = set()
    for held, seconds in steps:
        history.observe(held, now)
        current = held
        for pair in current:
            held_seconds[pair] += seconds
        now += seconds
    for pair in (ANN, BOB):
        spans = sorted(span for span in history.spans(now) if span[:2] == pair)
        assert all(one.ends <= other.begins for one, other in itertools.pairwise(spans))
        # Gaps below a minute count as held.
        assert sum(span.ends - span.begins for span in spans) >= held_seconds[pair]
