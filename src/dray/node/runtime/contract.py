"""What the agent asks of a container runtime, and what it tells back.

A runtime starts containers, stops them, and says when they end. It outlives the
agent: `found` tells a new agent what the old one left running, and with which exit
codes the others ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dray.api.cdi import ContainerEdits
from dray.api.podspec import RunContainer, RunPod
from dray.node.runtime.terminal import TerminalProcess


class StartError(Exception):
    """A container cannot be started; `reason` is the word for its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ContainerId:
    """One run of one container."""

    pod_uid: str
    name: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.pod_uid}-{self.name}-{self.attempt}"


@dataclass(frozen=True, slots=True)
class BindMount:
    """A host path that the container shall see."""

    host_path: Path
    container_path: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything needed to start a container."""

    id: ContainerId
    pod: RunPod
    container: RunContainer
    command: Sequence[str]  # with variables expanded; empty means: as the image says
    env: Sequence[str]  # NAME=value, without those of CDI
    mounts: Sequence[BindMount]
    edits: ContainerEdits  # from CDI, complete
    log_path: Path
    needs_pod_network: bool = False  # a claim of the pod brings a network interface


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A container that was there before this agent."""

    id: ContainerId
    started_at: float
    exit_code: int | None  # None: it runs
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command in a container ended."""

    exit_code: int
    output: bytes


OnExit = Callable[[ContainerId, int, str], None]  # id, exit code, reason ("" for the usual one)


class Runtime(Protocol):
    """A way to run containers."""

    name: str

    async def found(self) -> list[FoundContainer]:
        """Adopt what a previous agent left; called once, before anything else."""
        ...

    async def start(self, launch: Launch) -> None:
        """Start a container; raise StartError. Its end is told to `on_exit`."""
        ...

    async def stop(self, id: ContainerId, grace_seconds: float) -> None:
        """Ask the container to end, and make it end after the grace; returns when it has."""
        ...

    async def run_in(self, id: ContainerId, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Run a command inside the container; raise TimeoutError."""
        ...

    async def open_exec(self, id: ContainerId, command: Sequence[str]) -> asyncio.subprocess.Process:
        """Start a command inside the container with pipes attached, for `kubectl exec`; raise StartError."""
        ...

    async def open_terminal(self, id: ContainerId, command: Sequence[str]) -> TerminalProcess:
        """Start a command inside the container on a terminal, for `kubectl exec -t`; raise StartError."""
        ...

    def first_processes(self, pod_uid: str) -> list[int]:
        """Return the processes below which all others of the pod's running containers are."""
        ...

    def write_log(self, pod_uid: str, message: str) -> None:
        """Add a line to the logs of the pod's running containers, where the runtime writes them itself."""
        ...

    async def forget(self, pod_uid: str) -> None:
        """Remove all that is left of a pod's containers."""
        ...

    async def close(self) -> None:
        """Close all files and stop watching; containers keep running."""
        ...
