"""A process that has dray loaded and forks commands on request.

A command that is killed is back within milliseconds, so that hundreds of kills fit into
minutes, and every one of them still is a real process that gets a real SIGKILL.

Orders come as JSON lines: {"start": [arguments of dray], "log": file} is answered with a
pid, {"kill": pid} with how the process ended: "killed", or what it did before we came.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Zygote:
    """The caller's end."""

    async def __aenter__(self):
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert await self._answer() == "ready"
        return self

    async def __aexit__(self, *_):
        self._process.stdin.close()
        self._process.kill()
        await self._process.wait()

    async def start(self, log, *arguments):
        """Run `dray ARGUMENTS` and return its pid."""
        return await self._order(start=[str(each) for each in arguments], log=str(log))

    async def kill(self, pid):
        """Send SIGKILL; say how the process ended."""
        return await self._order(kill=pid)

    async def _order(self, **order):
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._answer()

    async def _answer(self):
        async with asyncio.timeout(120):
            return json.loads(await self._process.stdout.readline())


def _load():
    # What the commands import at their first step, the lazy imports included.
    import uvloop

    import dray.cli.controllers
    import dray.cli.scheduler
    import dray.cli.server
    import dray.server.assembly
    import dray.server.auth.pki
    import dray.server.http.https_front

    return uvloop, dray


def _child(order):
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from dray.cli.main import main

    os._exit(main(order["start"]))


def _kill(pid):
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return "killed"
    return f"ended by itself with status {status}"


def _serve():
    _load()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "kill" in order:
            print(json.dumps(_kill(order["kill"])), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            try:
                _child(order)
            finally:
                os._exit(70)
        print(json.dumps(pid), flush=True)


if __name__ == "__main__":
    _serve()
