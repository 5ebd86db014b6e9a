"""Scheduler, quota admission and quota controller agree on what a pod requests and is charged."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dray.api.core import Pod
from dray.control.resource_quotas import charges_of_pod
from dray.scheduler.amounts import amount_of, pod_requests
from dray.server.admission.pod_amounts import pod_amounts
from dray.server.admission.quota_usage import usage_of

NAMES = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu")
# Whole numbers: the scheduler rounds each container up, quotas count exactly.
amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9).map(str), max_size=3)


@st.composite
def resources(draw: st.DrawFn) -> dict[str, Any]:
    # A request for every limit, as the API's defaults make it: the scheduler relies on that.
    limits = draw(amounts)
    return {"requests": {**limits, **draw(amounts)}, "limits": limits}


containers = st.fixed_dictionaries({"name": st.just("c"), "resources": resources()})
init_containers = st.fixed_dictionaries(
    {"name": st.just("i"), "resources": resources()},
    optional={"restartPolicy": st.sampled_from(["Always", "Never"])},
)
specs = st.fixed_dictionaries(
    {"containers": st.lists(containers, min_size=1, max_size=3)},
    optional={
        "initContainers": st.lists(init_containers, max_size=4),
        "resources": resources(),
        "overhead": amounts,
    },
)


@given(specs, st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed"]))
def test_admission_charges_a_pod_as_the_recount_does(spec: dict[str, Any], phase: str) -> None:
    body = {"spec": spec, "status": {"phase": phase}}
    typed = msgspec.convert(body, Pod)
    assert usage_of("", "pods", body, None) == charges_of_pod(typed)  # type: ignore[arg-type]


@given(specs)
def test_the_scheduler_counts_what_the_quota_does(spec: dict[str, Any]) -> None:
    exact = pod_amounts(spec, "requests")
    expected = {name: amount_of(name, str(amount)) for name, amount in exact.items() if amount}
    assert dict(pod_requests(msgspec.convert({"spec": spec}, Pod))) == expected
