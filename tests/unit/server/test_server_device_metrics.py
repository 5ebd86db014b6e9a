"""Who holds what on /metrics of the server."""

from datetime import UTC, datetime, timedelta

from server_cluster import CLAIMS, MERGE, claim, running_cluster

from dray.server.requests.calls import Environment
from dray.workbench.server_metrics import server_device_metrics

DRIVER = "gpu.example.com"
SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": DRIVER,
        "nodeName": "one",
        "pool": {"name": "one", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}],
    },
}
ALLOCATION = {
    "devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "one", "device": "gpu-0"}]},
}


class Clock:
    def __init__(self):
        self.now = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)

    def __call__(self):
        return self.now


async def test_the_server_tells_who_holds_what_and_how_long_claims_waited():
    clock = Clock()
    async with running_cluster(environment=Environment(now=clock)) as client:
        metrics = server_device_metrics(client.cluster, 100)
        metrics.refresh, metrics.claim_waits.now = 0.0, clock
        client.cluster.metrics.more = metrics.text
        await client.call("POST", "/apis/resource.k8s.io/v1/resourceslices", SLICE)
        assert (await client.call("POST", CLAIMS, claim("a"))).code == 201
        clock.now += timedelta(seconds=8)
        before = (await client.call("GET", "/metrics")).body.decode()
        status = {"status": {"allocation": ALLOCATION}}
        assert (await client.call("PATCH", f"{CLAIMS}/a/status", status, content=MERGE)).code == 200
        # A change of an allocated claim is not another allocation.
        labels = {"metadata": {"labels": {"x": "y"}}}
        assert (await client.call("PATCH", f"{CLAIMS}/a", labels, content=MERGE)).code == 200
        after = (await client.call("GET", "/metrics")).body.decode()
    assert (
        'kube_resourceclaim_status_phase{namespace="default",resourceclaim="a",phase="pending"} 1\n' in before
    )
    assert "dray_claim_allocation_duration_seconds_count 0\n" in before
    assert f'dray_devices{{driver="{DRIVER}",node="one",state="used"}} 1\n' in after
    assert 'phase="allocated"} 1\n' in after
    assert 'dray_claim_allocation_duration_seconds_bucket{le="5.0"} 0\n' in after
    assert "dray_claim_allocation_duration_seconds_sum 8.0\n" in after
    assert "dray_claim_allocation_duration_seconds_count 1\n" in after
    assert "apiserver_request_total" in after


async def test_others_may_not_read_them():
    async with running_cluster() as client:
        client.cluster.metrics.more = server_device_metrics(client.cluster, 100).text
        assert (await client.call("GET", "/metrics", token="guest")).code == 403
        assert (await client.call("HEAD", "/metrics")).body == b""
