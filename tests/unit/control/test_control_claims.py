"""Which claims are made for a pod, and what their names and owners are."""

import msgspec
import pytest

from dray.api.core import Pod, PodResourceClaim
from dray.api.meta import ObjectMeta, OwnerReference
from dray.api.resource import ResourceClaim, ResourceClaimTemplate
from dray.api.well_known import POD_CLAIM_ANNOTATION
from dray.control.resource_claims import (
    claim_base_name,
    claim_from_template,
    claims_to_make,
    has_given_up,
    is_done,
)

ENTRY = PodResourceClaim(name="gpu", resource_claim_template_name="one-gpu")


def owned(name, entry="gpu", deleting=False):
    return ResourceClaim(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            annotations={POD_CLAIM_ANNOTATION: entry},
            owner_references=[OwnerReference(uid="pod-uid", controller=True)],
            deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None,
        )
    )


def test_an_entry_without_a_claim_needs_one():
    assert claims_to_make([ENTRY], {}, []) == ([ENTRY], {})


def test_a_recorded_and_living_claim_is_left_alone():
    assert claims_to_make([ENTRY], {"gpu": "made"}, [owned("made")]) == ([], {})


def test_a_claim_whose_name_was_never_recorded_is_found_by_its_annotation():
    assert claims_to_make([ENTRY], {}, [owned("made")]) == ([], {"gpu": "made"})


def test_a_recorded_claim_that_is_gone_is_made_anew():
    assert claims_to_make([ENTRY], {"gpu": "gone"}, []) == ([ENTRY], {})


def test_a_recorded_claim_that_is_only_being_deleted_is_still_the_pods():
    assert claims_to_make([ENTRY], {"gpu": "made"}, [owned("made", deleting=True)]) == ([], {})


def test_a_claim_that_is_being_deleted_is_not_taken_up():
    assert claims_to_make([ENTRY], {}, [owned("made", deleting=True)]) == ([ENTRY], {})


def test_an_entry_recorded_without_a_name_needs_no_claim():
    assert claims_to_make([ENTRY], {"gpu": None}, []) == ([], {})


def test_an_entry_that_names_a_claim_is_not_made():
    assert claims_to_make([PodResourceClaim(name="gpu", resource_claim_name="mine")], {}, []) == ([], {})


@pytest.mark.parametrize(
    ("pod", "entry"), [("p", "c"), ("p" * 200, "gpu"), ("p" * 60, "c" * 60), ("p", "c" * 63)]
)
def test_a_generated_name_leaves_room_for_the_random_part(pod, entry):
    base = claim_base_name(pod, entry)
    assert len(base) <= 57
    assert base.endswith("-")
    assert base[0] == "p"
    assert "c" in base or "gpu"[:1] in base


def test_a_claim_carries_the_templates_labels_and_the_pod_as_owner():
    template = msgspec.convert(
        {
            "metadata": {"name": "one-gpu", "namespace": "ns"},
            "spec": {
                "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
            },
        },
        ResourceClaimTemplate,
    )
    made = claim_from_template(template, "gpu", ObjectMeta(name="pod", namespace="ns", uid="u"), "Pod", "v1")
    assert made["metadata"]["labels"] == {"team": "a"}
    assert made["metadata"]["annotations"] == {"note": "x", POD_CLAIM_ANNOTATION: "gpu"}
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "u", "controller": True}
    ]
    assert made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "c"


@pytest.mark.parametrize(
    ("pod", "done"),
    [
        ({"status": {"phase": "Succeeded"}}, True),
        ({"status": {"phase": "Failed"}}, True),
        ({"status": {"phase": "Running"}}, False),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "n"}}, False),
    ],
)
def test_a_pod_is_done_when_it_will_never_use_its_devices_again(pod, done):
    assert is_done(msgspec.convert(pod, Pod)) is done


@pytest.mark.parametrize(
    ("changes", "given_up"),
    [
        ({}, True),
        ({"metadata": {"generation": 1}}, False),  # as it was made
        ({"metadata": {"generation": 4}}, False),  # its node has not seen the last change yet
        ({"spec": {}}, False),  # it has no node
        ({"spec": {"nodeName": "n", "resourceClaims": [{"name": "e", "resourceClaimName": "a"}]}}, False),
        ({"status": {"observedGeneration": 3, "resourceClaimStatuses": [{"name": "e", "resourceClaimName": "a"}]}}, False),
        ({"status": {"observedGeneration": 3, "extendedResourceClaimStatus": {"resourceClaimName": "a"}}}, False),
    ],
)  # fmt: skip
def test_a_claim_is_given_up_when_the_pods_node_has_seen_that_it_is_not_listed(changes, given_up):
    body = {
        "metadata": {"generation": 3},
        "spec": {"nodeName": "n", "resourceClaims": [{"name": "e", "resourceClaimName": "b"}]},
        "status": {"phase": "Running", "observedGeneration": 3},
        **changes,
    }
    assert has_given_up(msgspec.convert(body, Pod), "a") is given_up
