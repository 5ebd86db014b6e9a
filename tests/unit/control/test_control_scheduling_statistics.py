"""What the scheduler counts: reasons, times, and nothing that grows without bound."""

import asyncio
from urllib.request import urlopen

import pytest
from conditions import until
from small_api import SmallApi

from dray.control.scheduling.loop import SchedulingLoop
from dray.control.scheduling.probes import metrics_text, serve_probes
from dray.control.scheduling.statistics import REASONS, Statistics, reason_of
from dray.scheduler import NotReady, QueueingHint, Unplaceable
from dray.workbench.scheduler_metrics import scheduler_device_metrics

DRIVER = "gpu.example.com"


def refusal(*stages, hints=(), **options):
    return Unplaceable(frozenset(hints), str, stages=stages, **options)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (refusal(("static", 3), ("resources", 0)), "node_resources"),
        (refusal(("static", 0)), "node_rules"),
        (refusal(("static", 3), ("resources", 3), ("devices", 0)), "devices"),
        (refusal(("static", 3), ("devices", 0), gave_up=True), "search_limit"),
        (refusal(is_fatal=True), "invalid_claim"),
        (refusal(hints=(QueueingHint.GROUP, "group:a/b")), "gang"),
        (refusal(), "other"),
        (refusal(("a stage of the future", 0)), "other"),
    ],
)
def test_a_refusal_has_one_of_few_reasons(found, reason):
    assert reason_of(found) == reason
    assert reason in REASONS


def test_the_wait_of_a_pod_is_counted_once_and_forgotten():
    numbers = Statistics()
    numbers.queued("a", 10.0)
    numbers.queued("a", 20.0)  # tried again
    numbers.queued("b", 10.0)
    numbers.was_bound("a", 22.5, has_claims=True)
    numbers.was_bound("b", 99.0, has_claims=False)  # no allocation
    assert (numbers.bound, numbers.allocations.count, numbers.allocations.total) == (2, 1, 12.5)
    numbers.queued("c", 1.0)
    numbers.left("c")
    assert numbers._queued_at == {}


def test_decisions_are_timed_by_result():
    numbers = Statistics()
    numbers.decided([], 0.1)
    numbers.decided(NotReady("x", frozenset()), 0.2)
    assert [numbers.attempts[name].count for name in ("scheduled", "not_ready", "unschedulable")] == [1, 1, 0]


def pod(name, claim=None):
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]} if claim else {}
    return {
        "metadata": {"name": name, "namespace": "n"},
        "spec": {"schedulerName": "dray", "containers": [{"name": "c", "image": "x"}], **claims},
        "status": {"phase": "Pending"},
    }


async def test_metrics_of_a_scheduler_tell_reasons_latency_and_who_holds_what():
    client = SmallApi().client()
    resource = "/apis/resource.k8s.io/v1"
    ready = [{"type": "Ready", "status": "True"}]
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "20"}
    await client.call(
        "POST",
        "/api/v1/nodes",
        {"metadata": {"name": "one"}, "status": {"allocatable": allocatable, "conditions": ready}},
    )
    await client.call("POST", f"{resource}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {}})
    pool = {"name": "one", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "one", "pool": pool, "devices": [{"name": "gpu-0"}]}
    await client.call("POST", f"{resource}/resourceslices", {"metadata": {"name": "s"}, "spec": spec})
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    for name in ("a", "b"):
        claim = {
            "metadata": {"name": name, "namespace": "n"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        }
        await client.call("POST", f"{resource}/namespaces/n/resourceclaims", claim)
    loop = SchedulingLoop(client)
    series = scheduler_device_metrics(loop, 100)
    series.refresh = 0.0
    probes = await serve_probes(loop, "127.0.0.1", 0, series.text)
    address = f"http://127.0.0.1:{probes.sockets[0].getsockname()[1]}"

    def scrape():
        with urlopen(f"{address}/metrics") as answer:
            return answer.read().decode()

    before = await asyncio.to_thread(scrape)
    assert "dray_scheduler_leading 0\n" in before
    assert "kube_resource" not in before  # a process that stands by tells nothing of devices
    running = asyncio.create_task(loop.run())
    try:
        await loop.is_ready.wait()
        await client.call("POST", "/api/v1/namespaces/n/pods", pod("a", "a"))
        await until(lambda: loop.statistics.bound, 20)
        await client.call("POST", "/api/v1/namespaces/n/pods", pod("b", "b"))
        await until(lambda: loop.statistics.refused, 20)
        text = await asyncio.to_thread(scrape)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        probes.close()
    assert 'dray_scheduler_refused_total{reason="devices"} 1\n' in text
    assert 'dray_scheduler_refused_total{reason="affinity"} 0\n' in text
    assert "dray_scheduler_allocation_duration_seconds_count 1\n" in text
    assert 'dray_scheduler_attempt_duration_seconds_count{result="scheduled"} 1\n' in text
    assert f'dray_devices{{driver="{DRIVER}",node="one",state="used"}} 1\n' in text
    assert 'resourceclaim="a",request="r",device_class="gpu"' in text
    assert loop.statistics._queued_at.keys() != set()  # the refused pod waits
    assert set(metrics_text(loop).split()) >= {"dray_scheduler_bound_total", "1"}
