"""Credentials for the nodes and drivers of a system whose CA lies in its data folder."""

from __future__ import annotations

from pathlib import Path

from dray.api.parsing import load_yaml
from dray.certificates import make_client_certificate
from dray.host.clock import utc_now
from dray.host.files import write_private
from dray.server.auth.node_authorizer import NODE_USER_PREFIX, NODES_GROUP
from dray.server.auth.pki import existing_ca, kubeconfig
from dray.server.auth.rbac_objects import DRIVER_PREFIX

LIGHT_USER = "dray:light-nodes"


def _write(data: Path, user: str, groups: list[str], path: Path) -> None:
    ca = existing_ca(data / "pki")
    url = load_yaml((data / "admin.kubeconfig").read_bytes())["clusters"][0]["cluster"]["server"]
    pair = make_client_certificate(ca, user, groups, utc_now())
    write_private(path, kubeconfig(url, ca.certificate_pem, user, pair).encode())


def write_node_kubeconfig(data: Path, node: str, path: Path) -> None:
    """Write the credentials of a node."""
    _write(data, NODE_USER_PREFIX + node, [NODES_GROUP], path)


def write_light_kubeconfig(data: Path, path: Path) -> None:
    """Write the credentials that all light nodes share."""
    _write(data, LIGHT_USER, [], path)


def write_driver_kubeconfig(data: Path, driver: str, path: Path) -> None:
    """Write the credentials of a driver."""
    _write(data, DRIVER_PREFIX + driver, ["dray:drivers"], path)
