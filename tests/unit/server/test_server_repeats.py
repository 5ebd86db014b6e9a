"""Equal specs are judged and compared once; nothing else may be taken for equal."""

import uuid
from typing import Any

from dray.api.features import Features
from dray.api.schema import schema_of
from dray.api.validation import Accepted, CelVerdict, ValidationContext, validate_create
from dray.server.patch.typed_merge import compare
from dray.server.requests.calls import Environment

KIND = "ResourceClaim.resource.k8s.io"
SCHEMA = schema_of("resource.k8s.io", "v1", "ResourceClaim")


class CountingCel:
    """Accepts every expression but "wrong", and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def check(self, expression: str, *, stored: bool, derived: bool) -> CelVerdict:
        self.asked.append(expression)
        return CelVerdict(error="no" if expression == "wrong" else None)


def claim(name: str, expression: str, count: int = 1) -> dict[str, Any]:
    wanted = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": expression}}],
    }
    metadata = {"name": name, "namespace": "default"}
    return {"metadata": metadata, "spec": {"devices": {"requests": [{"name": "r", "exactly": wanted}]}}}


def test_an_equal_spec_is_judged_once() -> None:
    cel = CountingCel()
    context = ValidationContext(Features.default(), cel, "v1", Accepted())
    for name in ("a", "b", "c"):
        assert validate_create(KIND, claim(name, "true"), context) == []
    assert cel.asked == ["true"]
    assert validate_create(KIND, claim("d", "true", count=2), context) == []
    assert cel.asked == ["true", "true"]


def test_metadata_is_judged_every_time() -> None:
    context = ValidationContext(Features.default(), CountingCel(), "v1", Accepted())
    assert validate_create(KIND, claim("a", "true"), context) == []
    assert [error.field for error in validate_create(KIND, claim("A_", "true"), context)] == ["metadata.name"]


def test_a_wrong_spec_stays_wrong() -> None:
    context = ValidationContext(Features.default(), CountingCel(), "v1", Accepted())
    first, second = (validate_create(KIND, claim("a", "wrong"), context) for _ in range(2))
    assert first and [str(each) for each in first] == [str(each) for each in second]


def test_the_oldest_makes_room() -> None:
    accepted = Accepted(limit=4)
    seals = [accepted.seal("rule", "v1", number) for number in range(5)]
    for seal in seals:
        accepted.add(seal)
    assert [seal in accepted for seal in seals] == [False, False, True, True, True]
    assert accepted.seal("rule", "v1beta1", 2) not in accepted


def test_differences_of_equal_specs_are_those_of_the_first() -> None:
    empty: dict[str, Any] = {"metadata": {}, "spec": {"devices": {}}}
    first = compare(empty, claim("a", "true"), SCHEMA)
    again = compare(empty, claim("b", "true"), SCHEMA)
    assert (first.added, first.modified, first.removed) == (again.added, again.modified, again.removed)
    other = compare(claim("a", "true"), claim("a", "true", count=2), SCHEMA)
    back = compare(claim("a", "true", count=2), claim("a", "true"), SCHEMA)
    assert other.modified and other.modified == back.modified
    assert compare(claim("a", "true"), claim("a", "true"), SCHEMA).modified == {}


def pod(name: str, *, annotations: dict[str, str] | None = None, image: str = "i") -> dict[str, Any]:
    uses = {"claims": [{"name": "gpu"}]}
    spec = {
        "containers": [{"name": "c", "image": image, "imagePullPolicy": "Always", "resources": uses}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
    }
    metadata = {"name": name, "namespace": "default", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": spec}


def test_pods_with_an_accepted_spec_are_still_judged_by_their_metadata() -> None:
    context = ValidationContext(accepted=Accepted())
    assert validate_create("Pod", pod("a"), context) == []
    assert validate_create("Pod", pod("b"), context) == []
    assert [error.field for error in validate_create("Pod", pod("A_"), context)] == ["metadata.name"]
    static = pod("c", annotations={"kubernetes.io/config.mirror": "x"})
    assert [error.detail for error in validate_create("Pod", static, context)] == [
        "static pods do not support resource claims"
    ]
    assert [error.field for error in validate_create("Pod", pod("d", image=" i"), context)] == [
        "spec.containers[0].image"
    ]


def test_long_specs_are_not_kept() -> None:
    accepted = Accepted()
    short, long = (accepted.seal("Pod", "v1", {"a": "x" * size}) for size in (10, 100_000))
    accepted.add(short)
    accepted.add(long)
    assert (short in accepted, long in accepted) == (True, False)


def test_uids_are_random_and_say_so():
    uids = [Environment().new_uid() for _ in range(300)]
    parsed = [uuid.UUID(uid) for uid in uids]
    assert len(set(uids)) == len(uids)
    assert [str(one) for one in parsed] == uids
    assert {(one.version, one.variant) for one in parsed} == {(4, uuid.RFC_4122)}
    assert {uid[19] for uid in uids} == set("89ab")
