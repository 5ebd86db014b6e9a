"""Remembered refusals never hide a node that would fit, whatever was taken, freed or published between."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_builders import DRIVER, SmallCluster, claim, device_class, node, pod, resource_slice

from dray.api.resource import DeviceTaintRule
from dray.scheduler import Placement

NODES = ["n0", "n1", "n2"]
WISHES = [
    lambda name: claim(name),
    lambda name: claim(name, 2),
    lambda name: claim(name, selector=f"device.attributes['{DRIVER}'].kind == 'big'"),
]


def _devices(kinds):
    return [
        {"name": f"g{index}", "attributes": {"kind": {"string": kind}}} for index, kind in enumerate(kinds)
    ]


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(0, 5), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 5), st.none()),
        st.tuples(
            st.just("publish"),
            st.sampled_from(NODES),
            st.lists(st.sampled_from(["big", "small"]), max_size=3),
        ),
        st.tuples(st.just("withdraw"), st.sampled_from(NODES), st.none()),
        st.tuples(st.just("fabric"), st.lists(st.sampled_from(["big", "small"]), max_size=2), st.none()),
        st.tuples(st.just("taint"), st.sampled_from([*NODES, "fabric"]), st.booleans()),
        st.tuples(st.just("node"), st.sampled_from(NODES), st.booleans()),
        st.tuples(st.just("ask"), st.integers(0, 2), st.none()),
    ),
    max_size=30,
)


class Model:
    """Applies steps; asks both the placer and, for every node afresh, the allocator."""

    def __init__(self):
        self.small = SmallCluster(*(node(name) for name in NODES))
        self.small.add(device_class())
        self.running = {}
        self.number = 0

    def ask(self, hint):
        self.number += 1
        wanted = WISHES[hint](f"c{self.number}")
        answer = self.small.place(pod("asker"), wanted)
        fits = {name for name in self.small.state.nodes if self.small.devices.allocator.plan(name, [wanted])}
        assert isinstance(answer, Placement) == bool(fits)
        if isinstance(answer, Placement):
            assert answer.node in fits
        return answer, wanted

    def step(self, kind, a, b):
        small = self.small
        match kind:
            case "run" if a not in self.running:
                answer, wanted = self.ask(b)
                if isinstance(answer, Placement):
                    self.running[a] = pod(f"p{a}")
                    small.run(self.running[a], wanted)
            case "end" if a in self.running:
                small.end(self.running.pop(a))
            case "publish":
                small.add(resource_slice(a, *_devices(b)))
            case "withdraw":
                small.devices.delete_slice(f"slice-{a}")
            case "fabric":
                small.add(resource_slice(None, *_devices(a), pool="fabric", allNodes=True))
            case "taint":
                rule = {
                    "metadata": {"name": a},
                    "spec": {
                        "deviceSelector": {"pool": a},
                        "taint": {"key": "k", "effect": "NoSchedule" if b else "None"},
                    },
                }
                small.devices.set_taint_rule(msgspec.convert(rule, DeviceTaintRule))
            case "node":
                if b:
                    small.add(node(a))
                else:
                    small.devices.delete_node(a)
                    small.state.delete_node(a)
            case "ask":
                self.ask(a)


@settings(max_examples=80, deadline=None)
@given(_steps)
def test_the_placer_finds_a_node_exactly_when_there_is_one(steps):
    model = Model()
    for step in steps:
        model.step(*step)
    for hint in range(len(WISHES)):
        model.ask(hint)
