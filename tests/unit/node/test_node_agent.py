"""Agent and driver together, on a small API: pods get their devices, and give them back."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from node_builders import (
    DRIVER,
    NODE,
    Lamps,
    WatchedLamps,
    add_pod,
    claim,
    claim_path,
    container,
    eventually,
    pod,
    pod_path,
)
from small_api import SmallApi, _status

from dray.api.resource import AllocationResult
from dray.api.times import format_time
from dray.client.resources import PODS
from dray.driver import UNHEALTHY, DeviceHealth, Settings, serving_driver
from dray.node import AgentSettings, running_agent
from dray.node.machine import Backoff
from dray.node.preparing import is_for_node_alone


class Cluster:
    """One node with one driver, on a small API."""

    def __init__(self, folder, driver=None, **settings):
        self.api = SmallApi()
        self.folder = folder
        self.driver = driver or Lamps(n_devices=4)
        self.settings = AgentSettings(
            NODE,
            folder,
            cdi_dirs=[folder / "cdi"],
            backoff=Backoff(0.05, 0.2),
            **{"reconcile_seconds": 0.2, "wipe_after_seconds": 60.0, "serves": False, **settings},
        )
        self.driver_settings = Settings(node_name=NODE, kubelet_dir=folder, cdi_dir=folder / "cdi")

    @contextlib.asynccontextmanager
    async def up(self):
        async with (
            running_agent(self.api.client(), self.settings) as agent,
            serving_driver(self.driver, self.api.client(), self.driver_settings) as driver,
        ):
            self.agent, self.running_driver = agent, driver
            await eventually(lambda: agent.plugins.drivers(), what="driver registered")
            yield self

    def status(self, name="reader"):
        return self.api.objects.get(pod_path(name), {}).get("status", {})

    async def phase(self, phase, name="reader"):
        return await eventually(
            lambda: self.status(name).get("phase") == phase, what=f"{name} is {phase}: {self.status(name)}"
        )

    def log(self, name="reader", box="main"):
        return "".join(
            line.split(" ", 3)[3]
            for path in sorted(self.folder.glob(f"logs/default_{name}_*/{box}/*.log"))
            for line in path.read_text().splitlines(keepends=True)
        )

    def events(self):
        return [obj["message"] for path, obj in self.api.objects.items() if "/events/" in path]

    async def delete(self, name="reader", grace=None):
        await self.api.client().delete(PODS, name, "default", grace_seconds=grace)

    async def gone(self, name="reader"):
        await eventually(lambda: pod_path(name) not in self.api.objects, what=f"{name} is gone")


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


async def test_a_pod_gets_its_device_runs_and_gives_it_back(cluster):
    async with cluster.up():
        uid = add_pod(cluster.api)
        await cluster.phase("Running")
        await eventually(lambda: "LAMP_0=lamp-0" in cluster.log())
        status = cluster.status()
        assert status["containerStatuses"][0]["state"]["running"]
        assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
        assert [str(key) for key, info in cluster.agent.records.infos.items() if uid in info.pod_uids] == [
            "default/reader-light"
        ]
        await cluster.delete(grace=1)
        await cluster.gone()
        assert cluster.agent.records.infos == {}
        assert [call[0] for call in cluster.driver.calls] == ["prepare", "unprepare"]
        await eventually(lambda: not list((cluster.folder / "containers").glob("*")))


async def test_a_pod_that_ends_by_itself_succeeds_after_its_claims_are_released(cluster):
    async with cluster.up():
        add_pod(cluster.api, containers=[container(script="echo done", claims=[{"name": "reader-light"}])])
        await cluster.phase("Succeeded")
        assert cluster.driver.calls[-1][0] == "unprepare"
        terminated = cluster.status()["containerStatuses"][0]["state"]["terminated"]
        assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")


async def test_exit_codes_are_reported(cluster):
    async with cluster.up():
        cluster.api.put(
            pod_path("failing"), pod("failing", claims=(), containers=[container(script="exit 3")])
        )
        await cluster.phase("Failed", "failing")
        assert cluster.status("failing")["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


async def test_a_container_sees_the_requests_that_it_names_and_no_others(cluster):
    """The check that AI conformance calls secure accelerator access."""
    boxes = [
        container("one", claims=[{"name": "reader-light", "request": "left"}]),
        container("other", claims=[{"name": "reader-light", "request": "right"}]),
        container("both", claims=[{"name": "reader-light"}]),
        container("nothing"),
    ]
    async with cluster.up():
        add_pod(cluster.api, devices=[("left", "lamp-0"), ("right", "lamp-1")], containers=boxes)
        cluster.api.put(pod_path("stranger"), pod("stranger", claims=(), containers=[container()]))
        await cluster.phase("Running")
        await cluster.phase("Running", "stranger")

        def lamps(name, box):
            return sorted(line for line in cluster.log(name, box).splitlines() if line.startswith("LAMP_"))

        await eventually(lambda: all("PATH=" in cluster.log("reader", box["name"]) for box in boxes))
        assert lamps("reader", "one") == ["LAMP_0=lamp-0"]
        assert lamps("reader", "other") == ["LAMP_1=lamp-1"]
        assert lamps("reader", "both") == ["LAMP_0=lamp-0", "LAMP_1=lamp-1"]
        assert lamps("reader", "nothing") == []
        assert lamps("stranger", "main") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["status"]["reservedFor"].clear(), "not in the claim's reservedFor"),
        (lambda c: c["status"].pop("allocation"), "is not allocated"),
        (
            lambda c: c["status"]["allocation"]["devices"]["results"][0].update(driver="absent.example.com"),
            "not registered",
        ),
    ],
)
async def test_a_pod_with_one_bad_claim_leaves_no_trace(cluster, change, message):
    async with cluster.up():
        stored = cluster.api.put(pod_path(), pod(claims=("good", "bad")))
        cluster.api.put(claim_path("good"), claim("good", pod=stored))
        bad = claim("bad", [("lamp", "lamp-1")], pod=stored)
        change(bad)
        cluster.api.put(claim_path("bad"), bad)
        await eventually(lambda: any(message in text for text in cluster.events()), what=message)
        assert cluster.agent.records.infos == {}
        assert cluster.driver.calls == []
        assert cluster.status()["phase"] == "Pending"
        await cluster.delete()
        await cluster.gone()


async def test_a_failing_prepare_is_tried_again_until_it_works(cluster):
    cluster.driver.is_broken = True
    async with cluster.up():
        add_pod(cluster.api)
        await eventually(lambda: any("the fuse is blown" in text for text in cluster.events()))
        cluster.driver.is_broken = False
        await cluster.phase("Running")


async def test_a_pod_is_not_removed_while_its_claims_cannot_be_released(cluster):
    async with cluster.up():
        add_pod(cluster.api)
        await cluster.phase("Running")
        cluster.driver.is_broken = True
        await cluster.delete(grace=1)
        await eventually(lambda: any("the switch is stuck" in text for text in cluster.events()))
        assert pod_path() in cluster.api.objects
        assert cluster.status()["phase"] == "Running"
        cluster.driver.is_broken = False
        await cluster.gone()


async def test_two_pods_share_a_claim_and_the_last_one_gives_it_back(cluster):
    async with cluster.up():
        first = cluster.api.put(pod_path("first"), pod("first"))
        second = cluster.api.put(pod_path("second"), pod("second"))
        shared = claim(pod=first)
        shared["status"]["reservedFor"] += claim(pod=second)["status"]["reservedFor"]
        cluster.api.put(claim_path(), shared)
        await cluster.phase("Running", "first")
        await cluster.phase("Running", "second")
        await cluster.delete("first", grace=1)
        await cluster.gone("first")
        assert [call[0] for call in cluster.driver.calls] == ["prepare"]
        await cluster.delete("second", grace=1)
        await cluster.gone("second")
        assert [call[0] for call in cluster.driver.calls] == ["prepare", "unprepare"]


async def test_health_reaches_the_pod_status(tmp_path):
    cluster = Cluster(tmp_path, WatchedLamps(n_devices=2))
    async with cluster.up():
        add_pod(cluster.api)
        await cluster.phase("Running")

        def shown():
            return cluster.status()["containerStatuses"][0].get("allocatedResourcesStatus")

        await eventually(lambda: shown() and shown()[0]["resources"][0]["health"] == "Healthy")
        cluster.driver.reports.put_nowait([DeviceHealth(NODE, "lamp-0", UNHEALTHY, "flickers")])
        await eventually(lambda: shown()[0]["resources"][0]["health"] == "Unhealthy")
        (entry,) = shown()
        assert entry["name"] == "claim:reader-light"
        assert entry["resources"][0]["message"] == "flickers"
        assert entry["resources"][0]["resourceID"].startswith(f"k8s.{DRIVER}/claim=")


async def test_slices_are_wiped_when_the_driver_stays_away(tmp_path):
    cluster = Cluster(tmp_path, wipe_after_seconds=0.3)

    def slices():
        return [path for path in cluster.api.objects if "resourceslices" in path]

    async with running_agent(cluster.api.client(), cluster.settings) as agent:
        async with serving_driver(cluster.driver, cluster.api.client(), cluster.driver_settings) as driver:
            await asyncio.wait_for(driver.publisher.wait_published(), 60)
            await eventually(agent.plugins.drivers)
            await eventually(slices)
        await eventually(lambda: not slices(), what="slices wiped")


async def test_slices_of_a_previous_life_are_wiped_at_start(cluster):
    cluster.api.put(
        "/apis/resource.k8s.io/v1/resourceslices/old",
        {"spec": {"driver": "gone.example.com", "nodeName": NODE, "pool": {"name": NODE}}},
    )
    cluster.api.put(
        "/apis/resource.k8s.io/v1/resourceslices/other",
        {"spec": {"driver": "x.example.com", "nodeName": "other", "pool": {"name": "other"}}},
    )
    async with running_agent(cluster.api.client(), cluster.settings):
        names = [path.rsplit("/", 1)[1] for path in cluster.api.objects if "resourceslices" in path]
        assert names == ["other"]


async def test_the_node_registers_itself_with_lease_and_ready_condition(cluster):
    async with running_agent(cluster.api.client(), cluster.settings):
        node = cluster.api.objects[f"/api/v1/nodes/{NODE}"]
        assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"
        assert int(node["status"]["capacity"]["cpu"]) >= 1
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
        lease = await eventually(lambda: cluster.api.objects.get(path))
        assert lease["spec"]["holderIdentity"] == NODE


async def test_containers_survive_the_agent_and_are_adopted(cluster):
    async with serving_driver(cluster.driver, cluster.api.client(), cluster.driver_settings):
        cluster.api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
        async with running_agent(cluster.api.client(), cluster.settings) as agent:
            await eventually(agent.plugins.drivers)
            script = "echo begun; while [ ! -e $GO ]; do sleep 0.05; done; echo ended; exit 4"
            box = container(
                script=script,
                claims=[{"name": "reader-light"}],
                env=[{"name": "GO", "value": str(cluster.folder / "go")}],
            )
            add_pod(cluster.api, containers=[box])
            await cluster.phase("Running")
            await eventually(lambda: "begun" in cluster.log())
        started = cluster.status()["containerStatuses"][0]["state"]["running"]["startedAt"]
        async with running_agent(cluster.api.client(), cluster.settings) as agent:
            await asyncio.sleep(0.3)
            assert cluster.status()["containerStatuses"][0]["state"]["running"]["startedAt"] == started
            (cluster.folder / "go").touch()
            await cluster.phase("Failed")
            assert cluster.status()["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
            assert cluster.log().split() == ["begun", "ended"]
        assert [call[0] for call in cluster.driver.calls] == ["prepare", "unprepare"]


async def test_a_container_that_ended_while_no_agent_was_there_is_reported(cluster):
    go, over = cluster.folder / "go", cluster.folder / "over"
    async with running_agent(cluster.api.client(), cluster.settings):
        script = f"while [ ! -e {go} ]; do sleep 0.05; done; echo last words; touch {over}; exit 7"
        cluster.api.put(pod_path(), pod(claims=(), containers=[container(script=script)]))
        await cluster.phase("Running")
    go.touch()
    await eventually(over.exists)
    await asyncio.sleep(0.1)
    async with running_agent(cluster.api.client(), cluster.settings):
        await cluster.phase("Failed")
        assert cluster.log() == "last words\n"
        assert cluster.status()["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


async def test_pods_deleted_while_no_agent_was_there_are_cleaned_up(cluster):
    async with serving_driver(cluster.driver, cluster.api.client(), cluster.driver_settings):
        cluster.api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
        async with running_agent(cluster.api.client(), cluster.settings) as agent:
            await eventually(agent.plugins.drivers)
            add_pod(cluster.api)
            await cluster.phase("Running")
        await cluster.delete(grace=0)
        async with running_agent(cluster.api.client(), cluster.settings) as agent:
            await eventually(lambda: agent.records.infos == {}, what="claims released")
            await eventually(lambda: not list((cluster.folder / "containers").glob("*")))


async def test_a_corrupt_checkpoint_is_rebuilt_from_the_api_server(cluster, caplog):
    async with serving_driver(cluster.driver, cluster.api.client(), cluster.driver_settings):
        cluster.api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
        async with running_agent(cluster.api.client(), cluster.settings) as agent:
            await eventually(agent.plugins.drivers)
            add_pod(cluster.api, "stays")
            add_pod(cluster.api, "goes", devices=[("lamp", "lamp-1")])
            await cluster.phase("Running", "stays")
            await cluster.phase("Running", "goes")
        (cluster.folder / "dra_manager_state").write_text('{"Data":"{}","Checksum":1}')
        await cluster.delete("goes", grace=0)
        async with running_agent(cluster.api.client(), cluster.settings) as agent:
            await eventually(
                lambda: [str(key) for key in agent.records.infos] == ["default/stays-light"], what="rebuilt"
            )
        assert "damaged" in caplog.text
        assert ("unprepare", "goes-light", [{"lit": "lamp-1"}]) in cluster.driver.calls


@pytest.mark.parametrize("may_list", [True, False])
async def test_after_a_lost_checkpoint_claims_of_any_pool_are_released(cluster, monkeypatch, may_list):
    """The pod is being deleted when the agent comes back, and its pool is not named like the node."""
    async with serving_driver(cluster.driver, cluster.api.client(), cluster.driver_settings):
        cluster.api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
        async with running_agent(cluster.api.client(), cluster.settings) as agent:
            await eventually(agent.plugins.drivers)
            for name, device in (("goes", "lamp-0"), ("stays", "lamp-1")):
                stored = cluster.api.put(pod_path(name), pod(name, claims=(f"{name}-light",)))
                made = claim(f"{name}-light", [("lamp", device)], pool="fabric", pod=stored)
                cluster.api.put(claim_path(f"{name}-light"), made)
                await cluster.phase("Running", name)
        (cluster.folder / "dra_manager_state").write_text("[" * 100_000)
        await cluster.delete("goes", grace=1)
        if not may_list:
            monkeypatch.setattr(cluster.api, "_list", forbid_listing_claims(cluster.api._list))
        async with running_agent(cluster.api.client(), cluster.settings) as agent:
            await cluster.gone("goes")
            assert [str(key) for key in agent.records.infos] == ["default/stays-light"]
        unprepared = [call[1] for call in cluster.driver.calls if call[0] == "unprepare"]
        assert unprepared == ["goes-light"]


def forbid_listing_claims(listing):
    def refuse(path, query):
        if path.endswith("/resourceclaims"):
            return _status(403, "Forbidden", "a node may not list claims")
        return listing(path, query)

    return refuse


@pytest.mark.parametrize(
    ("pool", "fields", "expected"),
    [
        (NODE, None, True),
        ("fabric", None, False),
        ("fabric", [[("metadata.name", "In", [NODE])]], True),
        ("fabric", [[("metadata.name", "In", [NODE, "other"])]], False),
        ("fabric", [[("metadata.name", "In", [NODE])], [("metadata.name", "In", ["other"])]], False),
        ("fabric", [[]], False),
        ("fabric", [], False),
    ],
)
def test_only_claims_that_no_other_node_can_use_are_taken_for_abandoned(pool, fields, expected):
    """To unprepare here what a pod elsewhere uses would take a network-attached device away from it."""
    allocation = {"devices": {"results": [{"request": "r", "driver": "d", "pool": pool, "device": "x"}]}}
    if fields is not None:
        terms = [
            {
                "matchFields": [
                    {"key": key, "operator": operator, "values": values} for key, operator, values in term
                ]
            }
            for term in fields
        ]
        allocation["nodeSelector"] = {"nodeSelectorTerms": terms}
    assert is_for_node_alone(msgspec.convert(allocation, AllocationResult), NODE) is expected


async def test_without_a_runtime_init_containers_complete_and_sidecars_stay(tmp_path):
    cluster = Cluster(tmp_path, runtime="none")
    init = [container("first"), container("side", restartPolicy="Always"), container("second")]
    async with cluster.up():
        cluster.api.put(pod_path(), pod(claims=(), initContainers=init, containers=[container()]))
        await cluster.phase("Running")
        states = {box["name"]: box["state"] for box in cluster.status()["initContainerStatuses"]}
        assert states["first"]["terminated"]["exitCode"] == states["second"]["terminated"]["exitCode"] == 0
        assert "running" in states["side"]
        played = pod("batch", claims=(), initContainers=init, containers=[container()])
        played["metadata"]["annotations"] = {"dray.dev/runs-for": "0.1"}
        cluster.api.put(pod_path("batch"), played)
        await cluster.phase("Succeeded", "batch")


@pytest.mark.parametrize("seconds", ["soon", "nan", "-1", "inf", "1e300"])
async def test_a_time_that_cannot_be_played_is_refused(tmp_path, seconds):
    cluster = Cluster(tmp_path, runtime="none")
    async with cluster.up():
        played = pod(claims=(), containers=[container()])
        played["metadata"]["annotations"] = {"dray.dev/runs-for": seconds}
        cluster.api.put(pod_path(), played)

        def waiting():
            return (cluster.status().get("containerStatuses") or [{}])[0].get("state", {}).get("waiting", {})

        await eventually(lambda: "must be a number of seconds" in waiting().get("message", ""))


async def test_the_checkpoint_is_kubelets(cluster):
    async with cluster.up():
        uid = add_pod(cluster.api)
        await cluster.phase("Running")
        outer = json.loads((cluster.folder / "dra_manager_state").read_text())
        (entry,) = json.loads(outer["Data"])["ClaimInfoStateList"]
        assert entry["PodUIDs"] == {uid: {}}
        (device,) = entry["DriverState"][DRIVER]["Devices"]
        assert device["DeviceName"] == "lamp-0"
        assert device["RequestNames"] == ["lamp"]


async def test_init_containers_run_in_order_before_the_others(cluster):
    async with cluster.up():
        order = cluster.folder / "order"
        init = [container(f"init-{n}", script=f"echo {n} >> {order}") for n in range(2)]
        cluster.api.put(
            pod_path(),
            pod(claims=(), initContainers=init, containers=[container(script=f"echo main >> {order}")]),
        )
        await cluster.phase("Succeeded")
        assert order.read_text().split() == ["0", "1", "main"]


async def test_a_crashing_container_is_restarted_with_back_off(cluster):
    async with cluster.up():
        cluster.api.put(
            pod_path(), pod(claims=(), restart="Always", containers=[container(script="echo tick; exit 1")])
        )
        await eventually(
            lambda: cluster.status().get("containerStatuses", [{}])[0].get("restartCount", 0) >= 3
        )
        assert cluster.status()["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
        await cluster.delete(grace=0)


async def test_probes_decide_readiness_and_restarts(cluster):
    flag = cluster.folder / "ready"
    probe = {"exec": {"command": ["test", "-e", str(flag)]}, "periodSeconds": 0, "failureThreshold": 1}
    async with cluster.up():
        box = container(script="sleep 30", readinessProbe={**probe, "periodSeconds": 1}, startupProbe=None)
        cluster.api.put(pod_path(), pod(claims=(), restart="Always", containers=[box]))
        await cluster.phase("Running")
        assert cluster.status()["containerStatuses"][0]["ready"] is False
        flag.touch()
        await eventually(lambda: cluster.status()["containerStatuses"][0]["ready"] is True)
        await cluster.delete(grace=1)
        await cluster.gone()


async def test_a_command_that_is_missing_is_explained(cluster):
    async with cluster.up():
        box = {"name": "main", "image": "x", "command": ["/no/such/program"]}
        cluster.api.put(pod_path(), pod(claims=(), containers=[box]))
        state = await eventually(
            lambda: (
                cluster.status()
                .get("containerStatuses", [{}])[0]
                .get("state", {})
                .get("waiting", {})
                .get("message")
            )
        )
        assert "/no/such/program" in state


async def test_the_agent_waits_for_an_api_server_that_is_away(cluster):
    async with cluster.up():
        go, over = cluster.folder / "go", cluster.folder / "over"
        script = f"while [ ! -e {go} ]; do sleep 0.05; done; touch {over}"
        add_pod(cluster.api, containers=[container(script=script, claims=[{"name": "reader-light"}])])
        await cluster.phase("Running")
        cluster.api.is_away = True
        go.touch()
        await eventually(over.exists)
        await asyncio.sleep(0.4)
        cluster.api.is_away = False
        await cluster.phase("Succeeded")


def _timed(seconds_spent, deadline=600):
    """A pod that has run for some of its time already, as an agent that was restarted finds it."""
    started = datetime.now(UTC) - timedelta(seconds=seconds_spent)
    made = pod("timed", claims=(), containers=[container(script="trap 'echo asked; exit 0' TERM; echo begun; sleep 30 & wait")],
               activeDeadlineSeconds=deadline, terminationGracePeriodSeconds=7)  # fmt: skip
    made["status"]["startTime"] = format_time(started)
    return made


async def test_the_end_of_a_jobs_time_is_told_before_in_an_event_and_in_its_log(cluster):
    async with cluster.up():
        cluster.api.put(pod_path("timed"), _timed(538.5))  # 60 s are left in a second and a half
        await cluster.phase("Running", "timed")
        text = "the time limit ends this job in 1 min: SIGTERM then, SIGKILL 7 s later"
        await eventually(lambda: text in cluster.log("timed"))
        await eventually(lambda: text in cluster.events())
        assert cluster.status("timed")["phase"] == "Running"
        await cluster.delete("timed", grace=0)


async def test_a_restarted_agent_does_not_give_a_job_its_time_anew(cluster):
    async with cluster.up():
        cluster.api.put(pod_path("timed"), _timed(599.0))
        await cluster.phase("Failed", "timed")
        assert cluster.status("timed")["reason"] == "DeadlineExceeded"
        await eventually(lambda: "asked" in cluster.log("timed"))  # by SIGTERM


async def test_the_log_of_a_pod_that_has_ended_is_there_for_the_next_agent(cluster):
    async with cluster.up():
        cluster.api.put(
            pod_path("brief"), pod("brief", claims=(), containers=[container(script="echo kept")])
        )
        await cluster.phase("Succeeded", "brief")
    async with cluster.up():
        runner = cluster.agent.pods
        machine = await eventually(lambda: runner.find("default", "brief"))
        assert runner.kept_attempt(machine, "main") == 0
        assert "kept" in runner.log_path(machine.pod, "main", 0).read_text()
        assert runner.kept_attempt(machine, "other") is None
