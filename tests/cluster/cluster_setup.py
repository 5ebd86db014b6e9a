"""Where things are, the cluster of tools/cluster, and the installation that the tests share."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# tools/cluster is a folder of scripts, and the examples are played by a module of tests/e2e.
sys.path += [str(ROOT / "tests/e2e"), str(ROOT / "tools/cluster")]

from namespaces import PATIENCE, ClusterError  # noqa: E402  # found through the line above
from rig import Cluster  # noqa: E402

GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true,DRAResourcePoolStatus=true"
IMAGE = ROOT / "build/image/dray.tar"
CHART = ROOT / "deploy/helm/dray"
VALUES = Path(__file__).parent / "values.yaml"
# The tests move into the cluster's network; this is the way back to the host's, for downloads.
HOST_NETWORK = f"/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY)}"

__all__ = [
    "CHART",
    "GATES",
    "HOST_NETWORK",
    "IMAGE",
    "PATIENCE",
    "ROOT",
    "VALUES",
    "Cluster",
    "ClusterError",
    "install",
]


def install(rig, *words):
    """Install the chart as an administrator would."""
    rig.helm(
        "install",
        "dray",
        CHART,
        "--namespace",
        "dray-system",
        "--create-namespace",
        "--values",
        VALUES,
        *words,
    )
