"""Rollouts of a driver: which node goes when, what ends a rollout, and that a killed one is continued from any point."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from small_api import SmallApi

from dray.api import driver_rollouts as api
from dray.api.driver_rollouts import DaemonSetReference, DriverRolloutSpec, DriverTemplate
from dray.client.resources import DAEMON_SETS, PODS, SLICES, TAINT_RULES
from dray.drivers.hardware import load_profile, pool_slices
from dray.drivers.simulated import with_version
from dray.workbench.fleet import rollout_plan
from dray.workbench.fleet.rollout import ROLLOUTS, RolloutDriver, RolloutRefused, create_rollout
from dray.workbench.fleet.rollout_plan import Observation, advance

DRIVER = "gpu.nvidia.com"
NOW = datetime(2026, 5, 1, tzinfo=UTC)
OLD, NEW = DriverTemplate(version="1.0.0", image="d:1"), DriverTemplate(version="2.0.0", image="d:2")


def a_spec(**changes):
    spec = DriverRolloutSpec(
        driver=DRIVER,
        daemon_set=DaemonSetReference(namespace="drivers", name="gpu"),
        to=NEW,
        pods=api.KEEP,
    )
    return msgspec.structs.replace(spec, **changes)


def steps(status):
    return [node.step for node in status.nodes]


def healthy(status, spec):
    """Observe what a fleet looks like that does at once what is wanted of it."""
    wanted = OLD if status.phase == rollout_plan.ROLLING_BACK else spec.to
    return {
        node.name: Observation(
            is_tainted=node.step in rollout_plan.AT_WORK,
            has_taint_rules=node.step in rollout_plan.AT_WORK,
            pod_version=wanted.version,
            is_ready=True,
            is_published=True,
            published_versions=frozenset({wanted.version}),
            failures=() if node.step == "Validating" else None,
        )
        for node in status.nodes
    }


# --- the plan -----------------------------------------------------------------------


def test_canaries_go_first_then_a_few_at_a_time():
    spec = a_spec(max_unavailable=2, canary=1)
    status = rollout_plan.start([f"n{number}" for number in range(5)], OLD)
    seen = []
    for _ in range(40):
        status, _ = advance(spec, status, healthy(status, spec), NOW)
        at_work = [node.name for node in status.nodes if node.step in rollout_plan.AT_WORK]
        seen.append(at_work)
        assert len(at_work) <= 2
        if status.nodes[0].step != "Updated":
            assert at_work in ([], ["n0"])
    assert status.phase == "Complete"
    assert ["n1", "n2"] in seen


def test_a_pause_after_the_canary_lasts_until_it_is_lifted():
    spec = a_spec(pause_after_canary=True)
    status = rollout_plan.start(["a", "b"], OLD)
    for _ in range(20):
        status, _ = advance(spec, status, healthy(status, spec), NOW)
    assert (status.phase, steps(status)) == ("Paused", ["Updated", "Pending"])
    spec = a_spec()
    for _ in range(20):
        status, _ = advance(spec, status, healthy(status, spec), NOW)
    assert status.phase == "Complete"


@pytest.mark.parametrize("pods", [api.WAIT, api.EVICT])
def test_a_driver_is_not_replaced_under_pods_that_use_its_devices(pods):
    spec = a_spec(pods=pods)
    status = rollout_plan.start(["a"], OLD)
    status, actions = advance(spec, status, {}, NOW)
    assert [action.verb for action in actions] == ["set-template", "taint"]
    used = {"a": Observation(is_tainted=True, users=("ns/train",), pod_version="1.0.0", is_ready=True)}
    status, actions = advance(spec, status, used, NOW)
    assert steps(status) == ["Draining"]
    assert "ns/train" in status.nodes[0].message
    assert ("evict" in [action.verb for action in actions]) == (pods == api.EVICT)


def test_a_step_that_takes_too_long_fails_the_node_with_what_it_waited_for():
    spec = a_spec(step_seconds=60, roll_back=False)
    status = rollout_plan.start(["a"], OLD)
    status, _ = advance(spec, status, {}, NOW)
    stuck = {"a": Observation(is_tainted=True, pod_version="2.0.0", is_ready=False)}
    status, _ = advance(spec, status, stuck, NOW)
    status, _ = advance(spec, status, stuck, NOW + timedelta(seconds=59))
    assert steps(status) == ["Swapping"]
    status, _ = advance(spec, status, stuck, NOW + timedelta(seconds=121))
    assert steps(status) == ["Failed"]
    assert status.phase == "Stopped"
    assert "to become ready" in status.nodes[0].evidence


def test_a_canary_that_fails_ends_the_rollout_whatever_the_limit():
    spec = a_spec(max_failures=9, canary=1)
    status = rollout_plan.start(["a", "b"], OLD)
    while status.nodes[0].step != "Validating":
        status, _ = advance(spec, status, healthy(status, spec), NOW)
    status, _ = advance(spec, status, {"a": Observation(is_tainted=True, failures=("broken",))}, NOW)
    assert (status.phase, status.nodes[1].step) == ("RollingBack", "Pending")


def test_a_rollback_reverts_what_was_touched_and_nothing_else():
    spec = a_spec(max_unavailable=1, canary=0, max_failures=1)
    status = rollout_plan.start(["a", "b", "c"], OLD)
    while status.nodes[0].step != "Updated" or status.nodes[1].step != "Validating":
        status, _ = advance(spec, status, healthy(status, spec), NOW)
    bad = healthy(status, spec)
    bad["b"] = Observation(is_tainted=True, pod_version="2.0.0", failures=("gpu-0: probe: broken",))
    status, actions = advance(spec, status, bad, NOW)
    assert status.phase == "RollingBack"
    assert status.nodes[1].reverting
    assert status.nodes[2].step == "Pending"
    assert next(action.template for action in actions if action.verb == "set-template") == OLD
    for _ in range(20):
        status, _ = advance(spec, status, healthy(status, spec), NOW)
    assert (status.phase, steps(status)) == ("RolledBack", ["Reverted", "Reverted", "Pending"])


def test_devices_that_publish_another_version_are_waited_for_only_when_that_is_expected():
    for expected in (True, False):
        spec = a_spec(expect_published_version=expected)
        status = rollout_plan.start(["a"], OLD)
        seen = {
            "a": Observation(
                is_tainted=True,
                pod_version="2.0.0",
                is_ready=True,
                is_published=True,
                published_versions=frozenset({"1.0.0"}),
            )
        }
        for _ in range(3):
            status, _ = advance(spec, status, seen, NOW)
        assert steps(status) == ["Swapping" if expected else "Validating"]


def test_a_rollout_that_has_ended_does_nothing():
    for phase in rollout_plan.ENDED:
        status = msgspec.structs.replace(rollout_plan.start(["a"], OLD), phase=phase)
        assert advance(a_spec(), status, {}, NOW) == (status, [])


# --- on a cluster -------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


class Fleet(SmallApi):
    """Nodes whose driver is a DaemonSet: what is deleted comes back as the template says."""

    def __init__(self, nodes, bad=()):
        super().__init__()
        self.nodes, self.bad = nodes, set(bad)
        self.writes = 0
        self.kill_at = None  # number of the write at which the driver of the rollout is killed
        self.kill_after = False  # after the write was stored
        self.deleted_untainted = []
        self._reacting = asyncio.Lock()

    async def send(self, request):
        if request.method == "GET":
            return await super().send(request)
        self.writes += 1
        if request.method == "DELETE" and "/pods/driver-" in request.target:
            self._check_taint(request.target)
        if self.writes == self.kill_at and not self.kill_after:
            raise Killed
        answer = await super().send(request)
        if self.writes == self.kill_at:
            raise Killed
        return answer

    def _check_taint(self, target):
        node = target.rpartition("/driver-")[2].split("?")[0].rpartition("-")[0]
        rules = [each for path, each in self.objects.items() if "/devicetaintrules/" in path]
        effects = {
            rule["spec"]["taint"]["effect"]
            for rule in rules
            if rule["spec"]["deviceSelector"]["pool"] == node
        }
        if effects != {"NoSchedule"}:
            self.deleted_untainted.append(node)

    def of(self, resource):
        return [each for path, each in self.objects.items() if f"/{resource.plural}/" in path]

    async def build(self):
        client = self.client()
        template = {
            "metadata": {"annotations": {api.VERSION_ANNOTATION: OLD.version}},
            "spec": {"containers": [{"name": "driver", "image": OLD.image}]},
        }
        await client.create(
            DAEMON_SETS,
            {
                "metadata": {"name": "gpu", "namespace": "drivers"},
                "spec": {"updateStrategy": {"type": "OnDelete"}, "template": template},
            },
            "drivers",
        )
        await self.react()
        await create_rollout(
            client, "r", a_spec(max_unavailable=2, max_failures=2, expect_published_version=True)
        )
        self.writes = 0
        return client

    async def react(self):
        """Be the DaemonSet controller, the nodes and their drivers for a moment."""
        async with self._reacting:
            await self._react()

    async def _react(self):
        writes, kill_at, self.kill_at = self.writes, self.kill_at, None
        client = self.client()
        [found] = self.of(DAEMON_SETS)
        present = {each["spec"]["nodeName"] for each in self.of(PODS)}
        for node in self.nodes:
            if node in present:
                continue
            template = found["spec"]["template"]
            await client.create(PODS, self._pod(found, node, template), "drivers")
            version = template["metadata"]["annotations"][api.VERSION_ANNOTATION]
            for each in self.of(SLICES):
                if each["spec"]["pool"]["name"] == node:
                    await client.delete(SLICES, each["metadata"]["name"])
            pools = [with_version(pool, version) for pool in load_profile("workstation").pools(node)]
            for number, each in enumerate(pool_slices(pools)):
                body = msgspec.to_builtins(each)
                body["metadata"] = {"name": f"{node}-{version}-{number}"}
                await client.create(SLICES, body)
        self.writes, self.kill_at = writes, kill_at

    def _pod(self, daemon_set, node, template):
        meta = daemon_set["metadata"]
        owner = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": "gpu",
            "uid": meta["uid"],
            "controller": True,
        }
        return {
            "metadata": {
                "name": f"driver-{node}-{next(self._uid)}",
                "namespace": "drivers",
                "annotations": dict(template["metadata"]["annotations"]),
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": node, "containers": template["spec"]["containers"]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }

    def version_of(self, node):
        [pod] = [each for each in self.of(PODS) if each["spec"]["nodeName"] == node]
        return pod["metadata"]["annotations"][api.VERSION_ANNOTATION]


def drive(fleet, client):
    async def validate(_snapshot, target):
        node = target.rows[0].node
        is_bad = node in fleet.bad and fleet.version_of(node) == NEW.version
        return [f"{node}: broken"] if is_bad else []

    looks = itertools.count()

    async def pause(_seconds):
        assert next(looks) < 500, fleet.of(ROLLOUTS)
        await fleet.react()
        await asyncio.sleep(0)

    return RolloutDriver(client, "r", validate, pause=pause)


async def test_a_fleet_reaches_the_new_version_and_no_taint_stays():
    fleet = Fleet(["a", "b", "c"])
    client = await fleet.build()
    rollout = await drive(fleet, client).run()
    assert rollout.status.phase == "Complete"
    assert {fleet.version_of(node) for node in "abc"} == {NEW.version}
    assert fleet.of(DAEMON_SETS)[0]["spec"]["template"]["spec"]["containers"][0]["image"] == NEW.image
    assert fleet.of(TAINT_RULES) == []
    assert fleet.deleted_untainted == []


async def test_bad_nodes_stop_the_rollout_and_the_old_version_returns():
    nodes = [f"n{number:02}" for number in range(8)]
    fleet = Fleet(nodes, bad=["n02", "n04", "n06"])
    client = await fleet.build()
    rollout = await drive(fleet, client).run()
    assert rollout.status.phase == "RolledBack"
    assert "2 of 8 nodes failed" in rollout.status.message
    assert {fleet.version_of(node) for node in nodes} == {OLD.version}
    assert steps(rollout.status)[-1] == "Pending"  # the limit ended it before the last node's turn
    assert fleet.of(TAINT_RULES) == []
    assert [node.name for node in rollout.status.nodes if "broken" in node.evidence] == ["n02", "n04"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("bad", [(), ("a", "b")])
async def test_a_rollout_that_is_killed_at_any_write_is_continued(after, bad):
    number = 0
    while True:
        number += 1
        fleet = Fleet(["a", "b", "c"], bad=bad)
        client = await fleet.build()
        fleet.kill_at, fleet.kill_after = number, after
        try:
            rollout = await drive(fleet, client).run()
        except Killed:
            fleet.kill_at = None
            await fleet.react()
            rollout = await drive(fleet, client).run()
            was_killed = True
        else:
            was_killed = False
        wanted = OLD if bad else NEW
        assert rollout.status.phase == ("RolledBack" if bad else "Complete")
        assert {fleet.version_of(node) for node in "abc"} == {wanted.version}
        assert fleet.of(TAINT_RULES) == []
        assert fleet.deleted_untainted == []
        if not was_killed:
            break
    assert number > 15  # as many writes were tried


async def test_two_drivers_of_one_rollout_do_not_harm():
    fleet = Fleet(["a", "b", "c"])
    client = await fleet.build()
    first, second = await asyncio.gather(drive(fleet, client).run(), drive(fleet, client).run())
    assert {first.status.phase, second.status.phase} == {"Complete"}
    assert {fleet.version_of(node) for node in "abc"} == {NEW.version}


async def test_a_daemon_set_that_updates_itself_is_refused():
    fleet = Fleet(["a"])
    client = await fleet.build()
    await client.patch(DAEMON_SETS, "gpu", {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}, "drivers")
    with pytest.raises(RolloutRefused, match="would replace all pods by itself"):
        await create_rollout(client, "r2", a_spec())
    with pytest.raises(RolloutRefused, match="there is no DaemonSet"):
        await create_rollout(client, "r2", a_spec(daemon_set=DaemonSetReference(namespace="x", name="y")))
    await client.patch(DAEMON_SETS, "gpu", {"spec": {"updateStrategy": {"type": "OnDelete"}}}, "drivers")
    with pytest.raises(RolloutRefused, match="already"):
        await create_rollout(client, "r2", a_spec(to=OLD))
    with pytest.raises(RolloutRefused, match="no container"):
        wrong = DaemonSetReference(namespace="drivers", name="gpu", container="sidecar")
        await create_rollout(client, "r2", a_spec(daemon_set=wrong))
    assert len(fleet.of(ROLLOUTS)) == 1


@pytest.mark.parametrize("after", [False, True])
async def test_a_rollout_that_is_killed_at_any_write_and_then_aborted_leaves_nothing(after):
    number = 0
    was_killed = True
    while was_killed:
        number += 1
        fleet = Fleet(["a", "b", "c"])
        client = await fleet.build()
        fleet.kill_at, fleet.kill_after = number, after
        try:
            rollout = await drive(fleet, client).run()
        except Killed:
            fleet.kill_at = None
            await client.patch(ROLLOUTS, "r", {"spec": {"abort": True}})
            await fleet.react()
            rollout = await drive(fleet, client).run()
        else:
            was_killed = False
        wanted = NEW if rollout.status.phase == "Complete" else OLD
        assert {fleet.version_of(node) for node in "abc"} == {wanted.version}
        assert fleet.of(TAINT_RULES) == []
    assert number > 15  # as many writes were tried
