"""Devices of a job in the flags of container engines."""

import pytest

from dray.api.cdi import ContainerEdits, DeviceNode, Hook, Mount, NetDevice
from dray.workbench.container_engines import (
    EngineError,
    engine_of,
    image_command,
    not_carried_out,
    with_devices,
)

EDITS = ContainerEdits(
    env=["GPU=0 or 1"],
    device_nodes=[
        DeviceNode(path="/dev/gpu0"),
        DeviceNode(path="/dev/x", host_path="/dev/y", permissions="r"),
    ],
    mounts=[
        Mount(host_path="/usr/lib/gpu.so", container_path="/usr/lib/gpu.so", options=["ro", "bind"]),
        Mount(host_path="/scratch", container_path="/data"),
    ],
    additional_gids=[44],
)


@pytest.mark.parametrize("start", [["podman", "run"], ["/opt/bin/docker", "--debug", "container", "create"]])
def test_podman_and_docker_get_devices_variables_mounts_and_groups(start):
    line = with_devices([*start, "-it", "ubuntu", "run", "ls"], EDITS)
    flags = [
        "--env", "GPU=0 or 1",
        "--device", "/dev/gpu0:/dev/gpu0:rwm",
        "--device", "/dev/y:/dev/x:r",
        "--volume", "/usr/lib/gpu.so:/usr/lib/gpu.so:ro",
        "--volume", "/scratch:/data:rw",
        "--group-add", "44",
    ]  # fmt: skip
    assert line == [*start, *flags, "-it", "ubuntu", "run", "ls"]


def test_apptainer_gets_them_as_binds():
    line = with_devices(["apptainer", "exec", "image.sif", "ls"], EDITS)
    assert line[:4] == ["apptainer", "exec", "--env", "GPU=0 or 1"]
    binds = [line[at + 1] for at, word in enumerate(line) if word == "--bind"]
    assert binds == [
        "/dev/gpu0:/dev/gpu0",
        "/dev/y:/dev/x",
        "/usr/lib/gpu.so:/usr/lib/gpu.so:ro",
        "/scratch:/data:rw",
    ]
    assert line[-2:] == ["image.sif", "ls"]


@pytest.mark.parametrize(
    "words", [[], ["bash", "-c", "podman run x"], ["podman"], ["podman", "ps"], ["runc", "run"]]
)
def test_what_starts_no_container_is_refused(words):
    with pytest.raises(EngineError):
        engine_of(words)


def test_what_no_flag_can_say_is_told():
    edits = ContainerEdits(
        hooks=[Hook(hook_name="createContainer", path="/usr/bin/hook")],
        net_devices=[NetDevice(host_interface_name="eth7", name="net1")],
    )
    assert not_carried_out(edits) == ["the hook /usr/bin/hook (createContainer)", "the network device eth7"]
    assert not_carried_out(EDITS) == []


def test_an_image_runs_as_the_person_in_their_directory():
    told = {"uid": 1000, "gid": 100, "directory": "/home/ann", "environment": {"A": "b"}}
    podman = image_command(
        "/usr/bin/podman",
        "python:3",
        ["python", "train.py"],
        with_stdin=True,
        with_tty=True,
        has_crun=True,
        **told,
    )
    assert podman == [
        "/usr/bin/podman", "run", "--rm", "--network=host", "--runtime=crun", "--cgroups=disabled", "--userns=keep-id", "--interactive", "--tty",
        "--env", "A=b", "--volume", "/home/ann:/home/ann", "--workdir", "/home/ann", "python:3", "python", "train.py",
    ]  # fmt: skip
    docker = image_command("docker", "python:3", [], **told)
    assert docker[:7] == ["docker", "run", "--rm", "--network=host", "--init", "--user", "1000:100"]
    assert docker[-1] == "python:3"
    apptainer = image_command("apptainer", "python:3", ["ls"], **told)
    assert apptainer[:2] == ["apptainer", "exec"]
    assert apptainer[-2:] == ["docker://python:3", "ls"]
    assert image_command("apptainer", "x.sif", [], **told)[-1] == "x.sif"
