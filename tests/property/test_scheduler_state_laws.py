"""The kept answers of the cluster state equal those computed from scratch, whatever happens."""

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_builders import container, node, pod

from dray.scheduler import ClusterState, InterPodAffinity, shape_of
from dray.scheduler.state import static_refusal

NODES = [f"n{index}" for index in range(4)]
PODS = [
    pod("small", containers=[container(cpu="1")]),
    pod("large", containers=[container(cpu="3", memory="2Gi")]),
    pod("picky", containers=[container(cpu="1")], node_selector={"disk": "ssd"}),
    pod("port", containers=[container(ports=[{"containerPort": 1, "hostPort": 80}])]),
    pod("tolerant", tolerations=[{"operator": "Exists"}]),
]

_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("node"),
            st.sampled_from(NODES),
            st.fixed_dictionaries(
                {
                    "cpu": st.sampled_from(["2", "4"]),
                    "pods": st.sampled_from(["1", "3"]),
                    "disk": st.sampled_from(["ssd", "hdd"]),
                    "tainted": st.booleans(),
                }
            ),
        ),
        st.tuples(st.just("gone"), st.sampled_from(NODES), st.none()),
        st.tuples(st.just("assume"), st.sampled_from(NODES), st.integers(0, 9)),
        st.tuples(st.just("forget"), st.none(), st.integers(0, 9)),
    ),
    max_size=40,
)


def _apply(state, step):
    kind, name, detail = step
    if kind == "node":
        taints = [{"key": "k", "effect": "NoSchedule"}] if detail["tainted"] else []
        state.set_node(
            node(name, labels={"disk": detail["disk"]}, taints=taints, cpu=detail["cpu"], pods=detail["pods"])
        )
    elif kind == "gone":
        state.delete_node(name)
    elif kind == "assume":
        wanted = PODS[detail % len(PODS)]
        state.assume(pod(f"{wanted.metadata.name}-{detail}", containers=_containers(wanted)), name)
    else:
        wanted = PODS[detail % len(PODS)]
        state.forget(f"uid-{wanted.metadata.name}-{detail}")


def _containers(wanted):
    ports = [{"containerPort": 1, "hostPort": 80}] if wanted.metadata.name == "port" else []
    requests = wanted.spec.containers[0].resources.requests or {}
    return [container(cpu=requests.get("cpu"), memory=requests.get("memory"), ports=ports)]


def _answers(state):
    found = {}
    for each in PODS:
        shape = shape_of(each)
        found[each.metadata.name] = (
            sorted(n.name for n in state.in_set(state.passing_static(each, shape.static_key))),
            sorted(n.name for n in state.in_set(state.with_free_resources(shape.requests))),
            sorted(n.name for n in state.in_set(state.with_free_ports(shape.ports))),
        )
    return found


def _from_scratch(state):
    found = {}
    for each in PODS:
        shape = shape_of(each)
        found[each.metadata.name] = (
            sorted(n.name for n in state.nodes.values() if static_refusal(each, n) is None),
            sorted(
                n.name
                for n in state.nodes.values()
                if len(n.pods) < n.max_pods
                and all(
                    amount
                    <= n.allocatable.get(name, 0)
                    - sum(dict(use.shape.requests).get(name, 0) for use in n.pods.values())
                    for name, amount in shape.requests
                )
            ),
            sorted(
                n.name
                for n in state.nodes.values()
                if not shape.ports or not any(use.shape.ports for use in n.pods.values())
            ),
        )
    return found


@settings(max_examples=60)
@given(_steps)
def test_kept_answers_equal_fresh_ones(steps):
    state = ClusterState()
    InterPodAffinity(state)
    for step in steps:
        _apply(state, step)
        assert _answers(state) == _from_scratch(state)


@settings(max_examples=40)
@given(_steps, st.sampled_from(NODES), st.integers(0, 4))
def test_forgetting_undoes_assuming(steps, name, number):
    state = ClusterState()
    for step in steps:
        _apply(state, step)
    before = _answers(state), {each.name: dict(each.used) for each in state.nodes.values()}
    wanted = pod("visitor", containers=_containers(PODS[number]))
    state.assume(wanted, name)
    state.forget(wanted.metadata.uid)
    used = {
        each.name: {k: v for k, v in each.used.items() if v or k in before[1][each.name]}
        for each in state.nodes.values()
    }
    assert (_answers(state), used) == before
