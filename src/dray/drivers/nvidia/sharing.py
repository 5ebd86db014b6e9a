"""Sharing a GPU between the containers of one claim: time slices and MPS.

Both act on the machine through NVIDIA's own programs; `Commands` is the edge that
tests replace. An MPS daemon belongs to one claim and one set of GPUs: started at
prepare, told its limits, stopped at unprepare; its pipe folder is mounted into the
containers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dray.driver import ContainerEdits, DriverError, Mount
from dray.drivers.opaque_configs.nvidia import INTERVALS, MpsConfig, megabytes_of

PIPE_IN_CONTAINER = "/tmp/nvidia-mps"
SHARED_MEMORY = Path("/dev/shm")  # through which clients and daemon exchange data


class Commands(Protocol):
    """Runs a program; raises DriverError when it fails."""

    def __call__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, feed: str = ""
    ) -> str:
        """Run to the end and return what it printed."""
        ...


def run_command(command: Sequence[str], *, env: Mapping[str, str] | None = None, feed: str = "") -> str:
    """Run a program on this machine for at most a minute."""
    if shutil.which(command[0]) is None:
        raise DriverError(f"{command[0]} is not installed on this node; it comes with the NVIDIA driver")
    merged = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            command, env=merged, input=feed, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        raise DriverError(f"{' '.join(command)} did not end within a minute") from None
    if done.returncode:
        raise DriverError(
            f"{' '.join(command)} failed ({done.returncode}): {(done.stderr or done.stdout).strip()}"
        )
    return done.stdout


def set_time_slice(run: Commands, uuid: str, interval: str) -> None:
    """Set how long processes run on a GPU before they are swapped."""
    run(["nvidia-smi", "compute-policy", "-i", uuid, f"--set-timeslice={INTERVALS[interval]}"])


class MpsDaemons:
    """The MPS daemons of this node, one per claim."""

    def __init__(self, root: Path, run: Commands, shared_memory: Path = SHARED_MEMORY) -> None:
        self._root = root
        self._run = run
        self._shared_memory = shared_memory

    def _env(self, claim_uid: str, uuids: Sequence[str] = ()) -> dict[str, str]:
        folder = self._root / claim_uid
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
        return env | ({"CUDA_VISIBLE_DEVICES": ",".join(uuids)} if uuids else {})

    def start(self, claim_uid: str, uuids: Sequence[str], config: MpsConfig) -> ContainerEdits:
        """Start (or find running) the claim's daemon, set its limits, return what containers need."""
        env = self._env(claim_uid, uuids)
        pipe = Path(env["CUDA_MPS_PIPE_DIRECTORY"])
        if not (pipe / "control").exists():  # started before a restart: it is still ours
            pipe.mkdir(parents=True, exist_ok=True)
            Path(env["CUDA_MPS_LOG_DIRECTORY"]).mkdir(parents=True, exist_ok=True)
            command = ["nvidia-cuda-mps-control", "-d", *(["-multiuser-server"] if config.multi_user else [])]
            self._run(command, env=env)
        orders = []
        if config.default_active_thread_percentage is not None:
            orders.append(f"set_default_active_thread_percentage {config.default_active_thread_percentage}")
        for index, limit in sorted(self._limits(config, uuids).items()):
            orders.append(f"set_default_device_pinned_mem_limit {index} {limit}M")
        if orders:
            self._run(["nvidia-cuda-mps-control"], env=env, feed="\n".join(orders) + "\n")
        places = ((self._shared_memory, str(SHARED_MEMORY)), (pipe, PIPE_IN_CONTAINER))
        mounts = [
            Mount(host_path=str(host), container_path=inside, options=["rw", "nosuid", "nodev", "bind"])
            for host, inside in places
        ]
        return ContainerEdits(env=[f"CUDA_MPS_PIPE_DIRECTORY={PIPE_IN_CONTAINER}"], mounts=mounts)

    @staticmethod
    def _limits(config: MpsConfig, uuids: Sequence[str]) -> dict[int, int]:
        limits: dict[int, int] = {}
        if config.default_pinned_device_memory_limit is not None:
            limits = dict.fromkeys(range(len(uuids)), megabytes_of(config.default_pinned_device_memory_limit))
        for which, limit in (config.default_per_device_pinned_memory_limit or {}).items():
            if which in uuids:
                limits[uuids.index(which)] = megabytes_of(limit)
            elif which.isdigit() and int(which) < len(uuids):
                limits[int(which)] = megabytes_of(limit)
            else:
                raise DriverError(
                    f"defaultPerDevicePinnedMemoryLimit names {which!r}, which the claim does not hold"
                )
        return limits

    def stop(self, claim_uid: str) -> None:
        """Stop the claim's daemon if it has one."""
        folder = self._root / claim_uid
        if not folder.exists():
            return
        if (folder / "pipe/control").exists():
            self._run(["nvidia-cuda-mps-control"], env=self._env(claim_uid), feed="quit\n")
        shutil.rmtree(folder, ignore_errors=True)
