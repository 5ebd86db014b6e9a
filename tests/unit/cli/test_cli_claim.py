"""`dray claim`: how the list of claims changes, and when it is done."""

import pytest

from dray.cli.claim import changed_entries, is_done
from dray.cli.output import CommandError

NET = {"name": "net", "resourceClaimName": "net"}


def pod(*entries, generation=2, observed=2, condition=None, made=()):
    status = {"observedGeneration": observed, "resourceClaimStatuses": list(made)}
    if condition is not None:
        value, message = condition
        status["conditions"] = [{"type": "dray.dev/ClaimsPrepared", "status": value, "message": message}]
    meta = {"name": "p", "namespace": "ns", "uid": "u", "generation": generation}
    return {"metadata": meta, "spec": {"resourceClaims": list(entries)}, "status": status}


def claim(*users):
    return {"metadata": {"name": "net"}, "status": {"reservedFor": [{"uid": each} for each in users]}}


def test_a_claim_is_added_behind_the_others_under_a_name_that_an_entry_may_have():
    assert changed_entries(pod(), "attach", "net", None) == [NET]
    (_, added) = changed_entries(pod(NET), "attach", "a.b." + "x" * 80, None)
    assert added["name"] == "a-b-" + "x" * 59
    (_, added) = changed_entries(pod(NET), "attach", "other", "second")
    assert added == {"name": "second", "resourceClaimName": "other"}


def test_what_is_so_already_changes_nothing():
    assert changed_entries(pod(NET), "attach", "net", None) is None
    assert changed_entries(pod(), "detach", "net", None) is None


def test_a_claim_is_removed_by_its_name_whatever_the_entry_is_called():
    other = {"name": "net", "resourceClaimName": "other"}
    assert changed_entries(pod(other, {"name": "x", "resourceClaimName": "net"}), "detach", "net", None) == [
        other
    ]


def test_a_claim_from_a_template_cannot_be_detached():
    made = [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]
    with pytest.raises(CommandError, match="was made from a template of the pod and ends with it"):
        changed_entries(pod(made=made), "detach", "p-gpu-x", None)


@pytest.mark.parametrize(
    ("now", "users", "done"),
    [
        (pod(condition=("True", "")), ["u"], True),
        (pod(condition=("True", "")), [], False),
        (pod(condition=("True", ""), observed=1), ["u"], False),  # the condition is of an earlier change
        (pod(condition=("False", "claim ns/net: driver d: no")), ["u"], False),
        (pod(condition=("False", "claim ns/other is not allocated")), ["u"], True),
    ],
)
def test_attached_is_what_the_node_has_prepared(now, users, done):
    assert is_done(now, claim(*users), "attach", 2) is done


def test_a_claim_that_the_pod_started_with_is_attached():
    assert is_done(pod(generation=1, observed=0), claim("u"), "attach", 1)


@pytest.mark.parametrize(
    ("observed", "users", "done"), [(2, [], True), (2, ["other"], True), (2, ["u"], False), (1, [], False)]
)
def test_detached_is_what_the_node_and_the_controller_have_released(observed, users, done):
    assert is_done(pod(observed=observed), claim(*users), "detach", 2) is done
