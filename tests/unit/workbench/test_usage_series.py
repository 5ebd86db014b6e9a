"""Who holds what, as series: names, labels, sums and bounds."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest
from conditions import until

from dray.client import Client
from dray.control.scheduling.statistics import REASONS
from dray.sim.snapshot import Snapshot
from dray.workbench.exporter import Exporter
from dray.workbench.inventory import Inventory
from dray.workbench.usage_series import SERIES, usage_series

ROOT = Path(__file__).parents[3]
META = {"apiVersion": "resource.k8s.io/v1"}


def resource_slice(node="n1", n_devices=2, **device):
    devices = [
        {"name": f"gpu-{index}", "attributes": {"model": {"string": "H100"}}, **device}
        for index in range(n_devices)
    ]
    return {
        **META,
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{node}"},
        "spec": {
            "driver": "d.example.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def claim(name, device=None, pods=(), node="n1", **result):
    found = {
        **META,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
    }
    if device:
        results = [{"request": "r", "driver": "d.example.com", "pool": node, "device": device, **result}]
        users = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
        found["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    return found


def series(*objects, max_devices=100):
    snapshot = Snapshot()
    for obj in objects:
        snapshot.add(obj)
    return {
        family.name: [(dict(labels), value) for labels, value in family.samples]
        for family in usage_series(Inventory(snapshot), max_devices)
    }


def test_a_held_device_names_claim_pod_namespace_and_class():
    found = series(resource_slice(), claim("train", "gpu-0", ["train-0"]))
    assert found["kube_resourceclaim_status_allocated_device"] == [
        (
            {
                "namespace": "team",
                "resourceclaim": "train",
                "request": "r",
                "device_class": "gpu",
                "driver": "d.example.com",
                "pool": "n1",
                "device": "gpu-0",
                "node": "n1",
                "pod": "train-0",
                "admin_access": "false",
            },
            1,
        )
    ]


def test_states_phases_and_sums():
    found = series(resource_slice(), claim("a", "gpu-0", ["p"]), claim("b", "gpu-1"), claim("c"))
    phases = {
        labels["resourceclaim"]: labels["phase"] for labels, _ in found["kube_resourceclaim_status_phase"]
    }
    assert phases == {"a": "reserved", "b": "allocated", "c": "pending"}
    assert found["dray_devices"] == [({"driver": "d.example.com", "node": "n1", "state": "used"}, 2)]
    assert found["dray_namespace_devices"] == [
        ({"namespace": "team", "driver": "d.example.com", "device_class": "gpu"}, 2)
    ]


def test_fragmentation_is_the_share_of_free_devices_beside_used_ones():
    found = series(resource_slice("n1", 2), resource_slice("n2", 3), claim("a", "gpu-0", node="n1"))
    assert found["dray_fragmentation_ratio"] == [({"driver": "d.example.com"}, 0.25)]


def test_admin_access_does_not_count_as_use():
    found = series(resource_slice(n_devices=1), claim("a", "gpu-0", adminAccess=True))
    assert found["dray_namespace_devices"] == []
    assert found["kube_resourceclaim_status_allocated_device"][0][0]["admin_access"] == "true"


def test_two_shares_of_one_device_are_one_series():
    shared = resource_slice(n_devices=1, allowMultipleAllocations=True, capacity={"memory": {"value": "8Gi"}})
    holder = claim("a", "gpu-0", ["p"])
    first = holder["status"]["allocation"]["devices"]["results"][0]
    holder["status"]["allocation"]["devices"]["results"] = [
        {
            **first,
            "shareID": f"{index}" * 8 + "-0000-4000-8000-000000000000",
            "consumedCapacity": {"memory": "1Gi"},
        }
        for index in (1, 2)
    ]
    found = series(shared, holder)
    assert len(found["kube_resourceclaim_status_allocated_device"]) == 1
    assert [value for _, value in found["kube_resourceclaim_status_consumed_capacity"]] == [2 * 1024**3]
    assert [value for _, value in found["dray_device_utilization_ratio"]] == [0.25]


def test_the_number_of_series_is_bounded_and_what_is_left_out_is_counted():
    found = series(resource_slice(n_devices=10), *(claim(f"c{index}") for index in range(7)), max_devices=4)
    assert len(found["kube_resourceslice_device_info"]) == 4
    assert found["dray_exporter_omitted"] == [
        ({"resource": "devices"}, 6),
        ({"resource": "resourceclaims"}, 3),
    ]
    assert sum(value for _, value in found["dray_devices"]) == 10


def test_every_sample_has_the_labels_of_the_table():
    tainted = resource_slice("n2", 1, taints=[{"key": "x", "effect": "NoSchedule"}])
    found = series(resource_slice(), tainted, claim("a", "gpu-0", ["p"], consumedCapacity={"memory": "1"}))
    assert list(found) == list(SERIES)
    for name, samples in found.items():
        assert samples, name
        assert all(set(labels) == set(SERIES[name][1]) for labels, _ in samples), name


def test_the_documentation_lists_every_series_with_its_labels():
    text = (ROOT / "docs/observability.md").read_text()
    listed = {
        name: tuple(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE)
    }
    assert {name: labels for name, labels in listed.items() if name in SERIES} == {
        name: labels for name, (_, labels) in SERIES.items()
    }
    assert set(SERIES) <= set(listed)


def test_the_documentation_lists_the_reasons_of_refusals():
    text = (ROOT / "docs/observability.md").read_text()
    table = text.partition("| `reason` | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)) == REASONS


def test_dashboard_and_alerts_use_only_metrics_that_are_documented():
    documented = set(
        re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/observability.md").read_text(), re.MULTILINE)
    )
    for name in ("grafana-dashboard.json", "alerts.yaml"):
        used = set(
            re.findall(
                r"\b((?:kube_resource|dray_)\w+?)(?:_bucket|_sum|_count)?\b",
                (ROOT / "deploy/observability" / name).read_text(),
            )
        )
        assert used, name
        assert used - documented == set(), name


# --- the exporter -----------------------------------------------------------------


@pytest.fixture
def server():
    """An API server that lists, and whose watches stay open."""
    objects = {"resourceslices": [resource_slice()], "resourceclaims": [claim("a", "gpu-0", ["p"])]}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path, _, query = self.path.partition("?")
            if "watch=" in query:
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                ended.wait(20)
                self.close_connection = True
                return
            body = json.dumps(
                {"metadata": {"resourceVersion": "1"}, "items": objects.get(path.rpartition("/")[2], [])}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    ended = threading.Event()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield http.server_port
    ended.set()
    http.shutdown()
    http.server_close()


async def test_the_exporter_serves_what_the_cluster_has(server, tmp_path):
    from aiohttp import web

    config = {
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server}"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    async with Client.connect(str(tmp_path / "kubeconfig")) as client:
        exporter = Exporter(client)
        runner = web.AppRunner(exporter.application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        following = asyncio.create_task(exporter.run())
        await until(lambda: exporter.is_ready, 20)
        answer = await asyncio.to_thread(lambda: urlopen(f"{address}/metrics").read().decode())
        following.cancel()
        await runner.cleanup()
    assert (
        'kube_resourceclaim_status_phase{namespace="team",resourceclaim="a",phase="reserved"} 1\n' in answer
    )
    assert 'dray_devices{driver="d.example.com",node="n1",state="free"} 1\n' in answer
