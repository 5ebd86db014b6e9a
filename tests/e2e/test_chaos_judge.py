"""The judge of the chaos runs can tell right from wrong."""

import checker
import pytest
from use_judge import UseJudge

from dray.client import resources as kinds

SLICE = {
    "spec": {
        "driver": "d",
        "pool": {"name": "n", "generation": 1},
        "nodeName": "n",
        "devices": [{"name": "g0"}, {"name": "g1"}],
    }
}


class Story:
    """Tells a judge what happens, one revision after the other."""

    def __init__(self):
        self.judge = UseJudge(None, "ns", checker.Inventory([SLICE]))
        self.revision = 0

    def _tell(self, resource, item, kind):
        self.revision += 1
        item["metadata"]["resourceVersion"] = str(self.revision)
        self.judge._push(resource, kind, item)

    def pod(self, name, node=None, kind="MODIFIED", phase="Pending"):
        entries = [{"name": "c", "resourceClaimName": f"{name}-claim"}]
        spec = {"nodeName": node, "resourceClaims": entries}
        item = {"metadata": {"name": name, "uid": name}, "spec": spec, "status": {"phase": phase}}
        self._tell(kinds.PODS, item, kind)

    def claim(self, name, device=None, kind="MODIFIED"):
        results = [{"request": "r", "driver": "d", "pool": "n", "device": device}] if device else []
        users = [{"name": name, "uid": name}] if device else []
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
        item = {"metadata": {"name": f"{name}-claim", "uid": f"{name}-claim"}, "status": status}
        self._tell(kinds.CLAIMS, item, kind)

    def end(self):
        self.judge.finish()
        return self.judge.problems


def test_two_claims_of_one_device_are_a_race_until_both_pods_are_bound():
    story = Story()
    story.claim("a", "g0")
    story.pod("a", "n")
    story.claim("b", "g0")
    assert story.end() == []
    assert story.judge.races == 1
    story.pod("b", "n")
    assert any("already held" in problem for problem in story.end())


def test_a_device_may_change_hands_when_its_pod_is_gone():
    story = Story()
    story.claim("a", "g0")
    story.pod("a", "n")
    story.pod("a", "n", kind="DELETED")
    story.claim("a")
    story.claim("b", "g0")
    story.pod("b", "n")
    assert story.end() == []
    assert story.judge.bound == {"a", "b"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_uses_nothing(phase):
    story = Story()
    story.claim("a", "g0")
    story.pod("a", "n")
    story.pod("a", "n", phase=phase)
    story.claim("b", "g0")
    story.pod("b", "n")
    assert story.end() == []


def test_a_pod_bound_without_its_claim_is_noticed():
    story = Story()
    story.claim("a", "g0")
    story.claim("a")
    story.pod("a", "n")
    assert any("without" in problem for problem in story.end())


def test_events_are_judged_in_the_servers_order_whichever_watch_is_faster():
    story = Story()
    story.claim("a", "g0")  # 1
    story.claim("b", "g1")  # 2
    late = {
        "metadata": {"name": "a", "uid": "a", "resourceVersion": "5"},
        "spec": {"nodeName": "n"},
        "status": {},
    }
    story.judge._push(kinds.PODS, "MODIFIED", late)  # bound at 5, while claims are known up to 2 only
    assert story.judge.bound == set(), "not judged yet"
    story.revision = 5
    story.claim("b")  # 6
    assert story.judge.bound == {"a"}
