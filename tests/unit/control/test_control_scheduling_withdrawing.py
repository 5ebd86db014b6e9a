"""Clearing a claim and binding its pod exclude each other, in whatever order things happen.

The clearing is the real one, on a server of two objects. The binder is what `Committer` does at the
end, on views that may be old. Every order of their steps is tried.
"""

import copy
import itertools

import msgspec
import pytest

from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.client import Conflict, NotFound
from dray.client.errors import Status
from dray.control.scheduling.withdrawing import WITHDRAWN, InUseError, Withdrawer, is_withdrawn
from dray.scheduler import is_reserved_for

DEVICES = {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "g0"}]}
HOLDER = {"resource": "pods", "name": "p", "uid": "pod"}


def _conflict():
    return Conflict(409, Status(409, "Conflict", "changed"), "write")


class Step:
    """The moment before a request arrives: the other one may come first."""

    def __await__(self):
        yield


class SmallServer:
    """One pod, one claim, one counter of revisions."""

    def __init__(self):
        self.revision = 10
        self.pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "pod"}, "spec": {}, "status": {}}
        self.claim = {
            "metadata": {"name": "c", "namespace": "ns", "uid": "claim", "finalizers": ["f"]},
            "status": {"allocation": {"devices": DEVICES}, "reservedFor": [HOLDER]},
        }
        self.pod["metadata"]["resourceVersion"] = "9"
        self.claim["metadata"]["resourceVersion"] = "10"

    def touch(self, item, revision=None):
        if revision is not None and item["metadata"]["resourceVersion"] != revision:
            raise _conflict()
        self.revision += 1
        item["metadata"]["resourceVersion"] = str(self.revision)

    def see(self):
        """Both objects as they are now."""
        return msgspec.convert(self.pod, Pod), msgspec.convert(self.claim, ResourceClaim)

    # --- as much of a client as is needed -----------------------------------------

    async def call(self, method, path, body, **_):
        await Step()
        meta = body["metadata"]
        if "/pods/" in path:
            if meta["uid"] != "pod":
                raise _conflict()
            notes = self.pod["metadata"].setdefault("annotations", {})
            before = dict(notes)
            for key, value in meta["annotations"].items():
                notes.pop(key, None)
                if value is not None:
                    notes[key] = value
            if notes != before:  # a patch that changes nothing leaves the revision alone
                self.touch(self.pod)
            return self.see()[0]
        [gone] = body["status"]["reservedFor"]
        self.touch(self.claim, meta["resourceVersion"])
        holders = self.claim["status"]["reservedFor"]
        self.claim["status"]["reservedFor"] = [each for each in holders if each["uid"] != gone["uid"]]
        return None

    async def update(self, resource, name, body, namespace, **_):
        await Step()
        self.touch(self.claim, body["metadata"]["resourceVersion"])
        self.claim["status"] = {}
        return self.see()[1]

    async def patch(self, resource, name, body, namespace, **_):
        await Step()
        self.touch(self.claim, body["metadata"]["resourceVersion"])
        self.claim["metadata"]["finalizers"] = []
        return self.see()[1]

    async def delete(self, resource, name, namespace, *, uid, resource_version):
        await Step()
        self.touch(self.claim, resource_version)
        self.claim["status"] = {}

    async def get(self, *_, **__):
        await Step()
        return self.see()[0]

    async def bind(self, revision):
        await Step()
        self.touch(self.pod, revision)
        self.pod["spec"]["nodeName"] = "n"


class Views:
    """What the clearing scheduler knows; nothing of pods."""

    class pods:  # stands for the informer
        items = {}

        @staticmethod
        def get(key):
            return None


async def bind(server, pod, claim, outcome):
    """What a committer does with the pod and the claim as it knows them."""
    if is_reserved_for(claim, {"pod"}) and claim.status.allocation and not is_withdrawn(pod, claim):
        try:
            await server.bind(pod.metadata.resource_version)
            outcome.append("bound")
        except Conflict:
            return


async def clear(server, claim, way, outcome):
    withdrawer = Withdrawer(server, Views)
    try:
        if way == "unreserve":
            await withdrawer.unreserve(claim, "pod")
        else:
            await getattr(withdrawer, way)(claim)
        outcome.append("cleared")
    except (Conflict, InUseError):
        return


