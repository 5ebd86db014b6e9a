"""Control groups of containers: limits of cpu, memory and processes, and the end of all that a container started.

Version 2 or 1, whichever there is. A container has a group of its own wherever the agent may make one (as root),
limits or not, below one of the agent's own (several agents may run on a machine): what a program leaves behind in another session is found in it and ended (`kill`). Without rights
there are no groups and no limits.

Tests: tests/unit/node/test_node_isolation.py, on folders for both versions and (as root) on the kernel's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from dray.api.quantity import parse_quantity
from dray.api.resource import QuantityValue

CGROUP_ROOT = Path("/sys/fs/cgroup")
MOST_PROCESSES = 32_768  # of a container; a fork bomb must not take all numbers of the machine
_PERIOD = 100_000  # microseconds
_CONTROLLERS = ("cpu", "memory", "pids")


def agent_group(root: Path) -> str:
    """Return the name of the cgroup of an agent, by its folder: no two agents share one.

    >>> agent_group(Path("/var/lib/dray/nodes/a"))
    'dray-4b66e650'
    """
    return f"dray-{hashlib.sha256(os.fsencode(root)).hexdigest()[:8]}"


class Limits:
    """Makes and removes the cgroups of containers."""

    def __init__(self, root: Path = CGROUP_ROOT, parent: str = "dray") -> None:
        self._is_v2 = (root / "cgroup.controllers").exists()
        self._root = root
        # controller -> folder of all containers; with version 2 one for all
        self._bases = {name: root / parent if self._is_v2 else root / name / parent for name in _CONTROLLERS}

    def make(self, pod_uid: str, name: str, limits: Mapping[str, QuantityValue]) -> list[Path]:
        """Make the cgroups of a container; empty when that is not allowed."""
        made: list[Path] = []
        for controller in _CONTROLLERS:
            with contextlib.suppress(OSError, ValueError):
                folder = self._folder(controller, pod_uid, name)
                if controller != "pids" or self._is_v2 or (folder / "pids.max").exists():
                    made.append(folder)
                for file, value in self._settings(controller, limits):
                    (folder / file).write_text(value)
        return list(dict.fromkeys(made))

    def _settings(self, controller: str, limits: Mapping[str, QuantityValue]) -> Iterator[tuple[str, str]]:
        """Yield files of a controller and what to write there."""
        if controller == "memory" and "memory" in limits:
            file = "memory.max" if self._is_v2 else "memory.limit_in_bytes"
            yield file, str(parse_quantity(limits["memory"]).ceil_value())
        elif controller == "cpu" and "cpu" in limits:
            quota = max(parse_quantity(limits["cpu"]).milli_value() * _PERIOD // 1000, 1000)
            if self._is_v2:
                yield "cpu.max", f"{quota} {_PERIOD}"
            else:
                yield "cpu.cfs_period_us", str(_PERIOD)
                yield "cpu.cfs_quota_us", str(quota)
        elif controller == "pids":
            yield "pids.max", str(MOST_PROCESSES)

    def _folder(self, controller: str, pod_uid: str, name: str) -> Path:
        base = self._bases[controller]
        if not self._is_v2 and not base.parent.is_dir():
            raise FileNotFoundError(f"no controller {controller}")
        folder = base / f"pod-{pod_uid}" / name
        folder.mkdir(parents=True, exist_ok=True)
        if self._is_v2:
            for parent in (self._root, base, folder.parent):
                with contextlib.suppress(OSError):  # the kernel may not have this controller
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
        return folder

    def groups(self, pod_uid: str, name: str) -> list[Path]:
        """Return the cgroups that a container has."""
        folders = (base / f"pod-{pod_uid}" / name for base in dict.fromkeys(self._bases.values()))
        return [folder for folder in folders if folder.is_dir()]

    def kill(self, pod_uid: str, name: str) -> None:
        """End every process that is left in the cgroups of a container."""
        for base in dict.fromkeys(self._bases.values()):
            folder = base / f"pod-{pod_uid}" / name
            with contextlib.suppress(OSError):
                if self._is_v2 and (folder / "cgroup.kill").exists():
                    (folder / "cgroup.kill").write_text("1")
                    continue
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)

    def remove(self, pod_uid: str) -> None:
        """Remove the cgroups of a pod, and that of the agent if it was the last; ones that are still in use stay."""
        for base in dict.fromkeys(self._bases.values()):
            pod = base / f"pod-{pod_uid}"
            for folder in (*pod.glob("*/"), pod, base):
                with contextlib.suppress(OSError):
                    folder.rmdir()
