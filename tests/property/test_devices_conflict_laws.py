"""Guard, verifier and checker know the same rules.

Random small clusters: two pools with devices that are exclusive, shared, drawn from counters, with and without
compatibility groups, with capacities and counters of zero or missing, and slices of an older generation in
between. Claims come one after the other and are asked about by three who share no code path but the rules
(the checker not even those): the judge of the guard before they are written, the verifier of schedulers after that,
and `checker`, which looks at what is stored.
"""

import itertools

import checker
import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dray.api.resource import ResourceClaim, ResourceSlice
from dray.control.guarding.double_allocation import Judge, Write
from dray.control.guarding.guard_views import Claim, Slice
from dray.scheduler.verification import AllocationVerifier

# --- clusters ---------------------------------------------------------------------

AMOUNT = st.sampled_from(["0", "1", "2", "2500m", "4"])
GROUPS = st.sampled_from([[], [], ["x"], ["y"], ["x", "y"]])
COUNTERS = st.dictionaries(
    st.sampled_from(["c", "e"]), AMOUNT.map(lambda value: {"value": value}), min_size=1
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from(["0", "4", "6", "9"]).map(lambda value: {"value": value}) for name in "ce"
    },
)


@st.composite
def draws(draw):
    sets = draw(st.lists(st.sampled_from(["left", "right"]), unique=True, max_size=2))
    return [
        {"counterSet": name, "counters": draw(COUNTERS), "compatibilityGroups": draw(GROUPS)} for name in sets
    ]


@st.composite
def devices(draw, names):
    found = []
    for name in names:
        device = {"name": name, "consumesCounters": draw(draws())}
        if draw(st.booleans()):
            device["allowMultipleAllocations"] = True
            device["capacity"] = draw(
                st.dictionaries(st.just("mem"), st.sampled_from([{"value": "0"}, {"value": "5"}]))
            )
        found.append(device)
    return found


@st.composite
def slices(draw):
    found = []
    for pool in ("p", "q"):
        spec = {"driver": "d", "pool": {"name": pool, "generation": 2, "resourceSliceCount": 2}}
        older = spec | {"pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}
        limits = {name: draw(LIMITS) for name in ("left", "right")}
        found += [
            spec | {"devices": draw(devices(["a", "b", "c"]))},
            spec | {"sharedCounters": [{"name": name, "counters": each} for name, each in limits.items()]},
            older | {"devices": draw(devices(["a", "gone"]))},
        ]
    named = [{"metadata": {"name": f"s{index}"}, "spec": spec} for index, spec in enumerate(found)]
    return draw(st.permutations(named))


WISH = st.fixed_dictionaries(
    {
        "pool": st.sampled_from(["p", "p", "q"]),
        "device": st.sampled_from(["a", "b", "c"] * 5 + ["gone"]),
        "shareID": st.sampled_from(["1", "2", "3", "4"]),
        "consumedCapacity": st.dictionaries(st.sampled_from(["mem", "mem", "nothing"]), AMOUNT, max_size=1),
        "adminAccess": st.sampled_from([False] * 9 + [True]),
    }
)
WISHES = st.lists(WISH, min_size=1, max_size=3)


def results_for(inventory, wanted_results):
    """Write results as an allocator does: only devices that are shared have shares."""
    results = []
    for wanted in wanted_results:
        result = {"request": "r", "driver": "d", **wanted}
        published = inventory.devices.get(checker.device_key(result))
        if published is None or not published[0].get("allowMultipleAllocations"):
            del result["shareID"], result["consumedCapacity"]
        results.append(result)
    return results


def is_sound(inventory, results):
    """Whether an allocation can be judged at all: every device is there, and named once."""
    used = [each for each in results if not each["adminAccess"]]
    named = [(*checker.device_key(each), each.get("shareID")) for each in used]
    return len(set(named)) == len(named) and all(key[:3] in inventory.devices for key in named)


def claim_of(name, revision, results):
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(revision)}
    return {
        "metadata": meta,
        "status": {"allocation": {"devices": {"results": results}}} if results else {},
    }


class Cluster:
    """One cluster in the books of all three."""

    def __init__(self, published):
        self.inventory = checker.Inventory(published)
        self.ledger, self.judge, self.verifier = checker.Ledger(self.inventory), Judge(), AllocationVerifier()
        for each in published:
            self.judge.set_slice(None, msgspec.convert(each, Slice))
            self.verifier.set_slice(None, msgspec.convert(each, ResourceSlice))
        self.revisions = itertools.count(10)
        self.stored = {}  # name -> claim

    def ask_judge(self, name, results, *, is_heard):
        """Return the guard's refusal; what is admitted lands, and its cache may show it or not."""
        bare = msgspec.convert(claim_of(name, next(self.revisions), []), Claim)
        full = msgspec.convert(claim_of(name, next(self.revisions), results), Claim)
        self.judge.set_claim(None, bare)
        base = int(bare.metadata.resource_version)
        refusal = self.judge.admit(Write(bare.metadata.uid, f"ns/{name}", base, full.results), 0.0)
        if refusal is None and is_heard:
            assert self.judge.set_claim(bare, full)
        return refusal

    def ask_verifier(self, claim):
        """Return what the verifier says about a claim that was just written; it is taken back if it must be."""
        typed = msgspec.convert(claim, ResourceClaim)
        self.verifier.set_claim(None, typed)
        conflict = self.verifier.conflict(typed)
        if conflict is not None:
            self.verifier.set_claim(typed, None)
        return conflict

    def ask_checker(self, claim):
        """Return what the checker finds wrong with a claim; it is taken back if something is."""
        problems = self.ledger.see(claim)
        if problems:
            self.ledger.see(claim, is_gone=True)
        return problems

    def release(self, name):
        claim = self.stored.pop(name)
        self.ledger.see(claim, is_gone=True)
        self.verifier.set_claim(msgspec.convert(claim, ResourceClaim), None)
        self.judge.set_claim(None, msgspec.convert(claim_of(name, next(self.revisions), []), Claim))


