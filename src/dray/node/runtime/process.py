"""The `process` runtime: a container's command as a plain process. **No isolation.**

The command runs with the agent's rights, or as the user and groups that the pod asks
for where the agent is root (`credentials`), in a process group of its own, on the
host's files and network. It gets the container's environment plus that of its CDI
devices, so a program finds the devices it was given. Where the agent is root and the command is not, it has
a /dev with those devices only (`isolation`), and the home of its user; otherwise nothing keeps it from touching
others. It has a cgroup where the agent may make one (`limits`). It is meant for one's own machine, tests and demos; use `runc` for isolation.

Mounts do not exist here. The variable DRAY_MOUNTS holds a JSON object from container
path to host path, for volumes and CDI mounts alike; devices nodes are used in place.

Hooks of CDI devices that belong before the command (`createRuntime` and the like) run while the
shim waits; one that fails fails the start.

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

import msgspec

from dray.api.cdi import CdiError, ContainerEdits, Hook
from dray.api.parsing import load_json
from dray.api.user_names import EDITS_VARIABLE
from dray.host.private_files import give_volume, make_private_folder, write_private_text
from dray.node.cdi import merge_env
from dray.node.logs import LogFile, LogPump
from dray.node.runtime.contract import ContainerId, ExecResult, FoundContainer, Launch, OnExit, StartError
from dray.node.runtime.credentials import (
    Credentials,
    become_record,
    credentials_of,
    exec_prefix,
    login_environment,
    own_credentials,
    umask_of,
)
from dray.node.runtime.hooks import run_hook
from dray.node.runtime.isolation import (
    engine_nodes,
    isolated_line,
    isolation_record,
    joining_line,
    wants_edits,
    wants_isolation,
    wants_private_tmp,
)
from dray.node.runtime.limits import Limits, agent_group
from dray.node.runtime.terminal import TerminalProcess, start_on_terminal

log = logging.getLogger("dray.node")

# $1 is the container's directory. `trap :` (not '') leaves signals working in the command:
# a handler is reset when a child is started, an ignored signal stays ignored. At the end the shim
# says so through the pipe `done` and holds the pipes open until an agent has taken the last
# output (`taken`), however long that takes. Then it kills the group, because a container does not
# outlive its first process. With $3 it waits on its standard input until the hooks have run.
SHIM = """
umask 077
exec 3<>"$1/stdout" 4<>"$1/stderr" 5<>"$1/done" 6<>"$1/taken"
echo $$ >"$1/pid"
trap : TERM INT HUP QUIT USR1 USR2
for group in $2; do echo $$ >"$group/cgroup.procs"; done
[ -z "$3" ] || read -r _ || exit 1
dir=$1; shift 3
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
_MOST_EDITS = 64 * 1024  # bytes; Linux takes 128 KiB in one variable
_NO_PRIVATE_TMP = (
    "a private /tmp needs an agent that is root and a container that is not, or the runtime runc"
)
_ISOLATION = "isolation"  # devices of a container that has a /dev of its own
_BECOME = "become"  # the same for the script that starts commands as somebody else
_PIPES = ("stdout", "stderr", "done", "taken")
_EARLY_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer")
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
    owner: tuple[int, int] = (-1, -1)  # user and group of its terminals
    pidfd: int = -1
    done: int = -1  # the pipe through which the shim says that the command has ended
    is_isolated: bool = False  # it has a /dev, and so a mount namespace, of its own


def _edits_text(edits: ContainerEdits, *, is_isolated: bool) -> str:
    """Return what CDI says of a container's devices, for a program that hands them on; raises StartError."""
    if is_isolated:  # its /dev has the nodes under the names that they shall have
        nodes = [msgspec.structs.replace(node, host_path="") for node in edits.device_nodes]
        edits = msgspec.structs.replace(edits, device_nodes=nodes)
    text = msgspec.json.encode(edits).decode()
    if len(text) > _MOST_EDITS:
        message = f"CDI says more of the devices ({len(text)} bytes) than a variable may hold ({_MOST_EDITS})"
        raise StartError("CreateContainerError", message)
    return text


