"""The `none` runtime: containers are only states. For scale tests and simulated nodes.

Every container starts at once. Init containers succeed at once; sidecars (init containers
that are always restarted) and the others run until they are stopped. The pod annotation
`dray.dev/runs-for` (seconds) makes the others end by themselves, with the exit code in
`dray.dev/exits-with` (0 if absent); so batch jobs can be played.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dray.node.runtime.contract import ContainerId, ExecResult, FoundContainer, Launch, OnExit, StartError
from dray.node.runtime.terminal import TerminalProcess

RUNS_FOR, EXITS_WITH = "dray.dev/runs-for", "dray.dev/exits-with"
_LONGEST_SECONDS = 10 * 365 * 86400.0


class NoneRuntime:
    """Containers that exist in name only."""

    name = "none"

    def __init__(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._running: dict[ContainerId, asyncio.TimerHandle | None] = {}

    async def found(self) -> list[FoundContainer]:
        """Nothing survives, since nothing was."""
        return []

    async def start(self, launch: Launch) -> None:
        """Say that it runs."""
        ending = _ending(launch)
        timer = None
        if ending is not None:
            seconds, code = ending
            timer = asyncio.get_running_loop().call_later(seconds, self._end, launch.id, code)
        self._running[launch.id] = timer

    def _end(self, id: ContainerId, code: int) -> None:
        if id in self._running:
            timer = self._running.pop(id)
            if timer is not None:
                timer.cancel()
            self._on_exit(id, code, "")

    async def stop(self, id: ContainerId, grace_seconds: float) -> None:
        """End it as a well-behaved program would on SIGTERM."""
        self._end(id, 0)

    async def run_in(self, id: ContainerId, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Succeed: there is nobody to ask."""
        return ExecResult(0, b"")

    def first_processes(self, pod_uid: str) -> list[int]:
        """There are no processes."""
        return []

    async def open_exec(self, id: ContainerId, command: Sequence[str]) -> asyncio.subprocess.Process:
        """Refuse: there is nothing to enter."""
        raise StartError("NotSupported", "this node runs containers in name only (runtime none)")

    async def open_terminal(self, id: ContainerId, command: Sequence[str]) -> TerminalProcess:
        """Refuse: there is nothing to enter."""
        raise StartError("NotSupported", "this node runs containers in name only (runtime none)")

    def write_log(self, pod_uid: str, message: str) -> None:
        """There are no logs."""

    async def forget(self, pod_uid: str) -> None:
        """Nothing is left to remove."""

    async def close(self) -> None:
        """Stop all timers."""
        for timer in self._running.values():
            if timer is not None:
                timer.cancel()
        self._running.clear()


def _ending(launch: Launch) -> tuple[float, int] | None:
    """Return after how many seconds a container ends by itself, and how; None: it does not."""
    if any(container.name == launch.container.name for container in launch.pod.spec.init_containers):
        return None if launch.container.restart_policy == "Always" else (0.0, 0)
    annotations = launch.pod.metadata.annotations or {}
    if RUNS_FOR not in annotations:
        return None
    try:
        seconds, code = float(annotations[RUNS_FOR]), int(annotations.get(EXITS_WITH, "0"))
    except ValueError:
        seconds, code = -1.0, 0
    if not 0 <= seconds <= _LONGEST_SECONDS or not 0 <= code <= 255:
        raise StartError(
            "CreateContainerConfigError",
            f"annotation {RUNS_FOR} must be a number of seconds and {EXITS_WITH} a number from 0 to 255",
        )
    return seconds, code
