"""The two API servers, started once for the whole run and only when a test asks."""

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