class ProcessRuntime:
    """Containers as processes; see the module's text."""

    name = "process"
    _has_own_tmp = False  # whether every container has a /tmp of its own

    def __init__(self, root: Path, on_exit: OnExit, limits: Limits | None = None) -> None:
        self._root = root / "containers"
        self._node_root = root
        self._logs = root / "logs"
        self._on_exit = on_exit
        self._limits = limits or Limits(parent=agent_group(root.resolve()))
        self._running: dict[ContainerId, _Running] = {}
        self._own = own_credentials()
        self._execs: set[asyncio.Task[None]] = set()

    # --- starting ---------------------------------------------------------------

    async def start(self, launch: Launch) -> None:
        """Start the command behind its shim."""
        folder = self._make_folder(launch.id)
        try:
            credentials = self._credentials(launch)
            command, env, cwd = await self._command_line(launch, folder)
            umask = umask_of(launch.pod)
            is_isolated = wants_isolation(credentials, self._own)
            if is_isolated:
                has_tmp = wants_private_tmp(launch.pod)
                nodes = [*launch.edits.device_nodes, *(engine_nodes() if wants_edits(launch.pod) else ())]
                record = isolation_record(folder, nodes, credentials, has_private_tmp=has_tmp)
                write_private_text(folder / _ISOLATION, record)
            elif wants_private_tmp(launch.pod) and not self._has_own_tmp:
                raise StartError("CreateContainerError", _NO_PRIVATE_TMP)
        except (StartError, CdiError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        write_private_text(folder / "log", str(launch.log_path))
        write_private_text(
            folder / _RECORD, json.dumps({"env": list(env), "cwd": cwd, **credentials.to_json()})
        )
        groups = self._make_groups(launch)
        prefix = exec_prefix(credentials, self._own, folder / _BECOME)
        if prefix:
            write_private_text(folder / _BECOME, become_record(credentials, env, umask, cwd))
        if credentials.uid != self._own.uid:
            # The folder stays closed to that user, but a program may open its own /dev/stdout again.
            for name in ("stdout", "stderr"):
                os.chown(folder / name, credentials.uid, credentials.gid)
            self._give_volumes(launch, credentials)
        owner = (credentials.uid, credentials.gid)
        running = _Running(launch.id, folder, 0, time.time(), env=env, cwd=cwd, prefix=prefix, owner=owner)
        running.is_isolated = is_isolated
        # Before the shim: a pipe that nobody else holds loses what a quick command wrote.
        self._open_pipes(running, launch.log_path)
        hooks = self._early_hooks(launch)
        waiting, gate = os.pipe()
        isolated = isolated_line(folder / _ISOLATION) if is_isolated else ()
        line = [
            *isolated,
            "/bin/sh",
            "-c",
            SHIM,
            "shim",
            str(folder),
            " ".join(groups),
            "wait" if hooks else "",
        ]
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 (a fork takes a millisecond; threads would reorder starts)
                [*line, *prefix, *command],
                env=_first_environment(env, prefix),
                cwd="/" if prefix else cwd,  # what stands before the command enters the folder as its user
                stdin=waiting if hooks else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._close_pipes(running)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(gate)
            raise StartError("RunContainerError", f"cannot start {command[0]}: {error.strerror}") from error
        finally:
            os.close(waiting)
        running.pid = process.pid
        self._watch(running)
        # Popen would warn about a child it never waited for; `_ended` waits for it.
        process.returncode = 0
        await self._run_hooks(running, hooks, gate)

    async def _run_hooks(self, running: _Running, hooks: Sequence[Hook], gate: int) -> None:
        """Run what CDI devices ask for before the command, then let the shim go on."""
        state = {
            "ociVersion": "1.2.0",
            "id": str(running.id),
            "status": "created",
            "pid": running.pid,
            "bundle": str(running.folder),
        }
        try:
            for hook in hooks:
                await run_hook(hook, json.dumps(state).encode())
            with contextlib.suppress(BrokenPipeError):  # there are no hooks, or it was killed meanwhile
                os.write(gate, b"\n")
        except StartError:
            # Its end is told by the failure of its start.
            self._running.pop(running.id, None)
            asyncio.get_running_loop().remove_reader(running.pidfd)
            os.close(running.pidfd)
            os.killpg(running.pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitpid, running.pid, 0)
            self._close_pipes(running)
            shutil.rmtree(running.folder, ignore_errors=True)
            raise
        finally:
            os.close(gate)

    def _early_hooks(self, launch: Launch) -> list[Hook]:
        return [hook for hook in launch.edits.hooks if hook.hook_name in _EARLY_HOOKS]

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
        uid = self._credentials(launch).uid
        if uid != self._own.uid:
            base = merge_env(base, login_environment(uid))
        env = merge_env([*base, *launch.env, f"DRAY_MOUNTS={json.dumps(mounts)}"], launch.edits.env)
        if wants_edits(launch.pod):
            is_isolated = wants_isolation(self._credentials(launch), self._own)
            env.append(f"{EDITS_VARIABLE}={_edits_text(launch.edits, is_isolated=is_isolated)}")
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
        made = self._limits.make(launch.id.pod_uid, _group_name(launch.id), limits)
        return [str(path) for path in made]

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
            # The shim itself was killed: by us, or from outside with SIGKILL.
            code = _KILLED
            with contextlib.suppress(OSError):  # the folder may be gone, or the disk full
                write_private_text(running.folder / "exit", str(code))
        self._running.pop(running.id, None)
        self._limits.kill(running.id.pod_uid, _group_name(running.id))
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
                write_private_text(folder / "exit", str(_KILLED))
                return FoundContainer(id, started_at, _KILLED, time.time())
            self._watch(running)
            return FoundContainer(id, started_at, None)
        code = _read_exit(folder)
        if code is None:
            code = _KILLED
            write_private_text(folder / "exit", str(code))
        return FoundContainer(id, started_at, code, (folder / "exit").stat().st_mtime)

    def _read_record(
        self, id: ContainerId, folder: Path, pid: int, started_at: float
    ) -> tuple[_Running, Path]:
        """Read what the last agent wrote down of a container; raises when that is damaged."""
        stored = load_json((folder / _RECORD).read_bytes())
        log_path = Path((folder / "log").read_text())
        # What is stored may name it by a link, see _is_shim.
        folder_of_log = Path(os.path.realpath(log_path.parent))
        if not folder_of_log.is_relative_to(os.path.realpath(self._logs)) or ".." in log_path.parts:
            raise ValueError(f"log {log_path} is not below {self._logs}")
        prefix: Sequence[str] | None = None
        owner = (-1, -1)
        if "uid" in stored:
            credentials = Credentials.from_json(stored)
            prefix = exec_prefix(credentials, self._own, folder / _BECOME)
            owner = (credentials.uid, credentials.gid)
        env = [str(variable) for variable in stored["env"] if "=" in variable]
        cwd = str(stored["cwd"])
        running = _Running(id, folder, pid, started_at, env=env, cwd=cwd, prefix=prefix, owner=owner)
        running.is_isolated = (folder / _ISOLATION).exists()
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
        await self._signal(running, signal.SIGKILL)
        await running.over.wait()

    async def _signal(self, running: _Running, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, number)

    # --- the rest ---------------------------------------------------------------

    def first_processes(self, pod_uid: str) -> list[int]:
        """Return the shims of a pod's running containers."""
        return [running.pid for id, running in self._running.items() if id.pod_uid == pod_uid]  # noqa: A001

    async def run_in(self, id: ContainerId, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Run a command in the container's environment and directory."""
        process = await self.open_exec(id, command)
        try:
            output, errors = await asyncio.wait_for(process.communicate(), timeout_seconds)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        return ExecResult(process.returncode or 0, output + errors)

    async def open_exec(self, id: ContainerId, command: Sequence[str]) -> asyncio.subprocess.Process:
        """Start a command in the container's environment and directory."""
        running, prefix = self._ready_for_exec(id)
        try:
            process = await asyncio.create_subprocess_exec(
                *prefix,
                *self._exec_line(running, command, tty=False),
                env=_first_environment(running.env, prefix),
                umask=0o022,
                cwd="/" if prefix else running.cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise StartError("ExecError", f"cannot run {command[0]!r}: {error.strerror}") from error
        self._end_with(running, process)
        return process

    async def open_terminal(self, id: ContainerId, command: Sequence[str]) -> TerminalProcess:
        """Start a command in the container's environment and directory, on a terminal."""
        running, prefix = self._ready_for_exec(id)
        try:
            process = await start_on_terminal(
                [*prefix, *self._exec_line(running, command, tty=True)],
                env=_first_environment(running.env, prefix),
                cwd="/" if prefix else running.cwd,
                owner=running.owner,
            )
        except OSError as error:
            raise StartError("ExecError", f"cannot run {command[0]!r}: {error.strerror}") from error
        self._end_with(running, process)
        return process

    def _ready_for_exec(self, id: ContainerId) -> tuple[_Running, Sequence[str]]:
        running = self._running.get(id)
        if running is None:
            raise StartError("NotRunning", f"container {id.name} is not running")
        if running.prefix is None:
            raise StartError(
                "ExecError",
                f"container {id.name} was started by an older agent, which did not write down as whom it runs; "
                "restart the pod to run commands in it",
            )
        if not running.is_isolated:
            return running, running.prefix
        groups = self._limits.groups(id.pod_uid, _group_name(id))
        return running, [*joining_line(running.pid, groups), *running.prefix]

    def _end_with(self, running: _Running, process: asyncio.subprocess.Process | TerminalProcess) -> None:
        """End a command with its container: nothing in a container outlives its first process."""

        async def watch() -> None:
            await running.over.wait()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

        async def until_ended() -> None:
            watching = asyncio.create_task(watch())
            await process.wait()
            watching.cancel()

        task = asyncio.create_task(until_ended())
        self._execs.add(task)
        task.add_done_callback(self._execs.discard)

    def _exec_line(self, running: _Running, command: Sequence[str], *, tty: bool) -> Sequence[str]:
        return command

    def write_log(self, pod_uid: str, message: str) -> None:
        """Add a line to the logs of the pod's running containers."""
        for running in self._running.values():
            if running.id.pod_uid == pod_uid and running.log is not None and not running.over.is_set():
                running.log.write("stderr", [(message.encode(), True)])

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


def _group_name(id: ContainerId) -> str:
    """Return the name of a container's cgroup in that of its pod."""
    return f"{id.name}-{id.attempt}"


def _read_exit(folder: Path) -> int | None:
    try:
        return int((folder / "exit").read_text())
    except (FileNotFoundError, ValueError):
        return None


def _is_shim(pid: int, folder: Path) -> bool:
    """Return whether the process is the shim of this container, not another process that got its number.

    Its folder may have been named by a link: an agent is started with a short path, `dray down` knows the long one.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    wanted = os.path.realpath(os.fsencode(folder))
    name = b"/" + os.fsencode(folder.name)
    return any(word.endswith(name) and os.path.realpath(word) == wanted for word in words)
