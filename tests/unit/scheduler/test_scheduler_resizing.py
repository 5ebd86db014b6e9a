"""Pods that are resized in place, and pod-level resources: what counts on the node."""

import msgspec
from scheduler_builders import container, node, pod

from dray.api.core import Pod
from dray.scheduler import ClusterSnapshot, SchedulerProfile, Unplaceable, decide
from dray.scheduler.amounts import pod_requests


def with_status(wanted, **status):
    body = msgspec.to_builtins(wanted)
    body["status"] = status
    body["spec"]["nodeName"] = "n"
    return msgspec.convert(body, Pod)


def sized(cpu, *, allocated=None, actual=None, conditions=()):
    status = {"name": "c"}
    if allocated:
        status["allocatedResources"] = {"cpu": allocated}
    if actual:
        status["resources"] = {"requests": {"cpu": actual}}
    return with_status(
        pod("p", containers=[container(cpu=cpu)]), containerStatuses=[status], conditions=list(conditions)
    )


def test_the_most_of_spec_allocated_and_actual_counts():
    assert pod_requests(sized("1", allocated="2", actual="3")) == (("cpu", 3000),)
    assert pod_requests(sized("1", allocated="2")) == (("cpu", 2000),)
    assert pod_requests(sized("4", allocated="2", actual="2")) == (("cpu", 4000),)


def test_a_resize_that_is_infeasible_does_not_count():
    pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    deferred = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
    assert pod_requests(sized("64", allocated="2", actual="1", conditions=[pending])) == (("cpu", 2000),)
    assert pod_requests(sized("64", allocated="2", actual="1", conditions=[deferred])) == (("cpu", 64000),)


def test_resources_of_the_pod_replace_the_sum_of_its_containers():
    plain = pod(
        "p", containers=[container(cpu="1"), container(cpu="1")], resources={"requests": {"cpu": "5"}}
    )
    assert pod_requests(plain) == (("cpu", 5000),)
    more = with_status(plain, resources={"requests": {"cpu": "6"}}, allocatedResources={"cpu": "7"})
    assert pod_requests(more) == (("cpu", 7000),)


def test_init_containers_count_by_what_they_were_given():
    wanted = pod(
        "p",
        containers=[container(cpu="1")],
        init_containers=[container(cpu="1", restart_policy="Always", name="side")],
    )
    given = with_status(wanted, initContainerStatuses=[{"name": "side", "allocatedResources": {"cpu": "3"}}])
    assert pod_requests(given) == (("cpu", 4000),)


def test_a_resized_pod_leaves_more_or_less_to_others():
    snapshot = ClusterSnapshot(SchedulerProfile(), new_share_id=lambda: "x")
    snapshot.set_node(node("n", cpu="4"))
    large = pod("large", containers=[container(cpu="3")])
    snapshot.set_bound_pod(sized("2", allocated="2", actual="2"))
    assert isinstance(decide(large, snapshot), Unplaceable)
    # The spec is smaller, but the container still runs with more.
    assert snapshot.set_bound_pod(sized("1", allocated="2", actual="2")) is False
    assert isinstance(decide(large, snapshot), Unplaceable)
    assert snapshot.set_bound_pod(sized("1", allocated="1", actual="1")) is True
    assert isinstance(decide(large, snapshot), list)
    assert snapshot.set_bound_pod(sized("2", allocated="1", actual="1")) is False
    assert isinstance(decide(large, snapshot), Unplaceable)
