"""How a driver acts on a container before its program starts, without any program of dray on the host.

The container runtime runs OCI hooks on the host, where neither dray nor Python is. So the hook is a
few lines of POSIX shell, which hand the container's state (JSON with its process id) to the driver
and wait for its answer; the driver does the work from outside, with the privileges it has.

    runtime ──runs──► /bin/sh hook.sh FOLDER KEY ──KEY.<pid>.state──► driver (`HookServer.run`)
                        ▲ exit code, message        KEY.<pid>.answer        │ acts on the container
                        └───────────────────────────────────────────────────┘

FOLDER is below the kubelet's plugins folder, mounted into the driver's pod at the same path. A named
pipe (`wake`) tells the driver of a new state, so that nobody polls while nothing happens. A state is
taken by renaming it: of two instances of a driver (rolling update) one acts. A driver that does
not answer within 20 seconds fails the start of the container, with a text; kubelet tries again.

Needed on the host: /bin/sh, cat, mv, rm, sleep. Needed in the driver's pod: `hostPID`, because the state
names a process by its number on the host. `check_pod` refuses to start a driver that cannot work.

Why not NRI, `netDevices` of CDI, or a binary: docs/adr/0019-hooks-without-host-programs.md.

Invariants (tests/unit/drivers/test_container_hook.py): every state is answered once; a damaged or huge
state is answered with an error; what a dead hook left is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dray.api.cdi import Hook
from dray.api.parsing import ParseError, load_json
from dray.driver import DriverError
from dray.host.files import PRIVATE_FILE, write_atomically
from dray.host.private_files import make_private_folder

log = logging.getLogger("dray.driver")

SCRIPT = r"""#!/bin/sh
# OCI hook of a dray driver: gives the container's state to the driver and waits until it has acted.
umask 077
file="$1/$2.$$"
cat >"$file.new" && mv "$file.new" "$file.state" || exit 1
if [ -p "$1/wake" ]; then echo 1<>"$1/wake"; fi
tries=0
while [ ! -e "$file.answer" ]; do
    tries=$((tries + 1))
    if [ "$tries" -gt 1000 ]; then
        rm -f "$file.state"
        echo "the driver that serves $1 does not answer; does its pod run on this node?" >&2
        exit 1
    fi
    sleep 0.02 2>/dev/null || { sleep 1; tries=$((tries + 50)); }
done
answer=$(cat "$file.answer")
rm -f "$file.answer"
[ -z "$answer" ] && exit 0
echo "$answer" >&2
exit 1
"""
TIMEOUT_SECONDS = 60
MAX_STATE_BYTES = 1 << 20
_LEFT_OVER_SECONDS = 300.0  # no hook waits this long


class ContainerState(msgspec.Struct, frozen=True):
    """What OCI's state of a container says, as far as drivers need it."""

    pid: int
    id: str = ""
    bundle: str = ""


Act = Callable[[str, ContainerState], None]  # key of the hook, container; raises DriverError or OSError


