"""CPU and memory limits through cgroups, where the agent may write them: version 2 or 1, whichever there is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from dray.api.quantity import parse_quantity
from dray.api.resource import QuantityValue

CGROUP_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 100_000  # microseconds


class Limits:
    """Makes and removes the cgroups of containers."""

    def __init__(self, root: Path = CGROUP_ROOT, parent: str = "dray") -> None:
        self._is_v2 = (root / "cgroup.controllers").exists()
        self._memory = root / parent if self._is_v2 else root / "memory" / parent
        self._cpu = root / parent if self._is_v2 else root / "cpu" / parent

    def make(self, pod_uid: str, name: str, limits: Mapping[str, QuantityValue]) -> list[Path]:
        """Make cgroups with these limits; empty when there are none, or when that is not allowed."""
        made: list[Path] = []
        with contextlib.suppress(OSError, ValueError):
            if "memory" in limits:
                folder = self._folder(self._memory, pod_uid, name)
                file = "memory.max" if self._is_v2 else "memory.limit_in_bytes"
                (folder / file).write_text(str(parse_quantity(limits["memory"]).ceil_value()))
                made.append(folder)
            if "cpu" in limits:
                folder = self._folder(self._cpu, pod_uid, name)
                quota = max(parse_quantity(limits["cpu"]).milli_value() * _PERIOD // 1000, 1000)
                if self._is_v2:
                    (folder / "cpu.max").write_text(f"{quota} {_PERIOD}")
                else:
                    (folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
                    (folder / "cpu.cfs_quota_us").write_text(str(quota))
                made.append(folder)
        return list(dict.fromkeys(made))

    def _folder(self, base: Path, pod_uid: str, name: str) -> Path:
        folder = base / f"pod-{pod_uid}" / name
        folder.mkdir(parents=True, exist_ok=True)
        if self._is_v2:
            for parent in (base, folder.parent):
                (parent / "cgroup.subtree_control").write_text("+cpu +memory")
        return folder

    def remove(self, pod_uid: str) -> None:
        """Remove the cgroups of a pod; ones that are still in use stay."""
        for base in {self._memory, self._cpu}:
            pod = base / f"pod-{pod_uid}"
            for folder in (*pod.glob("*/"), pod):
                with contextlib.suppress(OSError):
                    folder.rmdir()
