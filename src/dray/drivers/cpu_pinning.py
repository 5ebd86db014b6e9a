"""Pins a container to CPUs from outside: through its cgroup, or else through its first process.

The container's own cgroup gets the set in `cpuset.cpus`, so that everything in it is bound, also what `kubectl
exec` starts later; the container cannot widen it. cgroup version 1 and 2 differ in the place of the file only.

A container of the `process` runtime has no cgroup of its own. There the first process gets the set as its
affinity, and what it starts inherits it.

Tests: tests/unit/drivers/test_cpu_pinning.py; with real cgroups tests/e2e/test_node_runc_drivers.py.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from dray.api.number_ranges import format_ranges
from dray.driver import DriverError
from dray.drivers.container_hook import ContainerState

CGROUPS = Path("/sys/fs/cgroup")
_FILE = "cpuset.cpus"


def pin_container(container: ContainerState, cpus: Collection[int], proc: Path, cgroups: Path) -> None:
    """Bind a container to CPUs; raises DriverError when the kernel refuses."""
    folder = container_cgroup(container, proc, cgroups)
    try:
        if folder is None:
            os.sched_setaffinity(container.pid, cpus)
        else:
            (folder / _FILE).write_text(format_ranges(cpus))
    except OSError as error:
        where = f"process {container.pid}" if folder is None else str(folder / _FILE)
        raise DriverError(
            f"the container cannot be pinned to CPUs {format_ranges(cpus)} ({where}): {error.strerror}"
        ) from error


def container_cgroup(container: ContainerState, proc: Path, cgroups: Path) -> Path | None:
    """Return the folder with the container's own cpuset; None when it has none of its own."""
    found = _path_of(proc / str(container.pid) / "cgroup", cgroups)
    if found is None or not container.id:
        return None
    root, path = found
    name = path.rpartition("/")[2]
    # Only a cgroup that is named after the container is its own; others are shared with who knows whom.
    if container.id not in name:
        return None
    folder = root / path.lstrip("/")
    if ".." not in path and (folder / _FILE).exists():
        return folder
    # A process in a cgroup namespace sees paths relative to its own: look for the name.
    matches = (Path(parent, name) for parent, folders, _ in os.walk(root) if name in folders)
    return next((match for match in matches if (match / _FILE).exists()), None)


def _path_of(file: Path, cgroups: Path) -> tuple[Path, str] | None:
    """Return the root of the hierarchy with cpusets, and the process's path in it."""
    try:
        lines = [line.split(":", 2) for line in file.read_text().splitlines()]
    except OSError as error:
        raise DriverError(
            f"{file} cannot be read: {error.strerror}; is the driver's pod without hostPID?"
        ) from error
    by_controller = {name: path for _, names, path in lines for name in names.split(",")}
    if "cpuset" in by_controller:
        return cgroups / "cpuset", by_controller["cpuset"]
    return (cgroups, by_controller[""]) if "" in by_controller else None


def check_cgroups(cgroups: Path) -> None:
    """Raise DriverError when cpusets of other containers could not be written."""
    v1 = cgroups / "cpuset"
    try:
        controllers = (cgroups / "cgroup.controllers").read_text().split()
    except OSError:
        controllers = []
    folder = v1 if v1.is_dir() else cgroups if "cpuset" in controllers else None
    if folder is None:
        raise DriverError(
            f"there is no cpuset controller below {cgroups}; mount the host path /sys/fs/cgroup there"
        )
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise DriverError(
            f"{folder} is mounted read-only; mount the host path /sys/fs/cgroup there, writable"
        )
