"""Requests and limits of whole pods: one set of rules, for integers and for quantities."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.pod_resources import total_limits, total_requests
from dray.api.quantity import parse_quantity

CASES: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("containers add up", {"containers": [{"cpu": 1}, {"cpu": 2, "memory": 5}]}, {"cpu": 3, "memory": 5}),
    ("the largest init container", {"containers": [{"cpu": 1}], "init": [(False, {"cpu": 3})]}, {"cpu": 3}),
    ("init containers follow each other", {"init": [(False, {"cpu": 3}), (False, {"cpu": 2})]}, {"cpu": 3}),
    ("a sidecar stays", {"containers": [{"cpu": 2}], "init": [(True, {"cpu": 1})]}, {"cpu": 3}),
    (
        "a sidecar runs beside later init containers",
        {"containers": [{"cpu": 1}], "init": [(True, {"cpu": 1}), (False, {"cpu": 4})]},
        {"cpu": 5},
    ),
    (
        "but not beside earlier ones",
        {"containers": [{"cpu": 1}], "init": [(False, {"cpu": 4}), (True, {"cpu": 1})]},
        {"cpu": 4},
    ),
    (
        "sidecars add up",
        {"init": [(True, {"cpu": 1}), (True, {"cpu": 2, "memory": 1}), (False, {"memory": 7})]},
        {"cpu": 3, "memory": 8},
    ),
    (
        "the pod level replaces what it names",
        {"containers": [{"cpu": 8, "memory": 8}], "pod_level": {"cpu": 2, "hugepages-2Mi": 4}},
        {"cpu": 2, "memory": 8, "hugepages-2Mi": 4},
    ),
    ("but only cpu, memory and hugepages", {"pod_level": {"example.com/gpu": 2}}, {}),
    ("nothing requested", {"containers": [{}], "init": [(True, {}), (False, {})]}, {}),
]


@pytest.mark.parametrize("total", [total_requests, total_limits])
@pytest.mark.parametrize(("parts", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_total_of_a_pod(total: Any, parts: dict[str, Any], expected: dict[str, int]) -> None:
    containers, init = parts.get("containers", []), parts.get("init", [])
    pod_level = parts.get("pod_level", {})
    assert total(containers, init, pod_level, {}) == expected
    quantities = total(
        [_quantities(each) for each in containers],
        [(stays, _quantities(each)) for stays, each in init],
        _quantities(pod_level),
        {},
    )
    assert quantities == _quantities(expected)


def test_overhead_is_added_to_requests_after_the_pod_level() -> None:
    found = total_requests([{"cpu": 1}], [(False, {"cpu": 9})], {"cpu": 5}, {"cpu": 2, "memory": 3})
    assert found == {"cpu": 7, "memory": 3}


def test_overhead_is_added_only_to_limits_that_are_set() -> None:
    assert total_limits([{"cpu": 1, "memory": 0}], [], {}, {"cpu": 2, "memory": 3, "example.com/x": 1}) == {
        "cpu": 3,
        "memory": 0,
    }


def test_the_amounts_of_containers_are_not_changed() -> None:
    container, sidecar = {"cpu": 1}, {"cpu": 2}
    total_requests([container], [(True, sidecar), (False, sidecar)], {}, {"cpu": 1})
    assert (container, sidecar) == ({"cpu": 1}, {"cpu": 2})


def _quantities(amounts: dict[str, int]) -> dict[str, Any]:
    return {name: parse_quantity(amount) for name, amount in amounts.items()}