class HookServer:
    """Answers the hooks of one driver; `run` it beside the driver."""

    def __init__(self, folder: Path, act: Act) -> None:
        self._folder = folder
        self._act = act

    def hook(self, key: str, env: Mapping[str, str] | None = None) -> Hook:
        """Return the hook that has `act` called with this key when the container is made."""
        return Hook(
            hook_name="createRuntime",
            path="/bin/sh",
            args=["sh", str(self._folder / "hook.sh"), str(self._folder), key],
            env=[
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                *(f"{name}={value}" for name, value in (env or {}).items()),
            ],
            timeout=TIMEOUT_SECONDS,
        )

    def install(self) -> None:
        """Put the script and the pipe into the folder."""
        make_private_folder(self._folder)
        write_atomically(self._folder / "hook.sh", SCRIPT.encode(), 0o700, durable=False)
        pipe = self._folder / "wake"
        if pipe.exists() and not stat.S_ISFIFO(pipe.lstat().st_mode):
            pipe.unlink()
        with contextlib.suppress(FileExistsError):
            os.mkfifo(pipe, PRIVATE_FILE)

    async def run(self) -> None:
        """Answer hooks until cancelled."""
        self.install()
        # Opened for writing, too: without a writer a pipe would be at its end, for ever.
        pipe = os.open(self._folder / "wake", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(pipe, self._drain, pipe, woken)
        try:
            while True:
                await asyncio.to_thread(self.answer_all)
                # A hook that found no pipe, or whose byte another instance took, waits for this look.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(5.0):
                        await woken.wait()
                woken.clear()
        finally:
            loop.remove_reader(pipe)
            os.close(pipe)

    @staticmethod
    def _drain(pipe: int, woken: asyncio.Event) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(pipe, 4096)
        woken.set()

    def answer_all(self) -> None:
        """Answer every state that waits, oldest first; remove what dead hooks left."""
        for path in sorted(self._folder.glob("*.state"), key=_age, reverse=True):
            taken = path.with_suffix(".taken")
            try:
                path.rename(taken)
            except FileNotFoundError:
                continue  # another instance has it, or the hook gave up
            message = self._answer(path.name.rsplit(".", 2)[0], taken)
            write_atomically(path.with_suffix(".answer"), message.encode(), PRIVATE_FILE, durable=False)
            taken.unlink(missing_ok=True)
        for suffix in ("new", "taken", "answer"):
            for path in self._folder.glob(f"*.{suffix}"):
                if _age(path) > _LEFT_OVER_SECONDS:
                    path.unlink(missing_ok=True)

    def _answer(self, key: str, path: Path) -> str:
        """Act on one state; return what went wrong, or nothing."""
        try:
            with path.open("rb") as file:
                content = file.read(MAX_STATE_BYTES + 1)
            state = load_json(content, ContainerState, max_bytes=MAX_STATE_BYTES)
            self._act(key, state)
        except (ParseError, msgspec.MsgspecError, ValueError) as error:
            message = f"the container's state cannot be read: {error}"
        except (DriverError, OSError) as error:
            message = str(error)
        except Exception as error:
            log.exception("hook %s failed", key)
            message = f"{type(error).__name__}: {error}"
        else:
            return ""
        log.warning("hook %s: %s", key, message)
        return message


def _age(path: Path) -> float:
    """Return for how many seconds a file has been there; 0 when it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


# --- what a driver's pod needs ------------------------------------------------------------------

CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}


@dataclass(frozen=True, slots=True)
class PodView:
    """What a driver sees of the machine it runs on; the defaults are the real thing."""

    proc: Path = Path("/proc")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def is_pod(self) -> bool:
        """Return whether this process runs in a pod."""
        return "KUBERNETES_SERVICE_HOST" in self.environment


def check_pod(
    driver: str, capabilities: tuple[str, ...], view: PodView, *, host_network: bool = False
) -> None:
    """Raise DriverError when a hook of the driver could not work; what is missing is named as in a manifest."""
    if not view.is_pod:
        return
    status = (view.proc / "self/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    missing = [name for name in capabilities if not effective >> CAPABILITIES[name] & 1]
    if missing:
        raise DriverError(
            f"the {driver} driver's container lacks {', '.join(missing)}; add them to securityContext.capabilities.add"
            " (docs/drivers.md has a table of what each driver needs)"
        )
    try:
        is_own_first = _same(view.proc, "mnt")
        shares_network = _same(view.proc, "net")
    except PermissionError:
        # A first process that hides from us is not our container's own, so the host's processes are seen. Its namespaces
        # and files cannot be compared: a sandbox around the node keeps even its root from that.
        log.warning("%s: process 1 cannot be looked at; hostNetwork and /bin/sh are not checked", driver)
        return
    if is_own_first:
        raise DriverError(
            f"the {driver} driver's pod does not see the processes of the host; set hostPID: true in its spec"
        )
    if host_network and not shares_network:
        raise DriverError(
            f"the {driver} driver's pod does not see the network interfaces of the host; set hostNetwork: true in its spec"
        )
    # Not `exists`: a link with an absolute target would be followed in this container.
    if not os.path.lexists(view.proc / "1/root/bin/sh"):
        raise DriverError(
            f"this node has no /bin/sh, which the container hook of the {driver} driver needs; run the driver on other nodes"
        )


def _same(proc: Path, kind: str) -> bool:
    return (proc / f"1/ns/{kind}").stat().st_ino == (proc / f"self/ns/{kind}").stat().st_ino
