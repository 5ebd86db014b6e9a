"""A real cluster for the tests of this folder: started once, with the image loaded and the chart installed.

Nothing is skipped: what is missing on this machine is an error that says how to get it (`make cluster` does). With
DRAY_CLUSTER_KEEP=1 the cluster is left running (`python tools/cluster kubectl …` looks at it, `down` ends it); a cluster that
was kept is used again.
"""

import ctypes
import os
import time
from pathlib import Path

import pytest
from cluster_objects import TIMEOUT, Objects
from cluster_setup import GATES, IMAGE, Cluster, install

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
ORDER = [
    f"test_cluster_{part}"
    for part in ("install", "drivers", "go_drivers", "real_drivers", "guard", "examples", "lifecycle", "page")
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of this folder; begin with the installation and end with the removal."""
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in ours:
        item.add_marker(pytest.mark.cluster)
        item.add_marker(pytest.mark.root)
    if len(ours) == len(items):
        items.sort(key=lambda item: ORDER.index(item.path.stem))


@pytest.fixture(scope="session")
def rig():
    """Return a cluster without anything of dray in it but the image."""
    if not IMAGE.exists():
        pytest.fail("there is no image: run `make image` (or `make cluster`, which does)")
    cluster = Cluster(gates=GATES)
    keep = os.environ.get("DRAY_CLUSTER_KEEP") == "1"
    started = time.monotonic()
    try:  # also what is interrupted while it starts is ended
        if not (keep and is_up(cluster)):
            cluster.up()
            print(f"cluster up after {time.monotonic() - started:.0f} s")
            cluster.load(IMAGE)
            print(f"image loaded after {time.monotonic() - started:.0f} s")
        join_network(cluster.control_plane.pid)
        yield cluster
    finally:
        if not keep:
            cluster.down()


def is_up(cluster):
    """Return whether a cluster that was kept still answers."""
    try:
        return cluster.control_plane.is_ready()
    except Exception:
        return False


def join_network(process):
    """Move this process into the network of another one, where the API server's address is."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{process}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture(scope="session")
def empty_cluster(rig):
    """Return the cluster's objects before anything was installed, to compare with at the end."""
    return Objects(rig).everything()


@pytest.fixture(scope="session")
def objects(rig, empty_cluster):
    """Install the chart, unless it is there; returns the cluster's objects."""
    found = Objects(rig)
    if "dray" not in rig.helm("list", "-n", "dray-system", "-q").split():
        install(rig)
    rig.kubectl("-n", "dray-system", "rollout", "status", "deployment/dray-scheduler", TIMEOUT)
    for name in ("dray-driver-workstation", "dray-driver-dgx"):
        rig.kubectl("-n", "dray-system", "rollout", "status", f"daemonset/{name}", TIMEOUT)
    found.until(lambda: found.guard_judges(), "the guard to judge")
    found.until(lambda: len(found.slices()) >= 3, "the drivers' slices")
    return found
