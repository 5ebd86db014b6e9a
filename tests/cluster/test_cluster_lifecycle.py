"""The release itself: upgraded and rolled back while pods run, removed without leftovers, installed again."""

from cluster_objects import TIMEOUT
from cluster_setup import CHART, VALUES

DRIVERS_OF_THE_CHART = {"gpu.nvidia.com", "dra.net"}  # that the two profiles of values.yaml simulate


def published(objects):
    """Return the slices of the chart's drivers: others, of drivers that a test ran, are deleted by kubelet when it likes."""
    return {
        entry["metadata"]["uid"]: f"{entry['spec']['driver']} on {entry['spec'].get('nodeName')}"
        for entry in objects.slices()
        if entry["spec"]["driver"] in DRIVERS_OF_THE_CHART
    }


def test_an_upgrade_and_a_rollback_keep_pods_and_devices(rig, objects):
    objects.run_pod("stays", node="workstation-1")
    before, slices = objects.container_id("stays"), published(objects)
    assert {each.partition(" ")[0] for each in slices.values()} == DRIVERS_OF_THE_CHART
    rig.helm("upgrade", "dray", CHART, "-n", "dray-system", "--values", VALUES, "--set", "scheduler.replicas=1",
             "--set", "guard.replicas=1", "--wait", TIMEOUT)  # fmt: skip
    assert objects.get("deployment", "dray-scheduler", "-n", "dray-system")["status"]["replicas"] == 1
    objects.until(lambda: objects.guard_judges(), "the guard to judge after the upgrade")
    objects.run_pod("after-upgrade")
    rig.helm("rollback", "dray", "1", "-n", "dray-system", TIMEOUT)
    objects.kubectl("-n", "dray-system", "rollout", "status", "deployment/dray-scheduler", TIMEOUT)
    objects.until(lambda: objects.guard_judges(), "the guard to judge after the rollback")
    objects.run_pod("after-rollback")
    after, slices_after = objects.container_id("stays"), published(objects)
    objects.remove_pod("stays", "after-upgrade", "after-rollback")  # also when an assertion below fails
    assert after == before
    assert slices_after == slices


def test_uninstalling_leaves_nothing_behind(rig, objects, empty_cluster):
    objects.kubectl("delete", "resourceclaimtemplates", "--all")
    rig.helm("uninstall", "dray", "-n", "dray-system", "--wait", TIMEOUT)

    def leftovers():
        return objects.everything() - empty_cluster

    objects.until(lambda: not leftovers(), lambda: f"these to go: {sorted(leftovers())}")
    for node in rig.nodes:
        assert not list((node.folder / "cdi").iterdir())
        assert not list((node.folder / "kubelet/plugins_registry").iterdir())
