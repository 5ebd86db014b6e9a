"""Pinning: the container's own cgroup, never a shared one; version 1, version 2 and cgroup namespaces."""

import os
import subprocess
from pathlib import Path

import pytest
from sysfs_trees import write

from dray.driver import DriverError
from dray.drivers.container_hook import ContainerState
from dray.drivers.cpu_pinning import check_cgroups, container_cgroup, pin_container

CONTAINER = ContainerState(pid=42, id="0123abcd")


def place(tmp_path, lines, folder=""):
    write(tmp_path / "proc/42/cgroup", lines)
    if folder:
        write(tmp_path / "cgroup" / folder / "cpuset.cpus", "")
    return tmp_path / "proc", tmp_path / "cgroup"


@pytest.mark.parametrize(
    ("lines", "folder"),
    [
        ("5:cpu,cpuset:/kubepods/poda/0123abcd\n0::/kubepods/poda/0123abcd", "cpuset/kubepods/poda/0123abcd"),
        ("0::/kubepods.slice/poda.slice/cri-containerd-0123abcd.scope",
         "kubepods.slice/poda.slice/cri-containerd-0123abcd.scope"),
        # A driver in a cgroup namespace of its own sees paths relative to its own.
        ("0::/../../poda.slice/cri-containerd-0123abcd.scope", "kubepods.slice/poda.slice/cri-containerd-0123abcd.scope"),
    ],
)  # fmt: skip
def test_the_set_is_written_to_the_containers_own_cgroup(tmp_path, lines, folder):
    proc, cgroups = place(tmp_path, lines, folder)
    pin_container(CONTAINER, {3, 1, 2, 7}, proc, cgroups)
    assert (cgroups / folder / "cpuset.cpus").read_text() == "1-3,7"


def test_a_cgroup_that_is_not_the_containers_own_is_left_alone(tmp_path):
    proc, cgroups = place(tmp_path, "0::/user.slice/session-1.scope", "user.slice/session-1.scope")
    assert container_cgroup(CONTAINER, proc, cgroups) is None


def test_a_refusal_of_the_kernel_is_told(tmp_path):
    proc, cgroups = place(tmp_path, "0::/x/0123abcd", "x/0123abcd")
    (cgroups / "x/0123abcd/cpuset.cpus").unlink()
    (cgroups / "x/0123abcd/cpuset.cpus").mkdir()
    with pytest.raises(DriverError, match=r"cannot be pinned to CPUs 1 .*Is a directory"):
        pin_container(CONTAINER, {1}, proc, cgroups)
    with pytest.raises(DriverError, match="without hostPID"):
        pin_container(ContainerState(pid=43, id="x"), {1}, proc, cgroups)


def test_a_process_without_a_cgroup_of_its_own_gets_an_affinity(tmp_path):
    cpu = min(os.sched_getaffinity(0))
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            pin_container(ContainerState(sleeper.pid, "box"), {cpu}, Path("/proc"), Path("/sys/fs/cgroup"))
            assert os.sched_getaffinity(sleeper.pid) == {cpu}
        finally:
            sleeper.kill()


def test_a_machine_without_cpusets_is_refused(tmp_path):
    with pytest.raises(DriverError, match="no cpuset controller"):
        check_cgroups(tmp_path)
    write(tmp_path / "cgroup.controllers", "cpu memory")
    with pytest.raises(DriverError, match="no cpuset controller"):
        check_cgroups(tmp_path)
    write(tmp_path / "cgroup.controllers", "cpuset cpu memory")
    check_cgroups(tmp_path)
