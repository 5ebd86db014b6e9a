"""What pods need of nodes: init containers, sidecars, overhead, pod-level requests."""

from scheduler_builders import container, pod

from dray.scheduler.amounts import amounts_of, pod_requests


def requests(*containers, init=(), **spec):
    return dict(pod_requests(pod("p", containers=list(containers), init_containers=list(init), **spec)))


def test_containers_add_up():
    assert requests(container(cpu="500m", memory="1Gi"), container(cpu="1")) == {
        "cpu": 1500,
        "memory": 1 << 30,
    }


def test_a_pod_needs_the_hungriest_init_container_if_that_is_more():
    assert requests(container(cpu="1"), init=[container(cpu="3"), container(cpu="2")]) == {"cpu": 3000}
    assert requests(container(cpu="4"), init=[container(cpu="3")]) == {"cpu": 4000}


def test_sidecars_stay_and_burden_every_later_init_container():
    sidecar = container(cpu="1", restart_policy="Always")
    assert requests(container(cpu="2"), init=[sidecar]) == {"cpu": 3000}
    assert requests(container(cpu="1"), init=[sidecar, container(cpu="4")]) == {"cpu": 5000}
    assert requests(container(cpu="1"), init=[container(cpu="4"), sidecar]) == {"cpu": 4000}


def test_overhead_is_added_at_the_end():
    assert requests(container(cpu="1"), init=[container(cpu="3")], overhead={"cpu": "250m"}) == {"cpu": 3250}


def test_pod_level_requests_replace_the_sum_of_what_they_name():
    found = requests(
        container(cpu="3", memory="1Gi"), resources={"requests": {"cpu": "2", "example.com/x": "5"}}
    )
    assert found == {"cpu": 2000, "memory": 1 << 30}


def test_a_limit_without_a_request_counts_as_a_request():
    assert requests(container(limits={"example.com/gpu": "2"})) == {"example.com/gpu": 2}
    assert requests(container(cpu="1", limits={"cpu": "4"})) == {"cpu": 1000}


def test_resources_that_devices_provide_can_be_left_out():
    wanted = pod("p", containers=[container(cpu="1", limits={"example.com/gpu": "2"})])
    assert dict(pod_requests(wanted, without=frozenset({"example.com/gpu"}))) == {"cpu": 1000}


def test_amounts_are_whole_and_rounded_up():
    assert amounts_of({"cpu": "0.1001", "memory": "1.5", "pods": 110}) == {
        "cpu": 101,
        "memory": 2,
        "pods": 110,
    }
