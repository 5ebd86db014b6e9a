"""Metrics, alerts and dashboard, judged by Prometheus' own promtool."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from charts import program
from server_process import serving

from dray.client import Client
from dray.client.transport import Request
from dray.control.guarding import Guard, GuardOptions
from dray.control.guarding.https_pages import metrics_text as guard_metrics
from dray.driver.metrics import Metrics as DriverMetrics
from dray.sim.hardware import hardware_snapshot, parse_hardware

pytestmark = pytest.mark.kubernetes
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "observability"
# kube-apiserver itself has names that promtool would rather have otherwise.
KUBERNETES_NAMES = ("apiserver_",)


def promtool(*words, text=None):
    """Return exit code and what it said."""
    done = subprocess.run(
        [str(program("promtool")), *map(str, words)],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def complaints(text):
    """Return what `promtool check metrics` says about metrics whose names are ours."""
    code, said = promtool("check", "metrics", text=text)
    assert code in (0, 3), said  # 3: only the style is wrong
    return [line for line in said.splitlines() if line and not line.startswith(KUBERNETES_NAMES)]


def test_alerts_are_rules():
    code, said = promtool("check", "rules", FOLDER / "alerts.yaml")
    assert code == 0, said


def test_every_alert_fires_when_it_should_and_only_then():
    code, said = promtool("test", "rules", FOLDER / "alerts-test.yaml")
    assert code == 0, said
    names = {
        rule["alert"] for rule in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
    }
    for case in yaml.safe_load((FOLDER / "alerts-test.yaml").read_text())["tests"]:
        assert {each["alertname"] for each in case["alert_rule_test"]} == names, case["name"]


def test_a_rule_that_is_wrong_would_be_found(tmp_path):
    text = (
        (FOLDER / "alerts.yaml")
        .read_text()
        .replace("max(dray_guard_judging) == 0", "max(dray_guard_judging == 0")
    )
    (tmp_path / "alerts.yaml").write_text(text)
    assert promtool("check", "rules", tmp_path / "alerts.yaml")[0] != 0


def test_queries_of_the_dashboard_are_valid(tmp_path):
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) >= 15
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$driver", ".*")}
        for number, query in enumerate(queries)
    ]
    (tmp_path / "dashboard.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]})
    )
    code, said = promtool("check", "rules", tmp_path / "dashboard.yaml")
    assert code == 0, said


# --- real output ------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with devices, a claim and an audit log."""
    folder = tmp_path_factory.mktemp("observed")
    flags = ("--data", str(folder / "data"), "--audit-log", str(folder / "audit.log"))
    with serving(folder, *flags) as found:
        asyncio.run(fill(str(found.kubeconfig)))
        yield found


async def fill(kubeconfig):
    from dray.client.resources import CLAIMS, Resource

    async with Client.connect(kubeconfig) as client:
        for obj in hardware_snapshot(parse_hardware(["dgx-h100:2"])).objects:
            group, _, version = obj["apiVersion"].rpartition("/")
            plural = {"Node": "nodes", "ResourceSlice": "resourceslices", "DeviceClass": "deviceclasses"}[
                obj["kind"]
            ]
            await client.create(Resource(group, version, plural, obj["kind"], namespaced=False), obj)
        body = {
            "metadata": {"name": "waiting"},
            "spec": {
                "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
            },
        }
        await client.create(CLAIMS, body, "default")


def test_metrics_of_the_server(served):
    async def scrape():
        async with Client.connect(str(served.kubeconfig)) as client:
            return (await client.answer(Request("GET", "/metrics"))).body.decode()

    text = asyncio.run(scrape())
    assert "kube_resourceslice_device_info{" in text
    assert "apiserver_audit_event_total" in text
    assert complaints(text) == []


@pytest.mark.parametrize(
    ("words", "mark"),
    [
        (("exporter", "--port", "0"), "kube_resourceslice_device_info{"),
        (("scheduler", "--probe-port", "0"), "dray_scheduler_attempt_duration_seconds_bucket{"),
    ],
    ids=["exporter", "scheduler"],
)
def test_metrics_of_a_process(served, words, mark):
    command = [
        sys.executable,
        "-m",
        "dray",
        *words,
        "--kubeconfig",
        str(served.kubeconfig),
        "--log-format",
        "json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        address = line.split()[-1] if "http://" in line else f"http://127.0.0.1:{line.split()[-1]}/metrics"
        if words[0] == "scheduler":
            while "ready: scheduling" not in line:
                line = process.stdout.readline()
                assert line, process.stderr.read()
        text = asyncio.run(scraped(address))
    finally:
        process.terminate()
        _, logged = process.communicate(timeout=60)
    assert mark in text
    assert "kube_resourceclaim_status_phase{" in text
    assert complaints(text) == []
    for entry in logged.splitlines():
        assert {"time", "level", "logger", "message"} <= set(json.loads(entry))


async def scraped(address):
    async with asyncio.timeout(60):
        while True:
            try:
                return await asyncio.to_thread(lambda: urlopen(address, timeout=30).read().decode())
            except OSError:
                await asyncio.sleep(0.1)


async def test_metrics_of_guard_and_driver():
    from prometheus_client import generate_latest
    from small_api import SmallApi

    guard = Guard(SmallApi().client(), GuardOptions({}, False, 0.0, 0.0))
    assert complaints(guard_metrics(guard)) == []
    metrics = DriverMetrics("gpu.example.com")
    metrics.failed("prepare")
    text = generate_latest(metrics.registry).decode()
    assert "dray_driver_errors_total" in text
    assert complaints(text) == []