def orders(first, second):
    """All ways to shuffle two sequences of steps."""
    for places in itertools.combinations(range(first + second), first):
        yield [index in places for index in range(first + second)]


@pytest.mark.parametrize("way", ["deallocate", "delete", "unreserve"])
def test_a_claim_is_cleared_or_its_pod_is_bound_never_both(way):
    outcomes = set()
    # How old the binder's views of pod and claim are: as after so many steps of the clearing.
    for looks, order in itertools.product(itertools.product(range(4), repeat=2), orders(5, 2)):
        server, outcome = SmallServer(), []
        clearing = clear(server, server.see()[1], way, outcome)
        views, binding, done = {0: server.see()}, None, 0
        for is_clearing in order:
            if is_clearing:
                done += 1
                _advance(clearing)
                views[done] = server.see()
                continue
            if binding is None:
                pod = views[min(looks[0], done)][0]
                claim = views[min(looks[1], done)][1]
                binding = bind(server, copy.deepcopy(pod), claim, outcome)
            _advance(binding)
        assert len(outcome) <= 1, (looks, order, outcome)
        is_held = bool(server.claim["status"].get("reservedFor"))
        assert not server.pod["spec"] or (is_held and server.claim["status"]["allocation"]), (looks, order)
        outcomes |= set(outcome)
        for each in (clearing, binding):
            each.close()
    assert outcomes == {"bound", "cleared"}


def _advance(work):
    try:
        work.send(None)
    except (StopIteration, RuntimeError):
        pass  # it has ended


# --- words ----------------------------------------------------------------------------------------


def _pair(*annotations, revision="10"):
    pod = {"metadata": {"name": "p", "uid": "pod", "annotations": dict.fromkeys(annotations, "true")}}
    claim = {"metadata": {"name": "c", "uid": "claim", "resourceVersion": revision}}
    return msgspec.convert(pod, Pod), msgspec.convert(claim, ResourceClaim)


def test_a_word_counts_for_the_revision_it_names_and_for_all_before():
    assert not is_withdrawn(*_pair())
    assert is_withdrawn(*_pair(f"{WITHDRAWN}claim.10"))
    assert is_withdrawn(*_pair(f"{WITHDRAWN}claim.11"))
    assert not is_withdrawn(*_pair(f"{WITHDRAWN}claim.9"))
    assert is_withdrawn(*_pair(f"{WITHDRAWN}claim.9", f"{WITHDRAWN}claim.12"))


def test_words_about_other_claims_and_nonsense_do_not_count():
    assert not is_withdrawn(*_pair(f"{WITHDRAWN}claims.10", f"{WITHDRAWN}claim.x", f"{WITHDRAWN}claim."))


async def test_a_word_replaces_what_was_said_of_earlier_revisions():
    server = SmallServer()
    server.pod["metadata"]["annotations"] = {f"{WITHDRAWN}claim.7": "true", f"{WITHDRAWN}other.7": "true"}

    class Knowing:
        class pods:
            @staticmethod
            def get(key):
                return server.see()[0]

    await _at_once(Withdrawer(server, Knowing).deallocate(server.see()[1]))
    assert sorted(server.pod["metadata"]["annotations"]) == [
        f"{WITHDRAWN}claim.10",
        f"{WITHDRAWN}other.7",
    ]


async def test_a_pod_that_is_gone_or_another_one_holds_nothing():
    server = SmallServer()
    server.claim["status"]["reservedFor"] = [{**HOLDER, "uid": "earlier"}]
    await _at_once(Withdrawer(server, Views).deallocate(server.see()[1]))
    assert server.claim["status"] == {}


async def test_a_claim_that_is_gone_already_is_deleted():
    class Empty(SmallServer):
        async def update(self, *_, **__):
            raise NotFound(404, Status(404, "NotFound", "gone"), "write")

    server = Empty()
    await _at_once(Withdrawer(server, Views).delete(server.see()[1]))


async def _at_once(work):
    """Run something whose steps nobody comes between."""
    while True:
        try:
            work.send(None)
        except StopIteration:
            return
