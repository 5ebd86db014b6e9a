"""The two API servers, started once for the whole run and only when a test asks."""

import contextlib
import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import peers

from dray.api.features import KNOWN_GATES

GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true,DRAResourcePoolStatus=true"


def pytest_runtest_setup(item):
    """Skip what the kube-apiserver of this run is too old for, and say so."""
    gates = [gate for mark in item.iter_markers("alpha_or_beta") for gate in mark.args]
    if item.get_closest_marker("kubernetes") and (why := next(filter(None, map(peers.lacks, gates)), "")):
        pytest.skip(why)


@pytest.fixture(scope="session")
def kubernetes_peer():
    with peers.kubernetes(gates=GATES) as peer:
        yield peer


@pytest.fixture(scope="session")
def dray_peer():
    with peers.dray_server(gates=GATES) as peer:
        yield peer


@pytest.fixture(params=["dray", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
def peer(request):
    """Each test that takes this runs on both servers."""
    return request.getfixturevalue(f"{request.param}_peer")


@contextlib.contextmanager
def kubernetes_with_our_controllers(gates):
    """kube-apiserver with dray's controllers in the place of kube-controller-manager."""
    with peers.kubernetes(gates=gates, controllers="") as peer:
        command = (sys.executable, "-m", "dray", "controllers", "--kubeconfig", peer.kubeconfig)
        peer.processes.start("controllers", *command)
        yield peer


@pytest.fixture(scope="session")
def kubernetes_controlled():
    with kubernetes_with_our_controllers(GATES) as peer:
        yield peer


@pytest.fixture(scope="session")
def dray_controlled():
    with peers.dray_server(gates=GATES) as peer:
        yield peer


@pytest.fixture(params=["dray", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
def controlled(request):
    """Each test that takes this runs on both servers, with dray's controllers on both."""
    return request.getfixturevalue(f"{request.param}_controlled")


ALL_GATES = ",".join(f"{name}=true" for name, is_on in KNOWN_GATES.items() if not is_on)


@pytest.fixture(scope="session")
def kubernetes_gated():
    with kubernetes_with_our_controllers(ALL_GATES) as peer:
        yield peer


@pytest.fixture(scope="session")
def dray_gated():
    with peers.dray_server(gates=ALL_GATES) as peer:
        yield peer


@pytest.fixture(params=["dray", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
def gated(request):
    """Each test that takes this runs on both servers, with every feature gate on."""
    return request.getfixturevalue(f"{request.param}_gated")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("dray", marks=pytest.mark.heavy),
        pytest.param("kubernetes", marks=pytest.mark.kubernetes),
    ],
)
def api(request):
    """For the ported tests of kube-scheduler: nobody but the scheduler acts."""
    from upstream_scheduler import GATES as gates

    start = peers.kubernetes if request.param == "kubernetes" else peers.dray_server
    if start is peers.dray_server:  # the others are on there
        gates = ",".join(each for each in gates.split(",") if each.partition("=")[0] in KNOWN_GATES)
    with start(gates=gates, controllers="") as peer:
        yield peer


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    # CPython 3.11 can fail to parse a module ("recursion depth mismatch") when it happens to collect
    # cancelled tasks meanwhile; pytest plugins import at the very end, so collect before that.
    gc.collect()
