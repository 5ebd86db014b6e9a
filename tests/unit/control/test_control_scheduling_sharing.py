"""Fair share in the scheduling loop: who holds what, since when, and what is kept of it."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from dray.api.codec import to_view
from dray.api.core import Namespace, Pod
from dray.api.resource import ResourceClaim
from dray.client.errors import error_from
from dray.control.scheduling.sharing import FairShare, format_days, held_by_claim, parse_days, weights_of


def claim(user, name="c", count=1, *, admin=False):
    result = {"request": "r", "driver": "d", "pool": "p", **({"adminAccess": True} if admin else {})}
    results = [{**result, "device": f"gpu-{number}"} for number in range(count)]
    status = {"allocation": {"devices": {"results": results}}} if count else {}
    metadata = {"name": name, "namespace": user, "uid": f"{user}-{name}"}
    return to_view(ResourceClaim, {"metadata": metadata, "spec": {}, "status": status})


def pod(user):
    return to_view(Pod, {"metadata": {"name": "p", "namespace": user}, "spec": {"containers": []}})


def namespace(name, **annotations):
    notes = {f"dray.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return to_view(Namespace, {"metadata": {"name": name, "annotations": notes}})


class Server:
    """Holds one ConfigMap."""

    def __init__(self, data=None, error=None):
        self.data, self.error = data, error

    async def get(self, *_):
        if self.error is not None:
            raise self.error
        if self.data is None:
            raise error_from(404, b"{}")
        return {"data": self.data}

    async def apply(self, _resource, _name, body, _namespace, *, manager, force):
        assert (manager, force) == ("dray-scheduler", True)
        self.data = body["data"]


class Clock:
    def __init__(self):
        self.moment = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self):
        return self.moment

    def pass_time(self, **much):
        self.moment += timedelta(**much)


def make(server=None, **namespaces):
    clock = Clock()
    snapshot = SimpleNamespace(claims={}, reserved={})
    return FairShare(server or Server(), snapshot, namespaces, clock), snapshot, clock


def test_who_had_more_is_later():
    sharing, snapshot, clock = make()
    snapshot.claims["ann/c"] = claim("ann", count=4)
    sharing.tick()
    clock.pass_time(hours=1)
    sharing.tick()
    del snapshot.claims["ann/c"]
    assert sharing.tick()  # the order may be another
    assert sharing.ratio(pod("ann")) > sharing.ratio(pod("bob")) == 0
    assert sharing.standing().explain("ann").startswith("ann has used 100 %")


def test_a_reservation_counts_at_once_and_until_it_ends():
    sharing, snapshot, _ = make()
    made = claim("ann", count=2)
    placement = SimpleNamespace(claims=[made], allocations=[made.status.allocation])
    sharing.ratio(pod("ann"))
    sharing.placed(placement)
    assert sharing.held_by_user() == {"ann": 2}
    assert sharing.ratio(pod("ann")) > 0
    snapshot.reserved[made.metadata.uid] = object()
    assert not sharing.tick()
    snapshot.reserved.clear()  # the write failed
    assert sharing.tick()
    assert sharing.held_by_user() == {}


def test_admin_access_and_unallocated_claims_hold_nothing():
    held = held_by_claim([claim("ann", "a", admin=True), claim("bob", "b", count=0)])
    assert held == {"ann-a": ("ann", 0)}


def test_weights_are_annotations_of_namespaces():
    sharing, snapshot, _ = make(ann=namespace("ann", weight="2"), bob=namespace("bob"))
    snapshot.claims = {"a": claim("ann", count=2), "b": claim("bob", count=1)}
    sharing.tick()
    assert sharing.ratio(pod("ann")) == sharing.ratio(pod("bob"))


@pytest.mark.parametrize("text", ["", "-1", "0", "nan", "inf", "many", "1e9", "9" * 100])
def test_a_weight_that_is_none_counts_as_one(text):
    weights, groups = weights_of({"ann": namespace("ann", weight=text)}, ["ann", "eve"])
    assert weights.users == {"ann": 1.0, "eve": 1.0}
    assert groups == {"ann": "", "eve": ""}


def test_groups_share_one_weight():
    names = {"ann": namespace("ann", group="lab", group_weight="3"), "bob": namespace("bob", group="lab")}
    weights, groups = weights_of(names, ["ann", "bob", "eve"])
    assert weights.effective(groups) == {"ann": 1.5, "bob": 1.5, "eve": 1.0}


def test_what_was_used_is_kept_and_restored():
    server = Server()
    sharing, snapshot, clock = make(server)
    snapshot.claims["ann/c"] = claim("ann", count=2)
    sharing.tick()
    clock.pass_time(hours=1)
    sharing.tick()
    asyncio.run(sharing._save())
    assert server.data == {"2026-03-01": '{"ann": 7200.0}'}
    later, _, _ = make(server)
    asyncio.run(later.restore())
    assert later.ratio(pod("ann")) == pytest.approx(7200, rel=0.01)


def test_without_permission_it_goes_on_in_memory():
    server = Server(error=error_from(403, b"{}"))
    sharing, snapshot, clock = make(server)
    asyncio.run(sharing.restore())
    snapshot.claims["ann/c"] = claim("ann")
    sharing.tick()
    clock.pass_time(hours=1)
    sharing.tick()
    asyncio.run(sharing._save())
    assert server.data is None
    assert sharing.ratio(pod("ann")) > 0


def test_days_that_cannot_be_read_are_left_out():
    data = {"2026-03-01": '{"ann": 1}', "someday": "{}", "2026-03-02": "no json", "2026-03-03": "[]",
            "2026-03-04": '{"bob": "x"}', "2026-03-05": '{"bob": -1, "eve": 2}'}  # fmt: skip
    assert parse_days(data) == {"2026-03-01": {"ann": 1.0}, "2026-03-05": {"eve": 2.0}}


def test_what_is_kept_is_bounded():
    days = {f"2026-03-{day:02}": {f"user-{n}": 1.0 for n in range(10_000)} for day in range(1, 31)}
    kept = format_days(days)
    assert 0 < sum(map(len, kept.values())) < 1_000_000
    assert "2026-03-30" in kept
