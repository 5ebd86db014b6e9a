"""What claims and pods are charged under a quota."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.meta import ObjectMeta
from dray.api.quantity import Quantity, parse_quantity
from dray.api.quota_charges import claim_charges, owner_charged_first, pod_charges
from dray.api.resource import DeviceRequest

EXTENDED_NAMES = {"gpu": "nvidia.com/gpu", "small-gpu": "nvidia.com/gpu"}


def exactly(class_name: str, **more: Any) -> dict[str, Any]:
    return {"name": "r", "exactly": {"deviceClassName": class_name, **more}}


def charges(requests: list[dict[str, Any]], pod: dict[str, str] | None = None) -> dict[str, str]:
    found = claim_charges(
        msgspec.convert(requests, list[DeviceRequest]),
        lambda class_name: EXTENDED_NAMES.get(class_name, ""),
        quantities(pod or {}),
    )
    return {name: str(amount) for name, amount in found.items()}


def quantities(amounts: dict[str, str]) -> dict[str, Quantity]:
    return {name: parse_quantity(value) for name, value in amounts.items()}


def test_a_claim_is_charged_for_the_most_it_may_get() -> None:
    alternatives = {
        "name": "c",
        "firstAvailable": [
            {"name": "x", "deviceClassName": "gpu", "count": 1},
            {"name": "y", "deviceClassName": "gpu", "count": 4},
            {"name": "z", "deviceClassName": "nic", "count": 1},
        ],
    }
    requests = [exactly("gpu", allocationMode="ExactCount", count=2), exactly("nic", allocationMode="All")]
    assert charges([*requests, alternatives]) == {
        "gpu.deviceclass.resource.k8s.io/devices": "6",
        "nic.deviceclass.resource.k8s.io/devices": "33",
        "requests.deviceclass.resource.kubernetes.io/gpu": "6",
        "requests.deviceclass.resource.kubernetes.io/nic": "33",
        "requests.nvidia.com/gpu": "6",
    }


def test_a_request_without_a_count_is_charged_for_one_device() -> None:
    assert charges([exactly("nic")])["nic.deviceclass.resource.k8s.io/devices"] == "1"


def test_an_unknown_allocation_mode_is_not_charged() -> None:
    assert charges([exactly("nic", allocationMode="Half", count=7)]) == {
        "nic.deviceclass.resource.k8s.io/devices": "0"
    }


def test_classes_that_provide_one_extended_resource_add_up() -> None:
    assert charges([exactly("gpu", count=2), exactly("small-gpu", count=3)])["requests.nvidia.com/gpu"] == "5"


@pytest.mark.parametrize(("charged", "rest"), [("1", "1"), ("2", None), ("3", None)])
def test_what_the_pod_is_charged_for_is_not_charged_again(charged: str, rest: str | None) -> None:
    found = charges([exactly("gpu", count=2)], pod={"requests.nvidia.com/gpu": charged})
    assert found.get("requests.nvidia.com/gpu") == rest
    assert found["gpu.deviceclass.resource.k8s.io/devices"] == "2"
    assert found["requests.deviceclass.resource.kubernetes.io/gpu"] == "2"


def metadata(*, annotation: str = "true", **owner: Any) -> ObjectMeta:
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True, **owner}
    annotations = {"resource.kubernetes.io/extended-resource-claim": annotation}
    return msgspec.convert({"annotations": annotations, "ownerReferences": [reference]}, ObjectMeta)


def test_the_pod_of_a_scheduler_made_claim_is_its_controller() -> None:
    owner = owner_charged_first(metadata())
    assert owner is not None
    assert owner.name == "p"


@pytest.mark.parametrize(
    "other",
    [
        {"annotation": "false"},
        {"kind": "Job"},
        {"apiVersion": "example.com/v1"},
        {"controller": False},
    ],
)
def test_other_claims_have_no_pod_that_is_charged_first(other: dict[str, Any]) -> None:
    assert owner_charged_first(metadata(**other)) is None
    assert owner_charged_first(ObjectMeta()) is None


def test_a_pod_is_charged_by_the_names_of_quotas() -> None:
    requests = {"cpu": "1", "hugepages-2Mi": "4Mi", "example.com/gpu": "2", "kubernetes.io/odd": "1"}
    limits = {"memory": "1Gi", "hugepages-2Mi": "4Mi", "example.com/gpu": "2"}
    found = pod_charges(quantities(requests), quantities(limits))
    assert {name: str(amount) for name, amount in found.items()} == {
        "cpu": "1",
        "requests.cpu": "1",
        "hugepages-2Mi": "4Mi",
        "requests.hugepages-2Mi": "4Mi",
        "requests.example.com/gpu": "2",
        "limits.memory": "1Gi",
    }
