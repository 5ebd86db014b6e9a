"""The upper bound of packing: patterns of shares on one GPU, and the programme where a solver is installed."""

from __future__ import annotations

import importlib.util
import random
from itertools import product

import pytest

from bench.packing.bound import best_pattern, upper_bound
from dray.sim.simulation import Settings, Simulation
from dray.sim.trace import Arrival, Trace
from dray.sim.trace_csv import Wanted, gpu_class, node_of, template_of

has_solver = pytest.mark.skipif(
    importlib.util.find_spec("highspy") is None, reason="highspy is not installed (pip install highspy numpy)"
)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_pattern_is_worth_what_the_best_of_all_patterns_is_worth(seed):
    chance = random.Random(seed)
    worth = {size: chance.random() for size in chance.sample(range(180, 1001, 20), 4)}
    pattern, value = best_pattern(worth)
    assert sum(size * count for size, count in pattern) <= 1000
    assert sum(worth[size] * count for size, count in pattern) == pytest.approx(value)
    every = product(*[range(1000 // size + 1) for size in worth])
    possible = [
        sum(count * price for count, price in zip(counts, worth.values(), strict=True))
        for counts in every
        if sum(count * size for count, size in zip(counts, worth, strict=True)) <= 1000
    ]
    assert value == pytest.approx(max(possible))


def bound(wanted, number, gpus=4, cpu=64_000):
    trace = Trace(classes=[gpu_class()])
    for name in ("a", "b"):
        node, gpus_of_node = node_of(name, cpu, 1024, gpus, "T4")
        trace.nodes.append(node)
        trace.slices.append(gpus_of_node)
    trace.templates.append(template_of(wanted))
    trace.arrivals = [Arrival(0.0, None, 0)] * number
    return upper_bound(Simulation(trace, Settings(arrivals="fill"), None, 1))


@has_solver
def test_shares_of_more_than_half_leave_the_rest_of_every_gpu():
    assert bound(Wanted(0, 0, 1, 600), 100) == pytest.approx(60)
    assert bound(Wanted(0, 0, 1, 300), 100) == pytest.approx(90)


@has_solver
def test_cpu_and_the_size_of_nodes_bound_what_can_be_allocated():
    assert bound(Wanted(32_000, 0, 1, 1000), 100) == pytest.approx(50)
    assert bound(Wanted(0, 0, 8, 1000), 100) == 0
