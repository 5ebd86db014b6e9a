"""No history of delays, lost writes, stale caches and restarts lets the guard break a rule.

A small model of etcd and API servers: a write is shown to the judge together with the stored revision,
waits for any length of time, and lands only if the claim is still at that revision. The judge learns of
what happened by events that arrive late, or by a list that skips some. `checker`, which knows
nothing of the judge, looks at every state that was ever stored.
"""

import itertools

import checker
import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.control.guarding.double_allocation import Judge, Write
from dray.control.guarding.guard_views import Allocation, Claim, Slice

SLICES = [
    {
        "metadata": {"name": "devices", "uid": "s1", "resourceVersion": "1"},
        "spec": {
            "driver": "d",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2},
            "devices": [
                {"name": "g0"},
                {"name": "g1"},
                {"name": "shared", "allowMultipleAllocations": True, "capacity": {"mem": {"value": "10"}}},
                *(
                    {
                        "name": f"part{index}",
                        "consumesCounters": [{"counterSet": "set", "counters": {"c": {"value": "3"}}}],
                    }
                    for index in range(3)
                ),
            ],
        },
    },
    {
        "metadata": {"name": "counters", "uid": "s2", "resourceVersion": "1"},
        "spec": {
            "driver": "d",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2},
            "sharedCounters": [{"name": "set", "counters": {"c": {"value": "5"}}}],
        },
    },
]
CHOICES = [["g0"], ["g1"], ["g0", "g1"], ["shared:4"], ["shared:7"], ["part0"], ["part1"], ["part2", "g1"]]


class GuardedCluster:
    """What is stored, what is in flight, and what the judge has been told."""

    def __init__(self):
        self.revisions = itertools.count(10)
        self.uids = itertools.count()
        self.shares = itertools.count()
        self.stored = {}  # name -> claim
        self.in_flight = []  # (name, uid, base, results) that were admitted, by this judge or a former one
        self.events = []  # (name, claim or None) that the judge has not seen yet
        self.seen = {}  # name -> claim, the judge's cache
        self.ledger = checker.Ledger(checker.Inventory(SLICES))
        self.problems = []
        self.admitted = 0
        self.start_judge()

    def start_judge(self):
        self.judge = Judge()
        for each in SLICES:
            self.judge.set_slice(None, msgspec.convert(each, Slice))
        self.events, self.seen = [], {}
        for name, claim in self.stored.items():
            self.tell(name, claim)

    def tell(self, name, claim):
        """Let the judge's cache show a claim, as an informer does."""
        old = self.seen.get(name)
        if old is not None and (claim is None or old["metadata"]["uid"] != claim["metadata"]["uid"]):
            self.judge.set_claim(msgspec.convert(self.seen.pop(name), Claim), None)
            old = None
        if claim is not None:
            self.seen[name] = claim
            self.judge.set_claim(msgspec.convert(old, Claim) if old else None, msgspec.convert(claim, Claim))

    def store(self, name, uid, results):
        meta = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(next(self.revisions))}
        claim = {
            "metadata": meta,
            "status": {"allocation": {"devices": {"results": results}}} if results else {},
        }
        self.stored[name] = claim
        self.events.append((name, claim))
        self.problems += self.ledger.see(claim)

    # --- what can happen ---------------------------------------------------------

    def create(self, which, _):
        name = f"c{which % 5}"
        if name not in self.stored:
            self.store(name, f"uid-{next(self.uids)}", [])

    def ask(self, which, choice):
        """An API server shows a scheduler's write to the judge."""
        claim = self.stored.get(f"c{which % 5}")
        if claim is None or checker.results_of(claim):
            return
        meta = claim["metadata"]
        results = []
        for each in CHOICES[choice % len(CHOICES)]:
            device, _, size = each.partition(":")
            result = {"request": "r", "driver": "d", "pool": "p", "device": device}
            if size:
                result |= {"shareID": f"share-{next(self.shares)}", "consumedCapacity": {"mem": size}}
            results.append(result)
        typed = msgspec.convert({"devices": {"results": results}}, Allocation)
        write = Write(meta["uid"], f"ns/{meta['name']}", int(meta["resourceVersion"]), typed.devices.results)
        if self.judge.admit(write, 0.0) is None:
            self.admitted += 1
            self.in_flight.append((meta["name"], meta["uid"], meta["resourceVersion"], results))

    def land(self, which, _):
        """An admitted write reaches etcd, however old it is."""
        if self.in_flight:
            name, uid, base, results = self.in_flight.pop(which % len(self.in_flight))
            claim = self.stored.get(name)
            if claim and claim["metadata"]["uid"] == uid and claim["metadata"]["resourceVersion"] == base:
                self.store(name, uid, results)

    def release(self, which, _):
        claim = self.stored.get(f"c{which % 5}")
        if claim:
            self.store(claim["metadata"]["name"], claim["metadata"]["uid"], [])

    def touch(self, which, _):
        claim = self.stored.get(f"c{which % 5}")
        if claim:
            self.store(claim["metadata"]["name"], claim["metadata"]["uid"], checker.results_of(claim))

    def delete(self, which, _):
        claim = self.stored.pop(f"c{which % 5}", None)
        if claim:
            self.events.append((claim["metadata"]["name"], None))
            self.ledger.see(claim, is_gone=True)

    def hear(self, count, _):
        """Some events arrive."""
        for _ in range(count % 4 + 1):
            if self.events:
                self.tell(*self.events.pop(0))

    def relist(self, *_):
        """The watch was cut for long: the cache jumps to what is stored."""
        self.events.clear()
        for name in [*self.seen, *self.stored]:
            self.tell(name, self.stored.get(name))

    def sweep(self, which, _):
        """The guard fences a write that does not show up."""
        flights = list(self.judge.flights())
        if flights:
            write = flights[which % len(flights)].write
            claim = self.stored.get(write.key.partition("/")[2])
            if claim is None or claim["metadata"]["uid"] != write.uid:
                self.judge.forget(write.uid)
            elif int(claim["metadata"]["resourceVersion"]) <= write.base:
                self.touch(int(claim["metadata"]["name"][1:]), 0)

    def restart(self, *_):
        """The guard dies with its record; the next one fences what is not allocated, and begins."""
        for name, claim in list(self.stored.items()):
            if not checker.results_of(claim):
                self.touch(int(name[1:]), 0)
        self.start_judge()

    def careless_restart(self, *_):
        """What a guard without fences would do."""
        self.start_judge()


