"""People are told once when two schedulers allocate devices of one class without a guard."""

import logging

import pytest
from scheduler_builders import claim, device_class, pod

from dray.control.scheduling.other_schedulers import OtherSchedulers


class Recorded(list):
    def record(self, resource, meta, kind, reason, message):
        self.append((resource.kind, meta.name, kind, reason, message))


def watching(*claims, classes=("gpu",)):
    recorded = Recorded()
    known = {f"ns/{each.metadata.name}": each for each in claims}
    by_name = {name: device_class(name) for name in classes}
    return recorded, OtherSchedulers("dray", recorded, known.get, by_name.get)


def using(name, claim_name, scheduler="dray"):
    return pod(
        name,
        scheduler_name=scheduler,
        resource_claims=[{"name": "r", "resourceClaimName": claim_name}],
    )


@pytest.mark.parametrize("is_ours_first", [True, False])
def test_a_shared_class_is_told_once_in_the_log_and_on_the_class(caplog, is_ours_first):
    recorded, others = watching(claim("a"), claim("b"))
    ours, theirs = using("p", "a"), using("q", "b", "default-scheduler")
    with caplog.at_level(logging.WARNING):
        for each in [ours, theirs] if is_ours_first else [theirs, ours]:
            others.see(each)
            others.see(each)
    [(kind, name, level, reason, message)] = recorded
    assert (kind, name, level, reason) == ("DeviceClass", "gpu", "Warning", "SharedDeviceClass")
    assert message.startswith("schedulers dray and default-scheduler both allocate devices of class gpu")
    assert "dray guard" in message and "nodes of its own" in message
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_classes_of_ones_own_are_nothing_to_tell():
    recorded, others = watching(claim("a"), claim("b", device_class="nic"), classes=("gpu", "nic"))
    others.see(using("p", "a"))
    others.see(using("q", "b", "default-scheduler"))
    assert recorded == []


def test_pods_without_claims_and_claims_that_are_not_there_are_nothing_to_tell():
    recorded, others = watching(claim("a"))
    others.see(using("p", "a"))
    others.see(using("q", "missing", "default-scheduler"))
    others.see(pod("r", scheduler_name="default-scheduler"))
    waiting = pod("s", scheduler_name="x", resource_claims=[{"name": "r", "resourceClaimTemplateName": "t"}])
    others.see(waiting)
    assert recorded == []


def test_a_class_that_does_not_exist_is_told_when_it_does():
    recorded, others = watching(claim("a"), claim("b"), classes=())
    others.see(using("p", "a"))
    others.see(using("q", "b", "default-scheduler"))
    assert recorded == []
