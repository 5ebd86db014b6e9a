"""The `process` runtime: a container's command as a plain process. **No isolation.**

The command runs with the agent's rights, or as the user and groups that the pod asks
for where the agent is root (`credentials`), in a process group of its own, on the
host's files and network. It gets the container's environment plus that of its CDI
devices, so a program finds the devices it was given; nothing keeps it from touching
others. It is meant for one's own machine, tests and demos; use `runc` for isolation.

Mounts do not exist here. The variable DRAY_MOUNTS holds a JSON object from container
path to host path, for volumes and CDI mounts alike; devices nodes are used in place.

Each container has a shim, ten lines of sh, that starts the command, waits, and
writes the exit code to a file. It needs no agent, so containers survive a kill -9
of the agent, and the next one learns from the files what happened meanwhile. The shim
and its folder belong to the agent's user, whoever the command runs as: what the next
agent finds there was written by shim and agent only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dray.api.cdi import CdiError
from dray.api.parsing import load_json
from dray.node.cdi import merge_env
from dray.node.logs import LogFile, LogPump
from dray.node.private_files import give_volume, make_private_folder, write_private
from dray.node.runtime.contract import ContainerId, ExecResult, FoundContainer, Launch, OnExit, StartError
from dray.node.runtime.credentials import (
    Credentials,
    become_record,
    credentials_of,
    exec_prefix,
    own_credentials,
)
from dray.node.runtime.limits import Limits

log = logging.getLogger("dray.node")

# $1 is the container's directory. `trap :` (not '') leaves signals working in the command:
# a handler is reset when a child is started, an ignored signal stays ignored. At the end the shim
# says so through the pipe `done` and holds the pipes open until an agent has taken the last
# output (`taken`), however long that takes. Then it kills the group, because a container does not
# outlive its first process.
SHIM = """
umask 077
exec 3<>"$1/stdout" 4<>"$1/stderr" 5<>"$1/done" 6<>"$1/taken"
echo $$ >"$1/pid"
trap : TERM INT HUP QUIT USR1 USR2
for group in $2; do echo $$ >"$group/cgroup.procs"; done
dir=$1; shift 2
umask 022
"$@" >&3 2>&4 3>&- 4>&- 5>&- 6>&- </dev/null
code=$?
umask 077
echo $code >"$dir/exit"
echo >&5
read -r _ <&6
kill -KILL 0
"""
_RECORD = "env.json"  # environment, directory and credentials of a container
_BECOME = "become"  # the same for the script that starts commands as somebody else
_PIPES = ("stdout", "stderr", "done", "taken")
_PAUSE = "pause"  # images of this name do nothing, for ever
_KILLED = 137


@dataclass(slots=True)
class _Running:
    id: ContainerId
    folder: Path
    pid: int
    started_at: float
    over: asyncio.Event = field(default_factory=asyncio.Event)
    pumps: list[LogPump] = field(default_factory=list)
    log: LogFile | None = None
    env: Sequence[str] = ()
    cwd: str = "/"
    prefix: Sequence[str] | None = ()  # before every command; None: not known, so no command can be run
    pidfd: int = -1
    done: int = -1  # the pipe through which the shim says that the command has ended
    was_killed: bool = False


class ProcessRuntime:
    """Containers as processes; see the module's text."""

    name = "process"

    def __init__(self, root: Path, on_exit: OnExit, limits: Limits | None = None) -> None:
        self._root = root / "containers"
        self._node_root = root
        self._logs = root / "logs"
        self._on_exit = on_exit
        self._limits = limits or Limits()
        self._running: dict[ContainerId, _Running] = {}
        self._own = own_credentials()

    # --- starting ---------------------------------------------------------------

    async def start(self, launch: Launch) -> None:
        """Start the command behind its shim."""
        folder = self._make_folder(launch.id)
        try:
            credentials = self._credentials(launch)
            command, env, cwd = await self._command_line(launch, folder)
        except (StartError, CdiError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        write_private(folder / "log", str(launch.log_path))
        write_private(folder / _RECORD, json.dumps({"env": list(env), "cwd": cwd, **credentials.to_json()}))
        groups = self._make_groups(launch)
        prefix = exec_prefix(credentials, self._own, folder / _BECOME)
        if prefix:
            write_private(folder / _BECOME, become_record(credentials, env))
        if credentials.uid != self._own.uid:
            # The folder stays closed to that user, but a program may open its own /dev/stdout again.
            for name in ("stdout", "stderr"):
                os.chown(folder / name, credentials.uid, credentials.gid)
            self._give_volumes(launch, credentials)
        running = _Running(launch.id, folder, 0, time.time(), env=env, cwd=cwd, prefix=prefix)
        # Before the shim: a pipe that nobody else holds loses what a quick command wrote.
        self._open_pipes(running, launch.log_path)
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 (a fork takes a millisecond; threads would reorder starts)
                ["/bin/sh", "-c", SHIM, "shim", str(folder), " ".join(groups), *prefix, *command],
                env=_first_environment(env, prefix),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._close_pipes(running)
            shutil.rmtree(folder, ignore_errors=True)
            raise StartError("RunContainerError", f"cannot start {command[0]}: {error.strerror}") from error
        running.pid = process.pid
        self._watch(running)
        # Popen would warn about a child it never waited for; `_ended` waits for it.
        process.returncode = 0

    async def _command_line(self, launch: Launch, folder: Path) -> tuple[list[str], list[str], str]:
        """Return what to run, in which environment, where."""
        command = list(launch.command)
        if not command:
            if launch.container.image.rpartition("/")[2].startswith(_PAUSE):
                command = ["sleep", "infinity"]
            else:
                raise StartError(
                    "CreateContainerConfigError",
                    f"image {launch.container.image!r} is not used by the process runtime, so the container needs a command",
                )
        mounts = {mount.container_path: str(mount.host_path) for mount in launch.mounts}
        mounts |= {mount.container_path: mount.host_path for mount in launch.edits.mounts}
        base = [f"PATH={os.environ.get('PATH', os.defpath)}", f"HOME={os.environ.get('HOME', '/')}"]
        env = merge_env([*base, *launch.env, f"DRAY_MOUNTS={json.dumps(mounts)}"], launch.edits.env)
        path = next(variable[5:] for variable in env if variable.startswith("PATH="))
        if shutil.which(command[0], path=path) is None:
            raise StartError(
                "RunContainerError", f"command {command[0]!r} is not on this machine (PATH={path})"
            )
        cwd = mounts.get(launch.container.working_dir) or launch.container.working_dir or "/"
        if not Path(cwd).is_dir():
            raise StartError("RunContainerError", f"working directory {cwd} is not on this machine")
        return command, env, cwd

    def _make_folder(self, id: ContainerId) -> Path:
        folder = self._folder(id)
        # A start that was cut short left a folder without a process: begin again.
        shutil.rmtree(folder, ignore_errors=True)
        make_private_folder(folder)
        for name in _PIPES:
            os.mkfifo(folder / name, 0o600)
        return folder

    def _folder(self, id: ContainerId) -> Path:
        return self._root / id.pod_uid / id.name / str(id.attempt)

    def _credentials(self, launch: Launch) -> Credentials:
        return credentials_of(launch.pod, launch.container, self._own)

    def _give_volumes(self, launch: Launch, credentials: Credentials) -> None:
        volumes = self._node_root / "pods" / launch.id.pod_uid / "volumes"
        for mount in launch.mounts:
            if mount.host_path.is_relative_to(volumes):
                name = mount.host_path.relative_to(volumes).parts[0]
                give_volume(self._node_root, volumes / name, credentials.uid, credentials.gid)

    def _make_groups(self, launch: Launch) -> list[str]:
        limits = launch.container.resources.limits or {}
        name = f"{launch.id.name}-{launch.id.attempt}"
        return [str(path) for path in self._limits.make(launch.id.pod_uid, name, limits)]

    # --- watching ---------------------------------------------------------------

    def _open_pipes(self, running: _Running, log_path: Path) -> None:
        running.log = LogFile(log_path)
        running.pumps = [LogPump(running.folder / name, name, running.log) for name in ("stdout", "stderr")]
        running.done = os.open(running.folder / "done", os.O_RDWR | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(running.done, self._take_output, running)

    def _close_pipes(self, running: _Running) -> None:
        for pump in running.pumps:
            pump.finish()
        running.pumps = []
        if running.log is not None:
            running.log.close()
            running.log = None
        if running.done >= 0:
            asyncio.get_running_loop().remove_reader(running.done)
            os.close(running.done)
            running.done = -1

    def _take_output(self, running: _Running) -> None:
        """The command has ended: take what it left in the pipes and let the shim go."""
        folder = running.folder
        self._close_pipes(running)
        taken = os.open(folder / "taken", os.O_RDWR | os.O_NONBLOCK)
        os.write(taken, b"\n")
        os.close(taken)

    def _watch(self, running: _Running) -> None:
        running.pidfd = os.pidfd_open(running.pid)
        self._running[running.id] = running
        asyncio.get_running_loop().add_reader(running.pidfd, self._ended, running)

    def _ended(self, running: _Running) -> None:
        asyncio.get_running_loop().remove_reader(running.pidfd)
        os.close(running.pidfd)
        with contextlib.suppress(ChildProcessError):  # adopted from a previous agent: not our child
            os.waitpid(running.pid, os.WNOHANG)
        self._close_pipes(running)
        code = _read_exit(running.folder)
        if code is None:
            # The shim itself was killed: by us, or by somebody who knows no mercy.
            code = _KILLED
            with contextlib.suppress(OSError):  # the folder may be gone, or the disk full
                write_private(running.folder / "exit", str(code))
        self._running.pop(running.id, None)
        running.over.set()
        self._on_exit(running.id, code, "")

    async def found(self) -> list[FoundContainer]:
        """Adopt what previous agents left: living processes are watched again."""
        found = []
        for folder in sorted(self._root.glob("*/*/*")):
            if not folder.name.isdecimal() or not folder.is_dir():
                continue
            found_id = ContainerId(folder.parts[-3], folder.parts[-2], int(folder.name))
            container = self._adopt(found_id, folder)
            if container is not None:
                found.append(container)
        return found

    def _adopt(self, id: ContainerId, folder: Path) -> FoundContainer | None:
        try:
            started_at = (folder / "pid").stat().st_mtime
            pid = int((folder / "pid").read_text())
        except (OSError, ValueError):
            return None  # never came to life
        if _is_shim(pid, folder):
            # The command may have ended; then the shim waits for us to take its output.
            try:
                running, log_path = self._read_record(id, folder, pid, started_at)
                self._open_pipes(running, log_path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.error("container %s: its files are damaged (%s); it is ended", id, error)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                write_private(folder / "exit", str(_KILLED))
                return FoundContainer(id, started_at, _KILLED, time.time())
            self._watch(running)
            return FoundContainer(id, started_at, None)
        code = _read_exit(folder)
        if code is None:
            code = _KILLED
            write_private(folder / "exit", str(code))
        return FoundContainer(id, started_at, code, (folder / "exit").stat().st_mtime)

    def _read_record(
        self, id: ContainerId, folder: Path, pid: int, started_at: float
    ) -> tuple[_Running, Path]:
        """Read what the last agent wrote down of a container; raises when that is damaged."""
        stored = load_json((folder / _RECORD).read_bytes())
        log_path = Path((folder / "log").read_text())
        if not log_path.is_relative_to(self._logs) or ".." in log_path.parts:
            raise ValueError(f"log {log_path} is not below {self._logs}")
        prefix: Sequence[str] | None = None
        if "uid" in stored:
            prefix = exec_prefix(Credentials.from_json(stored), self._own, folder / _BECOME)
        env = [str(variable) for variable in stored["env"] if "=" in variable]
        running = _Running(id, folder, pid, started_at, env=env, cwd=str(stored["cwd"]), prefix=prefix)
        return running, log_path

    # --- stopping ---------------------------------------------------------------

    async def stop(self, id: ContainerId, grace_seconds: float) -> None:
        """SIGTERM to the whole group, SIGKILL after the grace."""
        running = self._running.get(id)
        if running is None:
            return
        if grace_seconds > 0:
            await self._signal(running, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.over.wait(), grace_seconds)
                return
        running.was_killed = True
        await self._signal(running, signal.SIGKILL)
        await running.over.wait()

    async def _signal(self, running: _Running, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, number)

    # --- the rest ---------------------------------------------------------------

    async def run_in(self, id: ContainerId, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Run a command in the container's environment and directory."""
        process = await self.open_exec(id, command, tty=False)
        try:
            output, errors = await asyncio.wait_for(process.communicate(), timeout_seconds)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        return ExecResult(process.returncode or 0, output + errors)

    async def open_exec(
        self, id: ContainerId, command: Sequence[str], *, tty: bool
    ) -> asyncio.subprocess.Process:
        """Start a command in the container's environment and directory."""
        running = self._running.get(id)
        if running is None:
            raise StartError("NotRunning", f"container {id.name} is not running")
        if running.prefix is None:
            raise StartError(
                "ExecError",
                f"container {id.name} was started by an older agent, which did not write down as whom it runs; "
                "restart the pod to run commands in it",
            )
        try:
            return await asyncio.create_subprocess_exec(
                *running.prefix,
                *self._exec_line(running, command),
                env=_first_environment(running.env, running.prefix),
                umask=0o022,
                cwd=running.cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise StartError("ExecError", f"cannot run {command[0]!r}: {error.strerror}") from error

    def _exec_line(self, running: _Running, command: Sequence[str]) -> Sequence[str]:
        return command

    async def forget(self, pod_uid: str) -> None:
        """Remove the folders of a pod's containers."""
        shutil.rmtree(self._root / pod_uid, ignore_errors=True)
        self._limits.remove(pod_uid)

    async def close(self) -> None:
        """Stop watching; the containers go on."""
        loop = asyncio.get_running_loop()
        for running in self._running.values():
            loop.remove_reader(running.pidfd)
            os.close(running.pidfd)
            self._close_pipes(running)
        self._running.clear()


def _first_environment(env: Sequence[str], prefix: Sequence[str]) -> dict[str, str]:
    """Return the environment to start with: the container's, unless something runs before its command."""
    if prefix:
        return {"PATH": os.defpath}
    return dict(variable.split("=", 1) for variable in env)


def _read_exit(folder: Path) -> int | None:
    try:
        return int((folder / "exit").read_text())
    except (FileNotFoundError, ValueError):
        return None


def _is_shim(pid: int, folder: Path) -> bool:
    """Say whether the process is the shim of this container, and not a stranger that got its number."""
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
