"""`dray doctor`: what is read of a machine and of a server, and what the command prints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path

import grpc
import pytest

from dray.api.rpc.generated import registration_v1_pb2, registration_v1_pb2_grpc
from dray.cli.machine_facts import read_machine
from dray.cli.main import main
from dray.workbench.doctor import check_machine


def codes(facts) -> set[str]:
    return {finding.code for finding in check_machine(facts)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    (tmp_path / "kubelet/plugins_registry").mkdir(parents=True)
    return tmp_path


def test_an_empty_machine_has_nothing_wrong(root: Path) -> None:
    assert codes(read_machine(root / "kubelet", {}, root)) == set()


def test_a_machine_with_every_kind_of_fault(root: Path) -> None:
    (root / "kubelet/config.yaml").write_text("featureGates: {DynamicResourceAllocation: false}\n")
    (root / "etc/containerd").mkdir(parents=True)
    (root / "etc/containerd/config.toml").write_text("[plugins.cri]\n  enable_cdi = false\n")
    specs = root / "etc/cdi"
    specs.mkdir(parents=True)
    device = {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/does-not-exist"}]}}
    spec = {"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [device]}
    (specs / "a.json").write_text(json.dumps(spec))
    (specs / "b.json").write_text(json.dumps(spec))
    (specs / "c.json").write_text("[" * 100_000)
    gpu = root / "sys/bus/pci/devices/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    (root / "sys/fs/cgroup/cgroup.controllers").unlink()
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(root / "kubelet/plugins_registry/gpu.sock"))
    assert codes(read_machine(root / "kubelet", {"server": False}, root)) == {
        "kubelet-gate-off",
        "containerd-cdi-off",
        "cdi-device-twice",
        "cdi-path-missing",
        "cdi-spec-invalid",
        "kernel-driver-missing",
        "cgroup-v1",
        "plugin-socket-dead",
        "part-not-running",
    }


class Registration(registration_v1_pb2_grpc.RegistrationServicer):
    """A driver that is registered with a DRA socket and the services it says it has."""

    def __init__(self, endpoint: str, services: tuple[str, ...]) -> None:
        self.endpoint, self.services = endpoint, services

    async def GetInfo(self, _request, _context):
        return registration_v1_pb2.PluginInfo(
            type="DRAPlugin",
            name="gpu.example.com",
            endpoint=self.endpoint,
            supported_versions=list(self.services),
        )

    async def NotifyRegistrationStatus(self, _request, _context):
        raise AssertionError("an examination must not register anybody")


@contextlib.asynccontextmanager
async def registered(root: Path, *services: str, listens: bool):
    """Run a driver's registration socket, with or without the DRA socket it names."""
    endpoint = root / "dra.sock"
    server = grpc.aio.server()
    registration_v1_pb2_grpc.add_RegistrationServicer_to_server(Registration(str(endpoint), services), server)
    server.add_insecure_port(f"unix:{root}/kubelet/plugins_registry/gpu.sock")
    if listens:
        server.add_insecure_port(f"unix:{endpoint}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("services", "listens", "found"),
    [
        (("v1.DRAPlugin",), True, set()),
        (("v1.DRAPlugin",), False, {"plugin-endpoint-dead"}),
        (("v1beta1.DRAPlugin",), True, {"plugin-api-too-old"}),
    ],
)
async def test_a_registered_driver_is_asked_what_it_serves(root: Path, services, listens, found) -> None:
    async with registered(root, *services, listens=listens):
        facts = await asyncio.to_thread(read_machine, root / "kubelet", {}, root)
    assert facts.plugins[0].driver == "gpu.example.com"
    assert codes(facts) == found


def test_a_kubelet_without_its_registration_directory_is_found(root: Path) -> None:
    (root / "kubelet/plugins_registry").rmdir()
    assert codes(read_machine(root / "kubelet", {}, root)) == {"registry-missing"}


def test_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--codes"]) == 0
    assert "pool-incomplete" in capsys.readouterr().out


def test_machine_and_cluster_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--machine", "--cluster"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    assert main(["doctor", "--cluster", "--kubeconfig", str(tmp_path / "kubeconfig")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