STEP = st.one_of(
    st.tuples(st.just("give"), WISHES, st.booleans()),
    st.tuples(st.just("give"), WISHES, st.booleans()),
    st.tuples(st.just("release"), st.integers(0, 9), st.none()),
)


# --- laws -----------------------------------------------------------------------


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(slices(), st.lists(STEP, min_size=2, max_size=14))
def test_guard_verifier_and_checker_come_to_the_same_verdict(published, steps):
    system = Cluster(published)
    for number, (step, detail, is_heard) in enumerate(steps):
        if step == "release":
            if system.stored:
                system.release(sorted(system.stored)[detail % len(system.stored)])
            continue
        name, results = f"c{number}", results_for(system.inventory, detail)
        refusal = system.ask_judge(name, results, is_heard=is_heard)
        claim = claim_of(name, next(system.revisions), results)
        problems = system.ask_checker(claim)
        assert (refusal is None) == (problems == []), (refusal, problems)
        if not is_sound(system.inventory, results):
            assert refusal is not None
            continue
        conflict = system.ask_verifier(claim)
        assert (refusal is None) == (conflict is None), (refusal, conflict)
        event("allowed" if refusal is None else refusal.message.partition("/")[2].partition(" ")[2][:20])
        if refusal is None:
            system.stored[name] = claim


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(slices(), st.lists(WISHES, min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_in_whatever_order_schedulers_ask_what_is_left_keeps_the_rules(published, wanted_results, chance):
    """All have written already; each asks when it comes to it, and is taken back if it must be."""
    system = Cluster(published)
    written = {}
    for number, each in enumerate(wanted_results):
        results = results_for(system.inventory, each)
        if is_sound(system.inventory, results):
            written[f"c{number}"] = msgspec.convert(
                claim_of(f"c{number}", 10 + number, results), ResourceClaim
            )
    for claim in written.values():
        system.verifier.set_claim(None, claim)
    left = dict(written)
    for name in chance.sample(sorted(written), len(written)):
        if system.verifier.conflict(written[name]) is not None:
            system.verifier.set_claim(left.pop(name), None)
    for claim in left.values():
        assert system.ledger.see(msgspec.to_builtins(claim)) == []
    first = next(iter(written), None)
    if first is not None and first not in left:  # nobody was before it: it can only have failed by itself
        alone = checker.Ledger(system.inventory)
        assert alone.see(msgspec.to_builtins(written[first])) != []


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(slices(), st.lists(WISHES, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_a_book_forgets_all_that_was_released(published, wanted_results, chance):
    system = Cluster(published)
    for number, each in enumerate(wanted_results):
        system.stored[f"c{number}"] = claim = claim_of(f"c{number}", 10, results_for(system.inventory, each))
        system.verifier.set_claim(None, msgspec.convert(claim, ResourceClaim))
        system.judge.set_claim(None, msgspec.convert(claim, Claim))
        system.ledger.see(claim)
    for name in chance.sample(sorted(system.stored), len(system.stored)):
        system.release(name)
    assert system.judge.occupancy.ledger.is_empty
    assert system.verifier._occupancy.ledger.is_empty


@pytest.mark.parametrize("what", ["c", "group"])
def test_the_worlds_can_tell_right_from_wrong(what):
    """Two parts that do not go together: one is given, the other refused, by all three."""
    parts = [
        {
            "name": name,
            "consumesCounters": [
                {
                    "counterSet": "left",
                    "counters": {"c": {"value": "2"}},
                    "compatibilityGroups": [name] if what == "group" else [],
                }
            ],
        }
        for name in ("a", "b")
    ]
    spec = {"driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": parts}
    limit = {"c": {"value": "9" if what == "group" else "3"}}
    spec["sharedCounters"] = [{"name": "left", "counters": limit}]
    system = Cluster([{"metadata": {"name": "s"}, "spec": spec}])
    verdicts = []
    for name in ("a", "b"):
        results = [{"request": "r", "driver": "d", "pool": "p", "device": name, "adminAccess": False}]
        claim = claim_of(name, next(system.revisions), results)
        verdicts.append(
            [
                system.ask_judge(name, results, is_heard=True) is None,
                system.ask_verifier(claim) is None,
                not system.ask_checker(claim),
            ]
        )
    assert verdicts == [[True] * 3, [False] * 3]