HAPPENINGS = [
    "create",
    "ask",
    "ask",
    "ask",
    "land",
    "land",
    "release",
    "touch",
    "delete",
    "hear",
    "relist",
    "sweep",
]
STEP = st.tuples(st.sampled_from([*HAPPENINGS, "restart"]), st.integers(0, 19), st.integers(0, 19))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=10, max_size=80))
def test_whatever_happens_no_rule_is_broken(steps):
    cluster = GuardedCluster()
    for happening, first, second in [*(("create", index, 0) for index in range(5)), *steps]:
        getattr(cluster, happening)(first, second)
        assert cluster.problems == []


@settings(max_examples=100, deadline=None)
@given(st.lists(STEP, min_size=10, max_size=60))
def test_a_quiet_world_leaves_nothing_in_the_book_but_what_is_stored(steps):
    cluster = GuardedCluster()
    for happening, first, second in [*(("create", index, 0) for index in range(5)), *steps]:
        getattr(cluster, happening)(first, second)
    for _ in range(len(list(cluster.judge.flights()))):
        cluster.sweep(0, 0)
        cluster.relist()
    assert list(cluster.judge.flights()) == []
    for claim in list(cluster.stored.values()):
        cluster.release(int(claim["metadata"]["name"][1:]), 0)
    cluster.relist()
    assert cluster.judge.occupancy.ledger.is_empty


def test_the_model_can_break_the_rules():
    """Without the fence at the start, a write that a former guard admitted lands on top of a newer one."""
    cluster = GuardedCluster()
    for happening, first, second in [
        ("create", 0, 0), ("create", 1, 0), ("ask", 0, 0), ("careless_restart", 0, 0), ("ask", 1, 0),
        ("land", 0, 0), ("land", 0, 0),
    ]:  # fmt: skip
        getattr(cluster, happening)(first, second)
    assert len(cluster.problems) == 1

    cluster = GuardedCluster()
    for happening, first, second in [
        ("create", 0, 0), ("create", 1, 0), ("ask", 0, 0), ("restart", 0, 0), ("ask", 1, 0), ("land", 0, 0), ("land", 0, 0),
    ]:  # fmt: skip
        getattr(cluster, happening)(first, second)
    assert cluster.problems == []
    assert checker.results_of(cluster.stored["c1"])
