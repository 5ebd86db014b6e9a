"""The two API servers, started once for the whole run and only when a test asks."""

import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import peers

GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true"


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


GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true,DRAResourcePoolStatus=true"


@pytest.fixture(scope="session")
def kubernetes_controlled():
    """kube-apiserver with dray's controllers in the place of kube-controller-manager."""
    with peers.kubernetes(gates=GATES, controllers="") as peer:
        command = (sys.executable, "-m", "dray", "controllers", "--kubeconfig", peer.kubeconfig)
        peer.processes.start("controllers", *command)
        yield peer


@pytest.fixture(scope="session")
def dray_controlled():
    with peers.dray_server(gates=GATES) as peer:
        yield peer


@pytest.fixture(params=["dray", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
def controlled(request):
    """Each test that takes this runs on both servers, with dray's controllers on both."""
    return request.getfixturevalue(f"{request.param}_controlled")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    # CPython 3.11 can fail to parse a module ("recursion depth mismatch") when it happens to collect
    # cancelled tasks meanwhile; pytest plugins import at the very end, so collect before that.
    gc.collect()
